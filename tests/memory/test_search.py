"""What a memory knows is searched with one call, for programs and for people."""

from __future__ import annotations

import pytest

from tests.conversation import assistant, user
from tests.memories import OpenMemory

BIKE = [user("I bought a red bike in Berlin."), assistant("Enjoy the ride!")]


async def test_facts_and_messages_are_found_best_first_and_print_readably(open_memory: OpenMemory) -> None:
    memory = open_memory("chat", user_id="ann")
    fact = await memory.facts.aadd("Lives in Berlin", confidence=0.9)
    await memory.facts.aadd("Likes tea")
    await memory.aput_messages([*BIKE, user("Where did I buy it?")])
    found = await memory.asearch("What happened in Berlin?")
    assert [entry.fact.id for entry in found.facts] == [fact.id]
    assert (found.messages[0].role, found.messages[0].text) == ("user", "I bought a red bike in Berlin.")
    day = fact.created_at.date().isoformat()
    lines = str(found).splitlines()
    assert lines[0] == f"{found.facts[0].score:.2f}  fact, {day}: Lives in Berlin"
    assert lines[1] == f"1.00  user, {day}: I bought a red bike in Berlin."
    assert repr(found) == f"MemorySearchResult(1 facts, {len(found.messages)} messages)"


async def test_each_kind_can_be_left_out_and_cut(open_memory: OpenMemory) -> None:
    memory = open_memory()
    for i in range(3):
        await memory.facts.aadd(f"Has lived in Berlin {i} times")
        await memory.aput_messages([user(f"Berlin number {i}?"), assistant("Yes.")])
    both = await memory.asearch("Berlin", similarity_top_k=2)
    assert (len(both.facts), len(both.messages)) == (2, 2)
    assert (await memory.asearch("Berlin", messages=False)).messages == ()
    assert (await memory.asearch("Berlin", facts=False)).facts == ()
    assert await memory.facts.asearch("Berlin", similarity_top_k=2) == list(both.facts)


async def test_nothing_is_found_where_nothing_is_known_or_asked(open_memory: OpenMemory) -> None:
    memory = open_memory()
    for _ in range(2):
        for question in ("", " \n", "zebra"):
            found = await memory.asearch(question)
            assert (found.facts, found.messages, str(found)) == ((), (), "Nothing found.")
        await memory.facts.aadd("Lives in Berlin")
        await memory.aput_messages(BIKE)


async def test_a_search_for_nothing_at_all_is_refused(open_memory: OpenMemory) -> None:
    memory = open_memory()
    for search in (memory.asearch, memory.facts.asearch):
        with pytest.raises(ValueError, match=r"similarity_top_k is the most .* at least 1; saw 0"):
            await search("Berlin", similarity_top_k=0)
    with pytest.raises(ValueError, match="facts=False and messages=False leave nothing to look for"):
        await memory.asearch("Berlin", facts=False, messages=False)
