"""Trims a list of messages to its newest ones, without a memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import CachePoint, TextBlock, ThinkingBlock, ToolCallBlock

from llama_index_memory_ext.text.cutting import Group, Limits, clip_start, plan_cut, share_out
from llama_index_memory_ext.text.messages import INSTRUCTION_ROLES, checked_messages, message_tokens
from llama_index_memory_ext.text.tokens import TokenCounter, as_counter
from llama_index_memory_ext.text.tool_calls import CALL_KEYS, complete_groups, has_content, without_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeAlias

    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.text.cutting import Splitter

    Groups: TypeAlias = Sequence[Group[ChatMessage]]
    BlocksOf: TypeAlias = Callable[[ChatMessage, int], list[Any] | None]

# Without these a message is no call or no result. All else that a provider has added may be left out.
_NEEDED_KWARGS = frozenset({*CALL_KEYS, "tool_call_id", "name"})


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
    """Returns the newest of the messages that fit, oldest first; [] for none.

    It differs from LangChain's ``trim_messages(strategy="last")`` in this: no result is kept without its call and no
    call without its result; a newest message that is too large alone is clipped (to its head and tail, or to its end
    with ``allow_partial``) rather than lost; neither a large system message nor a part of a message exceeds the limit;
    and a long turn of tool calls keeps the question that it began with.

    Args:
        messages: A conversation, oldest first. Neither the list nor a message is changed. Messages that stay
            whole are the same objects, shortened ones are copies.
        token_limit: Most tokens of the result, never exceeded; None for any number. Text and tool calls are counted
            exactly, an image, a sound or a film as 256, a document as 2,048. Thinking, and the few tokens that a
            provider adds to each message, are not counted.
        max_messages: Most messages; None for any number. Only a tool call with its results may exceed it.
        keep_messages: Messages that are kept if there are more than ``max_messages``; default: ``keep_ratio`` of
            them, at least 1.
        keep_ratio: Share of ``token_limit`` that is kept if there is more, above 0, at most 1. Below 1 the beginning
            stays the same for several turns if the next messages are added to the result.
        allow_partial: Whether the end of a message is kept that does not fit whole. A tool call and its results are
            never split.
        text_splitter: A function from a text to its pieces, or one of LlamaIndex's text splitters. Only whole pieces
            of such a message are kept.
        start_on: One or more roles. Messages before the first one with such a role are left out. If none of them
            fits, the newest one is kept, clipped if necessary, and then the newest messages.
        end_on: One or more roles. Messages after the last one with such a role are left out first.
        include_system: Whether the first message is kept if it is the system's or the developer's. It counts towards
            both limits, and is clipped to half of ``token_limit`` if it would leave no room for another. ``start_on``
            and ``end_on`` ignore it.
        tokenizer_fn: Turns a text into a list of tokens; default: o200k_base, exact and offline.

    Raises:
        LimitError: A limit is below 1, or limits contradict each other.
        MessageError: Something else than a ``ChatMessage`` is among the messages.
        SplitterError: ``text_splitter`` cannot split a text.
        RoleError: ``start_on`` or ``end_on`` names a role that does not exist.

    Examples:
        >>> from llama_index.core.llms import ChatMessage
        >>> chat = [ChatMessage(role="user", content="Hello, world"), ChatMessage(role="assistant", content="Hello!")]
        >>> [message.content for message in trim(chat, token_limit=2)]
        ['Hello!']
        >>> [message.content for message in trim(chat, token_limit=4, allow_partial=True)]
        [', world', 'Hello!']
    """
    messages = checked_messages(messages)
    limits = Limits.checked(
        token_limit=token_limit,
        max_messages=max_messages,
        keep_messages=keep_messages,
        keep_ratio=keep_ratio,
        allow_partial=allow_partial,
        text_splitter=text_splitter,
        start_on=start_on,
        end_on=end_on,
        include_system=include_system,
    )
    trimmer = _Trimmer(as_counter(tokenizer_fn) if tokenizer_fn is not None else TokenCounter())
    head = messages[:1] if include_system and messages and messages[0].role in INSTRUCTION_ROLES else []
    groups = limits.ending_on([trimmer.group(found) for found in complete_groups(messages[len(head) :])])
    if head:
        head = trimmer.head(without_calls(head[0]), limits.tokens, alone=not groups)
        limits = limits.remaining(trimmer.group(head).tokens, len(head))
    kept = limits.starting_on(trimmer.newest(groups, limits)) or trimmer.newest_from_start(groups, limits.kept)
    return head + [message for group in kept for message in group.messages]


@dataclass(frozen=True, slots=True)
class _Trimmer:
    """Finds what fits of messages and shortens what does not."""

    counter: TokenCounter

    def tokens(self, message: ChatMessage) -> int:
        return message_tokens(message, self.counter)

    def group(self, messages: Sequence[ChatMessage]) -> Group[ChatMessage]:
        return Group(messages, self.tokens)

    def head(self, message: ChatMessage, limit: int, *, alone: bool) -> list[ChatMessage]:
        """Returns a message that always stays, clipped if it leaves no room for others; [] if nothing is left of it."""
        fits = self.tokens(message) <= limit - (not alone)
        head = message if fits else self.clip(message, limit // 2, self.clipped_blocks)
        return [head] if head else []

    def newest(self, groups: Groups, limits: Limits) -> Groups:
        """Returns the newest groups within the limits, the newest of all shortened if it is too large."""
        while groups and groups[-1].tokens > limits.tokens:
            limits = limits.kept
            shortened = self.shortened(groups[-1], limits.tokens, limits)
            groups = [*groups[:-1], shortened] if shortened else limits.ending_on(groups[:-1])
        cut = plan_cut(groups, limits)
        kept = groups[cut:]
        room = limits.keep_tokens - sum(group.tokens for group in kept)
        if not cut or sum(len(group.messages) for group in kept) >= limits.keep_messages:
            return kept
        end = self.clip_start(groups[cut - 1], room, limits)
        return [end, *kept] if end else kept

    def newest_from_start(self, groups: Groups, limits: Limits) -> Groups:
        """Returns the newest group of ``start_on``, shortened if necessary, and the newest after it that fit."""
        for i in reversed(range(len(groups))):
            if groups[i].messages[0].role not in limits.start_on:
                continue
            after = groups[i + 1 :]
            share, _ = share_out([groups[i].tokens, after[-1].tokens if after else 0], limits.tokens)
            start = self.shortened(groups[i], share, limits) or self.shortened(groups[i], limits.tokens, limits)
            if start:
                count = len(start.messages)
                more = after if count < limits.max_messages else []
                kept = [start, *self.newest(more, limits.remaining(start.tokens, count))]
                if len(limits.ending_on(kept)) == len(kept):
                    return kept
        return []

    def shortened(self, group: Group[ChatMessage], limit: int, limits: Limits) -> Group[ChatMessage] | None:
        """Returns the group if it has at most ``limit`` tokens, else a shortened one; None if nothing is left."""
        if group.tokens <= limit:
            return group
        if len(group.messages) > 1:
            return self.clip_results(group, limit)
        whole_pieces = self.clip_start(group, limit, limits)
        end = whole_pieces or self.clip_start(group, limit, replace(limits, text_splitter=None))
        clipped = None if end else self.clip(group.messages[0], limit, self.clipped_blocks)
        return self.group([clipped]) if clipped else end

    def clip_start(self, group: Group[ChatMessage], limit: int, limits: Limits) -> Group[ChatMessage] | None:
        """Returns the end of a message; None if no part of it may be kept or nothing is left."""
        message, *results = group.messages
        blocks_of = partial(self.last_blocks, text_splitter=limits.text_splitter)
        end = self.clip(message, limit, blocks_of) if limits.allow_partial and not results else None
        return self.group([end]) if end else None

    def clip_results(self, group: Group[ChatMessage], limit: int) -> Group[ChatMessage] | None:
        """Returns a call and its results with at most ``limit`` tokens; None if the calls alone have more.

        Their texts share what the calls leave: short ones stay whole, long ones get equal parts.
        """
        *_, call = _copies(group.messages[0])
        needed = self.tokens(_with_blocks(call, [block for block in call.blocks if isinstance(block, ToolCallBlock)]))
        wanted = [self.tokens(message) for message in group.messages]
        shares = share_out([max(wanted[0] - needed, 0), *wanted[1:]], limit - needed)
        shares[0] += min(needed, limit)
        clip = partial(self.clip, blocks_of=self.clipped_blocks, may_be_empty=True)
        kept = [part for part in map(clip, group.messages, shares) if part]
        return self.group(kept) if len(kept) == len(shares) else None

    def clip(
        self, message: ChatMessage, limit: int, blocks_of: BlocksOf, *, may_be_empty: bool = False
    ) -> ChatMessage | None:
        """Returns the message if it fits, else a copy with ``blocks_of`` it; None if these do not fit or are empty."""
        if self.tokens(message) <= limit:
            return message
        empty = None
        # What a provider has added is left out before the last word is.
        for copy in _copies(message):
            blocks = blocks_of(copy, limit)
            clipped = None if blocks is None else _with_blocks(copy, blocks)
            if clipped and has_content(clipped):
                return clipped
            empty = empty or clipped
        return empty if may_be_empty else None

    def clipped_blocks(self, message: ChatMessage, limit: int) -> list[Any] | None:
        """Returns the blocks with clipped texts, and as many media as then fit; None if the calls alone do not fit."""
        tokens = [self.counter.count(block.text) if isinstance(block, TextBlock) else 0 for block in message.blocks]

        def clipped(room: int) -> list[Any]:
            return list(map(self._clipped_block, message.blocks, share_out(tokens, room)))

        blocks = self._most_text(clipped, min(limit, sum(tokens)), message, limit)
        if blocks is None:
            return None
        for i, block in enumerate(message.blocks):
            more = [*blocks[:i], block, *blocks[i + 1 :]]
            if blocks[i] is None and self._excess(message, more, limit) <= 0:
                blocks = more
        return blocks

    def _clipped_block(self, block: Any, limit: int) -> Any:
        if isinstance(block, TextBlock):
            return block.model_copy(update={"text": self.counter.clip(block.text, limit)})
        # Thinking and cache points are not counted.
        return block if isinstance(block, ToolCallBlock | ThinkingBlock | CachePoint) else None

    def last_blocks(self, message: ChatMessage, limit: int, text_splitter: Splitter | None) -> list[Any]:
        """Returns the last blocks that fit, and in front of them the end of a text."""
        first = len(message.blocks)
        while first and self._excess(message, message.blocks[first - 1 :], limit) <= 0:
            first -= 1
        end, block = message.blocks[first:], message.blocks[first - 1] if first else None
        if not isinstance(block, TextBlock):
            return end

        def longer(room: int) -> list[Any]:
            text = clip_start(block.text, room, self.counter, text_splitter)
            return [block.model_copy(update={"text": text}) if text else None, *end]

        return self._most_text(longer, limit, message, limit) or end

    def _most_text(
        self, blocks_of: Callable[[int], list[Any]], room: int, message: ChatMessage, limit: int
    ) -> list[Any] | None:
        """Returns the blocks with the most tokens of text that fit into the limit; None if none fit."""
        while (over := self._excess(message, blocks := blocks_of(room), limit)) > 0:
            if room <= 0:
                return None
            room = max(room - over, 0)
        return blocks

    def _excess(self, message: ChatMessage, blocks: Sequence[Any], limit: int) -> int:
        return self.tokens(_with_blocks(message, blocks)) - limit


def _copies(message: ChatMessage) -> Iterator[ChatMessage]:
    """Yields a copy of the message, and one without what its provider has added to it."""
    # Validating the message again would add these images to the blocks, where they are already.
    kwargs = {key: value for key, value in message.additional_kwargs.items() if key != "images"}
    yield message.model_copy(update={"additional_kwargs": kwargs})
    needed = {key: value for key, value in kwargs.items() if key in _NEEDED_KWARGS}
    yield message.model_copy(update={"additional_kwargs": needed})


def _with_blocks(message: ChatMessage, blocks: Iterable[Any]) -> ChatMessage:
    return message.model_copy(update={"blocks": [block for block in blocks if block is not None]})
