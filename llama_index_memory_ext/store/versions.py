"""The version of the tables: makes missing tables, and upgrades older ones."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.engine import make_url
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateSchema, CreateTable

from llama_index_memory_ext.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_index_memory_ext.store.tables import Tables


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
    if not sa.inspect(conn).has_table(tables.schema.name, tables.schema.schema):
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
        f"The tables of {tables.rows.fullname!r} have schema version {version}, and this package knows version "
        f"{SCHEMA_VERSION}. {hint} Nothing was changed."
    )


def create_missing(conn: Connection, tables: Tables) -> None:
    """Create the tables, columns and indexes that do not exist, upgrade the rows, and note the version."""
    metadata = tables.rows.metadata
    # Another process may have created them since.
    version = supported_version_of(conn, tables)
    if version == SCHEMA_VERSION:
        return
    if metadata.schema is not None and not sa.inspect(conn).has_schema(metadata.schema):
        conn.execute(CreateSchema(metadata.schema, if_not_exists=True))
    _create_all(conn, metadata)
    for later, upgrade in UPGRADES.items():
        if version is not None and version < later:
            upgrade(conn, tables)
    conn.execute(tables.sql(_INSERT_VERSION), {"version": SCHEMA_VERSION})
    conn.execute(tables.sql(_DELETE_EARLIER), {"version": SCHEMA_VERSION})


def _create_all(conn: Connection, metadata: sa.MetaData) -> None:
    """Create the tables, columns and indexes that do not exist."""
    existing = sa.inspect(conn).get_table_names(metadata.schema)
    for table in metadata.sorted_tables:
        creation = _creation(table, conn.dialect.name)
        conn.exec_driver_sql(creation.table)
        if table.name in existing:
            _add_columns(conn, table)
        for statement in creation.indexes:
            conn.exec_driver_sql(statement)


class _Creation(NamedTuple):
    """The statements that create a table and its indexes."""

    table: str
    indexes: list[str]


@lru_cache(maxsize=64)
def _creation(table: sa.Table, backend: str) -> _Creation:
    """Return the statements that create a table and its indexes, if they do not exist."""
    dialect = make_url(f"{backend}://").get_dialect()()
    creation = CreateTable(table, if_not_exists=True)
    indexes = [CreateIndex(index, if_not_exists=True) for index in table.indexes]
    return _Creation(
        str(creation.compile(dialect=dialect)),
        [str(index.compile(dialect=dialect)) for index in indexes],
    )


def _add_columns(conn: Connection, table: sa.Table) -> None:
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
