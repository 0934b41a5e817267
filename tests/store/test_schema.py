"""The database knows which version its tables have: missing ones are made, newer ones are refused."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from llama_index.core.memory import Memory
from sqlalchemy.engine import make_url

from llama_index_memory_ext import CondensedMemory, MemoryStore, StoreError
from llama_index_memory_ext.store import versions
from llama_index_memory_ext.store.versions import SCHEMA_VERSION
from tests.conversation import assistant, record, sent_text, user
from tests.databases import ask
from tests.forked import run_forked
from tests.memories import close_plain_memory
from tests.store.conftest import TABLES, structure

LIMITS: dict[str, Any] = {"condensed_token_limit": 200, "extract_facts": False}


async def open_and_close(uri: str) -> None:
    async with aclosing(MemoryStore(uri)) as store:
        await store.get_keys()


async def write_as_host(uri: str) -> None:
    """A turn by LlamaIndex's own ``Memory``."""
    host = Memory.from_defaults(session_id="chat", async_database_uri=uri)
    await host.aput_messages([user("one"), assistant("two")])
    await close_plain_memory(host)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


async def asked(uri: str) -> int | None:
    async with aclosing(MemoryStore(uri)) as store:
        return await store.read_schema_version()


async def test_a_new_database_says_its_version(uri: str) -> None:
    """Before that nothing is there, and asking makes nothing."""
    assert await asked(uri) is None
    assert set(await structure(uri)) == set()
    await open_and_close(uri)
    assert set(await structure(uri)) == TABLES
    assert await asked(uri) == SCHEMA_VERSION


async def test_a_database_of_the_plain_host_gets_what_is_missing(uri: str) -> None:
    await write_as_host(uri)
    assert await asked(uri) is None
    assert set(await structure(uri)) == {"llama_index_memory"}
    async with CondensedMemory.from_defaults(
        "chat", async_database_uri=uri, **LIMITS
    ) as memory:
        await memory.aput(user("three"))
        entries = record(sent_text(await memory.aget()))
        assert entries == [("user", "one"), ("assistant", "two")]
    assert set(await structure(uri)) == TABLES
    indexes = (await structure(uri))["llama_index_memory"][1]
    assert indexes["ix_llama_index_memory_log"] == ["key", "status", "id"]
    # LlamaIndex has made them.
    assert indexes["ix_llama_index_memory_status"] == ["status"]


async def test_tables_of_an_earlier_version_get_the_column_and_the_index_that_they_lack(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aclosing(MemoryStore(uri)) as store:
        await store.add_message("chat", user("I like tea."))
    as_new = await structure(uri)
    await ask(
        uri,
        "ALTER TABLE llama_index_memory DROP COLUMN user_id",
        "DROP INDEX ix_llama_index_memory_facts_id",
    )
    monkeypatch.setattr(versions, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    await open_and_close(uri)
    assert await structure(uri) == as_new
    assert await asked(uri) == SCHEMA_VERSION + 1


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, SCHEMA_VERSION - 1])
async def test_a_newer_database_or_one_from_before_the_first_release_is_refused_and_left_as_it_is(
    uri: str, tmp_path: Path, version: int
) -> None:
    """Both versions are named, and what to do."""
    await ask(
        uri,
        "CREATE TABLE llama_index_memory_schema (version INTEGER, more INTEGER)",
        f"INSERT INTO llama_index_memory_schema VALUES ({version}, 1)",  # noqa: S608 - our own
    )
    files = contents(tmp_path)
    assert await asked(uri) == version
    memory = CondensedMemory.from_defaults("chat", async_database_uri=uri, **LIMITS)
    for call in (memory.aput(user("one")), memory.aget(), memory.sql_store.sessions()):
        with pytest.raises(
            StoreError,
            match=rf"version {version}, and .* to {SCHEMA_VERSION}\. Use .*, or export",
        ):
            await call
    assert memory.sql_store.database.engine is None
    assert set(await structure(uri)) == {"llama_index_memory_schema"}
    assert contents(tmp_path) == files


@pytest.mark.parametrize("place", ["/{}/memory.db", "/{}/no/memory.db"])
async def test_asking_for_the_version_of_a_file_that_is_not_there_makes_none(
    tmp_path: Path, place: str
) -> None:
    assert await asked(f"sqlite+aiosqlite://{place.format(tmp_path)}") is None
    assert contents(tmp_path) == {}


# ---- interrupted, and at the same time -----------------------------------------------------------------------

KILLED = """
import asyncio, os, signal, sys
from sqlalchemy import event
from sqlalchemy.engine import Engine
from llama_index_memory_ext import MemoryStore

def kill(connection, cursor, statement, *_):
    if "INSERT INTO" in statement and "_schema" in statement:
        os.kill(os.getpid(), signal.SIGKILL)

event.listen(Engine, "after_cursor_execute", kill)
asyncio.run(MemoryStore(sys.argv[1]).get_keys())
"""


async def test_an_opening_that_was_killed_has_changed_nothing(uri: str) -> None:
    """Not even just before its end; and the next one makes all tables."""
    await write_as_host(uri)
    before = await structure(uri)
    done = run_forked(KILLED, uri)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert await structure(uri) == before
    assert await asked(uri) is None
    await open_and_close(uri)
    assert await asked(uri) == SCHEMA_VERSION


CROWD = """
import asyncio, os, sys
from llama_index.core.llms import ChatMessage
from llama_index_memory_ext import MemoryStore

async def main(uri):
    store = MemoryStore(uri)
    await store.add_message("crowd", ChatMessage(content="here"))
    await store.aclose()

read, write = os.pipe()
crowd = []
for _ in range(8):
    crowd.append(os.fork())
    if crowd[-1] == 0:
        os.close(write)
        # Until the last one is there.
        os.read(read, 1)
        asyncio.run(main(sys.argv[1]))
        os._exit(0)
os.close(write)
assert [os.waitpid(process, 0)[1] for process in crowd] == [0] * 8
"""


async def test_eight_processes_open_the_same_database_at_once(uri: str) -> None:
    done = run_forked(CROWD, uri)
    assert done.returncode == 0, done.stderr
    store = MemoryStore(uri)
    assert await store.count_messages("crowd") == 8
    await store.aclose()


# ---- users who may not change tables -----------------------------------------------------------------------


async def role_of(empty_postgres_uri: str) -> str:
    """The address of the same database for a user who may change rows only."""
    role = f"app_{uuid4().hex[:8]}"
    await ask(
        empty_postgres_uri,
        f"CREATE ROLE {role} LOGIN",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}",
    )
    return (
        make_url(empty_postgres_uri)
        .set(username=role)
        .render_as_string(hide_password=False)
    )


async def test_a_database_user_who_may_not_make_what_is_missing_is_told_so(
    empty_postgres_uri: str,
) -> None:
    await write_as_host(empty_postgres_uri)
    uri = await role_of(empty_postgres_uri)
    with pytest.raises(
        StoreError,
        match=r"refused making the tables: must be owner .* as a user who may",
    ):
        await open_and_close(uri)
    assert set(await structure(uri)) == {"llama_index_memory"}


async def test_an_up_to_date_database_is_opened_without_waiting_for_a_writer(
    database_uri: str, tmp_path: Path
) -> None:
    """Looking whether all is there needs no lock; it would be waited for until an error says so."""
    await open_and_close(database_uri)
    with closing(sqlite3.connect(tmp_path / "memory.db")) as writer:
        writer.execute("BEGIN IMMEDIATE")
        await open_and_close(database_uri)
