"""Tidies up generated stores of 400 facts with an honest and a careless model, and counts the true facts that are lost.

In each store 80 facts say the same as another one in other words, or say less; 20 are excluded by a newer one; 20 are
plans that are over. The others must stay, and many of them differ by one word. The honest model confirms what is right.
The careless one confirms all that it is shown, or a random part with numbers that are none, or answers nonsense. All
that is proposed is applied, and undone.

The words that stand for others (``same.txt``) were chosen with most of the templates; the others, which were written
before the first measurement with them, tell what these words are worth for sentences that they were not chosen for.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any, NamedTuple

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock
from pydantic import PrivateAttr

from benchmarks.command import shown
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext import (
    Fact,
    FactReplyError,
    MemoryStore,
    OfflineModel,
    RelevantFactsBlock,
)
from llama_index_memory_ext.facts.book import FactBook
from llama_index_memory_ext.facts.consolidation import Proposal

SEEDS, FACTS, SAME, CONTRADICTED, OVER = 20, 400, 80, 20, 20
_PLAN = re.compile(
    "Plans|Wants|Is going|Intends|Hopes|Has an exam|Will|Has a flight|Has to"
)
_LINE = re.compile(r"^(\d+)\. \w+: (.*?) \(known since [\d-]+\) ->", re.MULTILINE)

PLACES = (
    "Oslo",
    "Bergen",
    "Lyon",
    "Porto",
    "Ghent",
    "Turin",
    "Leeds",
    "Graz",
    "Malmo",
    "Cork",
)
FIRMS = (
    "Acme",
    "Globex",
    "Initech",
    "Umbra",
    "Hooli",
    "Vandelay",
    "Wonka",
    "Stark",
    "Tyrell",
    "Cyber",
)
NAMES = ("Mary", "Marie", "Tom", "Tim", "Anna", "Hanna", "Jon", "John", "Lena", "Elena")
THINGS = (
    "tea",
    "coffee",
    "jazz",
    "chess",
    "hiking",
    "tennis",
    "opera",
    "sushi",
    "poetry",
    "rowing",
)
TONGUES = (
    "Spanish",
    "French",
    "German",
    "Dutch",
    "Polish",
    "Czech",
    "Greek",
    "Danish",
    "Latin",
    "Welsh",
)
JOBS = (
    "nurse",
    "teacher",
    "baker",
    "plumber",
    "lawyer",
    "pilot",
    "carpenter",
    "editor",
    "cook",
    "tailor",
)
FOODS = (
    "peanuts",
    "walnuts",
    "shrimp",
    "milk",
    "eggs",
    "wheat",
    "soy",
    "celery",
    "mustard",
    "sesame",
)
KIN = (
    "nephews",
    "nieces",
    "cousins",
    "aunts",
    "uncles",
    "brothers",
    "sisters",
    "horses",
    "goats",
    "bikes",
)
TOPICS = ("color", "pen", "mug", "coat", "car", "flag", "bag", "shirt", "lamp", "door")
PAST, FUTURE = (
    ("May 2024", "2024-09-14", "March 2025", "2025-01-20"),
    ("May 2039", "2039-09-14", "March 2041"),
)
SLOTS = {
    "kin": KIN,
    "topic": TOPICS,
    "past": PAST,
    "future": FUTURE,
    "place2": PLACES,
    "place": PLACES,
    "firm": FIRMS,
    "name": NAMES,
    "thing": THINGS,
    "tongue": TONGUES,
    "job": JOBS,
    "food": FOODS,
}


class Templates(NamedTuple):
    """Templates of pairs whose second says no more than the first, and whether it says as much, and the others."""

    same: Sequence[tuple[str, str, bool]]
    contradicted: Sequence[tuple[str, str]]
    plans: Sequence[str]
    stay: Sequence[str]


FIRST = Templates(
    same=(
        ("Likes {thing}", "Enjoys {thing}", True),
        ("Lives in {place} with {name}", "Resides in {place}", False),
        ("Works as a {job} in {place}", "Is employed as a {job}", False),
        ("Is allergic to {food}", "Has an allergy to {food}", True),
        ("Speaks {tongue} fluently", "Is fluent in {tongue}", True),
        ("Has a dog called {name}", "Owns a dog named {name}", True),
        ("Is learning {tongue} for a trip to {place}", "Studies {tongue}", False),
        ("Has two children, {name} and Zoe", "Has 2 kids, {name} and Zoe", True),
        ("Plays {thing} every Sunday", "Plays {thing} each Sunday", True),
        ("Speaks {tongue} and Swahili", "Speaks Swahili and {tongue}", True),
    ),
    contradicted=(
        ("Lives in Basel", "Lives in Izmir"),
        ("Works at Zorg", "Now works for Aperture"),
        ("Drinks {thing}", "Does not drink {thing} any more"),
        ("Has two {kin}", "Has three {kin}"),
        ("Is 34 years old", "Is 35 years old"),
        ("Favorite {topic} is blue", "Favorite {topic} is green"),
    ),
    plans=(
        "Plans to visit {place} in {past}",
        "Wants to run the marathon in {place} on {past}",
        "Is going to meet {name} on {past}",
    ),
    stay=(
        "Likes {thing} in the morning",
        "Likes {thing} in the evening",
        "Has a sister called {name} in {place}",
        "Has a brother called {name} in {place}",
        "Used to live in {place}",
        "Worked at {firm} until 2019",
        "Flew from {place} to {place2}",
        "{name} lives in {place}",
        "{name} likes {thing}",
        "Visited {place} on 2023-05-03",
        "Visited {place} on 2023-05-04",
        "Plans to visit {place} in {future}",
        "Takes {food} before meals",
        "Takes {food} after meals",
        "Reads books about {thing}",
        "Reads magazines about {thing}",
        "Never eats {food}",
        "Has a meeting at {firm} on Mondays",
        "Has a meeting at {firm} on Tuesdays",
    ),
)
SECOND = Templates(
    same=(
        ("Loves {thing}", "Is fond of {thing}", True),
        ("Is based in {place} since 2021", "Has a home in {place}", False),
        ("Is a {job} at {firm}", "Earns a living as a {job}", False),
        ("Cannot eat {food} because of an allergy", "Is allergic to {food}", False),
        ("Knows {tongue} well", "Can speak {tongue}", False),
        ("Owns a cat named {name}", "Has a cat whose name is {name}", True),
        ("Is married to {name} from {place}", "{name} is the spouse", False),
        ("Takes lessons in {tongue} twice a week", "Is taking {tongue} lessons", False),
        ("Goes to {place} every summer", "Spends each summer in {place}", True),
        ("Drinks {thing} and water at noon", "Has water and {thing} at noon", True),
    ),
    contradicted=(
        ("Resides in Basel", "Has moved to Izmir"),
        ("Is employed by Zorg", "Works for Aperture"),
        ("Eats {food}", "No longer eats {food}"),
        ("Has three {kin}", "Has four {kin}"),
        ("Weighs 80 kg", "Weighs 76 kg"),
        ("Drives a Volvo", "Drives a Skoda"),
    ),
    plans=(
        "Intends to move to {place} in {past}",
        "Has an exam in {tongue} on {past}",
        "Hopes to finish the book about {thing} by {past}",
    ),
    stay=(
        "Prefers {thing} to television",
        "Prefers television to radio in {place}",
        "Has an aunt named {name} near {place}",
        "Has an uncle named {name} near {place}",
        "Was born in {place}",
        "Left {firm} in 2018",
        "Sends letters from {place} to {place2}",
        "{name} works at {firm}",
        "{name} speaks {tongue}",
        "Met {name} on 2022-07-11",
        "Met {name} on 2022-08-11",
        "Intends to leave {firm} in {future}",
        "Feels well with {food}",
        "Feels well without {food}",
        "Has a {job} as a friend",
        "Has a {job} as a neighbour",
        "Hates {thing} on weekdays",
        "Runs 5 km in {place}",
        "Runs 10 km in {place}",
    ),
)
HELD_OUT = Templates(
    same=(
        ("Adores {thing}", "Likes {thing}", True),
        ("Dwells in {place} near the harbour", "Lives in {place}", False),
        ("Works for {firm} and studies law", "Is employed at {firm}", False),
        ("Suffers from an allergy to {food}", "Is allergic to {food}", True),
        ("Rides a bicycle to work in {place}", "Cycles to work in {place}", True),
        (
            "Has a daughter named {name}, and a son",
            "Has a daughter called {name}",
            False,
        ),
        ("Practises {thing} each morning", "Does {thing} every morning", True),
        ("Is able to speak {tongue}", "Speaks {tongue}", True),
        ("Prefers {thing} over television", "Likes {thing} more than television", True),
        ("Is a {job} by profession", "Works as a {job}", True),
    ),
    contradicted=(
        ("Lives in Basel", "Has a new home in Izmir"),
        ("Plays {thing}", "Does not play {thing} any longer"),
        ("Has four {kin}", "Has five {kin}"),
        ("Is 40 years old", "Is 41 years old"),
        ("Is single", "Is married to Zoe"),
        ("Wears a {topic}", "Has stopped wearing a {topic}"),
    ),
    plans=(
        "Will move to {place} in {past}",
        "Has a flight to {place} on {past}",
        "Has to renew the passport by {past}",
    ),
    stay=(
        "Practises {thing} with {name}",
        "Practises {thing} without {name}",
        "Has a cousin called {name} at {firm}",
        "Has a friend called {name} at {firm}",
        "Grew up in {place}",
        "Studied {tongue} in 2011",
        "Drives from {place2} to {place}",
        "{name} has a daughter",
        "{name} dwells in {place}",
        "Bought a {topic} on 2024-02-03",
        "Bought a {topic} on 2024-02-04",
        "Will visit {name} in {future}",
        "Cooks with {food} at home",
        "Cooks with {food} at work",
        "Does not like {food}",
        "Is the {job} of {firm}",
        "Is a client of a {job} in {place}",
        "Pays 20 euros for {thing}",
        "Pays 30 euros for {thing}",
    ),
)


class Store(NamedTuple):
    """The facts, oldest first, and for each that may go the one that must stay then, "" for a plan that is over."""

    facts: Sequence[Fact]
    may_go: dict[str, str]

    def lost(self, left: set[str]) -> list[str]:
        """The true facts that are not among those that are left."""
        gone = [fact.content for fact in self.facts if fact.content not in left]
        return [
            one
            for one in gone
            if one not in self.may_go
            or (self.may_go[one] and self.may_go[one] not in left)
        ]


def generated(templates: Templates, random: Random) -> Store:
    """A store of sentences by these templates, all of them different."""
    may_go, newer, texts = dict[str, str](), set[str](), set[str]()

    def new(templates: Sequence[Sequence[Any]], number: int) -> Iterator[Sequence[Any]]:
        """Fill so many templates with words; what is no text in them stays."""
        while number:
            values = {name: random.choice(words) for name, words in SLOTS.items()}
            filled = [
                one.format(**values) if isinstance(one, str) else one
                for one in random.choice(templates)
            ]
            said = {one for one in filled if isinstance(one, str)}
            if values["place"] != values["place2"] and not said & texts:
                texts.update(said)
                number -= 1
                yield filled

    for whole, part, is_equal in new(templates.same, SAME):
        may_go |= {part: whole, **({whole: part} if is_equal else {})}
    for old, newest in new(templates.contradicted, CONTRADICTED):
        may_go[old] = newest
        newer.add(newest)
    may_go |= {plan: "" for (plan,) in new([(one,) for one in templates.plans], OVER)}
    list(new([(one,) for one in templates.stay], FACTS - len(texts)))
    ordered = sorted(texts)
    random.shuffle(ordered)
    ordered.sort(key=newer.__contains__)
    begin = datetime(2023, 1, 1, tzinfo=timezone.utc)
    facts = [
        Fact(
            content=text,
            created_at=begin + timedelta(days=day),
            said_as="planned" if _PLAN.match(text) else "stated",
        )
        for day, text in enumerate(ordered)
    ]
    return Store(facts, may_go)


class Scripted(OfflineModel):
    """Confirms the lines that a rule chooses, by the texts of the facts that would go."""

    _chosen: Any = PrivateAttr()

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        lines = {
            int(number): text
            for number, text in _LINE.findall(messages[-1].content or "")
        }
        answer = self._chosen(lines)
        if isinstance(answer, str):
            return ChatResponse(message=ChatMessage(role="assistant", content=answer))
        call = ToolCallBlock(
            tool_call_id="call_1",
            tool_name="report_numbers",
            tool_kwargs={"numbers": answer},
        )
        return ChatResponse(message=ChatMessage(role="assistant", blocks=[call]))

    async def achat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponse:
        return self.chat(messages, **kwargs)


def honest(store: Store, _: Random) -> Any:
    """Confirms what is right."""
    return lambda lines: [
        number for number, text in lines.items() if text in store.may_go
    ]


def careless(_: Store, random: Random) -> Any:
    """Confirms all, or answers by chance; in a tenth of the cases nonsense."""

    def chosen(lines: dict[int, str]) -> Any:
        if random.random() < 0.1:
            return random.choice(["All of them.", "{", '{"lines": 3}', ""])
        return (
            [*lines]
            if random.random() < 0.5
            else [random.choice([*lines, -1, 0, 10**6, "x", None]) for _ in lines]
        )

    return chosen


class Outcome(NamedTuple):
    """The share of what could be tidied up that was, and the facts that were lost, or did not come back."""

    tidied: float
    lost: list[str]
    not_back: int


async def until_read(book: FactBook) -> list[Proposal]:
    """What is proposed; after an answer that cannot be read, by which nothing has changed, it is asked for again."""
    with suppress(FactReplyError):
        return await book.aconsolidate()
    return await until_read(book)


async def tidied(templates: Templates, seed: int, rule: Any) -> Outcome:
    """Generate a store, apply what is proposed, and undo it."""
    random, store = Random(seed), MemoryStore()
    generation, model = generated(templates, random), Scripted()
    model._chosen = rule(generation, random)
    block = RelevantFactsBlock(store=store, user_id="ann", llm=model)
    book = block.book()
    await store.facts.write("ann", generation.facts)
    proposals = await until_read(book)
    await book.aapply(proposals)
    left = {fact.content for fact in await book.alist(with_expired=True)}
    await book.aundo(proposals)
    back = {fact.content for fact in await book.alist(with_expired=True)}
    await block.aclose()
    await store.aclose()
    wanted = len({frozenset((one, other)) for one, other in generation.may_go.items()})
    return Outcome(len(proposals) / wanted, generation.lost(left), FACTS - len(back))


async def main() -> int:
    """Run all, publish, and return the exit code."""
    measures, lost, not_back = list[Measure](), list[str](), 0
    for rule in (honest, careless):
        for name, sets in (("chosen with", (FIRST, SECOND)), ("held out", (HELD_OUT,))):
            runs = [(templates, seed) for templates in sets for seed in range(SEEDS)]
            outcomes = [
                await tidied(*one, rule)
                for one in shown(runs, f"{rule.__name__}, {name}")
            ]
            share = 100 * sum(one.tidied for one in outcomes) / len(outcomes)
            measures.append(
                Measure(
                    f"tidied up, {rule.__name__} model, templates {name}", share, "%"
                )
            )
            lost += [
                f"{rule.__name__}: {text}" for one in outcomes for text in one.lost
            ]
            not_back += sum(one.not_back for one in outcomes)
    print(*lost, sep="\n")
    where = f"of {6 * SEEDS} stores of {FACTS}"
    promises = [
        Promise(f"true facts lost, {where}", 0, len(lost)),
        Promise("facts that undo did not bring back", 0, not_back),
    ]
    return publish("consolidation", measures, promises)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
