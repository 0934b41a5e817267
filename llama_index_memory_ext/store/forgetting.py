"""Deletes sessions, and all that is stored about a person."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, select

from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.store.tables import FACTS, LOG, keys_of, owned_by

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from sqlalchemy import Table
    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.memory_store import MemoryStore
    from llama_index_memory_ext.store.schema import Tables

# Databases take a limited number of parameters in one statement.
_KEYS_AT_ONCE = 500


async def delete_person(
    store: MemoryStore, tables: Tables, user_id: str, session_ids: Collection[str]
) -> dict[str, int]:
    """Delete in one transaction what is known about a user; the rows that were deleted, by kind of table."""
    if not isinstance(user_id, str) or isinstance(session_ids, str):
        raise StoreError(
            f"forget_user takes a user_id as a text, and session_ids as a list of texts; these are a "
            f"{type(user_id).__name__} and a {type(session_ids).__name__}. Nothing was deleted."
        )
    async with store.reading() as connection:
        sessions = {*session_ids, *(await connection.execute(keys_of(tables.cursors, user_id))).scalars()}
        # A session without a user has facts of its own, from before it was known whose it is.
        own = await _own_users(connection, tables, sorted(sessions))
    return await delete_sessions(store, tables, sorted(sessions), namespaces=sorted({user_id, *own}))


async def delete_sessions(
    store: MemoryStore, tables: Tables, sessions: Sequence[str], *, namespaces: Sequence[str] = ()
) -> dict[str, int]:
    """Delete sessions, and the facts of namespaces, in one transaction; both have to be sorted.

    Returns the rows that were deleted, by kind of table. Rows that serve as locks are not counted.
    """
    rows, cursors = tables.rows, tables.cursors
    counts = Counter({"messages": 0, "cursors": 0, "facts": 0, "embeddings": 0})
    # The sessions first and the namespaces second, as all who need both; sorted, as all who need several.
    places = [*((key, LOG) for key in sessions), *((key, FACTS) for key in namespaces)]
    async with store.locking(*places) as connection:
        for page in _pages(sessions):
            of_session = cursors.c.key.in_(page)
            counts["messages"] += await _delete(connection, rows, rows.c.key.in_(page))
            counts["cursors"] += await _delete(connection, cursors, of_session, cursors.c.reader.not_in((LOG, FACTS)))
            await _delete(connection, cursors, of_session, cursors.c.reader == LOG)
        for page in _pages(namespaces):
            for kind, table in (("facts", tables.facts), ("embeddings", tables.embeddings)):
                counts[kind] += await _delete(connection, table, table.c.namespace.in_(page))
            await _delete(connection, cursors, cursors.c.key.in_(page), cursors.c.reader == FACTS)
    return dict(counts)


async def _own_users(connection: AsyncConnection, tables: Tables, sessions: Sequence[str]) -> set[str]:
    """Those of the sessions that were users of themselves, and of no other session: others are people."""
    cursors, own = tables.cursors, set()
    for page in _pages(sessions):
        query = select(cursors.c.key, cursors.c.reader).where(cursors.c.key.in_(page))
        own |= {key for key, reader in await connection.execute(query) if reader in owned_by(key)}
    for page in _pages(sorted(own)):
        readers = {reader: key for key in page for reader in owned_by(key)}
        query = select(cursors.c.key, cursors.c.reader).where(cursors.c.reader.in_(readers))
        own -= {readers[reader] for key, reader in await connection.execute(query) if key != readers[reader]}
    return own


async def _delete(connection: AsyncConnection, table: Table, *where: Any) -> int:
    deleted: int = (await connection.execute(delete(table).where(*where))).rowcount
    return deleted


def _pages(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[i : i + _KEYS_AT_ONCE] for i in range(0, len(keys), _KEYS_AT_ONCE))
