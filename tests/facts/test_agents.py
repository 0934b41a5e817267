"""Facts of one user that all agents share, and those that one agent keeps to itself."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llama_index_memory_ext import (
    CondensedMemory,
    Fact,
    FactError,
    MemoryStore,
    MemoryToolSpec,
    RelevantFactsBlock,
)
from llama_index_memory_ext.errors import SettingError
from llama_index_memory_ext.facts.book import FactBook
from llama_index_memory_ext.learning.reply import NewFact
from llama_index_memory_ext.text.turns import Utterance
from tests.conversation import assistant, sent_text, user
from tests.learning.learning import (
    as_report,
    contents,
    extractions,
    fact_of,
    learner,
    shown,
    talk,
)
from tests.memories import on
from tests.openai_server import Model, call, say
from tests.scripted_models import StartModel
from tests.search.test_embeddings import Meanings

# Agents, each with its scope.
SHARED: dict[str, Any] = {}
BOTH_A: dict[str, Any] = {"agent_id": "a"}
ONLY_A: dict[str, Any] = {"agent_id": "a", "scope": "agent"}
BOTH_B: dict[str, Any] = {"agent_id": "b", "scope": "both"}
USER_B: dict[str, Any] = {"agent_id": "b", "scope": "user"}
AGENTS = [SHARED, BOTH_A, ONLY_A, BOTH_B, USER_B]


def sees(agent: dict[str, Any]) -> set[str | None]:
    """The owners of the facts that an agent is to see."""
    scope = agent.get("scope") or ("both" if "agent_id" in agent else "user")
    return {
        "user": {None},
        "agent": {agent.get("agent_id")},
        "both": {None, agent.get("agent_id")},
    }[scope]


def own(agent: dict[str, Any]) -> str | None:
    return None if agent.get("scope") == "user" else agent.get("agent_id")


def knowing(*entries: dict[str, Any]) -> Model:
    """A model that reports these entries: a new fact has content, and a retired one a number."""
    new = [entry for entry in entries if "content" in entry]
    retired = [entry for entry in entries if "number" in entry]
    reply = as_report({"new_facts": new, "retired": retired})
    return lambda _, tools: (
        call(("c", "report_facts", reply))
        if tools == ["report_facts"]
        else say("Fine.")
    )


async def tell(memory: CondensedMemory, text: str) -> None:
    await memory.aput_messages([user(text), assistant("Fine.")])
    await memory.aflush()


KINDS, THINGS = ["add", "share", "learn", "retire", "forget"], ["tea", "rain", "chess"]
OPERATIONS = st.tuples(
    st.sampled_from(range(len(AGENTS))), st.sampled_from(KINDS), st.sampled_from(THINGS)
)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(operations=st.lists(OPERATIONS, max_size=8))
async def test_each_agent_sees_its_own_facts_and_the_shared_ones_and_forgetting_leaves_none(
    store: MemoryStore, operations: list[tuple[int, str, str]]
) -> None:
    """Whoever adds, learns, retires and deletes what, in whatever order."""
    memories = [on(store, **agent) for agent in AGENTS]
    known: list[tuple[str | None, str]] = []
    for who, kind, word in operations:
        memory, mine, seen = memories[who], own(AGENTS[who]), sees(AGENTS[who])
        content = f"Likes {word}"
        found = [
            (owner, text) for owner, text in known if owner in seen and text == content
        ]
        if kind == "add" or (kind == "share" and None in seen):
            fields: dict[str, Any] = {"agent_id": None} if kind == "share" else {}
            fact = await memory.facts.aadd(content, **fields)
            assert fact.agent_id == (None if kind == "share" else mine)
            known.append((fact.agent_id, content))
        elif kind == "learn":
            new = fact_of(content, f"I like {word}", "preference")
            reply = [NewFact.model_validate(new)]
            await memory.facts_block.extractor("chat").apply(
                reply, [Utterance(0, "user", f"I like {word}")]
            )
            known += [] if found else [(mine, content)]
        elif kind in ("retire", "forget") and found:
            fact = next(
                one for one in await memory.facts.alist() if one.content == content
            )
            await (
                memory.facts.aretire(fact.id)
                if kind == "retire"
                else memory.facts.aforget(fact.id)
            )
            known.remove((fact.agent_id, content))
    for memory, agent in zip(memories, AGENTS, strict=True):
        expected = Counter(text for owner, text in known if owner in sees(agent))
        assert Counter(fact.content for fact in await memory.facts.alist()) == expected
        text = await memory.facts_block.aget(
            [user("Do I like tea, rain or chess?")], session_id="chat"
        )
        assert Counter(shown(text)) == expected
        found_facts = await memory.facts_block.asearch(
            "tea rain chess", session_id="chat"
        )
        assert Counter(entry.fact.content for entry in found_facts) == expected
        assert (await memory.astats()).facts == sum(expected.values())
    everything = FactBook(store, "ann", scope="all")
    assert Counter(
        (fact.agent_id, fact.content) for fact in await everything.alist()
    ) == Counter(known)
    await memories[1].aforget(vacuum=False)
    assert await everything.alist(state="all") == []
    assert await rows_in(store) == {"facts": 0, "embeddings": 0}


async def rows_in(store: MemoryStore) -> dict[str, int | None]:
    counts = {
        "facts": "SELECT count(*) FROM {facts}",
        "embeddings": "SELECT count(*) FROM {embeddings}",
    }
    return await store.database.run(
        lambda tx: {name: tx.execute(query).scalar() for name, query in counts.items()},
        writes=False,
    )


async def test_another_agents_facts_are_in_no_answer_of_the_memory(
    store: MemoryStore,
) -> None:
    """Neither shown, found, explained, exported, nor changed or deleted by their ids."""
    a, b = on(store, **BOTH_A), on(store, **BOTH_B)
    fact = await a.facts.aadd("Is looking for a new job")
    await b.facts.aadd("Likes tea", agent_id=None)
    question = "Is there a new job?"
    await b.aput(user(question))
    assert shown(sent_text(await b.aget())) == ["Likes tea"]
    assert [
        one.fact.content for one in (await b.facts_block.aexplain(question)).facts
    ] == ["Likes tea"]
    assert await b.facts_block.asearch(question) == []
    tools = MemoryToolSpec(b)
    assert "looking" not in await tools.asearch_memory("job looking")
    assert "Nothing was forgotten" in await tools.aforget([fact.id], "forget the job")
    assert "job" not in await b.facts.aexport()
    for change in (
        b.facts.aretire(fact.id),
        b.facts.aupdate(fact.id, pinned=True),
        b.facts.ahistory(fact.id),
    ):
        with pytest.raises(FactError, match="has no fact"):
            await change
    assert await b.facts.aforget(fact.id) == 0
    assert await b.facts.aforget() == 1
    assert await contents(a) == ["Is looking for a new job"]
    assert [one.agent_id for one in await a.facts.alist()] == ["a"]


async def test_the_embeddings_of_one_agent_are_kept_and_deleted_with_its_facts(
    store: MemoryStore,
) -> None:
    models: Any = {"embed_model": Meanings(), "recall_token_limit": 0}
    memories = [on(store, **models, **agent) for agent in (BOTH_A, BOTH_B)]
    for memory in memories:
        await memory.facts.aadd("Likes tea")
        await memory.aput(user("What do I like?"))
        assert shown(sent_text(await memory.aget())) == ["Likes tea"]
    assert await rows_in(store) == {"facts": 2, "embeddings": 2}
    assert await memories[0].facts.aforget() == 1
    assert await rows_in(store) == {"facts": 1, "embeddings": 1}
    assert (await store.forget_user("ann", vacuum=False))["facts"] == 1
    assert await rows_in(store) == {"facts": 0, "embeddings": 0}
    for memory in memories:
        await memory.facts_block.aclose()


async def test_what_an_agent_learns_is_its_own_and_each_agent_reads_the_session(
    store: MemoryStore, start_model: StartModel
) -> None:
    """And no model is told what another agent knows."""
    llm, server = start_model(learner)
    a, b, shared = (
        on(store, llm=llm, extract_every_turns=9, **agent)
        for agent in (BOTH_A, BOTH_B, SHARED)
    )
    await b.facts.aadd("Dreams of the sea")
    await a.aput_messages(talk("tea"))
    for memory, known in (
        (a, ["Likes tea"]),
        (b, ["Dreams of the sea", "Likes tea"]),
        (shared, ["Likes tea"]),
    ):
        assert (await memory.astats()).pending == 2
        await memory.aflush()
        assert (await memory.astats()).pending == 0
        await memory.aflush()
        assert await contents(memory) == known
    assert ["Dreams of the sea" in text for text in extractions(server.requests)] == [
        False,
        True,
        False,
    ]
    everyones = await FactBook(store, "ann", scope="all").alist()
    assert sorted(str(fact.agent_id) for fact in everyones) == ["None", "a", "b", "b"]


@pytest.mark.parametrize("owner", [None, "a"])
async def test_what_takes_the_place_of_a_fact_is_shared_if_the_fact_was(
    store: MemoryStore, start_model: StartModel, owner: str | None
) -> None:
    """Otherwise other agents would lose a shared fact, or read what one agent keeps to itself."""
    rome = {**fact_of("Lives in Rome", "I moved to Rome"), "label": "new"}
    liked = fact_of("Likes Rome", "I like Rome")
    gone = {"number": 1, "quote": "I moved to Rome", "replaced_by": "new"}
    llm, _ = start_model(knowing(rome, liked, gone))
    a, b = on(store, llm=llm, **BOTH_A), on(store, **BOTH_B)
    await a.facts.aadd("Lives in Oslo", agent_id=owner)
    is_shared = owner is None
    assert await contents(b) == ["Lives in Oslo"] * is_shared
    await tell(a, "I moved to Rome. I like Rome.")
    assert await contents(a) == ["I moved to Rome.", "Likes Rome"]
    assert await contents(b) == ["I moved to Rome."] * is_shared


async def test_the_limit_of_an_agents_facts_takes_none_that_others_share(
    store: MemoryStore, start_model: StartModel
) -> None:
    llm, _ = start_model(learner)
    a = on(store, llm=llm, **BOTH_A)
    a.facts_block.max_facts = 2
    for content in ("Has a cat", "Has a dog"):
        await a.facts.aadd(content, agent_id=None, confidence=0.1)
    await tell(a, "I like tea.")
    assert await contents(a) == ["Has a cat", "Has a dog"]
    await a.facts.aforget((await a.facts.alist())[0].id)
    await tell(a, "I like rain.")
    assert await contents(a) == ["Has a cat", "Likes rain"]


async def test_what_an_agent_has_left_unread_it_reads_itself(
    store: MemoryStore, start_model: StartModel
) -> None:
    """In its next session, and by a backfill; no other agent does."""
    llm, _ = start_model(learner)
    await tell(on(store, "plain", agent_id="a", extract_facts=False), "I like chess.")
    a = on(store, "monday", llm=llm, **ONLY_A, extract_every_turns=9)
    await a.aput_messages([user("I like tea."), assistant("Fine.")])
    await a.facts_block.await_jobs("monday")
    for agent, known in ((BOTH_B, []), (ONLY_A, ["Likes tea"])):
        memory = on(store, "tuesday", llm=llm, **agent)
        await memory.aput(user("Hello."))
        await memory.facts_block.jobs.wait(memory.facts_block.job_key("monday"))
        await memory.abackfill()
        assert await contents(memory) == known
    assert (await a.abackfill(["plain"])).new == 1
    assert await contents(a) == ["Likes chess", "Likes tea"]


IDS = st.text(min_size=1, max_size=9).filter(lambda name: name == name.strip())


@given(users=st.tuples(IDS, IDS), agents=st.tuples(st.text(), st.text()))
def test_no_id_makes_the_cursor_of_another_user_or_agent(
    users: tuple[str, str], agents: tuple[str, str]
) -> None:
    chosen = [
        (user_id, agent or None)
        for user_id, agent in zip(users, map(str.strip, agents), strict=True)
    ]
    # As one would choose it who wants to read what others have said.
    chosen.append((f"{agents[0]!r} of {users[0]}", None))
    readers = {
        RelevantFactsBlock(user_id=name, agent_id=agent).reader_of("chat")
        for name, agent in chosen
    }
    assert len(readers) == len(set(chosen))


async def test_a_fact_can_be_shared_and_taken_back(store: MemoryStore) -> None:
    """Whoever has seen it before follows."""
    a, b = on(store, **BOTH_A), on(store, **BOTH_B)
    fact = await a.facts.aadd("Likes tea")
    known = []
    for agent_id in (None, "a", None):
        await a.facts.aupdate(fact.id, agent_id=agent_id)
        await b.aput(user("What do I like?"))
        known.append(shown(sent_text(await b.aget())))
    assert known == [["Likes tea"], [], ["Likes tea"]]
    await a.facts.aimport(
        Fact(id=fact.id, content="Likes tea", agent_id="a").model_dump_json()
    )
    assert shown(sent_text(await b.aget())) == []
    assert await contents(a) == ["Likes tea"]


async def test_facts_move_between_databases_with_their_agents(
    store: MemoryStore,
) -> None:
    a = on(store, **BOTH_A)
    await a.facts.aadd("Likes tea")
    await a.facts.aadd("Has a cat", agent_id=None)
    await on(store, **BOTH_B).facts.aadd("Likes rain")
    everything = await FactBook(store, "ann", scope="all").aexport()
    other = MemoryStore()
    assert await FactBook(other, "bob", scope="all").aimport(everything) == 3
    assert await contents(on(other, user_id="bob", **BOTH_A)) == [
        "Has a cat",
        "Likes tea",
    ]
    assert await contents(on(other, user_id="bob", **SHARED)) == ["Has a cat"]
    # Where an agent sees no shared facts, they become its own, but those of another agent are refused.
    assert (
        await on(other, user_id="eve", **ONLY_A).facts.aimport(await a.facts.aexport())
        == 2
    )
    assert {
        one.agent_id for one in await FactBook(other, "eve", scope="all").alist()
    } == {"a"}
    for agent in (BOTH_B, SHARED):
        with pytest.raises(FactError, match="got a fact of agent 'a'"):
            await on(other, user_id="eve", **agent).facts.aimport(
                await a.facts.aexport()
            )
    await other.aclose()


async def test_an_import_cannot_replace_another_agents_fact(store: MemoryStore) -> None:
    a, b = on(store, **BOTH_A), on(store, **BOTH_B)
    fact = await a.facts.aadd("Likes tea")
    for agent_id in ("b", None):
        theirs = Fact(id=fact.id, content="Likes nothing", agent_id=agent_id)
        with pytest.raises(
            FactError,
            match=r"1 of 1 facts have the ids .* another agent .* Nothing was stored",
        ):
            await b.facts.aimport(theirs.model_dump_json())
        with pytest.raises(FactError, match="Nothing was stored"):
            await b.facts.aadd(theirs)
    assert await contents(a) == ["Likes tea"]
    assert await contents(b) == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"scope": "agent"},
            'scope "agent" needs to know the agent, and agent_id is None. Name it',
        ),
        (
            {"scope": "both"},
            'scope "both" needs to know the agent, and agent_id is None. Name it',
        ),
        *(
            (
                {"agent_id": blank},
                "agent_id must be a str that is not empty, without spaces around it",
            )
            for blank in ("", " \n", "travel ")
        ),
    ],
)
def test_a_scope_needs_its_agent_and_an_agent_a_name(
    options: Any, complaint: str
) -> None:
    for open_one in (
        RelevantFactsBlock,
        CondensedMemory.from_defaults,
        partial(FactBook, MemoryStore(), "ann"),
    ):
        with pytest.raises((FactError, SettingError), match=complaint):
            open_one(**options)


async def test_a_fact_cannot_be_given_to_an_agent_whose_facts_one_does_not_see(
    store: MemoryStore,
) -> None:
    """Another one's, or all agents' where one sees its own alone."""
    fact = await on(store, **ONLY_A).facts.aadd("Likes tea")
    for agent, agent_id in ((BOTH_A, "b"), (ONLY_A, None), (SHARED, "a")):
        with pytest.raises(
            FactError, match=r"Expected .*; got .*\. Use a memory of that agent"
        ):
            await on(store, **agent).facts.aadd("Likes rain", agent_id=agent_id)
    with pytest.raises(FactError, match="got a fact of agent 'b'"):
        await on(store, **BOTH_A).facts.aupdate(fact.id, agent_id="b")
    assert await rows_in(store) == {"facts": 1, "embeddings": 0}
