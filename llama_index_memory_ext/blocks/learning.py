"""When facts are learned: after which turns, for which questions, and after which quiet time."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any

from llama_index.core.bridge.pydantic import BeforeValidator, Field, PrivateAttr
from pydantic import model_validator
from typing_extensions import Self

from llama_index_memory_ext.agent_view import AgentView, Scope, view_of
from llama_index_memory_ext.background.recent import Recent
from llama_index_memory_ext.background.waiting import JobKey, wait_for_owner
from llama_index_memory_ext.blocks import LogBlock
from llama_index_memory_ext.events import ExtractionFailedEvent
from llama_index_memory_ext.fact import CATEGORIES, DEFAULT_MIN_CONFIDENCE
from llama_index_memory_ext.learning.categories import check_categories
from llama_index_memory_ext.settings import Switch, check_id
from llama_index_memory_ext.store.tables import LAST_ID, namespace_of_session

if TYPE_CHECKING:
    from llama_index_memory_ext.background.jobs import Jobs
    from llama_index_memory_ext.learning.extractor import Extractor
    from llama_index_memory_ext.store.rows import LogRow


logger = logging.getLogger(__name__)

# Unread messages are read at the first of these limits, chosen for the price of a turn:
# see docs/cost.md.
UNREAD_TURNS = 10
UNREAD_TOKENS = 1_500
QUIET_SECONDS = 300.0


@dataclass
class SessionState:
    """The events of a session for which this block has started jobs, so that no event starts a job twice.

    ``question``: the hash of the last question that started a look into other sessions.
    None: no look yet. 0: the question was answered, so the same text is a new question.
    ``last_left``: the last row that had left the record at the last prompt.
    ``is_unread_elsewhere``: whether other sessions of the user had unread messages.
    """

    question: int | None = None
    last_left: int | None = None
    is_unread_elsewhere: bool = False


class LearningBlock(LogBlock):
    """A block that learns facts about a user from the log of its store, in the background."""

    user_id: str | None = Field(
        default=None, description="The owner of the facts; None: the session."
    )
    agent_id: str | None = Field(
        default=None,
        description="The agent that may have separate facts; None: all facts are shared.",
    )
    scope: Scope | None = Field(
        default=None,
        description='"user": shared facts; "agent": the agent\'s; "both". None: "both" with an agent, else "user".',
    )
    extract_facts: Switch = Field(
        default=True, description="Whether new facts are extracted."
    )
    extract_every_turns: int | None = Field(
        default=None,
        ge=1,
        description="Finished turns that wait for one extraction; None: facts are extracted when they are needed.",
    )
    wait_for_facts: float = Field(
        default=2.0,
        ge=0,
        description="Maximum seconds to wait for running extractions. A question waits for the user's other sessions, "
        "and a method that reads facts for all sessions. 0: no wait.",
    )
    max_facts: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of facts; beyond it, the least confident facts are retired.",
    )
    min_confidence: float = Field(
        default=DEFAULT_MIN_CONFIDENCE,
        ge=0,
        le=1,
        description="New facts with less confidence are not stored.",
    )
    review: Switch = Field(
        default=False,
        description="Whether new facts are pending until a person approves them.",
    )
    categories: Annotated[Any, BeforeValidator(check_categories)] = Field(
        default=CATEGORIES,
        description="The kinds of facts; with a dict, what each of them is.",
    )
    extraction_prompt: str | None = Field(
        default=None,
        max_length=20_000,
        pattern=r"\S",
        description="What to look for, instead of the package's own words; not blank.",
    )

    _own_namespace: str | None = PrivateAttr(default=None)
    _sessions: Recent[str, SessionState] = PrivateAttr(default_factory=Recent)

    _rejections: Counter[str] = PrivateAttr(default_factory=Counter)

    @model_validator(mode="after")
    def _check_whose(self) -> Self:
        check_id("user_id", self.user_id)
        if self.user_id is None and self.extract_facts:
            _warn_without_user()
        view_of(self.agent_id, self.scope)
        return self

    @property
    def view(self) -> AgentView:
        """The facts of a user that are seen, and the agent of new facts.

        Raises:
            FactError: ``agent_id`` and ``scope`` contradict each other.
        """
        return view_of(self.agent_id, self.scope)

    @abstractmethod
    def extractor(self, session_id: str, *, at_once: bool = False) -> Extractor:
        """Return the extractor of a session. ``at_once``: a turn that fails is tried again without a pause."""

    @property
    def has_record(self) -> bool:
        """Whether prompts show messages of the log."""
        return self._own_namespace is not None

    def namespace_of(self, session_id: str) -> str:
        """Return the namespace of a session's facts: the user, or a name that no user can have."""
        if self._own_namespace is not None:
            return self._own_namespace
        if self.user_id is None:
            return namespace_of_session(session_id)
        return self.user_id

    def belong_to(self, namespace: str) -> Self:
        """Set the namespace of all sessions, and return the block; a memory knows it before the first message."""
        self._own_namespace = namespace
        return self

    @property
    def rejections(self) -> dict[str, int]:
        """The number of entries of replies that this block has not stored, by reason."""
        return dict(self._rejections)

    @property
    def jobs(self) -> Jobs:
        """The jobs that extract facts."""
        return self._store.jobs.jobs(
            "facts", "Facts were not extracted", ExtractionFailedEvent
        )

    def reader_of(self, session_id: str) -> str:
        """Return the name of this block's cursor in a session, whether or not it extracts facts."""
        namespace = self.namespace_of(session_id)
        own = self.view.own
        # Quoted, so that no id of a user makes the name of another reader.
        if own is None:
            return f"{self.name} of {namespace}"
        return f"{self.name} by {own!r} of {namespace}"

    async def askip(self, session_id: str, count: int) -> None:
        """Count the oldest messages of a session as read: no facts are extracted from them.

        Args:
            session_id: The session.
            count: The number of messages, read ones too; all if there are fewer.
        """
        readers = self._store.readers
        reader = self.reader_of(session_id)
        cursor = await readers.cursor(session_id, reader)
        rows = await readers.find(session_id, limit=count)
        position = rows[-1].id if rows else 0
        # A registered session is read for facts also if nothing is skipped.
        if position > cursor.position or not cursor.registered:
            await readers.move(session_id, reader, cursor, position)

    def job_key(self, session_id: str) -> JobKey:
        """Return the key of this block's job of a session."""
        owner = (*self._store.database.identity, self.namespace_of(session_id))
        return JobKey(session_id, self.reader_of(session_id), owner)

    def readers_of(self, session_id: str) -> tuple[str, ...]:
        """Return the cursors that the store registers: ``reader_of``, or () if no facts are extracted."""
        if self.extract_facts:
            return (self.reader_of(session_id),)
        return ()

    @property
    def is_when_needed(self) -> bool:
        """Whether facts are extracted when they are needed."""
        return self._extracts() and self.extract_every_turns is None

    async def aopen(self, session_id: str, question: str | None = None) -> None:
        """Extract facts from unread messages of the user's other sessions.

        This is done when the session begins. When facts are extracted as needed, it is
        also done once for each question.
        """
        if not self._extracts():
            return
        if question is not None:
            self._store.jobs.asked.add(session_id)
        state = self._state_of(session_id)
        begins = state.question is None
        is_new = question is not None and hash(question) != state.question
        if not begins and not (is_new and self.extract_every_turns is None):
            return
        for name in await self._unread_sessions(session_id):
            if name != session_id:
                state.is_unread_elsewhere = True
                self._start(name, needed=True)
        state.question = hash(question or 0)

    async def wait_for_others(self, session_id: str) -> list[LogRow]:
        """Wait for extractions from the user's other sessions; return the user's messages there that are still unread.

        The oldest comes first. The session's own messages are in its record, or still in
        short-term memory.
        """
        key = self.job_key(session_id)
        await wait_for_owner(key.owner, self.wait_for_facts, except_session=session_id)
        state = self._state_of(session_id)
        if not state.is_unread_elsewhere:
            return []
        rows = await self._store.readers.unread_elsewhere(
            session_id, key.reader, key.owner[-1]
        )
        state.is_unread_elsewhere = bool(rows)
        return rows

    async def alearn(self, session_id: str) -> None:
        """Extract facts from all finished turns of the user before facts are read, and wait for them."""
        if self.is_when_needed:
            for name in await self._unread_sessions(session_id):
                self._start(name, needed=True)
            owner = self.job_key(session_id).owner
            await wait_for_owner(owner, self.wait_for_facts)

    async def count_unread(self, session_id: str) -> int:
        """Return the number of messages in all sessions of the user from which no facts were learned yet."""
        reader = self.job_key(session_id).reader
        count = 0
        for name in await self._unread_sessions(session_id):
            count += await self._store.readers.count_messages(name, reader=reader)
        return count

    def _start_if_left(self, session_id: str) -> None:
        """Extract facts from unread messages that have left the record since the last prompt."""
        row_id = self._store.jobs.last_left.get(session_id)
        state = self._state_of(session_id)
        if row_id and self.is_when_needed and row_id != state.last_left:
            state.last_left = row_id
            self._start(session_id)

    def _start(self, session_id: str, *, needed: bool = False) -> None:
        """Extract facts of a session: of turns that are due, or of all if they are ``needed``."""
        key = self.job_key(session_id)
        if needed:
            self._see(session_id)
            self._store.jobs.needed.add(key)
        work = partial(self._extract, key)
        self.jobs.start(key, work, self.retry_seconds)

    async def anotice(
        self, session_id: str, *, answered: bool = False, asks: bool = False
    ) -> None:
        """Extract facts if unread turns are due. Facts that are extracted as needed also follow 300 quiet seconds.

        ``answered``: the last write held an answer. ``asks``: it ended with a new question.

        Raises:
            StoreError: The given store has no such session.
        """
        if self.extract_facts and not self.has_record:
            await self._check_log(session_id)
        if not self._extracts():
            return
        jobs = self._store.jobs
        if answered:
            self._state_of(session_id).question = 0
            if not asks:
                jobs.asked.discard(session_id)
            if not self._store.database.in_memory:
                jobs.unread.add(session_id)
        self._start(session_id)
        if self.extract_every_turns is None:
            read_all = partial(self._start, session_id, needed=True)
            key = self.job_key(session_id)
            self.jobs.start_later(key, read_all, QUIET_SECONDS)

    async def _flush(self, session_id: str) -> None:
        """Extract facts from all unread messages of a session now, the current turn included."""
        if self._extracts():
            extractor = self.extractor(session_id, at_once=True)
            key = self.job_key(session_id)
            await self.jobs.finish(key, extractor.extract)
            # A failure was logged.
            self._store.jobs.unread.discard(session_id)
            self._store.jobs.asked.discard(session_id)

    def _state_of(self, session_id: str) -> SessionState:
        state = self._sessions.get(session_id)
        if state is None:
            state = SessionState()
            self._sessions.put(session_id, state)
        return state

    async def _unread_sessions(self, session_id: str) -> list[str]:
        """Return the sessions of the user with unread messages."""
        key = self.job_key(session_id)
        names = await self._store.readers.sessions_of_reader(key.reader, pending=True)
        if key.owner[-1] == namespace_of_session(session_id):
            # A copy of the session has the same reader, but other facts.
            names = [name for name in names if name == session_id]
        return names

    async def _extract(self, key: JobKey) -> None:
        # Imported at the first extraction: it loads all code that reads replies and checks facts.
        from llama_index_memory_ext.learning.batch import Due

        session_id = key.session_id
        jobs = self._store.jobs
        needed = jobs.needed
        is_needed = key in needed
        needed.discard(key)
        if is_needed:
            # A question that is being answered waits for its answer.
            due = Due(answered=session_id in jobs.asked)
        elif self.extract_every_turns is not None:
            due = Due(self.extract_every_turns, answered=True)
        else:
            last_left = jobs.last_left.get(session_id)
            if last_left is None:
                # Without a record, prompts show no message of the log: all have left.
                last_left = 0 if self.has_record else LAST_ID
            due = Due(UNREAD_TURNS, UNREAD_TOKENS, last_left, answered=True)
        try:
            await self.extractor(session_id).extract(due)
        except BaseException:
            if is_needed:
                needed.add(key)
            raise

    def _extracts(self) -> bool:
        """Return whether facts are extracted now: the setting and a model are needed.

        The model, or its absence, is logged once in a process.
        """
        if not self.extract_facts:
            return False
        llm = self.known_llm()
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


@cache
def _warn_without_user() -> None:
    logger.warning(
        "A RelevantFactsBlock has no user_id, so each session keeps facts apart, and no other session shows them. Pass "
        "user_id=... to share the facts of a person."
    )
