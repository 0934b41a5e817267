"""Shows what was said in a session, condensed into one text within a token limit."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.bridge.pydantic import PrivateAttr

from llama_index_memory_ext.background.jobs import Jobs
from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.events import HistoryCondensedEvent, SummaryFailedEvent, is_heard, send
from llama_index_memory_ext.log_block import DEFAULT_SESSION_ID, Remembered
from llama_index_memory_ext.record.entry import entry_from, summary_element, truncated
from llama_index_memory_ext.record.log_search import LONGEST_MESSAGE_TOKENS, FoundMessage, LogSearch
from llama_index_memory_ext.record.options import CondensedSettings
from llama_index_memory_ext.record.recall import LogRecall
from llama_index_memory_ext.record.selection import Kept, Selection
from llama_index_memory_ext.store import Seen
from llama_index_memory_ext.text.messages import INSTRUCTION_ROLES, Entry, clip_entry, entry_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.store import LogPage, LogRow

_PAGE_ROWS, _CHUNK_ROWS = 256, 16
_LONG_CHARACTERS = 50_000
_SUMMARISED_ROWS = 400

_NOTHING_KEPT = Kept()


class _Front(NamedTuple):
    """What stands in front of the messages: the first instructions, and what was made of the rows left behind.

    The summary is of ``summarised`` messages; what has left before there was one is not in it.
    """

    system: Entry | None = None
    summary: str = ""
    summary_text: str = ""
    summarised: int = 0


class RecordSize(NamedTuple):
    """How large a record is: its tokens without the element around it, and the messages that it shows word for word.

    ``summary_tokens`` are those of the summary within it, which is of ``summarised`` messages.
    """

    tokens: int = 0
    verbatim: int = 0
    summary_tokens: int = 0
    summarised: int = 0


@dataclass(frozen=True, slots=True)
class _Window:
    """What a block remembers of one session. ``behind``: there are rows that are not shown and not left behind yet."""

    seen: Seen
    front: _Front
    limits: Selection
    kept: Kept = _NOTHING_KEPT
    behind: bool = False
    text: str = ""
    tokens: int = 0

    def showing(self, kept: Kept, **changes: Any) -> _Window:
        """The window with these entries, and the text of it."""
        shown = self.limits.shown(kept.all)
        system = [self.front.system] if self.front.system else []
        text = "".join([*(entry.text for entry in system), self.front.summary_text, *(entry.text for entry in shown)])
        tokens = sum(entry.tokens for entry in [*system, *shown]) + self.limits.counter.count(self.front.summary_text)
        return replace(self, kept=kept, text=text, tokens=tokens, **changes)


class CondensedMemoryBlock(CondensedSettings):
    """What was said in this session, oldest first, one element per message, within a token limit.

    The block reads the log of a ``MemoryStore``. While the record fits into its limits it is shown
    whole. When it does not, the oldest messages leave until ``keep_ratio`` of the limit is left, so that
    the beginning of the prompt then stays the same for many turns and can be served from the provider's
    prompt cache. What has left stays in the store; it is summarised with ``summarize``, and found again by the words of
    a question with a ``recall_token_limit``.

    Without a ``store`` the block keeps a private one in memory, fed by the messages that the memory
    flushes: it works in any ``Memory.from_defaults(memory_blocks=[...])``, and is empty after a restart.
    With a ``store``, give the same one to the memory: ``Memory.from_defaults(chat_store=store, ...)``.
    One block may serve many sessions; none sees another's messages. A summary is made in the event loop of ``aput``,
    which must go on then: in a plain ``Memory``, call ``aput`` rather than ``put``.

    Raises:
        ValueError: ``keep_messages`` is larger than ``max_messages``, or no room is left beside summary and recall.
        StoreError: By ``aput``, if the given store has never seen the session: the memory keeps its messages elsewhere.

    Examples:
        >>> CondensedMemoryBlock(token_limit=8_000).name
        'condensed_memory'
    """

    _windows: Remembered[str, _Window] = PrivateAttr(default_factory=Remembered)
    _recall: LogRecall = PrivateAttr(default_factory=LogRecall)
    _search: LogSearch = PrivateAttr(default_factory=LogSearch)

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex serialises this block."""
        return "CondensedMemoryBlock"

    # ---- what the host calls -----------------------------------------------------------------------

    async def _aget(
        self, messages: list[ChatMessage] | None = None, *, session_id: str | None = None, **block_kwargs: Any
    ) -> str:
        """The record as text, one line-ended element per message; empty if nothing was said yet."""
        session_id = session_id or DEFAULT_SESSION_ID
        window = await self._read(session_id)
        if window.limits.is_over(window.kept.all):
            window = self._cap(session_id, window) if self.summarize else await self._cut(session_id, window)
        return self._render(window, await self._earlier(session_id, window, messages or []))

    async def atruncate(self, content: Any, tokens_to_truncate: int) -> str | None:
        """The record, at least ``tokens_to_truncate`` tokens shorter: what was recalled goes first, then the oldest.

        None if nothing is left, or nothing was there.
        """
        return (
            truncated(content, tokens_to_truncate, self.tokenizer_fn) if content and isinstance(content, str) else None
        )

    # ---- life --------------------------------------------------------------------------------------

    async def aflush(self, session_id: str = DEFAULT_SESSION_ID) -> None:
        """Wait until what has left the record is summarised; a failure is tried again by whoever comes next."""
        if self.summarize:
            await self._jobs.finish(session_id, self._summarise)

    async def asummary(self, session_id: str = DEFAULT_SESSION_ID) -> str:
        """The running summary of what has left the record; "" if there is none."""
        return (await self._read(session_id)).front.summary

    async def asearch(
        self,
        question: str,
        *,
        session_id: str = DEFAULT_SESSION_ID,
        most: int = 10,
        message_token_limit: int = LONGEST_MESSAGE_TOKENS,
    ) -> list[FoundMessage]:
        """What was said in a session that is near to a question, best first; [] if no word of it is in common.

        All of the log is searched, what the record shows too, but not the turn that is going on.
        """
        return await self._search.find(
            self._log,
            session_id,
            question,
            most=most,
            message_token_limit=message_token_limit,
            counter=self.tokenizer_fn,
            tags=(self.name,),
        )

    async def ameasure(self, session_id: str = DEFAULT_SESSION_ID) -> RecordSize:
        """How large the record of a session would be now, without what is recalled; nothing is cut for it."""
        window = await self._read(session_id)
        limits, kept, front = window.limits, window.kept, window.front
        if limits.is_over(kept.all):
            window = window.showing(Kept(None, limits.fit(kept.all)) if self.summarize else limits.evict(kept))
        if not self._has_room(window):
            return RecordSize(summarised=front.summarised)
        shown = len(limits.shown(window.kept.all)) + (front.system is not None)
        return RecordSize(window.tokens, shown, self.tokenizer_fn.count(front.summary_text), front.summarised)

    async def stop_jobs(self, session_ids: Collection[str] | None = None) -> None:
        """End what is under way in this event loop, of some sessions or of all; whoever comes next goes on."""
        await self._recall.stop(session_ids)
        await super().stop_jobs(session_ids)

    @property
    def _all_jobs(self) -> tuple[Jobs, ...]:
        return (self._jobs, self._recall.jobs)

    async def aclose(self) -> None:
        """Close the private store with all that it held, and end what is under way there and what is indexed."""
        await self._recall.stop()
        await super().aclose()

    # ---- reading -----------------------------------------------------------------------------------

    def _new_jobs(self) -> Jobs:
        return Jobs("Earlier messages were not summarised", "summary", SummaryFailedEvent)

    async def _notice(self, session_id: str) -> None:
        if self.store is not None and session_id not in self._windows and not await self.store.knows(session_id):
            raise StoreError(
                f"{self.class_name()}(store=...) shows the log of its store, but that store holds no message of "
                f"session {session_id!r}: the memory keeps them elsewhere. Give both the same store: "
                "Memory.from_defaults(chat_store=store, memory_blocks=[...])."
            )
        if self.summarize:
            self._jobs.start(session_id, self._summarise, self.retry_seconds)

    async def _read(self, session_id: str) -> _Window:
        """The window with what the log has gained, and without what this or another worker has cut."""
        window = self._windows.get(session_id)
        if window is None or not window.seen.last_id:
            window = await self._opened(session_id)
        page = await self._page(session_id, window.seen)
        if not page.fresh or self._must_reread(window, page):
            window = await self._opened(session_id)
            page = await self._page(session_id, window.seen)
        if not page.rows and page.position == window.seen.position and not self.allow_partial:
            self._windows.put(session_id, window)
            return window
        newest = page.rows[-1].id if page.rows else window.seen.last_id
        moved = await self._moved(session_id, window, page)
        if moved is None:
            # Another worker has moved the cursor since.
            return await self._read(session_id)
        new, has_older = await self._newest(session_id, moved, window.seen, page)
        # If there are older messages than these, they and what was known cannot be in the record any more.
        known = () if has_older else window.kept.entries
        entries = [entry for entry in (*known, *moved.limits.within_shares(new)) if entry.row_id > page.position]
        moved = moved.showing(Kept(moved.kept.partial, tuple(entries)), seen=Seen(page.epoch, page.position, newest))
        self._windows.put(session_id, moved)
        return moved

    async def _opened(self, session_id: str) -> _Window:
        """The window of a session of which nothing was read yet but its first message, if that stays for good."""
        front = _Front(await self._first_instructions(session_id) if self.include_system else None)
        return _Window(Seen(), front, self._limits(front.system))

    async def _newest(self, session_id: str, window: _Window, seen: Seen, page: LogPage) -> tuple[list[Entry], bool]:
        """The newest entries that were not seen, as many as can be shown, and whether there are older ones."""
        new: list[Entry] = []
        rows = page.rows
        while rows and not window.limits.are_full(new):
            rows, chunk = rows[:-_CHUNK_ROWS], rows[-_CHUNK_ROWS:]
            long = sum(row.characters for row in chunk) > _LONG_CHARACTERS
            # Counting takes a second for some megabytes, in which the event loop must not stand still.
            entries = await asyncio.to_thread(self._entries, chunk, window) if long else self._entries(chunk, window)
            new = entries + new
            if not rows and page.more and not window.limits.are_full(new):
                page = await self._page(session_id, seen, before=chunk[0].id)
                rows = page.rows
        return new, bool(rows) or page.more

    @staticmethod
    def _must_reread(window: _Window, page: LogPage) -> bool:
        # A result shares the room of its call; and what was not shown may have room again behind a moved cursor.
        return bool(window.kept.entries and page.rows and page.rows[0].is_result) or (
            window.behind and page.position != window.seen.position
        )

    async def _moved(self, session_id: str, window: _Window, page: LogPage) -> _Window | None:
        """The window with what was made of the rows in front of the page; None if it is of another place."""
        if page.position == window.seen.position and not self.allow_partial:
            return window
        position, state = await self._log.read_state(session_id, self.name)
        if position != page.position:
            return None
        state = state or {}
        summary = str(state.get("summary") or "")
        system = window.front.system
        text = summary_element(summary, self._limit_of_summary(system), self.tokenizer_fn, (self.name,))
        front = _Front(system, summary, text, int(state.get("summarised") or 0))
        end = entry_from(position, state["partial"], self.tokenizer_fn) if state.get("partial") else None
        return replace(window, front=front, limits=self._limits(system, text), kept=Kept(end))

    async def _first_instructions(self, session_id: str) -> Entry | None:
        """The entry of the first message of the log if that instructs the assistant."""
        rows = (await self._log.read_unread(session_id, self.name, after=0, limit=1)).rows
        if not rows or rows[0].role not in INSTRUCTION_ROLES:
            return None
        entry = entry_of(rows[0].id, rows[0].message, self.tokenizer_fn, (self.name,))
        room = self._room - self._reserved
        if entry is None or entry.tokens <= room:
            return entry
        clipped = clip_entry(entry, room // 2, self.tokenizer_fn)
        return clipped if clipped.tokens <= room else None

    async def _page(self, session_id: str, seen: Seen, before: int | None = None) -> LogPage:
        return await self._log.read_log(session_id, self.name, seen, before=before, limit=_PAGE_ROWS)

    def _entries(self, rows: Sequence[LogRow], window: _Window) -> list[Entry]:
        first = window.front.system.row_id if window.front.system else None
        shown = (row for row in rows if row.id != first)
        entries = (entry_of(row.id, row.message, self.tokenizer_fn, (self.name,)) for row in shown)
        return [entry for entry in entries if entry is not None]

    # ---- within the limits ---------------------------------------------------------------------------

    async def _cut(self, session_id: str, window: _Window) -> _Window:
        """The window from the planned cut on, with the cursor moved there for every worker."""
        kept = window.limits.evict(window.kept)
        if kept == window.kept:
            # A call with more results than messages are allowed is kept whole.
            return window
        started = perf_counter()
        if await self._move(session_id, window, kept.position, window.front, kept):
            after = window.showing(kept, seen=replace(window.seen, position=kept.position))
            self._windows.put(session_id, after)
            await self._tell(session_id, window, after, perf_counter() - started)
            return after
        # Another worker has cut, or the database is busy: show what there is, within the limit.
        window = await self._read(session_id)
        return window.showing(window.limits.evict(window.kept))

    def _cap(self, session_id: str, window: _Window) -> _Window:
        """The window without what has no room, until that is summarised and left behind.

        As little as possible goes, for it may take no longer than an answer.
        """
        window = window.showing(Kept(None, window.limits.fit(window.kept.all)), behind=True)
        self._windows.put(session_id, window)
        return window

    async def _move(self, session_id: str, window: _Window, position: int, front: _Front, kept: Kept | None) -> bool:
        """Move the cursor, and store what stands in front of the messages from then on."""
        partial = kept.partial.text if kept and kept.partial else ""
        state = {"summary": front.summary, "partial": partial, "summarised": front.summarised}
        seen = window.seen
        return await self._log.move_cursor(
            session_id,
            self.name,
            epoch=seen.epoch,
            old=seen.position,
            new=position,
            state=state if any(state.values()) else None,
        )

    async def _tell(
        self, session_id: str, before: _Window, after: _Window, seconds: float, *, summarised: bool = False
    ) -> None:
        old, new = before.seen.position, after.seen.position
        if new <= old or not is_heard():
            return
        send(
            HistoryCondensedEvent(
                session_id=session_id,
                messages=await self._log.counts.between(session_id, old, new),
                tokens_before=before.tokens,
                tokens_after=after.tokens,
                summarised=summarised,
                summary_tokens=self.tokenizer_fn.count(after.front.summary_text),
                position=new,
                seconds=seconds,
            )
        )

    def _has_room(self, window: _Window) -> bool:
        return window.tokens <= self._room - self.recall_token_limit

    def _render(self, window: _Window, earlier: str) -> str:
        room, counter = self._room, self.tokenizer_fn
        if not self._has_room(window):
            return ""
        text = window.text + earlier
        if counter.adds_up:
            counter.remember(text, window.tokens + counter.count(earlier))
            return text
        while text and counter.count(text) > room:
            text = truncated(text, 1, counter)
        return text

    # ---- summarising -------------------------------------------------------------------------------

    async def _summarise(self, session_id: str) -> None:
        """Sum up what has no room in the record, a batch at a time; each is stored and left behind in one step."""
        window = await self._read(session_id)
        while window.behind or window.limits.is_over(window.kept.all):
            kept = window.limits.evict(window.kept, low=True)
            if not kept.all or kept.position <= window.seen.position:
                return
            started = perf_counter()
            stored = await self._summarise_batch(session_id, window, kept)
            before, window = window, await self._read(session_id)
            if stored:
                await self._tell(session_id, before, window, perf_counter() - started, summarised=True)

    async def _summarise_batch(self, session_id: str, window: _Window, kept: Kept) -> bool:
        """Extend the summary by the oldest messages in front of those that are kept; whether it was stored."""
        # Imported here: its patterns take a while to compile, and not every program sums up.
        from llama_index_memory_ext.record.summary import ask_for_summary, batch_of

        unread = await self._log.read_unread(session_id, self.name, limit=_SUMMARISED_ROWS)
        if (unread.epoch, unread.position) != (window.seen.epoch, window.seen.position):
            return False
        leaving = [row for row in unread.rows if row.id <= kept.position]
        there_is_more = len(leaving) == _SUMMARISED_ROWS
        if there_is_more:
            # What comes behind the last rows is unknown: it may be results of a call among them.
            leaving = leaving[: max((i for i, row in enumerate(leaving) if not row.is_result), default=0)] or leaving
        system = window.front.system
        # A batch that a model refuses, or that is too long for it, is halved with each failure.
        failures = self._jobs.failures_of(session_id)
        entries, taken = await asyncio.to_thread(batch_of, leaving, self.tokenizer_fn, (self.name,), halved=failures)
        entries = [entry for entry in entries if system is None or entry.row_id != system.row_id]
        is_last = taken == len(leaving) and not there_is_more
        position = kept.position if is_last else leaving[taken - 1].id
        summary, limit = window.front.summary, self._most_of_summary
        if entries:
            summary = await ask_for_summary(
                self._model(), summary, entries, token_limit=limit, counter=self.tokenizer_fn
            )
        front = window.front._replace(summary=summary, summarised=window.front.summarised + taken)
        if await self._move(session_id, window, position, front, kept if is_last else None):
            return True
        now = await self._log.read_unread(session_id, self.name, limit=1)
        if (now.epoch, now.position) == (window.seen.epoch, window.seen.position):
            raise StoreError("The database was too busy to store a summary; it is made anew.")
        return False

    # ---- recalling ---------------------------------------------------------------------------------

    async def _earlier(self, session_id: str, window: _Window, messages: Sequence[ChatMessage]) -> str:
        """The messages from before the record that matter for the question."""
        has_left = window.seen.position or window.behind or self.start_on
        if not self.recall_token_limit or not has_left:
            return ""
        shown = [entry for entry in window.limits.shown(window.kept.entries) if entry.row_id > window.seen.position]
        return await self._recall.find(
            self._log,
            session_id,
            messages,
            seen=window.seen,
            before=shown[0].row_id if shown else window.seen.last_id + 1,
            limit=self.recall_token_limit,
            counter=self.tokenizer_fn,
            tags=(self.name,),
        )
