"""Counts what a database holds of a session, by its indexes: no message is read for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Table, bindparam, func, select

from llama_index_memory_ext.background.locks import uninterrupted
from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED

if TYPE_CHECKING:
    from llama_index_memory_ext.store.memory_store import MemoryStore


@dataclass(frozen=True, slots=True)
class Counts:
    """How much there is of a session and of its user's facts; 0 of each where nothing is known of them.

    ``messages`` are all rows, and ``active`` those that are not in the log yet. The record's reader has left ``left``
    rows behind; the facts' reader has not left behind ``unread`` ones. ``facts`` hold, ``retired`` ones do no longer.
    """

    messages: int
    active: int
    left: int
    unread: int
    facts: int
    retired: int


class LogCounts:
    """The counts of a ``MemoryStore``, each from one statement."""

    def __init__(self, store: MemoryStore, rows: Table, cursors: Table, facts: Table) -> None:
        self._store = store
        key: Any = bindparam("session")
        archived = (rows.c.key == key, rows.c.status == ARCHIVED)

        def counted(*where: Any) -> Any:
            return select(func.count()).where(*where).scalar_subquery()

        def position(reader: str) -> Any:
            found = select(cursors.c.position).where(cursors.c.key == key, cursors.c.reader == bindparam(reader))
            return func.coalesce(found.scalar_subquery(), 0)

        known, retired_at = facts.c.namespace == bindparam("namespace"), facts.c.data["retired_at"].as_string()
        self._all = select(
            counted(rows.c.key == key).label("messages"),
            counted(rows.c.key == key, rows.c.status == ACTIVE).label("active"),
            counted(*archived, rows.c.id <= position("record")).label("left"),
            counted(rows.c.key == key, rows.c.id > position("extraction")).label("unread"),
            counted(known, retired_at.is_(None)).label("facts"),
            counted(known, retired_at.is_not(None)).label("retired"),
        )
        self._between = select(counted(*archived, rows.c.id > bindparam("after"), rows.c.id <= bindparam("last")))

    @uninterrupted
    async def read(self, key: str, *, record: str, extraction: str, namespace: str) -> Counts:
        """The counts of a session, with the names of the record's and the facts' readers and whose facts these are."""
        names = {"session": key, "record": record, "extraction": extraction, "namespace": namespace}
        async with self._store.reading() as connection:
            row = (await connection.execute(self._all, names)).one()
        return Counts(*row)

    @uninterrupted
    async def between(self, key: str, after: int, last: int) -> int:
        """How many rows the log of a session has behind the row ``after``, up to the row ``last``."""
        places = {"session": key, "after": after, "last": last}
        async with self._store.reading() as connection:
            count: int = (await connection.execute(self._between, places)).scalar_one()
        return count
