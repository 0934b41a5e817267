"""What is known about a user: learned beside the conversation, shown in every session, lost never."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai import OpenAI

from llama_index_memory_ext import (
    Fact,
    FactError,
    MemoryStore,
    RelevantFactsBlock,
    SettingError,
    TokenCounter,
)
from llama_index_memory_ext.fact import retire
from llama_index_memory_ext.facts.book import FactBook
from llama_index_memory_ext.words import visible
from tests.conversation import assistant, calling, result, sent_text, user
from tests.forked import python_command, run_forked
from tests.learning.learning import (
    Learns,
    contents,
    extractions,
    fact_of,
    learner,
    likes,
    shown,
    talk,
)
from tests.memories import OpenMemory, OpenPlainMemory
from tests.openai_server import Message, call, say, serve
from tests.scripted_models import StartModel

COUNTER = TokenCounter()


async def test_one_block_may_serve_two_users_memories(
    open_plain_memory: OpenPlainMemory, start_model: StartModel
) -> None:
    """In plain memories, with a private store."""
    llm, _ = start_model(learner)
    block = RelevantFactsBlock(llm=llm)
    for session_id, word in (("ann", "Python"), ("bob", "Docker")):
        memory = open_plain_memory(block, session_id=session_id)
        await memory.aput(user(f"I use {word} every day."))
        await memory.aput(assistant("I see, that is good to know."))
        await memory.aput(user("Now what about the tests of it?"))
        await block.await_jobs(session_id)
        assert shown(sent_text(await memory.aget())) == [f"Uses {word}"]
    await block.aclose()


async def test_the_context_is_what_was_said_in_the_last_turns(
    open_memory: OpenMemory,
) -> None:
    """Tool traffic is none of it, and another worker knows it too."""
    for content in (
        "Prefers pytest for testing",
        "Knows Python well",
        "Uses FastAPI daily",
        "Deploys with Docker",
    ):
        await open_memory("chat", user_id="ann").facts.aadd(content, confidence=0.9)
    memory = open_memory("chat", user_id="ann", profile_token_limit=0)
    traffic = calling(("c", "run", {"in": "Docker"})), result("c", "Docker")
    await memory.aput_messages(
        [user("I'm working on a Python project"), assistant("Good.")]
    )
    await memory.aput_messages(
        [user("It uses FastAPI and SQLAlchemy"), *traffic, assistant("Ok.")]
    )
    await memory.aput(user("How do I write tests?"))
    for worker in (memory, open_memory("chat", user_id="ann", profile_token_limit=0)):
        facts = shown(sent_text(await worker.aget()))
        assert facts[0] == "Prefers pytest for testing"
        assert facts[-1] == "Deploys with Docker"


@settings(max_examples=40)
@given(
    facts=st.lists(
        st.tuples(st.text(min_size=1, max_size=40), st.floats(0, 1), st.booleans()),
        max_size=8,
    ),
    limit=st.integers(0, 120),
    question=st.text(max_size=40),
)
async def test_no_facts_exceed_the_limit(
    facts: list[tuple[str, float, bool]], limit: int, question: str
) -> None:
    """Whatever they say, counted with the element around them; and no fact can forge our tags."""
    block = RelevantFactsBlock(token_limit=limit, extract_facts=False)
    for content, confidence, pinned in facts:
        if visible(content).strip():
            await block.book().aadd(content, confidence=confidence, pinned=pinned)
    text = await block.aget([user(question)])
    assert (
        text == ""
        or COUNTER.count(f"<relevant_facts>\n{text}</relevant_facts>\n") <= limit
    )
    assert text.count("</fact>") == len(text.splitlines())
    await block.aclose()


@pytest.mark.parametrize("failure", ["unreadable", "refused", "no key"])
async def test_a_failing_model_costs_nothing(
    open_memory: OpenMemory,
    start_model: StartModel,
    caplog: pytest.LogCaptureFixture,
    failure: str,
) -> None:
    """The answer arrives, one line is logged without a word of the user's, and the batch is extracted later."""
    broken = True

    def model(messages: list[Message], tools: list[str]) -> Message:
        if tools != ["report_facts"] or not broken:
            return learner(messages, tools)
        if failure == "refused":
            raise ConnectionAbortedError
        return say("I would rather not say {")

    llm, _ = start_model(model)
    unreachable = OpenAI(
        model="gpt-4o-mini", api_base="http://127.0.0.1:9", api_key="x", max_retries=0
    )
    memory = open_memory(
        "chat",
        user_id="ann",
        llm=unreachable if failure == "no key" else llm,
        extract_every_turns=1,
    )
    agent = FunctionAgent(llm=llm)
    await agent.run("I like tea.", memory=memory)
    assert str(await agent.run("And now?", memory=memory)) == "Fine."
    await memory.facts_block.await_jobs("chat")
    lines = [
        record.getMessage()
        for record in caplog.records
        if "were not extracted" in record.getMessage()
    ]
    assert len(lines) == 1
    assert "tea" not in caplog.text
    assert await contents(memory) == []
    broken = False
    again = open_memory("chat", user_id="ann", llm=llm)
    await again.aclose()
    assert await contents(open_memory("chat", user_id="ann")) == ["Likes tea"]


@pytest.mark.parametrize("change", ["retired", "confirmed", "pinned"])
async def test_what_others_change_while_a_model_is_asked_is_not_undone(
    learns: Learns, change: str
) -> None:
    """By hand, or by another worker: the reply is about the facts as they were."""
    loop = asyncio.get_running_loop()
    memory = learns(extract_facts=False)[0]
    fact = await memory.facts.aadd("Likes tea", confidence=0.8)
    changes: dict[str, Callable[[], Any]] = {
        "retired": lambda: memory.facts.aretire(fact.id),
        "confirmed": lambda: memory.facts.aupdate(fact.id, confidence=0.95),
        "pinned": lambda: memory.facts.aupdate(fact.id, pinned=True),
    }

    # The reply confirms the fact, or ends it, which only a pin prevents.
    said = "I like tea."
    if change == "pinned":
        said = "I no longer drink tea."

    def model(messages: list[Message], tools: list[str]) -> Message:
        asyncio.run_coroutine_threadsafe(changes[change](), loop).result(30)
        reply = learner(messages, tools)
        if change == "pinned":
            function = reply["tool_calls"][0]["function"]
            arguments = json.loads(function["arguments"])
            arguments["facts"].append({"message": 1, "quote": said, "ends": 1})
            function["arguments"] = json.dumps(arguments)
        return reply

    worker = learns(model)[0]
    await worker.aput_messages([user(f"{said} I use Docker."), assistant("Fine.")])
    await worker.aflush()
    docker, tea = sorted(
        await memory.facts.alist(state="all"),
        key=lambda fact: fact.content,
        reverse=True,
    )
    assert (tea.content, docker.content) == ("Likes tea", "Uses Docker")
    assert (tea.retired, tea.pinned) == (change == "retired", change == "pinned")
    assert tea.confidence == (0.95 if change == "confirmed" else 0.8)


async def test_what_is_written_after_others_does_not_undo_what_they_did(
    any_database_uri: str | None,
) -> None:
    """A fact that was pinned is not retired, and one that two have learned at once is there once."""
    store = MemoryStore(any_database_uri)
    kept, old, theirs, ours = (
        Fact(content=f"Likes {what}") for what in ("rain", "tea", "cake", "cake.")
    )
    await store.facts.write("ann", [kept, old])
    seen = await store.facts.read("ann")
    await store.facts.write("ann", [kept.model_copy(update={"pinned": True}), theirs])
    over = [
        retire(kept, "over", kept.updated_at),
        retire(old, "changed", old.updated_at, ours.id),
    ]
    await store.facts.write("ann", [ours, *over], seen)
    facts = {fact.content: fact for fact in (await store.facts.read("ann")).facts}
    assert sorted(facts) == ["Likes cake", "Likes rain", "Likes tea"]
    assert not facts["Likes rain"].retired
    assert facts["Likes tea"].replaced_by == theirs.id
    await store.aclose()


async def test_neither_a_long_message_nor_a_long_turn_stands_in_the_way(
    learns: Learns,
) -> None:
    """One is clipped for the model that extracts, of the other the tool traffic is passed over."""
    memory, server = learns()
    traffic = [
        message
        for i in range(300)
        for message in (calling((f"c{i}", "run", {})), result(f"c{i}", "done"))
    ]
    await memory.aput_messages([user("Go."), *traffic, assistant("Done.")])
    await memory.aput_messages(
        [user("I like tea. " + "word " * 50_000), assistant("Fine.")]
    )
    await memory.aflush()
    assert await contents(memory) == ["Likes tea"]
    assert max(COUNTER.count(text) for text in extractions(server.requests)) < 9_000
    assert "done" not in "".join(extractions(server.requests))


async def test_there_can_be_a_number_of_facts_at_the_most(learns: Learns) -> None:
    """The least sure are retired, not deleted, but for pinned ones."""
    memory = learns(max_facts=4)[0]
    await memory.facts.aadd("Likes hail", confidence=0.1, pinned=True)
    await memory.facts.aadd("Likes rain", confidence=0.2)
    await memory.aput_messages(talk("tea", "cake", "snow"))
    await memory.aflush()
    assert await contents(memory) == [
        "Likes cake",
        "Likes hail",
        "Likes snow",
        "Likes tea",
    ]
    facts = await memory.facts.alist(state="all")
    assert [fact.retired_reason for fact in facts if fact.retired] == ["over max_facts"]


PROGRAM = """
import asyncio, sys
from tests.conversation import assistant, user
from llama_index.llms.openai import OpenAI
from llama_index_memory_ext import CondensedMemory

async def main(api_base, uri, name, end):
    llm = OpenAI(model="gpt-4o-mini", api_base=api_base, api_key="x", max_retries=0)
    memory = CondensedMemory.from_defaults(
        "chat", user_id="ann", llm=llm, async_database_uri=uri or None, extract_every_turns=1
    )
    for i in range(5):
        await memory.aput_messages([user(f"I like tea. I use tool{name}{i}."), assistant("Fine.")])
        if end not in ("just ends", "forgets the session", "deletes"):
            await memory.facts_block.await_jobs("chat")
    await memory.aput(user("And now?"))
    if end == "closes":
        await memory.aclose()
    if end == "closes its store":
        await memory.sql_store.aclose()
    if end == "forgets":
        await memory.aforget()
    if end == "forgets the session":
        await memory.sql_store.forget("chat")
    if end == "deletes":
        await memory.sql_store.delete_messages("chat")

asyncio.run(main(*sys.argv[1:]))
"""


async def test_nothing_is_extracted_twice_by_three_processes(
    database_uri: str, open_memory: OpenMemory
) -> None:
    """Of one user, on one session."""
    with serve(learner) as server:
        command = [*python_command(), "-c", PROGRAM, server.api_base, database_uri]
        workers = [
            subprocess.Popen([*command, str(i), "closes"], stderr=subprocess.PIPE)
            for i in range(3)
        ]
        errors = [
            (await asyncio.to_thread(worker.communicate, timeout=120))[1]
            for worker in workers
        ]
    assert [worker.returncode for worker in workers] == [0] * 3, errors
    facts = await contents(open_memory("chat", user_id="ann"))
    assert facts == sorted(
        ["Likes tea", *(f"Uses tool{name}{i}" for name in range(3) for i in range(5))]
    )


@pytest.mark.parametrize(
    "end",
    [
        "waits",
        "closes its store",
        "forgets",
        "forgets the session",
        "deletes",
        "in memory",
        "just ends",
    ],
)
def test_a_program_that_just_ends_is_told_what_to_call(
    database_uri: str, end: str
) -> None:
    """In one line; one that ends well is told nothing, nor one whose database ends with it."""
    uri = "" if end == "in memory" else database_uri
    with serve(learner) as server:
        done = run_forked(PROGRAM, server.api_base, uri, "x", end)
    assert (done.returncode, done.stderr.count("\n")) == (0, int(end == "just ends")), (
        done.stderr
    )
    if end == "just ends":
        assert "last turns of session 'chat'" in done.stderr
        assert "`await memory.aclose()`" in done.stderr


async def test_a_program_has_its_own_categories_and_says_what_to_look_for(
    learns: Learns,
) -> None:
    fact = fact_of("Likes tea", "I like tea", "Diet")
    own: dict[str, Any] = {
        "categories": {"diet": "what they eat"},
        "extraction_prompt": "What the user eats.",
    }
    memory, server = learns(
        lambda messages, tools: call(("c", "report_facts", {"new_facts": [fact]})),
        **own,
    )
    await memory.aput_messages(talk("tea"))
    await memory.aflush()
    assert [fact.category for fact in await memory.facts.alist()] == ["diet"]
    assert "What the user eats." in server.requests[0][0]["content"]
    assert "diet (what they eat)" in server.requests[0][0]["content"]


async def test_extraction_starts_with_the_answer_and_reads_each_turn_once(
    learns: Learns,
) -> None:
    """Not with the question, nor with a call of a tool; an answer that is given anew is not read again."""
    memory, server = learns(session_id="monday", extract_every_turns=1)
    for message in (
        user("I like tea."),
        calling(("c", "run", {}), text="Let me see."),
        result("c", "done"),
    ):
        await memory.aput(message)
        await memory.facts_block.await_jobs("monday")
        assert server.requests == []
    await memory.aput(assistant("Fine."))
    await memory.facts_block.await_jobs("monday")
    assert await contents(memory) == ["Likes tea"]
    assert len(server.requests) == 1
    for message in (assistant("Very fine."), user("I like rain.")):
        await memory.aput(message)
        await memory.facts_block.await_jobs("monday")
    assert len(server.requests) == 1
    await memory.aput(assistant("Good."))
    await memory.facts_block.await_jobs("monday")
    assert likes(server.requests) == [["tea"], ["rain"]]
    assert (await memory.astats()).pending == 0


@pytest.mark.parametrize("end", ["\n", "\r\n"])
async def test_an_export_with_separators_of_lines_in_a_text_is_imported(
    open_memory: OpenMemory, end: str
) -> None:
    book = open_memory("chat", user_id="ann").facts
    metadata = {"from": "a\u2028b\x85c\u2029d"}
    await book.aadd(Fact(content="Likes tea", metadata=metadata))
    exported = await book.aexport()
    other = open_memory("other", user_id="bob").facts
    assert await other.aimport(exported.replace("\n", end)) == 1
    assert (await other.alist())[0].metadata == metadata


async def test_what_cannot_be_changed_or_imported_is_refused(
    open_memory: OpenMemory,
) -> None:
    """Nothing is stored then."""
    book = open_memory("chat", user_id="ann").facts
    with pytest.raises(FactError, match="'ann' has no fact 'x'"):
        await book.aretire("x")
    exported = await open_memory("other").facts.aexport()
    with pytest.raises(FactError, match="Line 2 is not a fact"):
        await book.aimport(exported + '{"content": 1}\n')
    with pytest.raises(FactError, match="Line 1 is not a fact"):
        await book.aimport("[" * 200_000)
    with pytest.raises(FactError, match="schema version 1; got schema version 99"):
        await book.aimport(exported.replace('"version": 1', '"version": 99'))
    assert await book.alist() == []


async def test_where_no_fact_concerns_the_question_few_are_shown(
    open_memory: OpenMemory,
) -> None:
    """With ``min_similarity`` only pinned ones; and the same among many others."""
    memory = open_memory("chat", user_id="ann")
    block = memory.facts_block
    for content in ("Deploys to Kubernetes", "Has a dog", "Sleeps late"):
        await memory.facts.aadd(content, category="knowledge")
    for i, content in enumerate(
        ("Prefers short answers", "Likes British spelling", "Likes tea")
    ):
        await memory.facts.aadd(content, category="preference", confidence=0.9 - i / 10)
    await memory.facts.aadd("Is called Ann", pinned=True)
    await memory.facts.aadd("No longer lives in Bonn", category="correction")
    question = [user("How do I deploy on Kubernetes?")]
    assert len(shown(await block.aget(question, session_id="chat"))) == 8
    block.min_similarity = 0.5
    expected = ["Is called Ann", "Deploys to Kubernetes"]
    assert shown(await block.aget(question, session_id="chat")) == expected
    explained = await block.aexplain(
        "How do I deploy on Kubernetes?", session_id="chat"
    )
    assert sorted(
        one.fact.content for one in explained.facts if one.injected
    ) == sorted(expected)
    assert {one.why for one in explained.facts if not one.injected} == {
        "left out: too little in common"
    }
    best = await block.aexplain(
        "How do I deploy on Kubernetes?", session_id="chat", most=1
    )
    assert [one.fact.content for one in best.facts if one.injected] == [
        one.fact.content for one in explained.facts if one.injected
    ]
    assert len(best.facts) + best.omitted == len(explained.facts)
    assert best.omitted > 0
    assert shown(await block.aget([user("How are you?")], session_id="chat")) == [
        "Is called Ann"
    ]
    await memory.sql_store.facts.write(
        "ann", [Fact(content=f"Met number {i} on the way") for i in range(500)]
    )
    assert shown(await block.aget(question, session_id="chat")) == [
        "Is called Ann",
        "Deploys to Kubernetes",
    ]
    with pytest.raises(SettingError, match="min_similarity"):
        RelevantFactsBlock(min_similarity=1.5)


async def test_by_default_few_facts_are_shown_that_do_not_concern_the_question(
    open_memory: OpenMemory,
) -> None:
    """Without a question, or where a ranker fails, facts fill their limit."""
    memory = open_memory("chat", user_id="ann")
    facts = [
        Fact(content=f"Met number {i} on the way", confidence=0.7) for i in range(50)
    ]
    facts += [
        Fact(content="Deploys to Kubernetes"),
        Fact(content="Is called Ann", pinned=True),
    ]
    await memory.sql_store.facts.write("ann", facts)
    block = memory.facts_block
    found = shown(
        await block.aget([user("How do I deploy on Kubernetes?")], session_id="chat")
    )
    assert found[:2] == ["Is called Ann", "Deploys to Kubernetes"]
    assert len(found) == 14
    assert len(shown(await block.aget([user("How are you?")], session_id="chat"))) == 13
    assert len(shown(await block.aget([], session_id="chat"))) == 52
    block.min_similarity = 0
    assert len(shown(await block.aget([user("How are you?")], session_id="chat"))) == 52


async def test_a_fact_is_changed_as_it_is_at_that_moment(
    any_database_uri: str | None,
) -> None:
    """Two who change it at once do not undo each other, and one that was deleted does not come back."""
    store = MemoryStore(any_database_uri)
    book = FactBook(store, "ann")
    fact = await book.aadd("Likes tea", confidence=0.5)
    await asyncio.gather(
        book.aupdate(fact.id, pinned=True),
        book.aretire(fact.id, "said so"),
        book.aupdate(fact.id, confidence=0.9),
    )
    (now,) = await book.alist(state="all")
    assert (now.pinned, now.retired_reason, now.confidence) == (True, "said so", 0.9)
    await store.forget_user("ann")
    for change in (
        book.aupdate(fact.id, pinned=False),
        book.aretire(fact.id),
        book.arestore(fact.id),
    ):
        with pytest.raises(FactError, match=r"\(0 facts\)"):
            await change
    assert await book.alist(state="all") == []
    await store.aclose()


async def test_facts_keep_their_limit_by_a_tokenizer_whose_texts_have_more_tokens_than_their_lines(
    open_memory: OpenMemory,
) -> None:
    def tokenize(text: str) -> list[str]:
        lines = text.count("</fact>")
        return text.split() + ["between lines"] * (lines * (lines - 1) // 2)

    memory = open_memory("chat", tokenizer_fn=tokenize, facts_token_limit=200)
    for number in range(20):
        await memory.facts.aadd(f"Likes tea number {number}")
    text = await memory.facts_block.aget(
        [user("Which tea do I like?")], session_id="chat"
    )
    assert "<fact" in text
    assert len(tokenize(text)) <= 200
