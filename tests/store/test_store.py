"""The log, the cursors of its readers, and what the host asks of a chat store."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from llama_index_memory_ext import MemoryStore, StoreError
from llama_index_memory_ext.store.tables import Seen
from tests.conversation import assistant, user
from tests.databases import ENGINES_AT, engine_at


@pytest.fixture
async def store(any_database_uri: str | None) -> AsyncIterator[MemoryStore]:
    store = MemoryStore(any_database_uri)
    yield store
    await store.aclose()


def said(messages: list[ChatMessage]) -> list[str | None]:
    return [message.content for message in messages]


async def read(store: MemoryStore, seen: Seen | None = None, **options: int) -> list[str | None]:
    page = await store.readers.page("chat", "reader", seen or Seen(), **{"limit": 10, **options})  # type: ignore[arg-type]
    return said([row.message for row in page.rows])


async def test_it_keeps_messages_as_the_host_store_does(store: MemoryStore) -> None:
    """The same calls, the same answers, in the order of writing."""
    await store.add_message("chat", user("one"))
    await store.add_messages("chat", [user("two"), user("three")])
    await store.add_messages("chat", [])
    await store.add_message("other", user("elsewhere"))
    assert said(await store.get_messages("chat")) == ["one", "two", "three"]
    assert said(await store.get_messages("chat", limit=1, offset=1)) == ["two"]
    assert said(await store.get_messages("chat", offset=2)) == ["three"]
    assert await store.count_messages("chat") == 3
    assert said(await store.archive_oldest_messages("chat", 1)) == ["one"]
    assert said(await store.get_messages("chat")) == ["two", "three"]
    assert said(await store.get_messages("chat", status=None)) == ["one", "two", "three"]
    assert said(await store.get_messages("chat", MessageStatus.ARCHIVED)) == ["one"]
    assert said(await store.delete_oldest_messages("chat", 1)) == ["two"]
    assert said(await store.delete_oldest_messages("nobody", 1)) == []
    await store.set_messages("chat", [user("new")], MessageStatus.ARCHIVED)
    assert said(await store.get_messages("chat", status=None)) == ["new"]
    await store.delete_messages("chat")
    assert await store.count_messages("chat", status=None) == 0
    assert sorted(await store.get_keys()) == ["other"]


async def test_one_message_can_be_deleted_by_its_row(store: MemoryStore) -> None:
    await store.add_messages("chat", [user("one"), user("two")], MessageStatus.ARCHIVED)
    page = await store.readers.page("chat", "reader", Seen(), limit=10)
    deleted = await store.delete_message("chat", page.rows[0].id)
    assert deleted is not None
    assert deleted.content == "one"
    assert await store.delete_message("chat", 999) is None
    assert await read(store) == ["two"]


async def test_the_host_store_reads_what_it_wrote_and_the_other_way_round(database_uri: str) -> None:
    """Same table, same columns."""
    ours = MemoryStore(database_uri)
    host = SQLAlchemyChatStore(table_name="llama_index_memory", async_database_uri=database_uri)
    await host.add_message("chat", user("from the host"))
    await ours.add_message("chat", user("from us"))
    assert said(await host.get_messages("chat")) == said(await ours.get_messages("chat"))
    assert said(await ours.archive_oldest_messages("chat", 1)) == ["from the host"]
    assert said(await host.get_messages("chat", MessageStatus.ARCHIVED)) == ["from the host"]
    await ours.aclose()
    assert host._async_engine is not None
    await host._async_engine.dispose()


async def test_appending_moves_the_planned_messages_into_the_log(store: MemoryStore) -> None:
    """The old ones, and those of the batch itself; what was moved comes back."""
    await store.add_messages("chat", [user("one"), assistant("two")])
    queues = []

    def all_but_the_last(queue: object) -> int:
        queues.append(said(list(queue)))  # type: ignore[call-overload]
        return 3

    flushed = await store.log.append("chat", [user("three"), user("four")], all_but_the_last)
    assert queues == [["one", "two", "three", "four"]]
    assert said(flushed) == ["one", "two", "three"]
    assert said(await store.get_messages("chat")) == ["four"]
    assert await read(store) == ["one", "two", "three"]


async def test_a_failing_plan_writes_nothing(store: MemoryStore) -> None:
    await store.add_message("chat", user("one"))
    with pytest.raises(ZeroDivisionError):
        await store.log.append("chat", [user("two")], lambda queue: 1 // 0)
    assert said(await store.get_messages("chat", status=None)) == ["one"]


async def test_a_reader_is_given_what_it_has_not_seen(store: MemoryStore) -> None:
    await store.add_messages("chat", [user("one"), user("two")], MessageStatus.ARCHIVED)
    page = await store.readers.page("chat", "reader", Seen(), limit=10)
    assert (said([row.message for row in page.rows]), page.fresh, page.more) == (["one", "two"], True, False)
    seen = Seen(page.epoch, page.position, page.rows[-1].id)
    assert await read(store, seen) == []
    await store.add_message("chat", user("active"))
    assert await read(store, seen) == []
    await store.archive_oldest_messages("chat", 1)
    assert await read(store, seen) == ["active"]


async def test_pages_go_backwards_from_the_newest_row(store: MemoryStore) -> None:
    await store.add_messages("chat", [user(str(i)) for i in range(5)], MessageStatus.ARCHIVED)
    page = await store.readers.page("chat", "reader", Seen(), limit=2)
    assert (said([row.message for row in page.rows]), page.more) == (["3", "4"], True)
    assert await read(store, limit=2, before=page.rows[0].id) == ["1", "2"]
    seen = Seen(page.epoch, 0, page.rows[0].id - 1)
    page = await store.readers.page("chat", "reader", seen, limit=2)
    assert (said([row.message for row in page.rows]), page.more) == (["3", "4"], False)


async def test_a_moved_cursor_hides_what_is_behind_it_from_its_reader_only(store: MemoryStore) -> None:
    await store.add_messages("chat", [user("one"), user("two")], MessageStatus.ARCHIVED)
    page = await store.readers.page("chat", "reader", Seen(), limit=10)
    first = page.rows[0].id
    assert await store.readers.move("chat", "reader", epoch=page.epoch, old=0, new=first)
    assert await read(store) == ["two"]
    other = await store.readers.page("chat", "another reader", Seen(), limit=10)
    assert len(other.rows) == 2


async def test_a_reader_may_have_any_name(store: MemoryStore) -> None:
    """The log's own row is none of theirs."""
    await store.add_messages("chat", [user("one"), user("two")], MessageStatus.ARCHIVED)
    assert await store.readers.move("chat", "log", epoch=0, old=0, new=1)
    await store.add_message("chat", user("three"))
    assert (await store.readers.page("chat", "log", Seen(), limit=10)).position == 1


async def test_of_two_workers_only_one_moves_the_cursor(store: MemoryStore) -> None:
    await store.add_messages("chat", [user("one"), user("two")], MessageStatus.ARCHIVED)
    epoch = (await store.readers.page("chat", "reader", Seen(), limit=10)).epoch
    moves = [store.readers.move("chat", "reader", epoch=epoch, old=0, new=new) for new in (1, 2)]
    assert sorted(await asyncio.gather(*moves)) == [False, True]


async def test_what_was_made_of_the_rows_behind_a_cursor_moves_with_it(store: MemoryStore) -> None:
    """Another state, or none, comes with another move; a move that fails changes nothing."""
    await store.log.append("chat", [user(f"message {i}") for i in range(6)], len)
    page = await store.readers.page("chat", "reader", Seen(), limit=10)
    ids = [row.id for row in page.rows]
    assert await store.readers.state("chat", "reader") == (0, None)
    state = {"summary": "They said \u65e5\u672c \U0001f600.", "summarised": 2}
    assert await store.readers.move("chat", "reader", epoch=page.epoch, old=0, new=ids[1], state=state)
    assert not await store.readers.move("chat", "reader", epoch=page.epoch, old=0, new=ids[2], state={"summary": "x"})
    assert await store.readers.state("chat", "reader") == (ids[1], state)
    assert await store.readers.state("chat", "another") == await store.readers.state("other", "reader") == (0, None)
    assert await store.readers.move("chat", "reader", epoch=page.epoch, old=ids[1], new=ids[1])
    assert await store.readers.state("chat", "reader") == (ids[1], None)
    await store.delete_messages("chat")
    assert await store.readers.state("chat", "reader") == (0, None)


async def test_rows_of_the_log_can_be_asked_for_by_id_and_from_any_place_on(store: MemoryStore) -> None:
    """In their order, each with the time of its writing, active ones too; those of others never."""
    await store.log.append("chat", [user(f"message {i}") for i in range(6)], lambda messages: 5)
    await store.log.append("other", [user("not yours")], len)
    rows = (await store.readers.unread("chat", "reader", after=0, limit=10)).rows
    assert said([row.message for row in rows]) == [f"message {i}" for i in range(5)]
    asked = [rows[3].id, rows[1].id, rows[4].id + 1, rows[4].id + 2, 10**6]
    found = await store.readers.rows("chat", asked)
    assert said([row.message for row in found]) == ["message 1", "message 3", "message 5"]
    assert all(1e18 < row.timestamp < 1e19 for row in found)
    assert await store.readers.rows("chat", []) == []
    behind = (await store.readers.unread("chat", "reader", after=rows[2].id, limit=1)).rows
    assert said([row.message for row in behind]) == ["message 3"]


@pytest.mark.parametrize("change", ["delete_messages", "set_messages", "delete_message"])
async def test_a_reader_learns_that_rows_it_has_seen_are_gone(store: MemoryStore, change: str) -> None:
    """And its cursor starts again."""
    await store.add_messages("chat", [user("one"), user("two")], MessageStatus.ARCHIVED)
    page = await store.readers.page("chat", "reader", Seen(), limit=10)
    seen = Seen(page.epoch, 0, page.rows[-1].id)
    await store.readers.move("chat", "reader", epoch=page.epoch, old=0, new=page.rows[0].id)
    arguments: Any = {"set_messages": [[user("new")]], "delete_message": [page.rows[0].id]}.get(change, [])
    await getattr(store, change)("chat", *arguments)
    page = await store.readers.page("chat", "reader", seen, limit=10)
    assert (page.fresh, page.position, page.rows) == (False, 0, [])


async def test_a_reader_notices_rows_that_the_plain_host_has_deleted(database_uri: str) -> None:
    """The host knows nothing of epochs, and SQLite gives the ids of deleted rows away again."""
    ours = MemoryStore(database_uri)
    await ours.add_messages("chat", [user("one"), user("two")], MessageStatus.ARCHIVED)
    page = await ours.readers.page("chat", "reader", Seen(), limit=10)
    seen = Seen(page.epoch, 0, page.rows[-1].id)
    host = SQLAlchemyChatStore(table_name="llama_index_memory", async_database_uri=database_uri)
    await host.delete_messages("chat")
    assert not (await ours.readers.page("chat", "reader", seen, limit=10)).fresh
    await ours.aclose()
    assert host._async_engine is not None
    await host._async_engine.dispose()


async def test_a_row_that_this_host_cannot_read_does_not_close_the_session(
    database_uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may come from a newer version, with kinds of blocks that this one does not know."""
    store = MemoryStore(database_uri)
    await store.add_messages("chat", [user("one"), user("two")], MessageStatus.ARCHIVED)
    with sqlite3.connect(tmp_path / "memory.db") as connection:
        newer = json.dumps({"role": "user", "blocks": [{"block_type": "hologram", "secret": "x"}]})
        connection.execute("UPDATE llama_index_memory SET data = ? WHERE id = 1", (newer,))
    connection.close()
    assert await read(store) == ["[unreadable message]", "two"]
    assert "hologram" not in caplog.text
    await store.aclose()


async def test_a_cancelled_write_is_finished_and_the_database_stays(store: MemoryStore) -> None:
    """A connection on which a statement is cancelled is thrown away, in memory with all that it holds."""
    await store.add_message("chat", user("before"))
    tasks = [asyncio.ensure_future(store.add_message("chat", user(str(i)))) for i in range(20)]
    for steps, task in enumerate(tasks):
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert said(await store.get_messages("chat"))[0] == "before"
    await store.add_message("chat", user("after"))
    assert said(await store.get_messages("chat"))[-1] == "after"


async def test_a_session_can_be_forgotten(store: MemoryStore) -> None:
    await store.add_messages("chat", [user("one"), user("two")], MessageStatus.ARCHIVED)
    await store.readers.move("chat", "reader", epoch=0, old=0, new=1)
    await store.add_message("other", user("elsewhere"))
    assert await store.forget("chat") == {"messages": 2, "cursors": 1}
    assert await store.forget("chat") == {"messages": 0, "cursors": 0}
    assert await store.users.knows("other")
    assert not await store.users.knows("chat")


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("chat.db", "must be a SQLAlchemy address such as 'sqlite+aiosqlite:///chat.db'"),
        ("./my data/z.sqlite3", "must be a SQLAlchemy address such as 'sqlite+aiosqlite:///./my data/z.sqlite3'"),
        ("", "must be a SQLAlchemy address such as 'sqlite+aiosqlite:///memory.db'"),
        ("password=hunter2 dbname=z.db", "must be a SQLAlchemy address such as 'sqlite+aiosqlite:///memory.db'"),
        ("postgres://me:hunter2@host/db", "or 'postgresql+asyncpg://user@host/database'"),
        ("sqlite+aiosqlite:///chat.db?timout=5", "knows no option 'timout', which async_database_uri has"),
        ("sqlite:///chat.db?timout=5", "Did you mean 'timeout'?"),
        ("postgresql+asyncpg://me:hunter2@host/db?sslmod=require", "Did you mean 'sslmode'?"),
        ("postgresql://me:hunter2@host/db?aplication_nam=x", "Did you mean 'application_name'?"),
        ("postgresql://me:hunter2@host/db?xyzzy=1", "It knows application_name, "),
        ("mysql+aiomysql://me:hunter2@host/db", "SQLite or PostgreSQL; the address names 'mysql'"),
        ("nosuch://me:hunter2@host/db", "must be a SQLAlchemy address"),
        ("nonsense hunter2", "must be a SQLAlchemy address"),
    ],
)
def test_an_address_that_cannot_work_is_refused_with_the_way_out(uri: str, says: str) -> None:
    with pytest.raises(StoreError) as error:
        MemoryStore(uri)
    assert says in str(error.value)
    assert "hunter2" not in str(error.value)


async def test_a_file_in_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    store = MemoryStore(f"sqlite+aiosqlite:///{tmp_path}/no/memory.db")
    with pytest.raises(StoreError, match=r"needs a folder .*/no': create it first"):
        await store.get_messages("chat")


def test_no_password_leaves_the_store() -> None:
    store = MemoryStore("postgresql+asyncpg://me:hunter2@host/db")
    for shown in (repr(store), str(store), json.dumps(store.model_dump()), str(pickle.dumps(store))):
        assert "hunter2" not in shown
    assert str(store.database.url.password) == "hunter2"


async def test_a_store_can_be_copied_and_pickled(database_uri: str) -> None:
    """A copy is itself; what travels opens its own connections."""
    store = MemoryStore(database_uri, table_name="t")
    await store.add_message("chat", user("one"))
    assert copy.deepcopy(store) is store
    twin = pickle.loads(pickle.dumps(store))
    assert said(await twin.get_messages("chat")) == ["one"]
    await twin.aclose()
    await store.aclose()


async def test_a_store_in_memory_dumps_its_rows_as_the_host_does() -> None:
    store = MemoryStore()
    await store.add_message("chat", user("one"))
    twin = MemoryStore(**store.model_dump())
    assert said(await twin.get_messages("chat")) == ["one"]
    await store.aclose()
    await twin.aclose()


@pytest.mark.parametrize("lends", [False, True], ids=["an address", "an engine"])
async def test_a_write_that_changes_nothing_leaves_no_trace_and_arguments_may_be_named(
    any_database_uri: str | None, *, lends: bool
) -> None:
    """A session that was forgotten would be known again, or its row be locked for ever."""
    engine = create_async_engine(any_database_uri or "sqlite+aiosqlite:///:memory:")
    store = MemoryStore(async_engine=engine) if lends else MemoryStore(any_database_uri)
    assert await store.delete_message(key="chat", idx=7) is None
    assert await store.facts.change("chat", "no such fact", lambda fact: fact) is None
    await store.add_messages(key="chat", messages=[])
    assert await store.log.append("chat", [], len) == []
    assert not await store.readers.move("chat", "reader", epoch=5, old=3, new=4)
    assert not await store.users.knows("chat")
    await store.add_messages(key="chat", messages=[user("one")])
    await store.delete_messages(key="chat", status=None)
    assert await store.users.knows("chat")
    await store.aclose()
    await engine.dispose()


async def test_an_engine_that_was_lent_is_not_closed(database_uri: str) -> None:
    engine = create_async_engine(database_uri)
    store = MemoryStore(async_engine=engine)
    await store.add_message("chat", user("one"))
    pool = engine.pool
    await store.aclose()
    assert engine.pool is pool
    assert said(await store.get_messages("chat")) == ["one"]
    await engine.dispose()


@pytest.mark.parametrize("way", ENGINES_AT)
@pytest.mark.parametrize("level", ["AUTOCOMMIT", "READ UNCOMMITTED"])
async def test_a_lent_engine_without_transactions_leaves_nothing_half_done(
    database_uri: str, way: str, level: str
) -> None:
    """Though the engine goes on as it was for its owner."""
    async with engine_at(way, database_uri, level) as engine:
        store = MemoryStore(async_engine=engine)
        await store.add_message("chat", user("one"))
        with pytest.raises(ZeroDivisionError):
            await store.log.append("chat", [user("half")], lambda queue: 1 // 0, replace=True)
        assert said(await store.get_messages("chat")) == ["one"]
        assert await store.vacuum()
        async with engine.connect() as connection:
            driver: Any = (await connection.get_raw_connection()).driver_connection
            assert (driver.isolation_level is None) == (level == "AUTOCOMMIT")


async def test_a_closed_store_opens_again(database_uri: str) -> None:
    store = MemoryStore(database_uri)
    await store.add_message("chat", user("one"))
    await store.aclose()
    await store.aclose()
    assert said(await store.get_messages("chat")) == ["one"]
    await store.aclose()


async def test_a_store_that_is_dropped_open_says_how_to_close_it(database_uri: str) -> None:
    store = MemoryStore(database_uri)
    await store.add_message("chat", user("one"))
    with pytest.warns(ResourceWarning, match=r"await store.aclose\(\)"):
        store.database.__del__()
    await store.aclose()


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("llama_index_memory WHERE key='chat' AND status='archived' AND id > 5", "ix_llama_index_memory_log"),
        ("llama_index_memory_owners WHERE user_id='ann'", "ix_llama_index_memory_owners_user"),
    ],
)
async def test_the_log_of_a_session_and_the_sessions_of_a_user_are_found_by_an_index(
    database_uri: str, query: str, index: str
) -> None:
    """However long the session is, and however many there are; the host's own query reads all rows of a session."""
    store = MemoryStore(database_uri)
    await store.add_message("chat", user("one"))
    engine = create_async_engine(database_uri)
    async with engine.connect() as connection:
        plan = str((await connection.execute(text(f"EXPLAIN QUERY PLAN SELECT key FROM {query}"))).all())  # noqa: S608
    assert f"INDEX {index}" in plan
    await engine.dispose()
    await store.aclose()
