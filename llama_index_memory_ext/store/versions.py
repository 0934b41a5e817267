"""The version of the tables: makes missing tables, and upgrades older ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.schema import CreateSchema

from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.store.schema import ADDED_COLUMNS, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_index_memory_ext.store.schema import Tables


SCHEMA_VERSION = 7
# The oldest version that is upgraded in place.
_OLDEST_VERSION = 7
# The functions that change stored rows, by the version to which they upgrade, in order.
# Missing tables, columns and indexes are made before, and need no function.
UPGRADES: dict[int, Callable[[Connection, Tables], None]] = {}

_SELECT_VERSION = "SELECT MAX(version) AS version FROM {schema}"
_INSERT_VERSION = """
INSERT INTO {schema} (version, encryption) SELECT :version, MAX(encryption) FROM {schema}
"""
_DELETE_EARLIER = "DELETE FROM {schema} WHERE version < :version"


def version_of(conn: Connection, tables: Tables) -> int | None:
    """Return the version of the tables; None for a database without them, such as LlamaIndex's own."""
    if not sa.inspect(conn).has_table(tables.name_of("schema"), tables.db_schema):
        return None
    return conn.execute(tables.sql(_SELECT_VERSION)).scalar()


def supported_version_of(conn: Connection, tables: Tables) -> int | None:
    """As ``version_of``; a StoreError for a version that this package neither uses nor upgrades."""
    version = version_of(conn, tables)
    if version is None or _OLDEST_VERSION <= version <= SCHEMA_VERSION:
        return version
    hint = "Use llama-index-memory-ext in a version at least as new as the one that made them."
    if version < _OLDEST_VERSION:
        hint = "Export messages and facts with the package that made them, and import them into a new database."
    raise StoreError(
        f"The tables of {tables.name!r} have schema version {version}, and this package knows version "
        f"{SCHEMA_VERSION}. {hint} Nothing was changed."
    )


def create_missing(conn: Connection, tables: Tables) -> None:
    """Create the tables, columns and indexes that do not exist, upgrade the rows, and note the version."""
    # Another process may have created them since.
    version = supported_version_of(conn, tables)
    if version == SCHEMA_VERSION:
        return
    db_schema = tables.db_schema
    if db_schema is not None and not sa.inspect(conn).has_schema(db_schema):
        conn.execute(CreateSchema(db_schema, if_not_exists=True))
    _create_all(conn, tables)
    for later, upgrade in UPGRADES.items():
        if version is not None and version < later:
            upgrade(conn, tables)
    conn.execute(tables.sql(_INSERT_VERSION), {"version": SCHEMA_VERSION})
    conn.execute(tables.sql(_DELETE_EARLIER), {"version": SCHEMA_VERSION})


def _create_all(conn: Connection, tables: Tables) -> None:
    """Create the tables, columns and indexes that do not exist."""
    inspector = sa.inspect(conn)
    for table, columns in ADDED_COLUMNS.items():
        name = tables.name_of(table)
        existing = set(columns)
        if inspector.has_table(name, tables.db_schema):
            stored = inspector.get_columns(name, tables.db_schema)
            existing = {column["name"] for column in stored}
        for column in columns.keys() - existing:
            conn.exec_driver_sql(
                f"ALTER TABLE {tables.names[table]} ADD COLUMN {column} {columns[column]}"
            )
    for statement in SCHEMA.split(";"):
        conn.exec_driver_sql(statement.format(**tables.names))
