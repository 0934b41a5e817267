"""The text of the record: its elements and headings, and the order in which its parts are cut."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from llama_index_memory_ext.text.entries import (
    Entry,
    clip_entry,
    clipped_element,
    escape_tags,
    tokens_of,
)
from llama_index_memory_ext.text.limits import share_out
from llama_index_memory_ext.text.tokens import CountedText, TokenCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


_SUMMARY_OPENING = "<conversation_summary>"
_SUMMARY_CLOSING = "</conversation_summary>\n"
EARLIER_OPENING = (
    '<earlier_messages note="said before the messages above; found for the question">\n'
)
# In front of the record.
STICKY_OPENING = '<earlier_messages note="said before the messages below">\n'
EARLIER_CLOSING = "</earlier_messages>\n"
_DAY_START = "<message date>"
_TODAY = " (today)\n"
# The heading above the messages of a day such as 2026-11-20 or "unknown", and the line
# below the messages of earlier days.
DAY_HEADING = f"{_DAY_START}{{}}\n"
TODAY_HEADING = f"{_DAY_START}{{}}{_TODAY}"
_EARLIER_TAGS = "|".join(
    map(re.escape, (EARLIER_OPENING, STICKY_OPENING, EARLIER_CLOSING))
)
_ELEMENT_START = re.compile(
    rf"^(?=<message |{_SUMMARY_OPENING}|{_EARLIER_TAGS})",
    re.MULTILINE,
)
# A heading without a message below it. The line of today is none of these.
_EMPTY_DAY = re.compile(
    rf"^{_DAY_START}[\w-]+\n(?={_DAY_START}|{_EARLIER_TAGS}|\Z)",
    re.MULTILINE,
)
# Stands for the result of a tool in an earlier turn.
_LEFT_OUT = "[{} tokens, left out]"
NO_TEXT = CountedText("", 0)
# The tags of the record and of two messages, and a few words: with less room, nothing
# would be shown.
MIN_ROOM = 50
_RESULT_STARTS = (
    '<message role="tool"',
    '<message role="function"',
    "<message tool",
    "<message function",
)
_INSTRUCTION_STARTS = ('<message role="system"', '<message role="developer"')


def summary_element(
    summary: str, limit: int, counter: TokenCounter, tags: Iterable[str] = ()
) -> CountedText:
    """Return the summary as the record shows it, in at most ``limit`` tokens; "" if it is empty or has no room."""
    body = escape_tags(summary.strip(), tags)
    element, tokens = clipped_element(
        (_SUMMARY_OPENING, _SUMMARY_CLOSING), body, limit, counter, counter.clip
    )
    # A single character may have several tokens, so that none of the summary fits.
    is_empty = not element[len(_SUMMARY_OPENING) : -len(_SUMMARY_CLOSING)].strip()
    if is_empty or tokens > limit:
        return NO_TEXT
    return CountedText(element, tokens)


def earlier_element(
    messages: Iterable[tuple[str, Sequence[Entry]]],
    counter: TokenCounter,
    opening: str = EARLIER_OPENING,
) -> CountedText:
    """Return earlier messages, each with its day and its entries, under headings of their days; "" for none."""
    days: dict[str, str] = {}
    headings = ""
    tokens = 0
    for day, entries in messages:
        tokens += tokens_of(entries)
        if day not in days:
            days[day] = DAY_HEADING.format(day or "unknown")
            headings += days[day]
        days[day] += "".join([entry.text for entry in entries])
    if not days:
        return NO_TEXT
    body = "".join([days[day] for day in sorted(days)])
    # The tokens of the entries are known, and counting takes long.
    tokens += counter.count(f"{opening}{headings}{EARLIER_CLOSING}")
    return CountedText(f"{opening}{body}{EARLIER_CLOSING}", tokens)


def clip_entries(
    entries: Sequence[Entry],
    limit: int,
    counter: TokenCounter,
    clip: Callable[[str, int], str] | None = None,
) -> list[Entry]:
    """Return the entries, long entries clipped. Together they have at most ``limit`` tokens if their tags fit."""
    shares = share_out([entry.tokens for entry in entries], limit)
    return [
        clip_entry(entry, share, counter, clip)
        for entry, share in zip(entries, shares, strict=True)
    ]


def in_a_line(entry: Entry, counter: TokenCounter) -> Entry:
    """Return the entry of a tool's result with its size in place of its body, if that is shorter."""
    text = _LEFT_OUT.format(entry.tokens).join(entry.tags)
    tokens = counter.count(text)
    if tokens < entry.tokens:
        return replace(entry, text=text, tokens=tokens)
    return entry


def split_record(text: str) -> list[str]:
    """Return the parts of a record, which no text can forge: entries, the summary, headings and tags."""
    return [part for part in _ELEMENT_START.split(text) if part]


def is_result(part: str) -> bool:
    """Return whether a part of a record is the entry of a tool's result."""
    return part.startswith(_RESULT_STARTS)


def truncated(text: str, tokens_to_truncate: int, counter: TokenCounter) -> str:
    """Return the record without its least important parts, shorter by at least this number of tokens.

    "" if no part is left. The earlier messages go first, then the messages of the
    record, the oldest first and a call with its results. The summary, the instructions
    and the line of today follow.
    """
    parts = split_record(text)
    heading = len(parts)
    if EARLIER_OPENING in parts:
        heading = parts.index(EARLIER_OPENING)

    def importance(i: int) -> tuple[bool, bool, bool, bool, int]:
        part = parts[i]
        return (
            part.startswith(_DAY_START),
            i == 0 and part.startswith(_INSTRUCTION_STARTS),
            part.startswith(_SUMMARY_OPENING),
            i < heading,
            i,
        )

    # Headings and tags go with the last message below them.
    tags = (EARLIER_OPENING, STICKY_OPENING, EARLIER_CLOSING, _DAY_START)
    removable = [
        i
        for i, part in enumerate(parts)
        if not part.startswith(tags) or part.endswith(_TODAY)
    ]
    removable.sort(key=importance)
    most_tokens = sum(counter.count(part) for part in parts)
    tokens = tokens_to_truncate
    while tokens <= most_tokens:
        rest = _without_parts(parts, removable, tokens, counter)
        # The rest may have other tokens than within the whole, by any tokenizer.
        missing = tokens_to_truncate - counter.count(text) + counter.count(rest)
        if missing <= 0:
            return rest
        tokens += missing
    # No part is left but headings and tags.
    return ""


def _without_parts(
    parts: Sequence[str],
    least_important_first: Iterable[int],
    tokens: int,
    counter: TokenCounter,
) -> str:
    removed = set[int]()
    saved = 0
    for i in least_important_first:
        if saved < tokens or (is_result(parts[i]) and i - 1 in removed):
            saved += counter.count(parts[i])
            removed.add(i)
    rest = "".join(part for i, part in enumerate(parts) if i not in removed)
    rest = _EMPTY_DAY.sub("", rest)
    for opening in (EARLIER_OPENING, STICKY_OPENING):
        rest = rest.replace(opening + EARLIER_CLOSING, "")
    return rest
