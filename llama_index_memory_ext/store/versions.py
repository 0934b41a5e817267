"""The version of the tables: makes missing tables, and upgrades older ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.schema import CreateSchema

from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.store.schema import SCHEMA

if TYPE_CHECKING:
    from llama_index_memory_ext.store.schema import Tables


SCHEMA_VERSION = 7
# Older versions than this one are refused; later ones get what they lack.
_OLDEST_VERSION = 7

_SELECT_VERSION = "SELECT MAX(version) AS version FROM {schema}"
_INSERT_VERSION = """
INSERT INTO {schema} (version, encryption) SELECT :version, MAX(encryption) FROM {schema}
"""
# LlamaIndex's own table lacks the column.
_ADD_SPEAKER = "ALTER TABLE {rows} ADD COLUMN user_id VARCHAR"
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
    raise StoreError(
        f"The tables of {tables.name!r} have schema version {version}, and this package knows the versions from "
        f"{_OLDEST_VERSION} to {SCHEMA_VERSION}. Use a llama-index-memory-ext of the version that made them, or export "
        "messages and facts with it, and import them into a new database. Nothing was changed."
    )


def create_missing(conn: Connection, tables: Tables) -> None:
    """Create missing tables and indexes, and the column that LlamaIndex's table lacks; store the version."""
    # Another process may have created them since.
    if supported_version_of(conn, tables) == SCHEMA_VERSION:
        return
    inspector = sa.inspect(conn)
    db_schema = tables.db_schema
    if db_schema is not None and not inspector.has_schema(db_schema):
        conn.execute(CreateSchema(db_schema, if_not_exists=True))
    if inspector.has_table(tables.name, db_schema):
        columns = inspector.get_columns(tables.name, db_schema)
        if all(column["name"] != "user_id" for column in columns):
            conn.exec_driver_sql(_ADD_SPEAKER.format(**tables.names))
    for statement in SCHEMA.split(";"):
        conn.exec_driver_sql(statement.format(**tables.names))
    conn.execute(tables.sql(_INSERT_VERSION), {"version": SCHEMA_VERSION})
    conn.execute(tables.sql(_DELETE_EARLIER), {"version": SCHEMA_VERSION})
