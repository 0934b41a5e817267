"""What a memory knows comes as nodes: the user's facts and the session's messages."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import MetadataMode, NodeWithScore
from llama_index.core.tools import RetrieverTool

from llama_index_memory_ext import (
    CondensedMemory,
    MemoryRetriever,
    StoreError,
    TokenCounter,
)
from tests.conversation import assistant, calling, result, user
from tests.memories import OpenMemory
from tests.openai_server import say
from tests.scripted_models import StartModel

COUNTER = TokenCounter()
BIKE = [user("I bought a red bike in Berlin."), assistant("Enjoy the ride!")]


@pytest.fixture
def memory(open_memory: OpenMemory) -> CondensedMemory:
    return open_memory("chat", user_id="ann")


def texts(nodes: list[NodeWithScore]) -> list[str]:
    return [node.node.get_content() for node in nodes]


async def ask(memory: CondensedMemory, question: str, **options: Any) -> list[str]:
    return texts(await MemoryRetriever(memory, **options).aretrieve(question))


# ---- what is found -------------------------------------------------------------------------------------


async def test_facts_and_messages_come_as_nodes_best_first(
    memory: CondensedMemory,
) -> None:
    """With the score of the ranking, and all that is known of them beside the text."""
    fact = await memory.facts.aadd(
        "Lives in Berlin", confidence=0.9, category="context", session_id="monday"
    )
    await memory.facts.aadd("Likes tea")
    await memory.aput_messages([*BIKE, user("Where did I buy it?")])
    nodes = await MemoryRetriever(memory).aretrieve("What happened in Berlin?")
    kinds = [node.node.metadata["kind"] for node in nodes]
    assert kinds == ["message", "fact", "message"]
    scores = [node.score or 0 for node in nodes]
    assert scores == sorted(scores, reverse=True)
    # The age of a fact counts little for a short question.
    assert scores[:2] == pytest.approx([1.0, 0.6 + 0.4 * 0.9], abs=0.001)
    said, known, _ = (node.node for node in nodes)
    assert (known.node_id, known.get_content()) == (fact.id, "Lives in Berlin")
    day = fact.created_at.date().isoformat()
    assert known.metadata == {
        "kind": "fact",
        "fact_id": fact.id,
        "category": "context",
        "confidence": 0.9,
        "created_at": fact.created_at.isoformat(),
        "date": day,
        "session_id": "monday",
    }
    text = said.get_content(MetadataMode.LLM)
    assert text == f"kind: message\nrole: user\ndate: {day}\n\n{BIKE[0].content}"
    source = (said.metadata["session_id"], len(said.metadata["message_ids"]))
    assert source == ("chat", 1)


async def test_nothing_is_found_without_a_word_in_common(
    memory: CondensedMemory,
) -> None:
    assert await ask(memory, "anything") == []
    await memory.facts.aadd("Likes tea", confidence=1.0)
    await memory.aput_messages(BIKE)
    for question in ("zebra", "", "  \n", "?", "\U0001f600", "\ud83d\x00"):
        assert await ask(memory, question) == []
    assert len(await ask(memory, "tea")) == 1
    assert len(await ask(memory, "bike")) > 0


async def test_a_question_does_not_find_itself_but_everything_before_it(
    open_memory: OpenMemory,
) -> None:
    """The newest answer as soon as it is there, whether it has left short-term memory or not."""
    memory = open_memory()
    await memory.aput(user("Where is my umbrella?"))
    assert await ask(memory, "umbrella") == []
    await memory.aput_messages(
        [calling(("c1", "look", {"for": "umbrella"})), result("c1", "an umbrella")]
    )
    assert await ask(memory, "umbrella") == []
    await memory.aput(assistant("Your umbrella is at work."))
    question, answer = "Where is my umbrella?", "Your umbrella is at work."
    looked = '[tool call c1] look({"for": "umbrella"})\nan umbrella'
    assert sorted(await ask(memory, "umbrella")) == sorted([question, looked, answer])
    await memory.aflush()
    assert sorted(await ask(memory, "umbrella")) == sorted([question, looked, answer])
    await memory.aput(user("And my umbrella stand?"))
    assert sorted(await ask(memory, "umbrella")) == sorted([question, looked, answer])


async def test_it_finds_in_any_database_what_another_memory_of_the_session_wrote(
    any_database_uri: str | None,
) -> None:
    memory = CondensedMemory.from_defaults(
        "chat", async_database_uri=any_database_uri, extract_facts=False
    )
    async with memory:
        retriever = MemoryRetriever(memory)
        other = CondensedMemory.from_defaults(
            "chat", chat_store=memory.sql_store, extract_facts=False
        )
        for i in range(3):
            await other.aput_messages([user(f"Trip {i} to Oslo."), assistant("Nice.")])
            assert f"Trip {i} to Oslo." in texts(await retriever.aretrieve("Oslo"))
        both = await asyncio.gather(
            *(MemoryRetriever(other).aretrieve("Oslo") for _ in range(3))
        )
        assert {len(nodes) for nodes in both} == {6}
        elsewhere = CondensedMemory.from_defaults(
            "other", chat_store=memory.sql_store, extract_facts=False
        )
        assert await ask(elsewhere, "Oslo") == []


async def test_memories_on_several_databases_are_searched_together(
    tmp_path: Path, open_memory: OpenMemory
) -> None:
    """The host takes two nodes with one id for one, and each database counts its rows from 1."""
    memories = [
        open_memory(
            session_id, async_database_uri=f"sqlite+aiosqlite:///{tmp_path / name}"
        )
        for session_id, name in (
            ("chat", "one.db"),
            ("chat", "two.db"),
            ("chat-2", "two.db"),
        )
    ]
    said = ["A bike in Berlin.", "A bike in Rome.", "A bike in Oslo."]
    for memory, text in zip(memories, said, strict=True):
        await memory.aput_messages([user(text), assistant("Yes.")])
    retrievers: list[BaseRetriever] = [MemoryRetriever(memory) for memory in memories]
    together = QueryFusionRetriever(
        retrievers, llm=MockLLM(), num_queries=1, similarity_top_k=10
    )
    assert {*said} <= {*texts(await together.aretrieve("bike"))}
    first, second = [
        await retrievers[0].aretrieve(question) for question in ("bike", "Berlin")
    ]
    assert first[0].node.node_id == second[0].node.node_id


# ---- limits --------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    said=st.lists(st.text(max_size=300), max_size=4),
    facts=st.lists(st.text(min_size=1, max_size=300), max_size=3),
    limit=st.integers(1, 200),
)
async def test_all_nodes_together_keep_to_the_limit(
    said: list[str], facts: list[str], limit: int
) -> None:
    """As a model is shown them, whatever was said."""
    async with CondensedMemory.from_defaults(extract_facts=False) as memory:
        for text in facts:
            if text.strip():
                await memory.facts.aadd(f"tea {text}")
        for text in said:
            await memory.aput_messages([user(f"tea {text}"), assistant(text * 10)])
        nodes = await MemoryRetriever(memory, token_limit=limit).aretrieve("tea")
        assert (
            sum(
                COUNTER.count(node.node.get_content(MetadataMode.LLM)) for node in nodes
            )
            <= limit
        )


@pytest.mark.parametrize(
    "options",
    [{"facts": False, "messages": False}, {"similarity_top_k": 0}],
    ids=["nothing", "no nodes"],
)
def test_a_search_for_nothing_is_refused(options: dict[str, Any]) -> None:
    memory = CondensedMemory.from_defaults()
    with pytest.raises(ValueError, match=next(iter(options))):
        MemoryRetriever(memory, **options)


# ---- in LlamaIndex -------------------------------------------------------------------------------------


async def test_a_query_engine_answers_from_the_memory(
    memory: CondensedMemory, start_model: StartModel
) -> None:
    """And so does a retriever tool."""
    llm, server = start_model(lambda messages, tools: say("In Berlin."))
    await memory.facts.aadd("Rides a bike to work")
    await memory.aput_messages([*BIKE, user("Thanks.")])
    engine = RetrieverQueryEngine.from_args(MemoryRetriever(memory), llm=llm)
    response = await engine.aquery("Where did I buy my bike?")
    assert str(response) == "In Berlin."
    assert "Rides a bike to work" in str(server.requests[-1])
    assert "I bought a red bike in Berlin." in str(server.requests[-1])
    kinds = {node.node.metadata["kind"] for node in response.source_nodes[:3]}
    assert kinds == {"fact", "message"}
    tool = RetrieverTool.from_defaults(MemoryRetriever(memory, facts=False))
    assert "I bought a red bike in Berlin." in str(await tool.acall("bike"))


def test_it_works_without_an_event_loop(database_uri: str) -> None:
    memory = CondensedMemory.from_defaults(
        "chat", async_database_uri=database_uri, extract_facts=False
    )
    memory.put_messages(BIKE)
    retriever = MemoryRetriever(memory)
    assert texts(retriever.retrieve("bike")) == [message.content for message in BIKE]
    assert texts(retriever.retrieve("zebra")) == []
    memory.close()


# ---- the database fails ----------------------------------------------------------------------------------


async def test_a_file_that_is_damaged_is_an_error_and_not_nothing(
    memory: CondensedMemory, tmp_path: Path
) -> None:
    """The same question finds nothing where there is nothing."""
    await memory.aput_messages([*BIKE, user("Well.")])
    await memory.sql_store.aclose()
    file = tmp_path / "memory.db"
    file.write_bytes(b"This is no database. " * 1_000)
    for options in ({"facts": False}, {"messages": False}):
        with pytest.raises(
            StoreError, match=r"database failed: DatabaseError\). That does not mean"
        ):
            await ask(memory, "bike", **options)
    await memory.sql_store.aclose()
    file.unlink()
    assert await ask(memory, "bike") == []
