"""Deletes the rows of sessions, and the sessions and facts of users, from all tables and files."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from llama_index.core.base.llms.types import MessageRole
from sqlalchemy import Connection, String, cast, delete, func, or_, select, text, update

from llama_index_memory_ext.store.tables import (
    ACTIVE,
    ARCHIVED,
    LAST_ID,
    OF_NOBODY,
    PROFILE_READER,
    ROWS,
    Statement,
    Tables,
    one_of,
    vectors_namespace,
)
from llama_index_memory_ext.text.messages import (
    spoken,
)
from llama_index_memory_ext.text.tool_calls import RESULT_ROLES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from llama_index_memory_ext.store.cursors import Readers
    from llama_index_memory_ext.store.facts import Facts
    from llama_index_memory_ext.store.runner import Database
    from llama_index_memory_ext.text.tool_calls import Json

logger = logging.getLogger(__name__)

# Among so many rows of a session, at least one has words.
_FIRST_ROWS = 50
# A database refuses a statement with too many conditions.
_TURNS_PER_STATEMENT = 200
# A server skips a table that the user may not vacuum. It says so in a notice, which
# drivers do not hand on.
_MAY_VACUUM = text(
    "SELECT pg_has_role(relowner, 'USAGE') OR (SELECT pg_has_role(datdba, 'USAGE') FROM pg_database "
    "WHERE datname = current_database()) FROM pg_class WHERE oid = to_regclass(:name)"
)


class Span(NamedTuple):
    """The ids of the first and the last row of a part of a session; 0 and 0 if it has no row."""

    first: int
    last: int


class Deletion:
    """Deletes messages, sessions and users. Methods named ``..._within`` work in a transaction that has locked them."""

    def __init__(self, database: Database, readers: Readers, facts: Facts) -> None:
        self._tables = database.tables
        self._backend = database.backend
        self._readers = readers
        self._facts = facts

    # ---- rows ----

    def delete_within(self, conn: Connection, key: str, *conditions: Statement) -> int:
        """Delete the rows of a session for which the conditions hold, and return their number.

        The session gets a new epoch, so that its readers read it again. A cursor behind
        a deleted row moves back to the last row that remains, because a later row may
        get the id of a deleted one. ``Readers.move`` describes its state.
        """
        rows = self._tables.rows
        ids = self._tables.message_ids
        deleted = (rows.c.key == key, *conditions)
        count = 0
        first = conn.execute(select(func.min(rows.c.id)).where(*deleted)).scalar()
        if first is not None:
            self._delete_vectors(conn, key, first, deleted)
            row_ids = select(rows.c.id).where(*deleted)
            conn.execute(delete(ids).where(ids.c.key == key, ids.c.row_id.in_(row_ids)))
            count = conn.execute(delete(rows).where(*deleted)).rowcount
            self._move_cursors_back(conn, key, first)
        self._readers.renew_within(conn, key)
        return count

    def _delete_vectors(
        self, conn: Connection, key: str, first: int, deleted: Sequence[Statement]
    ) -> None:
        """Delete the vectors of rows; a tool's result shares the vector of its call, which comes before it."""
        rows = self._tables.rows
        vectors = self._tables.embeddings
        call = conn.execute(
            select(rows.c.id)
            .where(
                rows.c.key == key, rows.c.id <= first, rows.c.role.not_in(RESULT_ROLES)
            )
            .order_by(rows.c.id.desc())
            .limit(1)
        ).scalar()
        ids = select(cast(rows.c.id, String)).where(*deleted)
        conn.execute(
            delete(vectors).where(
                vectors.c.namespace == vectors_namespace(key),
                or_(vectors.c.id == str(call), vectors.c.id.in_(ids)),
            )
        )

    def _move_cursors_back(self, conn: Connection, key: str, first: int) -> None:
        """Move the cursors at or behind the row ``first`` to rows that remain."""
        cursors = self._tables.cursors
        behind = (cursors.c.key == key, cursors.c.position >= first)
        query = select(*cursors.c["reader", "position", "state"]).where(*behind)
        for cursor in conn.execute(query).all():
            position = 0
            state = None
            if cursor.state is None or ROWS in cursor.state:
                position = self._rows_between(conn, key, 0, cursor.position).last
            if cursor.state and ROWS in cursor.state:
                entries = self._entries_left(conn, key, cursor.state[ROWS])
                if position or entries:
                    state = {**cursor.state, ROWS: entries}
            moved = (cursors.c.key == key, cursors.c.reader == cursor.reader)
            conn.execute(
                update(cursors).where(*moved).values(position=position, state=state)
            )

    def _entries_left(
        self, conn: Connection, key: str, entries: Iterable[Sequence[Json]]
    ) -> list[Json]:
        """Return the entries of a state that still have rows, each with the rows that remain."""
        remaining: list[Json] = []
        for first, last, *values in entries:
            span = self._rows_between(conn, key, first, last)
            if span.first:
                remaining.append([*span, *values])
        return remaining

    def _rows_between(self, conn: Connection, key: str, first: int, last: int) -> Span:
        """Return the first and the last row of a session between two ids."""
        rows = self._tables.rows
        ids = conn.execute(
            select(
                func.min(rows.c.id).label("first"), func.max(rows.c.id).label("last")
            ).where(rows.c.key == key, rows.c.id >= first, rows.c.id <= last)
        ).one()
        return Span(ids.first or 0, ids.last or 0)

    # ---- old turns ----

    def retain_within(
        self, conn: Connection, key: str, since: int, most: int, *, unread: bool
    ) -> dict[str, int]:
        """Delete turns of a session that have a message from before ``since``, or beyond the ``most`` newest messages.

        The current turn stays. Without ``unread``, messages stay that a reader of facts
        has not read. Return the numbers of deleted messages, of facts that lost words,
        and of messages that stay because they are unread.
        """
        rows = self._tables.rows
        stored = conn.execute(
            select(*rows.c["id", "role", "timestamp", "status"])
            .where(rows.c.key == key)
            .order_by(rows.c.id)
        ).all()
        ids = [row.id for row in stored]
        starts = _starts_of_turns(stored)
        due = _count_due(stored, starts, since, most)
        end = due
        if not unread:
            read = bisect_right(ids, self._read_by_all(conn, key))
            end = min(due, _start_of_turn(starts, read))
        if not end:
            conn.rollback()
            return {"unread": due}
        self.delete_within(conn, key, rows.c.id <= ids[end - 1])
        first_left = ids[end] if end < len(ids) else LAST_ID
        changed = self._facts.lose_words_within(
            conn, key, first_left, self._first_with_words(conn, key)
        )
        return {"messages": end, "facts": changed, "unread": due - end}

    def _read_by_all(self, conn: Connection, key: str) -> int:
        """Return the last row that all readers of facts have read; ``LAST_ID`` without such a reader."""
        owners = self._tables.owners
        cursors = self._tables.cursors
        users = conn.scalars(select(owners.c.user_id).where(owners.c.key == key)).all()
        readers: list[str] = []
        for user_id in users:
            names = self._readers.facts_readers_within(conn, key, user_id)
            readers += [name for name in names if not name.startswith(PROFILE_READER)]
        query = select(func.coalesce(func.min(cursors.c.position), LAST_ID)).where(
            cursors.c.key == key, cursors.c.reader.in_(readers)
        )
        last_read: int = conn.execute(query).scalar_one()
        return last_read

    def _first_with_words(self, conn: Connection, key: str) -> int:
        """Return the first row with words; a message without words does not end the text around a fact."""
        rows = self._readers.find_within(
            conn, key, [ARCHIVED, ACTIVE], limit=_FIRST_ROWS
        )
        for row in rows:
            if spoken(row.message):
                return row.id
        return LAST_ID

    # ---- users ----

    def forget_within(
        self,
        conn: Connection,
        keys: Sequence[str],
        namespaces: Sequence[str],
        user_id: str | None,
    ) -> dict[str, int]:
        """Delete sessions, and the facts of users; return the number of deleted rows by kind.

        The embeddings of both are deleted, too. If a session has other owners, only the
        turns of the ``user_id`` are deleted, and the facts that others learned from
        them.
        """
        tables = self._tables
        counts = Counter(messages=0, cursors=0, facts=0, embeddings=0)
        if user_id is not None:
            read_by = self._namespaces_that_read(conn, keys)
            staying = self._users_who_stay(conn, keys, user_id)
            keys = [key for key in keys if not staying[key]]
            for key in [key for key, users in staying.items() if users]:
                owned = delete(tables.owners).where(
                    tables.owners.c.key == key, tables.owners.c.user_id == user_id
                )
                was_owner = conn.execute(owned).rowcount
                if was_owner:
                    counts["messages"] += self._delete_turns(conn, key, user_id)
                else:
                    # The session never was the user's.
                    del staying[key]
                counts["cursors"] += was_owner
                counts["cursors"] += self._delete_facts_readers(conn, key, user_id)
            counts.update(
                self._facts.forget_words_within(conn, namespaces, staying, read_by)
            )
        vectors = [*namespaces, *map(vectors_namespace, keys)]
        counts["messages"] += self._delete_by(conn, tables.rows.c.key, keys)
        counts["cursors"] += self._delete_by(conn, tables.cursors.c.key, keys)
        counts["cursors"] += self._delete_by(conn, tables.owners.c.key, keys)
        self._delete_by(conn, tables.message_ids.c.key, keys)
        self._delete_by(conn, tables.sessions.c.key, keys)
        counts["facts"] += self._delete_by(conn, tables.facts.c.namespace, namespaces)
        counts["embeddings"] += self._delete_by(
            conn, tables.embeddings.c.namespace, vectors
        )
        self._delete_by(conn, tables.users.c.namespace, namespaces)
        return dict(counts)

    def _delete_by(
        self, conn: Connection, column: Statement, names: Collection[str]
    ) -> int:
        """Delete the rows of a table that have one of these names in the column, and return their number."""
        if not names:
            return 0
        statement = delete(column.table).where(one_of(column, self._backend))
        return conn.execute(statement, {"names": names}).rowcount

    def _namespaces_that_read(self, conn: Connection, keys: Sequence[str]) -> set[str]:
        """Return the namespaces whose readers of facts have read one of these sessions."""
        cursors = self._tables.cursors
        query = select(cursors.c.reader).where(one_of(cursors.c.key, self._backend))
        namespaces: set[str] = set()
        for reader in conn.scalars(query, {"names": keys}):
            # The namespace follows " of ", and may itself hold these characters.
            parts = reader.split(" of ")
            namespaces.update(" of ".join(parts[i:]) for i in range(1, len(parts)))
        return namespaces

    def _users_who_stay(
        self, conn: Connection, keys: Sequence[str], user_id: str
    ) -> dict[str, set[str]]:
        """Return the other owners of each session."""
        owners = self._tables.owners
        query = select(owners.c.key, owners.c.user_id).where(
            owners.c.user_id != user_id,
            owners.c.kind != OF_NOBODY,
            one_of(owners.c.key, self._backend),
        )
        users: dict[str, set[str]] = {key: set() for key in keys}
        for owner in conn.execute(query, {"names": keys}):
            users[owner.key].add(owner.user_id)
        return users

    def _delete_turns(self, conn: Connection, key: str, user_id: str) -> int:
        """Delete the turns in which a user has spoken, the answers too, and return the number of their messages."""
        rows = self._tables.rows
        questions = conn.execute(
            select(rows.c.id, rows.c.user_id)
            .where(rows.c.key == key, rows.c.role == MessageRole.USER.value)
            .order_by(rows.c.id)
        ).all()
        ends = [question.id for question in questions[1:]]
        ends.append(LAST_ID)
        turns: list[Statement] = []
        for question, end in zip(questions, ends, strict=False):
            if (question.user_id or user_id) == user_id:
                turns.append((rows.c.id >= question.id) & (rows.c.id < end))
        count = 0
        for start in range(0, len(turns), _TURNS_PER_STATEMENT):
            batch = turns[start : start + _TURNS_PER_STATEMENT]
            count += self.delete_within(conn, key, or_(*batch))
        return count

    def _delete_facts_readers(self, conn: Connection, key: str, user_id: str) -> int:
        """Delete the cursors of the readers that extract a user's facts, and return their number."""
        cursors = self._tables.cursors
        readers = self._readers.facts_readers_within(conn, key, user_id)
        statement = delete(cursors).where(
            cursors.c.key == key, cursors.c.reader.in_(readers)
        )
        return conn.execute(statement).rowcount


def _starts_of_turns(rows: Sequence[Statement]) -> list[int]:
    """Return the places where turns begin, and behind them the number of rows."""
    starts = [i for i, row in enumerate(rows) if row.role == MessageRole.USER.value]
    return [0, *starts, len(rows)]


def _start_of_turn(starts: Sequence[int], place: int) -> int:
    """Return the place where the turn of a row begins."""
    return starts[bisect_right(starts, place) - 1]


def _count_due(
    rows: Sequence[Statement], starts: Sequence[int], since: int, most: int
) -> int:
    """Return the number of rows in turns that have a row from before ``since``, or beyond the ``most`` newest rows.

    The current turn is not due.
    """
    first_new = len(rows) - most
    old = [i for i, row in enumerate(rows) if row.timestamp < since or i < first_new]
    active = [i for i, row in enumerate(rows) if row.status == ACTIVE]
    if not old:
        return 0
    due = starts[bisect_right(starts, old[-1])]
    if active:
        due = min(due, _start_of_turn(starts, active[0]))
    return due


# ---- files ----


def vacuum(conn: Connection, tables: Tables) -> bool:
    """Rewrite the files of a database; False, and a warning in the log, if deleted words may remain."""
    if conn.dialect.name == "sqlite":
        return _vacuum_file(conn)
    return _vacuum_on_server(conn, tables)


def _vacuum_file(conn: Connection) -> bool:
    conn.exec_driver_sql("VACUUM")
    is_busy = conn.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar()
    if is_busy:
        logger.warning(
            "The write-ahead log of the database could not be emptied, because another connection is reading: "
            "deleted words may be in it until `await store.vacuum()` is called once more, or the last connection is "
            "closed."
        )
    return not is_busy


def _vacuum_on_server(conn: Connection, tables: Tables) -> bool:
    names = [
        conn.dialect.identifier_preparer.format_table(table)
        for table in tables.rows.metadata.sorted_tables
    ]
    forbidden = [
        name for name in names if not conn.execute(_MAY_VACUUM, {"name": name}).scalar()
    ]
    conn.exec_driver_sql("SET statement_timeout = 0")
    try:
        conn.exec_driver_sql(f"VACUUM {', '.join(names)}")
    finally:
        # No other call may get a connection with this setting.
        conn.invalidate()
    if forbidden:
        logger.warning(
            "This database user may not vacuum %s: deleted words stay in the files of the server until the owner of "
            "the tables or autovacuum vacuums them.",
            ", ".join(forbidden),
        )
    return not forbidden
