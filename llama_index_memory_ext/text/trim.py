"""Trims a list of messages to its newest ones, without a memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.text.clipping import clip_message, clip_unit, end_of_message, tokens_of
from llama_index_memory_ext.text.cutting import plan_cut, share_out
from llama_index_memory_ext.text.limits import Limits, check_room_for_system, limits_of, roles_of
from llama_index_memory_ext.text.messages import INSTRUCTION_ROLES, RESULT_ROLES, checked_messages, has_content
from llama_index_memory_ext.text.pieces import checked_splitter
from llama_index_memory_ext.text.tokens import TokenCounter, as_counter
from llama_index_memory_ext.text.tool_calls import units_of, without_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from llama_index.core.base.llms.types import ChatMessage, MessageRole

    from llama_index_memory_ext.text.pieces import Splitter
    from llama_index_memory_ext.text.tool_calls import Unit


def trim(
    messages: Iterable[ChatMessage],
    *,
    token_limit: int | None = None,
    max_messages: int | None = None,
    keep_messages: int | None = None,
    keep_ratio: float = 1.0,
    allow_partial: bool = False,
    text_splitter: Splitter | None = None,
    start_on: str | Sequence[str] | None = None,
    end_on: str | Sequence[str] | None = None,
    include_system: bool = False,
    tokenizer_fn: Callable[[str], list[Any]] | None = None,
) -> list[ChatMessage]:
    """The newest of the messages that fit, oldest first; [] for none.

    Args:
        messages: A conversation, oldest first. Neither the list nor a message is changed; messages that stay
            whole are the same objects, shortened ones are copies.
        token_limit: Most tokens of what comes back; None for any number. Text and tool calls are counted
            exactly, an image, a sound or a film as 256, a document as 2,048. Never exceeded. Thinking, and the few
            tokens that a provider adds to each message, are not counted.
        max_messages: Most messages; None for any number. Only a tool call with its results may pass it.
        keep_messages: Messages that are left where there are over ``max_messages``; default: ``keep_ratio`` of
            them, at least 1.
        keep_ratio: Share of ``token_limit`` that is left where there is more, above 0, at most 1. Below 1 the
            beginning stays the same for several turns if what comes back is what the next messages are added to.
        allow_partial: Whether the end of a message is kept that does not fit whole. A tool call and its results
            are never parted.
        text_splitter: Keeps whole pieces of such a message only: a function from a text to its pieces, or one of
            LlamaIndex's text splitters.
        start_on: One or more roles; what stands before the first message with one of them is left out. If none of
            them fits, the newest one is kept all the same, clipped if need be, and then the newest messages.
        end_on: One or more roles; what stands behind the last message with one of them is left out first.
        include_system: Whether the first message stays if it is the system's or the developer's. It is one of
            ``max_messages``, its tokens come off ``token_limit``, and it is clipped to half of the limit where it
            would leave no room for another. ``start_on`` and ``end_on`` do not look at it.
        tokenizer_fn: Turns a text into a list of tokens; default: o200k_base, exact and offline.

    Raises:
        LimitError: A limit is below 1, or limits contradict each other.
        MessageError: Something else than a ``ChatMessage`` is among the messages.
        SplitterError: ``text_splitter`` cannot split a text.
        RoleError: ``start_on`` or ``end_on`` names a role that does not exist.

    LangChain's ``trim_messages(strategy="last")`` does the same but for this: here no result stands without its
    call and no call without its result; the newest message is clipped (its head and tail, or its end with
    ``allow_partial``) rather than lost if it is too large alone; neither a large system message nor a part of a
    message breaks the limit; and a long turn of tool calls keeps the question that it began with.

    Examples:
        >>> from llama_index.core.llms import ChatMessage
        >>> chat = [ChatMessage(role="user", content="Hello, world"), ChatMessage(role="assistant", content="Hello!")]
        >>> [message.content for message in trim(chat, token_limit=2)]
        ['Hello!']
        >>> [message.content for message in trim(chat, token_limit=4, allow_partial=True)]
        [', world', 'Hello!']
    """
    messages = checked_messages(messages)
    limits = limits_of(token_limit, max_messages, keep_messages, keep_ratio)
    if include_system:
        check_room_for_system(max_messages)
    starts, ends = roles_of("start_on", start_on), roles_of("end_on", end_on)
    counter = as_counter(tokenizer_fn) if tokenizer_fn is not None else TokenCounter()
    fitting = _Fitting(counter, allow_partial, checked_splitter(text_splitter), ends)
    has_head = include_system and bool(messages) and messages[0].role in INSTRUCTION_ROLES
    units = _ending_on(units_of(messages[1:] if has_head else messages), ends)
    head = fitting.head(messages[0], limits, alone=not units) if has_head else []
    if head:
        limits = limits.behind(fitting.tokens(head), len(head))
    kept = fitting.newest(units, limits)
    if starts:
        kept = _starting_on(kept, starts) or fitting.with_start(units, starts, limits)
    return head + [message for unit in kept for message in unit]


@dataclass(frozen=True, slots=True)
class _Fitting:
    """Finds what fits. Units are a message each, or a call with its results, oldest first."""

    counter: TokenCounter
    allow_partial: bool
    text_splitter: Splitter | None
    ends: frozenset[MessageRole]

    def newest(self, units: Sequence[Unit], limits: Limits) -> list[Unit]:
        """The newest units within the limits, the newest of all shortened if it is too large."""
        units = list(units)
        while units and self.tokens(units[-1]) > limits.tokens:
            shortened = self._shortened(units[-1], limits.keep_tokens)
            units = [*units[:-1], shortened] if shortened else _ending_on(units[:-1], self.ends)
            limits = limits.kept
        near = self._near(units, limits)
        messages = [message for unit in near for message in unit]
        cut = plan_cut(
            [tokens_of(message, self.counter) for message in messages],
            turn_starts=[False] * len(messages),
            results=[message.role in RESULT_ROLES for message in messages],
            token_limit=limits.tokens,
            keep_tokens=limits.keep_tokens,
            max_messages=limits.messages,
            keep_messages=limits.keep_messages,
        )
        first = list(accumulate(map(len, near), initial=0)).index(cut)
        kept = near[first:]
        if first and self.allow_partial and len(messages) - cut < limits.keep_messages:
            room = limits.keep_tokens - sum(map(self.tokens, kept))
            kept = self._part(near[first - 1], room) + kept
        return kept

    def with_start(self, units: Sequence[Unit], starts: frozenset[MessageRole], limits: Limits) -> list[Unit]:
        """The newest unit that begins with one of the roles, and as many of the newest behind it as fit."""
        limits = limits.kept
        for i in reversed(range(len(units))):
            if units[i][0].role not in starts:
                continue
            behind = units[i + 1 :]
            wanted = [self.tokens(units[i]), self.tokens(behind[-1]) if behind else 0]
            start = self._shortened(units[i], share_out(wanted, limits.tokens)[0])
            start = start or self._shortened(units[i], limits.tokens)
            if start:
                fits_more = len(start) < limits.messages
                rest = limits.behind(self.tokens(start), len(start))
                kept = [start, *(self.newest(behind, rest) if fits_more else [])]
                if _ending_on(kept, self.ends) == kept:
                    return kept
        return []

    def head(self, message: ChatMessage, limits: Limits, *, alone: bool) -> Unit:
        """The message that stays in any case, clipped if it leaves no room for others; [] if nothing is left of it."""
        message = without_calls(message)
        if tokens_of(message, self.counter) <= limits.tokens - (not alone):
            return [message]
        clipped = clip_message(message, limits.tokens // 2, self.counter)
        return [clipped] if clipped and has_content(clipped) else []

    def tokens(self, unit: Unit) -> int:
        """The tokens of all messages of a unit."""
        return sum(tokens_of(message, self.counter) for message in unit)

    def _near(self, units: Sequence[Unit], limits: Limits) -> list[Unit]:
        """As many of the newest as are over a limit, so that a long history is not counted whole."""
        tokens = messages = 0
        for i in reversed(range(len(units))):
            tokens += self.tokens(units[i])
            messages += len(units[i])
            if tokens > limits.tokens or messages > limits.messages:
                return list(units[i:])
        return list(units)

    def _shortened(self, unit: Unit, limit: int) -> Unit | None:
        if self.allow_partial and len(unit) == 1:
            for splitter in (self.text_splitter, None):
                end = end_of_message(unit[0], limit, self.counter, splitter)
                if end is not None:
                    return [end]
        return clip_unit(unit, limit, self.counter)

    def _part(self, unit: Unit, room: int) -> list[Unit]:
        end = end_of_message(unit[0], room, self.counter, self.text_splitter) if len(unit) == 1 else None
        return [[end]] if end is not None else []


def _ending_on(units: list[Unit], roles: frozenset[MessageRole]) -> list[Unit]:
    """The units up to the last one that ends with one of the roles; all of them if no role is asked for."""
    ends = [i for i, unit in enumerate(units, start=1) if not roles or unit[-1].role in roles]
    return units[: ends[-1]] if ends else []


def _starting_on(units: list[Unit], roles: frozenset[MessageRole]) -> list[Unit]:
    """The units from the first one on that begins with one of the roles."""
    starts = [i for i, unit in enumerate(units) if unit[0].role in roles]
    return units[starts[0] :] if starts else []
