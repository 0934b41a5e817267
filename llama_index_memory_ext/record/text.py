"""The parts of the record: the summary, earlier messages, and long messages and results made short."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

from llama_index_memory_ext.store.rows import day_of, times_of
from llama_index_memory_ext.text.entries import (
    Entry,
    clip_entry,
    clipped_element,
    entry_of,
    escape_tags,
)
from llama_index_memory_ext.text.limits import share_out
from llama_index_memory_ext.text.parts import DAY_HEADING, NO_PARTS, TAGS, Part, Section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import tzinfo

    from llama_index_memory_ext.store.rows import LogRow
    from llama_index_memory_ext.text.tokens import TokenCounter


_SUMMARY_OPENING = "<conversation_summary>"
_SUMMARY_CLOSING = "</conversation_summary>\n"
# Stands for the result of a tool in an earlier turn.
_LEFT_OUT = "[{} tokens, left out]"
# The tags of the record and of two messages, and a few words: with less room, nothing
# would be shown.
MIN_ROOM = 50


def summary_element(
    summary: str, limit: int, counter: TokenCounter, tags: Iterable[str] = ()
) -> Section:
    """Return the summary as the record shows it, within ``limit`` tokens; empty for no summary and for no room."""
    body = escape_tags(summary.strip(), tags)
    element, tokens = clipped_element(
        (_SUMMARY_OPENING, _SUMMARY_CLOSING), body, limit, counter, counter.clip
    )
    # A single character may have several tokens, so that none of the summary fits.
    is_empty = not element[len(_SUMMARY_OPENING) : -len(_SUMMARY_CLOSING)].strip()
    if is_empty or tokens > limit:
        return NO_PARTS
    return Section([Part("summary", element, tokens)], tokens)


def earlier_section(parts: Sequence[Part], counter: TokenCounter) -> Section:
    """Return earlier messages in the order of their days, under a heading for each day; empty for no parts."""
    if not parts:
        return NO_PARTS
    in_order = [
        replace(part, day=part.day or "unknown")
        for part in sorted(parts, key=attrgetter("day"))
    ]
    days = dict.fromkeys(part.day for part in in_order)
    headings = "".join(map(DAY_HEADING.format, days))
    # The tokens of the parts are known, and counting takes long.
    tokens = counter.count(headings.join(TAGS[parts[0].kind]))
    return Section(in_order, tokens + sum(part.tokens for part in parts))


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


def entries_of(
    rows: Sequence[LogRow],
    counter: TokenCounter,
    tags: Iterable[str],
    *,
    zone: tzinfo | None = None,
    brief: bool = False,
) -> list[Entry]:
    """Return the entries of rows that have something to show; no text can forge our tags or ``tags``."""
    entries = []
    for row, said_at in zip(rows, times_of(rows, zone), strict=True):
        entry = entry_of(
            row.id,
            row.message,
            counter,
            tags,
            speaker=row.speaker,
            day=day_of(said_at),
            brief=brief,
        )
        if entry is not None:
            entries.append(entry)
    return entries
