"""Reads the current turn of a session for one call at a time, and lets one run at a time through."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.background.locks import lock_for
from llama_index_memory_ext.errors import TurnError
from llama_index_memory_ext.log_block import looking
from llama_index_memory_ext.memory import flushing, template
from llama_index_memory_ext.store.rows import LogRow, Opening, Seen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.facts.block import RelevantFactsBlock
    from llama_index_memory_ext.record.block import CondensedMemoryBlock
    from llama_index_memory_ext.store import MemoryStore


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
    """

    messages: list[ChatMessage]
    asked: list[ChatMessage]
    is_to_come: bool = False
    printed: Sequence[int] = ()


@asynccontextmanager
async def current_turn(
    memory: flushing.HasBlocks,
    question: str | ChatMessage | None,
    record: CondensedMemoryBlock,
    facts: RelevantFactsBlock,
) -> AsyncIterator[Turn]:
    """Gives the current turn; what blocks on the store read within is as old, as in ``looking``.

    LlamaIndex's chat engines put their question when it was answered. With a ``question`` that is still to come, a
    turn that is over moves into the record here, as it would when the question is put.
    """
    store, session_id = memory.sql_store, memory.session_id
    opening = Opening(memory.user_id, memory.shared)
    known: Any = {"last_id": record.last_seen(session_id), "watch": facts.namespace_of(session_id)}
    async with looking(store, session_id, record.name, opening, **known) as rows:
        turn = _turn_of(rows, question)
        if turn.asked is turn.messages or (rows and not flushing.is_over(turn.messages)):
            yield turn
            return
        if not rows:
            yield turn._replace(is_to_come=not await _is_stored(store, session_id, turn.asked))
            return
    await flushing.append(memory, [], len)
    async with looking(store, session_id, record.name, opening, **known) as rows:
        yield _turn_of(rows, question)._replace(is_to_come=not rows)


def _turn_of(rows: Sequence[LogRow], question: str | ChatMessage | None) -> Turn:
    messages = [row.message for row in rows]
    printed = [i for i, row in enumerate(rows) if row.is_printed]
    return Turn(messages, template.with_question(messages, question), printed=printed)


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
