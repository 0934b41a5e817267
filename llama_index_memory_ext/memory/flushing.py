"""Writes the messages of a memory, and moves whole turns out of its short-term memory into its blocks."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from llama_index.core.async_utils import asyncio_run
from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.background.jobs import log_failure
from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.log_block import LogBlock
from llama_index_memory_ext.store import MemoryStore
from llama_index_memory_ext.text.cutting import plan_flush

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.memory import BaseMemoryBlock

T = TypeVar("T")

logger = logging.getLogger(__name__)

# At this share of the token limit or less, every turn but the newest leaves short-term memory, however short it is.
FLUSH_EVERY_TURN = 0.0001


@dataclass(frozen=True)
class FlushPlan:
    """Says how many of the oldest messages leave short-term memory: whole turns, and never the newest turn.

    ``limit`` is the tokens that may stay. ``tokens`` counts those of a message; None: every turn leaves.
    """

    limit: int
    tokens: Callable[[ChatMessage], int] | None

    def __call__(self, messages: Sequence[ChatMessage]) -> int:
        """The number of messages that leave, of these, which are oldest first."""
        return plan_flush(
            [1 if self.tokens is None else self.tokens(message) for message in messages],
            turn_starts=[message.role == MessageRole.USER for message in messages],
            limit=0 if self.tokens is None else self.limit,
        )


@dataclass(frozen=True)
class Flusher:
    """Writes to one session of a store, and tells the blocks of a memory what has left short-term memory."""

    store: MemoryStore
    session_id: str
    blocks: Sequence[BaseMemoryBlock[Any]]

    @property
    def log_blocks(self) -> list[LogBlock]:
        """The blocks that read the log of a store."""
        return [block for block in self.blocks if isinstance(block, LogBlock)]

    async def open(self) -> bool:
        """Let the blocks begin with the session; False if that has failed, which is logged."""
        try:
            for block in self.log_blocks:
                await block.aopen(self.session_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, the message that comes now must be stored
            outcome = "the next message tries again"
            log_failure("Unread messages of other sessions were not looked for", self.session_id, error, outcome)
            return False
        return True

    async def append(
        self,
        messages: Sequence[ChatMessage],
        plan: Callable[[Sequence[ChatMessage]], int] | None,
        *,
        replace: bool = False,
    ) -> None:
        """Write messages, and hand to the blocks those that leave by the plan; a failing block costs nobody a turn."""
        flushed = await self.store.log.append(
            self.session_id,
            messages,
            plan,
            replace=replace,
            owners=[user_id for block in self.log_blocks for user_id in block.owners_of(self.session_id)],
            readers=[reader for block in self.log_blocks for reader in block.readers_of(self.session_id)],
        )
        if not flushed:
            return
        results = await asyncio.gather(
            *(
                block.aput(list(flushed), from_short_term_memory=True, session_id=self.session_id)
                for block in self.blocks
            ),
            return_exceptions=True,
        )
        for block, result in zip(self.blocks, results, strict=True):
            if isinstance(result, Exception):
                # The messages are stored.
                logger.warning("Block %r did not take %d messages: %r", block.name, len(flushed), type(result))

    async def finish(self) -> None:
        """Move the last turn into the log too, and wait until the blocks have done what follows from it."""
        for block in self.log_blocks:
            await block.aflush(self.session_id)


def check_store(store: Any, session_id: str | None) -> None:
    """Refuse, by a StoreError, a store without cursors, or one that outlives a session without a name."""
    if not isinstance(store, MemoryStore):
        raise StoreError(
            f"chat_store must be a MemoryStore, which keeps the cursors of the blocks; it is a "
            f"{type(store).__name__}. Use MemoryStore(async_database_uri)."
        )
    if not (session_id or store.is_in_memory):
        raise StoreError(
            f"{store!r} outlives this process, but without a session_id nobody could find the conversation "
            "again. Give it one: CondensedMemory.from_defaults(session_id=...)."
        )


def run_alone(store: MemoryStore, call: Coroutine[Any, Any, T], *, with_jobs: bool = False) -> T:
    """The result of a call, from code without an event loop. No job is left in an event loop that has ended.

    Args:
        store: Whose jobs may be started by the call.
        call: The call.
        with_jobs: Whether to wait for the jobs that the call has started; otherwise they are cancelled.
    """
    under_way: list[asyncio.Task[Any] | None] = []

    async def run() -> T:
        under_way.append(asyncio.current_task())
        try:
            result = await call
            if with_jobs:
                # Those of other sessions, too: in a program without an event loop nothing else would wait for them.
                await store.jobs.wait_for_all()
            return result
        finally:
            await store.jobs.stop()

    try:
        result: T = asyncio_run(run())
    except KeyboardInterrupt:
        for task in under_way:
            _cancel(task)
        raise
    return result


def _cancel(task: asyncio.Task[Any] | None) -> None:
    """Cancel a task that Ctrl+C has left in an event loop that no longer runs, where it would keep its locks."""
    if task is not None and not task.done() and not task.get_loop().is_running():
        task.cancel()
        with suppress(asyncio.CancelledError):
            task.get_loop().run_until_complete(task)
