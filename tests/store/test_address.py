"""An address of SQLite or of a server opens it with the driver of the package, whose options it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from llama_index_memory_ext import MemoryStore, StoreError
from tests.conversation import user
from tests.databases import host_on


@pytest.mark.parametrize("driver", ["sqlite", "sqlite+aiosqlite"])
async def test_each_spelling_of_a_file_opens_the_same_file(
    tmp_path: Path, driver: str
) -> None:
    """A path, and a path with an option."""
    file = tmp_path / "memory.db"
    for address in (f"/{file}", f"/{file}?timeout=5"):
        store = MemoryStore(f"{driver}://{address}")
        await store.add_message("chat", user("one"))
        await store.aclose()
    async with host_on(f"sqlite+aiosqlite:///{file}") as host:
        assert len(await host.get_messages("chat")) == 2


@pytest.mark.parametrize(
    "driver", ["postgresql", "postgresql+asyncpg", "postgresql+psycopg"]
)
async def test_each_spelling_of_a_server_and_the_options_of_libpq_reach_it(
    postgres_uri: str, driver: str
) -> None:
    options = {"sslmode": "disable", "connect_timeout": "5", "application_name": "me"}
    url = make_url(postgres_uri).set(drivername=driver).update_query_dict(options)
    store = MemoryStore(url.render_as_string(hide_password=False))
    names = "SELECT current_setting('application_name')"
    assert await store.database.run(lambda tx: tx.scalars(names)) == ["me"]
    await store.aclose()


@pytest.mark.parametrize("option", ["ssl=require", "sslmod=require", "timeout=5"])
async def test_an_option_that_libpq_does_not_know_is_named(
    postgres_uri: str, option: str
) -> None:
    """No connection begins without the security that an option asks for."""
    url = make_url(postgres_uri).update_query_string(option)
    store = MemoryStore(url.render_as_string(hide_password=False))
    name = option.partition("=")[0]
    with pytest.raises(
        StoreError, match=rf'option "{name}".* libpq\'s, such as sslmode=require'
    ):
        await store.get_messages("chat")


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
