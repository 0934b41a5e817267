"""A temporary memory knows the user's facts and its own session, and leaves no trace in the database."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from llama_index_memory_ext import (
    CondensedMemory,
    MemoryStore,
    MemoryToolSpec,
    StoreError,
)
from llama_index_memory_ext.facts.book import FactBook
from tests.conversation import assistant, sent_text, user
from tests.databases import OpenStore
from tests.learning.learning import Learns, learns, shown
from tests.memories import OpenMemory
from tests.search.test_embeddings import Meanings

__all__ = ["learns"]


def files_in(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
async def known(open_memory: OpenMemory) -> None:
    """Ann likes tea, and has talked of it."""
    async with open_memory("before", user_id="ann") as memory:
        await memory.aput_messages([user("I like tea."), assistant("Noted.")])
        await memory.facts.aadd("Likes tea")


async def talk_of_milk(memory: CondensedMemory) -> str:
    """What the model is shown in a second turn."""
    await memory.aput_messages(
        [user("I like milk."), assistant("Noted."), user("What do I like?")]
    )
    return sent_text(await memory.aget())


@pytest.mark.usefixtures("known")
async def test_the_database_is_byte_for_byte_as_before(
    learns: Learns, tmp_path: Path
) -> None:
    """While it is open, and afterwards; also with a session that is stored, of which nothing is read."""
    before = files_in(tmp_path)
    memory, server = learns(session_id="before", temporary=True, extract_facts=True)
    async with memory:
        text = await talk_of_milk(memory)
        assert shown(text) == ["Likes tea"]
        assert "I like milk." in text
        assert "I like tea." not in text
        (turn,) = memory.facts_block.last_question.context
        assert "I like milk." in turn
        await memory.aflush()
        assert (await memory.astats()).messages == 3
        assert "I like milk." in str(await memory.asearch("milk"))
        assert files_in(tmp_path)["memory.db"] == before["memory.db"]
    assert files_in(tmp_path) == before
    assert server.requests == []


@pytest.mark.usefixtures("known")
async def test_facts_without_a_stored_vector_are_embedded_for_this_memory_alone(
    open_memory: OpenMemory, caplog: pytest.LogCaptureFixture
) -> None:
    """No failure is logged because the database takes no vectors."""
    options: dict[str, Any] = {"user_id": "ann", "embed_model": Meanings()}
    async with open_memory("now", temporary=True, **options) as memory:
        assert shown(await talk_of_milk(memory)) == ["Likes tea"]
        found = await memory.facts.asearch("Which beverage?")
    assert [entry.fact.content for entry in found] == ["Likes tea"]
    assert not caplog.records


@pytest.mark.usefixtures("known")
async def test_what_would_be_stored_is_refused(open_memory: OpenMemory) -> None:
    async with open_memory("now", user_id="ann", temporary=True) as memory:
        await memory.aput(user("I like milk. Remember it."))
        (fact,) = await memory.facts.alist()
        for change in (
            memory.facts.aadd("Likes milk"),
            memory.facts.aretire(fact.id),
            memory.facts.aforget(),
            memory.facts.aimport(""),
        ):
            with pytest.raises(StoreError, match="a temporary memory may not"):
                await change
        with pytest.raises(StoreError, match="stores nothing; nothing was deleted"):
            await memory.aforget()
        assert "Not remembered" in await MemoryToolSpec(memory).aremember(
            "Likes milk", "I like milk"
        )
        assert "Likes tea" in await MemoryToolSpec(memory).asearch_memory("tea")
        with pytest.raises(StoreError, match="cannot be pickled"):
            pickle.dumps(memory)
        branch = await memory.abranch("branch")
        assert len(await branch.aget_all()) == 1
        assert [one.content for one in await branch.facts.alist()] == ["Likes tea"]


async def test_the_first_fact_that_others_store_is_shown(
    open_memory: OpenMemory,
) -> None:
    async with open_memory("before", user_id="ann") as other:
        await other.aput(user("Hello"))
        async with open_memory("now", user_id="ann", temporary=True) as memory:
            assert shown(await talk_of_milk(memory)) == []
            await other.facts.aadd("Likes tea")
            assert shown(sent_text(await memory.aget())) == ["Likes tea"]


async def test_it_reads_on_a_server_too_and_follows_what_others_store(
    postgres_uri: str, open_store: OpenStore
) -> None:
    store = open_store(postgres_uri)
    book = FactBook(store, "ann")
    await book.aadd("Likes tea")
    async with CondensedMemory.from_defaults(
        "now", user_id="ann", chat_store=store, temporary=True
    ) as memory:
        assert shown(await talk_of_milk(memory)) == ["Likes tea"]
        await book.aadd("Likes rain")
        assert sorted(shown(sent_text(await memory.aget()))) == [
            "Likes rain",
            "Likes tea",
        ]
        with pytest.raises(StoreError, match="a temporary memory may not"):
            await memory.facts.aadd("Likes milk")
    # The store that was given stays open.
    assert await store.sessions() == []
    assert len(await book.alist()) == 2


@pytest.mark.parametrize(
    "place",
    [
        {"async_database_uri": "sqlite+aiosqlite:///none.db"},
        {"chat_store": MemoryStore()},
    ],
)
def test_without_a_database_it_says_what_is_missing(
    place: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="needs the address of an existing database"):
        CondensedMemory.from_defaults("now", temporary=True, **place)
    assert list(tmp_path.iterdir()) == []
