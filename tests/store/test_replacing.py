"""What stands unchanged in a session keeps its row, and its place behind the readers' cursors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.storage.chat_store.base_db import MessageStatus

from llama_index_memory_ext import MemoryStore
from llama_index_memory_ext.store.rows import LogRow
from llama_index_memory_ext.store.vectors import KeptVectors
from tests.conversation import assistant, calling, result, user
from tests.databases import OpenStore, host_on, stored_cursor

TALK = [user("one"), assistant("two"), user("three"), assistant("four")]


async def rows_of(store: MemoryStore) -> list[LogRow]:
    return (await store.readers.unread("chat", "", with_active=True)).rows


async def unread(store: MemoryStore, reader: str = "reader") -> list[str | None]:
    page = await store.readers.unread("chat", reader, with_active=True)
    return [row.message.content for row in page.rows]


async def leave_behind(
    store: MemoryStore, count: int, state: Any = None, reader: str = "reader"
) -> None:
    """Move the reader's cursor behind so many of the rows that there are."""
    page = await store.readers.unread("chat", reader, with_active=True)
    ids = [row.id for row in await rows_of(store)]
    assert await store.readers.move("chat", reader, page, ids[count - 1], state)


def keep_two(messages: Sequence[ChatMessage]) -> int:
    return max(len(messages) - 2, 0)


async def test_the_same_history_keeps_its_rows_and_is_not_unread_again(
    store: MemoryStore,
) -> None:
    """Also where LlamaIndex has written the session into a message meanwhile."""
    await store.log.append("chat", TALK, keep_two)
    await leave_behind(store, 3)
    before = await rows_of(store)
    again = [
        ChatMessage(
            role=one.role, content=one.content, additional_kwargs={"session_id": "chat"}
        )
        for one in TALK
    ]
    replaced = await store.log.append("chat", again, keep_two, replace=True)
    assert [*replaced.flushed] == []
    assert await rows_of(store) == before
    assert await unread(store) == ["four"]


async def test_what_is_written_anew_is_unread(store: MemoryStore) -> None:
    """From the first difference on, although SQLite gives new rows the ids of deleted ones, before the cursor."""
    await store.log.append("chat", TALK, len)
    await leave_behind(store, 4)
    first = (await rows_of(store))[0]
    await store.log.append("chat", TALK[:-2], len, replace=True)
    assert await unread(store) == []
    await store.log.append("chat", [user("five"), assistant("six")], len)
    assert await unread(store) == ["five", "six"]
    await store.log.append(
        "chat", [TALK[0], assistant("another"), *TALK[2:]], len, replace=True
    )
    assert (await rows_of(store))[0] == first
    assert await unread(store) == ["another", "three", "four"]


async def test_a_replaced_history_is_archived_as_planned(store: MemoryStore) -> None:
    """Rows of the log become active again and the other way round; only what is new in the log is told."""
    await store.log.append("chat", TALK, keep_two)
    replaced = await store.log.append("chat", TALK[:-1], keep_two, replace=True)
    assert [*replaced.flushed] == []
    statuses = [row.status for row in await rows_of(store)]
    assert statuses == ["archived", "active", "active"]
    told = await store.log.append(
        "chat", [*TALK[:-1], assistant("4"), user("5")], keep_two, replace=True
    )
    assert [message.content for message in told.flushed] == ["two", "three"]
    assert [row.status for row in await rows_of(store)] == ["archived"] * 3 + [
        "active"
    ] * 2
    await store.set_messages("chat", TALK, MessageStatus.ACTIVE)
    assert len(await store.get_messages("chat")) == 4


@pytest.mark.parametrize(
    "change", ["delete_message", "delete_oldest_messages", "delete_messages"]
)
async def test_a_deletion_moves_cursors_back_to_the_last_row_that_is_left(
    store: MemoryStore, change: str
) -> None:
    await store.log.append("chat", TALK, lambda messages: 3)
    await leave_behind(store, 4)
    await leave_behind(store, 1, reader="another")
    last = (await rows_of(store))[-1].id
    arguments = {
        "delete_message": last,
        "delete_oldest_messages": 1,
        "delete_messages": MessageStatus.ACTIVE,
    }
    await getattr(store, change)("chat", arguments[change])
    assert await unread(store) == []
    await store.add_message("chat", user("new"))
    assert await unread(store) == ["new"]
    assert await unread(store, "another") == ["two", "three", "new"]


async def test_what_was_made_of_all_rows_is_void_when_one_of_them_is_deleted(
    store: MemoryStore,
) -> None:
    """Its words would be in it still; of a row behind the cursor they are not."""
    await store.log.append("chat", TALK, len)
    await leave_behind(store, 3, {"summary": "They counted."})
    ids = [row.id for row in await rows_of(store)]
    await store.delete_message("chat", ids[3])
    cursor = await stored_cursor(store, "chat", "reader")
    assert cursor == (ids[2], {"summary": "They counted."})
    await store.delete_message("chat", ids[0])
    assert await stored_cursor(store, "chat", "reader") == (0, None)


async def test_what_a_reader_notes_of_single_rows_is_kept_for_those_that_are_left(
    store: MemoryStore,
) -> None:
    await store.log.append("chat", [*TALK, *TALK], len)
    ids = [row.id for row in await rows_of(store)]
    notes = [[ids[0], ids[1], "x"], [ids[2], ids[3], "y"], [ids[6], ids[7], "z"]]
    await leave_behind(store, 8, {"tries": 1, "rows": notes})
    for gone in (ids[0], ids[3]):
        await store.delete_message("chat", gone)
    left = {"tries": 1, "rows": [[ids[6], ids[7], "z"]]}
    assert await stored_cursor(store, "chat", "reader") == (ids[7], left)
    await store.delete_message("chat", ids[7])
    left = {"tries": 1, "rows": []}
    assert await stored_cursor(store, "chat", "reader") == (ids[6], left)
    await store.delete_messages("chat")
    assert await stored_cursor(store, "chat", "reader") == (0, None)


async def test_messages_that_stay_keep_their_vectors(store: MemoryStore) -> None:
    """But for the call whose result is gone, whose words are in its vector."""
    talk = [
        user("one"),
        calling(("c", "f", {})),
        result("c", "secret"),
        assistant("four"),
    ]
    await store.log.append("chat", talk, len)
    page = await store.readers.unread("chat", "", with_active=True)
    ids = [str(row.id) for row in page.rows]
    await KeptVectors(store.database, "chat", "m", page.epoch).write(
        dict.fromkeys(ids[:2], ("d", b"v"))
    )
    await store.log.append("chat", talk[:3], len, replace=True)
    epoch = (await store.readers.unread("chat", "")).epoch
    assert epoch != page.epoch
    vectors = KeptVectors(store.database, "chat", "m", epoch)
    assert sorted(await vectors.read(ids)) == sorted(ids[:2])
    await store.log.append("chat", talk[:2], len, replace=True)
    assert sorted(await vectors.read(ids)) == ids[:1]


async def test_a_batch_that_was_read_before_a_deletion_is_not_left_behind(
    store: MemoryStore,
) -> None:
    """It is read again, and what was read before it is not."""
    await store.log.append("chat", TALK, len)
    await leave_behind(store, 2)
    page = await store.readers.unread("chat", "reader")
    await store.delete_message("chat", page.rows[-1].id)
    moved = await store.readers.move("chat", "reader", page, page.rows[-1].id)
    assert not moved
    assert await unread(store) == ["three"]


@pytest.mark.parametrize("any_database_uri", ["file", "empty"], indirect=True)
async def test_what_the_plain_host_has_written_is_kept_too(
    open_store: OpenStore, any_database_uri: str
) -> None:
    """Before we have ever written to the session, and between."""
    store = open_store(any_database_uri)
    async with host_on(any_database_uri) as host:
        await host.add_messages("chat", TALK[:3])
        await store.set_messages("chat", TALK[:2])
        await host.add_message("chat", TALK[2])
        before = await rows_of(store)
        await leave_behind(store, 3)
        await store.set_messages("chat", TALK)
        assert (await rows_of(store))[:3] == before
        assert await unread(store) == ["four"]
