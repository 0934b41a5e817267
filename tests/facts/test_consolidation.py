"""Tidying up facts: checks propose, a model confirms, a person looks, and one call applies it or takes it back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from typing import Any, Protocol

import pytest

from llama_index_memory_ext import (
    Fact,
    FactError,
    FactReplyError,
    MemoryStore,
    RelevantFactsBlock,
)
from llama_index_memory_ext.errors import NoModelError
from llama_index_memory_ext.facts.book import FactBook
from llama_index_memory_ext.facts.consolidation import (
    covers,
    excludes,
    is_over,
    proposals,
)
from tests.databases import OpenStore
from tests.openai_server import Message, Model, OpenAIServer, call, fail, say
from tests.scripted_models import StartModel

BEGIN = datetime(2024, 1, 1, tzinfo=timezone.utc)
NOW = datetime(2026, 11, 20, tzinfo=timezone.utc)
LIKES, ENJOYS = (
    Fact(id="likes", content="Likes tea", created_at=BEGIN),
    Fact(id="enjoys", content="Enjoys tea"),
)
OSLO, ROME = (
    Fact(id="oslo", content="Lives in Oslo", created_at=BEGIN),
    Fact(id="rome", content="Resides in Rome"),
)
TRIP = Fact(id="trip", content="Plans to visit Porto in May 2024", created_at=BEGIN)
OTHER = Fact(id="other", content="Likes coffee", created_at=BEGIN)
FACTS = (LIKES, ENJOYS, OSLO, ROME, TRIP, OTHER)


def lines_of(messages: list[Message]) -> list[str]:
    return re.findall(r"^\d+\. (.*)$", messages[-1]["content"], re.MULTILINE)


def agreeing(messages: list[Message], tools: list[str]) -> Message:
    """Confirms every line, and some that there are none of."""
    return call(
        (
            "call_1",
            "report_numbers",
            {"numbers": [-1, 0, "x", *range(1, len(lines_of(messages)) + 5)]},
        )
    )


class OpenBook(Protocol):
    async def __call__(
        self, model: Model, *facts: Fact, **options: Any
    ) -> tuple[FactBook, OpenAIServer]:
        """The facts of a user, with a model that looks at them."""


@pytest.fixture
async def open_book(
    any_database_uri: str | None, open_store: OpenStore, start_model: StartModel
) -> AsyncIterator[OpenBook]:
    async with AsyncExitStack() as stack:
        store = (
            MemoryStore() if any_database_uri is None else open_store(any_database_uri)
        )
        stack.push_async_callback(store.aclose)

        async def open_one(
            model: Model, *facts: Fact, **options: Any
        ) -> tuple[FactBook, OpenAIServer]:
            llm, server = start_model(model)
            await store.facts.write("ann", facts)
            return RelevantFactsBlock(
                store=store, user_id="ann", llm=llm, **options
            ).book(), server

        yield open_one


async def held(book: FactBook) -> set[str]:
    return {fact.id for fact in await book.alist()}


async def test_what_is_proposed_changes_nothing_until_it_is_applied_and_comes_back_by_undo(
    open_book: OpenBook,
) -> None:
    book, _ = await open_book(agreeing, *FACTS)
    found = await book.aconsolidate()
    assert {(one.kind, one.retired.id, one.keep and one.keep.id) for one in found} == {
        ("duplicate", "likes", "enjoys"),
        ("contradiction", "oslo", "rome"),
        ("over", "trip", None),
    }
    assert await held(book) == {fact.id for fact in FACTS}
    assert await book.aapply(found) == 3
    assert await held(book) == {"enjoys", "rome", "other"}
    states = {
        fact.id: (fact.state(NOW), fact.replaced_by)
        for fact in await book.alist(with_retired=True)
    }
    assert states["likes"] == ("retired", "enjoys")
    assert (states["oslo"], states["trip"]) == (("past", "rome"), ("past", None))
    assert await book.aundo(found) == 3
    assert await held(book) == {fact.id for fact in FACTS}
    assert await book.aundo(found) == 0
    assert [one.id for one in await book.ahistory("oslo")] == ["oslo", "rome"]


async def test_a_proposal_shows_what_is_there_before_and_after(
    open_book: OpenBook,
) -> None:
    book, server = await open_book(agreeing, LIKES, replace_day(ENJOYS), TRIP)
    shown = [str(one) for one in await book.aconsolidate()]
    assert sorted(shown) == [
        "duplicate: Likes tea (known since 2024-01-01) -> Enjoys tea (known since 2024-01-02)",
        "over: Plans to visit Porto in May 2024 (known since 2024-01-01) -> nothing",
    ]
    assert sorted(lines_of(server.requests[-1])) == sorted(shown)


def replace_day(fact: Fact) -> Fact:
    return Fact(id=fact.id, content=fact.content, created_at=BEGIN + timedelta(days=1))


@pytest.mark.parametrize(
    "answer",
    [say("All of them are fine."), say('{"lines": "}'), say(""), fail(500, "broken")],
)
async def test_a_model_that_fails_or_answers_nonsense_has_changed_nothing(
    open_book: OpenBook, answer: Message
) -> None:
    book, _ = await open_book(lambda *_: answer, *FACTS)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the client's own error for a server that fails
        await book.aconsolidate()
    assert isinstance(caught.value, FactReplyError) != ("status" in answer)
    assert await held(book) == {fact.id for fact in FACTS}


async def test_what_the_model_does_not_confirm_is_not_proposed(
    open_book: OpenBook,
) -> None:
    book, _ = await open_book(
        lambda *_: call(("call_1", "report_numbers", {"numbers": [99]})), *FACTS
    )
    assert await book.aconsolidate() == []
    assert await book.aapply([]) == 0


async def test_a_model_without_tools_is_read_too(open_book: OpenBook) -> None:
    book, _ = await open_book(lambda *_: say('Sure: {"numbers": [1]}'), LIKES, ENJOYS)
    assert len(await book.aconsolidate()) == 1


async def test_cancelled_it_has_changed_nothing(open_book: OpenBook) -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(messages: list[Message], tools: list[str]) -> Message:
        loop.call_soon_threadsafe(asked.set)
        return agreeing(messages, tools)

    book, _ = await open_book(slow, *FACTS)
    task = asyncio.create_task(book.aconsolidate())
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await held(book) == {fact.id for fact in FACTS}


async def test_many_proposals_are_asked_about_in_batches_of_a_limit(
    open_book: OpenBook,
) -> None:
    pairs = [
        Fact(content=f"{verb} drink {number}")
        for number in range(2, 22)
        for verb in ("Likes", "Enjoys")
    ]
    book, server = await open_book(agreeing, *pairs)
    found = await book.aconsolidate(token_limit=100)
    assert len(found) == 20
    assert len(server.requests) > 5
    assert max(len(lines_of(request)) for request in server.requests) <= 4
    assert await book.aapply(found) == 20


async def test_nothing_to_tidy_asks_no_model(open_book: OpenBook) -> None:
    book, server = await open_book(agreeing)
    assert await book.aconsolidate() == []
    await book.aadd(OTHER)
    assert await book.aconsolidate() == []
    assert server.requests == []


async def test_pinned_and_expired_and_retired_facts_are_not_retired(
    open_book: OpenBook,
) -> None:
    pinned = LIKES.model_copy(update={"pinned": True})
    book, _ = await open_book(agreeing, pinned, ENJOYS)
    (one,) = await book.aconsolidate()
    assert (one.retired.id, one.keep and one.keep.id) == ("enjoys", "likes")
    await book.aupdate("enjoys", pinned=True)
    assert await book.aconsolidate() == []
    await book.aupdate("enjoys", pinned=False, expires_at=BEGIN)
    assert await book.aconsolidate() == []


async def test_facts_of_two_agents_or_about_two_persons_are_not_compared(
    open_book: OpenBook,
) -> None:
    travel = ENJOYS.model_copy(update={"agent_id": "travel"})
    about = Fact(id="about", content="Loves tea", about="other")
    book, _ = await open_book(agreeing, LIKES, travel, about, agent_id="travel")
    assert await book.aconsolidate() == []


async def test_facts_that_have_changed_since_are_named_and_nothing_is_applied(
    open_book: OpenBook,
) -> None:
    book, _ = await open_book(agreeing, *FACTS)
    found = await book.aconsolidate()
    await book.aupdate("rome", category="context")
    await book.aforget("trip")
    with pytest.raises(FactError, match="because of rome, trip"):
        await book.aapply(found)
    assert await held(book) == {"likes", "enjoys", "oslo", "rome", "other"}
    assert await book.aapply([one for one in found if one.kind == "duplicate"]) == 1
    with pytest.raises(FactError, match="likes"):
        await book.aapply([one for one in found if one.kind == "duplicate"])


async def test_two_facts_cannot_give_way_to_each_other(open_book: OpenBook) -> None:
    book, _ = await open_book(agreeing, LIKES, ENJOYS)
    (one,) = await book.aconsolidate()
    assert one.keep
    with pytest.raises(FactError, match="because of enjoys, likes"):
        await book.aapply([one, replace(one, retired=one.keep, keep=one.retired)])
    assert await held(book) == {"likes", "enjoys"}


async def test_undo_gives_a_plan_the_end_that_it_had(open_book: OpenBook) -> None:
    plan = Fact(
        id="plan",
        content="Plans a garden",
        valid_until=date(2024, 5, 1),
        created_at=BEGIN,
    )
    book, _ = await open_book(agreeing, plan)
    found = await book.aconsolidate()
    assert await book.aapply(found) == 1
    assert await book.aundo(found) == 1
    (fact,) = await book.alist()
    assert (fact.valid_until, fact.state(NOW)) == (date(2024, 5, 1), "past")


async def test_without_a_model_it_is_said_what_is_missing() -> None:
    store = MemoryStore()
    with pytest.raises(FactError, match="Expected a book with a model"):
        await FactBook(store, "ann").aconsolidate()
    with pytest.raises(NoModelError):
        await RelevantFactsBlock(store=store).book().aconsolidate()
    await store.aclose()


def fact(content: str, day: int = 0, **fields: Any) -> Fact:
    return Fact(content=content, created_at=BEGIN + timedelta(days=day), **fields)


@pytest.mark.parametrize(
    ("keep", "other"),
    [
        ("Likes coffee", "Likes tea"),
        ("Likes tea in the morning", "Likes tea"),
        ("Likes tea only with milk", "Likes tea"),
        ("Does not drink tea", "Drinks tea"),
        ("Does not eat meat on Fridays", "Does not eat meat"),
        ("Has three cats", "Has two cats"),
        ("Has a sister called Marie", "Has a sister called Mary"),
        ("Ann likes tea", "Likes tea"),
        ("Flew from Oslo to Rome", "Flew from Rome to Oslo"),
        ("Used to live in Oslo", "Lives in Oslo"),
        ("Worked at Acme", "Works at Acme"),
        ("Visited Oslo on 2024-05-03", "Visited Oslo on 2024-05-04"),
        ("Takes pills before meals", "Takes pills after meals"),
        ("Has a dog trainer", "Has a dog"),
        ("Lives in Oslo", "Lives in Oslo with two kids"),
        ("喜欢茶壶", "喜欢茶"),
        ("Does not", "Does not drink tea"),
        (".", "Likes tea"),
    ],
)
def test_a_fact_that_says_something_else_is_no_duplicate(keep: str, other: str) -> None:
    assert not covers(fact(keep), fact(other))
    assert not covers(fact(keep, 1), fact(other))


@pytest.mark.parametrize(
    ("keep", "other"),
    [
        ("Lives in Oslo with two kids", "Resides in Oslo"),
        ("Has 2 children", "Has two kids"),
        ("Works as a nurse in Oslo", "Is employed as a nurse."),
        ("Never drinks coffee", "never drinks coffee"),
        ("喜欢茶", "喜欢茶"),
    ],
)
def test_a_fact_that_says_no_more_is_one(keep: str, other: str) -> None:
    assert covers(fact(keep), fact(other))


def test_days_that_are_not_the_same_are_not_lost() -> None:
    assert not covers(
        fact("Likes tea"), fact("Enjoys tea", valid_from=date(2024, 1, 1))
    )
    assert not covers(
        fact("Likes tea", valid_until=date(2030, 1, 1)), fact("Enjoys tea")
    )
    assert not covers(fact("Has an exam tomorrow", 3), fact("Has an exam tomorrow"))
    assert covers(fact("Has an exam tomorrow"), fact("Has exam tomorrow"))


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        ("Lives in Rome", "Lives in Oslo", True),
        ("Does not drink coffee any more", "Drinks coffee", True),
        ("Drinks coffee", "Does not drink coffee", True),
        ("Has three cats", "Has two cats", True),
        ("Has three cats", "Has two dogs", False),
        ("Likes coffee", "Likes tea", False),
        ("Speaks French", "Speaks German", False),
        ("Lives in Rome", "Lives in Oslo with two kids", False),
        ("Lives in Rome in winter", "Lives in Oslo", False),
        ("Does not drink coffee at night", "Drinks coffee", False),
        ("Does not drink", "Drinks tea", False),
        ("Does not work at Acme", "Worked at Acme", False),
        ("Has a 5 year old son", "Has a 7 year old son", False),
    ],
)
def test_only_what_cannot_be_true_at_the_same_time_is_a_contradiction(
    new: str, old: str, expected: bool
) -> None:
    assert excludes(fact(new, 1), fact(old)) is expected
    assert not excludes(fact(new), fact(old, 1))


def test_an_older_fact_that_was_confirmed_since_is_not_contradicted() -> None:
    old = fact("Lives in Oslo").model_copy(
        update={"updated_at": BEGIN + timedelta(days=9)}
    )
    assert not excludes(fact("Lives in Rome", 1), old)
    assert not excludes(
        fact("Lives in Rome", 1, valid_from=date(2030, 1, 1)), fact("Lives in Oslo")
    )


@pytest.mark.parametrize(
    ("content", "fields", "expected"),
    [
        ("Plans to visit Oslo in May 2024", {}, True),
        ("Visits Oslo on 2024-05-03", {"said_as": "planned"}, True),
        ("Plans to visit Oslo", {"valid_until": date(2024, 5, 1)}, True),
        ("Plans to visit Oslo in May 2024 or May 2039", {}, False),
        ("Plans to visit Oslo in May", {}, False),
        ("Plans to visit Oslo in 2024", {}, True),
        ("Plans to visit Oslo by 2024 with Ann", {}, True),
        ("Plans to buy 2000 bricks", {}, False),
        ("Plans to buy 2000 bricks in 2023", {}, True),
        ("Wants to run 1950 meters", {}, False),
        ("Plans to save 2020 euros", {}, False),
        ("Plans to march 2000 meters", {}, False),
        ("Plans to write it in 2000 words", {}, False),
        ("Plans an 80s party", {}, False),
        ("Will 2000 Ziegel kaufen", {"said_as": "planned"}, False),
        ("Will bis 2023 umziehen", {"said_as": "planned"}, True),
        ("Quiere ahorrar 2020 euros", {"said_as": "planned"}, False),
        ("Quiere mudarse en mayo de 2023", {"said_as": "planned"}, True),
        ("打算买2000块砖", {"said_as": "planned"}, False),
        ("打算2023年搬家", {"said_as": "planned"}, True),
        ("Plans to visit Oslo", {}, False),
        ("Plans since 2020 to write a book", {}, False),
        ("Was born on 2024-05-03", {}, False),
        ("Lived in Oslo", {"valid_until": date(2024, 5, 1)}, False),
    ],
)
def test_only_a_plan_whose_days_have_passed_is_over(
    content: str, fields: dict[str, Any], expected: bool
) -> None:
    assert is_over(fact(content, **fields), NOW) is expected


def test_of_several_that_say_the_same_the_one_that_says_most_stays() -> None:
    cats = [fact("Has a cat", 2), fact("Owns a cat named Tom", 1), fact("Has a cat")]
    found = proposals(cats, NOW)
    assert [(one.retired, one.keep) for one in found] == [
        (cats[2], cats[1]),
        (cats[0], cats[1]),
    ]
