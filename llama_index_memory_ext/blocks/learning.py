"""When facts are learned: after which turns, for which questions, and after which quiet time."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from llama_index_memory_ext.background.jobs import JobKey, wait_for_owner
from llama_index_memory_ext.store.tables import LAST_ID, namespace_of_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.background.recent import Recent
    from llama_index_memory_ext.blocks import LogBlock
    from llama_index_memory_ext.learning.extractor import Extractor
    from llama_index_memory_ext.store import MemoryStore
    from llama_index_memory_ext.store.rows import LogRow


logger = logging.getLogger(__name__)

# Unread messages are read at the first of these limits, chosen for the price of a turn:
# see docs/cost.md.
UNREAD_TURNS = 10
UNREAD_TOKENS = 1_500
QUIET_SECONDS = 300.0


@dataclass
class SessionState:
    """The last question of a session and the messages that its facts wait for, as this block has seen them.

    ``question``: the hash of the last question for which other sessions were read; 0
    after its answer; None before the first one.
    ``last_left``: the last row that had left the record at the last prompt.
    ``is_unread_elsewhere``: other sessions of the user had unread messages.
    """

    question: int | None = None
    last_left: int | None = None
    is_unread_elsewhere: bool = False


@dataclass(frozen=True)
class LearningSchedule:
    """Starts the extraction of facts in the background, and waits for it.

    ``block``: its jobs, keys and model are used.
    ``see``: remembers a session, so that closing waits for its extraction.
    ``make_extractor``: makes the extractor of a session. ``at_once``: a turn that fails is
    tried again without a pause.
    ``is_on``: whether facts are extracted.
    ``every_turns``: finished turns that wait for one extraction; None: facts are
    extracted when they are needed.
    ``wait_seconds``: most seconds that a question or a reader of facts waits.
    ``has_record``: whether prompts show messages of the log.
    """

    block: LogBlock
    store: MemoryStore
    sessions: Recent[str, SessionState]
    see: Callable[[str], object]
    make_extractor: Callable[..., Extractor]
    is_on: bool
    every_turns: int | None
    wait_seconds: float
    has_record: bool

    @property
    def can_extract(self) -> bool:
        """Whether there is a model to extract facts."""
        return self.is_on and self.block.known_llm() is not None

    @property
    def is_when_needed(self) -> bool:
        """Whether facts are extracted when they are needed."""
        return self.can_extract and self.every_turns is None

    async def open(self, session_id: str, question: str | None) -> None:
        """Extract facts from unread messages of the user's other sessions.

        This is done when the session begins. When facts are extracted as needed, it is
        also done once for each question.
        """
        if not self._extracts():
            return
        if question is not None:
            self.store.jobs.asked.add(session_id)
        state = self._state_of(session_id)
        last = state.question
        is_new = question is not None and hash(question) != last
        if last is not None and not (is_new and self.every_turns is None):
            return
        for name in await self._unread_sessions(session_id):
            if name != session_id:
                state.is_unread_elsewhere = True
                self.start(name, needed=True)
        state.question = hash(question or 0)

    async def wait_for_others(self, session_id: str) -> list[LogRow]:
        """Wait for extractions from the user's other sessions; return the user's messages there that are still unread.

        The oldest comes first. The session's own messages are in its record, or still in
        short-term memory.
        """
        key = self.block.job_key(session_id)
        await wait_for_owner(key.owner, self.wait_seconds, except_session=session_id)
        state = self._state_of(session_id)
        if not state.is_unread_elsewhere:
            return []
        rows = await self.store.readers.unread_elsewhere(
            session_id, key.reader, key.owner[-1]
        )
        state.is_unread_elsewhere = bool(rows)
        return rows

    async def learn(self, session_id: str) -> None:
        """Extract facts from all finished turns of the user before facts are read, and wait for them."""
        if self.is_when_needed:
            for name in await self._unread_sessions(session_id):
                self.start(name, needed=True)
            owner = self.block.job_key(session_id).owner
            await wait_for_owner(owner, self.wait_seconds)

    async def count_unread(self, session_id: str) -> int:
        """Return the number of messages in all sessions of the user from which no facts were learned yet."""
        reader = self.block.job_key(session_id).reader
        count = 0
        for name in await self._unread_sessions(session_id):
            count += await self.store.readers.count_messages(name, reader=reader)
        return count

    def start_if_left(self, session_id: str) -> None:
        """Extract facts from unread messages that have left the record since the last prompt."""
        row_id = self.store.jobs.last_left.get(session_id)
        state = self._state_of(session_id)
        if row_id and self.is_when_needed and row_id != state.last_left:
            state.last_left = row_id
            self.start(session_id)

    def start(self, session_id: str, *, needed: bool = False) -> None:
        """Extract facts of a session: of turns that are due, or of all if they are ``needed``."""
        key = self.block.job_key(session_id)
        if needed:
            self.see(session_id)
            self.store.jobs.needed.add(key)
        work = partial(self._extract, key)
        self.block.jobs.start(key, work, self.block.retry_seconds)

    async def notice(
        self, session_id: str, answer: ChatMessage | None, *, asks: bool
    ) -> None:
        """Extract facts if unread turns are due, or else after 300 quiet seconds.

        The ``answer`` has just ended a turn. ``asks``: a question stands behind it.
        """
        if not self._extracts():
            return
        jobs = self.store.jobs
        if answer is not None:
            self._state_of(session_id).question = 0
            if not asks:
                jobs.asked.discard(session_id)
            if not self.store.database.in_memory:
                jobs.unread.add(session_id)
        self.start(session_id)
        if self.every_turns is None:
            read_all = partial(self.start, session_id, needed=True)
            key = self.block.job_key(session_id)
            self.block.jobs.start_later(key, read_all, QUIET_SECONDS)

    async def flush(self, session_id: str) -> None:
        """Extract facts from all unread messages of a session now, the current turn included."""
        if self._extracts():
            extractor = self.make_extractor(session_id, at_once=True)
            key = self.block.job_key(session_id)
            await self.block.jobs.finish(key, extractor.extract)
            # A failure was logged.
            self.store.jobs.unread.discard(session_id)
            self.store.jobs.asked.discard(session_id)

    def _state_of(self, session_id: str) -> SessionState:
        state = self.sessions.get(session_id)
        if state is None:
            state = SessionState()
            self.sessions.put(session_id, state)
        return state

    async def _unread_sessions(self, session_id: str) -> list[str]:
        """Return the sessions of the user with unread messages."""
        key = self.block.job_key(session_id)
        names = await self.store.readers.sessions_of_reader(key.reader, pending=True)
        if key.owner[-1] == namespace_of_session(session_id):
            # A copy of the session has the same reader, but other facts.
            names = [name for name in names if name == session_id]
        return names

    async def _extract(self, key: JobKey) -> None:
        # Imported at the first extraction: it loads all code that reads replies and checks facts.
        from llama_index_memory_ext.learning.batch import Due

        session_id = key.session_id
        needed = self.store.jobs.needed
        is_needed = key in needed
        needed.discard(key)
        due = Due(self.every_turns or UNREAD_TURNS, answered=True)
        if is_needed:
            due = Due(answered=session_id in self.store.jobs.asked)
        elif self.every_turns is None:
            last_row = self.store.jobs.last_left.get(session_id)
            if last_row is None:
                last_row = 0 if self.has_record else LAST_ID
            due = due._replace(tokens=UNREAD_TOKENS, last_left=last_row)
        try:
            await self.make_extractor(session_id).extract(due)
        except BaseException:
            if is_needed:
                needed.add(key)
            raise

    def _extracts(self) -> bool:
        """Return whether facts are extracted now. The model, or its absence, is logged once in a process."""
        if not self.is_on:
            return False
        llm = self.block.known_llm()
        name = ""
        if llm is not None:
            name = f"{type(llm).__name__} {getattr(llm, 'model', '')}".strip()
        _log_model(name)
        return llm is not None


@cache
def _log_model(name: str) -> None:
    if name:
        logger.info("Facts are extracted by %s.", name)
        return
    logger.warning(
        "No facts are extracted, because there is no model: pass llm=... or set Settings.llm. Messages from before "
        "that are read, too. If no facts are wanted, pass extract_facts=False."
    )
