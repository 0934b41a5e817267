"""Deletes sessions and users, and removes what was deleted from the database's files."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from sqlalchemy import delete, text

from llama_index_memory_ext.store.database import connected
from llama_index_memory_ext.store.schema import one_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Column
    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.database import Database
    from llama_index_memory_ext.store.schema import Statement

logger = logging.getLogger(__name__)

# A server skips a table that one may not vacuum with no more than a notice, which drivers do not hand on.
_MAY_VACUUM = text(
    "SELECT pg_has_role(relowner, 'USAGE') OR (SELECT pg_has_role(datdba, 'USAGE') FROM pg_database "
    "WHERE datname = current_database()) FROM pg_class WHERE oid = to_regclass(:name)"
)


class Forgetting:
    """Deletes from a store.

    Deleted rows are counted by kind: ``messages``, ``cursors`` (how far a reader has come, or whose a session is),
    ``facts`` and ``embeddings``.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        tables = database.tables

        def deletion(column: Column[str]) -> Statement:
            return delete(column.table).where(one_of(column, database.backend))

        # A session's row, and a user's, is no row that the result counts.
        self._of_sessions = (
            ("messages", deletion(tables.rows.c.key)),
            ("cursors", deletion(tables.cursors.c.key)),
            ("cursors", deletion(tables.owners.c.key)),
            ("", deletion(tables.sessions.c.key)),
        )
        self._of_users = (
            ("facts", deletion(tables.facts.c.namespace)),
            ("embeddings", deletion(tables.embeddings.c.namespace)),
            ("", deletion(tables.users.c.namespace)),
        )

    @connected(lambda part, keys, namespaces=(): part.database.writing(sessions=keys, users=namespaces))
    async def delete(
        self, conn: AsyncConnection, keys: Sequence[str], namespaces: Sequence[str] = ()
    ) -> dict[str, int]:
        """Delete sessions, and the facts of users, in one transaction; returns the number of deleted rows by kind."""
        counts = Counter[str]()
        for names, deletions in ((keys, self._of_sessions), (namespaces, self._of_users)):
            for kind, deletion in deletions if names else ():
                counts[kind] += (await conn.execute(deletion, {"names": names})).rowcount
        return {kind: counts[kind] for kind in ("messages", "cursors", "facts", "embeddings")}

    @connected(lambda part: part.database.without_transaction())
    async def vacuum(self, conn: AsyncConnection) -> bool:
        """Vacuum the file or, on a server, the tables; False, and a warning in the log, if something is left."""
        if self.database.backend != "sqlite":
            return await self._vacuum_on_server(conn)
        await conn.exec_driver_sql("VACUUM")
        # What was deleted may still be in the write-ahead log, if there is one.
        busy = (await conn.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")).scalar()
        if busy:
            logger.warning(
                "The write-ahead log of the database could not be emptied, because another connection is reading: what "
                "was deleted may be in it until `await store.vacuum()` is called once more, or the last connection is "
                "closed."
            )
        return not busy

    async def _vacuum_on_server(self, conn: AsyncConnection) -> bool:
        forbidden = []
        for table in self.database.tables.rows.metadata.sorted_tables:
            name = conn.dialect.identifier_preparer.format_table(table)
            if (await conn.execute(_MAY_VACUUM, {"name": name})).scalar():
                await conn.exec_driver_sql(f"VACUUM {name}")
            else:
                forbidden.append(name)
        if forbidden:
            logger.warning(
                "This database user may not vacuum %s: what was deleted stays in the files of the server until its "
                "owner or autovacuum does.",
                ", ".join(forbidden),
            )
        return not forbidden
