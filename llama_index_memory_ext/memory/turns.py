"""Tells where turns end and how many leave short-term memory, and lets one run of a session through at a time."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.background.locks import lock_for
from llama_index_memory_ext.errors import TurnError
from llama_index_memory_ext.text.messages import has_calls
from llama_index_memory_ext.text.tool_calls import ASSISTANT_ROLES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from llama_index.core.base.llms.types import ChatMessage

# Says of messages how many of the oldest leave short-term memory.
Plan: TypeAlias = "Callable[[Sequence[ChatMessage]], int]"

# Of a synchronous call.
WAITS = ", then wait for extraction, summary and embeddings of this session"

# At this share of the token limit or less, every turn but the newest leaves short-term
# memory, however short it is.
FLUSH_EVERY_TURN = 0.0001


def leaving(
    messages: Sequence[ChatMessage],
    limit: int = 0,
    tokens: Callable[[ChatMessage], int] = lambda _: 1,
) -> int:
    """Return how many of the oldest messages, in whole turns, leave so that the others fit into a limit.

    ``tokens`` counts those of a message. The newest turn stays, and by default it
    alone.
    """
    from_there_on = list(accumulate(map(tokens, reversed(messages)), initial=0))[::-1]
    starts = [
        i for i, message in enumerate(messages) if message.role == MessageRole.USER
    ]
    if from_there_on[0] <= limit or not starts:
        return 0
    return next((i for i in starts if from_there_on[i] <= limit), starts[-1])


def is_over(turn: Sequence[ChatMessage]) -> bool:
    """Return whether a turn ends with an answer; False for no messages."""
    return bool(turn) and turn[-1].role in ASSISTANT_ROLES and not has_calls(turn[-1])


def leaving_at_end(messages: Sequence[ChatMessage]) -> int:
    """Return how many of the oldest messages leave when a memory is closed: all, but for a turn that is not over."""
    if is_over(messages):
        return len(messages)
    return leaving(messages)


# The tasks that run a turn now, in any event loop of this process.
_holders: dict[tuple[str, ...], asyncio.Task[Any] | None] = {}
_LOOK_SECONDS = 0.02

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_holders.clear)

Memory = TypeVar("Memory")


@asynccontextmanager
async def one_run(memory: Memory, name: tuple[str, ...]) -> AsyncIterator[Memory]:
    """Let one run of the memory's session, of this name, through at a time, in this process.

    Raises a TurnError for a run within a run.
    """
    task = asyncio.current_task()
    if _holders.get(name) is task:
        raise TurnError(
            "This task is within memory.turn() already; run the agent without opening another."
        )
    async with lock_for("turn", *name):
        # Of the tasks of one loop, each waits for its turn; those of other loops look
        # from time to time.
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
