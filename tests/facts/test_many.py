"""Thousands of facts of one user: the event loop goes on meanwhile."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from types import FrameType
from typing import Any

import pytest

from llama_index_memory_ext import (
    Fact,
    MemoryStore,
    RelevantFactsBlock,
    StoreError,
    TokenCounter,
)
from llama_index_memory_ext.facts.book import FactBook
from llama_index_memory_ext.store.facts import NOTHING_READ
from tests.conversation import user

FACTS = [
    Fact(
        content=f"Likes tea number {i} with {'milk ' * 40}", confidence=0.5 + i % 7 / 20
    )
    for i in range(4_000)
]
QUESTION = "Which tea do I like with milk?"


@contextmanager
def little_in_the_event_loop() -> Iterator[None]:
    """Fails if this thread, in which the event loop runs, makes so many calls that some are made for each fact.

    Other threads may make as many as they like: between two of theirs the event loop has its turn.
    """
    count = 0

    def see(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        yield
    finally:
        sys.setprofile(None)
    assert count < len(FACTS)


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore("sqlite+aiosqlite://")
    await store.facts.write("ann", FACTS)
    yield store
    await store.aclose()


@pytest.mark.parametrize("counter", [TokenCounter(), TokenCounter("words", str.split)])
async def test_questions_do_not_hold_the_event_loop(
    store: MemoryStore, counter: TokenCounter
) -> None:
    """Not the first one, and none after a change, though no fact has room in what is left of the limit."""
    counter.count("Tea")
    block = RelevantFactsBlock(
        store=store,
        user_id="ann",
        token_limit=200,
        extract_facts=False,
        tokenizer_fn=counter,
    )
    for new in ("coffee", "juice"):
        with little_in_the_event_loop():
            assert "tea" in await block.aget([user(QUESTION)])
        await block.book().aadd(f"Likes {new}" + " with milk" * 20)


async def test_searches_and_explanations_do_not_hold_the_event_loop(
    store: MemoryStore,
) -> None:
    block = RelevantFactsBlock(store=store, user_id="ann", extract_facts=False)
    await block.aget([user(QUESTION)])
    with little_in_the_event_loop():
        assert len((await block.aexplain(QUESTION)).facts) == len(FACTS)
    with little_in_the_event_loop():
        assert (
            len(await FactBook(store, "ann").asearch(QUESTION, similarity_top_k=5)) == 5
        )


async def test_an_import_has_the_time_of_a_call_for_each_page(
    lasting_database_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it takes longer than one call may."""
    exported = "".join(fact.model_dump_json() + "\n" for fact in FACTS[:2_000])
    async with aclosing(MemoryStore(lasting_database_uri)) as store:
        book = FactBook(store, "ann")
        await book.aadd("Likes coffee")
        for file in ("facts", "links"):
            monkeypatch.setattr(f"llama_index_memory_ext.store.{file}.PAGE_FACTS", 4)
        store.database.seconds = 0.05
        assert await book.aimport(exported) == 2_000
        store.database.seconds = store.operation_timeout
        assert len(await book.alist()) == 2_001
        # Each has a number of its own in the order of changes.
        seen = await store.facts.read("ann", NOTHING_READ)
        assert seen.change == 2_001


async def test_an_import_that_fails_at_its_last_page_stores_nothing(
    database_uri: str,
) -> None:
    """Here, because the disk is full."""
    exported = "".join(fact.model_dump_json() + "\n" for fact in FACTS)
    async with aclosing(MemoryStore(database_uri)) as store:
        store.database.set_up = "PRAGMA max_page_count = 500"
        book = FactBook(store, "ann")
        await book.aadd("Likes coffee")
        with pytest.raises(
            StoreError,
            match=r"import_facts: database or disk is full\. Nothing was changed,",
        ):
            await book.aimport(exported)
        assert [fact.content for fact in await book.alist()] == ["Likes coffee"]
