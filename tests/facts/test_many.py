"""Thousands of facts of one user: the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from time import perf_counter

import pytest

from llama_index_memory_ext import Fact, MemoryStore, RelevantFactsBlock, TokenCounter
from llama_index_memory_ext.facts.book import FactBook
from tests.conversation import user

FACTS = [Fact(content=f"Likes tea number {i} with {'milk ' * 40}", confidence=0.5 + i % 7 / 20) for i in range(4_000)]
QUESTION = "Which tea do I like with milk?"


@asynccontextmanager
async def ticking() -> AsyncIterator[list[float]]:
    """The moments at which the event loop was free, and those of the beginning and the end."""
    moments = [perf_counter()]

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.001)
            moments.append(perf_counter())

    task = asyncio.create_task(tick())
    yield moments
    moments.append(perf_counter())
    task.cancel()


def longest_share(moments: list[float]) -> float:
    """The longest pause, as a share of the whole time."""
    pauses = (after - before for before, after in pairwise(moments))
    return max(pauses) / (moments[-1] - moments[0])


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore("sqlite+aiosqlite://")
    await store.facts.write("ann", FACTS)
    yield store
    await store.aclose()


@pytest.mark.parametrize("counter", [TokenCounter(), TokenCounter("words", str.split)])
async def test_questions_do_not_hold_the_event_loop(store: MemoryStore, counter: TokenCounter) -> None:
    """Not the first one, and none after a change, though no fact has room in what is left of the limit."""
    counter.count("Tea")
    block = RelevantFactsBlock(store=store, user_id="ann", token_limit=200, extract_facts=False, tokenizer_fn=counter)
    for new in ("coffee", "juice"):
        async with ticking() as moments:
            assert "tea" in await block.aget([user(QUESTION)])
        assert longest_share(moments) < 0.6
        await block.book().aadd(f"Likes {new}" + " with milk" * 20)


async def test_searches_and_explanations_do_not_hold_the_event_loop(store: MemoryStore) -> None:
    block = RelevantFactsBlock(store=store, user_id="ann", extract_facts=False)
    await block.aget([user(QUESTION)])
    async with ticking() as explaining:
        assert len((await block.aexplain(QUESTION)).facts) == len(FACTS)
    async with ticking() as searching:
        assert len(await FactBook(store, "ann").asearch(QUESTION, similarity_top_k=5)) == 5
    assert longest_share(explaining) < 0.6
    assert longest_share(searching) < 0.6
