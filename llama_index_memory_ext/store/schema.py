"""Defines the tables of a store, and makes those that are missing."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from llama_index.core.storage.chat_store.base_db import MessageStatus
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    delete,
    func,
    insert,
    inspect,
    select,
)
from sqlalchemy.schema import CreateIndex, CreateSchema, CreateTable

from llama_index_memory_ext.errors import StoreError

if TYPE_CHECKING:
    from sqlalchemy import Connection

SCHEMA_VERSION = 1

ACTIVE, ARCHIVED = MessageStatus.ACTIVE.value, MessageStatus.ARCHIVED.value
# The largest id that a 64-bit column can hold.
LAST_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a store.

    But for ``rows``, which is LlamaIndex's, and ``schema``, which has one row, each primary key begins with the key of
    a session or the namespace of a user. So each table can be partitioned by that.
    """

    metadata: MetaData
    rows: Table
    sessions: Table
    owners: Table
    cursors: Table
    users: Table
    facts: Table
    embeddings: Table
    schema: Table

    @property
    def name(self) -> str:
        """The name of the chat table, with which the names of all others begin."""
        return self.rows.fullname


def define_tables(table_name: str, db_schema: str | None) -> Tables:
    """The tables of ``SCHEMA_VERSION``."""
    metadata = MetaData(schema=db_schema)

    def table(name: str, *columns: Column[Any]) -> Table:
        return Table(f"{table_name}{name}", metadata, *columns)

    tables = Tables(
        metadata=metadata,
        # LlamaIndex's own table, but for the size of its ids on a server.
        rows=table(
            "",
            Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
            Column("key", String, nullable=False, index=True),
            Column("timestamp", BigInteger, nullable=False, index=True),
            Column("role", String, nullable=False),
            Column("status", String, nullable=False, default=ACTIVE, index=True),
            Column("data", JSON, nullable=False),
        ),
        # A writer of a session locks its row. The epoch tells readers that rows were deleted.
        sessions=table("_sessions", _key("key"), Column("epoch", BigInteger, nullable=False)),
        # The users who have written to a session.
        owners=table("_owners", _key("key"), _key("user_id")),
        # How far each reader of a session has come, and what it has made of the rows before that.
        cursors=table(
            "_cursors",
            _key("key"),
            _key("reader"),
            Column("position", BigInteger, nullable=False),
            Column("state", JSON(none_as_null=True), nullable=True),
        ),
        # A writer of a user's facts locks the user's row, and counts the changes there. The epoch is as in sessions.
        users=table(
            "_users",
            _key("namespace"),
            Column("epoch", BigInteger, nullable=False),
            Column("change", BigInteger, nullable=False),
        ),
        # A fact as JSON, with the number of its last change. What one user imports cannot replace another's fact.
        facts=table(
            "_facts",
            _key("namespace"),
            _key("id"),
            Column("change", BigInteger, nullable=False),
            Column("data", JSON, nullable=False),
        ),
        # The vector that a model gave for the content of a fact, and a digest of that content.
        embeddings=table(
            "_embeddings",
            _key("namespace"),
            _key("id"),
            _key("model"),
            Column("digest", String, nullable=False),
            Column("vector", LargeBinary, nullable=False),
        ),
        schema=table("_schema", Column("version", Integer, primary_key=True)),
    )
    # The host's own indexes find a session's active rows only by reading all of its rows.
    Index(f"ix_{table_name}_log", tables.rows.c.key, tables.rows.c.status, tables.rows.c.id)
    Index(f"ix_{table_name}_owners_user", tables.owners.c.user_id, tables.owners.c.key)
    Index(f"ix_{table_name}_cursors_reader", tables.cursors.c.reader, tables.cursors.c.key)
    Index(f"ix_{table_name}_facts_change", tables.facts.c.namespace, tables.facts.c.change)
    return tables


def upsert(table: Table, backend: str) -> Any:
    """An INSERT with SQLAlchemy's ``on_conflict_do_update`` of this backend."""
    # Only the dialect that is used: importing each takes a while.
    return import_module(f"sqlalchemy.dialects.{backend}").insert(table)


def version_of(connection: Connection, tables: Tables) -> int | None:
    """The version of the tables that exist; None for a database without them, such as one of the plain host."""
    if not inspect(connection).has_table(tables.schema.name, tables.schema.schema):
        return None
    version: int | None = connection.execute(select(func.max(tables.schema.c.version))).scalar()
    return version


def refuse_newer(version: int | None, tables: Tables) -> None:
    """Raise a StoreError for tables of a version that this package does not know."""
    if version is not None and version > SCHEMA_VERSION:
        raise StoreError(
            f"The tables of {tables.name!r} have schema version {version}, and this package knows version "
            f"{SCHEMA_VERSION}. Use llama-index-memory-ext in a version at least as new as the one that made them. "
            "Nothing was changed."
        )


def create_missing(connection: Connection, tables: Tables) -> None:
    """Create the tables and indexes that do not exist, and note the version."""
    # Another process may have created them since.
    version = version_of(connection, tables)
    refuse_newer(version, tables)
    if version == SCHEMA_VERSION:
        return
    schema = tables.metadata.schema
    if schema is not None and not inspect(connection).has_schema(schema):
        connection.execute(CreateSchema(schema, if_not_exists=True))
    for table in tables.metadata.sorted_tables:
        connection.execute(CreateTable(table, if_not_exists=True))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            connection.execute(CreateIndex(index, if_not_exists=True))
    connection.execute(delete(tables.schema))
    connection.execute(insert(tables.schema).values(version=SCHEMA_VERSION))


def _key(name: str) -> Column[Any]:
    return Column(name, String, primary_key=True)
