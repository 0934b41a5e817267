"""What a memory holds, in numbers and for one call of a search, for programs and for people."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from llama_index_memory_ext import CondensedMemory
from llama_index_memory_ext.blocks import LogBlock
from llama_index_memory_ext.memory.stats import MemoryStats
from tests.conversation import assistant, record, user
from tests.learning.learning import fact_of
from tests.memories import OpenMemory
from tests.openai_server import Message, call, fail, say
from tests.scripted_models import StartModel


def model(messages: list[Message], tools: list[str]) -> Message:
    """Sums up in a few words, and finds one fact that was said and one that was not."""
    if tools == ["report_facts"]:
        said = re.findall(r"I like \w+", messages[-1]["content"])[:1]
        new = [
            {"content": one.replace("I like", "Likes"), "confidence": 0.9, "quote": one}
            for one in said
        ]
        guess = fact_of("Lives in Paris", "I live in Paris")
        return call(("call_1", "report_facts", {"new_facts": [*new, guess]}))
    return say(
        "The user said what they like."
        if "running summary" in str(messages[0]["content"])
        else "Fine."
    )


def talk(turns: int) -> list[Any]:
    return [
        message
        for i in range(turns)
        for message in (user(f"I like number{i}."), assistant(f"Fine {i}."))
    ]


async def test_before_anything_is_said_all_is_zero_and_nothing_is_made(
    any_database_uri: str | None,
) -> None:
    memory = CondensedMemory.from_defaults(
        "chat", user_id="ann", async_database_uri=any_database_uri
    )
    stats = await memory.astats()
    assert (stats.session_id, stats.user_id) == ("chat", "ann")
    assert not any(
        stats.model_dump(exclude={"session_id", "user_id", "database"}).values()
    )
    assert not await memory.sql_store.readers.has_session("chat")
    assert await memory.sql_store.get_keys() == []
    await memory.sql_store.aclose()


async def test_the_numbers_are_those_of_the_conversation(
    any_database_uri: str | None, start_model: StartModel
) -> None:
    """In every database, and in another process as in this one, but for what has failed there."""
    llm, _ = start_model(model)
    options: dict[str, Any] = {
        "user_id": "ann",
        "llm": llm,
        "async_database_uri": any_database_uri,
    }
    options |= {"recall_token_limit": 0, "extract_every_turns": 1}
    options |= {"max_messages": 6, "keep_messages": 2, "summarize": True}
    memory = CondensedMemory.from_defaults("chat", **options)
    await memory.aput_messages([*talk(5), user("And now?")])
    await memory.facts.aadd("Likes tea")
    await memory.facts.aretire((await memory.facts.aadd("Likes milk")).id)
    await memory.condensed_block.await_jobs("chat")
    await memory.facts_block.await_jobs("chat")
    stats = await memory.astats()
    assert (stats.messages, stats.active, stats.pending) == (11, 1, 1)
    assert (stats.left, stats.summarised, stats.verbatim) == (8, 8, 2)
    assert stats.facts == 2
    assert stats.retired == 1
    assert stats.rejections == {"quote_not_found": 1}
    text = await memory.condensed_block.aget(session_id="chat")
    assert len(record(text)) == stats.verbatim
    assert stats.record_tokens == memory.tokenizer_fn.count(text)
    summary = (
        "<conversation_summary>The user said what they like.</conversation_summary>\n"
    )
    assert text.startswith(summary)
    assert stats.summary_tokens == memory.tokenizer_fn.count(summary)
    store = None if any_database_uri else memory.sql_store
    other = CondensedMemory.from_defaults("chat", chat_store=store, **options)
    assert await other.astats() == stats.model_copy(
        update={"rejections": {}, "usage": {}}
    )
    await other.sql_store.aclose()
    await memory.sql_store.aclose()


async def test_what_was_cut_is_not_counted_as_summarised(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    """A summary that is made from now on says nothing of what has left before; one that is made no more stays."""
    llm, _ = start_model(model)
    options: dict[str, Any] = {
        "llm": llm,
        "extract_facts": False,
        "max_messages": 2,
        "keep_messages": 1,
    }
    seen = []
    for summarize in (False, True, False):
        memory = open_memory(summarize=summarize, **options)
        await memory.aput_messages([*talk(2), user("And?")])
        await memory.condensed_block.await_jobs("chat")
        await memory.aget()
        await memory.condensed_block.aflush("chat")
        stats = await memory.astats()
        assert stats.pending is None
        seen.append((stats.left, stats.summarised))
    # The questions at the end go into the log with what comes next.
    assert seen == [(3, 0), (8, 5), (13, 5)]


async def test_what_fails_is_seen_until_it_succeeds(
    open_memory: OpenMemory, start_model: StartModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogBlock, "retry_seconds", 300.0)
    answers = [fail(500, "I like secrets")] * 2
    llm, _ = start_model(
        lambda messages, tools: answers.pop() if answers else model(messages, tools)
    )
    memory = open_memory(
        llm=llm,
        max_messages=2,
        keep_messages=1,
        summarize=True,
        extract_every_turns=1,
    )
    start = datetime.now(timezone.utc)
    await memory.aput_messages([*talk(2), user("And?")])
    for block in (memory.facts_block, memory.condensed_block):
        await block.await_jobs("chat")
    stats = await memory.astats()
    assert list(stats.failures) == ["facts", "summary"]
    for failure in stats.failures.values():
        assert (failure.failures, failure.error) == (1, "InternalServerError")
        assert start <= failure.at <= datetime.now(timezone.utc)
        assert failure.retry_at == failure.at + timedelta(seconds=300)
    assert (stats.pending, stats.left) == (5, 0)
    assert str(stats).splitlines()[:2] == ["session_id     chat", "user_id        chat"]
    assert "'error': 'InternalServerError'" in str(stats)
    assert "secrets" not in str(stats) + repr(stats)
    assert MemoryStats.model_validate_json(stats.model_dump_json()) == stats
    dumped = json.loads(json.dumps(stats.model_dump(mode="json")))
    assert dumped["failures"]["facts"]["error"] == "InternalServerError"
    with pytest.raises(ValidationError):
        stats.messages = 5
    await memory.aflush()
    stats = await memory.astats()
    assert (stats.failures, stats.pending, stats.active) == ({}, 0, 0)
    assert stats.left == stats.summarised > 0


# ---- a search -----------------------------------------------------------------------------------------


async def test_facts_and_messages_are_found_best_first_and_print_readably(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory("chat", user_id="ann")
    fact = await memory.facts.aadd("Lives in Berlin", confidence=0.9)
    await memory.facts.aadd("Likes tea")
    await memory.aput_messages(
        [
            user("I bought a red bike in Berlin."),
            assistant("Enjoy the ride!"),
            user("Where?"),
        ]
    )
    found = await memory.asearch("What happened in Berlin?")
    assert [entry.fact.id for entry in found.facts] == [fact.id]
    assert found.messages[0].role == "user"
    assert found.messages[0].text == "I bought a red bike in Berlin."
    day = fact.created_at.date().isoformat()
    lines = str(found).splitlines()
    assert lines[0] == f"{found.facts[0].score:.2f}  fact, {day}: Lives in Berlin"
    assert lines[1] == f"1.00  user, {day}: I bought a red bike in Berlin."
    assert repr(found) == f"MemorySearchResult(1 facts, {len(found.messages)} messages)"


async def test_each_kind_can_be_left_out_and_cut(open_memory: OpenMemory) -> None:
    """What is empty finds nothing, and a search for nothing at all is refused."""
    memory = open_memory()
    for i in range(3):
        for question in ("", " \n", "zebra"):
            found = await memory.asearch(question)
            assert found.facts == ()
            assert found.messages == ()
            assert str(found) == "Nothing found."
        await memory.facts.aadd(f"Has lived in Berlin {i} times")
        await memory.aput_messages([user(f"Berlin number {i}?"), assistant("Yes.")])
    both = await memory.asearch("Berlin", similarity_top_k=2)
    assert (len(both.facts), len(both.messages)) == (2, 2)
    assert (await memory.asearch("Berlin", messages=False)).messages == ()
    assert (await memory.asearch("Berlin", facts=False)).facts == ()
    assert await memory.facts.asearch("Berlin", similarity_top_k=2) == list(both.facts)
    for search in (memory.asearch, memory.facts.asearch):
        with pytest.raises(
            ValueError,
            match="similarity_top_k must be a whole number of at least 1; got 0",
        ):
            await search("Berlin", similarity_top_k=0)
    with pytest.raises(
        ValueError, match="facts=False and messages=False leave nothing to look for"
    ):
        await memory.asearch("Berlin", facts=False, messages=False)
