"""Facts by day, kind, tag, agent and state, a page at a time."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest

from llama_index_memory_ext import (
    CondensedMemory,
    Fact,
    FactError,
    MemoryRetriever,
    MemoryStore,
)
from llama_index_memory_ext.facts.book import FactBook
from tests.databases import file_store as store

__all__ = ["store"]

NOON, DAY = datetime(2026, 3, 10, 12, tzinfo=timezone.utc), timedelta(days=1)


def day(number: int) -> date:
    return date(2026, 3, 10 + number)


def liking(name: str, days: int, **fields: Any) -> Fact:
    """A fact that is known since some days behind the first."""
    created_at = NOON + days * DAY
    return Fact(id=name, content=f"Likes {name}", created_at=created_at, **fields)


@pytest.fixture
async def book(store: MemoryStore) -> FactBook:
    """Tea, rain, chess and jazz, a day apart; chess has two tags and is of an agent, jazz is pending."""
    facts = [
        liking("tea", 0, category="preference", tags=("drink",)),
        liking("rain", 1, category="context"),
        liking("chess", 2, tags=("game", "board"), agent_id="a"),
        liking("jazz", 3, pending=True),
    ]
    categories = ["preference", "knowledge"]
    all_facts = FactBook(store, "ann", scope="all", categories=categories)
    await store.facts.write("ann", facts, view=all_facts._view)
    return all_facts


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, "chess rain tea"),
        ({"since": day(1)}, "chess rain"),
        ({"until": day(0)}, "tea"),
        ({"since": "2026-03-10", "until": "2026-03-11"}, "rain tea"),
        ({"since": NOON + DAY, "until": NOON + DAY}, "rain"),
        ({"category": "preference"}, "tea"),
        ({"category": "context"}, "rain"),
        ({"tags": ["game"]}, "chess"),
        ({"tags": ["game", "board"]}, "chess"),
        ({"tags": ["game", "drink"]}, ""),
        ({"agent_id": "a"}, "chess"),
        ({"state": "pending"}, "jazz"),
        ({"state": "present", "category": "knowledge"}, "chess"),
        ({"state": "all"}, "jazz chess rain tea"),
        ({"limit": 2}, "chess rain"),
        ({"limit": 2, "after": "rain"}, "tea"),
        ({"after": "jazz"}, "chess rain tea"),
        ({"after": "tea"}, ""),
        ({"category": None, "tags": (), "since": None}, "chess rain tea"),
    ],
)
async def test_facts_are_listed_by_what_is_wanted(
    book: FactBook, wanted: dict[str, Any], found: str
) -> None:
    assert [fact.id for fact in await book.alist(**wanted)] == found.split()


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (
            {"category": "taste"},
            "one of the categories 'preference', 'knowledge'; got 'taste'",
        ),
        ({"after": "gone"}, "the id of one of 4 facts; got 'gone'"),
        ({"since": NOON.replace(tzinfo=None)}, "since must have timezone info"),
        ({"until": "tomorrow"}, "until"),
        (
            {"state": "gone"},
            "state must be 'present', 'past', 'retired', 'expired' or 'pending'",
        ),
        ({"limit": 0}, "limit must be greater than or equal to 1; got 0"),
        ({"tags": "game"}, "tags"),
        ({"tag": "game"}, "has no argument 'tag'. Did you mean 'tags'?"),
    ],
)
async def test_what_names_nothing_is_refused(
    book: FactBook, wanted: dict[str, Any], said: str
) -> None:
    with pytest.raises(FactError) as raised:
        await book.alist(**wanted)
    assert said in str(raised.value)
    with pytest.raises(FactError):
        await book.asearch("Likes", **wanted)


async def test_facts_of_an_agent_that_is_not_seen_are_not_asked_for(
    store: MemoryStore, book: FactBook
) -> None:
    with pytest.raises(FactError, match="got a fact of agent 'a'"):
        await FactBook(store, "ann").alist(agent_id="a")


async def test_pages_go_on_behind_what_was_decided_meanwhile(
    store: MemoryStore,
) -> None:
    """Each pending fact is seen once, though the page before it was approved."""
    book = FactBook(store, "ann")
    await store.facts.write(
        "ann", [Fact(content=f"Likes {i}", pending=True) for i in range(7)]
    )
    seen: list[str] = []
    while page := await book.alist(
        state="pending", limit=2, after=seen[-1] if seen else None
    ):
        await book.aapprove(*(fact.id for fact in page))
        seen += [fact.id for fact in page]
    assert len(set(seen)) == 7


async def test_searches_and_the_retriever_find_what_is_wanted(
    store: MemoryStore, book: FactBook
) -> None:
    memory = CondensedMemory.from_defaults(
        "chat", user_id="ann", chat_store=store, extract_facts=False
    )
    question = "What do I like: tea, rain or jazz?"
    assert {one.fact.id for one in await memory.facts.asearch(question)} == {
        "tea",
        "rain",
    }
    assert [
        one.fact.id for one in await memory.facts.asearch(question, tags=["drink"])
    ] == ["tea"]
    first = await memory.facts.asearch(question, similarity_top_k=1)
    rest = await memory.facts.asearch(question, after=first[0].fact.id)
    assert {one.fact.id for one in (*first, *rest)} == {"tea", "rain"}
    retriever = MemoryRetriever(memory, messages=False, since="2026-03-11")
    assert [node.node.node_id for node in await retriever.aretrieve(question)] == [
        "rain"
    ]
    with pytest.raises(FactError, match="no argument 'sinse'"):
        MemoryRetriever(memory, sinse="2026-03-11")
    assert [fact.id for fact in memory.facts.list(tags=["drink"])] == ["tea"]


async def test_a_fact_keeps_the_day_of_its_own_time_zone(store: MemoryStore) -> None:
    book = FactBook(store, "ann", time_zone=timezone.utc)
    night = datetime(2026, 3, 10, 1, tzinfo=timezone(timedelta(hours=14)))
    await book.aadd("Likes tea", created_at=night)
    assert [fact.began for fact in await book.alist()] == [day(0)]


async def test_what_is_known_already_holds_has_ended_or_is_pending(
    book: FactBook, store: MemoryStore
) -> None:
    """What was retired, also by a change, or has expired can be added again."""
    await store.facts.write(
        "ann", [Fact(content="Likes milk", retired_at=NOON, retired_by="change")]
    )
    await book.aupdate("rain", valid_until=date(2026, 3, 12))
    for text, fact_id in (
        ("likes TEA!", "tea"),
        ("Likes rain", "rain"),
        ("Likes jazz", "jazz"),
    ):
        known = await book.afind(text)
        assert known is not None
        assert known.id == fact_id
    await book.aretire("tea")
    await book.aupdate("chess", expires_at=NOON + 3 * DAY)
    assert [
        await book.afind(text) for text in ("Likes tea", "Likes milk", "Likes chess")
    ] == [None] * 3
