"""The base of the blocks that read the log of a store."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.bridge.pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
)
from llama_index.core.llms.llm import LLM
from llama_index.core.memory import BaseMemoryBlock

from llama_index_memory_ext.background.recent import Recent
from llama_index_memory_ext.background.waiting import JobKey
from llama_index_memory_ext.errors import NoModelError, StoreError
from llama_index_memory_ext.models.ask import Usage, llm_of_settings, without_history
from llama_index_memory_ext.settings import TimeZone, build_checked, checked_zone
from llama_index_memory_ext.store import MemoryStore
from llama_index_memory_ext.text.messages import now_in
from llama_index_memory_ext.text.parts import NO_PARTS, Section
from llama_index_memory_ext.text.tokens import TokenCounter, as_counter
from llama_index_memory_ext.words.tokens import checked_languages

if TYPE_CHECKING:
    from datetime import datetime, tzinfo

    from typing_extensions import Self

    from llama_index_memory_ext.background.failures import Failure
    from llama_index_memory_ext.background.jobs import Jobs


logger = logging.getLogger(__name__)

DEFAULT_SESSION_ID = "default"
# Most seconds that closing waits for the work of sessions other than the memory's.
CLOSE_SECONDS = 30.0
# A block without messages after three questions is in a Memory that does not flush.
_MOST_UNGIVEN_TURNS = 3
_MOST_SEEN = 1_000

# A field that also takes a plain function from a text to its tokens.
Counter: TypeAlias = Annotated[TokenCounter, BeforeValidator(as_counter)]
# Codes of ISO 639-1; None stands for any language.
Languages: TypeAlias = Annotated[
    Sequence[str] | None, BeforeValidator(checked_languages)
]
# Models are shared by copies, and left out of pickles: they hold keys and connections.
_MODELS = ("llm", "embed_model")


class LogBlock(BaseMemoryBlock[str]):
    """A block that reads the log of its store.

    Without a store it has a private store in memory. ``aput`` writes there the messages
    that the memory flushes.
    """

    # A misspelt setting must not be ignored.
    model_config = ConfigDict(extra="forbid")

    tokenizer_fn: Counter = Field(
        default_factory=TokenCounter,
        exclude=True,
        repr=False,
        description="Counts the tokens; o200k_base by default.",
    )
    store: MemoryStore | None = Field(
        default=None,
        exclude=True,
        repr=False,
        description="The store whose log is read; None for a private one.",
    )
    llm: LLM | None = Field(
        default=None,
        exclude=True,
        repr=False,
        description="None: Settings.llm, if it is set.",
        examples=["OpenAI(model='gpt-4o-mini')"],
    )
    languages: Languages = Field(
        default=None,
        description="The languages of questions, such as ['de', 'en']; None: detected for each question.",
    )
    time_zone: TimeZone = Field(
        default=None,
        description='The time zone of days, such as "Europe/Paris", or a tzinfo; None: the offset of each message\'s '
        "own time, or else UTC.",
    )
    # The pause after the model has failed. Each further pause is twice as long.
    retry_seconds: ClassVar[float] = 2.0

    _store: MemoryStore = PrivateAttr()
    # The last sessions that were used and not flushed since.
    _seen: dict[str, None] = PrivateAttr(default_factory=dict)
    # The last contents by their text, which LlamaIndex's Memory gives back to be cut.
    _contents: Recent[str, Section] = PrivateAttr(default_factory=Recent)
    _usage: dict[str, Usage] = PrivateAttr(default_factory=dict)

    if not TYPE_CHECKING:  # With this method, a type checker would not know the fields.

        def __init__(self, **values: Any) -> None:
            build_checked(type(self), super().__init__, **values)

    def model_post_init(self, context: Any, /) -> None:
        """Make a private store where none is given."""
        super().model_post_init(context)
        self._store = self.store or MemoryStore()

    @property
    def zone(self) -> tzinfo | None:
        """The time zone of days, if there is one."""
        # An assignment is not validated.
        return checked_zone(self.time_zone)

    def now(self) -> datetime:
        """Return the current time in the time zone, or else in UTC."""
        return now_in(self.zone)

    def known_llm(self) -> LLM | None:
        """Return the model of this block, or else of ``Settings``; None if there is none."""
        return self.llm or llm_of_settings()

    def chosen_llm(self) -> LLM:
        """Return the model of ``known_llm``, without the history that its server keeps.

        Raises:
            NoModelError: There is no model.
        """
        llm = self.known_llm()
        if llm is None:
            raise NoModelError
        return without_history(llm)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        memo = dict(memo or {})
        for name in _MODELS:
            model = self.__dict__.get(name)
            memo[id(model)] = model
        return super().__deepcopy__(memo)

    def __getstate__(self) -> dict[Any, Any]:
        fields = dict(self.__dict__)
        for name in fields.keys() & _MODELS:
            fields[name] = None
        return {**super().__getstate__(), "__dict__": fields}

    async def aget(
        self, messages: list[ChatMessage] | None = None, **block_kwargs: Any
    ) -> str:
        """Return the content as text; "" for none."""
        roles = [message.role for message in messages or ()]
        if roles.count(MessageRole.USER) >= _MOST_UNGIVEN_TURNS:
            await self._advise(block_kwargs.get("session_id"))
        return await super().aget(messages, **block_kwargs)

    async def aput(
        self,
        messages: list[ChatMessage],
        from_short_term_memory: bool = False,
        session_id: str | None = None,
    ) -> None:
        """Start the work for messages that have left short-term memory.

        The log of a shared store has them already; a private store gets them here.
        """
        if messages and (self.accept_short_term_memory or not from_short_term_memory):
            session_id = self._see(session_id)
            if self.store is None:
                await self._store.log.append(session_id, messages, len)
            await self.anotice(session_id)

    async def _aput(self, messages: list[ChatMessage]) -> None:
        await self.aput(messages)

    async def atruncate(self, content: Any, tokens_to_truncate: int) -> str | None:
        """Return a content as text, shorter by at least this number of tokens; None if nothing is left.

        The least important parts go first: recalled messages, then the oldest messages,
        or the last facts. Content that this block did not return lately is dropped
        as a whole.
        """
        content = self._contents.get(str(content)) or NO_PARTS
        shorter = await asyncio.to_thread(
            content.without, tokens_to_truncate, self.tokenizer_fn
        )
        return self._text_of(shorter) or None

    def _text_of(self, content: Section) -> str:
        """Return the text of a content, and remember its parts for ``atruncate``."""
        self._contents.put(content.text, content)
        return content.text

    @abstractmethod
    async def anotice(self, session_id: str) -> None:
        """Start the background work for new messages in the log of a session."""

    async def aopen(self, session_id: str, question: str | None = None) -> None:
        """Prepare for a session that a memory begins to use, or for its next question."""

    async def aflush(self, session_id: str | None = None) -> None:
        """Do the background work of a session now; without an id, of each session that this block has seen.

        The current turn is included. A failure is logged, and the next start tries again.
        """
        sessions = list(self._seen) if session_id is None else [session_id]
        for session in sessions:
            self._seen.pop(session, None)
            await self._advise(session)
            await self._flush(session)

    @abstractmethod
    async def _flush(self, session_id: str) -> None:
        """Do the background work of a session now."""

    async def _advise(self, session_id: str | None) -> None:
        """Log advice on settings if a Memory has passed on no turn to a block with a private store."""
        if self.store or self._store.database.is_gone:
            return
        session_id = session_id or DEFAULT_SESSION_ID
        if not await self._store.readers.has_session(session_id):
            _advise_on_settings(self.name)

    async def _check_log(self, session_id: str) -> None:
        """Raise a StoreError if the store of this block has no such session."""
        if not await self._store.readers.has_session(session_id):
            raise StoreError(
                f"{self.class_name()}(store=...) reads the log of its store, but that store holds no message of "
                f"session {session_id!r}: the memory keeps them elsewhere. Give both the same store: "
                "Memory.from_defaults(chat_store=store, memory_blocks=[...])."
            )

    def _see(self, session_id: str | None) -> str:
        """Remember a session for ``aflush``, and return its id."""
        if session_id is None:
            session_id = DEFAULT_SESSION_ID
        self._seen[session_id] = None
        if len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]
        return session_id

    @classmethod
    @abstractmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this block."""

    def readers_of(self, session_id: str) -> tuple[str, ...]:
        """Return the names of the readers that the store registers for a session."""
        return ()

    @property
    def usage(self) -> dict[str, Usage]:
        """The calls of the model by this block and their tokens, by kind: "facts" or "summary"."""
        return dict(self._usage)

    @property
    @abstractmethod
    def jobs(self) -> Jobs:
        """The jobs of all blocks of this kind on the same store."""

    def job_key(self, session_id: str) -> JobKey:
        """Return the key of this block's jobs of a session."""
        return JobKey(session_id, self.name)

    @property
    def all_jobs(self) -> tuple[Jobs, ...]:
        """The jobs of every kind that this block starts."""
        return (self.jobs,)

    async def await_jobs(self, session_id: str) -> None:
        """Wait for the running jobs of a session; jobs that pause after a failure are cancelled."""
        for jobs in self.all_jobs:
            await jobs.wait(self.job_key(session_id))

    def failures_of(self, session_id: str) -> dict[str, Failure]:
        """Return the last failures of a session's jobs since their last success, by kind; {} for none."""
        failures = {}
        for jobs in self.all_jobs:
            failure = jobs.failure_of(self.job_key(session_id))
            if failure:
                failures[jobs.kind] = failure
        return failures

    async def aclose(self) -> None:
        """Flush the sessions that this block has seen, for at most 30 seconds, and close a private store.

        The messages of a private store are deleted, and later calls raise a StoreError.
        A shared store stays open.
        """
        try:
            await self.finish()
        finally:
            if self.store is None:
                await self._store.aclose()

    async def finish(self) -> None:
        """Flush the sessions that this block has seen, for at most 30 seconds."""
        try:
            await asyncio.wait_for(self.aflush(), CLOSE_SECONDS)
        except asyncio.TimeoutError:
            logger.warning(
                "Block %r was closed before all of its work was done; the next start continues it.",
                self.name,
            )
        self._seen.clear()


@cache
def _advise_on_settings(name: str) -> None:
    logger.warning(
        "Block %r was given no turn yet: this Memory keeps its turns in short-term memory. By default LlamaIndex "
        "passes turns on when they exceed seven tenths of its token_limit. Make the memory with "
        'Memory.from_defaults(..., chat_history_token_ratio=0.0001, insert_method="user"), which passes on each turn '
        "when it is over.",
        name,
    )
