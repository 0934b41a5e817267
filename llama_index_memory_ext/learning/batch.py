"""Reads the unread turns of a session that one request holds, with their speakers and times."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.learning.budget import RequestBudget
from llama_index_memory_ext.learning.progress import Progress, progress_of
from llama_index_memory_ext.learning.prompt import sent_part
from llama_index_memory_ext.store.rows import (
    LogPage,
    LogRow,
    SessionAccess,
    times_of,
)
from llama_index_memory_ext.store.tables import namespace_of_session
from llama_index_memory_ext.text.turns import (
    OTHER_ROLE,
    Utterance,
    spoken,
    with_code_results,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import date, datetime

    from llama_index_memory_ext.blocks import LogBlock
    from llama_index_memory_ext.fact import SetAside
    from llama_index_memory_ext.facts.user_facts import UserFacts


_BATCH_ROWS = 200
# Limits of the messages right before a batch, from which its facts may take names and
# questions.
_CONTEXT_ROWS = 10
_CONTEXT_CHARACTERS = 1_000
# Characters of a tool's result that are compared with a fact of an agent.
_RESULT_CHARACTERS = 20_000


class Due(NamedTuple):
    """The limits of unread messages. The messages are due once they reach one of them.

    ``turns``: the number of unread turns.
    ``tokens``: the tokens of unread messages.
    ``last_left``: the last row that has left the record; an unread message of the log is
    due once it has left.
    ``answered``: whether a current turn without an answer stays unread.
    """

    turns: int = 0
    tokens: int = sys.maxsize
    last_left: int = 0
    answered: bool = False

    def is_reached(self, first: LogRow, turns: int, tokens: int) -> bool:
        """Return whether unread messages are due, by their first row, their turns and their tokens."""
        has_left = first.id <= self.last_left and not first.is_active
        return has_left or turns >= self.turns or tokens >= self.tokens


# 0 turns: any unread message is due.
ALL_UNREAD = Due()


class Batch(NamedTuple):
    """The turns that one request reads.

    ``unread``: their rows, with the reader's cursor.
    ``lines``: the texts of the rows, without empty ones.
    ``turns``: how many turns they are.
    ``asked_at``: the time of the last question.
    ``ended_at``: the time of the last message.
    ``before``: the lines right before the batch.
    ``budget``: the limits of the request.
    """

    unread: LogPage
    lines: Sequence[Utterance]
    turns: int
    asked_at: datetime
    ended_at: datetime
    before: Sequence[Utterance]
    budget: RequestBudget

    @property
    def rows(self) -> Sequence[LogRow]:
        """The rows of the batch."""
        return self.unread.rows

    @property
    def progress(self) -> Progress:
        """The progress that is stored with the cursor."""
        return progress_of(self.unread.state)


class RecentLines(NamedTuple):
    """The last lines of a session, and the results of its tools, oldest first."""

    lines: list[Utterance]
    results: list[Utterance]


@dataclass(frozen=True)
class BatchReader:
    """Reads the log of one session for the facts of one user.

    ``reader``: the name of the cursor.
    ``block``: its tokenizer and time zone are used.
    ``is_own``: the user of the facts is the user of the memory, and so a person. Another
    ``user_id`` may stand for a team.
    """

    user_facts: UserFacts
    session_id: str
    reader: str
    block: LogBlock
    is_own: bool

    async def unread_rows(self) -> LogPage:
        """Register the session as the user's if it is not, and return the unread rows.

        LlamaIndex's plain Memory registers no user of the sessions that it writes.
        """
        store = self.user_facts.store
        user: str | None = self.user_facts.namespace
        if user == namespace_of_session(self.session_id):
            user = None
        while True:
            unread = await store.readers.unread(
                self.session_id, self.reader, with_active=True, limit=_BATCH_ROWS
            )
            if unread.registered or not unread.rows:
                return unread
            await store.log.claim(
                self.session_id,
                SessionAccess(user),
                readers=[self.reader],
                epoch=unread.epoch,
            )

    async def read(
        self, unread: LogPage, budget: RequestBudget, due: Due
    ) -> Batch | None:
        """Return the oldest unread rows that fit one request; None if they are not due."""
        rows = unread.rows
        lines = await self._lines_of(rows, budget)
        end = _readable_end(rows, lines, answered=due.answered)
        lines = lines[:end]
        starts = [line.is_users for line in lines]
        counts = map(self.block.tokenizer_fn.count, map(sent_part, lines))
        tokens = await asyncio.to_thread(list, counts)
        # A full page is read in any case: the rows behind it are not counted here.
        is_full = len(rows) == _BATCH_ROWS
        if not is_full and not any(starts):
            self.user_facts.store.jobs.unread.discard(self.session_id)
        is_due = end and due.is_reached(rows[0], sum(starts), sum(tokens))
        if not (is_full or is_due):
            return None
        end = batch_end(
            starts,
            tokens,
            [at and at.date() for at in times_of(rows[:end], self.block.zone)],
            token_limit=budget.batch,
            most_turns=progress_of(unread.state).most_turns,
        )
        unread = replace(unread, rows=rows[:end])
        return await self._batch(unread, lines[:end], budget)

    async def read_turn(self, turn: SetAside, budget: RequestBudget) -> Batch | None:
        """Return a turn that was set aside; None if it was deleted or read again since."""
        page = await self.user_facts.store.readers.unread(
            self.session_id,
            self.reader,
            with_active=True,
            after=turn.first - 1,
            limit=_BATCH_ROWS,
        )
        rows = [row for row in page.rows if row.id <= turn.last]
        if not rows or turn not in progress_of(page.state).set_aside:
            return None
        lines = await self._lines_of(rows, budget)
        return await self._batch(replace(page, rows=rows), lines, budget)

    async def recent(self) -> RecentLines:
        """Return the last lines of the session and its tools' results, the current turn included."""
        readers = self.user_facts.store.readers
        page = await readers.page(self.session_id, "", limit=_BATCH_ROWS)
        after = page.rows[-1].id if page.rows else 0
        unread = await readers.unread(
            self.session_id, "", with_active=True, after=after
        )
        rows = [*page.rows, *unread.rows][-_BATCH_ROWS:]
        results = [
            Utterance(
                row.id, row.role, (row.message.content or "")[:_RESULT_CHARACTERS]
            )
            for row in rows
            if row.is_result
        ]
        lines = await self._lines_of(rows)
        return RecentLines([line for line in lines if line.text], results)

    async def _speakers(self) -> Collection[str | None] | None:
        """Return the speakers whose messages count as the user's; None: all speakers.

        All speakers count for a user who does not own the session, such as a team. A
        message without a speaker counts as the user's if the session has no other owner.
        """
        user = self.user_facts.namespace
        owners = await self.user_facts.store.log.users_of_session(self.session_id)
        if not self.is_own and user not in owners:
            return None
        # As long as a session has one user, no row says whose it is.
        if set(owners) <= {user}:
            return {user, None}
        return {user}

    async def _lines_of(
        self,
        rows: Sequence[LogRow],
        budget: RequestBudget = RequestBudget(),  # noqa: B008 - it is immutable
    ) -> list[Utterance]:
        """Return the text and the speaker of each row.

        A text is clipped to half a batch. A question of another user gets another role.
        """
        speakers = await self._speakers()
        limit = budget.batch // 2

        def read_lines() -> list[Utterance]:
            lines = []
            speaker = ""
            messages = with_code_results(row.message for row in rows)
            for row, message in zip(rows, messages, strict=True):
                role = message.role.value
                if message.role == MessageRole.USER:
                    speaker = row.user_id or ""
                    if speakers is not None and row.user_id not in speakers:
                        role = OTHER_ROLE
                text = spoken(message)
                # No token is shorter than a byte.
                if len(text.encode()) > limit:
                    text = self.block.tokenizer_fn.clip(text, limit)
                lines.append(Utterance(row.id, role, text, speaker))
            return lines

        # Counting some megabytes takes a second, which must not block the event loop.
        return await asyncio.to_thread(read_lines)

    async def _batch(
        self,
        unread: LogPage,
        lines: Sequence[Utterance],
        budget: RequestBudget,
    ) -> Batch:
        """Return a batch of rows and their lines, with the lines right before it.

        A short answer may need the question before it.
        """
        rows = unread.rows
        now = self.block.now()
        page = await self.user_facts.store.readers.page(
            self.session_id, "", before=rows[0].id, limit=_CONTEXT_ROWS
        )
        context = await self._lines_of(page.rows)
        before = [
            line._replace(text=line.text[-_CONTEXT_CHARACTERS:])
            for line in context
            if line.text
        ]
        # No time is after now: a clock may have been ahead.
        times = [min(at or now, now) for at in times_of(rows, self.block.zone)]
        pairs = zip(times, lines, strict=True)
        question_times = [said_at for said_at, line in pairs if line.is_users]
        return Batch(
            unread,
            [line for line in lines if line.text],
            # Rows before the first question belong to its turn: no batch parts them.
            max(len(question_times), 1),
            question_times[-1] if question_times else now,
            times[-1],
            before,
            budget,
        )


def _readable_end(
    rows: Sequence[LogRow], lines: Sequence[Utterance], *, answered: bool
) -> int:
    """Return the number of rows that can be read now, counted from the oldest.

    With ``answered``, a last turn that is still open is left out. A turn has ended when
    the assistant has said something that is no tool call, or when its question has left
    short-term memory. Only the last turn can be open. A full
    page is read in any case: a turn of very many tool calls would block the session for
    ever.
    """
    for start in reversed(range(len(rows))):
        if lines[start].is_users:
            is_full = not start and len(rows) >= _BATCH_ROWS
            if answered and rows[start].is_active and not is_full:
                return start
            break
        if lines[start].text:
            break
    return len(rows)


def batch_end(
    starts_turn: Sequence[bool],
    tokens: Sequence[int],
    days: Sequence[date | None],
    *,
    token_limit: int,
    most_turns: int | None,
) -> int:
    """Return the number of messages, oldest first, that go into one request; 0 without messages.

    A batch has whole turns, at least one. It ends after ``most_turns``, before the first
    turn of another day, and before the turn that exceeds ``token_limit``. Relative dates
    ("tomorrow") of a batch count from one day.
    """
    starts = [i for i, is_start in enumerate(starts_turn) if is_start]
    turns = pairwise([*starts, len(starts_turn)])
    for number, (start, end) in enumerate(turns):
        is_over = number == most_turns or days[start] != days[starts[0]]
        if number and (is_over or sum(tokens[:end]) > token_limit):
            return start
    return len(starts_turn)
