"""``trim``: cuts a list of messages down to the newest ones, without a memory."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    ContentBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

from llama_index_memory_ext.text.entries import (
    INSTRUCTION_ROLES,
    message_tokens,
    tokens_of,
)
from llama_index_memory_ext.text.limits import Limits, share_out
from llama_index_memory_ext.text.messages import (
    CALL_KEYS,
    checked_messages,
    complete_calls,
    has_content,
    tool_call_groups,
)
from llama_index_memory_ext.text.tokens import TokenCounter, Tokenizer, as_counter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Group: TypeAlias = Sequence["_Counted"]
    Groups: TypeAlias = Sequence[Group]


logger = logging.getLogger(__name__)

# Without these keys a message is no call or no result. Other keys that a provider has
# added may be left out.
_NEEDED_KWARGS = frozenset({*CALL_KEYS, "tool_call_id", "name"})
# Calls are counted apart; thinking and cache points are not counted.
_UNCOUNTED = (ToolCallBlock, ThinkingBlock, CachePoint)


def trim(
    messages: Iterable[ChatMessage],
    *,
    token_limit: int | None = None,
    max_messages: int | None = None,
    include_system: bool = False,
    tokenizer_fn: Tokenizer | None = None,
) -> list[ChatMessage]:
    """Return the newest of the messages that fit, oldest first; [] for none.

    It differs from LangChain's ``trim_messages(strategy="last")`` in this: no result is
    kept without its call and no call without its result; a newest message that is too
    large alone is clipped to its head and tail rather than lost; and a large system
    message never exceeds the limit.

    Args:
        messages: A conversation, oldest first; it is not changed. Messages that stay
            whole are the same objects.
        token_limit: Most tokens of the result, never exceeded; None for any number.
            Text and tool calls are counted exactly, images, audio and video as 256,
            documents as 2,048. Thinking, and the few tokens that a provider adds to
            each message, are not counted.
        max_messages: Most messages; None for any number. Only a tool call with its
            results may exceed it.
        include_system: Whether the first message is kept if it is the system's or the
            developer's. It counts towards both limits, and is clipped to half of
            ``token_limit`` if it would leave no room for a second message.
        tokenizer_fn: Turns a text into a list of tokens; default: o200k_base, exact and
            offline.

    Raises:
        LimitError: A limit is below 1, or leaves no room beside the system's message.
        MessageError: A value that is no ``ChatMessage`` is among the messages.

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
    limits = Limits.checked(
        token_limit, max_messages, None, include_system=include_system
    )
    counter = TokenCounter() if tokenizer_fn is None else as_counter(tokenizer_fn)
    trimmer = _Trimmer(counter)
    groups: Groups = tool_call_groups(
        [_Counted(message, counter) for message in complete_calls(messages)]
    )
    head: Group = []
    if include_system and groups and groups[0][0].role in INSTRUCTION_ROLES:
        head = groups[0]
        groups = groups[1:]
    # A token must remain for the messages behind it.
    if tokens_of(head) > limits.tokens - bool(groups):
        head = trimmer.clip(head[0], limits.tokens // 2)
    newest = trimmer.newest(
        groups, limits.tokens - tokens_of(head), limits.max_messages - len(head)
    )
    return [counted.message for counted in chain(head, *newest)]


class _Counted:
    """A message with its tokens, which are counted once, when they are first read."""

    def __init__(self, message: ChatMessage, counter: TokenCounter) -> None:
        self.message = message
        self.role = message.role
        self._counter = counter

    @cached_property
    def tokens(self) -> int:
        return message_tokens(self.message, self._counter)


@dataclass(frozen=True, slots=True)
class _Trimmer:
    """Finds the messages that fit, and shortens messages that do not.

    A group is a message, or a call with its results. [] is a group that cannot be
    shown.
    """

    counter: TokenCounter

    def newest(self, groups: Groups, token_limit: int, count: int) -> Groups:
        """Return the newest groups within the limits, the newest one shortened if it is too large."""
        newest_first: list[Group] = []
        for group in reversed(groups):
            fits = len(group) <= count and tokens_of(group) <= token_limit
            if count <= 0 or (newest_first and not fits):
                break
            part = self.clipped_group(group, token_limit)
            if part:
                newest_first.append(part)
                token_limit -= tokens_of(part)
                count -= len(part)
        return newest_first[::-1]

    def clipped_group(self, group: Group, limit: int) -> Group:
        """Return a call with its results, each message clipped to its share of the limit; [] if one cannot be."""
        if tokens_of(group) <= limit:
            return group
        caller = group[0]
        calls = [
            block for block in caller.message.blocks if isinstance(block, ToolCallBlock)
        ]
        # Calls are never clipped.
        call_tokens = self.tokens(caller.message, calls)
        tokens = [message.tokens for message in group]
        tokens[0] = max(caller.tokens - call_tokens, 0)
        shares = share_out(tokens, limit - call_tokens)
        shares[0] += min(call_tokens, limit)
        clipped_group: list[_Counted] = []
        for message, share in zip(group, shares, strict=True):
            clipped = self.clip(message, share)
            if not clipped:
                return []
            clipped_group += clipped
        return clipped_group

    def clip(self, message: _Counted, limit: int) -> Group:
        """Return the message if it fits, else a copy with clipped texts and the media that fit; [] for none."""
        if message.tokens <= limit:
            return [message]
        block_limit = limit
        while block_limit >= 0:
            blocks = self.clipped_blocks(message.message, block_limit)
            copy = _with_blocks(message.message, blocks)
            clipped = _Counted(copy, self.counter)
            if clipped.tokens <= limit:
                return [clipped] if has_content(copy) else []
            excess = clipped.tokens - limit
            block_limit = min(block_limit - 1, max(block_limit - excess, 0))
        return []

    def clipped_blocks(
        self, message: ChatMessage, limit: int
    ) -> list[ContentBlock | None]:
        """Return the blocks with texts that share ``limit`` tokens, and the media for which they leave room."""
        tokens = [
            self.counter.count(block.text) if isinstance(block, TextBlock) else 0
            for block in message.blocks
        ]
        shares = share_out(tokens, limit)
        blocks: list[ContentBlock | None] = []
        for block, share in zip(message.blocks, shares, strict=True):
            if isinstance(block, _UNCOUNTED):
                blocks.append(block)
            elif isinstance(block, TextBlock):
                text = self.counter.clip(block.text, share)
                blocks.append(block.model_copy(update={"text": text}))
            else:
                blocks.append(None)
        for i, block in enumerate(message.blocks):
            if blocks[i] is None:
                with_block = [*blocks[:i], block, *blocks[i + 1 :]]
                if self.tokens(message, with_block) <= limit:
                    blocks = with_block
        return blocks

    def tokens(
        self, message: ChatMessage, blocks: Iterable[ContentBlock | None]
    ) -> int:
        """Return the tokens that the message has with these blocks alone."""
        return message_tokens(_with_blocks(message, blocks), self.counter)


def _with_blocks(
    message: ChatMessage, blocks: Iterable[ContentBlock | None]
) -> ChatMessage:
    """Return a copy with these blocks alone, without blank texts, and without the additions of its provider."""
    kwargs = {
        key: value
        for key, value in message.additional_kwargs.items()
        if key in _NEEDED_KWARGS
    }
    shown_blocks = []
    for block in blocks:
        is_blank = isinstance(block, TextBlock) and not block.text.strip()
        if block is not None and not is_blank:
            shown_blocks.append(block)
    return message.model_copy(
        update={"blocks": shown_blocks, "additional_kwargs": kwargs}
    )
