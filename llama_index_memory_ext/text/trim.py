"""Trims a list of messages to its newest ones, without a memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import CachePoint, TextBlock, ThinkingBlock, ToolCallBlock

from llama_index_memory_ext.text.cutting import Limits, clip_start, group_start, plan_cut, share_out
from llama_index_memory_ext.text.messages import INSTRUCTION_ROLES, checked_messages, message_tokens, tokens_of
from llama_index_memory_ext.text.tokens import TokenCounter, as_counter
from llama_index_memory_ext.text.tool_calls import CALL_KEYS, complete_calls, has_content, tool_call_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

    from llama_index.core.base.llms.types import ChatMessage, ContentBlock

    from llama_index_memory_ext.text.cutting import Splitter
    from llama_index_memory_ext.text.tokens import Tokenizer

    Group: TypeAlias = Sequence["_Counted"]
    Blocks: TypeAlias = Sequence[ContentBlock | None]

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
    tokenizer_fn: Tokenizer | None = None,
) -> list[ChatMessage]:
    """Returns the newest of the messages that fit, oldest first; [] for none.

    It differs from LangChain's ``trim_messages(strategy="last")`` in this: no result is kept without its call and no
    call without its result; a newest message that is too large alone is clipped (to its head and tail, or to its end
    with ``allow_partial``) rather than lost; neither a large system message nor a part of a message exceeds the limit;
    and a long turn of tool calls keeps the question that it began with.

    Args:
        messages: A conversation, oldest first; it is not changed. Messages that stay whole are the same objects.
        token_limit: Most tokens of the result, never exceeded; None for any number. Text and tool calls are counted
            exactly, images, audio and video as 256, documents as 2,048. Thinking, and the few tokens that a provider
            adds to each message, are not counted.
        max_messages: Most messages; None for any number. Only a tool call with its results may exceed it.
        keep_messages: Messages that are kept of more than ``max_messages``; default: ``keep_ratio`` of these.
        keep_ratio: Share of ``token_limit`` that is kept if there is more, above 0, at most 1. Below 1 the beginning
            stays the same for several turns if the next messages are added to the result.
        allow_partial: Whether the end of a message that does not fit is kept; never that of a tool call or a result.
        text_splitter: A function from a text to its pieces, or one of LlamaIndex's text splitters. Only whole pieces
            of such a message are kept.
        start_on: One or more roles. Messages before the first one with such a role are left out. If none of these
            fits, the newest of them is kept, clipped if necessary, with the newest messages after it.
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
    split = int(include_system and bool(messages) and messages[0].role in INSTRUCTION_ROLES)
    head, rest = trimmer.complete(messages[:split]), limits.ending_on(trimmer.complete(messages[split:]))
    if tokens_of(head) > limits.tokens - bool(rest):
        head = trimmer.clip(head[0], limits.tokens // 2, trimmer.clipped_blocks)
    limits = limits.remaining(tokens_of(head), len(head))
    kept = limits.starting_on(trimmer.newest(rest, limits)) or trimmer.newest_from_start(rest, limits.kept)
    return [counted.message for counted in (*head, *kept)]


class _Counted:
    """A message with its tokens, which are counted once, when they are first read."""

    def __init__(self, message: ChatMessage, counter: TokenCounter) -> None:
        self.message, self.role, self._counter = message, message.role, counter

    @cached_property
    def tokens(self) -> int:
        return message_tokens(self.message, self._counter)


@dataclass(frozen=True, slots=True)
class _Trimmer:
    """Finds the messages that fit, and shortens those that do not; [] is what is left of one that cannot be shown."""

    counter: TokenCounter

    def complete(self, messages: Iterable[ChatMessage]) -> Group:
        return [_Counted(message, self.counter) for message in complete_calls(messages)]

    def newest(self, messages: Group, limits: Limits) -> Group:
        """Returns the newest messages within the limits, the newest group shortened if it is too large."""
        start = group_start(messages, len(messages))
        while tokens_of(messages[start:]) > limits.tokens:
            limits = limits.kept
            shortened = self.shortened(messages[start:], limits.tokens, limits)
            messages = [*messages[:start], *shortened] if shortened else limits.ending_on(messages[:start])
            start = group_start(messages, len(messages))
        cut = plan_cut(messages, limits)
        kept = messages[cut:]
        if not cut or len(kept) >= limits.keep_messages:
            return kept
        before = messages[group_start(messages, cut) : cut]
        return [*self.clip_start(before, limits.keep_tokens - tokens_of(kept), limits), *kept]

    def newest_from_start(self, messages: Group, limits: Limits) -> Group:
        """Returns the newest group of ``start_on``, shortened if necessary, and the newest messages after it."""
        groups = tool_call_groups(messages)
        for i in reversed([i for i, group in enumerate(groups) if group[0].role in limits.start_on]):
            share, *_ = share_out([tokens_of(groups[i]), *map(tokens_of, groups[i + 1 :][-1:])], limits.tokens)
            start = self.shortened(groups[i], share, limits) or self.shortened(groups[i], limits.tokens, limits)
            after = chain.from_iterable(groups[i + 1 :] if len(start) < limits.max_messages else [])
            kept = [*start, *self.newest(list(after), limits.remaining(tokens_of(start), len(start)))]
            if start and limits.ending_on(kept) == kept:
                return kept
        return []

    def shortened(self, group: Group, limit: int, limits: Limits) -> Group:
        """Returns the group if it has at most ``limit`` tokens, else a shortened one."""
        if tokens_of(group) <= limit:
            return group
        if len(group) > 1:
            return self.clip_results(group, limit)
        whole_pieces = self.clip_start(group, limit, limits)
        end = whole_pieces or self.clip_start(group, limit, replace(limits, text_splitter=None))
        return end or self.clip(group[0], limit, self.clipped_blocks)

    def clip_start(self, group: Group, limit: int, limits: Limits) -> Group:
        """Returns the end of a message, [] if no part may be kept; of a call with its results none may be kept."""
        blocks_of = partial(self.last_blocks, text_splitter=limits.text_splitter)
        return self.clip(group[0], limit, blocks_of) if limits.allow_partial and len(group) == 1 else []

    def clip_results(self, group: Group, limit: int) -> Group:
        """Returns a call and its results, whose texts share what the calls leave; [] if one of them has no room."""
        call = _without_extras(group[0].message)
        calls = [block for block in call.blocks if isinstance(block, ToolCallBlock)]
        needed = message_tokens(_with_blocks(call, calls), self.counter)
        wanted = [max(group[0].tokens - needed, 0), *(result.tokens for result in group[1:])]
        shares = share_out(wanted, limit - needed)
        shares[0] += min(needed, limit)
        kept = [self.clip(message, share, self.clipped_blocks) for message, share in zip(group, shares, strict=True)]
        return list(chain.from_iterable(kept)) if all(kept) else []

    def clip(self, message: _Counted, limit: int, blocks_of: Callable[[ChatMessage, int], Blocks | None]) -> Group:
        """Returns the message if it fits, else a copy with the blocks that ``blocks_of`` returns; [] if it is empty."""
        if message.tokens <= limit:
            return [message]
        # If no text fits, it may fit without what a provider has added.
        for copy in (message.message, _without_extras(message.message)):
            blocks = blocks_of(copy, limit)
            if blocks is not None and has_content(clipped := _with_blocks(copy, blocks)):
                return [_Counted(clipped, self.counter)]
        return []

    def clipped_blocks(self, message: ChatMessage, limit: int) -> Blocks | None:
        """Returns the blocks with clipped texts, and as many media as then fit; None if the calls alone do not fit."""
        tokens = [self.counter.count(block.text) if isinstance(block, TextBlock) else 0 for block in message.blocks]

        def clipped(room: int) -> Blocks:
            return list(map(self._clipped_block, message.blocks, share_out(tokens, room)))

        blocks = self._most_text(clipped, message, limit)
        if blocks is None:
            return None
        for i, block in enumerate(message.blocks):
            more = [*blocks[:i], block, *blocks[i + 1 :]]
            if blocks[i] is None and self._excess(message, more, limit) <= 0:
                blocks = more
        return blocks

    def _clipped_block(self, block: ContentBlock, limit: int) -> ContentBlock | None:
        if isinstance(block, TextBlock):
            return block.model_copy(update={"text": self.counter.clip(block.text, limit)})
        # Thinking and cache points are not counted.
        return block if isinstance(block, ToolCallBlock | ThinkingBlock | CachePoint) else None

    def last_blocks(self, message: ChatMessage, limit: int, text_splitter: Splitter | None) -> Blocks:
        """Returns the last blocks that fit, and in front of them the end of a text."""
        first = len(message.blocks)
        while first and self._excess(message, message.blocks[first - 1 :], limit) <= 0:
            first -= 1
        end, block = message.blocks[first:], message.blocks[first - 1] if first else None
        if not isinstance(block, TextBlock):
            return [*end]

        def longer(room: int) -> Blocks:
            text = clip_start(block.text, room, self.counter, text_splitter)
            return [block.model_copy(update={"text": text}) if text else None, *end]

        return self._most_text(longer, message, limit) or [*end]

    def _most_text(self, blocks_of: Callable[[int], Blocks], message: ChatMessage, limit: int) -> Blocks | None:
        """Returns the blocks with the most tokens of text that fit into the limit; None if none fit."""
        room = limit
        while (over := self._excess(message, blocks := blocks_of(room), limit)) > 0 and room > 0:
            room = max(room - over, 0)
        return blocks if over <= 0 else None

    def _excess(self, message: ChatMessage, blocks: Sequence[ContentBlock | None], limit: int) -> int:
        return message_tokens(_with_blocks(message, blocks), self.counter) - limit


def _without_extras(message: ChatMessage) -> ChatMessage:
    """Returns a copy without what its provider has added to it."""
    kwargs = {key: value for key, value in message.additional_kwargs.items() if key in _NEEDED_KWARGS}
    return message.model_copy(update={"additional_kwargs": kwargs})


def _with_blocks(message: ChatMessage, blocks: Iterable[ContentBlock | None]) -> ChatMessage:
    # Validating the message again would add these images to the blocks once more.
    kwargs = {key: value for key, value in message.additional_kwargs.items() if key != "images"}
    kept = [block for block in blocks if block is not None]
    return message.model_copy(update={"blocks": kept, "additional_kwargs": kwargs})
