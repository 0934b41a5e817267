"""Deletes sessions and all that is stored about a person, and removes what was deleted from the database's files."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, select, text
from sqlalchemy.exc import SQLAlchemyError

from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.store.database import shielded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from sqlalchemy import Table
    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.database import Database
    from llama_index_memory_ext.store.users import Users

logger = logging.getLogger(__name__)

# Databases take a limited number of parameters in one statement.
_KEYS_AT_ONCE = 500
# A server skips a table that one may not vacuum with no more than a notice, which drivers do not hand on.
_MAY_VACUUM = text(
    "SELECT pg_has_role(relowner, 'USAGE') OR (SELECT pg_has_role(datdba, 'USAGE') FROM pg_database "
    "WHERE datname = current_database()) FROM pg_class WHERE oid = to_regclass(:name)"
)


class Forgetting:
    """Deletes from a store, within the transactions of its database.

    Deleted rows are counted by kind: ``messages``, ``cursors`` (how far a reader has come, or whose a session is),
    ``facts`` and ``embeddings``.
    """

    def __init__(self, database: Database, users: Users) -> None:
        self._database, self._users, self._tables = database, users, database.tables

    @shielded
    async def delete_person(self, user_id: str, session_ids: Collection[str]) -> dict[str, int]:
        """Delete in one transaction what is stored about a user; returns the number of deleted rows by kind."""
        if not isinstance(user_id, str) or isinstance(session_ids, str):
            raise StoreError(
                f"forget_user takes a user_id as a text, and session_ids as a list of texts; these are a "
                f"{type(user_id).__name__} and a {type(session_ids).__name__}. Nothing was deleted."
            )
        async with self._database.reading() as connection:
            sessions = {*session_ids, *(await connection.execute(self._users.keys_of(user_id))).scalars()}
            # A session without a user has facts of its own, from before it was known whose it is.
            own = await self._own_users(connection, sorted(sessions))
        return await self.delete_sessions(sorted(sessions), namespaces=sorted({user_id, *own}))

    @shielded
    async def delete_sessions(self, sessions: Sequence[str], *, namespaces: Sequence[str] = ()) -> dict[str, int]:
        """Delete sessions, and the facts of namespaces, in one transaction; returns the deleted rows by kind."""
        tables = self._tables
        by_session = (("messages", tables.rows), ("cursors", tables.cursors), ("cursors", tables.owners))
        by_namespace = (("facts", tables.facts), ("embeddings", tables.embeddings))
        counts = Counter({"messages": 0, "cursors": 0, "facts": 0, "embeddings": 0})
        async with self._database.writing(sessions=sessions, users=namespaces) as connection:
            for keys in _pages(sessions):
                for kind, table in by_session:
                    counts[kind] += await _delete(connection, table, table.c.key.in_(keys))
                await _delete(connection, tables.sessions, tables.sessions.c.key.in_(keys))
            for names in _pages(namespaces):
                for kind, table in by_namespace:
                    counts[kind] += await _delete(connection, table, table.c.namespace.in_(names))
                await _delete(connection, tables.users, tables.users.c.namespace.in_(names))
        return dict(counts)

    @shielded
    async def vacuum(self) -> bool:
        """Vacuum the file or, on a server, the tables; False, and a warning in the log, if that could not be done."""
        if self._database.in_memory:
            return True
        try:
            engine = await self._database.opened()
            async with self._database.alone(), engine.connect() as connection:
                # A VACUUM does not work in a transaction.
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                if self._database.backend == "sqlite":
                    return await _vacuum_file(connection)
                return await self._vacuum_on_server(connection)
        except (SQLAlchemyError, StoreError, OSError) as error:
            logger.warning(
                "The database was not vacuumed (%s); deleted rows are gone, but their words may still be in its files "
                "until `await store.vacuum()` is called while nobody else uses it.",
                type(error).__name__,
            )
            return False

    async def _own_users(self, connection: AsyncConnection, sessions: Sequence[str]) -> set[str]:
        """The sessions that are users of themselves, and of no other session: others are people."""
        owners, own = self._tables.owners, set[str]()
        for page in _pages(sessions):
            query = select(owners.c.key).where(owners.c.key.in_(page), owners.c.user_id == owners.c.key)
            own.update((await connection.execute(query)).scalars())
        for page in _pages(sorted(own)):
            query = select(owners.c.user_id).where(owners.c.user_id.in_(page), owners.c.user_id != owners.c.key)
            own.difference_update((await connection.execute(query)).scalars())
        return own

    async def _vacuum_on_server(self, connection: AsyncConnection) -> bool:
        forbidden = []
        for table in self._tables.metadata.sorted_tables:
            name = connection.dialect.identifier_preparer.format_table(table)
            if (await connection.execute(_MAY_VACUUM, {"name": name})).scalar():
                await connection.exec_driver_sql(f"VACUUM {name}")
            else:
                forbidden.append(name)
        if forbidden:
            logger.warning(
                "This database user may not vacuum %s: what was deleted stays in the files of the server until its "
                "owner or autovacuum does.",
                ", ".join(forbidden),
            )
        return not forbidden


async def _vacuum_file(connection: AsyncConnection) -> bool:
    await connection.exec_driver_sql("VACUUM")
    # What was deleted may still be in the write-ahead log, if there is one.
    busy = (await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")).scalar()
    if busy:
        logger.warning(
            "The write-ahead log of the database could not be emptied, because another connection is reading: what was "
            "deleted may be in it until `await store.vacuum()` is called once more, or the last connection is closed."
        )
    return not busy


async def _delete(connection: AsyncConnection, table: Table, *where: Any) -> int:
    deleted: int = (await connection.execute(delete(table).where(*where))).rowcount
    return deleted


def _pages(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[i : i + _KEYS_AT_ONCE] for i in range(0, len(keys), _KEYS_AT_ONCE))
