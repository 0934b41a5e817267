"""Reads the log of a session into the window that its record shows, and cuts it where it is too long."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias

from llama_index.core.base.llms.types import (
    CacheControl,
    CachePoint,
    ChatMessage,
    ContentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
)
from typing_extensions import Self

from llama_index_memory_ext.background.locks import Recent
from llama_index_memory_ext.events import HistoryCondensedEvent, is_heard, send
from llama_index_memory_ext.fact import utc_now
from llama_index_memory_ext.record.text import (
    DAY_HEADING,
    NO_TEXT,
    TODAY_HEADING,
    clip_entries,
    in_a_line,
    summary_element,
)
from llama_index_memory_ext.settings import Switch
from llama_index_memory_ext.store.tables import LogPage, LogRow, Seen, Snapshot
from llama_index_memory_ext.text.limits import Limits, plan_cut
from llama_index_memory_ext.text.messages import (
    INSTRUCTION_ROLES,
    MEDIA_TOKENS,
    Entry,
    clip_entry,
    entry_of,
    tokens_of,
)
from llama_index_memory_ext.text.tokens import (
    LONG_CHARACTERS,
    CountedText,
    TokenCounter,
)
from llama_index_memory_ext.text.tool_calls import ASSISTANT_ROLES, tool_call_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from llama_index_memory_ext.models.responses import Usage
    from llama_index_memory_ext.store import MemoryStore

_PAGE_ROWS = 64
# A block has at least one of so many parts of the record's room, so there are no more
# blocks than this. With more of them less is left behind the last one, which is paid in
# full each time. How far caches look (OpenAI at the latest 80 marks, Anthropic at 20
# blocks before a mark) does not matter: a request marks where the one before has ended.
MOST_BLOCKS = 256
# Anthropic refuses a request with more, and OpenAI writes no more.
MOST_CACHE_POINTS = 4

CachePoints: TypeAlias = Switch | CacheControl


class RecordText(CountedText):
    """The text of a record, whose blocks stay as they are while it grows.

    ``blocks`` are those that are complete, by the rows behind which they end, and have
    the first ``closed`` characters; the text behind them, with recalled messages, is no
    block yet. Behind the rows ``marks``, oldest first, this request and those before it
    have ended their newest blocks.
    """

    __slots__ = ("blocks", "closed", "marks")

    blocks: Mapping[int, TextBlock]
    closed: int
    marks: Sequence[int]

    def __new__(
        cls,
        text: str,
        tokens: int,
        blocks: Mapping[int, TextBlock],
        closed: int,
        marks: Sequence[int],
    ) -> Self:
        """Make it of a text, its number of tokens, and its blocks."""
        record = super().__new__(cls, text, tokens)
        record.blocks = blocks
        record.closed = closed
        record.marks = marks
        return record

    def content_blocks(
        self, cache_points: CachePoints = False, others: int = 0
    ) -> list[ContentBlock]:
        """Return a text block for each block and one for the rest, with cache points at the newest marks.

        Together with ``others`` of the prompt there are at most four.
        """
        if cache_points:
            most = MOST_CACHE_POINTS - others
        else:
            most = 0
        marks = self.marks[-most:] if most > 0 else ()
        content: list[ContentBlock] = []
        for row_id, block in self.blocks.items():
            content.append(block)
            if row_id in marks:
                content.append(cache_point(cache_points))
        return [*content, TextBlock(text=self[self.closed :])]


@dataclass(frozen=True)
class Window:
    """What this process remembers of the record of one session, and the limits of its messages.

    ``instructions`` are the first ones, if they stay, and ``summary`` is of
    ``summarised`` messages; ``element`` is how it is shown. ``has_overflow``: there are
    rows that are neither kept nor left behind. Tools' results before the row
    ``results_from`` are shown in a line.
    """

    seen: Seen
    limits: Limits
    counter: TokenCounter
    instructions: tuple[Entry, ...] = ()
    summary: str = ""
    element: CountedText = NO_TEXT
    summarised: int = 0
    kept: tuple[Entry, ...] = ()
    has_overflow: bool = False
    results_from: int = 0

    def grown(
        self, entries: Sequence[Entry], *, with_days: bool = False
    ) -> tuple[Entry, ...]:
        """Return what is kept with entries behind it, with a heading on each that was said on another day.

        The first has none: its day stands in front of all. A call and its results stand
        together.
        """
        kept, day = list(self.kept), self.kept[-1].day if self.kept else ""
        for entry in entries:
            own = day if entry.is_result else entry.day or day
            if with_days and kept and own != day:
                heading = DAY_HEADING.format(own)
            else:
                heading = ""
            tokens = entry.tokens + (self.counter.count(heading) if heading else 0)
            kept.append(replace(entry, day=own, heading=heading, tokens=tokens))
            day = own
        return tuple(kept)

    @property
    def place(self) -> tuple[int, int]:
        """The epoch and the cursor with which it was read."""
        return self.seen.epoch, self.seen.position

    @property
    def has_left(self) -> bool:
        """Whether messages of the session have left the record."""
        return bool(self.seen.position) or self.has_overflow

    @cached_property
    def tokens(self) -> int:
        """The tokens of the record without the element around it, and without what is recalled."""
        return self.element.tokens + tokens_of(self.instructions) + tokens_of(self.kept)

    @cached_property
    def is_over(self) -> bool:
        """Whether the messages exceed a limit."""
        return (
            len(self.kept) > self.limits.max_messages
            or tokens_of(self.kept) > self.limits.tokens
        )

    @property
    def message_limit(self) -> int:
        """The tokens to which a message, or a call with its results, is clipped: two thirds of what a cut leaves."""
        return int(self.limits.tokens * min(0.5, self.limits.keep_ratio / 1.5))

    def within_shares(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return entries, those over their share clipped. A call and its results have one share together."""
        shown: list[Entry] = []
        for group in tool_call_groups(entries):
            clipped = clip_entries(group, self.message_limit, self.counter)
            if tokens_of(clipped) <= self.message_limit:
                shown += clipped
        return shown

    def is_filled_by(self, entries: Sequence[Entry]) -> bool:
        """Return whether nothing older than these can be shown. The oldest group of them may be incomplete."""
        if not replace(self, kept=tuple(entries)).is_over:
            return False
        whole = entries[len(tool_call_groups(entries)[0]) :]
        return replace(self, kept=tuple(self.within_shares(whole))).is_over

    def evicted(self, limits: Limits | None = None) -> Window:
        """Return the window after a cut, if it is over its limits, or over others."""
        return self.without(
            plan_cut(self.kept, limits or self.limits, turn_starts=(MessageRole.USER,))
        )

    def cut(self) -> Window:
        """Return the window cut down to what limits leave: its first group leaves at least, but for the newest one.

        Else other processes, which see that the cursor has moved, would not know of a
        cut that saves tokens only.
        """
        after = self.evicted(self.limits.kept)
        groups = tool_call_groups(self.kept)
        if after.kept == self.kept and len(groups) > 1:
            return self.without(len(groups[0]))
        return after

    def without(self, number: int) -> Window:
        """Return the window without so many of the oldest entries."""
        kept = self.kept[number:]
        if kept and kept[0].heading:
            tokens = kept[0].tokens - self.counter.count(kept[0].heading)
            kept = (replace(kept[0], heading="", tokens=tokens), *kept[1:])
        return replace(self, kept=kept)

    def fitted(self) -> Window:
        """Return the window without what has no room. As little as possible is left out."""
        as_many = replace(
            self.limits, keep_ratio=1.0, keep_messages=self.limits.max_messages
        )
        return replace(self.evicted(as_many), has_overflow=True)


@dataclass
class Joined:
    """The text of a window; its ``blocks`` hold so many ``entries``, and are the ``length`` first characters of it."""

    window: Window
    text: str = ""
    blocks: dict[int, TextBlock] = field(default_factory=dict)
    entries: int = 0
    length: int = 0

    def begins(self, window: Window) -> bool:
        """Return whether the blocks stand at the beginning of another window, too."""
        same_front = (self.window.instructions, self.window.element) == (
            window.instructions,
            window.element,
        )
        return (
            same_front
            and self.window.kept[: self.entries] == window.kept[: self.entries]
        )


@dataclass(frozen=True)
class RecordReader:
    """Reads the records of sessions as a block keeps them short.

    ``room`` is the tokens inside the element ``name``. The tokens of ``limits`` are not
    used: messages have what the rest of the record leaves. ``windows`` are the last
    ones it has read, and ``ended`` the rows behind which their newest blocks have ended
    when they were shown, for the last two such rows. ``joined`` are the texts of
    windows.
    """

    store: MemoryStore
    name: str
    counter: TokenCounter
    room: int
    limits: Limits
    include_system: bool = False
    summarize: bool = False
    summary_limit: int = 0
    recall_limit: int = 0
    show_days: bool = False
    keep_tool_results: int | None = None
    languages: tuple[str, ...] | None = None
    windows: Recent[str, Window] = field(default_factory=Recent)
    ended: Recent[str, tuple[int, ...]] = field(default_factory=Recent)
    joined: Recent[str, Joined] = field(default_factory=Recent)

    def text(self, session_id: str, window: Window, earlier: CountedText) -> RecordText:
        """Return the window and recalled messages as text with its blocks; remembers where the newest block ends."""
        known, (first_day, today) = self.joined.get(session_id), self.days(window)
        # Prompts share the blocks, and whoever got one may have changed it.
        if known and not known.text.startswith(
            "".join([block.text for block in known.blocks.values()])
        ):
            known = None
        if known is None or known.window is not window:
            joined = Joined(window)
            if known and known.begins(window):
                joined.blocks = dict(known.blocks)
                joined.entries = known.entries
            # What stands in front of the messages: the first instructions and the
            # summary.
            front = [
                *(entry.text for entry in window.instructions),
                str(window.element),
                first_day,
            ]
            pieces = [] if joined.blocks else front
            tokens = 0
            for i, entry in enumerate(
                window.kept[joined.entries :], joined.entries + 1
            ):
                pieces.append(entry.heading + entry.text)
                tokens += entry.tokens
                # A block ends with the first entry with which it has its least number
                # of tokens. So ends stay where they are when entries follow, and are
                # the same in every process.
                if tokens * MOST_BLOCKS >= self.room:
                    joined.blocks[entry.row_id] = TextBlock(text="".join(pieces))
                    joined.entries = i
                    pieces = []
                    tokens = 0
            closed = "".join([block.text for block in joined.blocks.values()])
            joined.text = "".join([closed, *pieces])
            joined.length = len(closed)
            self.joined.put(session_id, known := joined)
        text = known.text
        blocks = known.blocks
        length = known.length
        rows = list(blocks)
        ended = self.ended.get(session_id) or ()
        self.ended.put(session_id, tuple(sorted({*ended, *rows[-1:]})[-2:]))
        # The newest end, that before the last turn, and the last one before with which
        # an earlier request has ended.
        turn = next(
            (
                entry.row_id
                for entry in reversed(window.kept)
                if entry.role == MessageRole.USER.value
            ),
            0,
        )
        before_turn = bisect_left(rows, turn)
        known_ends = [row_id for row_id in rows[:-1] if row_id in ended][-1:]
        marks = sorted(
            {*rows[-1:], *rows[max(before_turn - 1, 0) : before_turn], *known_ends}
        )
        tokens = self.tokens(window) + earlier.tokens
        record = RecordText(f"{text}{earlier}{today}", tokens, blocks, length, marks)
        record.shown = earlier.shown
        return record

    def tokens(self, window: Window) -> int:
        """Return the tokens of a window with the days around it."""
        return window.tokens + sum(map(self.counter.count, self.days(window)))

    def days(self, window: Window) -> tuple[str, str]:
        """Return the heading of the first message, and today's behind all, if the last one is of another day."""
        if not (self.show_days and window.kept):
            return "", ""
        first = window.kept[0].day
        today = utc_now().date().isoformat()
        if window.kept[-1].day == today:
            last = ""
        else:
            last = TODAY_HEADING.format(today)
        return DAY_HEADING.format(first) if first else "", last

    async def shown(self, session_id: str, snapshot: Snapshot | None = None) -> Window:
        """Return the window within its limits, for which it is cut, for every process.

        What is to be summarised is only left out until it is.
        """
        window = await self.read(session_id, snapshot)
        # If all that was shown has been taken back, what had left has room again.
        is_behind = window.seen.position and not (window.seen.last_id or window.summary)
        if is_behind and await self.move(session_id, window, 0):
            window = await self.read(session_id)
        if not window.is_over:
            return window
        if self.summarize:
            window = window.fitted()
            self.windows.put(session_id, window)
            return window
        started = perf_counter()
        before = window
        window = await self.shortened(session_id, window)
        after = window.cut()
        if after.kept == window.kept:
            # A call with more results than messages are allowed is kept whole.
            return window
        position = after.kept[0].row_id - 1
        if not await self.move(session_id, after, position):
            # Another process has cut, or the database is busy: show what there is,
            # within the limit.
            return (await self.read(session_id)).evicted()
        after = replace(after, seen=replace(window.seen, position=position))
        self.windows.put(session_id, after)
        await self.announce(session_id, before, after, started)
        return after

    async def shortened(self, session_id: str, window: Window) -> Window:
        """Return the window before a cut, with the tools' results in a line that are older than the last turns.

        It is read anew, so that it is the one that every other process reads after the
        cut.
        """
        turns = [
            entry.row_id
            for entry in window.kept
            if entry.role == MessageRole.USER.value
        ]
        if self.keep_tool_results is None or len(turns) < self.keep_tool_results:
            return window
        starts = [*turns, window.seen.last_id + 1]
        return await self.read(
            session_id, results_from=starts[-self.keep_tool_results - 1]
        )

    def has_room(self, window: Window) -> bool:
        """Return whether a window can be shown, with room for what is recalled: a long call that is kept whole has none."""
        return window.tokens <= self.room - self.recall_limit

    async def read(
        self,
        session_id: str,
        snapshot: Snapshot | None = None,
        *,
        results_from: int | None = None,
    ) -> Window:
        """Return the window with what the log has gained, and without what this or another process has cut.

        A ``snapshot`` of the session spares a query. With ``results_from`` it is read
        anew, as it would be after a cut that has stored this row, and not remembered.
        """
        if results_from is None:
            window = self.windows.get(session_id)
        else:
            window = None
        page = await self._page(
            session_id, window.seen if window else Seen(), snapshot=snapshot
        )
        if window is not None:
            # A result shares the room of its call.
            is_result = window.kept and page.rows and page.rows[0].is_result
            if not page.fresh or page.position != window.seen.position or is_result:
                window = None
                page = await self._page(session_id, Seen())
        if window is None:
            window = await self._empty(session_id, page)
            if window is None:
                # Another process has moved the cursor since.
                return await self.read(session_id, results_from=results_from)
            if results_from is not None:
                window = replace(window, results_from=results_from)
        if page.rows:
            seen = replace(window.seen, last_id=page.rows[-1].id)
            new = await self._counted(page.rows, window)
            while page.more and not await asyncio.to_thread(window.is_filled_by, new):
                page = await self._page(session_id, window.seen, before=page.rows[0].id)
                new = await self._counted(page.rows, window) + new
            if tokens_of(new) > window.message_limit:
                new = await asyncio.to_thread(window.within_shares, new)
            first = {entry.row_id for entry in window.instructions}
            # If there are older messages than these, they and the known ones have no
            # room in the record any more.
            known = () if page.more else window.kept
            new = [one for one in new if one.row_id not in first]
            kept = replace(window, kept=known).grown(new, with_days=self.show_days)
            window = replace(window, kept=kept, seen=seen)
        if results_from is None:
            self.windows.put(session_id, window)
        return window

    async def media(
        self,
        session_id: str,
        turns: int,
        room: int,
        tokens: Callable[[ChatMessage], int],
    ) -> list[ContentBlock]:
        """Return the newest media of the last turns that were shown, within a room, each behind a line that says whose.

        Only of those to which the assistant has said something: others may have been
        refused, and would be again.
        """
        shown: list[ContentBlock] = []
        window = self.windows.get(session_id)
        ago = 1
        answered = False
        for entry in reversed(window.kept if window else ()):
            if ago > turns:
                break
            answered = answered or entry.role in ASSISTANT_ROLES
            if window and entry.has_media and answered:
                for row in (
                    await self.store.readers.rows_in(
                        session_id, [entry.row_id], window.seen.epoch
                    )
                    or []
                ):
                    whose = f"the {entry.role}'s message, {ago} turn{'s' if ago > 1 else ''} ago"
                    # Megabytes are decoded, for which the event loop must not be
                    # blocked.
                    message = await asyncio.to_thread(getattr, row, "message")
                    for block in filter(can_be_sent, reversed(message.blocks)):
                        lined = [
                            TextBlock(text=f"[{block.block_type} of {whose}]\n"),
                            block,
                        ]
                        room -= tokens(ChatMessage(blocks=lined))
                        if room < 0:
                            return shown
                        shown = [*lined, *shown]
            if entry.role == MessageRole.USER.value:
                ago = ago + 1
                answered = False
        return shown

    async def move(self, session_id: str, window: Window, position: int) -> bool:
        """Move the cursor, and store the summary of the window; False as ``Readers.move``."""
        (epoch, old), name = window.place, self.name
        made = {
            "summary": window.summary,
            "summarised": window.summarised,
            "results_from": window.results_from,
        }
        state = made if any(made.values()) else None
        return await self.store.readers.move(
            session_id, name, epoch=epoch, old=old, new=position, state=state
        )

    async def announce(
        self,
        session_id: str,
        before: Window,
        after: Window,
        started: float,
        spent: Usage | None = None,
    ) -> None:
        """Send an event if messages have left the record; ``started`` is of ``perf_counter``."""
        old = before.seen.position
        new = after.seen.position
        seconds = perf_counter() - started
        if new > old and is_heard():
            event = HistoryCondensedEvent(
                session_id=session_id,
                messages=await self.store.users.count(session_id, after=old, last=new),
                tokens_before=self.tokens(before),
                tokens_after=self.tokens(after),
                summarised=self.summarize,
                summary_tokens=after.element.tokens,
                position=new,
                seconds=seconds,
                prompt_tokens=spent.prompt_tokens if spent else 0,
                completion_tokens=spent.completion_tokens if spent else 0,
            )
            send(event)

    async def _empty(self, session_id: str, page: LogPage) -> Window | None:
        """Return a window with the first instructions and the summary of what stands before a page; None if that has moved."""
        first = await self.store.readers.unread(session_id, self.name, after=0, limit=1)
        if first.position != page.position:
            return None
        room = self.room - self.recall_limit
        instructions = tuple[Entry, ...]()
        if self.summarize:
            room -= self.summary_limit
        if self.include_system:
            entries = await self._counted(
                [row for row in first.rows if row.role in INSTRUCTION_ROLES]
            )
            clipped = [clip_entry(entry, room // 2, self.counter) for entry in entries]
            instructions = tuple(entry for entry in clipped if entry.tokens <= room)
            room -= tokens_of(instructions)
        # A stored summary that is no longer extended leaves half to messages.
        if self.summarize:
            limit = self.summary_limit
        else:
            limit = min(self.summary_limit, room // 2)
        state = first.state or {}
        summary = str(state.get("summary") or "")
        element = summary_element(summary, limit, self.counter, (self.name,))
        if not self.summarize:
            room -= element.tokens
        # The instructions count as messages.
        most = max(self.limits.max_messages - len(instructions), 1)
        keep = max(self.limits.keep_messages - len(instructions), 1)
        limits = replace(
            self.limits, tokens=max(room, 0), max_messages=most, keep_messages=keep
        )
        seen = Seen(page.epoch, page.position)
        summarised = int(state.get("summarised") or 0)
        results_from = int(state.get("results_from") or 0)
        return Window(
            seen,
            limits,
            self.counter,
            instructions,
            summary,
            element,
            summarised,
            results_from=results_from,
        )

    async def _page(
        self,
        session_id: str,
        seen: Seen,
        before: int | None = None,
        snapshot: Snapshot | None = None,
    ) -> LogPage:
        if snapshot:
            rows = snapshot.log_behind(seen)
        else:
            rows = None
        if snapshot and rows is not None:
            return LogPage(
                snapshot.position,
                snapshot.epoch,
                [row for row in rows if row.id > snapshot.position],
            )
        return await self.store.readers.page(
            session_id, self.name, seen, before=before, limit=_PAGE_ROWS
        )

    async def _counted(
        self, rows: Sequence[LogRow], window: Window | None = None
    ) -> list[Entry]:
        counter = self.counter
        tags = (self.name,)
        results_from = window.results_from if window else 0
        if sum(row.characters for row in rows) > LONG_CHARACTERS:
            entries = await asyncio.to_thread(entries_of, rows, counter, tags)
        else:
            entries = entries_of(rows, counter, tags)
        return [
            in_a_line(one, counter)
            if one.is_result and one.row_id < results_from
            else one
            for one in entries
        ]


def entries_of(
    rows: Iterable[LogRow],
    counter: TokenCounter,
    tags: Iterable[str],
    *,
    brief: bool = False,
) -> list[Entry]:
    """Return the entries of rows, but for those with nothing to show; no text can forge our tags or ``tags``."""
    found = (
        entry_of(
            row.id,
            row.message,
            counter,
            tags,
            speaker=row.speaker,
            day=row.day,
            brief=brief,
        )
        for row in rows
    )
    return [entry for entry in found if entry is not None]


def cache_point(cache_points: CachePoints) -> CachePoint:
    """Return a cache point as the option asks for it: with a control of its own, or for five minutes."""
    if isinstance(cache_points, CacheControl):
        control = cache_points
    else:
        control = CacheControl(type="ephemeral")
    # One integration changes what it does not know.
    return CachePoint(cache_control=control.model_copy())


def cache_points_in(messages: Iterable[ChatMessage]) -> int:
    """Return the number of cache points in the messages."""
    return sum(
        isinstance(block, CachePoint)
        for message in messages
        for block in message.blocks
    )


def can_be_sent(block: ContentBlock) -> bool:
    """Return whether it is a medium whose file is still there. A tool's bytes that are no picture were never sent as one."""
    is_readable = not isinstance(block, ImageBlock) or block.image_mimetype or block.url
    path = getattr(block, "path", None)
    return bool(
        block.block_type in MEDIA_TOKENS
        and is_readable
        and (not path or Path(path).exists())
    )
