"""Reads the log of a session into the window that its record shows, and cuts a window that is too long."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

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

from llama_index_memory_ext.events import HistoryCondensedEvent, has_listeners, send
from llama_index_memory_ext.record.sticky import (
    Heat,
    choose_sticky,
    halve,
    heat_at,
)
from llama_index_memory_ext.record.text import (
    DAY_HEADING,
    EARLIER_CLOSING,
    NO_TEXT,
    STICKY_OPENING,
    TODAY_HEADING,
    clip_entries,
    earlier_element,
    in_a_line,
    summary_element,
)
from llama_index_memory_ext.settings import Switch
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
    MEDIA_TOKENS,
    Entry,
    clip_entry,
    entry_of,
    tokens_of,
)
from llama_index_memory_ext.text.limits import Limits, plan_cut
from llama_index_memory_ext.text.messages import (
    ASSISTANT_ROLES,
    now_in,
    tool_call_groups,
)
from llama_index_memory_ext.text.tokens import (
    LONG_CHARACTERS,
    CountedText,
    TokenCounter,
)

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Container,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from datetime import tzinfo

    from llama_index_memory_ext.models.ask import Usage
    from llama_index_memory_ext.store import MemoryStore

_PAGE_ROWS = 64
# So many turns wait for a summary with as many messages as have room.
_MOST_SLIDES = 3
# A block has at least this part of the record's room, which bounds the number of blocks.
# More blocks leave less text behind the last one, which is paid in full each time. How
# far caches look does not matter (OpenAI at the latest 80 marks, Anthropic at 20 blocks
# before a mark): a request marks where the request before has ended.
MOST_BLOCKS = 256
# Anthropic refuses a request with more, and OpenAI writes no more.
MOST_CACHE_POINTS = 4

CachePoints: TypeAlias = Switch | CacheControl
# When messages are recalled: if the user asks for something, always or never.
RecallWhen: TypeAlias = Literal["asked", "always", "never"]


class RecordText(CountedText):
    """The text of a record, whose blocks stay as they are while it grows.

    Attributes:
        blocks: The complete blocks, each by the row behind which it ends.
        closed: The number of characters in the blocks. The text behind them, with the
            recalled messages, is no block yet.
        marks: The rows behind which this request and those before it end their newest
            blocks, oldest first.
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
        """Make a record of a text, its number of tokens, and its blocks."""
        record = super().__new__(cls, text, tokens)
        record.blocks = blocks
        record.closed = closed
        record.marks = marks
        return record

    def content_blocks(
        self, cache_points: CachePoints = False, used_points: int = 0
    ) -> list[ContentBlock]:
        """Return a text block for each block and one for the rest, with cache points at the newest marks.

        The prompt holds ``used_points`` already, and never more than four.
        """
        points_left = MOST_CACHE_POINTS - used_points
        marks: Sequence[int] = ()
        if cache_points and points_left > 0:
            marks = self.marks[-points_left:]
        content: list[ContentBlock] = []
        for row_id, block in self.blocks.items():
            content.append(block)
            if row_id in marks:
                content.append(cache_point(cache_points))
        return [*content, TextBlock(text=self[self.closed :])]


class DayHeadings(NamedTuple):
    """The heading above the first message, and the heading of today below all messages; "" for none."""

    first: str = ""
    today: str = ""


@dataclass(frozen=True)
class Window:
    """The record of one session as this process remembers it, and the limits of its messages.

    Attributes:
        instructions: The first system or developer messages, if they stay.
        summary: The running summary of ``summarised`` messages.
        element: The summary as the record shows it.
        sticky: The messages that were recalled most before the last cut, as the record
            shows them.
        sticky_heat: The heat of each of them by its row.
        entries: The messages, oldest first.
        has_overflow: Whether the log has rows behind the cursor that are not shown.
        slides: How often the oldest messages had no room and wait for a summary.
        results_from: The results of tools before this row are shown in a line.
        offset: The offset of the newest message.
    """

    seen: ReadPosition
    limits: Limits
    counter: TokenCounter
    instructions: tuple[Entry, ...] = ()
    summary: str = ""
    element: CountedText = NO_TEXT
    summarised: int = 0
    sticky: CountedText = NO_TEXT
    sticky_heat: Mapping[int, float] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    has_overflow: bool = False
    slides: int = 0
    results_from: int = 0
    offset: tzinfo | None = None

    def grown(
        self, new: Sequence[Entry], *, with_days: bool = False
    ) -> tuple[Entry, ...]:
        """Return the entries and new ones behind them, with a heading where the day changes.

        The first entry has no heading, because its day stands above the record. A
        result has the day of its call.
        """
        entries = list(self.entries)
        last_day = entries[-1].day if entries else ""
        for entry in new:
            day = last_day
            if entry.day and not entry.is_result:
                day = entry.day
            heading = ""
            tokens = entry.tokens
            if with_days and entries and day != last_day:
                heading = DAY_HEADING.format(day)
                tokens += self.counter.count(heading)
            entries.append(replace(entry, day=day, heading=heading, tokens=tokens))
            last_day = day
        return tuple(entries)

    @property
    def place(self) -> tuple[int, int]:
        """The epoch and the cursor with which the window was read."""
        return self.seen.epoch, self.seen.position

    @property
    def last_left(self) -> int:
        """The last row before the messages of the record; 0 if none has left it."""
        if not self.has_left:
            return 0
        return self.entries[0].row_id - 1 if self.entries else self.seen.last_id

    @property
    def has_left(self) -> bool:
        """Whether messages of the session have left the record."""
        return bool(self.seen.position) or self.has_overflow

    @property
    def last_turn(self) -> int:
        """The row of the newest message of the user; 0 if there is none."""
        for entry in reversed(self.entries):
            if entry.role == MessageRole.USER.value:
                return entry.row_id
        return 0

    @cached_property
    def tokens(self) -> int:
        """The tokens of the record without the element around it, its days and recalled messages."""
        in_front = self.element.tokens + self.sticky.tokens
        return in_front + tokens_of(self.instructions) + tokens_of(self.entries)

    @cached_property
    def is_over(self) -> bool:
        """Whether the messages exceed a limit."""
        return (
            len(self.entries) > self.limits.max_messages
            or tokens_of(self.entries) > self.limits.tokens
        )

    @property
    def message_limit(self) -> int:
        """The most tokens of a message, or of a call with its results: two thirds of the room after a cut.

        It is the same with and without sticky messages, and so is a clipped message.
        """
        room = self.limits.tokens + self.sticky.tokens
        return int(room * min(0.5, self.limits.keep_ratio / 1.5))

    def is_continued_by(self, page: LogPage) -> bool:
        """Return whether the rows of a page follow the entries, and the log and the cursor are unchanged."""
        if not page.fresh or page.position != self.seen.position:
            return False
        # A result shares the limit of its call, which is among the entries.
        return not (self.entries and page.rows and page.rows[0].is_result)

    def within_shares(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries, clipped to their limit. A call and its results have one limit together."""
        fitting: list[Entry] = []
        for group in tool_call_groups(entries):
            clipped = clip_entries(group, self.message_limit, self.counter)
            if tokens_of(clipped) <= self.message_limit:
                fitting += clipped
        return fitting

    def is_filled_by(self, entries: Sequence[Entry]) -> bool:
        """Return whether no older entry has room beside these. Their oldest group may be incomplete."""
        if not replace(self, entries=tuple(entries)).is_over:
            return False
        whole = entries[len(tool_call_groups(entries)[0]) :]
        return replace(self, entries=tuple(self.within_shares(whole))).is_over

    def evicted(self, limits: Limits | None = None) -> Window:
        """Return the window after a cut, if it exceeds these limits or, by default, its own."""
        first = plan_cut(
            self.entries, limits or self.limits, turn_starts=(MessageRole.USER,)
        )
        return self.without(first)

    def cut(self) -> Window:
        """Return the window after a cut, which removes at least the first group, but never the newest.

        A cut that removed no group would not move the cursor, and other processes would
        not know of it.
        """
        after = self.evicted(self.limits.kept)
        groups = tool_call_groups(self.entries)
        if after.entries == self.entries and len(groups) > 1:
            return self.without(len(groups[0]))
        return after

    def without(self, number: int) -> Window:
        """Return the window without this number of its oldest entries."""
        entries = self.entries[number:]
        if entries and entries[0].heading:
            tokens = entries[0].tokens - self.counter.count(entries[0].heading)
            first = replace(entries[0], heading="", tokens=tokens)
            entries = (first, *entries[1:])
        return replace(self, entries=entries)

    def is_before(self, last: Window) -> bool:
        """Return whether another reader has read further, or waited longer, in the same log."""
        if replace(self.seen, last_id=0) != replace(last.seen, last_id=0):
            return False
        here = (self.seen.last_id, self.slides)
        return here < (last.seen.last_id, last.slides)

    def fitted(self) -> Window:
        """Return the window within its limits, with as many entries as possible.

        After some turns without the summary of the messages that had no room, the window
        is cut as without a summary. Then its beginning stays for many turns.
        """
        if self.slides >= _MOST_SLIDES:
            return self.evicted()
        as_many = replace(
            self.limits, keep_ratio=1.0, keep_messages=self.limits.max_messages
        )
        return replace(self.evicted(as_many), has_overflow=True, slides=self.slides + 1)


@dataclass(frozen=True)
class Joined:
    """The text of a window. Its ``blocks`` hold the first ``entries``, and its first ``length`` characters."""

    window: Window
    text: str
    blocks: dict[int, TextBlock]
    entries: int
    length: int

    def is_intact(self) -> bool:
        """Return whether the blocks are unchanged. Prompts share them, and a program may write to a prompt."""
        closed = "".join([block.text for block in self.blocks.values()])
        return self.text.startswith(closed)

    def begins(self, window: Window) -> bool:
        """Return whether the blocks are also the beginning of another window."""
        return (
            self.window.instructions == window.instructions
            and self.window.element == window.element
            and self.window.sticky == window.sticky
            and self.window.entries[: self.entries] == window.entries[: self.entries]
        )


class MediaEntry(NamedTuple):
    """An entry with media, of the last turn (1) or an earlier one."""

    entry: Entry
    turns_ago: int

    @property
    def description(self) -> str:
        """The role of the message and its age, for the line above each medium."""
        plural = "s" if self.turns_ago > 1 else ""
        return f"the {self.entry.role}'s message, {self.turns_ago} turn{plural} ago"


@dataclass(frozen=True)
class RecordReader:
    """Reads the records of sessions within the limits of a block.

    Equal readers of a store share what they have read: the cache of the store keeps the
    last window and text of each session.

    Attributes:
        room: The tokens inside the element ``name``.
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

    def _keep(self, session_id: str, window: Window) -> None:
        """Let all equal readers go on from this window, unless a later one was kept meanwhile."""
        last = self.window(session_id)
        if last and window.is_before(last):
            return
        size = len(window.entries)
        self.store.cache.put(session_id, ("window", self), window, size)

    def render(
        self, session_id: str, window: Window, earlier: CountedText
    ) -> RecordText:
        """Return the window and recalled messages as text with blocks; remember where the newest block ends."""
        days = self.days(window)
        cache = self.store.cache
        joined: Joined | None = cache.get(session_id, ("text", self))
        if joined and not joined.is_intact():
            joined = None
        if joined is None or joined.window != window:
            joined = self._join(window, days.first, joined)
            cache.put(session_id, ("text", self), joined)
        rows = list(joined.blocks)
        # The last two rows behind which a newest block has ended.
        earlier_ends = cache.get(session_id, ("block ends", self)) or ()
        ends = sorted({*earlier_ends, *rows[-1:]})
        cache.put(session_id, ("block ends", self), tuple(ends[-2:]))
        record = RecordText(
            f"{joined.text}{earlier}{days.today}",
            self.tokens(window) + earlier.tokens,
            joined.blocks,
            joined.length,
            rows_to_mark(rows, earlier_ends, window.last_turn),
        )
        record.matches = earlier.matches
        return record

    def _join(self, window: Window, first_day: str, before: Joined | None) -> Joined:
        """Return the text of a window, with the blocks of the text before if they are its beginning."""
        if before and before.blocks and before.begins(window):
            blocks = dict(before.blocks)
            entries = before.entries
            pieces = []
        else:
            blocks = {}
            entries = 0
            pieces = [entry.text for entry in window.instructions]
            pieces += [str(window.element), str(window.sticky), first_day]
        tokens = 0
        for number, entry in enumerate(window.entries[entries:], entries + 1):
            pieces.append(entry.heading + entry.text)
            tokens += entry.tokens
            # A block ends with the first entry with which it has its least number of
            # tokens. So ends stay where they are when entries follow, and are the same
            # in every process.
            if tokens * MOST_BLOCKS >= self.room:
                blocks[entry.row_id] = TextBlock(text="".join(pieces))
                entries = number
                pieces = []
                tokens = 0
        closed = "".join([block.text for block in blocks.values()])
        return Joined(window, closed + "".join(pieces), blocks, entries, len(closed))

    def tokens(self, window: Window) -> int:
        """Return the tokens of a window with the days around it."""
        return window.tokens + sum(map(self.counter.count, self.days(window)))

    def days(self, window: Window) -> DayHeadings:
        """Return the day of the first message, and today if the last message is of another day."""
        if not (self.show_days and window.entries):
            return DayHeadings()
        first_day = window.entries[0].day
        today = day_of(now_in(self.time_zone or window.offset))
        return DayHeadings(
            DAY_HEADING.format(first_day) if first_day else "",
            "" if window.entries[-1].day == today else TODAY_HEADING.format(today),
        )

    async def read_within_limits(
        self, session_id: str, snapshot: Snapshot | None = None
    ) -> Window:
        """Return the window within its limits. A cut is stored, so that every process sees it.

        With ``summarize`` no cut is stored: the messages leave when they are summarised.
        """
        window = await self.read(session_id, snapshot)
        # If all messages of the record were deleted, the earlier ones have room again.
        is_behind = window.seen.position and not (window.seen.last_id or window.summary)
        if is_behind and await self.move(session_id, window, 0):
            window = await self.read(session_id)
        if not window.is_over:
            return window
        if self.summarize:
            window = window.fitted()
            self._keep(session_id, window)
            return window
        return await self._store_cut(session_id, window)

    async def _store_cut(self, session_id: str, before: Window) -> Window:
        """Cut the window for every process, and return the window after the cut."""
        started = perf_counter()
        window = await self.with_short_results(session_id, before)
        heat = self._heat(session_id, window)
        window = await self._with_sticky(session_id, window, halve(heat.by_row))
        after = window.cut()
        if after.entries == window.entries:
            # A call with more results than messages are allowed is kept whole.
            return window
        position = after.entries[0].row_id - 1
        if not await self.move(session_id, after, position):
            # Another process has cut, or the database is busy: show the window as it
            # is now, within the limit.
            return (await self.read(session_id)).evicted()
        after = replace(after, seen=replace(window.seen, position=position))
        self._keep(session_id, after)
        await self.announce(session_id, before, after, started)
        return after

    async def with_short_results(self, session_id: str, window: Window) -> Window:
        """Return the window before a cut, with the results of tools before the last turns in a line each.

        The window is read anew, as every other process reads it after the cut.
        """
        turns = [
            entry.row_id
            for entry in window.entries
            if entry.role == MessageRole.USER.value
        ]
        if self.keep_tool_results is None or len(turns) < self.keep_tool_results:
            return window
        starts = [*turns, window.seen.last_id + 1]
        return await self.read(
            session_id, results_from=starts[-self.keep_tool_results - 1]
        )

    def _heat(self, session_id: str, window: Window) -> Heat:
        last = self.store.cache.get(session_id, ("heat", self))
        return heat_at(window.place, last, window.sticky_heat)

    def heat_up(
        self, session_id: str, window: Window, similarities: Mapping[int, float]
    ) -> None:
        """Add the similarities of recalled messages, by their rows, to their heat."""
        if not self.sticky_limit:
            return
        heat = self._heat(session_id, window)
        by_row = dict(heat.by_row)
        for row_id, similarity in similarities.items():
            by_row[row_id] = by_row.get(row_id, 0.0) + similarity
        self.store.cache.put(session_id, ("heat", self), Heat(heat.place, by_row))

    async def _with_sticky(
        self, session_id: str, window: Window, heat: Mapping[int, float]
    ) -> Window:
        """Return the window with the hottest messages, which share the room of its messages."""
        chosen: list[Entry] = []
        counter = self.counter
        if heat and self.sticky_limit and not window.summary:
            rows = await self.store.readers.rows_in(
                session_id, list(heat), window.seen.epoch
            )
            # Without rows, a message was deleted: then the window is read again.
            entries = entries_of(
                rows or (), counter, (self.name,), zone=self.time_zone, brief=True
            )
            tags = counter.count(STICKY_OPENING + EARLIER_CLOSING)
            day = counter.count(DAY_HEADING.format("2026-11-20"))
            chosen = choose_sticky(heat, entries, self.sticky_limit - tags, day)
        messages = [(entry.day, [entry]) for entry in chosen]
        sticky = earlier_element(messages, counter, STICKY_OPENING)
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
        results_from: int | None = None,
    ) -> Window:
        """Return the window of the log behind the cursor, which this or another process may have moved.

        A ``snapshot`` of the session spares a query. With ``results_from`` the window
        is read anew and not remembered, as after a cut that has stored this row.
        """
        remembered = None
        if results_from is None:
            remembered = self.window(session_id)
        seen = remembered.seen if remembered else ReadPosition()
        page = await self._page(session_id, seen, snapshot=snapshot)
        if remembered and not remembered.is_continued_by(page):
            remembered = None
            page = await self._page(session_id, ReadPosition())
        window = remembered or await self._empty(session_id, page)
        if window is None:
            # Another process has moved the cursor since.
            return await self.read(session_id, results_from=results_from)
        if results_from is not None:
            window = replace(window, results_from=results_from)
        if page.rows:
            window = await self._extend(session_id, window, page)
        if results_from is None:
            self._keep(session_id, window)
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
        entries = window.grown(new, with_days=self.show_days)
        return replace(window, entries=entries, seen=seen, offset=offset)

    async def media(
        self,
        session_id: str,
        turns: int,
        roles: Sequence[str],
        room: int,
        tokens: Callable[[ChatMessage], int],
    ) -> list[ContentBlock]:
        """Return the newest media of the last turns of the record, each behind a line that names its message.

        Media without an answer of the assistant are left out: a provider may have
        refused them, and would again. So are all media if the newest turn before the
        question has no answer. ``roles``: of the messages behind the record, with the
        question.
        """
        content: list[ContentBlock] = []
        window = self.window(session_id)
        if window is None or not any(entry.has_media for entry in window.entries):
            return content
        roles_so_far = [*(entry.role for entry in window.entries), *roles]
        if not has_answer_before_question(roles_so_far):
            return content
        for media_entry in entries_with_media(window.entries, turns):
            row_id = media_entry.entry.row_id
            media = await self._read_media(session_id, row_id, window.seen.epoch)
            for block in reversed(media):
                line = f"[{block.block_type} of {media_entry.description}]\n"
                labelled = [TextBlock(text=line), block]
                room -= tokens(ChatMessage(blocks=labelled))
                if room < 0:
                    return content
                content = [*labelled, *content]
        return content

    async def _read_media(
        self, session_id: str, row_id: int, epoch: int
    ) -> list[ContentBlock]:
        rows = await self.store.readers.rows_in(session_id, [row_id], epoch)
        if not rows:
            return []
        # Megabytes are decoded, for which the event loop must not be blocked.
        message: ChatMessage = await asyncio.to_thread(getattr, rows[0], "message")
        return [block for block in message.blocks if can_be_sent(block)]

    async def move(self, session_id: str, window: Window, position: int) -> bool:
        """Move the cursor, and store the summary of the window; return False as ``Readers.move``."""
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
            epoch=window.seen.epoch,
            old=window.seen.position,
            new=position,
            state=state if any(state.values()) else None,
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
        if new > old and has_listeners():
            event = HistoryCondensedEvent(
                session_id=session_id,
                messages=await self.store.readers.count_messages(
                    session_id, after=old, last=new
                ),
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
        """Return a window with the first instructions and the stored summary, but no entries yet.

        None if the cursor has moved since the page was read.
        """
        first = await self.store.readers.unread(session_id, self.name, after=0, limit=1)
        if first.position != page.position:
            return None
        room = self.room - self.recall_limit
        if self.summarize:
            room -= self.summary_limit
        instructions = await self._instructions(first.rows, room)
        room -= tokens_of(instructions)
        state = first.state or {}
        summary = str(state.get("summary") or "")
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
            summarised=int(state.get("summarised") or 0),
            results_from=int(state.get("results_from") or 0),
        )
        heat = {row_id: value for row_id, _, value in state.get(ROWS, ())}
        return await self._with_sticky(session_id, window, heat)

    async def _instructions(
        self, rows: Iterable[LogRow], room: int
    ) -> tuple[Entry, ...]:
        """Return the instructions among the first rows of the log, clipped to half of the room."""
        if not self.include_system:
            return ()
        entries = await self._count(
            [row for row in rows if row.role in INSTRUCTION_ROLES]
        )
        clipped = [clip_entry(entry, room // 2, self.counter) for entry in entries]
        return tuple(entry for entry in clipped if entry.tokens <= room)

    async def _page(
        self,
        session_id: str,
        seen: ReadPosition,
        before: int | None = None,
        snapshot: Snapshot | None = None,
    ) -> LogPage:
        rows = snapshot.log_behind(seen) if snapshot else None
        if snapshot is None or rows is None:
            return await self.store.readers.page(
                session_id, self.name, seen, before=before, limit=_PAGE_ROWS
            )
        unread = [row for row in rows if row.id > snapshot.position]
        return LogPage(snapshot.position, snapshot.epoch, unread)

    async def _count(
        self, rows: Sequence[LogRow], results_from: int = 0
    ) -> list[Entry]:
        """Return the entries of rows with their tokens; the results of tools before a row in a line each."""
        counter = self.counter
        tags = (self.name,)
        if sum(row.characters for row in rows) > LONG_CHARACTERS:
            entries = await asyncio.to_thread(
                entries_of, rows, counter, tags, zone=self.time_zone
            )
        else:
            entries = entries_of(rows, counter, tags, zone=self.time_zone)
        for i, entry in enumerate(entries):
            if entry.row_id < results_from and entry.is_result:
                entries[i] = in_a_line(entry, counter)
        return entries


def rows_to_mark(
    rows: Sequence[int], earlier_ends: Container[int], last_turn: int
) -> list[int]:
    """Return the rows behind which to set cache points, of the rows behind which blocks end.

    These are the newest row, the last row before the last turn, and the last row with
    which an earlier request has ended.
    """
    before_turn = [row_id for row_id in rows if row_id < last_turn]
    of_earlier_requests = [row_id for row_id in rows[:-1] if row_id in earlier_ends]
    return sorted({*rows[-1:], *before_turn[-1:], *of_earlier_requests[-1:]})


def has_answer_before_question(roles: Sequence[str]) -> bool:
    """Return whether the turn before the last question has an answer or a call; True without such a turn.

    >>> has_answer_before_question(["user", "assistant", "user"])
    True
    >>> has_answer_before_question(["user", "user", "assistant", "tool"])
    False
    """
    questions = 0
    for role in reversed(roles):
        if role == MessageRole.USER.value:
            questions += 1
        elif questions == 1 and role in ASSISTANT_ROLES:
            return True
        if questions > 1:
            return False
    return True


def entries_with_media(entries: Sequence[Entry], turns: int) -> Iterator[MediaEntry]:
    """Yield the entries with media that the assistant has answered, of the last turns, newest first."""
    turns_ago = 1
    is_answered = False
    for entry in reversed(entries):
        if turns_ago > turns:
            return
        is_answered = is_answered or entry.role in ASSISTANT_ROLES
        if entry.has_media and is_answered:
            yield MediaEntry(entry, turns_ago)
        if entry.role == MessageRole.USER.value:
            turns_ago += 1
            is_answered = False


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


def cache_point(cache_points: CachePoints) -> CachePoint:
    """Return a cache point with the control of the option, or by default for five minutes."""
    if isinstance(cache_points, CacheControl):
        control = cache_points
    else:
        control = CacheControl(type="ephemeral")
    # One integration of LlamaIndex writes to the control, so no two points share it.
    return CachePoint(cache_control=control.model_copy())


def cache_points_in(messages: Iterable[ChatMessage]) -> int:
    """Return the number of cache points in the messages."""
    return sum(
        isinstance(block, CachePoint)
        for message in messages
        for block in message.blocks
    )


def can_be_sent(block: ContentBlock) -> bool:
    """Return whether a block is a medium with its bytes, or with a file that still exists.

    An address may have expired. The bytes of a tool that are no picture were never sent
    as a picture.
    """
    is_readable = not isinstance(block, ImageBlock) or block.image_mimetype or block.url
    address = getattr(block, "url", None)
    path = getattr(block, "path", None)
    return bool(
        block.block_type in MEDIA_TOKENS
        and is_readable
        and (not address or str(address).startswith("data:"))
        and (not path or Path(path).exists())
    )
