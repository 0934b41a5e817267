"""What programs that show a database ask a store for: rows, owners, facts, the file, and a store that only reads."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest

from llama_index_memory_ext import (
    CondensedMemory,
    FactBook,
    MemoryStore,
    StoreError,
    display_name,
)
from tests.conversation import assistant, user


async def talk(store: MemoryStore, session_id: str, user_id: str | None) -> None:
    memory = CondensedMemory.from_defaults(
        session_id, user_id=user_id, chat_store=store, extract_facts=False
    )
    await memory.aput_messages([user("one"), assistant("two"), user("three")])
    await memory.facts.aadd(f"Likes {session_id}")


async def test_rows_come_in_pages_or_by_their_ids(store: MemoryStore) -> None:
    await talk(store, "chat", "ann")
    await talk(store, "other", "ann")
    rows = await store.rows("chat")
    assert [row.message.content for row in rows] == ["one", "two", "three"]
    assert await store.rows("chat", limit=1, offset=1) == rows[1:2]
    (theirs, *_) = await store.rows("other")
    ids = [rows[2].id, theirs.id, rows[0].id, 10**6]
    assert await store.rows("chat", ids=ids) == [rows[0], rows[2]]
    assert await store.rows("chat", ids=[]) == await store.rows("none") == []


async def test_a_session_names_the_owners_of_its_facts_for_a_book(
    store: MemoryStore,
) -> None:
    """A session without a user owns its facts itself, also where a user has the same name."""
    await talk(store, "chat", "ann")
    await talk(store, "ann", None)
    infos = {info.session_id: info for info in await store.sessions()}
    assert infos["chat"].namespaces == ("ann",)
    assert infos["ann"].namespaces == (infos["ann"].own_namespace,)
    assert display_name(infos["ann"].own_namespace) == "ann"
    for session_id, info in infos.items():
        facts = await FactBook(store, *info.namespaces, scope="all").alist()
        assert [fact.content for fact in facts] == [f"Likes {session_id}"]
    assert await store.count_facts() == {"ann": 1, infos["ann"].own_namespace: 1}


async def test_a_check_of_writes_stores_nothing(store: MemoryStore) -> None:
    await talk(store, "chat", "ann")
    before = await store.sessions()
    await store.check_writes()
    assert await store.sessions() == before


async def test_a_store_of_a_file_names_it_and_can_be_opened_to_read_only(
    tmp_path: Path,
) -> None:
    file = tmp_path / "memory.db"
    async with aclosing(MemoryStore(file)) as store:
        assert (store.file, store.is_in_memory) == (file, False)
        with pytest.raises(StoreError, match="needs the address of an existing"):
            store.read_only()
        await talk(store, "chat", "ann")
        async with aclosing(store.read_only()) as reader:
            assert len(await reader.rows("chat")) == 3
            with pytest.raises(StoreError):
                await reader.check_writes()
    memory_store = MemoryStore()
    assert (memory_store.file, memory_store.is_in_memory) == (None, True)
