"""Puts a memory back into the context of a workflow that was kept as JSON."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from llama_index.core.workflow import Context, JsonSerializer
from workflows.context.serializers import BaseSerializer

from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.memory.search import check_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_index.core.workflow import Workflow

    from llama_index_memory_ext.memory.condensed_memory import CondensedMemory

# A null in JSON, for whoever reads the context without this serializer, and no other
# serializer writes it so.
_STANDS_FOR_MEMORY = " null"


class _WithMemory(BaseSerializer):
    """A serializer for which one memory is a word: what is written with it is read with the same memory."""

    def __init__(self, memory: CondensedMemory, others: BaseSerializer) -> None:
        self._memory = memory
        self._others = others

    def serialize(self, value: Any) -> str:
        if value is self._memory:
            return _STANDS_FOR_MEMORY
        return self._others.serialize(value)

    def deserialize(self, value: str) -> Any:
        if value == _STANDS_FOR_MEMORY:
            return self._memory
        return self._others.deserialize(value)

    @contextmanager
    def validation_context(self) -> Iterator[None]:
        # Older versions have none.
        with getattr(self._others, "validation_context", nullcontext)():
            yield


async def restore_context(
    workflow: Workflow,
    data: dict[str, Any],
    memory: CondensedMemory,
    *,
    serializer: BaseSerializer | None = None,
) -> Context[Any]:
    """Return ``Context.from_dict(workflow, data)`` with the memory in it, which JSON cannot hold.

    Runs of an agent go on with it: one that waits for a human, ``agent.run(ctx=ctx)``,
    and the next one, ``agent.run(question, ctx=ctx)``. Give the memory the session and
    the database of the run that was interrupted.

    Args:
        workflow: The agent, or the workflow of agents, made as the one that was
            interrupted.
        data: What ``ctx.to_dict()`` returned there; it is not changed.
        memory: The memory.
        serializer: The one that ``to_dict`` was given; default: a ``JsonSerializer``.

    Raises:
        StoreError: The context comes from a run, and the memory holds no message of its
            session, as after a restart with a database in memory.
        TypeError: ``memory`` is not a ``CondensedMemory``.
    """
    check_memory(memory, "restore_context")
    ctx: Context[Any] = Context.from_dict(
        workflow, data, serializer=_WithMemory(memory, serializer or JsonSerializer())
    )
    # LlamaIndex's agents keep in the context the question of the last run, and the
    # memory.
    has_run = await ctx.store.get("user_msg_str", default=None) is not None
    if has_run and not await memory.sql_store.users.knows(memory.session_id):
        raise StoreError(
            f"This context comes from a run, and its memory holds no message of session {memory.session_id!r} in "
            f"{memory.sql_store.address}. Give the memory the session_id and the async_database_uri of that run; a "
            "database in memory ends with its process."
        )
    await ctx.store.set("memory", memory)
    return ctx
