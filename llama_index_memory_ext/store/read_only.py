"""Opens the database of a store a second time, so that nothing can be written through it."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_REFUSE_WRITES = {"sqlite": "PRAGMA query_only = ON", "postgresql": "SET default_transaction_read_only = on"}


@asynccontextmanager
async def read_only(store: MemoryStore) -> AsyncIterator[MemoryStore]:
    """Gives a store on the same database that refuses each write; it is closed at the end of the block.

    The database must have its tables, in the version of this package, and be no private one in memory.
    """
    database = store.database
    uri = database.url.render_as_string(hide_password=False)
    limits: Any = {"operation_timeout": store.operation_timeout, "pool_size": store.pool_size}
    async with aclosing(MemoryStore(uri, store.table_name, db_schema=store.db_schema, **limits)) as reader:
        reader.database.set_up = _REFUSE_WRITES[database.backend]
        yield reader
