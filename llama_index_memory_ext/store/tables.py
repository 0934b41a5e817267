"""Defines the tables of a store, and makes those that are missing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import sqlalchemy as sa
from llama_index.core.base.llms.types import MessageRole
from llama_index.core.storage.chat_store.base_db import MessageStatus
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateSchema, CreateTable

from llama_index_memory_ext.errors import StoreError

if TYPE_CHECKING:
    from sqlalchemy.schema import SchemaItem

# The types of statements and conditions in SQLAlchemy name the types of all columns, which nothing here needs.
Statement: TypeAlias = Any
# A new row by the names of its columns.
Row: TypeAlias = dict[str, Any]

SCHEMA_VERSION = 4
# The oldest version that is upgraded in place.
_OLDEST_VERSION = 3

# How a session is open: to one user alone, to users who share it, or to no user yet: it is its own user then.
OWN, SHARED, OF_NOBODY = "own", "shared", "nobody"

ACTIVE, ARCHIVED = MessageStatus.ACTIVE.value, MessageStatus.ARCHIVED.value
# The largest id that a 64-bit column can hold.
LAST_ID = 2**63 - 1


class Tables:
    """The tables of ``SCHEMA_VERSION``.

    But for ``rows``, which is LlamaIndex's, and ``schema``, which has one row, each primary key begins with the key of
    a session or the namespace of a user. So each table can be partitioned by that.
    """

    def __init__(self, name: str, db_schema: str | None) -> None:
        metadata = sa.MetaData(schema=db_schema)

        def table(ending: str, *parts: SchemaItem) -> sa.Table:
            return sa.Table(f"{name}{ending}", metadata, *parts)

        # LlamaIndex's own table, but with 64-bit ids on a server, and an index that finds a session's active rows.
        self.rows = table(
            "",
            sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
            sa.Column("key", sa.String, nullable=False, index=True),
            sa.Column("timestamp", sa.BigInteger, nullable=False, index=True),
            sa.Column("role", sa.String, nullable=False),
            sa.Column("status", sa.String, nullable=False, default=ACTIVE, index=True),
            sa.Column("data", sa.JSON, nullable=False),
            # Who said it, in a session of several users; None in any other, "" where it is unknown.
            sa.Column("user_id", sa.String, nullable=True),
            sa.Index(f"ix_{name}_log", "key", "status", "id"),
        )
        # The ids that programs have given their messages, each with its row.
        by_row = sa.Index(f"ix_{name}_message_ids_row", "key", "row_id")
        self.message_ids = table("_message_ids", _key("key"), _key("message_id"), _number("row_id"), by_row)
        # A writer of a session locks its row. The epoch tells readers that rows were deleted.
        self.sessions = table("_sessions", _key("key"), _number("epoch"))
        # The users who have written to a session, and how each of them has opened it last.
        by_user = sa.Index(f"ix_{name}_owners_user", "user_id", "key")
        kind = sa.Column("kind", sa.String, nullable=False, server_default=OWN)
        self.owners = table("_owners", _key("key"), _key("user_id"), kind, by_user)
        # How far each reader of a session has come, and what it has made of the rows before that.
        state = sa.Column("state", sa.JSON(none_as_null=True), nullable=True)
        by_reader = sa.Index(f"ix_{name}_cursors_reader", "reader", "key")
        self.cursors = table("_cursors", _key("key"), _key("reader"), _number("position"), state, by_reader)
        # A writer of a user's facts locks the user's row, and counts the changes there. The epoch is as in sessions.
        self.users = table("_users", _key("namespace"), _number("epoch"), _number("change"))
        # A fact as JSON, with the number of its last change. What one user imports cannot replace another's fact. The
        # agent is that of the JSON, "" for a fact that all agents of the user share.
        agent, data = sa.Column("agent_id", sa.String, nullable=False), sa.Column("data", sa.JSON, nullable=False)
        by_change = sa.Index(f"ix_{name}_facts_change", "namespace", "change")
        self.facts = table("_facts", _key("namespace"), _key("id"), _number("change"), agent, data, by_change)
        # The vector that a model gave for the content of a fact, and a digest of that content; so for messages, by the
        # id of the first row of each, in a namespace of their session.
        digest = sa.Column("digest", sa.String, nullable=False)
        vector = sa.Column("vector", sa.LargeBinary, nullable=False)
        self.embeddings = table("_embeddings", _key("namespace"), _key("id"), _key("model"), digest, vector)
        self.schema = table("_schema", sa.Column("version", sa.Integer, primary_key=True))


def _key(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String, primary_key=True)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def vectors_namespace(key: str) -> str:
    """The namespace of the embeddings of a session's messages.

    A user may have the same name: vectors go by the digest of their text too, and are made again where they are gone.
    """
    return f"messages of {key}"


def upsert(table: sa.Table, backend: str, *columns: str) -> Statement:
    """An INSERT that changes these columns of a row that exists; without columns it leaves the row as it is."""
    put = _insert(table, backend)
    if not columns:
        return put.on_conflict_do_nothing()
    return put.on_conflict_do_update(
        index_elements=[*table.primary_key], set_={name: put.excluded[name] for name in columns}
    )


def lock_rows(table: sa.Table, backend: str) -> Statement:
    """An INSERT that locks rows until the transaction ends, and makes those that are missing."""
    same = {"epoch": table.c.epoch}
    return _insert(table, backend).on_conflict_do_update(index_elements=[*table.primary_key], set_=same)


def one_of(column: Statement, backend: str) -> Statement:
    """The condition that a column has one of the ``names``, any number of them in one parameter."""
    if backend == "postgresql":
        return column == sa.any_(sa.bindparam("names", type_=sa.ARRAY(sa.String)))
    each = sa.func.json_each(sa.bindparam("names", type_=sa.JSON)).table_valued("value")
    return column.in_(sa.select(each.c.value))


def _insert(table: sa.Table, backend: str) -> Statement:
    # Only the dialect that is used: importing each takes a while.
    return import_module(f"sqlalchemy.dialects.{backend}").insert(table)


def version_of(conn: sa.Connection, tables: Tables) -> int | None:
    """The version of the tables that exist; None for a database without them, such as one of the plain host."""
    if not sa.inspect(conn).has_table(tables.schema.name, tables.schema.schema):
        return None
    version: int | None = conn.execute(sa.select(sa.func.max(tables.schema.c.version))).scalar()
    return version


def known_version(conn: sa.Connection, tables: Tables) -> int | None:
    """As ``version_of``; raises a StoreError for a version that this package neither uses nor upgrades."""
    version = version_of(conn, tables)
    if version is not None and version > SCHEMA_VERSION:
        raise StoreError(
            f"The tables of {tables.rows.fullname!r} have schema version {version}, and this package knows version "
            f"{SCHEMA_VERSION}. Use llama-index-memory-ext in a version at least as new as the one that made them. "
            "Nothing was changed."
        )
    if version is not None and version < _OLDEST_VERSION:
        raise StoreError(
            f"The tables of {tables.rows.fullname!r} have schema version {version}, of a copy of this package from "
            f"before its first release, and this one knows version {SCHEMA_VERSION}. Export messages and facts with "
            "the copy that made them, and import them into a new database. Nothing was changed."
        )
    return version


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
    if version is not None:
        _tell_owners(conn, tables)
    conn.execute(sa.delete(tables.schema))
    conn.execute(sa.insert(tables.schema).values(version=SCHEMA_VERSION))


def _add_columns(conn: sa.Connection, table: sa.Table) -> None:
    known = {column["name"] for column in sa.inspect(conn).get_columns(table.name, table.schema)}
    name = conn.dialect.identifier_preparer.format_table(table)
    for column in table.columns:
        # Of a table of another form, the first row that is written tells what is wrong.
        if column.name not in known and (column.nullable or column.server_default is not None):
            definition = CreateColumn(column).compile(dialect=conn.dialect)
            conn.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {definition}")


def _tell_owners(conn: sa.Connection, tables: Tables) -> None:
    """Write down how the sessions of version 3 are open.

    One that is its own user, and no other session's, was begun without a user. Where several users have written, it is
    not known who said what.
    """
    owners, rows, other = tables.owners, tables.rows, tables.owners.alias()
    elsewhere = sa.exists().where(other.c.user_id == owners.c.key, other.c.key != owners.c.key)
    of_nobody = sa.and_(owners.c.user_id == owners.c.key, ~elsewhere)
    conn.execute(sa.update(owners).where(of_nobody).values(kind=OF_NOBODY))
    several = sa.select(other.c.key).where(other.c.kind == OWN).group_by(other.c.key).having(sa.func.count() > 1)
    conn.execute(sa.update(owners).where(owners.c.kind == OWN, owners.c.key.in_(several)).values(kind=SHARED))
    shared = sa.select(owners.c.key).where(owners.c.kind == SHARED)
    conn.execute(
        sa.update(rows).where(rows.c.role == MessageRole.USER.value, rows.c.key.in_(shared)).values(user_id="")
    )
