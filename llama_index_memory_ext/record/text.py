"""Puts the text of the record together, and takes it apart again."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from llama_index_memory_ext.text.limits import share_out
from llama_index_memory_ext.text.messages import (
    Entry,
    clip_entry,
    clipped_element,
    escape_tags,
)
from llama_index_memory_ext.text.tokens import CountedText, TokenCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


_SUMMARY_OPENING = "<conversation_summary>"
_SUMMARY_CLOSING = "</conversation_summary>\n"
EARLIER_OPENING = (
    '<earlier_messages note="said before the messages above; found for the question">\n'
)
EARLIER_CLOSING = "</earlier_messages>\n"
_DAY_START = "<message date>"
_TODAY = " (today)\n"
# What stands above the messages of a day such as 2026-11-20, or of an unknown one, and
# behind those of other days.
DAY_HEADING = f"{_DAY_START}{{}}\n"
TODAY_HEADING = f"{_DAY_START}{{}}{_TODAY}"
_ELEMENT_START = re.compile(
    rf"^(?=<message |{_SUMMARY_OPENING}|{re.escape(EARLIER_OPENING)}|{EARLIER_CLOSING})",
    re.MULTILINE,
)
# Without a message below it. Today's heading has none.
_EMPTY_DAY = re.compile(
    rf"^{_DAY_START}[\w-]+\n(?={_DAY_START}|{re.escape(EARLIER_OPENING)}|{EARLIER_CLOSING}|\Z)",
    re.MULTILINE,
)
# What stands for a tool's result of an earlier turn.
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
    # A single character may have several tokens, so that nothing is left of the
    # summary.
    is_empty = not element[len(_SUMMARY_OPENING) : -len(_SUMMARY_CLOSING)].strip()
    if is_empty or tokens > limit:
        return NO_TEXT
    return CountedText(element, tokens)


def earlier_element(
    found: Iterable[tuple[str, Sequence[Entry]]], counter: TokenCounter
) -> CountedText:
    """Return earlier messages, each with its day and its entries, under headings of their days; "" for none."""
    days: dict[str, str] = {}
    for day, entries in found:
        days[day] = days.get(day, DAY_HEADING.format(day or "unknown")) + "".join(
            entry.text for entry in entries
        )
    shown = "".join(days[day] for day in sorted(days))
    if shown:
        text = f"{EARLIER_OPENING}{shown}{EARLIER_CLOSING}"
    else:
        text = ""
    return CountedText(text, counter.count(text))


def clip_entries(
    entries: Sequence[Entry],
    limit: int,
    counter: TokenCounter,
    clip: Callable[[str, int], str] | None = None,
) -> list[Entry]:
    """Return the entries, the long ones clipped. Together they have at most ``limit`` tokens if their tags fit."""
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
    """Return the parts of a record, which no text can forge: entries, the summary, and all above and below them."""
    return [part for part in _ELEMENT_START.split(text) if part]


def is_result(part: str) -> bool:
    """Return whether a part of a record is the entry of a tool's result."""
    return part.startswith(_RESULT_STARTS)


def truncated(text: str, tokens_to_truncate: int, counter: TokenCounter) -> str:
    """Return the record without its least important parts, at least so many tokens shorter; "" if nothing is left.

    First go the earlier messages, then the messages of the record (the oldest first, a
    call with its results), then the summary, the instructions at the beginning, and at
    last the day of today at the end.
    """
    parts = split_record(text)
    wanted = tokens_to_truncate
    if EARLIER_OPENING in parts:
        heading = parts.index(EARLIER_OPENING)
    else:
        heading = len(parts)

    # The last is missed most.
    tags = (EARLIER_OPENING, EARLIER_CLOSING, _DAY_START)
    shown = [
        i
        for i, part in enumerate(parts)
        if not part.startswith(tags) or part.endswith(_TODAY)
    ]
    shown.sort(key=lambda i: (i < heading, i))
    shown.sort(key=lambda i: parts[i].startswith(_SUMMARY_OPENING))
    shown.sort(key=lambda i: i == 0 and parts[i].startswith(_INSTRUCTION_STARTS))
    shown.sort(key=lambda i: parts[i].startswith(_DAY_START))
    while True:
        gone = set[int]()
        saved = 0
        for i in shown:
            if saved < wanted or (is_result(parts[i]) and i - 1 in gone):
                saved += counter.count(parts[i])
                gone.add(i)
        left = _EMPTY_DAY.sub(
            "", "".join(part for i, part in enumerate(parts) if i not in gone)
        )
        # The tags go with the last of the earlier messages.
        left = left.replace(EARLIER_OPENING + EARLIER_CLOSING, "")
        # By any tokenizer: what is left may have other tokens than within the whole.
        missing = tokens_to_truncate - counter.count(text) + counter.count(left)
        if missing <= 0 or not left:
            return left
        wanted += missing
