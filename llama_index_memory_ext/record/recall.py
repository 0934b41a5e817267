"""Finds messages of a session again for a question: for the record, and for a search."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.background.jobs import JobKey
from llama_index_memory_ext.background.locks import Recent, lock_for
from llama_index_memory_ext.log_block import sparing
from llama_index_memory_ext.record.entry import EARLIER_CLOSING, EARLIER_OPENING, NO_TEXT, earlier_element
from llama_index_memory_ext.record.message_index import BROKEN, CONTEXT_TURNS, MessageIndex, Room, shown_day
from llama_index_memory_ext.search.embeddings import model_key
from llama_index_memory_ext.store.vectors import MessageVectors
from llama_index_memory_ext.text.messages import question_in
from llama_index_memory_ext.text.tool_calls import ASSISTANT_ROLES, calls_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.background.jobs import Jobs
    from llama_index_memory_ext.record.selection import RecordSettings
    from llama_index_memory_ext.store import MemoryStore
    from llama_index_memory_ext.store.rows import LogRow, Seen
    from llama_index_memory_ext.text.messages import Entry
    from llama_index_memory_ext.text.tokens import CountedText

    # The rows of a message, or of a call with its results, and their entries.
    _Shown = tuple[list[LogRow], list[Entry]]

T = TypeVar("T")

LONGEST_MESSAGE_TOKENS = 500

# The shares of the limit that one recalled message may have, and all of them for a text that asks something, where the
# record leaves so much, and for one that does not. What is recalled is in no prompt cache.
_MESSAGE_SHARE = 0.25
_ASKED_SHARE, _TOLD_SHARE = 1.3, 0.8
# Many questions are written without a question mark.
_ASKS = re.compile(
    r"[?\uff1f\u061f]|[吗嗎谁誰]|什么|什麼|哪|怎么|怎麼|多少|几|幾|为何|か。?\s*$"
    r"|(?:^|[.!;:\n]\s*)(?:who|whose|what|when|where|which|why|how|(?:tell|remind) me|do you remember)\b",
    re.IGNORECASE,
)
_INDEXED_ROWS = 500
# How long a question waits for messages to be indexed; indexing takes longer than this only after a restart.
_INDEX_SECONDS = 1.0
_RETRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message, or a call with its results, by its ``similarity`` to a question, 1 for the best one.

    ``day`` is 2026-11-20, or "" where it is unknown. In ``text`` our own tags are escaped.
    """

    similarity: float
    row_ids: tuple[int, ...]
    role: str
    day: str
    text: str = field(repr=False)


@dataclass(frozen=True)
class MessageSearch:
    """Finds messages of sessions; ``indexes`` are of the last sessions, ``found`` is what was recalled last.

    With an ``embed_model``, messages are embedded in the background, and no question waits for that.
    """

    store: MemoryStore
    settings: RecordSettings
    embed_model: BaseEmbedding | None = field(default=None, repr=False, compare=False)
    indexes: Recent[str, MessageIndex] = field(default_factory=lambda: Recent(32))
    found: Recent[tuple[object, ...], CountedText] = field(default_factory=Recent)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def jobs(self) -> Jobs:
        """The jobs that index sessions."""
        return self.store.jobs.jobs("recall index", "Earlier messages were not indexed")

    @property
    def embedding_jobs(self) -> Jobs:
        """The jobs that embed the messages of sessions."""
        return self.store.jobs.jobs("recall embeddings", "Earlier messages were not embedded")

    def embed(self, session_id: str) -> None:
        """Index and embed in the background what the log has gained."""
        if self.embed_model is not None:
            key = JobKey(session_id, self.settings.name)
            self.embedding_jobs.start(key, partial(self._embed_log, session_id), _RETRY_SECONDS)

    async def recall(
        self, session_id: str, messages: Sequence[ChatMessage], *, seen: Seen, before: int, free: int
    ) -> CountedText:
        """Returns the messages from before the row ``before`` that matter for the current question, "" for none.

        They have at most ``free`` tokens, and beyond the limit for them only those that are similar enough.
        After a restart a long log is indexed in the background up to what was ``seen``, and a question is answered by
        what has been indexed by then.
        """
        counter, limit = self.settings.counter, self.settings.recall_limit
        tags = counter.count(EARLIER_OPENING + EARLIER_CLOSING)
        index = await self._indexed(session_id, seen) if limit > tags else None
        if index is None:
            return NO_TEXT
        question, context = question_in(messages, index.turns, CONTEXT_TURNS)
        room = room_for(question, limit, free, tags)
        prepared = await self._prepare(session_id, index, [question, *context])
        key = (session_id, index.epoch, index.newest, prepared, before, room, question, *context)
        known = self.found.get(key)
        if known is not None:
            return known
        # The search in a long log takes longer than an event loop should be blocked.
        found = await self._spared(index, partial(index.search, question, context, room, before=before)) or []
        shown = await self._shown(session_id, index, question, sorted(found), room.message_limit)
        if shown is None:
            # Rows were deleted meanwhile, and the record was read before.
            return NO_TEXT
        parts = in_order([(unit, entries) for unit, entries in shown if entries])
        element = earlier_element([(shown_day(unit[0]), entries) for unit, entries in parts], counter)
        self.found.put(key, element)
        return element

    async def search(self, session_id: str, question: str, *, most: int, message_limit: int) -> list[FoundMessage]:
        """Returns the messages most similar to a question, best first, of the log and of answered active turns.

        It waits until all of them are indexed. ``message_limit`` tokens of a message are shown, at most 500.
        """
        index = await self._index_log(session_id)
        page = await self.store.readers.unread(session_id, "", with_active=True, after=index.newest)
        again = partial(self.search, session_id, question, most=most, message_limit=message_limit)
        if page.epoch != index.epoch:
            # Rows were deleted meanwhile.
            return [] if index.epoch == BROKEN else await again()
        await self._spared(index, partial(index.take, without_open_turn(page.rows)))
        await self._prepare(session_id, index, [question])
        ranked = (await self._spared(index, partial(index.ranked, question)) or [])[:most]
        limit = min(message_limit, LONGEST_MESSAGE_TOKENS)
        found = [place.row_ids for place, _ in ranked]
        shown = await self._shown(session_id, index, question, found, limit, brief=False)
        if shown is None:
            return [] if index.epoch == BROKEN else await again()
        return [
            FoundMessage(
                similarity, place.row_ids, unit[0].role, shown_day(unit[0]), "\n".join(one.body for one in entries)
            )
            for (place, similarity), (unit, entries) in zip(ranked, shown, strict=True)
            if entries
        ]

    async def _shown(
        self,
        session_id: str,
        index: MessageIndex,
        question: str,
        found: Sequence[tuple[int, ...]],
        limit: int,
        *,
        brief: bool = True,
    ) -> list[_Shown] | None:
        """Returns the rows and the entries of each message; None if rows were deleted since they were indexed."""
        stored = await self.store.readers.rows_in(session_id, list(chain.from_iterable(found)), index.epoch)
        if stored is None:
            return None
        rows = {row.id: row for row in stored}
        units = [[rows[row_id] for row_id in row_ids if row_id in rows] for row_ids in found]
        shown = partial(index.entries, question=question, limit=limit, brief=brief)
        return await self._spared(index, lambda: [(unit, shown(unit)) for unit in units])

    async def _spared(self, index: MessageIndex, work: Callable[[], T]) -> T | None:
        """Returns what comes of work on an index, in a thread; None if it fails."""
        with sparing(self.failures, "Earlier messages were not found", index.drop):
            return await asyncio.to_thread(work)
        return None

    async def _indexed(self, session_id: str, seen: Seen) -> MessageIndex | None:
        """Returns the index with all that was seen, or with less if that takes too long; None: there is none yet."""
        index = self.indexes.get(session_id)
        if index is None or index.epoch != seen.epoch or index.newest < seen.last_id:
            key = JobKey(session_id, self.settings.name)
            self.jobs.start(key, partial(self._index_log, session_id), _RETRY_SECONDS)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.jobs.wait(key), _INDEX_SECONDS)
            index = self.indexes.get(session_id)
        # What was indexed before rows were deleted may name other rows by now.
        return index if index is not None and index.epoch == seen.epoch else None

    async def _index_log(self, session_id: str) -> MessageIndex:
        """Index what the log has gained, a page at a time, or all of it if rows were deleted; returns the index."""
        # One task at a time, or each would index what the others do.
        async with lock_for("index", id(self.indexes), session_id):
            index = self.indexes.get(session_id)
            while True:
                after = index.newest if index else 0
                page = await self.store.readers.unread(session_id, "", after=after, limit=_INDEXED_ROWS)
                if index is None or index.epoch != page.epoch:
                    index = self._new_index(session_id, page.epoch)
                    self.indexes.put(session_id, index)
                    if after:
                        continue
                if page.rows:
                    await self._spared(index, partial(index.take, page.rows))
                    if index.embeddings is not None:
                        await index.embeddings.load()
                if len(page.rows) < _INDEXED_ROWS or index.epoch == BROKEN:
                    return index

    def _new_index(self, session_id: str, epoch: int) -> MessageIndex:
        index = MessageIndex(epoch, self.settings.counter, (self.settings.name,), self.settings.languages)
        if self.embed_model is not None:
            keeper = MessageVectors.of(self.store.readers, session_id, epoch, model_key(self.embed_model))
            self.store.jobs.watch(index.embed_with(self.embed_model, keeper))
        return index

    async def _prepare(self, session_id: str, index: MessageIndex, queries: Sequence[str]) -> bool:
        """Embed a question, and start to embed what is not embedded yet; False if there is something of either left."""
        if index.embeddings is None:
            return True
        prepared = await index.embeddings.prepare_queries(queries)
        if not index.embeddings.is_complete:
            self.embed(session_id)
        return prepared and index.embeddings.is_complete

    async def _embed_log(self, session_id: str) -> None:
        index = await self._index_log(session_id)
        if index.embeddings is not None:
            await index.embeddings.embed_documents()


def in_order(shown: Sequence[_Shown]) -> list[_Shown]:
    """Returns messages, which are in the order of their rows, in the order in which they were said, by days.

    Where all messages of a day tell their time they go by that: of two that were put at once, the later may have been
    written first.
    """
    days: dict[str, list[_Shown]] = {}
    for one in shown:
        days.setdefault(shown_day(one[0][0]), []).append(one)
    return [one for _, said in sorted(days.items()) for one in _by_time(said)]


def _by_time(said: list[_Shown]) -> list[_Shown]:
    times = [unit[0].told_at for unit, _ in said]
    known = [time for time in times if time is not None]
    if len(known) < len(said):
        return said
    return [said[i] for i in sorted(range(len(said)), key=known.__getitem__)]


def room_for(text: str, limit: int, free: int, tags: int) -> Room:
    """Returns the room for what a text recalls, of at most ``free`` tokens, ``tags`` of which are not for messages.

    >>> room_for("Where was I?", 1_000, 1_300, 0), room_for("I was out.", 1_000, 1_300, 0)
    (Room(limit=1000, most=1300, message_limit=250), Room(limit=800, most=800, message_limit=250))
    """
    usual = limit if _ASKS.search(text) else int(limit * _TOLD_SHARE)
    most = min(int(limit * _ASKED_SHARE), max(free, limit)) if usual == limit else usual
    return Room(usual - tags, most - tags, int((limit - tags) * _MESSAGE_SHARE))


def without_open_turn(rows: Sequence[LogRow]) -> list[LogRow]:
    """Returns the rows before the last question, unless it was answered; a question must not find itself."""
    if not rows or (rows[-1].role in ASSISTANT_ROLES and not calls_of(rows[-1].message)):
        return list(rows)
    questions = [i for i, row in enumerate(rows) if row.role == MessageRole.USER.value]
    return list(rows[: questions[-1]]) if questions else []
