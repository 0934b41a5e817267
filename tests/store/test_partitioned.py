"""The store works on partitioned tables, as the page on partitioning creates them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from sqlalchemy import event, inspect, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from llama_index_memory_ext import Fact, MemoryStore
from llama_index_memory_ext.store.facts import NOTHING_READ, KeptVectors
from llama_index_memory_ext.store.tables import Opening
from tests.conversation import user
from tests.store.conftest import WIDEN_IDS, run_script

ENDINGS = {"", "_sessions", "_owners", "_cursors", "_users", "_facts", "_embeddings", "_message_ids"}
PARTITIONED = {f"llama_index_memory{ending}" for ending in ENDINGS}
BEYOND_32_BITS = 2**31


@pytest.fixture
async def store(partitioned_uri: str) -> AsyncIterator[MemoryStore]:
    store = MemoryStore(partitioned_uri)
    yield store
    await store.aclose()


async def ask(uri: str, query: str) -> list[Any]:
    engine = create_async_engine(uri, poolclass=NullPool)
    async with engine.connect() as connection:
        rows = list((await connection.execute(text(query))).scalars())
    await engine.dispose()
    return rows


async def columns_of(uri: str, schema: str) -> dict[str, Any]:
    """Names, types and nullability of the columns of each table, and its indexes."""

    def look(connection: Any) -> dict[str, Any]:
        inspector = inspect(connection)
        return {
            name: (
                [(one["name"], str(one["type"]), one["nullable"]) for one in inspector.get_columns(name, schema)],
                {tuple(index["column_names"]) for index in inspector.get_indexes(name, schema)},
            )
            for name in PARTITIONED
        }

    engine = create_async_engine(uri, poolclass=NullPool)
    async with engine.connect() as connection:
        columns = await connection.run_sync(look)
    await engine.dispose()
    return columns


def contents(messages: list[ChatMessage]) -> list[str | None]:
    return [message.content for message in messages]


def fact(fact_id: str, content: str) -> Fact:
    return Fact(id=fact_id, namespace="ann", content=content, confidence=0.9)


async def extract(store: MemoryStore, session_id: str, namespace: str, *facts: Fact) -> bool:
    """Store facts as an extraction from this session does."""
    unread = await store.readers.unread(session_id, "facts")
    return await store.facts.write_extracted(
        namespace, facts, NOTHING_READ, session_id=session_id, reader="facts", unread=unread
    )


@contextmanager
def watching_writes(store: MemoryStore) -> Iterator[list[set[str]]]:
    """Collects, for each transaction, the partitions that it has written to."""
    transactions: list[set[str]] = []
    engine = store.database.engine
    assert engine is not None

    def look(connection: Any) -> None:
        query = (
            "SELECT relation::regclass::text FROM pg_locks JOIN pg_class ON pg_class.oid = relation "
            "WHERE pid = pg_backend_pid() AND mode = 'RowExclusiveLock' AND relispartition AND relkind = 'r'"
        )
        transactions.append(set(connection.exec_driver_sql(query).scalars()))

    event.listen(engine, "commit", look)
    yield transactions
    event.remove(engine, "commit", look)


async def test_the_documented_tables_have_the_columns_and_indexes_of_the_store(
    partitioned_uri: str, store: MemoryStore
) -> None:
    """The page must say what the package would create, apart from the partitions and one primary key."""
    await store.get_keys()
    whole = MemoryStore(partitioned_uri, db_schema="whole")
    await whole.get_keys()
    await whole.aclose()
    assert set(await ask(partitioned_uri, "SELECT relname FROM pg_class WHERE relkind = 'p'")) == PARTITIONED
    assert await columns_of(partitioned_uri, "public") == await columns_of(partitioned_uri, "whole")


async def test_an_extraction_writes_to_the_partitions_of_one_session_and_one_user(store: MemoryStore) -> None:
    await store.log.append("chat", [user("I like tea.")], len)
    with watching_writes(store) as transactions:
        await store.log.append(
            "chat", [user("I like tea."), user("And figs.")], len, opening=Opening("ann"), readers=["facts"]
        )
        assert await extract(store, "chat", "ann", fact("a", "Likes tea"))
    turn, extraction = transactions
    for written, endings in (
        (turn, {"", "_sessions", "_owners", "_cursors"}),
        (extraction, {"_sessions", "_cursors", "_users", "_facts"}),
    ):
        assert {name[:-3] for name in written} == {f"llama_index_memory{ending}" for ending in endings}
        assert len(written) == len(endings)


async def test_a_user_with_many_sessions_is_forgotten_in_all_partitions(
    store: MemoryStore, partitioned_uri: str
) -> None:
    """And nobody else is."""
    for i in range(20):
        await store.log.append(f"ann {i}", [user("I like tea.")], len, opening=Opening("ann"), readers=["facts"])
        await store.log.append(f"bob {i}", [user("I like figs.")], len, opening=Opening("bob"), readers=["facts"])
    assert await extract(store, "ann 1", "ann", fact("a", "Likes tea"))
    assert await extract(store, "bob 1", "bob", fact("b", "Likes figs"))
    await KeptVectors(store.database, "ann", "a model").write({"a": ("", b"1")})
    assert len(await store.users.read_by("facts", pending=True)) == 38
    assert len(await store.sessions("ann")) == 20
    assert len(set(await ask(partitioned_uri, "SELECT tableoid FROM llama_index_memory"))) == 4
    counts = {"messages": 20, "cursors": 40, "facts": 1, "embeddings": 1}
    assert await store.forget_user("ann") == counts
    assert await store.sessions("ann") == []
    assert len(await store.sessions("bob")) == 20
    assert len((await store.facts.read("bob")).facts) == 1


async def test_the_host_uses_the_partitioned_table_too(store: MemoryStore, partitioned_uri: str) -> None:
    host = SQLAlchemyChatStore(table_name="llama_index_memory", async_database_uri=partitioned_uri)
    await host.add_message("chat", user("from the host"))
    await store.add_message("chat", user("from us"))
    assert contents(await host.get_messages("chat")) == contents(await store.get_messages("chat"))
    assert contents(await store.get_messages("chat")) == ["from the host", "from us"]
    assert host._async_engine is not None
    await host._async_engine.dispose()


# ---- ids of 64 bits --------------------------------------------------------------------------------------------


async def assert_ids_have_64_bits(uri: str) -> None:
    """Messages with ids beyond 32 bits are written, read by a cursor, and deleted by id."""
    await run_script(uri, f"SELECT setval('llama_index_memory_id_seq', {BEYOND_32_BITS})")
    store = MemoryStore(uri)
    await store.add_messages("chat", [user("one"), user("two")], MessageStatus.ARCHIVED)
    ids = [row.id for row in (await store.readers.unread("chat", "reader")).rows][-2:]
    assert ids == [BEYOND_32_BITS + 1, BEYOND_32_BITS + 2]
    epoch = (await store.readers.unread("chat", "reader")).epoch
    assert await store.readers.move("chat", "reader", epoch=epoch, old=0, new=ids[0])
    assert [row.id for row in (await store.readers.unread("chat", "reader")).rows] == ids[1:]
    deleted = await store.delete_message("chat", ids[1])
    assert deleted is not None
    assert deleted.content == "two"
    await store.aclose()


async def test_ids_have_64_bits_in_tables_of_this_package(postgres_uri: str) -> None:
    store = MemoryStore(postgres_uri)
    await store.get_keys()
    await store.aclose()
    await assert_ids_have_64_bits(postgres_uri)


async def test_ids_have_64_bits_in_partitioned_tables(partitioned_uri: str) -> None:
    await assert_ids_have_64_bits(partitioned_uri)


async def test_a_table_of_the_host_is_widened_as_documented(postgres_uri: str) -> None:
    host = SQLAlchemyChatStore(table_name="llama_index_memory", async_database_uri=postgres_uri)
    await host.add_message("other", user("from the host"))
    assert host._async_engine is not None
    await host._async_engine.dispose()
    await run_script(postgres_uri, WIDEN_IDS)
    await assert_ids_have_64_bits(postgres_uri)
