"""Memories on one store share what they have read, as in a web server that makes a memory for each request."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage

from benchmarks.messages import put_facts, sample_messages
from llama_index_memory_ext import CondensedMemory, MemoryStore, TokenCounter
from llama_index_memory_ext.agent_view import SHARED_FACTS
from llama_index_memory_ext.facts.lines import counted_line
from llama_index_memory_ext.facts.user_facts import UserFacts
from llama_index_memory_ext.search.tfidf import TfidfRanker
from llama_index_memory_ext.store import cache
from llama_index_memory_ext.store.cache import size_of_caches
from llama_index_memory_ext.store.facts import NOTHING_READ
from tests.conversation import assistant, sent_text, user
from tests.databases import OpenStore
from tests.databases import file_store as store

__all__ = ["store"]

SMALL: dict[str, Any] = {
    "condensed_token_limit": 900, "recall_token_limit": 400, "facts_token_limit": 500, "extract_facts": False,
}  # fmt: skip
QUESTION = "Where does my sister Caroline breed alpacas?"


def request(
    store: MemoryStore, session_id: str = "chat", user_id: str = "ann", **options: Any
) -> CondensedMemory:
    """A memory as a web server makes it for one request."""
    settings = {**SMALL, **options}
    return CondensedMemory.from_defaults(
        session_id, user_id=user_id, chat_store=store, **settings
    )


def long_talk(turns: int = 40) -> list[ChatMessage]:
    """A talk of which the beginning is recalled only."""
    filler = sample_messages(2 * turns)
    return [user("Caroline breeds alpacas in Cusco."), assistant("Nice."), *filler]


async def prompt(memory: CondensedMemory, question: str = QUESTION) -> str:
    return sent_text(await memory.aget(input=question))


# ---- shared ----


async def test_memories_of_a_session_share_one_index(store: MemoryStore) -> None:
    first = request(store)
    await first.aput_messages(long_talk())
    assert "Cusco" in await prompt(first)
    index = first.condensed_block.index("chat")
    assert index is not None
    await first.aclose()
    second = request(store)
    assert second.condensed_block.index("chat") is index
    assert "Cusco" in await prompt(second)
    assert second.condensed_block.index("chat") is index
    for duplicate in (copy.deepcopy(second.condensed_block), second.condensed_block):
        assert duplicate.index("chat") is index


async def test_memories_of_a_user_share_one_ranker_of_facts(store: MemoryStore) -> None:
    made = []

    def make_ranker() -> TfidfRanker:
        made.append(1)
        return TfidfRanker()

    for session_id in ("chat", "other", "chat"):
        memory = request(store, session_id, ranker_factory=make_ranker)
        await memory.facts.aadd(f"Plays chess in {session_id} {len(made)}")
        assert "chess" in await prompt(memory)
        await memory.aclose()
    assert len(made) == 1
    assert await prompt(request(store, user_id="bob", session_id="bobs")) == ""


@pytest.mark.parametrize(
    ("messages", "facts"),
    [(100, 0), (100, 20), (2_000, 0), (2_000, 20)],
)
async def test_a_new_memory_has_the_prompt_of_a_kept_one(
    store: MemoryStore, messages: int, facts: int
) -> None:
    kept = request(store, condensed_token_limit=20_000, cache_points=True)
    await kept.aput_messages(sample_messages(messages))
    await put_facts(kept, facts)
    await kept.aget()
    # The first prompt of a process does not wait for the oldest messages.
    await kept.condensed_block.await_jobs("chat")
    for turn in range(3):
        question, answer = sample_messages(2, start=messages + 2 * turn)
        await kept.aput(question)
        new = request(store, condensed_token_limit=20_000, cache_points=True)
        assert await new.aget() == await kept.aget()
        await new.aput(answer)


async def test_memories_with_other_settings_share_nothing(
    store: MemoryStore, database_uri: str, open_store: OpenStore
) -> None:
    settings: Sequence[dict[str, Any]] = (
        {},
        {"condensed_token_limit": 1_500},
        {"recall_token_limit": 200},
        {"show_days": False},
        {"time_zone": "Asia/Tokyo"},
        {"tokenizer_fn": str.split},
        {"agent_id": "cook", "scope": "agent"},
        {"languages": ["en"]},
    )
    await request(store).aput_messages(long_talk())
    await request(store).facts.aadd("Caroline is a sister")
    await request(store, agent_id="cook").facts.aadd("Cooks for Caroline")
    expected = []
    for options in settings:
        alone = open_store(database_uri)
        expected.append(await prompt(request(alone, **options)))
    for options, text in zip(settings, expected, strict=True):
        assert await prompt(request(store, **options)) == text
    indexes = {
        id(request(store, **options).condensed_block.index("chat"))
        for options in settings
    }
    # The agent is no setting of the record.
    assert len(indexes) == len(settings) - 1


async def test_a_pickled_memory_begins_anew(store: MemoryStore) -> None:
    memory = request(store)
    await memory.aput_messages(long_talk())
    text = await prompt(memory)
    unpickled = pickle.loads(pickle.dumps(memory))
    assert unpickled.condensed_block.index("chat") is None
    assert await prompt(unpickled) == text
    await unpickled.aclose()


# ---- what one memory changes ----


async def test_a_deletion_through_one_memory_is_seen_by_others(
    store: MemoryStore,
) -> None:
    kept = request(store)
    await kept.aput_messages(long_talk())
    assert "Cusco" in await prompt(kept)
    rows = await store.readers.find("chat")
    await store.delete_message("chat", rows[0].id)
    assert "Cusco" not in await prompt(kept)
    assert "Cusco" not in await prompt(request(store))
    await request(store).areset()
    assert await prompt(kept) == ""
    await request(store).aput_messages([user("Hello."), assistant("Hi.")])
    assert await prompt(kept) == await prompt(request(store)) != ""


async def test_a_forgotten_user_leaves_the_memory_of_the_process(
    store: MemoryStore,
) -> None:
    for user_id in ("ann", "bob"):
        memory = request(store, f"{user_id}s", user_id)
        await memory.aput_messages(long_talk())
        await memory.facts.aadd("Breeds alpacas")
        assert "Cusco" in await prompt(memory)
    bobs = request(store, "bobs", "bob").condensed_block.index("bobs")
    await store.forget_user("ann", vacuum=False)
    assert store.cache.get("ann", ()) is None
    assert request(store, "anns").condensed_block.index("anns") is None
    assert request(store, "anns").condensed_block.window("anns") is None
    assert request(store, "bobs", "bob").condensed_block.index("bobs") is bobs
    await store.forget_user("bob", vacuum=False)
    assert store.cache.size == 0


async def test_a_closed_store_keeps_nothing(store: MemoryStore) -> None:
    memory = request(store)
    await memory.aput_messages(long_talk())
    await prompt(memory)
    assert store.cache.size > 0
    await store.aclose()
    assert store.cache.size == 0


# ---- the bound ----


async def test_all_stores_of_a_process_have_one_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stores = [MemoryStore(), MemoryStore()]
    bound = size_of_caches() + 1_000
    monkeypatch.setattr(cache, "MOST_KEPT", bound)
    for number in range(12):
        memory = request(stores[number % 2], f"chat-{number}", f"user-{number}")
        await memory.aput_messages(long_talk(60))
        await memory.facts.aadd("Breeds alpacas")
        assert "Cusco" in await prompt(memory)
        assert memory.condensed_block.index(memory.session_id) is not None
        assert bound - 500 < size_of_caches() <= bound or number < 3
    first = request(stores[0], "chat-0", "user-0").condensed_block
    assert first.index("chat-0") is None
    assert first.window("chat-0") is None
    for each in stores:
        await each.aclose()


# ---- at the same time ----


async def test_tasks_and_threads_share_a_session(store: MemoryStore) -> None:
    await request(store).aput_messages(long_talk())
    await request(store).facts.aadd("Caroline is a sister")
    expected = await prompt(request(store))
    store.cache.clear()

    def in_a_thread() -> str:
        return sent_text(request(store).get(input=QUESTION))

    calls = [prompt(request(store)) for _ in range(5)]
    threads = [asyncio.to_thread(in_a_thread) for _ in range(5)]
    assert {*await asyncio.gather(*calls, *threads)} == {expected}


async def test_facts_that_two_tasks_read_never_become_older(store: MemoryStore) -> None:
    """A task that has read before another, and applies its changes after the other, changes nothing."""
    book = request(store).facts
    fact = await book.aadd("Has 1 cat")
    earlier = await store.facts.read("ann")
    await book.aupdate(fact.id, content="Has 2 cats")
    later = await store.facts.read("ann")
    facts = UserFacts(
        store,
        "ann",
        SHARED_FACTS,
        TfidfRanker,
        partial(counted_line, counter=TokenCounter()),
    )
    assert facts.apply(later, NOTHING_READ)
    assert not facts.apply(earlier, NOTHING_READ)
    assert facts.changes is later
    assert [fact.content for fact in facts.active] == ["Has 2 cats"]
