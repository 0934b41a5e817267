"""Finds what was said in a session when somebody asks for it, up to the turn that is going on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.background.locks import lock_for
from llama_index_memory_ext.log_block import Remembered
from llama_index_memory_ext.record.message_index import RecallIndex, shown_day
from llama_index_memory_ext.record.recall import follow_log
from llama_index_memory_ext.text.messages import ASSISTANT_ROLES, calls_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.store import LogRow, MemoryStore
    from llama_index_memory_ext.text.tokens import TokenCounter

LONGEST_MESSAGE_TOKENS = 500


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message, or a call with its results, that is near to a question.

    ``similarity`` is 0..1, of the best message of this question 1. ``day`` is 2026-11-20, or "" where it is not known.
    In ``text`` our own tags are escaped.
    """

    similarity: float
    row_ids: tuple[int, ...]
    role: str
    day: str
    text: str = field(repr=False)


@dataclass
class LogSearch:
    """The indexes of the sessions that were searched last; a copy begins without any."""

    indexes: Remembered[str, RecallIndex] = field(default_factory=lambda: Remembered(32))

    async def find(
        self,
        log: MemoryStore,
        session_id: str,
        question: str,
        *,
        most: int,
        message_token_limit: int,
        counter: TokenCounter,
        tags: tuple[str, ...],
    ) -> list[FoundMessage]:
        """The messages that are nearest to a question, best first; [] if none has a word in common with it.

        It waits until all of the log is indexed, which only the first search of a session takes time for.

        Args:
            log: Where the session's log is.
            session_id: The session.
            question: Any words; what was said before it is not looked at.
            most: How many messages at the most.
            message_token_limit: Most tokens of one, at most 500; of a longer one the part with the words of the
                question is shown.
            counter: Counts them.
            tags: Element names, besides our own, that no text must be able to forge.
        """
        index = await self._followed(log, session_id, counter, tags)
        # A long log takes longer than an event loop should stand still.
        nearest = await asyncio.to_thread(index.nearest, question, most)
        row_ids = [row_id for ids, _ in nearest for row_id in ids]
        by_id = {row.id: row for row in await log.read_rows(session_id, row_ids, with_active=True)}
        found = []
        for ids, similarity in nearest:
            rows = [by_id[row_id] for row_id in ids if row_id in by_id]
            # The words of a megabyte take a second to count.
            entries = await asyncio.to_thread(index.entries, rows, question, message_token_limit)
            text = "\n".join(entry.body for entry in entries)
            if text:
                found.append(FoundMessage(similarity, ids, rows[0].role, shown_day(rows[0]), text))
        return found

    async def _followed(
        self, log: MemoryStore, session_id: str, counter: TokenCounter, tags: tuple[str, ...]
    ) -> RecallIndex:
        """The index of a session with all that was said up to now."""
        # One at a time, or each would index what the others do.
        async with lock_for("search", id(self), session_id):
            index = self.indexes.get(session_id)
            make = partial(RecallIndex, counter=counter, unit_limit=LONGEST_MESSAGE_TOKENS, tags=tags, with_newest=True)
            while True:
                # First what has left short-term memory, a page at a time, and then the rest.
                async for followed in follow_log(log, session_id, index, make):
                    index = followed
                after = index.newest if index else 0
                page = await log.read_unread(session_id, "", with_active=True, after=after)
                if index is not None and page.epoch == index.epoch:
                    break
            rows = without_open_turn(page.rows)
            if rows:
                # Many rows take their time.
                await asyncio.to_thread(index.take, rows)
            self.indexes.put(session_id, index)
            return index


def without_open_turn(rows: Sequence[LogRow]) -> list[LogRow]:
    """The rows in front of the last question, unless it was answered; a question must not find itself."""
    if not rows or _is_answer(rows[-1]):
        return list(rows)
    questions = [i for i, row in enumerate(rows) if row.role == MessageRole.USER.value]
    return list(rows[: questions[-1]]) if questions else []


def _is_answer(row: LogRow) -> bool:
    message = row.message
    return message.role in ASSISTANT_ROLES and not calls_of(message)
