"""Says what the tables are, and the statements that every turn needs."""

from __future__ import annotations

from typing import Any

from llama_index.core.storage.chat_store.base_db import MessageStatus
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    update,
)

ACTIVE, ARCHIVED = MessageStatus.ACTIVE.value, MessageStatus.ARCHIVED.value
# The log itself has a row among the cursors: its writers lock it, and its epoch tells the readers when
# rows that they have seen were deleted.
LOG = "<log>"
# So do the facts of a namespace: its position counts their changes.
FACTS = "<facts>"
# And whose a session is stands there too, as the name of a reader who never moves.
_OWNER = "<user> "
# The reader by which the sessions of a user were known before that, and still are in a plain ``Memory``.
_FACTS_READER = "relevant_facts of "


def owner(user_id: str) -> str:
    """What stands among the cursors of a session that belongs to this user."""
    return f"{_OWNER}{user_id}"


def owned_by(user_id: str) -> tuple[str, str]:
    """What tells that a session belongs to this user; one of both is enough."""
    return owner(user_id), f"{_FACTS_READER}{user_id}"


def keys_of(cursors: Table, user_id: str) -> Any:
    """The query for the sessions that belong to this user."""
    return select(cursors.c.key).where(cursors.c.reader.in_(owned_by(user_id)))


def owner_in(reader: str) -> str | None:
    """The user whom the name of a reader tells; None if it tells none."""
    for prefix in (_OWNER, _FACTS_READER):
        if reader.startswith(prefix):
            return reader.removeprefix(prefix)
    return None


def names_owner(reader: Any) -> Any:
    """The condition that the name of a reader tells whose the session is."""
    return or_(*(reader.startswith(prefix, autoescape=True) for prefix in (_OWNER, _FACTS_READER)))


def is_reader(reader: Any) -> Any:
    """The condition that a row among the cursors is that of a reader, who begins anew when rows were deleted."""
    return and_(reader.not_in((LOG, FACTS)), ~reader.startswith(_OWNER, autoescape=True))


def upsert_into(table: Table, backend: str) -> Any:
    """An insertion of rows that may take the place of known ones."""
    # Imported here: each takes a while, and a program needs but one.
    if backend == "postgresql":
        from sqlalchemy.dialects.postgresql import insert as upsert
    else:
        from sqlalchemy.dialects.sqlite import insert as upsert  # type: ignore[assignment]
    return upsert(table)


def define_rows(table_name: str, metadata: MetaData) -> Table:
    """LlamaIndex's own chat table, and an index by which the log of a session is found."""
    rows = Table(
        table_name,
        metadata,
        Column("id", Integer, primary_key=True, autoincrement=True),
        Column("key", String, nullable=False, index=True),
        Column("timestamp", BigInteger, nullable=False, index=True),
        Column("role", String, nullable=False),
        Column("status", String, nullable=False, default=ACTIVE, index=True),
        Column("data", JSON, nullable=False),
    )
    # The host's own indexes find a session's active rows only by reading all of its rows.
    Index(f"ix_{table_name}_log", rows.c.key, rows.c.status, rows.c.id)
    return rows


def define_cursors(table_name: str, metadata: MetaData) -> Table:
    """How far each reader of each session has come, and what it has made of what lies behind."""
    cursors = Table(
        f"{table_name}_cursors",
        metadata,
        Column("key", String, primary_key=True),
        Column("reader", String, primary_key=True),
        Column("position", BigInteger, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("state", JSON(none_as_null=True), nullable=True),
    )
    # A user's sessions are found by the names of their readers, once for each memory that is opened.
    Index(f"ix_{table_name}_cursors_reader", cursors.c.reader, cursors.c.key)
    return cursors


class Statements:
    """The statements of every turn, built once: building one costs as much as running it."""

    def __init__(self, rows: Table, cursors: Table, backend: str) -> None:
        session: Any = bindparam("session")
        last_id: Any = bindparam("last_id")
        is_active = and_(rows.c.key == session, rows.c.status == ACTIVE)
        epoch = _value(cursors.c.epoch, cursors, session, literal(LOG))
        position = _value(cursors.c.position, cursors, session, bindparam("by"))
        cursor = (epoch.label("epoch"), position.label("position"))
        self.cursor = select(null().label("id"), *cursor)
        # The last row that was seen comes along as a witness that it is still there.
        unseen = case((rows.c.id == last_id, null()), else_=rows.c.data).label("data")
        self.page = (
            select(rows.c.id, rows.c.role, unseen, *cursor)
            .where(rows.c.key == session, rows.c.status == ARCHIVED)
            .where(rows.c.id >= last_id, rows.c.id > position, rows.c.id <= bindparam("newest"))
            .order_by(rows.c.id.desc())
            .limit(bindparam("most"))
        )
        facts = (cursors.c.epoch, cursors.c.position)
        watched = [_value(column, cursors, bindparam("namespace"), literal(FACTS)) for column in facts]
        labelled = [column.label(name) for column, name in zip(watched, ("facts_epoch", "facts_change"), strict=True)]
        self.watching_cursor, self.watching_page = self.cursor.add_columns(*labelled), self.page.add_columns(*labelled)
        self.active = select(rows.c.id, rows.c.role, rows.c.data).where(is_active).order_by(rows.c.id)
        self.archive = update(rows).where(is_active, rows.c.id <= bindparam("last_flushed")).values(status=ARCHIVED)
        self.insert = insert(rows)
        upsert: Any = upsert_into(cursors, backend)
        columns = [cursors.c.key, cursors.c.reader]
        moved = {"position": upsert.excluded.position, "state": upsert.excluded.state}
        self.move = upsert.on_conflict_do_update(index_elements=columns, set_=moved)
        # A row of another kind may come along, so that it is there; it is not written again.
        locks = or_(cursors.c.reader == LOG, cursors.c.reader == FACTS)
        self.lock = upsert.on_conflict_do_update(
            index_elements=columns, set_={"position": cursors.c.position}, where=locks
        )
        own = (cursors.c.key == session, cursors.c.reader == bindparam("by"))
        self.row = select(cursors.c.epoch, cursors.c.position, cursors.c.state).where(*own)
        self.any = select(rows.c.id).where(rows.c.key == session).limit(1)
        self.rows = (
            select(rows.c.id, rows.c.role, rows.c.data, rows.c.timestamp)
            .where(rows.c.key == session, rows.c.status.in_(bindparam("statuses", expanding=True)))
            .where(rows.c.id.in_(bindparam("ids", expanding=True)))
            .order_by(rows.c.id)
        )
        self.unread = (
            select(rows.c.id, rows.c.role, rows.c.data, rows.c.timestamp)
            .where(rows.c.key == session, rows.c.id > last_id, rows.c.status.in_(bindparam("statuses", expanding=True)))
            .order_by(rows.c.id)
            .limit(bindparam("most"))
        )
        self.count = select(func.count()).where(rows.c.key == session, rows.c.id > position)
        behind = exists().where(rows.c.key == cursors.c.key, rows.c.id > cursors.c.position)
        self.pending = select(cursors.c.key).where(cursors.c.reader == bindparam("by"), behind)


def _value(column: Any, cursors: Table, key: Any, reader: Any) -> Any:
    query = select(column).where(cursors.c.key == key, cursors.c.reader == reader)
    return func.coalesce(query.scalar_subquery(), 0)
