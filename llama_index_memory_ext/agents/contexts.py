"""Restores the context of a workflow from JSON, with a memory in it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from llama_index.core.workflow import Context, JsonSerializer, Workflow
from workflows.context.serializers import BaseSerializer

from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.memory.search import check_memory

if TYPE_CHECKING:
    from llama_index_memory_ext.memory.condensed_memory import CondensedMemory

# A null in JSON, so that other serializers can read the context. The blank in front of
# it, which no other serializer writes, tells it from any other null.
_MEMORY_JSON = " null"


class _WithMemory(BaseSerializer):
    """A serializer that writes a memory as a null, and reads that null as the same memory."""

    def __init__(self, memory: CondensedMemory, serializer: BaseSerializer) -> None:
        self._memory = memory
        self._serializer = serializer

    def serialize(self, value: Any) -> str:
        if value is self._memory:
            return _MEMORY_JSON
        return self._serializer.serialize(value)

    def deserialize(self, value: str) -> Any:
        if value == _MEMORY_JSON:
            return self._memory
        return self._serializer.deserialize(value)

    def validation_context(self) -> Any:
        # Older versions of LlamaIndex have no validation context.
        return getattr(self._serializer, "validation_context", nullcontext)()


async def restore_context(
    workflow: Workflow,
    data: dict[str, Any],
    memory: CondensedMemory,
    *,
    serializer: BaseSerializer | None = None,
) -> Context[Any]:
    """Return ``Context.from_dict(workflow, data)`` with the memory in it, which JSON cannot hold.

    With this context a run that waits for a human continues, ``agent.run(ctx=ctx)``, and
    a new run starts, ``agent.run(question, ctx=ctx)``. The memory needs the session and
    the database of the interrupted run.

    Args:
        workflow: The agent, or the workflow of agents, made as before the
            interruption.
        data: The result of ``ctx.to_dict()``; it is not changed.
        memory: The memory.
        serializer: The serializer of ``to_dict``; default: a ``JsonSerializer``.

    Raises:
        StoreError: The context comes from a run, and the memory holds no message of its
            session. A restart empties a database in memory.
        TypeError: ``memory`` is not a ``CondensedMemory``.
    """
    check_memory(memory, "restore_context")
    ctx = Context.from_dict(
        workflow, data, serializer=_WithMemory(memory, serializer or JsonSerializer())
    )
    # LlamaIndex's agents keep the question of the last run in the context.
    has_run = await ctx.store.get("user_msg_str", default=None) is not None
    if has_run and not await memory.sql_store.readers.has_session(memory.session_id):
        raise StoreError(
            f"This context comes from a run, and its memory holds no message of session {memory.session_id!r} in "
            f"{memory.sql_store.address}. Give the memory the session_id and the async_database_uri of that run; a "
            "database in memory ends with its process."
        )
    await ctx.store.set("memory", memory)
    return ctx
