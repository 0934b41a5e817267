"""The database knows which version its tables have: missing ones are made, newer ones are refused."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from llama_index.core.memory import Memory
from llama_index.core.storage.chat_store.base_db import MessageStatus
from sqlalchemy.engine import make_url

from llama_index_memory_ext import (
    CondensedMemory,
    Fact,
    MemoryStore,
    SessionOwnerError,
    StoreError,
)
from llama_index_memory_ext.store.database import SCHEMA_VERSION
from llama_index_memory_ext.store.facts import KeptVectors
from llama_index_memory_ext.store.tables import SessionAccess
from tests.conversation import assistant, record, sent_text, user
from tests.databases import ask
from tests.forked import python_command
from tests.memories import close_plain_memory
from tests.store.conftest import structure

ENDINGS = (
    "",
    "_sessions",
    "_owners",
    "_cursors",
    "_users",
    "_facts",
    "_embeddings",
    "_message_ids",
    "_schema",
)
TABLES = {f"llama_index_memory{ending}" for ending in ENDINGS}
LIMITS: dict[str, Any] = {"condensed_token_limit": 200, "extract_facts": False}


@pytest.fixture(params=["file", "postgres"])
def uri(request: pytest.FixtureRequest) -> str:
    value: str = request.getfixturevalue(
        "database_uri" if request.param == "file" else "empty_postgres_uri"
    )
    return value


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
        assert record(sent_text(await memory.aget())) == [
            ("user", "one"),
            ("assistant", "two"),
        ]
    assert set(await structure(uri)) == TABLES
    indexes = (await structure(uri))["llama_index_memory"][1]
    assert indexes["ix_llama_index_memory_log"] == ["key", "status", "id"]
    # LlamaIndex has made them.
    assert indexes["ix_llama_index_memory_status"] == ["status"]


WITHOUT_SPEAKERS = (
    "DROP INDEX ix_llama_index_memory_facts_session_id",
    "DROP INDEX ix_llama_index_memory_facts_said_by",
    "ALTER TABLE llama_index_memory_facts DROP COLUMN session_id",
    "ALTER TABLE llama_index_memory_facts DROP COLUMN said_by",
)


async def make_version_4(uri: str) -> None:
    """Sessions without a user, one of which has a user's name, a user's, and one of two users with a team's fact."""
    store = MemoryStore(uri)
    owners = {
        "nobody": ["nobody"],
        "bob": ["bob"],
        "bobs": ["bob"],
        "ann": ["ann"],
        "two": ["ann", "bob"],
    }
    for key in owners:
        await store.add_messages(
            key, [user(f"I am in {key}."), assistant("Fine.")], MessageStatus.ARCHIVED
        )
    vectors, said = (
        [],
        {
            "nobody": ["nobody", ""],
            "bob": ["bob", "bobs", ""],
            "ann": ["ann"],
            "team": ["two"],
        },
    )
    for namespace, keys in said.items():
        for key in keys:
            rows = await store.readers.find(key, ["archived"])
            ids = tuple(row.id for row in rows[:1])
            content, fact_id = f"Is in {key or 'no session'}", f"{namespace}-{key}"
            fact = Fact(
                id=fact_id,
                content=content,
                session_id=key or None,
                message_ids=ids,
                quote=f"I am in {key}",
            )
            await store.facts.write(namespace, [fact])
            vectors.append(f"('{namespace}', '{fact_id}', 'm', 'd', '')")
    await store.aclose()
    kinds = {
        "nobody": "nobody",
        "bob": "nobody",
        "bobs": "own",
        "ann": "own",
        "two": "shared",
    }
    values = ", ".join(
        f"('{key}', '{one}', '{kinds[key]}')"
        for key, users in owners.items()
        for one in users
    )
    cursors = ", ".join(
        f"('{key}', 'relevant_facts of {one}', 9)"
        for key, users in owners.items()
        for one in users
    )
    statements = (
        f"INSERT INTO llama_index_memory_owners (key, user_id, kind) VALUES {values}",  # noqa: S608 - our own
        f"INSERT INTO llama_index_memory_cursors (key, reader, position) VALUES {cursors}",  # noqa: S608 - our own
        f"INSERT INTO llama_index_memory_embeddings VALUES {', '.join(vectors)}",  # noqa: S608 - our own
        "UPDATE llama_index_memory SET user_id = 'ann' WHERE key = 'two' AND role = 'user'",
        *WITHOUT_SPEAKERS,
        "UPDATE llama_index_memory_schema SET version = 4",
    )
    await ask(uri, *statements)


async def test_a_database_of_version_4_parts_sessions_without_a_user_from_users(
    uri: str,
) -> None:
    """A session has what was learned in it, and a user of its name all else; nothing is read again."""
    await open_and_close(uri)
    as_new = await structure(uri)
    await make_version_4(uri)
    assert await asked(uri) == 4
    store = MemoryStore(uri)

    def on(key: str, user_id: str | None) -> CondensedMemory:
        return CondensedMemory.from_defaults(
            key, user_id=user_id, chat_store=store, **LIMITS
        )

    expected = {
        ("nobody", None): ["Is in no session", "Is in nobody"],
        ("bob", None): ["Is in bob"],
        ("bobs", "bob"): ["Is in bobs", "Is in no session"],
        ("ann", "ann"): ["Is in ann"],
    }
    for (key, user_id), facts in expected.items():
        memory = on(key, user_id)
        assert sorted(fact.content for fact in await memory.facts.alist()) == facts
        assert "I am in" in sent_text(await memory.aget(input="And?"))
        reader = memory.facts_block.reader_of(key)
        assert (await store.readers.state(key, reader))[0] == 9
        ids = [fact.id for fact in await memory.facts.alist()]
        kept = KeptVectors(store.database, memory.facts.namespace, "m")
        assert sorted(await kept.read(ids)) == sorted(ids)
    assert {one.session_id: one.user_ids for one in await store.sessions("bob")} == {
        "bobs": ("bob",),
        "two": ("ann", "bob"),
    }
    await store.forget_user("bob", vacuum=False)
    assert [fact.content for fact in await on("bob", None).facts.alist()] == [
        "Is in bob"
    ]
    assert [fact.content for fact in (await store.facts.read("team")).facts] == [
        "Is in two"
    ]
    await store.forget_user("ann", vacuum=False)
    assert (await store.facts.read("team")).facts == []
    await store.aclose()
    assert await structure(uri) == as_new
    assert await asked(uri) == SCHEMA_VERSION


async def make_version_3(uri: str) -> None:
    """Turns of a session without a user, of one with one, of two that one has taken over, and of one of two users."""
    store = MemoryStore(uri)
    owners = {
        "nobody": ["nobody"],
        "one": ["ann"],
        "ann": ["ann"],
        "both": ["both", "ann"],
        "two": ["ann", "bob"],
    }
    for key in owners:
        await store.add_messages(
            key, [user(f"I am in {key}."), assistant("Fine.")], MessageStatus.ARCHIVED
        )
    await store.facts.write("both", [Fact(content="Likes tea", session_id="both")])
    await store.aclose()
    rows = ", ".join(
        f"('{key}', '{one}')" for key, users in owners.items() for one in users
    )
    await ask(
        uri,
        "ALTER TABLE llama_index_memory DROP COLUMN user_id",
        "ALTER TABLE llama_index_memory_owners DROP COLUMN kind",
        f"INSERT INTO llama_index_memory_owners (key, user_id) VALUES {rows}",  # noqa: S608 - our own
        *WITHOUT_SPEAKERS,
        "UPDATE llama_index_memory_schema SET version = 3",
    )


async def test_a_database_of_version_3_becomes_one_of_this_version(uri: str) -> None:
    """All that was stored is read as before, by those whose it is; where two have talked, nothing is learned of it."""
    await open_and_close(uri)
    as_new = await structure(uri)
    await make_version_3(uri)
    assert await asked(uri) == 3
    store = MemoryStore(uri)

    def on(key: str, user_id: str | None, **options: Any) -> CondensedMemory:
        return CondensedMemory.from_defaults(
            key, user_id=user_id, chat_store=store, **LIMITS, **options
        )

    for key, user_id in (
        ("nobody", None),
        ("one", "ann"),
        ("ann", "ann"),
        ("both", "ann"),
    ):
        memory = on(key, user_id)
        assert f"I am in {key}." in sent_text(await memory.aget(input="And?"))
        await memory.aput_messages([user("More."), assistant("Fine.")])
        if user_id:
            with pytest.raises(SessionOwnerError):
                await on(key, "cem").aget()
    assert [fact.content for fact in await on("both", "ann").facts.alist()] == [
        "Likes tea"
    ]
    with pytest.raises(SessionOwnerError):
        await on("two", "ann").aget()
    two = on("two", "ann", shared=True)
    assert "I am in two." in sent_text(await two.aget(input="And?"))
    said = [
        one.is_users for one in (await two.facts_block.extractor("two").recent())[0]
    ]
    assert said == [False, False]
    await store.aclose()
    assert await structure(uri) == as_new
    assert await asked(uri) == SCHEMA_VERSION


VERSION_6 = (
    "DROP INDEX ix_llama_index_memory_facts_id",
    "CREATE INDEX ix_llama_index_memory_status ON llama_index_memory (status)",
    "CREATE INDEX ix_llama_index_memory_timestamp ON llama_index_memory (timestamp)",
    "UPDATE llama_index_memory_schema SET version = 6",
)
VERSION_5 = (
    *VERSION_6,
    "ALTER TABLE llama_index_memory_schema DROP COLUMN encryption",
    "UPDATE llama_index_memory_schema SET version = 5",
)


@pytest.mark.parametrize("statements", [VERSION_6, VERSION_5])
async def test_an_upgrade_changes_indexes_and_keeps_the_speakers_of_facts(
    uri: str, statements: tuple[str, ...]
) -> None:
    """The message of the fact is deleted, so only the fact says who has spoken."""
    async with aclosing(MemoryStore(uri)) as store:
        await store.log.append(
            "chat", [user("I like tea.")], len, access=SessionAccess("ann")
        )
        rows = await store.readers.find("chat")
        ids = tuple(row.id for row in rows)
        fact = Fact(content="Likes tea", session_id="chat", message_ids=ids)
        await store.facts.write("team", [fact])
        await store.delete_messages("chat")
    as_new = await structure(uri)
    await ask(uri, *statements)
    await open_and_close(uri)
    assert await structure(uri) == as_new
    assert await asked(uri) == SCHEMA_VERSION
    speakers = await ask(uri, "SELECT said_by FROM llama_index_memory_facts")
    assert speakers == ["ann"]


@pytest.mark.parametrize(
    ("version", "hint"),
    [(SCHEMA_VERSION + 1, "Use .* at least as"), (2, "Export .* and import")],
)
async def test_a_newer_database_or_one_from_before_the_first_release_is_refused_and_left_as_it_is(
    uri: str, tmp_path: Path, version: int, hint: str
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
            match=rf"version {version}, and .* version {SCHEMA_VERSION}\. {hint}",
        ):
            await call
    assert memory.sql_store.database.engine is None
    assert set(await structure(uri)) == {"llama_index_memory_schema"}
    assert contents(tmp_path) == files


@pytest.mark.parametrize(
    "place", ["/{}/memory.db", "/{}/no/memory.db", "/file:{}/memory.db?uri=true"]
)
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
    done = subprocess.run(
        [*python_command(), "-c", KILLED, uri], capture_output=True, check=False
    )
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


@pytest.mark.parametrize("before", ["nothing", "version 3", "version 4"])
async def test_eight_processes_open_the_same_database_at_once(
    uri: str, before: str
) -> None:
    if before != "nothing":
        await open_and_close(uri)
        await (make_version_3 if before == "version 3" else make_version_4)(uri)
    done = subprocess.run(
        [*python_command(), "-c", CROWD, uri],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    store = MemoryStore(uri)
    assert await store.count_messages("crowd") == 8
    sessions = {"nothing": [], "version 3": ["two"], "version 4": ["bobs", "two"]}
    assert (
        sorted(one.session_id for one in await store.sessions("bob"))
        == sessions[before]
    )
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
        StoreError, match=r"refused making the tables: .*denied.* as a user who may"
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
