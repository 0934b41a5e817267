"""Deletes messages, sessions and users with what was made of them, and rewrites the database without them."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import MessageRole
from sqlalchemy import String, bindparam, cast, delete, func, or_, select, text, update

from llama_index_memory_ext.store.cursors import ROWS
from llama_index_memory_ext.store.tables import LAST_ID, OF_NOBODY, one_of, vectors_namespace
from llama_index_memory_ext.text.tool_calls import RESULT_ROLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from llama_index_memory_ext.store.runner import Database
    from llama_index_memory_ext.store.sessions import Users
    from llama_index_memory_ext.store.tables import Statement
    from llama_index_memory_ext.text.tool_calls import Json

logger = logging.getLogger(__name__)

# So many turns are deleted by one statement.
_DELETED_TURNS = 200
# As long as a large database may take.
_VACUUM_SECONDS = 3600.0
# A server skips a table that one may not vacuum with no more than a notice, which drivers do not hand on.
_MAY_VACUUM = text(
    "SELECT pg_has_role(relowner, 'USAGE') OR (SELECT pg_has_role(datdba, 'USAGE') FROM pg_database "
    "WHERE datname = current_database()) FROM pg_class WHERE oid = to_regclass(:name)"
)


class Deletions:
    """Deletes rows of a store. Methods named ``..._within`` work in a transaction that has locked the session."""

    def __init__(self, database: Database, users: Users) -> None:
        self._database, self._users, self._tables = database, users, database.tables
        tables, owners = database.tables, database.tables.owners
        others = (owners.c.user_id != bindparam("user"), owners.c.kind != OF_NOBODY)
        self._of_others = select(owners.c.key).where(*others, one_of(owners.c.key, database.backend))
        # A session's row, a user's, and the id of a message are no rows that the result counts.
        kinds = (
            ("messages", tables.rows.c.key),
            ("cursors", tables.cursors.c.key),
            ("cursors", owners.c.key),
            ("", tables.message_ids.c.key),
            ("", tables.sessions.c.key),
            ("facts", tables.facts.c.namespace),
            ("embeddings", tables.embeddings.c.namespace),
            ("", tables.users.c.namespace),
        )
        self._all_of = [(kind, one.name, delete(one.table).where(one_of(one, database.backend))) for kind, one in kinds]

    def delete_within(self, conn: Connection, key: str, *conditions: Statement) -> int:
        """Delete the rows of a session of which the conditions hold, and tell its readers by a new epoch.

        Returns their number.

        A cursor moves back to the last row at or before it that is left, so that no row that comes later, which may
        have the id of a deleted one, stands behind it. ``Readers.move`` says what becomes of its state.
        """
        rows, ids, vectors = self._tables.rows, self._tables.message_ids, self._tables.embeddings
        these, count = (rows.c.key == key, *conditions), 0
        first = conn.execute(select(func.min(rows.c.id)).where(*these)).scalar()
        if first is not None:
            # A result has been embedded together with its call, which comes before it.
            calls = select(rows.c.id).where(rows.c.key == key, rows.c.id <= first, rows.c.role.not_in(RESULT_ROLES))
            call = conn.execute(calls.order_by(rows.c.id.desc()).limit(1)).scalar()
            gone = or_(vectors.c.id == str(call), vectors.c.id.in_(select(cast(rows.c.id, String)).where(*these)))
            conn.execute(delete(vectors).where(vectors.c.namespace == vectors_namespace(key), gone))
            conn.execute(delete(ids).where(ids.c.key == key, ids.c.row_id.in_(select(rows.c.id).where(*these))))
            count = conn.execute(delete(rows).where(*these)).rowcount
            self._move_cursors(conn, key, first)
        self._users.renew_within(conn, key)
        return count

    def _move_cursors(self, conn: Connection, key: str, first: int) -> None:
        cursors = self._tables.cursors
        columns = cursors.c.reader, cursors.c.position, cursors.c.state
        behind = select(*columns).where(cursors.c.key == key, cursors.c.position >= first)
        for reader, old, state in conn.execute(behind).all():
            position, left = 0, None
            if state is None or ROWS in state:
                _, position = self._ends(conn, key, 0, old)
                left = state and self._left_of(conn, key, state, position)
            here = (cursors.c.key == key, cursors.c.reader == reader)
            conn.execute(update(cursors).where(*here).values(position=position, state=left))

    def _left_of(self, conn: Connection, key: str, state: dict[str, Json], position: int) -> Json:
        """The state with what it says of rows that are left; None if nothing is left to say."""
        entries: list[Sequence[Json]] = []
        for first, last, *more in state[ROWS]:
            span = self._ends(conn, key, first, last)
            entries += [[*span, *more]] if span[0] else []
        return {**state, ROWS: entries} if position or entries else None

    def _ends(self, conn: Connection, key: str, first: int, last: int) -> tuple[int, int]:
        """The first and the last row of a session between these two, which belong to it; 0, 0 if there is none."""
        rows = self._tables.rows
        between = (rows.c.key == key, rows.c.id >= first, rows.c.id <= last)
        low, high = conn.execute(select(func.min(rows.c.id), func.max(rows.c.id)).where(*between)).one()
        return low or 0, high or 0

    async def delete(
        self, keys: Sequence[str], namespaces: Sequence[str] = (), user_id: str | None = None
    ) -> dict[str, int]:
        """Delete sessions, and the facts of users, in one transaction; returns the number of deleted rows by kind.

        The embeddings of both go with them. Of a session that others own too, only the turns of the ``user_id`` go.
        """
        how: Any = {"sessions": keys, "users": namespaces}
        return await self._database.run(self._delete, keys, namespaces, user_id, **how)

    def _delete(
        self, conn: Connection, keys: Sequence[str], namespaces: Sequence[str], user_id: str | None
    ) -> dict[str, int]:
        counts = Counter(messages=0, cursors=0, facts=0, embeddings=0)
        if user_id is not None:
            of_others = set(conn.execute(self._of_others, {"names": keys, "user": user_id}).scalars())
            for key in of_others:
                self._leave(conn, key, user_id, counts)
            keys = [key for key in keys if key not in of_others]
        for kind, column, deletion in self._all_of:
            names = keys if column == "key" else namespaces
            if kind == "embeddings":
                names = [*namespaces, *map(vectors_namespace, keys)]
            if names:
                counts[kind] += conn.execute(deletion, {"names": names}).rowcount
        del counts[""]
        return dict(counts)

    def _leave(self, conn: Connection, key: str, user_id: str, counts: Counter[str]) -> None:
        """Delete what a user has said, with the answers, from a session that others own."""
        rows, owners, cursors = self._tables.rows, self._tables.owners, self._tables.cursors
        was_owner = conn.execute(delete(owners).where(owners.c.key == key, owners.c.user_id == user_id)).rowcount
        if was_owner:
            counts["cursors"] += was_owner
            asked = select(rows.c.id, rows.c.user_id).where(rows.c.key == key, rows.c.role == MessageRole.USER.value)
            found = [(one.id, one.user_id or user_id) for one in conn.execute(asked.order_by(rows.c.id))]
            ends = [*(row_id for row_id, _ in found[1:]), LAST_ID]
            spans = zip(found, ends, strict=True)
            turns = [(rows.c.id >= first) & (rows.c.id < end) for (first, who), end in spans if who == user_id]
            for start in range(0, len(turns), _DELETED_TURNS):
                counts["messages"] += self.delete_within(conn, key, or_(*turns[start : start + _DELETED_TURNS]))
        for reader, _ in self._users.readers_of(conn, key, user_id):
            here = (cursors.c.key == key, cursors.c.reader == reader)
            counts["cursors"] += conn.execute(delete(cursors).where(*here)).rowcount

    async def vacuum(self) -> bool:
        """Vacuum the file or, on a server, the tables; False, and a warning in the log, if something is left."""
        work = self._vacuum_file if self._database.backend == "sqlite" else self._vacuum_on_server
        return await self._database.run(work, in_transaction=False, seconds=_VACUUM_SECONDS)

    def _vacuum_file(self, conn: Connection) -> bool:
        conn.exec_driver_sql("VACUUM")
        # What was deleted may still be in the write-ahead log, if there is one.
        busy = conn.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar()
        if busy:
            logger.warning(
                "The write-ahead log of the database could not be emptied, because another connection is reading: what "
                "was deleted may be in it until `await store.vacuum()` is called once more, or the last connection is "
                "closed."
            )
        return not busy

    def _vacuum_on_server(self, conn: Connection) -> bool:
        conn.exec_driver_sql("SET statement_timeout = 0")
        forbidden = []
        try:
            for table in self._tables.rows.metadata.sorted_tables:
                name = conn.dialect.identifier_preparer.format_table(table)
                if conn.execute(_MAY_VACUUM, {"name": name}).scalar():
                    conn.exec_driver_sql(f"VACUUM {name}")
                else:
                    forbidden.append(name)
        finally:
            # Nobody else may get a connection with this setting.
            conn.invalidate()
        if forbidden:
            logger.warning(
                "This database user may not vacuum %s: what was deleted stays in the files of the server until its "
                "owner or autovacuum does.",
                ", ".join(forbidden),
            )
        return not forbidden
