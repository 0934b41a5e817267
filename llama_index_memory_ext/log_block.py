"""What every block has that reads the log of a store: the store, the counter, the model, and jobs beside the talk."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr, field_validator
from llama_index.core.llms.llm import LLM  # noqa: TC002 - pydantic reads the annotations of fields
from llama_index.core.memory import BaseMemoryBlock
from llama_index.core.settings import Settings

from llama_index_memory_ext.store import MemoryStore
from llama_index_memory_ext.text.tokens import TokenCounter, as_counter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.background.jobs import Failure, Jobs

K = TypeVar("K")
V = TypeVar("V")

DEFAULT_SESSION_ID = "default"

_REMEMBERED = 128


class Remembered(OrderedDict[K, V], Generic[K, V]):
    """What was used last and can be read again at any time, ``most`` of it; a copy begins without."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        super().__init__()
        self.most = most

    def put(self, key: K, value: V) -> None:
        """Remember an entry, and forget the one that was put longest ago if there are too many."""
        self[key] = value
        self.move_to_end(key)
        while len(self) > self.most:
            self.popitem(last=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Remembered[K, V]:
        return Remembered(self.most)

    def __reduce__(self) -> tuple[type[Remembered[Any, Any]], tuple[int]]:
        return Remembered, (self.most,)


class LogBlock(BaseMemoryBlock[str]):
    """A block that reads the log of its store, or of a private one in memory that is fed by what is flushed."""

    # A setting that is misspelt must not be left out without a word.
    model_config = ConfigDict(extra="forbid")

    tokenizer_fn: TokenCounter = Field(
        default_factory=TokenCounter, exclude=True, repr=False, description="Counts the tokens; o200k_base by default."
    )
    store: MemoryStore | None = Field(
        default=None, exclude=True, repr=False, description="The store whose log is read; None for a private one."
    )

    llm: LLM | None = Field(default=None, exclude=True, repr=False, description="None: Settings.llm at first use.")
    retry_seconds: float = Field(
        default=2.0, gt=0, description="Pause after the model has failed; each further one is twice as long."
    )

    _private_store: MemoryStore | None = PrivateAttr(default=None)
    _kept_jobs: Jobs | None = PrivateAttr(default=None)

    def __getstate__(self) -> dict[str, Any]:
        # A model knows its key, which must not travel with a pickle.
        state = super().__getstate__()
        state["__dict__"] = {**state["__dict__"], "llm": None}
        return state

    @field_validator("tokenizer_fn", mode="before")
    @classmethod
    def _count_with(cls, value: Callable[[str], list[Any]]) -> TokenCounter:
        return as_counter(value)

    async def aput(
        self,
        messages: list[ChatMessage],
        from_short_term_memory: bool = False,
        session_id: str | None = None,
    ) -> None:
        """Take notice of messages that have left short-term memory.

        With a ``store`` they are in its log already. The messages are not changed.
        """
        if messages and (self.accept_short_term_memory or not from_short_term_memory):
            session_id = session_id or DEFAULT_SESSION_ID
            if self.store is None:
                await self._log.append(session_id, messages, len)
            await self._notice(session_id)

    async def _aput(self, messages: list[ChatMessage]) -> None:
        await self.aput(messages)

    async def aopen(self, session_id: str) -> None:
        """Begin with a session."""

    async def aflush(self, session_id: str = DEFAULT_SESSION_ID) -> None:
        """Do now what is done beside the session otherwise; a failure is tried again by whoever comes next."""

    def known_as(self, session_id: str) -> tuple[str, ...]:
        """The readers by which the store must know a session, as soon as anything is written to it."""
        return ()

    async def await_jobs(self, session_id: str | None = None) -> None:
        """Wait for what is under way beside the session, or all in this event loop; what pauses is ended."""
        await (self._jobs.wait_for_all() if session_id is None else self._jobs.wait(session_id))

    def failures_of(self, session_id: str) -> dict[str, Failure]:
        """How the jobs of a session have failed since each last succeeded, by their names; {} if none has."""
        found = {jobs.name: jobs.failure_of(session_id) for jobs in self._all_jobs}
        return {name: failure for name, failure in found.items() if failure is not None}

    async def stop_jobs(self, session_ids: Collection[str] | None = None) -> None:
        """End what is under way in this event loop, of some sessions or of all; whoever comes next goes on."""
        await self._jobs.stop(session_ids)

    async def aclose(self) -> None:
        """Close the private store with all that it held, and end what is under way there.

        A given store is its owner's: what is under way there ends by itself, or when that store is closed.
        """
        if self._private_store is not None:
            await self._private_store.aclose()

    @abstractmethod
    def _new_jobs(self) -> Jobs:
        """Jobs of this kind of block, none under way."""

    @abstractmethod
    async def _notice(self, session_id: str) -> None:
        """The log of a session has grown."""

    @property
    def _all_jobs(self) -> tuple[Jobs, ...]:
        return (self._jobs,)

    def _model(self) -> LLM:
        return self.llm if self.llm is not None else Settings.llm

    @property
    def _jobs(self) -> Jobs:
        """Those of all blocks that do the same with the same store."""
        # Kept, because the failures that it remembers are gone with it.
        self._kept_jobs = self._log.board.jobs(self._doing(), self._new_jobs)
        return self._kept_jobs

    def _doing(self) -> str:
        """What tells the work of this block from that of others on its store; the session comes besides."""
        return f"{type(self).__name__} {self.name}"

    @property
    def _log(self) -> MemoryStore:
        if self.store is not None:
            return self.store
        if self._private_store is None:
            self._private_store = MemoryStore()
        return self._private_store

    def _room_within(self, token_limit: int) -> int:
        """Tokens for what the block shows: the limit without the element around it."""
        return max(0, token_limit - self.tokenizer_fn.count(f"<{self.name}>\n</{self.name}>\n"))
