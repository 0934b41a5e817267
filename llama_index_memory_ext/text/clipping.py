"""Makes messages short enough: the middle of their texts is left out, or only their end is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import CachePoint, TextBlock, ThinkingBlock, ToolCallBlock

from llama_index_memory_ext.text.cutting import share_out
from llama_index_memory_ext.text.messages import has_content, message_tokens
from llama_index_memory_ext.text.pieces import end_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.text.pieces import Splitter
    from llama_index_memory_ext.text.tokens import TokenCounter

# What LlamaIndex's Memory counts for a block that is not text.
MEDIA_TOKENS = {"image": 256, "audio": 256, "video": 256, "document": 2048}

# Without these a call or a result is none; whatever else a provider has added may go if there is no room.
_NEEDED_KWARGS = frozenset({"tool_calls", "function_call", "tool_call_id", "name"})


def tokens_of(message: ChatMessage, counter: TokenCounter) -> int:
    """The tokens of a message, with LlamaIndex's estimates for all that is not text."""
    return message_tokens(message, counter, MEDIA_TOKENS)


def clip_unit(unit: Sequence[ChatMessage], limit: int, counter: TokenCounter) -> list[ChatMessage] | None:
    """One message, or a call and its results, with at most ``limit`` tokens.

    The texts of a call and of its results share what the calls leave: short ones stay whole, long ones
    get equal parts. None if the calls are over the limit, or if nothing of a single message is left.
    """
    if sum(tokens_of(message, counter) for message in unit) <= limit:
        return list(unit)
    call, *results = unit
    if not results:
        clipped = clip_message(call, limit, counter)
        return [clipped] if clipped and has_content(clipped) else None
    *_, bare = _copies(call)
    bare = _with_blocks(bare, (block for block in call.blocks if isinstance(block, ToolCallBlock)))
    needed = tokens_of(bare, counter)
    wanted = [max(tokens_of(call, counter) - needed, 0), *(tokens_of(result, counter) for result in results)]
    shares = share_out(wanted, limit - needed)
    shares[0] += min(needed, limit)
    parts = [clip_message(message, share, counter) for message, share in zip(unit, shares, strict=True)]
    kept = [part for part in parts if part is not None]
    return kept if len(kept) == len(unit) else None


def clip_message(message: ChatMessage, limit: int, counter: TokenCounter) -> ChatMessage | None:
    """The message itself if it fits, else a copy with its texts clipped, and as much of the media as fits then.

    Its calls stay; None if they are over the limit by themselves. A text may become empty.
    """
    if tokens_of(message, counter) <= limit:
        return message
    clipped = [copy for copy in (_clip_copy(copy, limit, counter) for copy in _copies(message)) if copy is not None]
    # What a provider has added goes before the last word does.
    return next((copy for copy in clipped if has_content(copy)), clipped[0] if clipped else None)


def end_of_message(
    message: ChatMessage, limit: int, counter: TokenCounter, text_splitter: Splitter | None = None
) -> ChatMessage | None:
    """The message itself if it fits, else a copy with its last blocks, cut within the first text that is too long.

    None if that leaves nothing. The text is cut as ``end_of`` does it.
    """
    if tokens_of(message, counter) <= limit:
        return message
    ends = (_end_of_copy(copy, limit, counter, text_splitter) for copy in _copies(message))
    return next((end for end in ends if end is not None and has_content(end)), None)


def _copies(message: ChatMessage) -> Iterator[ChatMessage]:
    """The message, and what is tried next: it without what its provider has added to it."""
    # Whoever validates the message again would add these to its blocks, where they are already.
    kwargs = {key: value for key, value in message.additional_kwargs.items() if key != "images"}
    yield message.model_copy(update={"additional_kwargs": kwargs})
    needed = {key: value for key, value in kwargs.items() if key in _NEEDED_KWARGS}
    yield message.model_copy(update={"additional_kwargs": needed})


def _with_blocks(message: ChatMessage, blocks: Iterable[Any]) -> ChatMessage:
    return message.model_copy(update={"blocks": [block for block in blocks if block is not None]})


def _clip_copy(message: ChatMessage, limit: int, counter: TokenCounter) -> ChatMessage | None:
    texts = sum(counter.count(block.text) for block in message.blocks if isinstance(block, TextBlock))
    room = _most_room(
        lambda room: tokens_of(_with_blocks(message, _clipped_blocks(message, room, counter)), counter) - limit,
        min(limit, texts),
    )
    if room is None:
        return None
    blocks = _clipped_blocks(message, room, counter)
    for i, block in enumerate(message.blocks):
        if blocks[i] is None:
            more = [*blocks[:i], block, *blocks[i + 1 :]]
            if tokens_of(_with_blocks(message, more), counter) <= limit:
                blocks = more
    return _with_blocks(message, blocks)


def _clipped_blocks(message: ChatMessage, room: int, counter: TokenCounter) -> list[Any]:
    """The blocks with the texts clipped to ``room`` tokens in all, and None in the place of each other medium."""
    texts = [block.text for block in message.blocks if isinstance(block, TextBlock)]
    shares = iter(share_out([counter.count(text) for text in texts], room))
    blocks: list[Any] = []
    for block in message.blocks:
        if isinstance(block, TextBlock):
            blocks.append(block.model_copy(update={"text": counter.clip(block.text, next(shares))}))
        else:
            # Thinking and cache points are not counted.
            blocks.append(block if isinstance(block, ToolCallBlock | ThinkingBlock | CachePoint) else None)
    return blocks


def _end_of_copy(
    message: ChatMessage, limit: int, counter: TokenCounter, text_splitter: Splitter | None
) -> ChatMessage | None:
    end = _with_blocks(message, [])
    if tokens_of(end, counter) > limit:
        return None
    for block in reversed(message.blocks):
        longer = _with_blocks(message, [block, *end.blocks])
        if tokens_of(longer, counter) > limit:
            return _with_end_of(block, end, limit, counter, text_splitter) if isinstance(block, TextBlock) else end
        end = longer
    return end


def _with_end_of(
    block: TextBlock, behind: ChatMessage, limit: int, counter: TokenCounter, text_splitter: Splitter | None
) -> ChatMessage:
    """The message with as much of a text in front of its blocks as fits."""

    def longer(room: int) -> ChatMessage:
        text = end_of(block.text, room, counter, text_splitter)
        return _with_blocks(behind, [*([block.model_copy(update={"text": text})] if text else []), *behind.blocks])

    room = _most_room(lambda room: tokens_of(longer(room), counter) - limit, limit)
    return behind if room is None else longer(room)


def _most_room(excess: Callable[[int], int], room: int) -> int | None:
    """The most tokens for the texts with which there is no excess; None if there is one even without texts."""
    while (over := excess(room)) > 0:
        if room <= 0:
            return None
        room = max(room - over, 0)
    return room
