"""Reads the current turn of a session for one call at a time, and lets one run at a time through."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.background.locks import lock_for
from llama_index_memory_ext.errors import TurnError
from llama_index_memory_ext.memory import flushing, template
from llama_index_memory_ext.store.rows import Opening, Seen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.facts.block import RelevantFactsBlock
    from llama_index_memory_ext.record.block import CondensedMemoryBlock
    from llama_index_memory_ext.store import MemoryStore
    from llama_index_memory_ext.store.rows import Snapshot


# The tasks that run a turn now, in any event loop of this process.
_holders: dict[tuple[str, ...], asyncio.Task[Any] | None] = {}
_LOOK_SECONDS = 0.02

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_holders.clear)

Memory = TypeVar("Memory", bound=flushing.HasSession)


class Turn(NamedTuple):
    """The messages of the current turn, and with the question behind them if it is none of them.

    Of a question that ``is_to_come``, whoever asks sends the messages of the memory and then the question itself. The
    turn has no messages then. ``printed`` are the places of messages that were put as the user's, and are a tool's.
    The ``snapshot`` is of the same moment.
    """

    snapshot: Snapshot
    messages: list[ChatMessage]
    asked: list[ChatMessage]
    is_to_come: bool = False
    printed: Sequence[int] = ()


async def current_turn(
    memory: flushing.HasBlocks,
    question: str | ChatMessage | None,
    record: CondensedMemoryBlock,
    facts: RelevantFactsBlock,
) -> Turn:
    """Returns the current turn; a SessionOwnerError if the session is not open to the memory.

    LlamaIndex's chat engines put their question when it was answered. With a ``question`` that is still to come, a
    turn that is over moves into the record here, as it would when the question is put.
    """
    turn = _turn_of(await _look(memory, record, facts), question)
    if turn.asked is turn.messages or (turn.messages and not flushing.is_over(turn.messages)):
        return turn
    if not turn.messages:
        return turn._replace(is_to_come=not await _is_stored(memory.sql_store, memory.session_id, turn.asked))
    await flushing.append(memory, [], len)
    turn = _turn_of(await _look(memory, record, facts), question)
    return turn._replace(is_to_come=not turn.messages)


async def _look(memory: flushing.HasBlocks, record: CondensedMemoryBlock, facts: RelevantFactsBlock) -> Snapshot:
    """Reads what the session holds now, from the last row on that the record has taken."""
    store, session_id, opening = memory.sql_store, memory.session_id, Opening(memory.user_id, memory.shared)
    known, watch = record.last_seen(session_id), facts.namespace_of(session_id)
    snapshot = await store.readers.glance(session_id, record.name, known, watch, opening)
    if snapshot.is_closed:
        await store.users.check(session_id, opening)
    return snapshot


def _turn_of(snapshot: Snapshot, question: str | ChatMessage | None) -> Turn:
    messages = [row.message for row in snapshot.active]
    printed = [i for i, row in enumerate(snapshot.active) if row.is_printed]
    return Turn(snapshot, messages, template.with_question(messages, question), printed=printed)


async def _is_stored(store: MemoryStore, session_id: str, asked: list[ChatMessage]) -> bool:
    """Whether a question is the last message of the log: a flush has moved it there while it is being answered."""
    rows = (await store.readers.page(session_id, "", Seen(), limit=1)).rows
    last = [row.message for row in rows if row.role == MessageRole.USER.value]
    return bool(last) and template.with_question(last, asked[-1]) is last


@asynccontextmanager
async def one_run(memory: Memory) -> AsyncIterator[Memory]:
    """Lets one run of a session through at a time, in this process; a TurnError for a run within a run."""
    name = (memory.session_id, *memory.sql_store.database.identity)
    task = asyncio.current_task()
    if _holders.get(name) is task:
        raise TurnError("This task is within memory.turn() already; run the agent without opening another.")
    async with lock_for("turn", *name):
        # Of the tasks of one loop, each waits for its turn; those of other loops look from time to time.
        while (holder := _holders.setdefault(name, task)) is not task:
            if holder is None or holder.get_loop().is_closed():
                _holders.pop(name, None)
            else:
                await asyncio.sleep(_LOOK_SECONDS)
        try:
            yield memory
        finally:
            if _holders.get(name) is task:
                del _holders[name]
