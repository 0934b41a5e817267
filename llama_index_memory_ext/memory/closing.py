"""The end of a memory: its last turn is stored, and its jobs are finished."""
# ruff: noqa: SLF001 - parts of the class that calls these functions

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

from llama_index_memory_ext.errors import SessionOwnerError, StoreError
from llama_index_memory_ext.memory.writing import flush
from llama_index_memory_ext.text.turns import leaving_at_end

if TYPE_CHECKING:
    from llama_index_memory_ext.memory.fields import MemoryFields

logger = logging.getLogger(__name__)


async def close(memory: MemoryFields) -> None:
    """Flush, and close the stores that the memory has opened; log a warning if the memory was never used."""
    uses_store = memory._owns_store and memory.sql_store.database.engine
    if not (memory._is_used or uses_store):
        warn_of_unused()
    try:
        if not memory.sql_store.database.is_gone:
            await _finish(memory)
    finally:
        if memory._owns_store:
            await memory.sql_store.aclose()
        facts_store = memory.facts_block.store
        if memory.temporary and facts_store:
            await facts_store.aclose()


async def _finish(memory: MemoryFields) -> None:
    """Flush before closing.

    The error of another owner's session is ignored. So is any error of the store, as of a
    read-only database, if the memory has put nothing into the session.
    """
    try:
        await flush(memory, leaving_at_end)
        for block in memory._log_blocks:
            await block.finish()
    except StoreError as error:
        if memory._opened and not isinstance(error, SessionOwnerError):
            raise


@cache
def warn_of_unused() -> None:
    """Log a warning, once in a process, about a memory that was passed to no run."""
    logger.warning(
        "A memory was closed that nothing was put into or read from. FunctionAgent(memory=...) is ignored by "
        "LlamaIndex: pass the memory to each run, `await agent.run(question, memory=memory)`."
    )
