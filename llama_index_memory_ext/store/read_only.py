"""Opens the database of a store a second time, so that nothing can be written through it."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import event

from llama_index_memory_ext.store import MemoryStore
from llama_index_memory_ext.store.engine import open_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_REFUSE_WRITES = {"sqlite": "PRAGMA query_only = ON", "postgresql": "SET default_transaction_read_only = on"}


@asynccontextmanager
async def read_only(store: MemoryStore) -> AsyncIterator[MemoryStore]:
    """Gives a store on the same database that refuses each write; it is closed at the end of the block.

    The database must have its tables, in the version of this package, and be no private one in memory.
    """
    database = store.database
    engine = open_engine(database.url, store.operation_timeout, store.pool_size)
    statement = _REFUSE_WRITES[database.backend]

    @event.listens_for(engine.sync_engine, "connect")
    def refuse_writes(connection: Any, _record: Any) -> None:
        connection.run_async(lambda driver: driver.execute(statement))

    options: Any = {"operation_timeout": store.operation_timeout, "pool_size": store.pool_size}
    try:
        async with aclosing(
            MemoryStore(None, store.table_name, engine, db_schema=store.db_schema, **options)
        ) as reader:
            yield reader
    finally:
        await engine.dispose()
