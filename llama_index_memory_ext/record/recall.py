"""Follows the logs of sessions with an index each, and shows what is found in them for a question."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.background.jobs import Jobs
from llama_index_memory_ext.log_block import Remembered
from llama_index_memory_ext.record.entry import EARLIER_CLOSING, EARLIER_OPENING, earlier_element
from llama_index_memory_ext.record.message_index import RecallIndex
from llama_index_memory_ext.text.messages import question_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Sequence

    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.store import MemoryStore, Seen
    from llama_index_memory_ext.text.tokens import TokenCounter

_INDEXED_ROWS = 500
# How long a question waits for messages to be indexed, which takes longer than this only after a restart.
_INDEX_SECONDS = 1.0
_RETRY_SECONDS = 2.0
# The share of the limit that one message may have.
_MESSAGE_SHARE = 0.25
_CONTEXT_TURNS = 3


@dataclass
class LogRecall:
    """The indexes of the sessions that were asked for last; a copy begins without any."""

    indexes: Remembered[str, RecallIndex] = field(default_factory=lambda: Remembered(32))
    shown: Remembered[Any, str] = field(default_factory=Remembered)
    jobs: Jobs = field(default_factory=lambda: Jobs("Earlier messages were not indexed", "recall index"))

    async def find(
        self,
        log: MemoryStore,
        session_id: str,
        messages: Sequence[ChatMessage],
        *,
        seen: Seen,
        before: int,
        limit: int,
        counter: TokenCounter,
        tags: tuple[str, ...],
    ) -> str:
        """The messages in front of the row ``before`` that matter for a question, within ``limit`` tokens.

        They stand in the order in which they were said, each with its date; "" if nothing is found. After a restart a
        long log is indexed from its beginning on, beside the questions that come meanwhile.

        Args:
            log: Where the session's log is.
            session_id: The session.
            messages: The turn that is going on; its last message of a user is the question.
            seen: How far the caller has read the log, which is how far it must be indexed.
            before: The first row that is shown anyway.
            limit: Most tokens of all that comes back, tags included.
            counter: Counts them.
            tags: Element names, besides our own, that no text must be able to forge.
        """
        room = limit - counter.count(EARLIER_OPENING + EARLIER_CLOSING)
        if room <= 0:
            return ""
        make = partial(RecallIndex, counter=counter, unit_limit=int(room * _MESSAGE_SHARE), tags=tags)
        index = await self._index(log, session_id, seen, make)
        if index is None:
            return ""
        question, context = question_in(messages, index.turns, _CONTEXT_TURNS)
        key = (session_id, index.epoch, index.newest, before, question, tuple(context))
        text = self.shown.get(key)
        if text is None:
            # A long log takes longer than an event loop should stand still.
            found = await asyncio.to_thread(index.search, question, context, before=before, limit=room)
            rows = await log.read_rows(session_id, [row_id for ids in found for row_id in ids])
            by_id = {row.id: row for row in rows}
            units = [[by_id[row_id] for row_id in ids if row_id in by_id] for ids in sorted(found)]
            # So do the words of a long message.
            entries = await asyncio.to_thread(lambda: [one for unit in units for one in index.entries(unit, question)])
            text = earlier_element(entries)
            self.shown.put(key, text)
        return text

    async def stop(self, session_ids: Collection[str] | None = None) -> None:
        """End what is under way, of some sessions or of all."""
        await self.jobs.stop(session_ids)

    async def _index(
        self, log: MemoryStore, session_id: str, seen: Seen, make: Callable[[int], RecallIndex]
    ) -> RecallIndex | None:
        """What has been indexed of the session: all of it, unless that takes too long."""
        index = self.indexes.get(session_id)
        if index is None or (index.epoch, index.newest) != (seen.epoch, seen.last_id):
            log.board.watch(self.jobs)
            self.jobs.start(session_id, partial(self._follow, log, make), _RETRY_SECONDS)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.jobs.wait(session_id), _INDEX_SECONDS)
            index = self.indexes.get(session_id)
        # What was indexed before rows were deleted may name other rows by now.
        return index if index is not None and index.epoch == seen.epoch else None

    async def _follow(self, log: MemoryStore, make: Callable[[int], RecallIndex], session_id: str) -> None:
        """Index what the log has gained, from its beginning on if rows were deleted."""
        async for index in follow_log(log, session_id, self.indexes.get(session_id), make):
            self.indexes.put(session_id, index)


async def follow_log(
    log: MemoryStore, session_id: str, index: RecallIndex | None, make: Callable[[int], RecallIndex]
) -> AsyncIterator[RecallIndex]:
    """The index of a session, each time that it has gained a page of the log; a new one if rows were deleted."""
    while True:
        after = index.newest if index else 0
        page = await log.read_unread(session_id, "", after=after, limit=_INDEXED_ROWS)
        if index is None or index.epoch != page.epoch:
            index = make(page.epoch)
            yield index
            if after:
                continue
        if not page.rows:
            return
        # Many rows take their time.
        await asyncio.to_thread(index.take, page.rows)
        yield index
