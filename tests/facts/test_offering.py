"""Which known facts a model is shown that extracts new ones."""

from __future__ import annotations

import random

from llama_index_memory_ext import Fact, TfidfRanker, TokenCounter
from llama_index_memory_ext.facts.ranking import document_of
from llama_index_memory_ext.learning.budget import RequestBudget
from llama_index_memory_ext.learning.request import select_known_facts
from tests.learning.learning import Learns, extractions, talk

COUNTER = TokenCounter()
THINGS = [
    "garden",
    "concert",
    "trip",
    "museum",
    "lake",
    "dinner",
    "course",
    "match",
    "film",
    "parade",
    "workshop",
]


def events(count: int) -> list[Fact]:
    choose = random.Random(7)  # noqa: S311 - any will do
    return [
        Fact(
            content=f"Went to the {choose.choice(THINGS)} number {i} with old friends and enjoyed the evening there"
        )
        for i in range(count)
    ]


def offer(facts: list[Fact], *said: str) -> list[Fact]:
    ranker = TfidfRanker()
    ranker.add(map(document_of, facts))
    text = "\n".join(said)
    return select_known_facts(facts, text, ranker, COUNTER, RequestBudget().facts)


def test_what_is_corrected_is_among_them_also_without_a_word_in_common() -> None:
    """And so is what has one, however long it is; together they keep to the limit."""
    home, trip = (
        Fact(content="Lives in Oslo"),
        Fact(content="Wants to see the aurora borealis " + "again and " * 30),
    )
    facts = [*events(150), home, *events(150), trip]
    found = offer(facts, "I moved to Rome.", "The aurora can wait.")
    assert found[0] == trip
    assert home in found
    assert (
        sum(COUNTER.count(f"{i}. {fact.content}\n") for i, fact in enumerate(found, 1))
        <= RequestBudget().facts
    )
    assert len(found) == len({fact.id for fact in found}) > 10


def test_a_fact_that_is_too_long_keeps_no_other_from_being_among_them() -> None:
    long = Fact(content="Aurora, aurora, aurora " + "again and " * 150)
    cruise = Fact(content="Booked an aurora cruise with " + "old friends and " * 9)
    found = offer([*events(150), cruise, long], "The aurora can wait.")
    assert long not in found
    assert cruise in found


async def test_few_facts_are_shown_entirely(learns: Learns) -> None:
    memory, server = learns()
    for i in range(20):
        await memory.facts.aadd(f"Owns book number {i}")
    await memory.aput_messages(talk("tea"))
    await memory.aflush()
    assert extractions(server.requests)[0].count("Owns book number") == 20
