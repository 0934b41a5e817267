"""The limits of a record: its messages, and the tokens of the summary, of recalled and of sticky messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index_memory_ext.errors import LimitError
from llama_index_memory_ext.record.text import MIN_ROOM
from llama_index_memory_ext.text.limits import Limits, limits_of_messages

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_SUMMARY_TOKENS = 1_000
_MAX_RECALL_TOKENS = 2_000
_MOST_OF_A_QUARTER = 1_000
_LEAST_RECALL_TOKENS = 150
_MAX_STICKY_TOKENS = 2_000
# Caches serve prompts of at least 1,024 tokens.
_LEAST_WITH_STICKY = 2_000


class RecordLimits(NamedTuple):
    """The limits of messages, and the most tokens of the summary, of recalled and of sticky messages."""

    messages: Limits
    summary_tokens: int
    recall_tokens: int
    sticky_tokens: int


def limits_of(fields: Mapping[str, Any]) -> RecordLimits:
    """Return the limits by the fields of a block.

    Raises:
        KeyError: A field is missing.
        LimitError: The limits leave no room for messages.
    """
    limits = limits_of_messages(
        fields["max_messages"],
        fields["keep_messages"],
        fields["keep_ratio"],
        include_system=fields["include_system"],
    )
    token_limit = fields["token_limit"]
    summary = max(1, min(_MAX_SUMMARY_TOKENS, token_limit // 4))
    recall = fields["recall_token_limit"]
    reserved = summary if fields["summarize"] else 0
    if fields["recall_when"] == "never":
        recall = 0
    elif recall is None:
        recall = _recall_tokens(token_limit, token_limit - reserved - MIN_ROOM)
    reserved += recall
    free = token_limit - reserved - MIN_ROOM
    sticky = _sticky_tokens(fields, recall, max(free, 0))
    reserved += sticky
    if reserved and reserved + MIN_ROOM > token_limit:
        raise LimitError(
            f"The summary and the earlier messages may have {reserved} tokens, and leave no room for messages in "
            f"the {token_limit} of the whole record. Raise token_limit (condensed_token_limit of the memory), "
            "or lower recall_token_limit or sticky_token_limit."
        )
    return RecordLimits(limits, summary, recall, sticky)


def _recall_tokens(token_limit: int, free: int) -> int:
    """Return the default tokens of recalled messages, in a limit of which ``free`` tokens are left.

    They are a quarter of a limit up to 4,000, at least 150; 1,000 up to 8,000; an
    eighth of a larger limit, at most 2,000. They leave at least half of the free tokens.
    Where no message would have room, they are 0.
    """
    quarter = min(token_limit // 4, _MOST_OF_A_QUARTER)
    share = max(quarter, token_limit // 8, _LEAST_RECALL_TOKENS)
    tokens = min(share, _MAX_RECALL_TOKENS, free // 2)
    return tokens if tokens >= MIN_ROOM else 0


def _sticky_tokens(fields: Mapping[str, Any], recall: int, free: int) -> int:
    """Return the most tokens of sticky messages; 0 with a summary, or if no message is recalled.

    By default they are a quarter of the limit, at most 2,000 and at most ``free``.
    """
    if not recall or fields["summarize"]:
        return 0
    tokens: int | None = fields["sticky_token_limit"]
    if tokens is not None:
        return tokens
    limit: int = fields["token_limit"]
    # No cache serves a short record, or a record that is cut in each turn.
    if limit < _LEAST_WITH_STICKY or fields["keep_ratio"] == 1:
        return 0
    return min(limit // 4, _MAX_STICKY_TOKENS, free)
