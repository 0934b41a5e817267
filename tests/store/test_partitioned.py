"""The store works on partitioned tables, as the page on partitioning creates them."""

from __future__ import annotations

from itertools import product

import pytest
from llama_index.core.storage.chat_store.base_db import MessageStatus

from llama_index_memory_ext import Fact, MemoryStore
from llama_index_memory_ext.store.rows import SessionAccess
from llama_index_memory_ext.store.vectors import KeptVectors
from tests.conversation import user
from tests.databases import OpenStore, ask, host_on
from tests.store.conftest import TABLES, WIDEN_IDS, run_script, structure

PARTITIONED = TABLES - {"llama_index_memory_schema"}
BEYOND_32_BITS = 2**31


@pytest.fixture
def store(partitioned_uri: str, open_store: OpenStore) -> MemoryStore:
    return open_store(partitioned_uri)


async def test_the_documented_tables_have_the_columns_and_indexes_of_the_store(
    partitioned_uri: str, store: MemoryStore, open_store: OpenStore
) -> None:
    """The page must say what the package would create, apart from the partitions and one primary key."""
    for one in (store, open_store(partitioned_uri, db_schema="whole")):
        await one.get_keys()
    relations = "SELECT relname FROM pg_class WHERE relkind = 'p'"
    assert set(await ask(partitioned_uri, relations)) == PARTITIONED
    documented, made = (
        await structure(partitioned_uri),
        await structure(partitioned_uri, "whole"),
    )
    for name in PARTITIONED:
        assert documented[name][0] == made[name][0]
        assert sorted(documented[name][1].values()) == sorted(made[name][1].values())


async def test_a_user_with_many_sessions_is_forgotten_in_all_partitions(
    store: MemoryStore, partitioned_uri: str
) -> None:
    """And nobody else is."""
    for who, i in product(("ann", "bob"), range(20)):
        turn = [user(f"I like what {who} likes.")]
        access = SessionAccess(who)
        await store.log.append(
            f"{who} {i}", turn, len, access=access, readers=["facts"]
        )
    for who in ("ann", "bob"):
        unread = await store.readers.unread(f"{who} 1", "facts")
        assert await store.facts.write(who, [Fact(id=who[0], content="Likes tea")])
        assert await store.readers.move(
            f"{who} 1",
            "facts",
            unread,
            unread.rows[-1].id,
        )
    await KeptVectors(store.database, "ann", "a model").write({"a": ("", b"1")})
    assert len(await store.readers.sessions_of_reader("facts", pending=True)) == 38
    assert len(await store.sessions("ann")) == 20
    assert (
        len(set(await ask(partitioned_uri, "SELECT tableoid FROM llama_index_memory")))
        == 4
    )
    counts = {"messages": 20, "cursors": 40, "facts": 1, "embeddings": 1}
    assert await store.forget_user("ann") == counts
    assert await store.sessions("ann") == []
    assert len(await store.sessions("bob")) == 20
    assert len((await store.facts.read("bob")).facts) == 1


# ---- ids of 64 bits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("any_database_uri", "is_hosts"),
    [("postgres", False), ("partitioned", False), ("empty", True)],
    indirect=["any_database_uri"],
)
async def test_ids_have_64_bits(
    any_database_uri: str, open_store: OpenStore, *, is_hosts: bool
) -> None:
    """Messages with ids beyond 32 bits are written, read by a cursor, and deleted by id; a host's table is widened."""
    uri, store = any_database_uri, open_store(any_database_uri)
    if is_hosts:
        async with host_on(uri) as host:
            await host.add_message("other", user("from the host"))
        await run_script(uri, WIDEN_IDS)
    await store.get_keys()
    await run_script(
        uri, f"SELECT setval('llama_index_memory_id_seq', {BEYOND_32_BITS})"
    )
    await store.add_messages("chat", [user("one"), user("two")], MessageStatus.ARCHIVED)
    page = await store.readers.unread("chat", "reader")
    ids = [row.id for row in page.rows]
    assert ids == [BEYOND_32_BITS + 1, BEYOND_32_BITS + 2]
    assert await store.readers.move("chat", "reader", page, ids[0])
    assert [
        row.id for row in (await store.readers.unread("chat", "reader")).rows
    ] == ids[1:]
    deleted = await store.delete_message("chat", ids[1])
    assert deleted is not None
    assert deleted.content == "two"
