"""The database knows which version its tables have: missing ones are made, newer ones are refused."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from llama_index.core.memory import Memory
from llama_index.core.storage.chat_store.base_db import MessageStatus
from sqlalchemy import inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from llama_index_memory_ext import CondensedMemory, Fact, MemoryStore, SessionOwnerError, StoreError
from llama_index_memory_ext.store.tables import SCHEMA_VERSION
from tests.conversation import assistant, record, sent_text, user
from tests.memories import close_plain_memory

ENDINGS = ("", "_sessions", "_owners", "_cursors", "_users", "_facts", "_embeddings", "_message_ids", "_schema")
TABLES = {f"llama_index_memory{ending}" for ending in ENDINGS}
LIMITS: dict[str, Any] = {"condensed_token_limit": 200, "extract_facts": False}


@pytest.fixture(params=["file", "postgres"])
def uri(request: pytest.FixtureRequest) -> str:
    value: str = request.getfixturevalue("database_uri" if request.param == "file" else "postgres_uri")
    return value


@pytest.fixture
async def engine(uri: str) -> AsyncIterator[AsyncEngine]:
    """To look at the database, and to change it, without the package."""
    engine = create_async_engine(uri, poolclass=NullPool)
    yield engine
    await engine.dispose()


async def run(engine: AsyncEngine, statements: str) -> None:
    async with engine.begin() as connection:
        for statement in statements.split(";\n"):
            await connection.execute(text(statement))


async def tables_of(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        return set(await connection.run_sync(lambda sync: inspect(sync).get_table_names()))


async def structure(engine: AsyncEngine) -> dict[str, Any]:
    """The columns and the indexes of each table."""

    def look(sync: Any) -> dict[str, Any]:
        inspector = inspect(sync)
        return {
            name: (
                [(column["name"], str(column["type"]), column["nullable"]) for column in inspector.get_columns(name)],
                sorted((str(index["name"]), index["column_names"]) for index in inspector.get_indexes(name)),
                inspector.get_pk_constraint(name)["constrained_columns"],
            )
            for name in inspector.get_table_names()
        }

    async with engine.connect() as connection:
        return await connection.run_sync(look)


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


async def test_a_new_database_says_its_version(uri: str, engine: AsyncEngine) -> None:
    """Before that nothing is there, and asking makes nothing."""
    assert await asked(uri) is None
    assert await tables_of(engine) == set()
    await open_and_close(uri)
    assert await tables_of(engine) == TABLES
    assert await asked(uri) == SCHEMA_VERSION


async def test_a_database_of_the_plain_host_gets_what_is_missing(uri: str, engine: AsyncEngine) -> None:
    await write_as_host(uri)
    assert await asked(uri) is None
    assert await tables_of(engine) == {"llama_index_memory"}
    async with CondensedMemory.from_defaults("chat", async_database_uri=uri, **LIMITS) as memory:
        await memory.aput(user("three"))
        assert record(sent_text(await memory.aget())) == [("user", "one"), ("assistant", "two")]
    assert await tables_of(engine) == TABLES
    indexes = (await structure(engine))["llama_index_memory"][1]
    assert ("ix_llama_index_memory_log", ["key", "status", "id"]) in indexes


async def make_version_3(uri: str, engine: AsyncEngine) -> None:
    """Turns of a session without a user, of one with one, of two that one has taken over, and of one of two users."""
    store = MemoryStore(uri)
    owners = {"nobody": ["nobody"], "one": ["ann"], "ann": ["ann"], "both": ["both", "ann"], "two": ["ann", "bob"]}
    for key in owners:
        await store.add_messages(key, [user(f"I am in {key}."), assistant("Fine.")], MessageStatus.ARCHIVED)
    await store.facts.write("both", [Fact(content="Likes tea", session_id="both")])
    await store.aclose()
    rows = ", ".join(f"('{key}', '{one}')" for key, users in owners.items() for one in users)
    await run(
        engine,
        "ALTER TABLE llama_index_memory DROP COLUMN user_id;\n"
        "ALTER TABLE llama_index_memory_owners DROP COLUMN kind;\n"
        f"INSERT INTO llama_index_memory_owners (key, user_id) VALUES {rows};\n"
        "UPDATE llama_index_memory_schema SET version = 3",
    )


async def test_a_database_of_version_3_becomes_one_of_this_version(uri: str, engine: AsyncEngine) -> None:
    """All that was stored is read as before, by those whose it is; where two have talked, nothing is learned of it."""
    await open_and_close(uri)
    as_new = await structure(engine)
    await make_version_3(uri, engine)
    assert await asked(uri) == 3
    store = MemoryStore(uri)

    def on(key: str, user_id: str | None, **options: Any) -> CondensedMemory:
        return CondensedMemory.from_defaults(key, user_id=user_id, chat_store=store, **LIMITS, **options)

    for key, user_id in (("nobody", None), ("one", "ann"), ("ann", "ann"), ("both", "ann")):
        memory = on(key, user_id)
        assert f"I am in {key}." in sent_text(await memory.aget(input="And?"))
        await memory.aput_messages([user("More."), assistant("Fine.")])
        if user_id:
            with pytest.raises(SessionOwnerError):
                await on(key, "cem").aget()
    assert [fact.content for fact in await on("both", "ann").facts.alist()] == ["Likes tea"]
    with pytest.raises(SessionOwnerError):
        await on("two", "ann").aget()
    two = on("two", "ann", shared=True)
    assert "I am in two." in sent_text(await two.aget(input="And?"))
    said = [one.is_users for one in (await two.facts_block.extractor("two").recent())[0]]
    assert said == [False, False]
    await store.aclose()
    assert await structure(engine) == as_new
    assert await asked(uri) == SCHEMA_VERSION


@pytest.mark.parametrize(("version", "hint"), [(SCHEMA_VERSION + 1, "Use .* at least as"), (2, "Export .* and import")])
async def test_a_newer_database_or_one_from_before_the_first_release_is_refused_and_left_as_it_is(
    uri: str, engine: AsyncEngine, tmp_path: Path, version: int, hint: str
) -> None:
    """Both versions are named, and what to do."""
    await run(
        engine,
        "CREATE TABLE llama_index_memory_schema (version INTEGER, more INTEGER);\n"
        f"INSERT INTO llama_index_memory_schema VALUES ({version}, 1)",
    )
    files = contents(tmp_path)
    assert await asked(uri) == version
    memory = CondensedMemory.from_defaults("chat", async_database_uri=uri, **LIMITS)
    for call in (memory.aput(user("one")), memory.aget(), memory.sql_store.sessions()):
        with pytest.raises(StoreError, match=rf"version {version}, and .* version {SCHEMA_VERSION}\. {hint}"):
            await call
    assert memory.sql_store.database.engine is None
    assert await tables_of(engine) == {"llama_index_memory_schema"}
    assert contents(tmp_path) == files


@pytest.mark.parametrize("place", ["/{}/memory.db", "/{}/no/memory.db", "/file:{}/memory.db?uri=true"])
async def test_asking_for_the_version_of_a_file_that_is_not_there_makes_none(tmp_path: Path, place: str) -> None:
    assert await asked(f"sqlite+aiosqlite://{place.format(tmp_path)}") is None
    assert contents(tmp_path) == {}


# ---- interrupted, and at the same time -----------------------------------------------------------------------

KILLED = """
import asyncio, os, signal, sys
from sqlalchemy import event
from sqlalchemy.engine import Engine
from llama_index_memory_ext import MemoryStore

def kill(connection, cursor, statement, *_):
    if all(word in statement for word in sys.argv[2:]):
        os.kill(os.getpid(), signal.SIGKILL)

event.listen(Engine, "after_cursor_execute", kill)
asyncio.run(MemoryStore(sys.argv[1]).get_keys())
"""


@pytest.mark.parametrize("killed_after", [["CREATE TABLE", "_embeddings"], ["INSERT INTO", "_schema"]], ids=" ".join)
async def test_an_opening_that_was_killed_has_changed_nothing(
    uri: str, engine: AsyncEngine, killed_after: list[str]
) -> None:
    """And the next one makes all tables."""
    await write_as_host(uri)
    before = await structure(engine)
    done = subprocess.run([sys.executable, "-c", KILLED, uri, *killed_after], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert await structure(engine) == before
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


@pytest.mark.parametrize("before", ["nothing", "the host", "version 3"])
async def test_eight_processes_open_the_same_database_at_once(uri: str, engine: AsyncEngine, before: str) -> None:
    if before == "the host":
        await write_as_host(uri)
    if before == "version 3":
        await open_and_close(uri)
        await make_version_3(uri, engine)
    done = subprocess.run([sys.executable, "-c", CROWD, uri], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    store = MemoryStore(uri)
    assert await store.count_messages("crowd") == 8
    assert [one.session_id for one in await store.sessions("bob")] == ["two"] * (before == "version 3")
    await store.aclose()


# ---- users who may not change tables -----------------------------------------------------------------------


async def role_of(postgres_uri: str) -> str:
    """The address of the same database for a user who may change rows only."""
    role = f"app_{uuid4().hex[:8]}"
    engine = create_async_engine(postgres_uri, poolclass=NullPool)
    await run(
        engine,
        f"CREATE ROLE {role} LOGIN;\n"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role};\n"
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}",
    )
    await engine.dispose()
    return make_url(postgres_uri).set(username=role).render_as_string(hide_password=False)


async def test_a_database_user_who_may_not_make_what_is_missing_is_told_so(postgres_uri: str) -> None:
    await write_as_host(postgres_uri)
    uri = await role_of(postgres_uri)
    with pytest.raises(StoreError, match=r"refused making the tables: .*denied.* as a user who may"):
        await open_and_close(uri)
    engine = create_async_engine(postgres_uri, poolclass=NullPool)
    assert await tables_of(engine) == {"llama_index_memory"}
    await engine.dispose()


async def test_an_up_to_date_database_is_opened_without_waiting_for_a_writer(database_uri: str, tmp_path: Path) -> None:
    """Looking whether all is there needs no lock; it would be waited for until an error says so."""
    await open_and_close(database_uri)
    with closing(sqlite3.connect(tmp_path / "memory.db")) as writer:
        writer.execute("BEGIN IMMEDIATE")
        await open_and_close(database_uri)
