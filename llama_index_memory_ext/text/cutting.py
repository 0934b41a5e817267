"""Decides what is kept of messages and texts that are too long."""

from __future__ import annotations

import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice, takewhile
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import MessageRole
from typing_extensions import TypedDict, Unpack

from llama_index_memory_ext.errors import LimitError, RoleError, SplitterError
from llama_index_memory_ext.text.tool_calls import RESULT_ROLES, Counted, M

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import TypeAlias

    from llama_index.core.node_parser import TextSplitter

    from llama_index_memory_ext.text.tokens import TokenCounter

    Splitter: TypeAlias = TextSplitter | Callable[[str], list[str]]

# The names that other libraries have for these roles.
_OTHER_ROLES = {"human": "user", "ai": "assistant"}
# A sentence, a line, or 400 characters. Pieces put together are the text again.
_PIECE = re.compile(r".{1,400}?(?:[.!?]\s+|[\u3002\uff01\uff1f]|\n+|\Z)|.{1,400}", re.DOTALL)
_BEFORE, _AFTER = "[...] ", " [...]"


class CondensedOptions(TypedDict, total=False):
    """How a conversation is kept short: options of ``trim`` and of a ``CondensedMemoryBlock``, which documents them."""

    keep_ratio: float
    max_messages: int | None
    keep_messages: int | None
    allow_partial: bool
    text_splitter: Splitter | None
    start_on: str | Sequence[str] | None
    end_on: str | Sequence[str] | None
    include_system: bool
    message_ratio: float | None
    summarize: bool
    summary_token_limit: int | None
    recall_token_limit: int
    media_turns: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Most tokens and messages, and how many are kept of more; no roles stand for any. See the options of ``trim``."""

    tokens: int = sys.maxsize
    keep_ratio: float = 1.0
    max_messages: int = sys.maxsize
    keep_messages: int = sys.maxsize
    allow_partial: bool = False
    text_splitter: Splitter | None = None
    start_on: frozenset[str] = frozenset()
    end_on: frozenset[str] = frozenset()

    @classmethod
    def checked(cls, token_limit: int | None = None, **options: Unpack[CondensedOptions]) -> Limits:
        """Returns the limits for options of ``trim``; raises LimitError, RoleError or SplitterError as it does."""
        most, keep = options.get("max_messages"), options.get("keep_messages")
        ratio, splitter = options.get("keep_ratio", 1.0), options.get("text_splitter")
        _check_numbers(ratio, token_limit=token_limit, max_messages=most, keep_messages=keep)
        if options.get("include_system") and most == 1:
            raise LimitError(
                "include_system=True needs a max_messages of at least 2, for the system's message and one more; it is "
                "1. Raise it, or leave include_system out."
            )
        if not (splitter is None or callable(splitter) or hasattr(splitter, "split_text")):
            raise SplitterError(
                "text_splitter must be a function from a text to its pieces, or one of LlamaIndex's text splitters; "
                f"this is a {type(splitter).__name__}. str.splitlines keeps whole lines."
            )
        tokens, most, partial = token_limit or sys.maxsize, most or sys.maxsize, options.get("allow_partial", False)
        keep = keep or min(most, max(2, int(most * ratio)))
        roles = _checked_roles("start_on", options.get("start_on")), _checked_roles("end_on", options.get("end_on"))
        return cls(tokens, ratio, most, keep, partial, splitter, *roles)

    @property
    def keep_tokens(self) -> int:
        """Tokens that are kept when a limit is exceeded; at least one if there may be any."""
        return max(int(self.tokens * self.keep_ratio), min(self.tokens, 1))

    @property
    def kept(self) -> Limits:
        """The limits of what is kept when these limits are exceeded."""
        return replace(self, tokens=self.keep_tokens, keep_ratio=1.0, max_messages=self.keep_messages)

    def remaining(self, tokens: int, messages: int) -> Limits:
        """Returns these limits less so many tokens and messages; always room for one message."""
        most, keep = max(self.max_messages - messages, 1), max(self.keep_messages - messages, 1)
        return replace(self, tokens=self.tokens - tokens, max_messages=most, keep_messages=keep)

    def starting_on(self, messages: Sequence[M]) -> Sequence[M]:
        """Returns the messages from the first one of ``start_on``, never a result; [] if there is none."""
        roles = self.start_on - RESULT_ROLES
        starts = (i for i, message in enumerate(messages) if message.role in roles)
        return messages[next(starts, len(messages)) :] if self.start_on else messages

    def ending_on(self, messages: Sequence[M]) -> Sequence[M]:
        """Returns the messages up to the last one of ``end_on``, never a call with results; [] if there is none."""
        end = len(messages)
        while self.end_on and end and messages[end - 1].role not in self.end_on:
            end = group_start(messages, end)
        return messages[:end]


def _check_numbers(keep_ratio: float, **limits: int | None) -> None:
    for name, limit in limits.items():
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise LimitError(f"{name} must be a whole number of at least 1, or None for no limit; it is {limit!r}.")
    if not isinstance(keep_ratio, int | float) or not 0 < keep_ratio <= 1:
        raise LimitError(f"keep_ratio must be above 0 and at most 1; it is {keep_ratio!r}. 0.4 keeps two fifths.")
    keep, most = limits["keep_messages"], limits["max_messages"]
    if keep is not None and (most is None or keep > most):
        raise LimitError(
            f"keep_messages={keep} needs a max_messages of at least as many; it is {most}. "
            "Raise that one, or lower keep_messages."
        )


def _checked_roles(option: str, roles: str | Sequence[str] | None) -> frozenset[str]:
    names = [] if roles is None else [roles] if isinstance(roles, str) or not isinstance(roles, Iterable) else roles
    known = [role.value for role in MessageRole]
    for name in names:
        if name not in known:
            other = _OTHER_ROLES.get(str(name).lower())
            hint = f"Use {other!r} instead." if other else "Use one of these."
            raise RoleError(f"{option} must name roles of messages: {', '.join(known)}; it names {name!r}. {hint}")
    return frozenset(names)


def group_start(messages: Sequence[M], end: int) -> int:
    """Returns the index of the last message before ``end`` that is no tool's result; 0 if there is none."""
    return next((i for i in range(end - 1, 0, -1) if messages[i].role not in RESULT_ROLES), 0)


def plan_cut(messages: Sequence[Counted], limits: Limits, *, turn_starts: Collection[str] = ()) -> int:
    """Returns the index of the first message to keep, never that of a result; 0 if all are within the limits.

    Above a limit, the messages are cut down to ``keep_tokens`` and ``keep_messages`` at once. Then the beginning stays
    the same for many turns, and a provider's prompt cache can serve it.

    The newest message, or call with its results, always stays. A cut in front of a turn, which begins with a role of
    ``turn_starts``, is preferred unless it keeps less than half of what could be kept; with ``start_on`` it is always
    preferred. Messages are counted from the newest one on, until a limit is exceeded.
    """
    newest = (message.tokens for message in islice(reversed(messages), limits.max_messages))
    # The tokens of the newest message, of the newest two, and so on.
    sums = list(takewhile(lambda tokens: tokens <= limits.tokens, accumulate(newest)))
    if len(sums) == len(messages):
        return 0
    fitting = min(bisect_right(sums, limits.keep_tokens), limits.keep_messages)
    cuts = (i for i in range(len(messages) - fitting, len(messages)) if messages[i].role not in RESULT_ROLES)
    first = next(cuts, group_start(messages, len(messages)))
    turn = next((i for i in chain([first], cuts) if messages[i].role in turn_starts), first)
    keeps_half = turn == first or sums[len(messages) - turn - 1] * 2 >= sums[len(messages) - first - 1]
    return turn if limits.start_on or keeps_half else first


def plan_flush(tokens: Sequence[int], *, turn_starts: Sequence[bool], limit: int) -> int:
    """Returns how many messages, in whole turns, leave short-term memory for ``limit``; the newest turn never does."""
    from_there_on = list(accumulate(reversed(tokens), initial=0))[::-1]
    starts = [i for i, starts_turn in enumerate(turn_starts) if starts_turn]
    if from_there_on[0] <= limit or not starts:
        return 0
    return next((i for i in starts if from_there_on[i] <= limit), starts[-1])


def share_out(tokens: Sequence[int], limit: int) -> list[int]:
    """Returns the share of each message in a common limit: short ones get all they need, long ones equal parts.

    >>> share_out([10, 500, 900], 210)
    [10, 100, 100]
    """
    shares, left = [0] * len(tokens), limit
    for done, i in enumerate(sorted(range(len(tokens)), key=lambda i: tokens[i])):
        shares[i] = min(tokens[i], max(left, 0) // (len(tokens) - done))
        left -= shares[i]
    return shares


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
    ends = (text[start:] for start in sorted(_starts(text, split(text), len(text) - len(end))))
    return next((found for found in ends if counter.count(found) <= limit), "")


def _starts(text: str, pieces: Sequence[str], first: int) -> Iterator[int]:
    """Yields where the pieces begin, back to ``first``; they may overlap, or lack the white space between them."""
    start = len(text)
    for piece in filter(str.strip, reversed(pieces)):
        before = text.rfind(piece, 0, start)
        if before < 0 or text[before + len(piece) : start].strip():
            # It does not end where the next one begins, so it overlaps that.
            before = text.rfind(piece, 0, start + len(piece) - 1)
        start = before
        if start < first:
            return
        yield start


def excerpt(
    text: str, limit: int, counter: TokenCounter, wanted: Collection[str], terms: Callable[[str], Iterable[str]]
) -> str:
    """Returns the run of sentences with most of the wanted terms, with "[...]" where text is left out.

    It has at most ``limit`` tokens. A text that fits is returned whole; one without any of the terms is clipped in its
    middle. ``terms`` gives the terms of a text.
    """
    if counter.count(text) <= limit:
        return text
    pieces = _PIECE.findall(text)
    hits = [frozenset(wanted).intersection(terms(piece)) for piece in pieces]
    first, last = _densest([counter.count(piece) for piece in pieces], hits, limit - counter.count(_BEFORE + _AFTER))
    while first < last:
        shown = "".join(pieces[first:last]).strip()
        shown = f"{_BEFORE if first else ''}{shown}{_AFTER if last < len(pieces) else ''}"
        if counter.count(shown) <= limit:
            return shown
        # The tokens of pieces need not add up.
        first, last = (first + 1, last) if len(hits[first]) < len(hits[last - 1]) else (first, last - 1)
    return counter.clip(text, limit)


def _densest(tokens: Sequence[int], hits: Sequence[frozenset[str]], limit: int) -> tuple[int, int]:
    """Returns the run of pieces within the limit that has most different terms, then most tokens; (0, 0) for none."""
    before = list(accumulate(tokens, initial=0))
    longest = [(bisect_left(before, before[last] - limit, 0, last), last) for last in range(1, len(before))]
    scores = [(len(frozenset().union(*hits[first:last])), before[last] - before[first]) for first, last in longest]
    best = max(range(len(longest)), key=scores.__getitem__, default=None)
    return longest[best] if best is not None and scores[best][0] else (0, 0)
