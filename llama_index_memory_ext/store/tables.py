"""Defines the tables of a store, what is read of a session, and makes the tables that are missing."""

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
from llama_index_memory_ext.text.messages import times_in
from llama_index_memory_ext.text.tool_calls import RESULT_ROLES

if TYPE_CHECKING:
    from sqlalchemy.schema import SchemaItem

    from llama_index_memory_ext.text.tool_calls import Json


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
# Under this key the state of a cursor lists what it says of single rows.
ROWS = "rows"

# Under these keys a connection says of its transaction which epochs the locked sessions
# have, and what need not be done again once it is committed.
EPOCHS = "llama_index_memory_ext epochs"
DONE = "llama_index_memory_ext done"

ACTIVE = MessageStatus.ACTIVE.value
ARCHIVED = MessageStatus.ARCHIVED.value
# The largest id that a 64-bit column can hold.
LAST_ID = 2**63 - 1


class Tables:
    """The tables of ``SCHEMA_VERSION``.

    But for ``rows``, which is LlamaIndex's, and ``schema``, which has one row, each
    primary key begins with the key of a session or the namespace of a user. So each
    table can be partitioned by that.
    """

    def __init__(self, name: str, db_schema: str | None) -> None:
        metadata = sa.MetaData(schema=db_schema)

        def table(ending: str, *parts: SchemaItem) -> sa.Table:
            return sa.Table(f"{name}{ending}", metadata, *parts)

        # LlamaIndex's own table, but with 64-bit ids on a server, and an index that
        # finds a session's active rows.
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
            # Who said it, in a session of several users; None in any other, "" where it
            # is unknown.
            sa.Column("user_id", sa.String, nullable=True),
            sa.Index(f"ix_{name}_log", "key", "status", "id"),
        )
        # The ids that programs have given their messages, each with its row.
        by_row = sa.Index(f"ix_{name}_message_ids_row", "key", "row_id")
        self.message_ids = table(
            "_message_ids", _key("key"), _key("message_id"), _number("row_id"), by_row
        )
        # A writer of a session locks its row. The epoch tells readers that rows were
        # deleted.
        self.sessions = table("_sessions", _key("key"), _number("epoch"))
        # The users who have written to a session, and how each of them has opened it
        # last.
        by_user = sa.Index(f"ix_{name}_owners_user", "user_id", "key")
        kind = sa.Column("kind", sa.String, nullable=False, server_default=OWN)
        self.owners = table("_owners", _key("key"), _key("user_id"), kind, by_user)
        # How far each reader of a session has come, and what it has made of the rows
        # before that.
        state = sa.Column("state", sa.JSON(none_as_null=True), nullable=True)
        by_reader = sa.Index(f"ix_{name}_cursors_reader", "reader", "key")
        self.cursors = table(
            "_cursors",
            _key("key"),
            _key("reader"),
            _number("position"),
            state,
            by_reader,
        )
        # A writer of a user's facts locks the user's row, and counts the changes there.
        # The epoch is as in sessions.
        self.users = table(
            "_users", _key("namespace"), _number("epoch"), _number("change")
        )
        # A fact as JSON, with the number of its last change. What one user imports
        # cannot replace another's fact. The agent is that of the JSON, "" for a fact
        # that all agents of the user share.
        agent = sa.Column("agent_id", sa.String, nullable=False)
        data = sa.Column("data", sa.JSON, nullable=False)
        by_change = sa.Index(f"ix_{name}_facts_change", "namespace", "change")
        # Where it was learned, and from whose words: so deletion finds it in any
        # namespace, and when the rows are gone.
        learned = (sa.Column("session_id", sa.String), sa.Column("said_by", sa.String))
        by_words = [
            sa.Index(f"ix_{name}_facts_{column.name}", column.name)
            for column in learned
        ]
        key = _key("namespace"), _key("id")
        self.facts = table(
            "_facts",
            *key,
            _number("change"),
            agent,
            data,
            *learned,
            by_change,
            *by_words,
        )
        # The vector that a model gave for the content of a fact, and a digest of that
        # content; so for messages, by the id of the first row of each, in a namespace
        # of their session.
        digest = sa.Column("digest", sa.String, nullable=False)
        vector = sa.Column("vector", sa.LargeBinary, nullable=False)
        self.embeddings = table(
            "_embeddings", _key("namespace"), _key("id"), _key("model"), digest, vector
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
    """Return the user of a namespace as people are shown it: of a session without a user, the session's id.

    >>> name_of(anonymous("chat-17")), name_of("ann")
    ('chat-17', 'ann')
    """
    return namespace.removeprefix(_ANONYMOUS)


def vectors_namespace(key: str) -> str:
    """Return the namespace of the embeddings of a session's messages.

    A user may have the same name: vectors go by the digest of their text too, and are
    made again where they are gone.
    """
    return f"messages of {key}"


def upsert(
    table: sa.Table, backend: str, *columns: str, lock: bool = False
) -> Statement:
    """Return an INSERT that changes these columns of a row that exists; without columns it leaves the row as it is.

    ``lock`` locks a row until the transaction ends, whether it has existed or not.
    """
    # Only the dialect that is used: importing each takes a while.
    put = import_module(f"sqlalchemy.dialects.{backend}").insert(table)
    if lock:
        changed = {"epoch": table.c.epoch}
    else:
        changed = {name: put.excluded[name] for name in columns}
    if not changed:
        return put.on_conflict_do_nothing()
    return put.on_conflict_do_update(index_elements=[*table.primary_key], set_=changed)


def one_of(column: Statement, backend: str) -> Statement:
    """Return the condition that a column has one of the ``names``, any number of them in one parameter."""
    if backend == "postgresql":
        return column == sa.any_(sa.bindparam("names", type_=sa.ARRAY(sa.String)))
    each = sa.func.json_each(sa.bindparam("names", type_=sa.JSON)).table_valued("value")
    return column.in_(sa.select(each.c.value))


def version_of(conn: sa.Connection, tables: Tables) -> int | None:
    """Return the version of the tables that exist; None for a database without them, such as one of the plain host."""
    if not sa.inspect(conn).has_table(tables.schema.name, tables.schema.schema):
        return None
    return conn.execute(sa.select(sa.func.max(tables.schema.c.version))).scalar()


def known_version(conn: sa.Connection, tables: Tables) -> int | None:
    """As ``version_of``; raises a StoreError for a version that this package neither uses nor upgrades."""
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
        known = {
            column["name"]
            for column in sa.inspect(conn).get_columns(table.name, table.schema)
        }
        name = conn.dialect.identifier_preparer.format_table(table)
        for column in table.columns:
            # Of a table of another form, the first row that is written tells what is
            # wrong.
            if column.name not in known and (
                column.nullable or column.server_default is not None
            ):
                definition = CreateColumn(column).compile(dialect=conn.dialect)
                conn.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {definition}")
        for index in table.indexes:
            conn.execute(CreateIndex(index, if_not_exists=True))
    if version == _OLDEST_VERSION:
        _tell_owners(conn, tables)
    if version is not None:
        _tell_speakers(conn, tables)
        _name_anonymous(conn, tables)
    conn.execute(sa.delete(tables.schema))
    conn.execute(sa.insert(tables.schema).values(version=SCHEMA_VERSION))


def _tell_owners(conn: sa.Connection, tables: Tables) -> None:
    """Write down how the sessions of version 3 are open.

    One that is its own user, and no other session's, was begun without a user. Where
    several users have written, it is not known who said what.
    """
    owners, rows, other = tables.owners, tables.rows, tables.owners.alias()
    elsewhere = sa.exists().where(
        other.c.user_id == owners.c.key, other.c.key != owners.c.key
    )
    of_nobody = sa.and_(owners.c.user_id == owners.c.key, ~elsewhere)
    conn.execute(sa.update(owners).where(of_nobody).values(kind=OF_NOBODY))
    several = (
        sa.select(other.c.key)
        .where(other.c.kind == OWN)
        .group_by(other.c.key)
        .having(sa.func.count() > 1)
    )
    conn.execute(
        sa.update(owners)
        .where(owners.c.kind == OWN, owners.c.key.in_(several))
        .values(kind=SHARED)
    )
    shared = sa.select(owners.c.key).where(owners.c.kind == SHARED)
    conn.execute(
        sa.update(rows)
        .where(rows.c.role == MessageRole.USER.value, rows.c.key.in_(shared))
        .values(user_id="")
    )


def speaker_of(tables: Tables, session_id: Statement, row_id: Statement) -> Statement:
    """Return a subquery for the user who has said a row of a session; in a session of one user, that user."""
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


def _tell_speakers(conn: sa.Connection, tables: Tables) -> None:
    """Write beside the facts of earlier versions where they were learned, and from whose words."""
    facts = tables.facts
    session_id = facts.c.data["session_id"].as_string()
    row_id = sa.cast(facts.c.data[("message_ids", 0)].as_string(), sa.BigInteger)
    learned = {
        "session_id": session_id,
        "said_by": speaker_of(tables, session_id, row_id),
    }
    conn.execute(sa.update(facts).where(session_id.is_not(None)).values(learned))


def _name_anonymous(conn: sa.Connection, tables: Tables) -> None:
    """Give sessions without a user their own namespaces: until version 4 these had the sessions' ids.

    Where a user has the same name, the facts that were learned in the session are the
    session's.
    """
    owners = tables.owners
    facts = tables.facts
    users = tables.users
    cursors = tables.cursors
    vectors = tables.embeddings
    is_anonymous = sa.and_(owners.c.kind == OF_NOBODY, owners.c.user_id == owners.c.key)
    sessions = sa.select(owners.c.key).where(is_anonymous)
    named = sa.select(owners.c.user_id).where(owners.c.user_id != owners.c.key)

    def renamed(column: sa.Column[str]) -> Statement:
        return sa.literal(_ANONYMOUS) + column

    inner = facts.alias()
    for table in (vectors, facts):
        of_session = (
            inner.c.namespace == table.c.namespace,
            inner.c.session_id == table.c.namespace,
        )
        learned = sa.select(inner.c.id).where(*of_session)
        is_sessions = sa.or_(table.c.namespace.not_in(named), table.c.id.in_(learned))
        moved = sa.update(table).where(table.c.namespace.in_(sessions), is_sessions)
        conn.execute(moved.values(namespace=renamed(table.c.namespace)))
    copied = sa.select(renamed(users.c.namespace), users.c.epoch, users.c.change)
    copied = copied.where(users.c.namespace.in_(sessions))
    conn.execute(sa.insert(users).from_select(["namespace", "epoch", "change"], copied))
    # Who has read the facts of a user reads them anew.
    conn.execute(
        sa.update(users)
        .where(users.c.namespace.in_(sessions))
        .values(epoch=users.c.epoch + 1)
    )
    left = sa.select(facts.c.namespace)
    conn.execute(
        sa.delete(users).where(
            users.c.namespace.in_(sessions), users.c.namespace.not_in(left)
        )
    )
    ending = sa.literal(" of ") + cursors.c.key
    start = sa.func.length(cursors.c.reader) - sa.func.length(ending)
    reader = (
        sa.func.substr(cursors.c.reader, 1, start)
        + sa.literal(" of ")
        + renamed(cursors.c.key)
    )
    for_facts = (
        cursors.c.key.in_(sessions),
        sa.func.substr(cursors.c.reader, start + 1) == ending,
    )
    conn.execute(sa.update(cursors).where(*for_facts).values(reader=reader))
    said_there = (
        facts.c.session_id.in_(sessions),
        facts.c.said_by == facts.c.session_id,
    )
    conn.execute(
        sa.update(facts).where(*said_there).values(said_by=renamed(facts.c.session_id))
    )
    conn.execute(
        sa.update(owners).where(is_anonymous).values(user_id=renamed(owners.c.key))
    )


logger = logging.getLogger(__name__)


class Opening(NamedTuple):
    """Who opens a session: a user, None for a memory without one. ``shared``: other users may read and write there."""

    user_id: str | None = None
    shared: bool = False

    def user_in(self, key: str) -> str:
        """Return the user, or the namespace of a session that was begun without one."""
        if self.user_id is None:
            return anonymous(key)
        return self.user_id

    @property
    def kind(self) -> str | None:
        """How the session is open to this user from now on; None: as it was."""
        is_own = None if self.user_id is None else OWN
        return SHARED if self.shared else is_own


@dataclass(frozen=True, slots=True)
class LogRow:
    """One message of a session, parsed when it is asked for. ``id`` grows in the order of writing.

    ``timestamp`` is when it was written, in nanoseconds since 1970; 0 where the query
    did not ask for it. The default ``status`` is that of the log. ``user_id`` says who
    wrote it in a session of several users, "" if that is unknown.
    """

    id: int
    role: str
    data: Json
    timestamp: int = 0
    status: str = ARCHIVED
    user_id: str | None = None

    @property
    def speaker(self) -> str:
        """The name, or else the id, of the user who said it, in a session of several users; "" in any other."""
        if self.user_id:
            kwargs = self.data.get("additional_kwargs")
        else:
            kwargs = None
        return str((kwargs or {}).get("name") or self.user_id or "")

    @property
    def said_at(self) -> datetime | None:
        """When it was said (UTC), as its ``additional_kwargs`` tell, but no later than it was written.

        When it was written, if they do not tell; None where neither is known.
        """
        told = next(
            iter(times_in(self.data.get("additional_kwargs") or {}).values()), None
        )
        written = written_at(self.timestamp)
        if told and (written is None or told <= written):
            return told
        return written

    @property
    def day(self) -> str:
        """The day on which it was said (UTC), as 2026-11-20; "" if it is unknown."""
        said_at = self.said_at
        if said_at:
            return said_at.date().isoformat()
        return ""

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
        """Whether it is a tool's result that was put as the user's message, as by ``as_taken``."""
        return self.is_result and self.data.get("role") == MessageRole.USER.value

    @property
    def characters(self) -> int:
        """About how long its text is."""
        return sum(
            len(block.get("text") or "") for block in self.data.get("blocks") or ()
        )

    @property
    def message(self) -> ChatMessage:
        """The message with the role of the row, which is what it is taken for."""
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
            # One such row must not make a whole session unreadable.
            logger.warning(
                "A stored %s message cannot be read by this version of LlamaIndex.",
                self.role,
            )
            return ChatMessage(role=self.role, content="[unreadable message]")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader remembers of a session: the epoch, its cursor, and the last row that it was given."""

    epoch: int = 0
    position: int = 0
    last_id: int = 0


@dataclass(frozen=True, slots=True)
class LogPage:
    """Rows for a reader, oldest first.

    ``position`` is the reader's cursor: the last row that it has left behind, 0 at the
    beginning. ``epoch`` changes when rows are deleted. ``fresh`` is false, and the page
    empty, if that has happened since ``Seen``: what the reader remembers of the session
    is void then. ``more`` is true if there are older rows before the page.
    ``registered`` is true if the cursor is stored. ``facts`` is the epoch and the last
    change of the facts that were watched. ``unread`` gives the ``state``, too, that the
    cursor was moved with.
    """

    position: int
    epoch: int
    rows: list[LogRow]
    fresh: bool = True
    more: bool = False
    registered: bool = False
    facts: tuple[int, int] = (0, 0)
    state: Json = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a session holds at one moment, read in one query for a prompt.

    ``active`` are its active rows, and ``log`` the newest rows of its log from a known
    row on, both oldest first. ``position`` is the cursor of the record, and ``facts``
    as in ``LogPage`` those of the user. ``is_empty``: the log has no row.
    ``is_closed``: the session holds words of another user.
    """

    epoch: int
    position: int
    facts: tuple[int, int]
    is_empty: bool
    is_closed: bool
    active: tuple[LogRow, ...]
    log: tuple[LogRow, ...]

    def log_behind(self, seen: Seen) -> list[LogRow] | None:
        """Return the rows of the log behind those that were seen, oldest first; None if that takes a query."""
        last_id = seen.last_id
        if last_id:
            is_known = seen.epoch == self.epoch and any(
                row.id == last_id for row in self.log
            )
        else:
            is_known = self.is_empty
        if is_known:
            return [row for row in self.log if row.id > last_id]
        return None


def written_at(timestamp: int | None) -> datetime | None:
    """When a row was written (UTC), from nanoseconds since 1970; None if that is no time of a clock.

    >>> written_at(1_700_000_000_000_000_000).isoformat(), written_at(0)
    ('2023-11-14T22:13:20+00:00', None)
    """
    # A datetime can hold no later second.
    if timestamp is None or not 0 < timestamp < 253_402_300_799 * 10**9:
        return None
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(
        microseconds=timestamp // 1_000
    )
