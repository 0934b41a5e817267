"""Trims a list of messages to its newest ones, without a memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, dropwhile
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import CachePoint, MessageRole, TextBlock, ThinkingBlock, ToolCallBlock

from llama_index_memory_ext.errors import RoleError, SplitterError
from llama_index_memory_ext.text.limits import Limits, group_start, plan_cut, share_out
from llama_index_memory_ext.text.messages import INSTRUCTION_ROLES, checked_messages, message_tokens, tokens_of
from llama_index_memory_ext.text.tokens import TokenCounter, as_counter
from llama_index_memory_ext.text.tool_calls import CALL_KEYS, complete_calls, has_content, tool_call_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from llama_index.core.base.llms.types import ChatMessage, ContentBlock
    from llama_index.core.node_parser import TextSplitter

    from llama_index_memory_ext.text.tokens import Tokenizer

    Splitter: TypeAlias = TextSplitter | Callable[[str], list[str]]
    Group: TypeAlias = Sequence["_Counted"]
    Blocks: TypeAlias = Sequence[ContentBlock | None]


# The names that other libraries have for these roles.
_OTHER_ROLES = {"human": "user", "ai": "assistant"}
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
    limits = Limits.checked(token_limit, max_messages, keep_messages, keep_ratio, include_system=include_system)
    if not (text_splitter is None or callable(text_splitter) or hasattr(text_splitter, "split_text")):
        raise SplitterError(
            "text_splitter must be a function from a text to its pieces, or one of LlamaIndex's text splitters; "
            f"this is a {type(text_splitter).__name__}. str.splitlines keeps whole lines."
        )
    roles = _checked_roles("start_on", start_on), _checked_roles("end_on", end_on)
    counter = as_counter(tokenizer_fn) if tokenizer_fn is not None else TokenCounter()
    trimmer = _Trimmer(counter, allow_partial, text_splitter, *roles)
    split = int(include_system and bool(messages) and messages[0].role in INSTRUCTION_ROLES)
    head, rest = trimmer.complete(messages[:split]), trimmer.ending_on(trimmer.complete(messages[split:]))
    if tokens_of(head) > limits.tokens - bool(rest):
        head = trimmer.clip(head[0], limits.tokens // 2, trimmer.clipped_blocks)
    limits = limits.remaining(tokens_of(head), len(head))
    kept = trimmer.starting_on(trimmer.newest(rest, limits)) or trimmer.newest_from_start(rest, limits.kept)
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
    """Finds the messages that fit, and shortens those that do not; [] is what is left of one that cannot be shown.

    No roles stand for any.
    """

    counter: TokenCounter
    allow_partial: bool
    text_splitter: Splitter | None
    start_on: frozenset[str]
    end_on: frozenset[str]

    def complete(self, messages: Iterable[ChatMessage]) -> Group:
        return [_Counted(message, self.counter) for message in complete_calls(messages)]

    def starting_on(self, messages: Group) -> Group:
        """Returns the messages from the first one of ``start_on``, never a result; [] if there is none."""
        groups = dropwhile(lambda group: group[0].role not in self.start_on, tool_call_groups(messages))
        return list(chain.from_iterable(groups)) if self.start_on else messages

    def ending_on(self, messages: Group) -> Group:
        """Returns the messages up to the last one of ``end_on``, never a call with results; [] if there is none."""
        end = len(messages)
        while self.end_on and end and messages[end - 1].role not in self.end_on:
            end = group_start(messages, end)
        return messages[:end]

    def newest(self, messages: Group, limits: Limits) -> Group:
        """Returns the newest messages within the limits, the newest group shortened if it is too large."""
        start = group_start(messages, len(messages))
        while tokens_of(messages[start:]) > limits.tokens:
            limits = limits.kept
            shortened = self.shortened(messages[start:], limits.tokens)
            messages = [*messages[:start], *shortened] if shortened else self.ending_on(messages[:start])
            start = group_start(messages, len(messages))
        cut = plan_cut(messages, limits)
        kept = messages[cut:]
        if not cut or len(kept) >= limits.keep_messages:
            return kept
        before = messages[group_start(messages, cut) : cut]
        return [*self.clip_start(before, limits.keep_tokens - tokens_of(kept), self.text_splitter), *kept]

    def newest_from_start(self, messages: Group, limits: Limits) -> Group:
        """Returns the newest group of ``start_on``, shortened if necessary, and the newest messages after it."""
        groups = tool_call_groups(messages)
        for i in reversed([i for i, group in enumerate(groups) if group[0].role in self.start_on]):
            share, *_ = share_out([tokens_of(groups[i]), *map(tokens_of, groups[i + 1 :][-1:])], limits.tokens)
            start = self.shortened(groups[i], share) or self.shortened(groups[i], limits.tokens)
            after = chain.from_iterable(groups[i + 1 :] if len(start) < limits.max_messages else [])
            kept = [*start, *self.newest(list(after), limits.remaining(tokens_of(start), len(start)))]
            if start and self.ending_on(kept) == kept:
                return kept
        return []

    def shortened(self, group: Group, limit: int) -> Group:
        """Returns the group if it has at most ``limit`` tokens, else a shortened one."""
        if tokens_of(group) <= limit:
            return group
        if len(group) > 1:
            return self.clip_results(group, limit)
        end = self.clip_start(group, limit, self.text_splitter) or self.clip_start(group, limit)
        return end or self.clip(group[0], limit, self.clipped_blocks)

    def clip_start(self, group: Group, limit: int, text_splitter: Splitter | None = None) -> Group:
        """Returns the end of a message, [] if no part may be kept; of a call with its results none may be kept."""
        blocks_of = partial(self.last_blocks, text_splitter=text_splitter)
        return self.clip(group[0], limit, blocks_of) if self.allow_partial and len(group) == 1 else []

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

    def clip(self, message: _Counted, limit: int, blocks_of: Callable[[ChatMessage, int], Blocks]) -> Group:
        """Returns the message if it fits, else a copy with the most text that fits, by ``blocks_of``; [] for none.

        The copy has as many media as then fit, and nothing that a provider has added.
        """
        if message.tokens <= limit:
            return [message]
        copy, room = _without_extras(message.message), limit
        blocks = blocks_of(copy, room)
        while (excess := self.excess(copy, blocks, limit)) > 0 and room > 0:
            room = max(room - excess, 0)
            blocks = blocks_of(copy, room)
        clipped = _with_blocks(copy, blocks)
        return [_Counted(clipped, self.counter)] if excess <= 0 and has_content(clipped) else []

    def clipped_blocks(self, message: ChatMessage, limit: int) -> Blocks:
        """Returns the blocks with texts that share ``limit`` tokens, and the media for which they leave room."""
        texts = [block.text if isinstance(block, TextBlock) else "" for block in message.blocks]
        shares = share_out(list(map(self.counter.count, texts)), limit)
        blocks: list[ContentBlock | None] = []
        for block, text, share in zip(message.blocks, texts, shares, strict=True):
            # Thinking and cache points are not counted.
            is_kept = isinstance(block, ToolCallBlock | ThinkingBlock | CachePoint)
            clipped = block.model_copy(update={"text": self.counter.clip(text, share)}) if text else None
            blocks.append(block if is_kept else clipped)
        for i, block in enumerate(message.blocks):
            more = [*blocks[:i], block, *blocks[i + 1 :]]
            if blocks[i] is None and self.excess(message, more, limit) <= 0:
                blocks = more
        return blocks

    def last_blocks(self, message: ChatMessage, limit: int, text_splitter: Splitter | None) -> Blocks:
        """Returns the last blocks that fit, and in front of them the end of a text."""
        first = len(message.blocks)
        while first and self.excess(message, message.blocks[first - 1 :], limit) <= 0:
            first -= 1
        end, block = message.blocks[first:], message.blocks[first - 1] if first else None
        if not isinstance(block, TextBlock):
            return end
        room = -self.excess(message, end, limit)
        text = clip_start(block.text, room, self.counter, text_splitter)
        return [block.model_copy(update={"text": text}) if text else None, *end]

    def excess(self, message: ChatMessage, blocks: Iterable[ContentBlock | None], limit: int) -> int:
        """Returns by how many tokens the message with these blocks is over the limit."""
        return message_tokens(_with_blocks(message, blocks), self.counter) - limit


def clip_start(text: str, limit: int, counter: TokenCounter, text_splitter: Splitter | None = None) -> str:
    """Returns the end of the text with at most ``limit`` tokens; "" for a limit of 0 or less.

    With a ``text_splitter`` it begins where a piece begins; "" if not even the last piece fits.

    >>> from llama_index_memory_ext import TokenCounter
    >>> clip_start("one two. three four. five", 3, TokenCounter(), lambda text: text.split(". "))
    'five'
    """
    end = counter.tail(text, limit)
    if text_splitter is None or end in ("", text):
        return end
    # LlamaIndex's splitters can be called too, but with documents.
    split = text_splitter.split_text if hasattr(text_splitter, "split_text") else text_splitter
    start, starts = len(text), list[int]()
    for piece in filter(str.strip, reversed(split(text))):
        before = text.rfind(piece, 0, start)
        if before < 0 or text[before + len(piece) : start].strip():
            # It does not end where the next one begins, so it overlaps that.
            before = text.rfind(piece, 0, start + len(piece) - 1)
        start = before
        if start < len(text) - len(end):
            break
        starts.append(start)
    return next((text[start:] for start in reversed(starts) if counter.count(text[start:]) <= limit), "")


def _checked_roles(option: str, roles: str | Sequence[str] | None) -> frozenset[str]:
    names = [] if roles is None else [roles] if isinstance(roles, str) or not isinstance(roles, Iterable) else roles
    known = [role.value for role in MessageRole]
    for name in names:
        if name not in known:
            other = _OTHER_ROLES.get(str(name).lower())
            hint = f"Use {other!r} instead." if other else "Use one of these."
            raise RoleError(f"{option} must name roles of messages: {', '.join(known)}; it names {name!r}. {hint}")
    return frozenset(names)


def _without_extras(message: ChatMessage) -> ChatMessage:
    """Returns a copy without what its provider has added to it."""
    kwargs = {key: value for key, value in message.additional_kwargs.items() if key in _NEEDED_KWARGS}
    return message.model_copy(update={"additional_kwargs": kwargs})


def _with_blocks(message: ChatMessage, blocks: Iterable[ContentBlock | None]) -> ChatMessage:
    # Validating the message again would add these images to the blocks once more.
    kwargs = {key: value for key, value in message.additional_kwargs.items() if key != "images"}
    kept = [block for block in blocks if block is not None]
    return message.model_copy(update={"blocks": kept, "additional_kwargs": kwargs})
