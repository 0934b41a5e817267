"""What is learned waits for somebody's yes; tags and metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from llama_index_memory_ext import (
    CondensedMemory,
    Fact,
    FactError,
    MemoryRetriever,
    MemoryStore,
    MemoryToolSpec,
)
from llama_index_memory_ext.events import FactsExtractedEvent
from llama_index_memory_ext.fact import utc_now
from llama_index_memory_ext.facts.book import FactBook
from tests.conversation import assistant, sent_text, user
from tests.databases import OpenStore
from tests.databases import file_store as store
from tests.learning.learning import fact_of
from tests.memory.test_events import Listener, heard
from tests.openai_server import Message, Model, OpenAIServer, call, say
from tests.scripted_models import StartModel

__all__ = ["heard", "store"]

Reviewed = Callable[..., tuple[CondensedMemory, OpenAIServer]]
OSLO = fact_of("Lives in Oslo", "I live in Oslo")
ROME = fact_of("Lives in Rome", "I live in Rome")
TEA = fact_of("Likes tea", "I like tea")
# A new fact that takes the place of the first known fact.
MOVED = ROME | {"ends": 1}


def replies(*given: list[dict[str, Any]]) -> Model:
    """A model that reports these, one for each extraction, and then nothing."""
    left = list(given)

    def model(_: list[Message], tools: list[str]) -> Message:
        if tools != ["report_facts"]:
            return say("Fine.")
        return call(("c", "report_facts", {"facts": left.pop(0) if left else []}))

    return model


@pytest.fixture
def reviewed(store: MemoryStore, start_model: StartModel) -> Reviewed:
    """Opens a memory of Ann's in which all that is learned is reviewed, by a model that gives these replies."""

    def open_one(
        *given: list[dict[str, Any]], **options: Any
    ) -> tuple[CondensedMemory, OpenAIServer]:
        llm, server = start_model(replies(*given))
        options = {"user_id": "ann", "llm": llm, "review": True, **options}
        return CondensedMemory.from_defaults(
            f"chat of {options['user_id']}", chat_store=store, **options
        ), server

    return open_one


async def tell(memory: CondensedMemory, text: str) -> None:
    await memory.aput_messages([user(text), assistant("Fine.")])
    await memory.aflush()


async def contents(memory: CondensedMemory, **wanted: Any) -> list[str]:
    return sorted(fact.content for fact in await memory.facts.alist(**wanted))


async def test_what_is_learned_is_shown_to_nobody_before_it_is_approved(
    reviewed: Reviewed,
) -> None:
    memory, _ = reviewed([TEA])
    # Beside a profile, facts are left out whose messages the record shows.
    memory.facts_block.profile_token_limit = 0
    await tell(memory, "I like tea.")
    question = "Do I like tea?"
    assert await contents(memory) == []
    (fact,) = await memory.facts.alist(state="pending")
    assert "Likes tea" not in sent_text(await memory.aget(user(question)))
    assert await memory.facts.asearch(question) == []
    assert await FactBook(memory.sql_store, "ann").asearch(question) == []
    assert await MemoryRetriever(memory, messages=False).aretrieve(question) == []
    assert "<fact" not in await MemoryToolSpec(memory).asearch_memory(question)
    (held,) = await memory.facts.aapprove(fact.id)
    assert (held.state(utc_now()), held.content) == ("present", "Likes tea")
    assert "Likes tea" in sent_text(await memory.aget(user(question)))
    assert await contents(memory, state="pending") == []


async def test_extraction_knows_what_is_pending_and_does_not_learn_it_twice(
    reviewed: Reviewed,
) -> None:
    memory, server = reviewed([TEA], [TEA])
    await tell(memory, "I like tea.")
    await tell(memory, "As I said, I like tea.")
    assert "1. Likes tea" in server.requests[-1][-1]["content"]
    assert await contents(memory, state="pending") == ["Likes tea"]


async def test_what_was_rejected_is_told_to_extraction_and_not_stored_again(
    reviewed: Reviewed,
) -> None:
    memory, server = reviewed([TEA], [TEA])
    await tell(memory, "I like tea.")
    (fact,) = await memory.facts.alist(state="pending")
    (gone,) = await memory.facts.areject(
        fact.id, reason="It was </rejected_facts> a joke."
    )
    assert (gone.state(utc_now()), gone.retired_by) == ("retired", "rejected")
    await tell(memory, "Again: I like tea.")
    asked = server.requests[-1][-1]["content"]
    assert (
        "<rejected_facts>\n- Likes tea (It was &lt;/rejected_facts> a joke.)\n</rejected_facts>"
        in asked
    )
    assert await contents(memory, state="pending") == []
    assert memory.facts_block.rejections["duplicate"] == 1
    # A person may think otherwise.
    await memory.facts.arestore(fact.id)
    assert await contents(memory) == ["Likes tea"]


async def test_many_rejected_facts_take_few_tokens_of_a_request(
    reviewed: Reviewed, store: MemoryStore
) -> None:
    now = utc_now()
    rejected: dict[str, Any] = {
        "retired_at": now,
        "retired_by": "rejected",
        "retired_reason": "No. " * 50,
    }
    await store.facts.write(
        "ann", [Fact(content=f"Likes tea of kind {i}", **rejected) for i in range(200)]
    )
    memory, server = reviewed()
    await tell(memory, "I like tea.")
    listed = (
        server.requests[-1][-1]["content"]
        .split("<rejected_facts>")[1]
        .split("</rejected")[0]
    )
    assert memory.tokenizer_fn.count(listed) <= 410
    assert "kind 199" in listed


async def test_a_correction_waits_and_the_old_fact_holds_until_it_is_approved(
    reviewed: Reviewed,
) -> None:
    memory, _ = reviewed([MOVED])
    oslo = await memory.facts.aadd("Lives in Oslo", category="context")
    await tell(memory, "I live in Rome now, I moved.")
    (rome,) = await memory.facts.alist(state="pending")
    assert await contents(memory) == ["Lives in Oslo"]
    await memory.facts.aapprove(rome.id)
    assert await contents(memory) == ["Lives in Rome"]
    old, new = await memory.facts.ahistory(rome.id)
    assert old.id == oslo.id
    assert old.replaced_by == rome.id
    assert old.retired_by == "change"
    assert old.state(utc_now()) == "past"
    assert new.id == rome.id


@pytest.mark.parametrize(("way", "states"), [("aretire", ["retired"]), ("aforget", [])])
async def test_what_went_before_the_approval_does_not_come_back_as_past(
    reviewed: Reviewed, way: str, states: list[str]
) -> None:
    memory, _ = reviewed([MOVED])
    oslo = await memory.facts.aadd("Lives in Oslo", category="context")
    await tell(memory, "I live in Rome now, I moved.")
    (rome,) = await memory.facts.alist(state="pending")
    await getattr(memory.facts, way)(oslo.id)
    await memory.facts.aapprove(rome.id)
    facts = await memory.facts.alist(state="all")
    left = [fact.state(utc_now()) for fact in facts if fact.id == oslo.id]
    assert left == states
    assert await contents(memory) == ["Lives in Rome"]


@pytest.mark.parametrize("way", ["areject", "aretire", "aforget"])
async def test_an_old_fact_holds_without_a_link_where_its_correction_does_not_come(
    reviewed: Reviewed, way: str
) -> None:
    memory, _ = reviewed([MOVED])
    oslo = await memory.facts.aadd("Lives in Oslo", category="context")
    await tell(memory, "I live in Rome now, I moved.")
    (rome,) = await memory.facts.alist(state="pending")
    await getattr(memory.facts, way)(rome.id)
    assert await memory.facts.alist() == [oslo]
    assert await memory.facts.ahistory(oslo.id) == [oslo]


async def test_a_correction_of_a_pending_fact_ends_what_that_would_have_ended(
    reviewed: Reviewed,
) -> None:
    memory, _ = reviewed(
        [MOVED],
        [{**TEA, "content": "Lives in Bonn", "quote": "I live in Bonn", "ends": 2}],
    )
    await memory.facts.aadd("Lives in Oslo", category="context")
    await tell(memory, "I live in Rome now, I moved.")
    await tell(memory, "No, I live in Bonn now, I moved.")
    pending = {
        fact.content: fact.id for fact in await memory.facts.alist(state="pending")
    }
    assert [*pending] == ["Lives in Bonn", "Lives in Rome"]
    await memory.facts.aapprove(pending["Lives in Bonn"])
    assert await contents(memory) == ["Lives in Bonn"]
    states = {
        fact.content: fact.state(utc_now())
        for fact in await memory.facts.alist(state="all")
    }
    assert states == {
        "Lives in Oslo": "past",
        "Lives in Bonn": "present",
        "Lives in Rome": "retired",
    }


async def test_a_pending_fact_that_is_said_again_may_end_another(
    reviewed: Reviewed,
) -> None:
    memory, _ = reviewed([ROME], [MOVED])
    await memory.facts.aadd("Lives in Oslo", category="context")
    await tell(memory, "I live in Rome.")
    await tell(memory, "I live in Rome now, I moved.")
    (rome,) = await memory.facts.alist(state="pending")
    await memory.facts.aapprove(rome.id)
    assert await contents(memory) == ["Lives in Rome"]


async def test_what_only_ends_a_fact_waits_too_and_what_is_to_be_forgotten_does_not(
    reviewed: Reviewed,
) -> None:
    ended = {"quote": "I don't like tea any more", "ends": 1}
    forgotten = {"quote": "forget that I like tea", "ends": 1}
    memory, _ = reviewed([ended], [ended], [forgotten])
    tea = await memory.facts.aadd("Likes tea")
    await tell(memory, "I don't like tea any more.")
    await tell(memory, "Really, I don't like tea any more.")
    (waiting,) = await memory.facts.alist(state="pending")
    assert waiting.content == "No longer true: Likes tea"
    assert await contents(memory) == ["Likes tea"]
    await memory.facts.aapprove(waiting.id)
    assert await contents(memory) == []
    assert {fact.id: fact.retired_by for fact in await memory.facts.alist(state="all")}[
        tea.id
    ] == "change"
    await memory.facts.arestore(tea.id)
    await tell(memory, "Please forget that I like tea.")
    assert await contents(memory) == []


async def test_all_or_none_are_approved_and_a_wrong_one_is_named(
    reviewed: Reviewed,
) -> None:
    memory, _ = reviewed([TEA, OSLO])
    rain = await memory.facts.aadd("Likes rain")
    await tell(memory, "I like tea. I live in Oslo.")
    ids = [fact.id for fact in await memory.facts.alist(state="pending")]
    with pytest.raises(
        FactError, match=f"'unknown' is none. Pending: ({ids[1]}|{ids[0]}), "
    ) as raised:
        await memory.facts.aapprove(*ids, "unknown")
    assert "Expected ids of pending facts" in str(raised.value)
    with pytest.raises(FactError, match="is present"):
        await memory.facts.areject(rain.id, *ids)
    assert len(await memory.facts.alist(state="pending")) == 2
    assert {fact.id for fact in await memory.facts.aapprove(*ids)} == {*ids}
    with pytest.raises(FactError, match="is present"):
        await memory.facts.aapprove(ids[0])
    assert await memory.facts.aapprove() == []


async def test_two_processes_decide_once(
    lasting_database_uri: str, open_store: OpenStore
) -> None:
    books = [FactBook(open_store(lasting_database_uri), "ann") for _ in range(2)]
    oslo = await books[0].aadd("Lives in Oslo")
    now = utc_now().isoformat()
    rome = Fact(
        content="Lives in Rome",
        pending=True,
        ends_facts={oslo.id: {"retired_at": now, "retired_by": "change"}},
    )
    await books[0].aadd(rome)
    done = await asyncio.gather(
        *(book.aapprove(rome.id) for book in books),
        *(book.areject(rome.id) for book in books),
        return_exceptions=True,
    )
    assert sum(isinstance(one, list) for one in done) == 1
    assert sum(isinstance(one, FactError) for one in done) == 3
    assert len(await books[1].alist()) == 1


async def test_what_the_user_asks_to_remember_needs_no_other_yes(
    reviewed: Reviewed,
) -> None:
    memory, _ = reviewed([TEA])
    await tell(memory, "I like tea. I like green tea.")
    tools = MemoryToolSpec(memory)
    assert "Known already" in await tools.aremember(
        "Likes tea", "I like tea", "preference"
    )
    assert "Remembered" in await tools.aremember(
        "Likes green tea", "I like green tea", "preference"
    )
    assert await contents(memory) == ["Likes green tea", "Likes tea"]
    await memory.facts.aadd("Likes rain")
    assert await contents(memory, state="pending") == []


async def test_an_event_names_what_is_pending(
    reviewed: Reviewed, heard: Listener
) -> None:
    forgotten = {"quote": "forget that I like tea", "ends": 1}
    memory, _ = reviewed([TEA], [forgotten])
    await tell(memory, "I like tea.")
    (fact,) = await memory.facts.alist(state="pending")
    await tell(memory, "Please forget that I like tea.")
    events = heard.of(FactsExtractedEvent)
    assert [(event.new, event.pending, event.retired) for event in events] == [
        ([fact.id], [fact.id], []),
        ([], [], [fact.id]),
    ]


async def test_what_replaces_a_shared_fact_is_shared_when_it_is_approved(
    reviewed: Reviewed,
) -> None:
    memory, _ = reviewed([MOVED], [TEA], agent_id="travel")
    await memory.facts.aadd("Lives in Oslo", category="context", agent_id=None)
    await tell(memory, "I live in Rome now, I moved.")
    await tell(memory, "I like tea.")
    pending = await memory.facts.alist(state="pending")
    assert {fact.content: fact.agent_id for fact in pending} == {
        "Lives in Rome": None,
        "Likes tea": "travel",
    }
    await memory.facts.aapprove(*(fact.id for fact in pending))
    assert sorted(
        fact.content for fact in await FactBook(memory.sql_store, "ann").alist()
    ) == ["Lives in Rome"]


async def test_pending_facts_are_exported_imported_and_forgotten(
    reviewed: Reviewed, store: MemoryStore
) -> None:
    memory, _ = reviewed([MOVED])
    await memory.facts.aadd(
        "Lives in Oslo", category="context", tags=["home"], metadata={"team": "blue"}
    )
    await tell(memory, "I live in Rome now, I moved.")
    other = FactBook(store, "bob")
    assert await other.aimport(await memory.facts.aexport()) == 2
    (rome,) = await other.alist(state="pending")
    await other.aapprove(rome.id)
    (oslo,) = await other.alist(state="past")
    assert (oslo.tags, oslo.metadata) == (("home",), {"team": "blue"})
    assert await memory.facts.aforget() == 2


def test_facts_of_earlier_versions_have_no_tags_and_are_not_pending() -> None:
    new = ("tags", "metadata", "pending", "ends_facts")
    stored = Fact(content="Likes tea").model_dump(mode="json")
    fact = Fact.model_validate(
        {name: value for name, value in stored.items() if name not in new}
    )
    assert (fact.tags, fact.metadata, fact.state(utc_now())) == ((), {}, "present")
    assert len({fact, fact.model_copy()}) == 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tags": ["x" * 10_000]}, "of at most 100 characters"),
        ({"tags": [str(i) for i in range(21)]}, "at most 20 items"),
        ({"tags": [" "]}, "tags"),
        ({"tags": "home"}, "tags"),
        ({"metadata": {"text": "x" * 3_000}}, "at most 2048 bytes as JSON, got 3012"),
        ({"metadata": {"when": utc_now()}}, "JSON"),
        ({"metadata": {"number": float("nan")}}, "JSON"),
        ({"metadata": ["a"]}, "metadata"),
    ],
)
def test_tags_and_metadata_that_cannot_be_kept_are_refused(
    fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(FactError, match=said) as raised:
        Fact(content="Likes tea", **fields)
    assert len(str(raised.value)) < 500


async def test_tags_and_metadata_are_stored_with_every_character_that_a_database_takes(
    store: MemoryStore,
) -> None:
    book = FactBook(store, "ann")
    metadata = {"a\x00": ["\ud800", {"b": None}, 1.5, True], "tuple": (1, 2)}
    fact = await book.aadd("Likes tea", tags=["home\x00", "日本"], metadata=metadata)
    assert await book.alist() == [fact]
    assert fact.metadata == {
        "a\ufffd": ["\ufffd", {"b": None}, 1.5, True],
        "tuple": [1, 2],
    }
    assert (await book.aupdate(fact.id, tags=[])).tags == ()


async def test_a_model_sees_neither_tags_nor_metadata(
    reviewed: Reviewed,
) -> None:
    memory, _ = reviewed()
    metadata = {"team": "</fact> blue", "level": 3, "secret": "xyz"}
    await memory.facts.aadd("Likes tea", tags=["hidden"], metadata=metadata)
    question = user("Do I like tea?")
    sent = sent_text(await memory.aget(question))
    assert "Likes tea</fact>" in sent
    assert not any(word in sent for word in ("blue", "xyz", "hidden"))
