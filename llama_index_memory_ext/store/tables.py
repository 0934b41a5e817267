"""Defines the tables of a store and the rows that it reads, makes missing tables, and upgrades older ones."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import sqlalchemy as sa
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.bridge.pydantic import ValidationError
from llama_index.core.storage.chat_store.base_db import MessageStatus
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateSchema, CreateTable

from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.text.messages import (
    times_in,
)
from llama_index_memory_ext.text.tool_calls import RESULT_ROLES

if TYPE_CHECKING:
    from sqlalchemy.schema import SchemaItem

    from llama_index_memory_ext.text.tool_calls import Json


logger = logging.getLogger(__name__)

# The types of statements and conditions in SQLAlchemy name the types of all columns,
# which nothing here needs.
Statement: TypeAlias = Any
# A new row by the names of its columns.
Row: TypeAlias = dict[str, Any]

SCHEMA_VERSION = 5
# The oldest version that is upgraded in place.
_OLDEST_VERSION = 3

# How a session is open: to one user alone, to users who share it, or to no user yet.
OWN = "own"
SHARED = "shared"
OF_NOBODY = "nobody"
# Under this key the state of a cursor lists its entries about single rows.
ROWS = "rows"

# Begins the name of a cursor that stores a choice, and reads no messages.
PROFILE_READER = "profile "

# Under these keys, the ``info`` of a connection holds the epochs of the sessions that
# its transaction has locked, and the claims that it stores.
EPOCHS = "llama_index_memory_ext epochs"
DONE = "llama_index_memory_ext done"

ACTIVE = MessageStatus.ACTIVE.value
ARCHIVED = MessageStatus.ARCHIVED.value
# The largest id that a 64-bit column can hold.
LAST_ID = 2**63 - 1
# The last second of the year 9999, the last year of a datetime.
_LAST_SECOND = 253_402_300_799


class Tables:
    """The tables of ``SCHEMA_VERSION``.

    Each primary key begins with the key of a session or the namespace of a user, so
    that each table can be partitioned by it. The exceptions are ``rows``, LlamaIndex's
    own table, and ``schema``, which has one row.
    """

    def __init__(self, name: str, db_schema: str | None) -> None:
        metadata = sa.MetaData(schema=db_schema)

        def table(ending: str, *parts: SchemaItem) -> sa.Table:
            return sa.Table(f"{name}{ending}", metadata, *parts)

        # LlamaIndex's own table, but with 64-bit ids on a server, and an index that
        # finds a session's active rows. ``user_id``: the speaker in a session of
        # several users, "" if unknown; None in any other session.
        self.rows = table(
            "",
            sa.Column(
                "id",
                sa.BigInteger().with_variant(sa.Integer, "sqlite"),
                primary_key=True,
                autoincrement=True,
            ),
            sa.Column("key", sa.String, nullable=False, index=True),
            sa.Column("timestamp", sa.BigInteger, nullable=False, index=True),
            sa.Column("role", sa.String, nullable=False),
            sa.Column("status", sa.String, nullable=False, default=ACTIVE, index=True),
            sa.Column("data", sa.JSON, nullable=False),
            sa.Column("user_id", sa.String, nullable=True),
            sa.Index(f"ix_{name}_log", "key", "status", "id"),
        )
        # The ids that programs have given their messages, each with its row.
        self.message_ids = table(
            "_message_ids",
            _key("key"),
            _key("message_id"),
            _number("row_id"),
            sa.Index(f"ix_{name}_message_ids_row", "key", "row_id"),
        )
        # A writer of a session locks its row. A deletion changes the epoch.
        self.sessions = table("_sessions", _key("key"), _number("epoch"))
        # The owners of each session. ``kind``: how the owner has opened it last.
        self.owners = table(
            "_owners",
            _key("key"),
            _key("user_id"),
            sa.Column("kind", sa.String, nullable=False, server_default=OWN),
            sa.Index(f"ix_{name}_owners_user", "user_id", "key"),
        )
        # The cursor of each reader. ``state``: its result for the rows before.
        self.cursors = table(
            "_cursors",
            _key("key"),
            _key("reader"),
            _number("position"),
            sa.Column("state", sa.JSON(none_as_null=True), nullable=True),
            sa.Index(f"ix_{name}_cursors_reader", "reader", "key"),
        )
        # A writer of a user's facts locks the user's row, and counts the changes there.
        # A deletion changes the epoch.
        self.users = table(
            "_users", _key("namespace"), _number("epoch"), _number("change")
        )
        # A fact as JSON, with the number of its last change. The namespace is in the
        # key, so that one user's import cannot replace another user's fact.
        # ``agent_id``: "" for a fact that all agents of the user share. ``session_id``
        # and ``said_by`` let a deletion find the facts of a user's words in any
        # namespace, even without the rows.
        self.facts = table(
            "_facts",
            _key("namespace"),
            _key("id"),
            _number("change"),
            sa.Column("agent_id", sa.String, nullable=False),
            sa.Column("data", sa.JSON, nullable=False),
            sa.Column("session_id", sa.String),
            sa.Column("said_by", sa.String),
            sa.Index(f"ix_{name}_facts_change", "namespace", "change"),
            sa.Index(f"ix_{name}_facts_session_id", "session_id"),
            sa.Index(f"ix_{name}_facts_said_by", "said_by"),
        )
        # The vector of a text, with the text's digest: of the content of a fact, or of
        # a message, by the id of its first row, in a namespace of its session.
        self.embeddings = table(
            "_embeddings",
            _key("namespace"),
            _key("id"),
            _key("model"),
            sa.Column("digest", sa.String, nullable=False),
            sa.Column("vector", sa.LargeBinary, nullable=False),
        )
        self.schema = table(
            "_schema", sa.Column("version", sa.Integer, primary_key=True)
        )


def _key(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String, primary_key=True)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


# No user_id begins with a blank.
_ANONYMOUS = " session "


def anonymous(key: str) -> str:
    """Return the namespace of a session without a user, which no ``user_id`` can have."""
    return f"{_ANONYMOUS}{key}"


def name_of(namespace: str) -> str:
    """Return the user of a namespace, as people read it; for a session without a user, the session's id.

    >>> name_of(anonymous("chat-17")), name_of("ann")
    ('chat-17', 'ann')
    """
    return namespace.removeprefix(_ANONYMOUS)


def vectors_namespace(key: str) -> str:
    """Return the namespace of the embeddings of a session's messages.

    A user of the same name does no harm: a vector is found by the digest of its text,
    too, and a missing vector is made again.
    """
    return f"messages of {key}"


def upsert(
    table: sa.Table, backend: str, *columns: str, lock: bool = False
) -> Statement:
    """Return an INSERT that changes these columns of a row that exists; without columns it does not change the row.

    ``lock`` locks the row until the transaction ends, also if it is new.
    """
    # Imported here, because to import each dialect takes a while.
    put = import_module(f"sqlalchemy.dialects.{backend}").insert(table)
    if lock:
        changed = {"epoch": table.c.epoch}
    else:
        changed = {name: put.excluded[name] for name in columns}
    if not changed:
        return put.on_conflict_do_nothing()
    return put.on_conflict_do_update(index_elements=[*table.primary_key], set_=changed)


def one_of(column: Statement, backend: str) -> Statement:
    """Return the condition that a column has one of the ``names``, a parameter with any number of them."""
    if backend == "postgresql":
        return column == sa.any_(sa.bindparam("names", type_=sa.ARRAY(sa.String)))
    each = sa.func.json_each(sa.bindparam("names", type_=sa.JSON)).table_valued("value")
    return column.in_(sa.select(each.c.value))


def version_of(conn: sa.Connection, tables: Tables) -> int | None:
    """Return the version of the tables; None for a database without them, such as a database of the plain host."""
    if not sa.inspect(conn).has_table(tables.schema.name, tables.schema.schema):
        return None
    return conn.execute(sa.select(sa.func.max(tables.schema.c.version))).scalar()


def known_version(conn: sa.Connection, tables: Tables) -> int | None:
    """As ``version_of``; a StoreError for a version that this package neither uses nor upgrades."""
    version = version_of(conn, tables)
    if version is None or _OLDEST_VERSION <= version <= SCHEMA_VERSION:
        return version
    hint = "Use llama-index-memory-ext in a version at least as new as the one that made them."
    if version < _OLDEST_VERSION:
        hint = "Export messages and facts with the copy that made them, and import them into a new database."
    raise StoreError(
        f"The tables of {tables.rows.fullname!r} have schema version {version}, and this package knows version "
        f"{SCHEMA_VERSION}. {hint} Nothing was changed."
    )


def create_missing(conn: sa.Connection, tables: Tables) -> None:
    """Create the tables, columns and indexes that do not exist, and note the version."""
    metadata = tables.rows.metadata
    # Another process may have created them since.
    version = known_version(conn, tables)
    if version == SCHEMA_VERSION:
        return
    if metadata.schema is not None and not sa.inspect(conn).has_schema(metadata.schema):
        conn.execute(CreateSchema(metadata.schema, if_not_exists=True))
    for table in metadata.sorted_tables:
        conn.execute(CreateTable(table, if_not_exists=True))
        _add_columns(conn, table)
        for index in table.indexes:
            conn.execute(CreateIndex(index, if_not_exists=True))
    if version == _OLDEST_VERSION:
        _store_kinds(conn, tables)
    if version is not None:
        _store_speakers(conn, tables)
        _name_anonymous(conn, tables)
    conn.execute(sa.delete(tables.schema))
    conn.execute(sa.insert(tables.schema).values(version=SCHEMA_VERSION))


def _add_columns(conn: sa.Connection, table: sa.Table) -> None:
    """Add the columns that a table of an earlier version lacks, where its rows need no value for them."""
    columns = sa.inspect(conn).get_columns(table.name, table.schema)
    existing = {column["name"] for column in columns}
    name = conn.dialect.identifier_preparer.format_table(table)
    for column in table.columns:
        # A column that needs a value is missing only in a table of another program. The
        # first write to that table fails with the reason.
        can_be_added = column.nullable or column.server_default is not None
        if column.name not in existing and can_be_added:
            definition = CreateColumn(column).compile(dialect=conn.dialect)
            conn.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {definition}")


def _store_kinds(conn: sa.Connection, tables: Tables) -> None:
    """Store how the owners of version 3 have opened their sessions.

    A session that is its own user, and is no other session's user, was begun without a
    user. In a session of several users, the speakers of its messages are unknown.
    """
    owners = tables.owners
    rows = tables.rows
    inner = owners.alias()
    elsewhere = sa.exists().where(
        inner.c.user_id == owners.c.key, inner.c.key != owners.c.key
    )
    conn.execute(
        sa.update(owners)
        .where(owners.c.user_id == owners.c.key, ~elsewhere)
        .values(kind=OF_NOBODY)
    )
    has_several = (
        sa.select(inner.c.key)
        .where(inner.c.kind == OWN)
        .group_by(inner.c.key)
        .having(sa.func.count() > 1)
    )
    conn.execute(
        sa.update(owners)
        .where(owners.c.kind == OWN, owners.c.key.in_(has_several))
        .values(kind=SHARED)
    )
    shared = sa.select(owners.c.key).where(owners.c.kind == SHARED)
    conn.execute(
        sa.update(rows)
        .where(rows.c.role == MessageRole.USER.value, rows.c.key.in_(shared))
        .values(user_id="")
    )


def speaker_of(tables: Tables, session_id: Statement, row_id: Statement) -> Statement:
    """Return a subquery for the speaker of a row of a session; in a session of one user, that user."""
    rows = tables.rows
    owners = tables.owners
    owner = (
        sa.select(sa.func.min(owners.c.user_id))
        .where(owners.c.key == rows.c.key)
        .scalar_subquery()
    )
    speaker = sa.select(sa.func.coalesce(rows.c.user_id, owner))
    return speaker.where(
        rows.c.key == session_id, rows.c.id == row_id
    ).scalar_subquery()


def _store_speakers(conn: sa.Connection, tables: Tables) -> None:
    """Store the session and the speaker of each fact of an earlier version."""
    facts = tables.facts
    session_id = facts.c.data["session_id"].as_string()
    row_id = sa.cast(facts.c.data[("message_ids", 0)].as_string(), sa.BigInteger)
    learned = {
        "session_id": session_id,
        "said_by": speaker_of(tables, session_id, row_id),
    }
    conn.execute(sa.update(facts).where(session_id.is_not(None)).values(learned))


def _name_anonymous(conn: sa.Connection, tables: Tables) -> None:
    """Give sessions without a user separate namespaces: before version 5, these had the ids of the sessions."""
    owners = tables.owners
    is_anonymous = sa.and_(owners.c.kind == OF_NOBODY, owners.c.user_id == owners.c.key)
    sessions = sa.select(owners.c.key).where(is_anonymous)
    _move_facts(conn, tables, sessions)
    _rename_users(conn, tables, sessions)
    _rename_facts_readers(conn, tables, sessions)
    facts = tables.facts
    conn.execute(
        sa.update(facts)
        .where(facts.c.session_id.in_(sessions), facts.c.said_by == facts.c.session_id)
        .values(said_by=_anonymous_name(facts.c.session_id))
    )
    conn.execute(
        sa.update(owners)
        .where(is_anonymous)
        .values(user_id=_anonymous_name(owners.c.key))
    )


def _anonymous_name(column: Statement) -> Statement:
    return sa.literal(_ANONYMOUS) + column


def _move_facts(conn: sa.Connection, tables: Tables, sessions: Statement) -> None:
    """Move facts and vectors into the new namespaces.

    If a user has the id of a session as name, only the facts of that session move.
    """
    owners = tables.owners
    inner = tables.facts.alias()
    users = sa.select(owners.c.user_id).where(owners.c.user_id != owners.c.key)
    for table in (tables.embeddings, tables.facts):
        learned_there = sa.select(inner.c.id).where(
            inner.c.namespace == table.c.namespace,
            inner.c.session_id == table.c.namespace,
        )
        is_of_session = sa.or_(
            table.c.namespace.not_in(users), table.c.id.in_(learned_there)
        )
        conn.execute(
            sa.update(table)
            .where(table.c.namespace.in_(sessions), is_of_session)
            .values(namespace=_anonymous_name(table.c.namespace))
        )


def _rename_users(conn: sa.Connection, tables: Tables, sessions: Statement) -> None:
    """Copy the rows of the namespaces to their new names; an old row stays if a user of that name has facts."""
    users = tables.users
    is_session = users.c.namespace.in_(sessions)
    name = _anonymous_name(users.c.namespace)
    copies = sa.select(name, users.c.epoch, users.c.change).where(is_session)
    conn.execute(sa.insert(users).from_select(["namespace", "epoch", "change"], copies))
    # A reader of the user's facts must lose the facts that have moved.
    conn.execute(sa.update(users).where(is_session).values(epoch=users.c.epoch + 1))
    with_facts = sa.select(tables.facts.c.namespace)
    conn.execute(
        sa.delete(users).where(is_session, users.c.namespace.not_in(with_facts))
    )


def _rename_facts_readers(
    conn: sa.Connection, tables: Tables, sessions: Statement
) -> None:
    """Rename the readers of facts, whose names end with " of " and the namespace."""
    cursors = tables.cursors
    ending = sa.literal(" of ") + cursors.c.key
    length = sa.func.length(cursors.c.reader) - sa.func.length(ending)
    beginning = sa.func.substr(cursors.c.reader, 1, length)
    name = beginning + sa.literal(" of ") + _anonymous_name(cursors.c.key)
    conn.execute(
        sa.update(cursors)
        .where(
            cursors.c.key.in_(sessions),
            sa.func.substr(cursors.c.reader, length + 1) == ending,
        )
        .values(reader=name)
    )


class Opening(NamedTuple):
    """How a memory opens a session.

    ``user_id``: None for a memory without a user. ``shared``: other users may read and
    write there.
    """

    user_id: str | None = None
    shared: bool = False

    def user_in(self, key: str) -> str:
        """Return the user, or the namespace of a session without a user."""
        if self.user_id is None:
            return anonymous(key)
        return self.user_id

    @property
    def kind(self) -> str | None:
        """How the session is open to this user from now on; None: as before."""
        if self.shared:
            return SHARED
        return None if self.user_id is None else OWN


@dataclass(frozen=True, slots=True)
class LogRow:
    """One message of a session, parsed at its first use.

    ``id``: grows in the order of writing. ``timestamp``: the time of writing, in
    nanoseconds since 1970; 0 if the query has not read it. ``user_id``: the speaker in
    a session of several users, "" if unknown.
    """

    id: int
    role: str
    data: Json
    timestamp: int = 0
    status: str = ARCHIVED
    user_id: str | None = None

    @classmethod
    def from_query(cls, row: Statement) -> LogRow:
        """Return the row of a query that has selected all columns of the chat table but the key."""
        return cls(row.id, row.role, row.data, row.timestamp, row.status, row.user_id)

    @property
    def speaker(self) -> str:
        """The name, or else the id, of the speaker in a session of several users; "" in any other session."""
        if not self.user_id:
            return ""
        kwargs = self.data.get("additional_kwargs") or {}
        return str(kwargs.get("name") or self.user_id)

    @property
    def said_at(self) -> datetime | None:
        """The time (UTC) in its ``additional_kwargs``, if that is not after the time of writing.

        Otherwise the time of writing; None if neither is known.
        """
        times = times_in(self.data.get("additional_kwargs") or {})
        said_at = next(iter(times.values()), None)
        written = written_at(self.timestamp)
        if said_at and (written is None or said_at <= written):
            return said_at
        return written

    @property
    def day(self) -> str:
        """The day of ``said_at``, as 2026-11-20; "" if it is unknown."""
        said_at = self.said_at
        return said_at.date().isoformat() if said_at else ""

    @property
    def is_active(self) -> bool:
        """Whether it belongs to the current turn, and is not in the log yet."""
        return self.status == ACTIVE

    @property
    def is_result(self) -> bool:
        """Whether it is a tool's result."""
        return self.role in RESULT_ROLES

    @property
    def is_printed(self) -> bool:
        """Whether it is a tool's result that was put as a user's message, as ``as_taken`` describes."""
        return self.is_result and self.data.get("role") == MessageRole.USER.value

    @property
    def characters(self) -> int:
        """The approximate length of its text."""
        blocks = self.data.get("blocks") or ()
        return sum(len(block.get("text") or "") for block in blocks)

    @property
    def message(self) -> ChatMessage:
        """The message with the role of the row."""
        message = self.as_put
        if self.is_printed:
            return message.model_copy(update={"role": MessageRole(self.role)})
        return message

    @property
    def as_put(self) -> ChatMessage:
        """The message as it was put; a placeholder if this version of LlamaIndex cannot read it."""
        try:
            return ChatMessage.model_validate(self.data)
        except ValidationError:
            # An unreadable row must not make its whole session unreadable.
            logger.warning(
                "A stored %s message cannot be read by this version of LlamaIndex.",
                self.role,
            )
            return ChatMessage(role=self.role, content="[unreadable message]")


@dataclass(frozen=True, slots=True)
class Seen:
    """The position of a reader in a session: the epoch, its cursor, and the last row that it has read."""

    epoch: int = 0
    position: int = 0
    last_id: int = 0


class CursorState(NamedTuple):
    """The position of a cursor, and the state that was stored with it."""

    position: int
    state: Json


class FactsVersion(NamedTuple):
    """The version of a namespace of facts: ``epoch`` changes with a deletion, ``change`` grows with each change."""

    epoch: int
    change: int


_NO_FACTS = FactsVersion(epoch=0, change=0)


@dataclass(frozen=True, slots=True)
class LogPage:
    """Rows for a reader, oldest first.

    ``position``: the reader's cursor, the last row that it has processed; 0 at the
    beginning. ``epoch``: changes when rows are deleted. ``fresh``: false, and the page
    is empty, if rows were deleted since ``Seen``; the reader must then begin again.
    ``more``: there are older rows before the page. ``registered``: the cursor is
    stored. ``facts``: the version of the watched facts. ``state``: the state of the
    cursor, read by ``unread`` only.
    """

    position: int
    epoch: int
    rows: list[LogRow]
    fresh: bool = True
    more: bool = False
    registered: bool = False
    facts: FactsVersion = _NO_FACTS
    state: Json = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a session at one moment, read in one query for a prompt.

    ``position``: the cursor of the record. ``facts``: the version of the user's facts.
    ``is_empty``: the log has no row. ``is_closed``: the session holds words of another
    user. ``active``: the active rows. ``log``: the newest rows of the log. Both are
    oldest first.
    """

    epoch: int
    position: int
    facts: FactsVersion
    is_empty: bool
    is_closed: bool
    active: tuple[LogRow, ...]
    log: tuple[LogRow, ...]

    def log_behind(self, seen: Seen) -> list[LogRow] | None:
        """Return the rows of the log behind the last one that was read, oldest first; None if the log must be read."""
        last_id = seen.last_id
        is_complete = self.is_empty
        if last_id:
            has_last = any(row.id == last_id for row in self.log)
            is_complete = has_last and seen.epoch == self.epoch
        if not is_complete:
            return None
        return [row for row in self.log if row.id > last_id]


def written_at(timestamp: int | None) -> datetime | None:
    """Return the time (UTC) of nanoseconds since 1970; None if it is outside the years of a ``datetime``.

    >>> written_at(1_700_000_000_000_000_000).isoformat(), written_at(0)
    ('2023-11-14T22:13:20+00:00', None)
    """
    if timestamp is None or not 0 < timestamp < _LAST_SECOND * 10**9:
        return None
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(
        microseconds=timestamp // 1_000
    )
