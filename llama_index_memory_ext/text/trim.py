"""``trim``: cuts a list of messages down to the newest ones, without a memory."""

from __future__ import annotations

import logging
from itertools import chain
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    ContentBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

from llama_index_memory_ext.settings import check_limit
from llama_index_memory_ext.text.entries import INSTRUCTION_ROLES, message_tokens
from llama_index_memory_ext.text.limits import limits_of_messages, share_out
from llama_index_memory_ext.text.messages import (
    ASSISTANT_ROLES,
    CALL_KEYS,
    RESULT_ROLES,
    ToolCall,
    calls_of,
    checked_messages,
    has_content,
    tool_call_groups,
)
from llama_index_memory_ext.text.tokens import TokenCounter, Tokenizer, as_counter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

logger = logging.getLogger(__name__)

# Without these keys a message is no call or no result. Other keys that a provider has
# added may be left out.
_NEEDED_KWARGS = frozenset({*CALL_KEYS, "tool_call_id", "name"})
# The blocks of a clipped message beside its text.
_NEEDED_BLOCKS = (ToolCallBlock, ThinkingBlock, CachePoint)


def trim(
    messages: Iterable[ChatMessage],
    *,
    token_limit: int | None = None,
    max_messages: int | None = None,
    include_system: bool = False,
    tokenizer_fn: Tokenizer | None = None,
) -> list[ChatMessage]:
    """Return the newest of the messages that fit, oldest first; [] for none.

    It differs from LangChain's ``trim_messages(strategy="last")`` in three ways. No result
    is kept without its call, and no message whose calls lack a result. A newest message
    that is too large is clipped to its head and tail, without its media, and not lost.
    A large system message never exceeds the limit.

    Args:
        messages: A conversation, oldest first; it is not changed. Messages that stay
            whole are the same objects.
        token_limit: Maximum tokens of the result, never exceeded; None for any number.
            Text and tool calls are counted exactly, images as 2,125, audio and video as 256,
            documents as 2,048. Thinking, and the few tokens that a provider adds to
            each message, are not counted.
        max_messages: Maximum number of messages; None for any number. Only a tool call with its
            results may exceed it.
        include_system: Whether the first message is kept if it is the system's or the
            developer's. It counts towards both limits, and is clipped to half of
            ``token_limit`` if it would leave no room for a second message.
        tokenizer_fn: Turns a text into a list of tokens; default: o200k_base, exact and
            offline.

    Raises:
        LimitError: A limit is below 1, or leaves no room beside the system's message.
        MessageError: A value among the messages is not a ``ChatMessage``.

    Examples:
        >>> from llama_index.core.llms import ChatMessage
        >>> chat = [ChatMessage(role="user", content="Hello, world"), ChatMessage(role="assistant", content="Hello!")]
        >>> [message.content for message in trim(chat, token_limit=2)]
        ['Hello!']
    """
    messages = checked_messages(messages)
    if token_limit is None and max_messages is None:
        logger.warning(
            "trim got neither token_limit nor max_messages, so it leaves out unanswered calls alone. Pass one of them, "
            "such as token_limit=4_000."
        )
    check_limit("token_limit", token_limit)
    check_limit("max_messages", max_messages)
    limits = limits_of_messages(max_messages, None, 1.0, include_system=include_system)
    most_tokens = token_limit or limits.tokens
    counter = TokenCounter() if tokenizer_fn is None else as_counter(tokenizer_fn)
    groups = tool_call_groups(_complete_calls(messages))
    head: list[ChatMessage] = []
    if include_system and groups and groups[0][0].role in INSTRUCTION_ROLES:
        head = groups.pop(0)
        # A token must remain for the messages behind it.
        if _count_tokens(head, counter) > most_tokens - bool(groups):
            head = _clip_group(head, most_tokens // 2, counter)
    tokens = most_tokens - _count_tokens(head, counter)
    newest = _newest(groups, tokens, limits.max_messages - len(head), counter)
    return [*head, *newest]


def _complete_calls(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return the messages without results that lack a call, and without messages whose calls lack a result."""
    complete = []
    for caller, *results in tool_call_groups(messages):
        if caller.role in RESULT_ROLES:
            continue
        calls = calls_of(caller)
        # Only assistants make calls.
        is_caller = caller.role in ASSISTANT_ROLES
        if is_caller and _are_answered(calls, results):
            complete += [caller, *results]
        elif not calls:
            complete.append(caller)
    return complete


def _are_answered(calls: Sequence[ToolCall], results: Sequence[ChatMessage]) -> bool:
    """Return whether each call has a result and each result a call, by their ids or, without ids, by their number."""
    call_ids = sorted(call.id for call in calls)
    result_ids = sorted(
        str(result.additional_kwargs.get("tool_call_id") or "") for result in results
    )
    if any(call_ids) and any(result_ids):
        return call_ids == result_ids
    return len(call_ids) == len(result_ids)


def _newest(
    groups: Sequence[list[ChatMessage]], tokens: int, count: int, counter: TokenCounter
) -> list[ChatMessage]:
    """Return the newest groups within the limits, the newest one clipped if it is too large."""
    newest_first: list[list[ChatMessage]] = []
    for group in reversed(groups):
        fits = len(group) <= count and _count_tokens(group, counter) <= tokens
        if newest_first and not fits:
            break
        part = _clip_group(group, tokens, counter)
        if part:
            newest_first.append(part)
            tokens -= _count_tokens(part, counter)
            count -= len(part)
    return list(chain.from_iterable(reversed(newest_first)))


def _count_tokens(messages: Sequence[ChatMessage], counter: TokenCounter) -> int:
    return sum(message_tokens(message, counter) for message in messages)


def _clip_group(
    group: list[ChatMessage], limit: int, counter: TokenCounter
) -> list[ChatMessage]:
    """Return a message, or a call with its results, with texts that share the limit.

    [] if a message would be empty.
    """
    if _count_tokens(group, counter) <= limit:
        return group
    texts = [message.content or "" for message in group]
    tokens = list(map(counter.count, texts))
    without_texts = [_with_text(message, "") for message in group]
    clipped_group = without_texts
    room = limit - _count_tokens(without_texts, counter)
    while room > 0:
        clipped_group = []
        shares = share_out(tokens, room)
        for message, text, share in zip(group, texts, shares, strict=True):
            clipped_group.append(_with_text(message, counter.clip(text, share)))
        excess = _count_tokens(clipped_group, counter) - limit
        if excess <= 0:
            break
        # The tokens of parts need not add up.
        room -= excess
    is_whole = list(map(has_content, group)) == list(map(has_content, clipped_group))
    if is_whole and _count_tokens(clipped_group, counter) <= limit:
        return clipped_group
    return []


def _with_text(message: ChatMessage, text: str) -> ChatMessage:
    """Return a copy with this text in place of its texts, without media and the additions of its provider."""
    blocks: list[ContentBlock] = []
    for block in message.blocks:
        if isinstance(block, _NEEDED_BLOCKS):
            blocks.append(block)
        elif isinstance(block, TextBlock) and text.strip():
            blocks.append(TextBlock(text=text))
            text = ""
    kwargs = {
        key: value
        for key, value in message.additional_kwargs.items()
        if key in _NEEDED_KWARGS
    }
    return message.model_copy(update={"blocks": blocks, "additional_kwargs": kwargs})
