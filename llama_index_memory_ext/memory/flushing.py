"""Writes the messages of a memory, and moves whole turns out of its short-term memory into its blocks."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.background.jobs import log_failure
from llama_index_memory_ext.errors import StoreTimeoutError
from llama_index_memory_ext.log_block import LogBlock
from llama_index_memory_ext.store.rows import Opening
from llama_index_memory_ext.text.cutting import plan_flush
from llama_index_memory_ext.text.messages import has_calls
from llama_index_memory_ext.text.tool_calls import ASSISTANT_ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.memory import BaseMemoryBlock

    from llama_index_memory_ext.store import MemoryStore

# Says of messages how many of the oldest leave short-term memory.
Plan: TypeAlias = "Callable[[Sequence[ChatMessage]], int]"

# Of a synchronous call.
WAITS = ", then wait for extraction, summary and embeddings of this session"

logger = logging.getLogger(__name__)

# At this share of the token limit or less, every turn but the newest leaves short-term memory, however short it is.
FLUSH_EVERY_TURN = 0.0001


class HasSession(Protocol):
    """A memory."""

    session_id: str
    sql_store: MemoryStore
    user_id: str | None
    shared: bool


class HasBlocks(HasSession, Protocol):
    """A memory with its blocks."""

    memory_blocks: list[BaseMemoryBlock[Any]]


def log_blocks(blocks: Sequence[BaseMemoryBlock[Any]]) -> list[LogBlock]:
    """Returns the blocks that read the log of a store."""
    return [block for block in blocks if isinstance(block, LogBlock)]


async def open_session(session_id: str, blocks: Sequence[BaseMemoryBlock[Any]]) -> bool:
    """Lets the blocks begin with the session; returns False if that has failed, which is logged.

    A StoreTimeoutError if the database does not answer.
    """
    try:
        for block in log_blocks(blocks):
            await block.aopen(session_id)
    except StoreTimeoutError:
        # The message would wait as long again.
        raise
    except Exception as error:  # noqa: BLE001 - the message that is put now must be stored, whatever has failed
        outcome = "the next message tries again"
        log_failure("Unread messages of other sessions were not looked for", session_id, error, outcome)
        return False
    return True


def leaving(
    messages: Sequence[ChatMessage], token_limit: int, ratio: float, tokens: Callable[[ChatMessage], int]
) -> int:
    """Returns how many of the oldest messages, in whole turns, leave for this share of the token limit.

    ``tokens`` counts those of a message. The newest turn stays.
    """
    starts = [message.role == MessageRole.USER for message in messages]
    if ratio <= FLUSH_EVERY_TURN:
        return plan_flush([1] * len(messages), turn_starts=starts, limit=0)
    return plan_flush([tokens(message) for message in messages], turn_starts=starts, limit=int(token_limit * ratio))


def is_over(turn: Sequence[ChatMessage]) -> bool:
    """Returns whether a turn ends with an answer; False for no messages."""
    return bool(turn) and turn[-1].role in ASSISTANT_ROLES and not has_calls(turn[-1])


def leaving_at_end(messages: Sequence[ChatMessage]) -> int:
    """Returns how many of the oldest messages leave when a memory is closed: all, but for a turn that is not over."""
    return len(messages) if is_over(messages) else leaving(messages, 0, FLUSH_EVERY_TURN, lambda _: 1)


async def wait_for_jobs(memory: HasSession) -> None:
    """Waits until what was started for the session so far is done, or has failed."""
    await memory.sql_store.jobs.wait_for_started(memory.session_id)


async def flush(memory: HasBlocks, plan: Plan, lock: AbstractAsyncContextManager[object]) -> None:
    """Passes on to the blocks what leaves by the plan, within the lock; waits for facts and summary."""
    async with lock:
        await append(memory, [], plan)
    for block in log_blocks(memory.memory_blocks):
        await block.aflush(memory.session_id)


async def append(
    memory: HasBlocks, messages: Sequence[ChatMessage], plan: Plan | None, *, replace: bool = False
) -> None:
    """Writes messages, and passes on to the blocks those that leave by the plan; a block that fails is logged."""
    session_id, blocks = memory.session_id, memory.memory_blocks
    flushed = await memory.sql_store.log.append(
        session_id,
        messages,
        plan,
        replace=replace,
        opening=Opening(memory.user_id, memory.shared),
        readers=[name for block in log_blocks(blocks) for name in block.readers_of(session_id)],
    )
    if not flushed:
        return
    calls = (block.aput(list(flushed), from_short_term_memory=True, session_id=session_id) for block in blocks)
    results = await asyncio.gather(*calls, return_exceptions=True)
    for block, result in zip(blocks, results, strict=True):
        if isinstance(result, Exception):
            # The messages are stored.
            logger.warning("Block %r did not take %d messages: %r", block.name, len(flushed), type(result))
