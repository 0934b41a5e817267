"""Trims a list of messages to its newest ones, without a memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, dropwhile
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import CachePoint, MessageRole, TextBlock, ThinkingBlock, ToolCallBlock

from llama_index_memory_ext.errors import RoleError, SplitterError
from llama_index_memory_ext.text.limits import Limits, share_out
from llama_index_memory_ext.text.messages import INSTRUCTION_ROLES, checked_messages, message_tokens, tokens_of
from llama_index_memory_ext.text.tokens import TokenCounter, as_counter
from llama_index_memory_ext.text.tool_calls import CALL_KEYS, complete_calls, has_content, tool_call_groups

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from llama_index.core.base.llms.types import ChatMessage, ContentBlock
    from llama_index.core.node_parser import TextSplitter

    from llama_index_memory_ext.text.tokens import Tokenizer

    Splitter: TypeAlias = TextSplitter | Callable[[str], list[str]]
    Group: TypeAlias = Sequence["_Counted"]
    Groups: TypeAlias = Sequence[Group]
    Blocks: TypeAlias = Sequence[ContentBlock | None]


# Without these a message is no call or no result. All else that a provider has added may be left out.
_NEEDED_KWARGS = frozenset({*CALL_KEYS, "tool_call_id", "name"})


def trim(
    messages: Iterable[ChatMessage],
    *,
    token_limit: int | None = None,
    max_messages: int | None = None,
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
        LimitError: A limit is below 1, or leaves no room beside the system's message.
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
    limits = Limits.checked(token_limit, max_messages, None, include_system=include_system)
    if not (text_splitter is None or callable(text_splitter) or hasattr(text_splitter, "split_text")):
        raise SplitterError(
            "text_splitter must be a function from a text to its pieces, or one of LlamaIndex's text splitters; "
            f"this is a {type(text_splitter).__name__}. str.splitlines keeps whole lines."
        )
    counter = as_counter(tokenizer_fn) if tokenizer_fn is not None else TokenCounter()
    starts, ends = _checked_roles("start_on", start_on), _checked_roles("end_on", end_on)
    trimmer = _Trimmer(counter, allow_partial, text_splitter, starts, ends)
    groups: Groups = tool_call_groups([_Counted(message, counter) for message in complete_calls(messages)])
    head: Group = []
    if include_system and groups and groups[0][0].role in INSTRUCTION_ROLES:
        head, *groups = groups
    if tokens_of(head) > limits.tokens - any(map(trimmer.is_end, groups)):
        head = trimmer.clip(head[0], limits.tokens // 2, trimmer.clipped_blocks)
    room, count = limits.tokens - tokens_of(head), limits.max_messages - len(head)
    kept: Groups = trimmer.newest(groups, room, count)
    if starts:
        kept = list(dropwhile(lambda group: group[0].role not in starts, kept))
        kept = kept or trimmer.newest_from_start(groups, room, count)
    return [counted.message for counted in chain(head, *kept)]


class _Counted:
    """A message with its tokens, which are counted once, when they are first read."""

    def __init__(self, message: ChatMessage, counter: TokenCounter) -> None:
        self.message, self.role, self._counter = message, message.role, counter

    @cached_property
    def tokens(self) -> int:
        return message_tokens(self.message, self._counter)


@dataclass(frozen=True, slots=True)
class _Trimmer:
    """Finds the messages that fit, and shortens those that do not; [] is what is left of one that cannot be shown.

    A group is a message, or a call with its results. No roles stand for any.
    """

    counter: TokenCounter
    allow_partial: bool
    text_splitter: Splitter | None
    starts: frozenset[str]
    ends: frozenset[str]

    def is_end(self, group: Group) -> bool:
        """Returns whether a group may be the last one."""
        return not self.ends or group[-1].role in self.ends

    def newest(self, groups: Groups, room: int, count: int) -> Groups:
        """Returns the newest groups within the limits up to an end, the newest one shortened if it is too large."""
        kept: list[Group] = []
        for group in reversed(groups):
            if count <= 0 or (kept and len(group) > count):
                break
            if not kept and not self.is_end(group):
                continue
            is_newest = not kept
            part = self.fitted(group, room, shortened=is_newest)
            if part:
                kept.append(part)
                room -= tokens_of(part)
                count -= len(part)
            if part is not group and not is_newest:
                break
        return kept[::-1]

    def newest_from_start(self, groups: Groups, room: int, count: int) -> Groups:
        """Returns the newest group of ``starts``, shortened if necessary, and the newest groups after it."""
        last = max((i for i, group in enumerate(groups) if self.is_end(group)), default=-1)
        for i in reversed(range(last + 1)):
            if groups[i][0].role in self.starts:
                # The newest group gets up to half of the room.
                after = tokens_of(groups[last]) if i < last else 0
                start = self.fitted(groups[i], max(room - after, room // 2), shortened=True)
                kept = [start, *self.newest(groups[i + 1 :], room - tokens_of(start), count - len(start))]
                if start and self.is_end(kept[-1]):
                    return kept
        return []

    def fitted(self, group: Group, limit: int, *, shortened: bool) -> Group:
        """Returns the group if it has at most ``limit`` tokens, else a part that may be kept of it; [] for none.

        That is the end of a single message or, if it may be ``shortened``, all of its messages clipped, with all calls.
        """
        if tokens_of(group) <= limit:
            return group
        if self.allow_partial and len(group) == 1 and (end := self.clip(group[0], limit, self.last_blocks)):
            return end
        if not shortened:
            return []
        caller = group[0]
        calls = self.tokens(caller.message, [one for one in caller.message.blocks if isinstance(one, ToolCallBlock)])
        wanted = [max(caller.tokens - calls, 0), *(result.tokens for result in group[1:])]
        shares = share_out(wanted, limit - calls)
        shares[0] += min(calls, limit)
        kept = [self.clip(one, share, self.clipped_blocks) for one, share in zip(group, shares, strict=True)]
        return list(chain.from_iterable(kept)) if all(kept) else []

    def clip(self, message: _Counted, limit: int, blocks_of: Callable[[ChatMessage, int], Blocks]) -> Group:
        """Returns the message if it fits, else a copy with the most blocks that fit, by ``blocks_of``; [] for none."""
        if message.tokens <= limit:
            return [message]
        room = limit
        while room >= 0:
            copy = _with_blocks(message.message, blocks_of(message.message, room))
            clipped = _Counted(copy, self.counter)
            if clipped.tokens <= limit:
                return [clipped] if has_content(copy) else []
            room = min(room - 1, max(room - clipped.tokens + limit, 0))
        return []

    def clipped_blocks(self, message: ChatMessage, limit: int) -> Blocks:
        """Returns the blocks with texts that share ``limit`` tokens, and the media for which they leave room."""
        texts = [block.text if isinstance(block, TextBlock) else "" for block in message.blocks]
        shares = share_out(list(map(self.counter.count, texts)), limit)
        blocks: list[ContentBlock | None] = []
        for block, text, share in zip(message.blocks, texts, shares, strict=True):
            clipped = block.model_copy(update={"text": self.counter.clip(text, share)}) if text else None
            # Thinking and cache points are not counted.
            blocks.append(block if isinstance(block, ToolCallBlock | ThinkingBlock | CachePoint) else clipped)
        for i, block in enumerate(message.blocks):
            more = [*blocks[:i], block, *blocks[i + 1 :]]
            if blocks[i] is None and self.tokens(message, more) <= limit:
                blocks = more
        return blocks

    def last_blocks(self, message: ChatMessage, limit: int) -> Blocks:
        """Returns the last blocks that fit, and in front of them the end of a text."""
        first = len(message.blocks)
        while first and self.tokens(message, message.blocks[first - 1 :]) <= limit:
            first -= 1
        end, block = message.blocks[first:], message.blocks[first - 1] if first else None
        if not isinstance(block, TextBlock):
            return end
        text = clip_start(block.text, limit - self.tokens(message, end), self.counter, self.text_splitter)
        return [block.model_copy(update={"text": text}) if text else None, *end]

    def tokens(self, message: ChatMessage, blocks: Iterable[ContentBlock | None]) -> int:
        """Returns the tokens that the message has with these blocks alone."""
        return message_tokens(_with_blocks(message, blocks), self.counter)


def clip_start(text: str, limit: int, counter: TokenCounter, text_splitter: Splitter | None = None) -> str:
    """Returns the end of the text with at most ``limit`` tokens; "" for a limit of 0 or less.

    With a ``text_splitter`` it begins where a piece begins; "" if not even the last piece fits.

    >>> from llama_index_memory_ext import TokenCounter
    >>> clip_start("one two. three four. five", 3, TokenCounter(), lambda text: text.split(". "))
    'five'
    """
    longest = counter.tail(text, limit)
    if text_splitter is None or longest in ("", text):
        return longest
    # LlamaIndex's splitters can be called too, but with documents.
    split = text_splitter.split_text if hasattr(text_splitter, "split_text") else text_splitter
    start, first = -1, len(text) - len(longest)
    for piece in filter(str.strip, split(text)):
        found = text.find(piece, start + 1)
        start = max(start, found)
        if found >= first and counter.count(text[found:]) <= limit:
            return text[found:]
    return ""


def _checked_roles(option: str, roles: str | Sequence[str] | None) -> frozenset[str]:
    if roles is None:
        return frozenset()
    names = roles if isinstance(roles, Iterable) and not isinstance(roles, str) else [roles]
    known = [role.value for role in MessageRole]
    for name in names:
        if name not in known:
            # The names that other libraries have for these roles.
            other = {"human": "user", "ai": "assistant"}.get(str(name).lower())
            hint = f"Use {other!r} instead." if other else "Use one of these."
            raise RoleError(f"{option} must name roles of messages: {', '.join(known)}; it names {name!r}. {hint}")
    return frozenset(names)


def _with_blocks(message: ChatMessage, blocks: Iterable[ContentBlock | None]) -> ChatMessage:
    """Returns a copy with these blocks alone, and without what its provider has added to it."""
    kwargs = {key: value for key, value in message.additional_kwargs.items() if key in _NEEDED_KWARGS}
    kept = [block for block in blocks if block and not (isinstance(block, TextBlock) and not block.text.strip())]
    return message.model_copy(update={"blocks": kept, "additional_kwargs": kwargs})
