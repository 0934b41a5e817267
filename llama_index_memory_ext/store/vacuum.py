"""Rewrites a database, so that what was deleted is not in its files any more."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sqlalchemy import text

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from llama_index_memory_ext.store.schema import Tables

logger = logging.getLogger(__name__)

# A server passes a table that one may not vacuum by with no more than a notice, which drivers do not hand on.
_MAY_VACUUM = text(
    "SELECT pg_has_role(relowner, 'USAGE') OR (SELECT pg_has_role(datdba, 'USAGE') FROM pg_database "
    "WHERE datname = current_database()) FROM pg_class WHERE oid = to_regclass(:name)"
)


async def vacuum_tables(engine: AsyncEngine, tables: Tables) -> bool:
    """Vacuum the file or, of a server, the tables; False, and a warning in the log, if that could not be done."""
    async with engine.connect() as connection:
        # Outside of transactions, which a VACUUM does not work in.
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        if engine.dialect.name == "sqlite":
            return await _vacuum_file(connection)
        return await _vacuum_on_server(connection, tables)


async def _vacuum_file(connection: AsyncConnection) -> bool:
    await connection.exec_driver_sql("VACUUM")
    # What was deleted may still be in the write-ahead log, if there is one.
    busy = (await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")).scalar()
    if busy:
        logger.warning(
            "The write-ahead log of the database could not be emptied, because somebody is reading: what was deleted "
            "may be in it until `await store.vacuum()` is called once more, or the last connection is closed."
        )
    return not busy


async def _vacuum_on_server(connection: AsyncConnection, tables: Tables) -> bool:
    forbidden = []
    for table in (tables.rows, tables.cursors, tables.facts, tables.embeddings):
        name = connection.dialect.identifier_preparer.format_table(table)
        if (await connection.execute(_MAY_VACUUM, {"name": name})).scalar():
            await connection.exec_driver_sql(f"VACUUM {name}")
        else:
            forbidden.append(name)
    if forbidden:
        logger.warning(
            "This database user may not vacuum %s: what was deleted stays in the files of the server until its owner "
            "or autovacuum does.",
            ", ".join(forbidden),
        )
    return not forbidden
