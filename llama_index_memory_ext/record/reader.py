"""Reads the log of a session into the window that its record shows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from llama_index_memory_ext.record.cache_points import block_ends, cache_marks
from llama_index_memory_ext.record.sticky import Heat, choose_sticky, heat_at
from llama_index_memory_ext.record.text import (
    earlier_section,
    entries_of,
    in_a_line,
    summary_element,
)
from llama_index_memory_ext.record.window import Window
from llama_index_memory_ext.store.rows import (
    LogPage,
    LogRow,
    ReadPosition,
    Snapshot,
    day_of,
    times_of,
)
from llama_index_memory_ext.store.tables import ROWS
from llama_index_memory_ext.text.entries import (
    INSTRUCTION_ROLES,
    Entry,
    clip_entry,
    tokens_of,
)
from llama_index_memory_ext.text.messages import now_in
from llama_index_memory_ext.text.parts import (
    DAY_HEADING,
    TAGS,
    TODAY_HEADING,
    Part,
    Section,
)
from llama_index_memory_ext.text.tokens import LONG_CHARACTERS, TokenCounter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import tzinfo

    from llama_index_memory_ext.store import MemoryStore
    from llama_index_memory_ext.text.limits import Limits

_PAGE_ROWS = 64
# How much a text recalls. "asked": by the share of it that asks, at least a quarter.
# "always": as much as a question. "never": nothing.
RecallWhen: TypeAlias = Literal["asked", "always", "never"]


@dataclass(frozen=True)
class RecordReader:
    """Reads the records of sessions within the limits of a block.

    Equal readers of a store share what they have read: the cache of the store keeps the
    last window and text of each session.

    Attributes:
        room: The limit of the record without its element and two lines of days.
        limits: The limits of messages, except for their tokens: the messages share the
            room with the instructions, the summary and the recalled messages.
    """

    store: MemoryStore = field(compare=False)
    name: str
    counter: TokenCounter
    room: int
    limits: Limits
    include_system: bool = False
    summarize: bool = False
    summary_limit: int = 0
    recall_limit: int = 0
    sticky_limit: int = 0
    recall_when: RecallWhen = "asked"
    show_days: bool = False
    time_zone: tzinfo | None = None
    keep_tool_results: int | None = None
    languages: tuple[str, ...] | None = None

    def window(self, session_id: str) -> Window | None:
        """Return the window that this process has read last; None if it has not read the session."""
        window: Window | None = self.store.cache.get(session_id, ("window", self))
        return window

    def keep(self, session_id: str, window: Window) -> None:
        """Keep the window for all equal readers, unless a later window was kept meanwhile."""
        last = self.window(session_id)
        if last and window.is_before(last):
            return
        size = len(window.entries)
        self.store.cache.put(session_id, ("window", self), window, size)

    def render(
        self, session_id: str, window: Window, recalled: Section, matches: Iterable[Any]
    ) -> Section:
        """Return the record with recalled messages; keep where the newest block of the last two records ended.

        ``matches``: the recalled messages; some of them may be sticky.
        """
        cache = self.store.cache
        today = self.today(window)
        # Where the newest block of the last two records ended.
        earlier_ends = cache.get(session_id, ("block ends", self)) or ()
        rows = block_ends(window.entries, self.room)
        ends = sorted({*earlier_ends, *rows[-1:]})
        cache.put(session_id, ("block ends", self), tuple(ends[-2:]))
        marks = cache_marks(rows, earlier_ends, window.last_turn)
        sources = {message.row_ids[0]: (message,) for message in matches}
        sticky = [
            replace(part, sources=sources.get(part.row_id, ()))
            for part in window.sticky.parts
        ]
        parts = [
            *window.instructions,
            *window.element.parts,
            *sticky,
            *window.entries,
            *recalled.parts,
        ]
        if today:
            parts.append(Part("today", today, self.counter.count(today)))
        return Section(parts, self.tokens(window) + recalled.tokens, marks)

    def tokens(self, window: Window) -> int:
        """Return the tokens of a window with its first heading and the line of today."""
        headings = self.today(window)
        if window.entries and window.entries[0].day:
            headings += DAY_HEADING.format(window.entries[0].day)
        return window.tokens + self.counter.count(headings)

    def today(self, window: Window) -> str:
        """Return the line of today; "" if the newest message is of today."""
        today = day_of(now_in(self.time_zone or window.offset))
        if self.show_days and window.entries and window.entries[-1].day != today:
            return TODAY_HEADING.format(today)
        return ""

    def heat(self, session_id: str, window: Window) -> Heat:
        """Return the heat of messages, as it is for the record of this window."""
        last = self.store.cache.get(session_id, ("heat", self))
        return heat_at(window.place, last, window.sticky_heat)

    def heat_up(
        self, session_id: str, window: Window, similarities: Mapping[int, float]
    ) -> None:
        """Add the similarities of messages to their heat, by row."""
        if not self.sticky_limit:
            return
        heat = self.heat(session_id, window)
        by_row = dict(heat.by_row)
        for row_id, similarity in similarities.items():
            by_row[row_id] = by_row.get(row_id, 0.0) + similarity
        self.store.cache.put(session_id, ("heat", self), Heat(heat.place, by_row))

    async def with_sticky(
        self, session_id: str, window: Window, heat: Mapping[int, float]
    ) -> Window:
        """Return the window with the hottest messages, which share the room of its messages."""
        chosen: list[Entry] = []
        counter = self.counter
        if heat and self.sticky_limit and not window.summary:
            rows = await self.store.readers.rows_by_id(session_id, list(heat))
            entries = entries_of(
                rows, counter, (self.name,), zone=self.time_zone, brief=True
            )
            tags = counter.count("".join(TAGS["sticky"]))
            day = counter.count(DAY_HEADING.format("2026-11-20"))
            chosen = choose_sticky(heat, entries, self.sticky_limit - tags, day)
        parts = [replace(entry, kind="sticky") for entry in chosen]
        sticky = earlier_section(parts, counter)
        room = window.limits.tokens + window.sticky.tokens
        return replace(
            window,
            sticky=sticky,
            sticky_heat={entry.row_id: heat[entry.row_id] for entry in chosen},
            limits=replace(window.limits, tokens=room - sticky.tokens),
        )

    def has_room(self, window: Window) -> bool:
        """Return whether a window fits beside recalled messages; a long call that is kept whole may not."""
        return window.tokens <= self.room - self.recall_limit

    async def read(
        self,
        session_id: str,
        snapshot: Snapshot | None = None,
        *,
        results_from: int = 0,
    ) -> Window:
        """Return the window of the log behind the cursor, which this or another process may have moved.

        A ``snapshot`` of the session spares a query. With ``results_from``, the results
        of tools before this row are a line each, and the window is read anew and not
        kept.
        """
        remembered = None
        if not results_from:
            remembered = self.window(session_id)
        seen = remembered.seen if remembered else ReadPosition()
        page = await self._page(session_id, seen, snapshot=snapshot)
        if remembered and not remembered.is_continued_by(page):
            remembered = None
            page = await self._page(session_id, ReadPosition())
        window = remembered or await self._begin(session_id, page)
        if results_from:
            window = replace(window, results_from=results_from)
        if page.rows:
            window = await self._extend(session_id, window, page)
        if not results_from:
            self.keep(session_id, window)
        return window

    async def _extend(self, session_id: str, window: Window, page: LogPage) -> Window:
        """Return the window with the rows of a page, and of earlier pages while there is room."""
        seen = replace(window.seen, last_id=page.rows[-1].id)
        newest = times_of(page.rows)[-1]
        offset = newest.tzinfo if newest else None
        new = await self._count(page.rows, window.results_from)
        while page.more and not await asyncio.to_thread(window.is_filled_by, new):
            page = await self._page(session_id, window.seen, before=page.rows[0].id)
            new = await self._count(page.rows, window.results_from) + new
        if tokens_of(new) > window.message_limit:
            new = await asyncio.to_thread(window.within_shares, new)
        instruction_rows = {entry.row_id for entry in window.instructions}
        new = [entry for entry in new if entry.row_id not in instruction_rows]
        if page.more:
            # The rows before the page have no room, so the earlier entries have none.
            window = replace(window, entries=())
        entries = window.extended_by(new, with_days=self.show_days)
        return replace(window, entries=entries, seen=seen, offset=offset)

    async def move(self, session_id: str, window: Window, position: int) -> bool:
        """Move the cursor, and store the summary of the window and its sticky messages; return whether it moved.

        It stays if another process has moved it, rows were deleted meanwhile, or the
        database is busy.
        """
        state: dict[str, Any] = {
            "summary": window.summary,
            "summarised": window.summarised,
            "results_from": window.results_from,
        }
        if position and window.sticky_heat:
            heat = window.sticky_heat.items()
            state[ROWS] = [(row_id, row_id, value) for row_id, value in heat]
        return await self.store.readers.move(
            session_id,
            self.name,
            window.seen,
            position,
            state if any(state.values()) else None,
        )

    async def _begin(self, session_id: str, page: LogPage) -> Window:
        """Return a window with the first instructions, the stored summary and sticky messages, but no entries yet."""
        # If another process moves the cursor meanwhile, the next read begins anew.
        first = await self.store.readers.unread(session_id, self.name, after=0, limit=1)
        room = self.room - self.recall_limit
        if self.summarize:
            room -= self.summary_limit
        instructions = await self._instructions(first.rows, room)
        room -= tokens_of(instructions)
        state = first.state or {}
        summary = state.get("summary", "")
        limit = self.summary_limit
        if not self.summarize:
            # A stored summary that is no longer extended leaves half to messages.
            limit = min(limit, room // 2)
        element = summary_element(summary, limit, self.counter, (self.name,))
        if not self.summarize:
            room -= element.tokens
        # The instructions count as messages.
        number = len(instructions)
        limits = replace(
            self.limits,
            tokens=max(room, 0),
            max_messages=max(self.limits.max_messages - number, 1),
            keep_messages=max(self.limits.keep_messages - number, 1),
        )
        window = Window(
            ReadPosition(page.epoch, page.position),
            limits,
            self.counter,
            instructions,
            summary,
            element,
            summarised=state.get("summarised", 0),
            results_from=state.get("results_from", 0),
        )
        heat = {row_id: value for row_id, _, value in state.get(ROWS, ())}
        return await self.with_sticky(session_id, window, heat)

    async def _instructions(
        self, rows: Iterable[LogRow], room: int
    ) -> tuple[Entry, ...]:
        """Return the first row of the log if it is an instruction, clipped to half of the room."""
        if not self.include_system:
            return ()
        rows = [row for row in rows if row.role in INSTRUCTION_ROLES]
        entries = [
            clip_entry(entry, room // 2, self.counter)
            for entry in await self._count(rows)
        ]
        return tuple(
            replace(entry, kind="instructions", day="")
            for entry in entries
            if entry.tokens <= room
        )

    async def _page(
        self,
        session_id: str,
        seen: ReadPosition,
        before: int | None = None,
        snapshot: Snapshot | None = None,
    ) -> LogPage:
        if snapshot is not None:
            rows = snapshot.log_behind(seen)
            if rows is not None:
                return LogPage(snapshot.position, snapshot.epoch, rows)
        return await self.store.readers.page(
            session_id, self.name, seen, before=before, limit=_PAGE_ROWS
        )

    async def _count(
        self, rows: Sequence[LogRow], results_from: int = 0
    ) -> list[Entry]:
        """Return the entries of rows with their tokens; the results of tools before a row in a line each."""
        count = partial(
            entries_of, rows, self.counter, (self.name,), zone=self.time_zone
        )
        if sum(row.characters for row in rows) > LONG_CHARACTERS:
            entries = await asyncio.to_thread(count)
        else:
            entries = count()
        for i, entry in enumerate(entries):
            if entry.row_id < results_from and entry.is_result:
                entries[i] = in_a_line(entry, self.counter)
        return entries
