"""An address names what it always named, whatever driver its spelling asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from llama_index_memory_ext import MemoryStore
from llama_index_memory_ext.store.address import driver_url
from tests.conversation import user
from tests.databases import host_on


@pytest.mark.parametrize("driver", ["sqlite", "sqlite+pysqlite", "sqlite+aiosqlite"])
async def test_each_spelling_of_a_file_opens_the_same_file(
    tmp_path: Path, driver: str
) -> None:
    """A relative or an absolute path, an address of SQLite's own, and options of either driver."""
    file = tmp_path / "memory.db"
    for address in (
        f"/{file}",
        f"/{file}?timeout=5&iter_chunk_size=10",
        f"/file:{file}?mode=rwc&uri=true",
    ):
        store = MemoryStore(f"{driver}://{address}")
        await store.add_message("chat", user("one"))
        await store.aclose()
    async with host_on(f"sqlite+aiosqlite:///{file}") as host:
        assert len(await host.get_messages("chat")) == 3


@pytest.mark.parametrize(
    "driver",
    [
        "postgres",
        "postgresql",
        "postgresql+asyncpg",
        "postgresql+psycopg",
        "postgresql+psycopg_async",
        "postgresql+psycopg2",
    ],
)
async def test_each_spelling_of_a_server_and_its_options_reach_it(
    postgres_uri: str, driver: str
) -> None:
    """On a socket. What asyncpg keeps in a cache is nobody's here."""
    url = make_url(postgres_uri).set(drivername=driver)
    of_asyncpg = {
        "ssl": "prefer",
        "timeout": "5.5",
        "command_timeout": "60",
        "statement_cache_size": "0",
    }
    of_libpq = {
        "sslmode": "disable",
        "application_name": "memory",
        "target_session_attrs": "any",
    }
    for options in (of_asyncpg, of_libpq):
        store = MemoryStore(
            url.update_query_dict(options).render_as_string(hide_password=False)
        )
        await store.add_message("chat", user("one"))
        await store.aclose()


@pytest.mark.parametrize(
    ("options", "becomes"),
    [
        ("ssl=require", {"sslmode": "require"}),
        ("ssl=true", {"sslmode": "require"}),
        (
            "sslmode=verify-full&sslrootcert=/ca.pem",
            {"sslmode": "verify-full", "sslrootcert": "/ca.pem"},
        ),
        ("timeout=2.5", {"connect_timeout": "3"}),
        ("direct_tls=true", {"sslnegotiation": "direct"}),
        ("host=/var/run/postgresql", {"host": "/var/run/postgresql"}),
        ("host=one:1&host=two:2", {"host": ("one:1", "two:2")}),
        ("prepared_statement_cache_size=0&async_fallback=true", {}),
    ],
)
def test_options_of_asyncpg_have_the_names_that_libpq_gives_them(
    options: str, becomes: dict[str, str]
) -> None:
    assert (
        dict(driver_url(make_url(f"postgresql+asyncpg://ann@/memory?{options}")).query)
        == becomes
    )


@pytest.mark.parametrize("driver", ["postgresql+asyncpg", "postgresql+psycopg_async"])
async def test_engines_of_both_drivers_can_be_lent(
    postgres_uri: str, driver: str
) -> None:
    """On the tables that an address has made."""
    by_address = MemoryStore(postgres_uri)
    await by_address.add_message("chat", user("one"))
    engine = create_async_engine(make_url(postgres_uri).set(drivername=driver))
    lent = MemoryStore(async_engine=engine)
    await lent.log.append("chat", [user("two")], len)
    assert [
        message.content for message in await by_address.get_messages("chat", None)
    ] == ["one", "two"]
    assert await lent.forget("chat") == {"messages": 2, "cursors": 0}
    assert await lent.vacuum()
    await engine.dispose()
    await by_address.aclose()
