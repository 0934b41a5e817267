"""Knows which version the tables of a database have, and brings older ones up to date."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Integer, MetaData, Table, delete, func, insert, inspect, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex, CreateSchema, CreateTable

from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.store.embedding_table import define_embeddings
from llama_index_memory_ext.store.fact_table import define_facts
from llama_index_memory_ext.store.tables import LOG, define_cursors, define_rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.connections import Connections

# 1: messages and cursors, without a table that says so. 2: facts, embeddings, and the version.
SCHEMA_VERSION = 2

# Any number that no other program takes for its own lock.
_POSTGRES_LOCK = 7_453_010_323_281_277_817
_MAY_NOT = "42501"


@dataclass(frozen=True, slots=True)
class Tables:
    """All tables of a store."""

    metadata: MetaData
    rows: Table
    cursors: Table
    facts: Table
    embeddings: Table
    schema: Table

    @property
    def name(self) -> str:
        """The chat table's name, with which all the others begin."""
        return self.rows.fullname


def define_tables(table_name: str, db_schema: str | None) -> Tables:
    """The tables of the version that this package knows."""
    metadata = MetaData(schema=db_schema)
    return Tables(
        metadata=metadata,
        rows=define_rows(table_name, metadata),
        cursors=define_cursors(table_name, metadata),
        facts=define_facts(table_name, metadata),
        embeddings=define_embeddings(table_name, metadata),
        # One row.
        schema=Table(f"{table_name}_schema", metadata, Column("version", Integer, primary_key=True)),
    )


async def make_ready(connections: Connections, tables: Tables) -> None:
    """Make what is missing and change what is old, in one transaction; nothing is written if all is up to date.

    Raises:
        StoreError: The tables are those of a newer package, or may not be made or changed.
    """
    # Looking comes first: most openings find all there, and a database user need not be allowed more.
    async with connections.connect() as connection:
        version = await connection.run_sync(version_of, tables)
    if version == SCHEMA_VERSION:
        return
    _refuse_newer(version, tables)
    try:
        async with _alone(connections) as connection:
            await connection.run_sync(_bring_up_to_date, tables)
    except DBAPIError as error:
        if not _is_refusal(error):
            raise
        raise StoreError(
            f"The tables of {tables.name!r} have schema version {version} (None: there are none) and version "
            f"{SCHEMA_VERSION} is needed, but this database user may not make or change tables. Open the database once "
            "as a user who may; afterwards reading and writing rows is all that is needed."
        ) from None


def version_of(connection: Connection, tables: Tables) -> int | None:
    """The version of the tables that are there; None for a database without ours, such as the plain host's."""
    inspector = inspect(connection)
    if inspector.has_table(tables.schema.name, tables.schema.schema):
        version: int | None = connection.execute(select(func.max(tables.schema.c.version))).scalar()
        return version
    return 1 if inspector.has_table(tables.cursors.name, tables.cursors.schema) else None


@asynccontextmanager
async def _alone(connections: Connections) -> AsyncIterator[AsyncConnection]:
    """A transaction in which no other process changes tables."""
    if connections.backend == "postgresql":
        # "if not exists" is not safe against itself there. Any other level than READ COMMITTED would not see what the
        # one before has made while this one was waiting.
        async with connections.begin() as connection:
            await connection.execute(select(func.pg_advisory_xact_lock(_POSTGRES_LOCK)))
            yield connection
        return
    async with connections.begin() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        if not driver.in_transaction:
            # The driver begins one before it changes rows, but not before it changes tables.
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection


def _bring_up_to_date(connection: Connection, tables: Tables) -> None:
    # Somebody else may have done it meanwhile.
    version = version_of(connection, tables)
    _refuse_newer(version, tables)
    if version == SCHEMA_VERSION:
        return
    for number in range((version or SCHEMA_VERSION) + 1, SCHEMA_VERSION + 1):
        _STEPS[number](connection, tables)
    _create_missing(connection, tables)
    connection.execute(delete(tables.schema))
    connection.execute(insert(tables.schema).values(version=SCHEMA_VERSION))


def _create_missing(connection: Connection, tables: Tables) -> None:
    schema = tables.metadata.schema
    if schema is not None and not inspect(connection).has_schema(schema):
        connection.execute(CreateSchema(schema, if_not_exists=True))
    for table in tables.metadata.sorted_tables:
        connection.execute(CreateTable(table, if_not_exists=True))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            connection.execute(CreateIndex(index, if_not_exists=True))


def _from_1_to_2(connection: Connection, tables: Tables) -> None:
    """The row that a session's writers lock was called "log" at first, which a reader may be called too."""
    cursors, other = tables.cursors, tables.cursors.alias()
    has_new = select(other.c.key).where(other.c.key == cursors.c.key, other.c.reader == LOG).exists()
    connection.execute(update(cursors).where(cursors.c.reader == "log", ~has_new).values(reader=LOG))


# What changes tables that are there, by the version that it leads to; missing tables and indexes are made afterwards.
_STEPS = {2: _from_1_to_2}


def _refuse_newer(version: int | None, tables: Tables) -> None:
    if version is not None and version > SCHEMA_VERSION:
        raise StoreError(
            f"The tables of {tables.name!r} have schema version {version}, and this package knows version "
            f"{SCHEMA_VERSION}. Use llama-index-memory-ext in a version at least as new as the one that made them. "
            "Nothing was changed."
        )


def _is_refusal(error: DBAPIError) -> bool:
    return getattr(error.orig, "sqlstate", None) == _MAY_NOT or "readonly" in str(error.orig)
