"""Databases for the tests of the store, one of them with partitioned tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, inspect
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from llama_index_memory_ext import MemoryStore
from tests.databases import OpenStore
from tests.fixtures import *

PAGE = Path(__file__).parents[2] / "docs/recipes/partitioning.md"
CREATE_TABLES, CREATE_PARTITIONS, WIDEN_IDS = re.findall(
    r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
)

ENDINGS = "_sessions _owners _cursors _users _facts _embeddings _message_ids _schema"
TABLES = {f"llama_index_memory{ending}" for ending in ["", *ENDINGS.split()]}


async def run_script(uri: str, script: str) -> None:
    """Run several statements at once, as psql does."""
    engine = create_async_engine(uri, poolclass=NullPool)
    async with engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver is not None
        await driver.execute(script)
    await engine.dispose()


async def structure(uri: str, schema: str | None = None) -> dict[str, Any]:
    """The columns, the indexes and the primary key of each table."""

    def look(connection: Connection) -> dict[str, Any]:
        inspector = inspect(connection)
        return {
            name: (
                [
                    (one["name"], str(one["type"]), one["nullable"])
                    for one in inspector.get_columns(name, schema)
                ],
                {
                    str(index["name"]): index["column_names"]
                    for index in inspector.get_indexes(name, schema)
                },
                inspector.get_pk_constraint(name, schema)["constrained_columns"],
            )
            for name in inspector.get_table_names(schema)
        }

    engine = create_async_engine(uri, poolclass=NullPool)
    async with engine.connect() as connection:
        tables = await connection.run_sync(look)
    await engine.dispose()
    return tables


@pytest.fixture
async def partitioned_uri(empty_postgres_uri: str) -> str:
    """A database with the tables of the page on partitioning."""
    await run_script(empty_postgres_uri, CREATE_TABLES + CREATE_PARTITIONS)
    return empty_postgres_uri


@pytest.fixture(params=["memory", "file", "postgres", "partitioned"])  # type: ignore[no-redef]  # here it has one more
def any_database_uri(request: pytest.FixtureRequest) -> str | None:
    """No address, for a database in memory; then a file; then a server, with whole and with partitioned tables."""
    if request.param == "memory":
        return None
    names = {
        "file": "database_uri",
        "postgres": "postgres_uri",
        "empty": "empty_postgres_uri",
        "partitioned": "partitioned_uri",
    }
    uri: str = request.getfixturevalue(names[request.param])
    return uri


@pytest.fixture(params=["database_uri", "postgres_uri", "partitioned_uri"])  # type: ignore[no-redef]
def store(request: pytest.FixtureRequest, open_store: OpenStore) -> MemoryStore:
    """A store of each kind of tables; a database in memory is read by the statements of a file."""
    return open_store(request.getfixturevalue(request.param))


@pytest.fixture(params=["database_uri", "empty_postgres_uri"], ids=["file", "postgres"])
def uri(request: pytest.FixtureRequest) -> str:
    """A database without tables: a file, and one of a server."""
    address: str = request.getfixturevalue(request.param)
    return address
