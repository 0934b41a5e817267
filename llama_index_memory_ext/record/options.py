"""The settings of a record, and what they leave for its messages."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - the preset's type hints are evaluated
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import TypedDict

from llama_index_memory_ext.errors import LimitError
from llama_index_memory_ext.record.selection import Selection
from llama_index_memory_ext.text.cutting import Limits

if TYPE_CHECKING:
    from collections.abc import Collection

    from llama_index_memory_ext.text.cutting import Splitter
    from llama_index_memory_ext.text.messages import Entry
    from llama_index_memory_ext.text.tokens import TokenCounter

_MOST_SUMMARY_TOKENS = 1_000
# The tags of the record and of two messages, and a few words: with less room, nothing would be shown.
_LEAST_ROOM = 50


class CondensedOptions(TypedDict, total=False):
    """Settings that the preset hands on to its ``CondensedMemoryBlock``, whose fields say what they mean."""

    keep_ratio: float
    message_ratio: float | None
    max_messages: int | None
    keep_messages: int | None
    allow_partial: bool
    text_splitter: Splitter | None
    start_on: str | Sequence[str]
    end_on: str | Sequence[str]
    include_system: bool
    summarize: bool
    summary_token_limit: int | None
    recall_token_limit: int


class RecordSettings(Protocol):
    """What the parts of a ``CondensedMemoryBlock`` read of its fields."""

    name: str
    tokenizer_fn: TokenCounter
    token_limit: int
    keep_ratio: float
    message_ratio: float | None
    max_messages: int | None
    keep_messages: int | None
    allow_partial: bool
    text_splitter: Any
    start_on: str | Sequence[str] | None
    end_on: str | Sequence[str] | None
    include_system: bool
    summarize: bool
    summary_token_limit: int | None
    recall_token_limit: int


def summary_limit(token_limit: int, wanted: int | None) -> int:
    """Most tokens of a summary; by default a quarter of the record's limit, at most 1,000."""
    return wanted if wanted is not None else max(1, min(_MOST_SUMMARY_TOKENS, token_limit // 4))


def shown_summary_limit(settings: RecordSettings, room: int, system: Entry | None) -> int:
    """Most tokens of the summary that is shown; an old one, where none is made any more, leaves half to messages."""
    limit = summary_limit(settings.token_limit, settings.summary_token_limit)
    if settings.summarize:
        return limit
    return min(limit, (room - settings.recall_token_limit - (system.tokens if system else 0)) // 2)


def reserved_tokens(settings: RecordSettings) -> int:
    """Tokens that messages may not have: those of the summary and of what is recalled."""
    summary = summary_limit(settings.token_limit, settings.summary_token_limit) if settings.summarize else 0
    return settings.recall_token_limit + summary


def selection_of(settings: RecordSettings, room: int, system: Entry | None, summary_tokens: int) -> Selection:
    """What is shown of the messages beside the summary, what is recalled, and the first instructions.

    Args:
        settings: Of the block.
        room: Tokens of all that is shown.
        system: The first instructions, if they stay.
        summary_tokens: Tokens of the summary as it is shown.
    """
    # The first instructions are one of the messages.
    taken_messages, most, keep = int(system is not None), settings.max_messages, settings.keep_messages
    limits = Limits.checked(
        max_messages=None if most is None else max(most - taken_messages, 1),
        keep_messages=None if keep is None else max(keep - taken_messages, 1),
        keep_ratio=settings.keep_ratio,
        allow_partial=settings.allow_partial,
        text_splitter=settings.text_splitter,
        start_on=settings.start_on,
        end_on=settings.end_on,
    )
    taken = reserved_tokens(settings) + (0 if settings.summarize else summary_tokens) + (system.tokens if system else 0)
    limits = replace(limits, tokens=max(room - taken, 0))
    ratio = settings.message_ratio or (1.0 if settings.allow_partial else 0.5)
    return Selection(limits, settings.tokenizer_fn, int(limits.tokens * min(ratio, limits.keep_ratio)))


def check_room(token_limit: int, reserved: int) -> None:
    """Refuse, by a LimitError, a summary and a recall that leave no room for messages."""
    if reserved and reserved + _LEAST_ROOM > token_limit:
        raise LimitError(
            f"The summary and what is recalled may have {reserved} tokens, and leave no room for messages in "
            f"the {token_limit} of the whole record. Raise token_limit (condensed_token_limit of the memory), or lower "
            "summary_token_limit or recall_token_limit."
        )


def check_limits(token_limit: int, condensed: int, facts: int) -> None:
    """Refuse, by a LimitError, limits of the preset's blocks that do not fit into its own."""
    if condensed < 1 or facts < 0 or condensed + facts > token_limit:
        raise LimitError(
            f"The blocks' limits must be at least 1 (0 for no facts) and fit into token_limit={token_limit}; "
            f"condensed_token_limit={condensed} and facts_token_limit={facts} make {condensed + facts}. "
            "Lower them, or raise token_limit."
        )


def check_option_names(names: Collection[str]) -> None:
    """Refuse, by a TypeError, options of the preset that there are not."""
    known = CondensedOptions.__annotations__
    unknown = sorted(name for name in names if name not in known)
    if unknown:
        raise TypeError(
            f"CondensedMemory.from_defaults() has no argument {unknown[0]!r}. Those of the record are "
            f"{', '.join(sorted(known))}."
        )
