"""Reads the log of a session into the window that its record shows, and cuts it where it is too long."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from typing_extensions import TypedDict, Unpack

from llama_index_memory_ext.events import HistoryCondensedEvent, is_heard, send
from llama_index_memory_ext.record.entry import entry_from, summary_element
from llama_index_memory_ext.record.options import reserved_tokens, selection_of, shown_summary_limit
from llama_index_memory_ext.record.selection import Kept
from llama_index_memory_ext.store.readers import Seen
from llama_index_memory_ext.text.messages import INSTRUCTION_ROLES, Entry, clip_entry, entry_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.background.locks import Recent
    from llama_index_memory_ext.record.options import RecordSettings
    from llama_index_memory_ext.record.selection import Selection
    from llama_index_memory_ext.store import MemoryStore
    from llama_index_memory_ext.store.readers import LogPage, LogRow

_PAGE_ROWS, _CHUNK_ROWS = 256, 16
_LONG_CHARACTERS = 50_000
_NOTHING_KEPT = Kept()


class Preamble(NamedTuple):
    """What stands before the messages: the first instructions, and the summary of ``summarised`` messages.

    ``element`` is the summary as it is shown, and ``tokens`` are the tokens of that.
    """

    system: Entry | None = None
    summary: str = ""
    element: str = ""
    tokens: int = 0
    summarised: int = 0


class _Changes(TypedDict, total=False):
    seen: Seen
    has_overflow: bool


@dataclass(frozen=True, slots=True)
class Window:
    """What this process remembers of the record of one session.

    ``room`` is the tokens for all that is shown. ``has_overflow``: there are rows that are neither shown nor left
    behind.
    """

    seen: Seen
    preamble: Preamble
    selection: Selection
    room: int
    kept: Kept = _NOTHING_KEPT
    has_overflow: bool = False
    shown: tuple[Entry, ...] = ()
    text: str = ""
    tokens: int = 0
    kept_tokens: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the messages exceed a limit."""
        limits = self.selection.limits
        return self.kept_tokens > limits.tokens or len(self.kept.all) > limits.max_messages

    def showing(self, kept: Kept, **changes: Unpack[_Changes]) -> Window:
        """The window with these messages instead."""
        entries, limits = kept.all, self.selection.limits
        shown = tuple(self.selection.shown(entries)) if limits.start_on or limits.end_on else entries
        system, preamble = self.preamble.system, self.preamble
        parts = [*([system] if system else []), *shown]
        text = "".join([system.text if system else "", preamble.element, *(entry.text for entry in shown)])
        return replace(
            self,
            kept=kept,
            shown=shown,
            text=text,
            tokens=preamble.tokens + sum(entry.tokens for entry in parts),
            kept_tokens=sum(entry.tokens for entry in entries),
            **changes,
        )


@dataclass(frozen=True)
class RecordReader:
    """Reads the records of sessions as the settings of a block ask for; ``windows`` are the last ones it has read."""

    store: MemoryStore
    settings: RecordSettings
    windows: Recent[str, Window]

    async def read(self, session_id: str) -> Window:
        """The window with what the log has gained, and without what this or another process has cut."""
        window = self.windows.get(session_id)
        if window is None or not window.seen.last_id:
            window = await self._opened(session_id)
        page = await self._page(session_id, window.seen)
        if not page.fresh or _must_reread(window, page):
            window = await self._opened(session_id)
            page = await self._page(session_id, window.seen)
        if not page.rows and page.position == window.seen.position and not self.settings.allow_partial:
            self.windows.put(session_id, window)
            return window
        moved = await self._moved(session_id, window, page)
        if moved is None:
            # Another process has moved the cursor since.
            return await self.read(session_id)
        new, has_older = await self._newest(session_id, moved, window.seen, page)
        # If there are older messages than these, they and the known ones have no room in the record any more.
        known = () if has_older else window.kept.entries
        entries = tuple(entry for entry in (*known, *_within_shares(moved, new)) if entry.row_id > page.position)
        seen = Seen(page.epoch, page.position, page.rows[-1].id if page.rows else window.seen.last_id)
        window = moved.showing(Kept(moved.kept.partial, entries), seen=seen)
        self.windows.put(session_id, window)
        return window

    async def cut(self, session_id: str, window: Window) -> Window:
        """The window after a cut; the cursor is moved there for every process."""
        kept = window.selection.evict(window.kept)
        if kept == window.kept:
            # A call with more results than messages are allowed is kept whole.
            return window
        started = perf_counter()
        if await self.move(session_id, window, kept.position, window.preamble, kept):
            after = window.showing(kept, seen=replace(window.seen, position=kept.position))
            self.windows.put(session_id, after)
            await self.tell(session_id, window, after, perf_counter() - started)
            return after
        # Another process has cut, or the database is busy: show what there is, within the limit.
        window = await self.read(session_id)
        return window.showing(window.selection.evict(window.kept))

    def fit(self, session_id: str, window: Window) -> Window:
        """The window without what has no room, until that is summarised and left behind.

        As little as possible is left out, for a summary may take no longer than an answer.
        """
        window = window.showing(Kept(None, window.selection.fit(window.kept.all)), has_overflow=True)
        self.windows.put(session_id, window)
        return window

    async def move(self, session_id: str, window: Window, position: int, preamble: Preamble, kept: Kept | None) -> bool:
        """Move the cursor, and store what stands before the messages from then on; False as ``Readers.move``."""
        partial = kept.partial.text if kept and kept.partial else ""
        state = {"summary": preamble.summary, "partial": partial, "summarised": preamble.summarised}
        return await self.store.readers.move(
            session_id,
            self.settings.name,
            epoch=window.seen.epoch,
            old=window.seen.position,
            new=position,
            state=state if any(state.values()) else None,
        )

    async def tell(
        self, session_id: str, before: Window, after: Window, seconds: float, *, summarised: bool = False
    ) -> None:
        """Send an event if messages have left the record."""
        old, new = before.seen.position, after.seen.position
        if new <= old or not is_heard():
            return
        send(
            HistoryCondensedEvent(
                session_id=session_id,
                messages=await self.store.users.count_between(session_id, old, new),
                tokens_before=before.tokens,
                tokens_after=after.tokens,
                summarised=summarised,
                summary_tokens=after.preamble.tokens,
                position=new,
                seconds=seconds,
            )
        )

    # ---- reading the log ---------------------------------------------------------------------------

    async def _opened(self, session_id: str) -> Window:
        """The window of a session of which nothing was read yet but its first message, if that stays for good."""
        settings = self.settings
        tags = settings.tokenizer_fn.count(f"<{settings.name}>\n</{settings.name}>\n")
        room = max(0, settings.token_limit - tags)
        system = await self._first_instructions(session_id, room) if settings.include_system else None
        return Window(Seen(), Preamble(system), selection_of(settings, room, system, 0), room)

    async def _first_instructions(self, session_id: str, room: int) -> Entry | None:
        """The entry of the first message of the log if that instructs the assistant."""
        settings = self.settings
        rows = (await self.store.readers.unread(session_id, settings.name, after=0, limit=1)).rows
        if not rows or rows[0].role not in INSTRUCTION_ROLES:
            return None
        entry = entry_of(rows[0].id, rows[0].message, settings.tokenizer_fn, (settings.name,))
        left = room - reserved_tokens(settings)
        if entry is None or entry.tokens <= left:
            return entry
        clipped = clip_entry(entry, left // 2, settings.tokenizer_fn)
        return clipped if clipped.tokens <= left else None

    async def _moved(self, session_id: str, window: Window, page: LogPage) -> Window | None:
        """The window with what was made of the rows before the page; None if the cursor has moved since."""
        settings = self.settings
        if page.position == window.seen.position and not settings.allow_partial:
            return window
        position, state = await self.store.readers.state(session_id, settings.name)
        if position != page.position:
            return None
        state, system, counter = state or {}, window.preamble.system, settings.tokenizer_fn
        summary = str(state.get("summary") or "")
        limit = shown_summary_limit(settings, window.room, system)
        element = summary_element(summary, limit, counter, (settings.name,))
        tokens = counter.count(element)
        preamble = Preamble(system, summary, element, tokens, int(state.get("summarised") or 0))
        partial = entry_from(position, state["partial"], counter) if state.get("partial") else None
        selection = selection_of(settings, window.room, system, tokens)
        return replace(window, preamble=preamble, selection=selection, kept=Kept(partial))

    async def _newest(self, session_id: str, window: Window, seen: Seen, page: LogPage) -> tuple[list[Entry], bool]:
        """The newest entries that were not seen, as many as can be shown, and whether there are older ones."""
        new: list[Entry] = []
        rows = page.rows
        while rows and not (new and window.selection.are_full(new)):
            rows, chunk = rows[:-_CHUNK_ROWS], rows[-_CHUNK_ROWS:]
            long = sum(row.characters for row in chunk) > _LONG_CHARACTERS
            # Counting some megabytes takes a second, for which the event loop must not be blocked.
            entries = await asyncio.to_thread(self._entries, chunk, window) if long else self._entries(chunk, window)
            new = entries + new
            if not rows and page.more and not window.selection.are_full(new):
                page = await self._page(session_id, seen, before=chunk[0].id)
                rows = page.rows
        return new, bool(rows) or page.more

    async def _page(self, session_id: str, seen: Seen, before: int | None = None) -> LogPage:
        readers = self.store.readers
        return await readers.page(session_id, self.settings.name, seen, before=before, limit=_PAGE_ROWS)

    def _entries(self, rows: Sequence[LogRow], window: Window) -> list[Entry]:
        first = window.preamble.system.row_id if window.preamble.system else None
        counter, tags = self.settings.tokenizer_fn, (self.settings.name,)
        entries = (entry_of(row.id, row.message, counter, tags) for row in rows if row.id != first)
        return [entry for entry in entries if entry is not None]


def _must_reread(window: Window, page: LogPage) -> bool:
    # A result shares the room of its call; and rows that were not shown may have room again after a move.
    return bool(window.kept.entries and page.rows and page.rows[0].is_result) or (
        window.has_overflow and page.position != window.seen.position
    )


def _within_shares(window: Window, entries: list[Entry]) -> list[Entry]:
    """The entries, each clipped to what one message may have."""
    if sum(entry.tokens for entry in entries) <= window.selection.message_limit:
        return entries
    return window.selection.within_shares(entries)
