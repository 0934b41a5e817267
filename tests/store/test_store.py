"""The log, the cursors of its readers, and what the host asks of a chat store."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import sqlite3
import subprocess
import sys
import traceback
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.storage.chat_store.base_db import MessageStatus
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import Pool

from llama_index_memory_ext import CondensedMemory, MemoryStore, StoreError
from llama_index_memory_ext.store.marks import encrypt_within
from llama_index_memory_ext.store.retention import retain_messages
from llama_index_memory_ext.store.rows import ReadPosition, SessionAccess
from llama_index_memory_ext.store.schema import TABLES
from llama_index_memory_ext.store.transaction import Transaction
from llama_index_memory_ext.store.vectors import KeptVectors
from tests.conversation import assistant, user
from tests.databases import OpenStore, host_on, stored_cursor


def said(messages: list[ChatMessage]) -> list[str | None]:
    return [message.content for message in messages]


async def read(
    store: MemoryStore, seen: ReadPosition | None = None, **options: int
) -> list[str | None]:
    limits: dict[str, Any] = {"limit": 10, **options}
    page = await store.readers.page("chat", "reader", seen or ReadPosition(), **limits)
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
    messages = said(await store.get_messages("chat", status=None))
    assert messages == ["one", "two", "three"]
    assert said(await store.get_messages("chat", MessageStatus.ARCHIVED)) == ["one"]
    assert said(await store.delete_oldest_messages("chat", 1)) == ["two"]
    assert said(await store.delete_oldest_messages("nobody", 1)) == []
    await store.set_messages("chat", [user("new")], MessageStatus.ARCHIVED)
    assert said(await store.get_messages("chat", status=None)) == ["new"]
    await store.delete_messages("chat")
    assert await store.count_messages("chat", status=None) == 0
    assert sorted(await store.get_keys()) == ["other"]


async def test_appending_moves_the_planned_messages_into_the_log(
    store: MemoryStore,
) -> None:
    """The old ones, and those of the batch itself; what was moved comes back."""
    await store.add_messages("chat", [user("one"), assistant("two")])
    queues = []

    def all_but_the_last(queue: object) -> int:
        queues.append(said(list(queue)))  # type: ignore[call-overload]
        return 3

    appended = await store.log.append(
        "chat", [user("three"), user("four")], all_but_the_last
    )
    assert queues == [["one", "two", "three", "four"]]
    assert said([*appended.flushed]) == ["one", "two", "three"]
    assert said(await store.get_messages("chat")) == ["four"]
    assert await read(store) == ["one", "two", "three"]


async def test_archived_messages_move_the_active_ones_before_them_into_the_log(
    store: MemoryStore,
) -> None:
    """Otherwise a reader that has passed the later row would not read the earlier one."""
    await store.add_message("chat", user("one"))
    await store.add_message("chat", user("two"), MessageStatus.ARCHIVED)
    assert await read(store) == ["one", "two"]


async def test_a_reader_is_given_what_it_has_not_seen(store: MemoryStore) -> None:
    """In pages, from the newest row backwards."""
    await store.add_messages(
        "chat", [user(str(i)) for i in range(5)], MessageStatus.ARCHIVED
    )
    page = await store.readers.page("chat", "reader", ReadPosition(), limit=2)
    shown = (said([row.message for row in page.rows]), page.fresh, page.more)
    assert shown == (["3", "4"], True, True)
    assert await read(store, limit=2, before=page.rows[0].id) == ["1", "2"]
    before = await store.readers.page(
        "chat", "reader", ReadPosition(page.epoch, 0, page.rows[0].id - 1), limit=2
    )
    shown_before = (said([row.message for row in before.rows]), before.more)
    assert shown_before == (["3", "4"], False)
    seen = ReadPosition(page.epoch, page.position, page.rows[-1].id)
    await store.add_message("chat", user("active"))
    assert await read(store, seen) == []
    await store.archive_oldest_messages("chat", 1)
    assert await read(store, seen) == ["active"]


async def test_a_page_with_more_new_rows_than_its_limit_is_fresh(
    store: MemoryStore,
) -> None:
    """The row that the reader has read last is then not among the rows of the query."""
    await store.log.append("chat", [user("one")], len)
    first = await store.readers.page("chat", "reader", ReadPosition(), limit=2)
    seen = ReadPosition(first.epoch, first.position, first.rows[-1].id)
    await store.log.append("chat", [user("two"), user("three"), user("four")], len)
    page = await store.readers.page("chat", "reader", seen, limit=2)
    assert (page.fresh, page.more) == (True, True)
    assert [row.message.content for row in page.rows] == ["three", "four"]


async def test_a_reader_moves_in_a_log_that_only_the_host_has_written(
    database_uri: str, open_store: OpenStore
) -> None:
    """Such a log has no epoch before the first cursor is stored."""
    async with host_on(database_uri) as host:
        await host.add_message("chat", user("one"), status=MessageStatus.ARCHIVED)
    store = open_store(database_uri)
    page = await store.readers.page("chat", "reader", ReadPosition(), limit=2)
    last = page.rows[-1].id
    assert page.epoch == 0
    assert await store.readers.move("chat", "reader", page, last)
    assert await stored_cursor(store, "chat", "reader") == (last, None)


async def test_a_reader_goes_on_behind_a_cursor_that_another_process_has_moved(
    store: MemoryStore,
) -> None:
    await store.log.append("chat", [user("one"), user("two"), user("three")], len)
    page = await store.readers.page("chat", "reader", ReadPosition(), limit=3)
    first, second, third = page.rows
    await store.readers.move("chat", "reader", page, second.id)
    seen = ReadPosition(page.epoch, 0, first.id)
    page = await store.readers.page("chat", "reader", seen, limit=3)
    assert (page.fresh, page.rows) == (True, [third])


async def test_a_moved_cursor_hides_what_is_behind_it_from_its_reader_only(
    store: MemoryStore,
) -> None:
    """Of two workers that move it, one succeeds; what was made of the rows before moves with it."""
    await store.log.append("chat", [user("one"), user("two"), user("three")], len)
    page, move = (
        await store.readers.page("chat", "reader", ReadPosition(), limit=10),
        store.readers.move,
    )
    assert await stored_cursor(store, "chat", "reader") == (0, None)
    ids, states = (
        [row.id for row in page.rows],
        [{"summary": "They said \u65e5\u672c \U0001f600."}, {"summary": "x"}],
    )
    moves = [move("chat", "reader", page, ids[i], states[i]) for i in range(2)]
    moved = (await asyncio.gather(*moves)).index(True)
    assert await read(store) == ["two", "three"][moved:]
    assert await stored_cursor(store, "chat", "reader") == (ids[moved], states[moved])
    assert (
        await stored_cursor(store, "chat", "another")
        == await stored_cursor(store, "other", "reader")
        == (0, None)
    )
    assert (
        len(
            (await store.readers.page("chat", "another", ReadPosition(), limit=10)).rows
        )
        == 3
    )
    assert await move("chat", "reader", replace(page, position=ids[moved]), ids[moved])
    assert await stored_cursor(store, "chat", "reader") == (ids[moved], None)
    await store.delete_messages("chat")
    assert await stored_cursor(store, "chat", "reader") == (0, None)


async def test_a_copy_has_the_state_of_a_reader_that_has_read_nothing_behind_its_end(
    store: MemoryStore,
) -> None:
    """A summary would hold words that are not in the copy."""
    talk = [user("one"), user("two"), user("three")]
    for i, message in enumerate(talk):
        message.additional_kwargs["message_id"] = i
    await store.log.append("chat", talk, len)
    page = await store.readers.unread("chat", "reader")
    last = page.rows[1].id
    state = {"summary": "They said one and two."}
    assert await store.readers.move("chat", "reader", page, last, state)
    for end, copied in ((0, None), (1, state)):
        name = f"until {end}"
        await store.log.branch("chat", name, SessionAccess(), end, with_end=True)
        cursor = await stored_cursor(store, name, "reader")
        rows = await store.readers.find(name)
        assert cursor == (rows[-1].id if copied else 0, copied)


@pytest.mark.parametrize(
    "change", ["delete_messages", "set_messages", "delete_message"]
)
async def test_a_reader_learns_that_rows_it_has_seen_are_gone(
    store: MemoryStore, change: str
) -> None:
    """And its cursor starts again."""
    await store.add_messages("chat", [user("one"), user("two")], MessageStatus.ARCHIVED)
    page = await store.readers.page("chat", "reader", ReadPosition(), limit=10)
    seen = ReadPosition(page.epoch, 0, page.rows[-1].id)
    await store.readers.move("chat", "reader", page, page.rows[0].id)
    arguments: Any = {
        "set_messages": [[user("new")]],
        "delete_message": [page.rows[0].id],
    }.get(change, [])
    await getattr(store, change)("chat", *arguments)
    page = await store.readers.page("chat", "reader", seen, limit=10)
    assert (page.fresh, page.position, page.rows) == (False, 0, [])


async def test_a_reader_notices_rows_that_the_plain_host_has_deleted(
    database_uri: str, open_store: OpenStore
) -> None:
    """The host knows nothing of epochs, and SQLite gives the ids of deleted rows away again."""
    ours = open_store(database_uri)
    await ours.add_messages("chat", [user("one"), user("two")], MessageStatus.ARCHIVED)
    page = await ours.readers.page("chat", "reader", ReadPosition(), limit=10)
    async with host_on(database_uri) as host:
        await host.delete_messages("chat")
    assert not (
        await ours.readers.page(
            "chat", "reader", ReadPosition(page.epoch, 0, page.rows[-1].id), limit=10
        )
    ).fresh


async def test_a_row_that_this_host_cannot_read_does_not_close_the_session(
    database_uri: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    open_store: OpenStore,
) -> None:
    """It may come from a newer version, with kinds of blocks that this one does not know."""
    store = open_store(database_uri)
    await store.add_messages("chat", [user("one"), user("two")], MessageStatus.ARCHIVED)
    with closing(
        sqlite3.connect(tmp_path / "memory.db", isolation_level=None)
    ) as connection:
        newer = json.dumps(
            {"role": "user", "blocks": [{"block_type": "hologram", "secret": "x"}]}
        )
        connection.execute(
            "UPDATE llama_index_memory SET data = ? WHERE id = 1", (newer,)
        )
    assert await read(store) == ["[unreadable message]", "two"]
    assert "hologram" not in caplog.text


NO_ADDRESS = "must be a SQLAlchemy address such as 'sqlite:///memory.db'"


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("chat.db", NO_ADDRESS),
        ("sqlite://chat.db", NO_ADDRESS),
        ("sqlite:///file:chat.db?uri=true", NO_ADDRESS),
        ("sqlite:///chat.db?mode=memory", NO_ADDRESS),
        ("password=hunter2 dbname=z.db", NO_ADDRESS),
        ("postgresql://me:hunt@er2@host/db", NO_ADDRESS),
        ("postgresql+asyncpg://me:hunter2localhost/db", NO_ADDRESS),
        ("postgresql+asyncpg://me:hunter2@localhost:port/db", NO_ADDRESS),
        ("mysql+aiomysql://me:hunter2@host/db", "names 'mysql+aiomysql'. Use one of"),
        ("postgresql+nothing://me:hunter2@host/db", "names 'postgresql+nothing'."),
        (
            "postgres://me:hunter2@host/db",
            "names 'postgres'. Use one of sqlite, sqlite+aiosqlite, postgresql, postgresql+asyncpg, postgresql+psycopg",
        ),
    ],
)
def test_an_address_that_cannot_work_is_refused_with_the_way_out(
    uri: str, says: str
) -> None:
    with pytest.raises(StoreError) as error:
        MemoryStore(uri)
    assert says in str(error.value)
    assert "hunt" not in "".join(traceback.format_exception(error.value))


async def test_a_store_can_be_copied_and_pickled(
    database_uri: str, open_store: OpenStore
) -> None:
    """A copy is itself; what travels opens its own connections. One in memory dumps its rows as the host does."""
    store, in_memory = open_store(database_uri, table_name="t"), open_store()
    assert copy.deepcopy(store) is store
    for one in (store, in_memory):
        await one.add_message("chat", user("one"))
        twin = (
            pickle.loads(pickle.dumps(store))
            if one is store
            else MemoryStore(**one.model_dump())
        )
        assert said(await twin.get_messages("chat")) == ["one"]
        await twin.aclose()


async def test_a_dump_of_a_database_in_memory_keeps_the_speakers(
    open_store: OpenStore,
) -> None:
    """Rows without a speaker are as the host dumps them."""
    store = open_store()
    await store.add_message("alone", user("nobody"))
    for name in ("ann", "bob"):
        memory = CondensedMemory.from_defaults(
            "chat", user_id=name, shared=True, chat_store=store, extract_facts=False
        )
        await memory.aput_messages([user(name), assistant("Noted.")])
    dump = store.model_dump()
    assert "user_id" not in dump["db_data"][0]
    twin = MemoryStore(**dump)
    speakers = {row.message.content: row.speaker for row in await twin.rows("chat")}
    assert (speakers["ann"], speakers["bob"]) == ("ann", "bob")
    await twin.aclose()


@pytest.mark.parametrize("lends", [False, True], ids=["an address", "an engine"])
async def test_a_write_that_changes_nothing_leaves_no_trace_and_arguments_may_be_named(
    any_database_uri: str | None, open_store: OpenStore, *, lends: bool
) -> None:
    """A session that was forgotten would be known again, or its row be locked for ever."""
    engine = create_async_engine(any_database_uri or "sqlite+aiosqlite:///:memory:")
    store = open_store(async_engine=engine) if lends else open_store(any_database_uri)
    assert await store.delete_message(key="chat", idx=7) is None
    assert (
        await store.facts.change(
            "chat", lambda facts: [*facts.values()], ["no such fact"]
        )
        == []
    )
    await store.add_messages(key="chat", messages=[])
    assert not any(await store.log.append("chat", [], len))
    assert not await store.readers.move("chat", "reader", ReadPosition(5, 3), 4)
    assert not await store.readers.has_session("chat")
    await store.add_messages(key="chat", messages=[user("one")])
    await store.delete_messages(key="chat", status=None)
    assert await store.readers.has_session("chat")


@pytest.mark.parametrize("lends", [False, True], ids=["an address", "an engine"])
async def test_a_closed_store_opens_again_and_what_was_lent_is_not_closed(
    database_uri: str, open_store: OpenStore, *, lends: bool
) -> None:
    engine = create_async_engine(database_uri)
    pool, store = (
        engine.pool,
        open_store(async_engine=engine) if lends else open_store(database_uri),
    )
    await store.add_message("chat", user("one"))
    await store.aclose()
    await store.aclose()
    assert engine.pool is pool
    assert said(await store.get_messages("chat")) == ["one"]


async def test_a_store_that_is_dropped_open_says_how_to_close_it(
    database_uri: str,
) -> None:
    store = MemoryStore(database_uri)
    await store.add_message("chat", user("one"))
    with pytest.warns(ResourceWarning, match=r"await store.aclose\(\)"):
        store.database.__del__()
    await store.aclose()


def test_a_program_that_ends_with_an_open_memory_prints_nothing() -> None:
    """As a first try in memory; of a file, the end of the program warns."""
    program = (
        "import asyncio\n"
        "from llama_index.core.llms import ChatMessage\n"
        "from llama_index_memory_ext import CondensedMemory\n"
        "async def main():\n"
        "    memory = CondensedMemory.from_defaults('chat', extract_facts=False)\n"
        "    await memory.aput(ChatMessage('one'))\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-W", "default", "-c", program]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stderr == b""


async def test_what_finds_a_session_deleted_does_not_make_it_again(
    store: MemoryStore,
) -> None:
    """A call that has waited for the deletion, or that has read the names of the sessions before."""
    place = {"key": "gone", "namespace": None, "vectors": "messages of gone"}
    await store.database.run(encrypt_within, place)
    user_place = {"key": None, "namespace": "gone", "vectors": "gone"}
    await store.database.run(encrypt_within, user_place)
    await store.delete_message("gone", 1)
    await store.add_messages("gone", [])
    await store.log.append("gone", [], len)
    ann = SessionAccess("ann")
    await store.log.claim("gone", ann, readers=["facts"], epoch=1)
    await store.database.run(
        retain_messages, "gone", 1, 1, unread=True, sessions=["gone"]
    )
    await KeptVectors(store.database, "gone", "m", 1).write({"1": ("", b"")})
    await KeptVectors(store.database, "gone", "m").write({"1": ("", b"")})

    def count(tx: Transaction) -> list[int]:
        tables = {*TABLES} - {"schema"}
        return [
            tx.execute(f"SELECT COUNT(*) FROM {{{name}}}").scalar_one()  # noqa: S608
            for name in tables
        ]

    assert sum(await store.database.run(count, writes=False)) == 0


async def test_deleted_words_are_overwritten_in_the_file(
    database_uri: str, open_store: OpenStore, tmp_path: Path
) -> None:
    """Not every SQLite does so by default."""

    def leave_words(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA secure_delete = OFF")

    event.listen(Pool, "connect", leave_words)
    store = open_store(database_uri)
    try:
        await store.add_message("chat", user("My cat is called Semiramis."))
        await store.forget("chat")
    finally:
        event.remove(Pool, "connect", leave_words)
    await store.aclose()
    assert b"Semiramis" not in (tmp_path / "memory.db").read_bytes()
