"""Turns: where they end, how many leave short-term memory, and one run of a session at a time."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.background.loop import lock_for
from llama_index_memory_ext.errors import TurnError
from llama_index_memory_ext.text.messages import (
    ASSISTANT_ROLES,
    has_calls,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from llama_index.core.base.llms.types import ChatMessage

# Returns how many of the oldest messages leave short-term memory.
Plan: TypeAlias = "Callable[[Sequence[ChatMessage]], int]"

# Ends the docstring of a synchronous call.
WAITS = ", then wait for extraction, summary and embeddings of this session"

# At this share of the token limit or less, every turn but the newest leaves short-term
# memory, however short it is.
FLUSH_EVERY_TURN = 0.0001


def leaving(
    messages: Sequence[ChatMessage],
    limit: int = 0,
    tokens: Callable[[ChatMessage], int] = lambda _: 1,
) -> int:
    """Return how many of the oldest messages leave, so that the rest fits into a limit.

    Only whole turns leave. ``tokens`` counts the tokens of a message. The newest turn
    always stays; by default, every other turn leaves.
    """
    starts = [
        i for i, message in enumerate(messages) if message.role == MessageRole.USER
    ]
    counts = [tokens(message) for message in messages]
    remaining = sum(counts)
    if remaining <= limit or not starts:
        return 0
    position = 0
    for start in starts:
        remaining -= sum(counts[position:start])
        position = start
        if remaining <= limit:
            break
    return position


def is_over(turn: Sequence[ChatMessage]) -> bool:
    """Return whether a turn ends with an answer; False for no messages."""
    return bool(turn) and turn[-1].role in ASSISTANT_ROLES and not has_calls(turn[-1])


def leaving_at_end(messages: Sequence[ChatMessage]) -> int:
    """Return how many of the oldest messages leave when a memory is closed: all but an open turn."""
    if is_over(messages):
        return len(messages)
    return leaving(messages)


# The tasks that run a turn now, in any event loop of this process.
_holders: dict[tuple[str, ...], asyncio.Task[Any] | None] = {}
_POLL_SECONDS = 0.02

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_holders.clear)

Memory = TypeVar("Memory")


@asynccontextmanager
async def one_run(memory: Memory, name: tuple[str, ...]) -> AsyncIterator[Memory]:
    """Let one run of the session of this name through at a time, in this process.

    Raises:
        TurnError: The task is within a run of the session already.
    """
    task = asyncio.current_task()
    if _holders.get(name) is task:
        raise TurnError(
            "This task is within memory.turn() already; run the agent without opening another."
        )
    async with lock_for("turn", *name):
        # The lock orders the tasks of one event loop; a task of another loop can only
        # poll.
        while (holder := _holders.setdefault(name, task)) is not task:
            if holder is None or holder.get_loop().is_closed():
                _holders.pop(name, None)
            else:
                await asyncio.sleep(_POLL_SECONDS)
        try:
            yield memory
        finally:
            if _holders.get(name) is task:
                del _holders[name]
