"""Facts are learned when they are needed: not after each turn, and before anything is missing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from llama_index.core.memory import InsertMethod, Memory

from llama_index_memory_ext import (
    CondensedMemory,
    CondensedMemoryBlock,
    MemoryStore,
    MemoryToolSpec,
    RelevantFactsBlock,
)
from llama_index_memory_ext.blocks import learning as learning_module
from llama_index_memory_ext.events import ExtractionFailedEvent, FactsExtractedEvent
from llama_index_memory_ext.text.tokens import TokenCounter
from tests.conversation import assistant, calling, result, sent_text, user
from tests.learning.learning import (
    Learns,
    contents,
    learner,
    likes,
    poisoned,
    shown,
    slow,
    talk,
)
from tests.memories import OpenMemory
from tests.memory.test_events import Listener, attached
from tests.openai_server import Message, say, serve
from tests.scripted_models import StartModel, client_without_connections

COUNT = TokenCounter().count
ELSEWHERE = 'The user, in another chat: "{}"'


@pytest.fixture
def over() -> Iterator[threading.Event]:
    """An event that a slow model waits for; it is set when the test is over."""
    event = threading.Event()
    yield event
    event.set()


async def answer_of(memory: CondensedMemory, question: str) -> list[str]:
    """Put a question, and return the facts of the prompt."""
    await memory.aput(user(question))
    return shown(sent_text(await memory.aget()))


# ---- when a session has many unread turns --------------------------------------------------------------


async def test_ten_unread_turns_are_read_together(learns: Learns) -> None:
    memory, server = learns()
    words = [f"w{i}" for i in range(19)]
    for word in words:
        await memory.aput_messages(talk(word))
        await memory.facts_block.await_jobs("chat")
    assert likes(server.requests) == [words[:10]]
    await memory.aflush()
    assert likes(server.requests) == [words[:10], words[10:]]


async def test_long_unread_messages_are_read_earlier(learns: Learns) -> None:
    """At 1,500 tokens of what user and assistant say; results of tools do not count."""
    memory, server = learns()
    for tokens in (900, 500, 200):
        assert server.requests == []
        long = user("I like tea. " + "word " * (tokens - 10))
        await memory.aput_messages([long, assistant("Fine.")])
        await memory.facts_block.await_jobs("chat")
    assert likes(server.requests) == [["tea"] * 3]


async def test_a_turn_of_very_many_calls_is_read_before_others_are_counted(
    learns: Learns,
) -> None:
    memory, server = learns()
    calls = [calling(("c", "look", {})), result("c", "Nothing.")] * 100
    await memory.aput_messages([user("I like tea."), *calls, assistant("Fine.")])
    await memory.facts_block.await_jobs("chat")
    assert likes(server.requests) == [["tea"]]


@pytest.mark.parametrize("setting", [1, 3])
async def test_a_number_of_turns_is_the_only_reason_where_it_is_set(
    setting: int, learns: Learns
) -> None:
    memory, server = learns(extract_every_turns=setting)
    other = learns(session_id="other", extract_every_turns=setting)[0]
    await other.aget()
    for word in ("tea", "rain"):
        await memory.aput_messages(talk(word))
        await memory.facts_block.await_jobs("chat")
    await memory.facts.alist()
    await answer_of(other, "What do I like?")
    await other.facts_block.await_jobs("chat")
    assert likes(server.requests) == ([["tea"], ["rain"]] if setting == 1 else [])


# ---- when messages leave the record --------------------------------------------------------------------


async def test_a_message_that_leaves_the_record_unread_is_read_and_no_turn_waits(
    learns: Learns, over: threading.Event
) -> None:
    memory, server = learns(slow(over), max_messages=4, keep_messages=2)
    for word in ("tea", "rain"):
        assert await answer_of(memory, f"I like {word}.") == []
        await memory.aput(assistant("Fine."))
    assert server.requests == []
    # Three turns are too long.
    for word in ("snow", "milk"):
        assert await answer_of(memory, f"I like {word}.") == []
        await memory.aput(assistant("Fine."))
    over.set()
    await memory.facts_block.await_jobs("chat")
    assert likes(server.requests)[0][0] == "tea"
    assert "Likes tea" in await answer_of(memory, "What do I like?")


@pytest.mark.parametrize("with_record", [True, False])
async def test_blocks_in_a_plain_memory_read_what_no_record_shows(
    with_record: bool, start_model: StartModel
) -> None:
    """Without a block of the record, nothing else shows what has left short-term memory."""
    llm, server = start_model(learner)
    store = MemoryStore()
    facts = RelevantFactsBlock(store=store, user_id="ann", llm=llm)
    blocks: list[Any] = [CondensedMemoryBlock(store=store)] * with_record
    memory = Memory.from_defaults(
        "chat",
        chat_store=store,
        memory_blocks=[*blocks, facts],
        chat_history_token_ratio=0.0001,
        insert_method=InsertMethod.USER,
    )
    for word in ("tea", "rain"):
        await memory.aput_messages(talk(word))
        await memory.aget()
        await facts.await_jobs("chat")
    assert likes(server.requests) == ([] if with_record else [["tea", "rain"]])
    await facts.aflush()
    assert sorted(fact.content for fact in await facts.book("chat").alist()) == [
        "Likes rain",
        "Likes tea",
    ]
    await store.aclose()


# ---- when another session asks -------------------------------------------------------------------------


async def test_a_question_put_with_an_earlier_answer_is_read_with_its_own_answer(
    start_model: StartModel,
) -> None:
    llm, server = start_model(learner)
    store = MemoryStore()
    options: dict[str, Any] = {"user_id": "ann", "llm": llm, "chat_store": store}
    monday = CondensedMemory.from_defaults("monday", **options)
    friday = CondensedMemory.from_defaults("friday", **options, wait_for_facts=60)
    await monday.aput(user("I like tea."))
    await monday.aget()
    await monday.aput_messages([assistant("Fine."), user("I like rain.")])
    facts = await answer_of(friday, "What do I like?")
    assert facts == ["Likes tea", ELSEWHERE.format("I like rain.")]
    assert likes(server.requests) == [["tea"]]
    await monday.aput(assistant("Fine."))
    await monday.aflush()
    assert [batch for batch in likes(server.requests) if batch] == [["tea"], ["rain"]]
    await store.aclose()


async def test_a_chat_engine_asks_before_it_puts_its_question(learns: Learns) -> None:
    monday = learns(session_id="monday")[0]
    friday = learns(session_id="friday", wait_for_facts=60)[0]
    for word in ("tea", "rain"):
        await monday.aput_messages(talk(word))
        question = user(f"Do I like {word}?")
        assert f"Likes {word}" in sent_text(await friday.aget(input=question))
        await friday.aput_messages([question, assistant("Yes.")])


# ---- when facts are read -------------------------------------------------------------------------------


READS: dict[str, Callable[[CondensedMemory], Awaitable[Any]]] = {
    "list": lambda memory: memory.facts.alist(),
    "search": lambda memory: memory.facts.asearch("tea"),
    "explain": lambda memory: memory.facts_block.aexplain("tea"),
    "search all": lambda memory: memory.asearch("tea", messages=False),
    "tool": lambda memory: MemoryToolSpec(memory).asearch_memory("tea"),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
async def test_facts_are_learned_before_they_are_read(
    read: Callable[[CondensedMemory], Awaitable[Any]], learns: Learns
) -> None:
    """From the session, and from others; not from a turn that goes on."""
    memory, server = learns(wait_for_facts=60)
    other = learns(session_id="other", chat_store=memory.sql_store)[0]
    await memory.aput_messages(talk("rain"))
    await memory.aput(user("I like snow."))
    await other.aput(user("Hello."))
    await other.facts_block.await_jobs("chat")
    await other.aput_messages([assistant("Hello."), *talk("tea")])
    assert "Likes tea" in str(await read(memory))
    assert await contents(memory) == ["Likes rain", "Likes tea"]
    assert likes(server.requests) == [["tea"]]
    await memory.aput(assistant("Fine."))
    assert await contents(memory) == ["Likes rain", "Likes snow", "Likes tea"]


async def test_a_reader_of_facts_waits_for_a_bounded_time(
    learns: Learns, over: threading.Event
) -> None:
    memory = learns(slow(over), wait_for_facts=0.01)[0]
    await memory.aput_messages(talk("tea"))
    assert await asyncio.wait_for(memory.facts.alist(), 30) == []
    over.set()


# ---- after a quiet time --------------------------------------------------------------------------------


async def test_a_quiet_session_is_read(
    learns: Learns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one timer, which the next answer sets anew; a session that is closed has none."""
    monkeypatch.setattr(learning_module, "QUIET_SECONDS", 3600)
    asked, loop = asyncio.Event(), asyncio.get_running_loop()

    def model(messages: list[Message], tools: list[str]) -> Message:
        loop.call_soon_threadsafe(asked.set)
        return learner(messages, tools)

    memory, server = learns(model)
    await memory.aput_messages(talk("tea"))
    monkeypatch.setattr(learning_module, "QUIET_SECONDS", 0.01)
    await memory.aput_messages(talk("rain"))
    await asyncio.wait_for(asked.wait(), 30)
    await memory.facts_block.await_jobs("chat")
    assert likes(server.requests) == [["tea", "rain"]]
    assert memory.facts_block.jobs.waiting == []
    monkeypatch.setattr(learning_module, "QUIET_SECONDS", 3600)
    await memory.aput_messages(talk("snow"))
    assert len(memory.facts_block.jobs.waiting) == 1
    await memory.aclose()
    assert memory.facts_block.jobs.waiting == []


@pytest.mark.parametrize("end", ["close", "close the store", "forget"])
async def test_no_timer_outlives_what_it_would_read(end: str, learns: Learns) -> None:
    memory = learns()[0]
    await memory.aput_messages(talk("tea"))
    jobs = memory.facts_block.jobs
    assert len(jobs.waiting) == 1
    ends: dict[str, Callable[[], Awaitable[Any]]] = {
        "close": memory.aclose,
        "close the store": memory.sql_store.aclose,
        "forget": memory.aforget,
    }
    await ends[end]()
    assert jobs.waiting == []


def test_a_timer_keeps_no_program_running_and_survives_its_event_loop(
    database_uri: str,
) -> None:
    """Each turn has an event loop of its own."""
    with serve(learner) as server:
        memory = CondensedMemory.from_defaults(
            "chat",
            user_id="ann",
            llm=client_without_connections(server),
            async_database_uri=database_uri,
        )
        for word in ("tea", "rain"):
            asyncio.run(memory.aput_messages(talk(word)))
            assert len(memory.facts_block.jobs.waiting) == 1
        memory.close()
        assert likes(server.requests) == [["tea", "rain"]]


# ---- if the model is slower ----------------------------------------------------------------------------


async def test_unread_words_of_another_session_stand_in_until_they_are_read(
    any_database_uri: str | None, start_model: StartModel, over: threading.Event
) -> None:
    llm, _ = start_model(slow(over))
    store = MemoryStore(any_database_uri)
    options: dict[str, Any] = {"user_id": "ann", "llm": llm, "chat_store": store}
    monday = CondensedMemory.from_defaults("monday", **options)
    friday = CondensedMemory.from_defaults("friday", **options, wait_for_facts=0.01)
    await monday.aput_messages(talk("tea", "rain"))
    words = [ELSEWHERE.format(f"I like {word}.") for word in ("tea", "rain")]
    assert await answer_of(friday, "What do I like?") == words
    over.set()
    await friday.facts_block.await_jobs("monday")
    assert sorted(shown(sent_text(await friday.aget()))) == ["Likes rain", "Likes tea"]
    await store.aclose()


async def test_unread_words_that_match_the_question_come_first_and_keep_to_a_limit(
    learns: Learns, over: threading.Event
) -> None:
    monday = learns(slow(over), "monday")[0]
    friday = learns(slow(over), "friday", wait_for_facts=0)[0]
    long = [f"Story {i}: " + f"lorem{i} ipsum " * 40 for i in range(8)]
    texts = ["My sister Mia paints.", *long, "A </fact></memory> is no tag."]
    for text in texts:
        await monday.aput_messages([user(text), assistant("Fine.")])
    facts = await answer_of(friday, "What does my sister do?")
    assert facts[0] == ELSEWHERE.format("My sister Mia paints.")
    assert facts[-1] == ELSEWHERE.format("A &lt;/fact>&lt;/memory> is no tag.")
    assert 200 < sum(map(COUNT, facts)) <= 500
    friday.facts_block.token_limit = 100
    prompt = sent_text(await friday.aget())
    assert sum(map(COUNT, shown(prompt))) <= 50
    friday.facts_block.token_limit = 0
    assert shown(sent_text(await friday.aget())) == []


async def test_unread_words_and_facts_are_within_one_limit(
    learns: Learns, over: threading.Event
) -> None:
    monday = learns(slow(over), "monday")[0]
    friday = learns(slow(over), "friday", wait_for_facts=0)[0]
    await monday.aput_messages(talk("tea", "rain"))
    for i in range(40):
        await friday.facts.aadd(f"Likes the drink with the number {i}")
    friday.facts_block.token_limit = 300
    await friday.aput(user("What do I like?"))
    _, tag, rest = sent_text(await friday.aget()).partition("<relevant_facts>\n")
    facts = rest.partition("</relevant_facts>")[0]
    assert ELSEWHERE.format("I like tea.") in facts
    assert "Likes the drink" in facts
    assert 200 < COUNT(f"{tag}{facts}</relevant_facts>\n") <= 300


async def test_only_the_users_own_words_of_own_sessions_stand_in(
    open_memory: OpenMemory, learns: Learns, over: threading.Event
) -> None:
    """Not the assistant's, nor those of another user, of a shared session, or to another agent."""
    others: list[dict[str, Any]] = [
        {"session_id": "bob", "user_id": "bob"},
        {"session_id": "agent", "agent_id": "a"},
        {"session_id": "team", "shared": True},
    ]
    for options in others:
        memory = learns(slow(over), **options)[0]
        await memory.aput_messages([user(f"I like {options}"), assistant("tea")])
    bob = open_memory("team", user_id="bob", shared=True)
    await bob.aput(user("I like wine."))
    mine = learns(slow(over), "mine")[0]
    await mine.aput_messages([user("I like rain."), assistant("I like snow.")])
    friday = learns(slow(over), "friday", wait_for_facts=0)[0]
    words = [ELSEWHERE.format("I like rain.")]
    assert await answer_of(friday, "What do I like?") == words
    without = open_memory("saturday", user_id="ann")
    assert await answer_of(without, "What do I like?") == []


@pytest.mark.parametrize("end", ["forget", "delete"])
async def test_deleted_words_stand_in_no_more(
    end: str, learns: Learns, over: threading.Event
) -> None:
    monday = learns(slow(over), "monday")[0]
    friday = learns(slow(over), "friday", wait_for_facts=0)[0]
    await monday.aput_messages(talk("tea"))
    assert len(await answer_of(friday, "What do I like?")) == 1
    if end == "forget":
        await monday.aforget()
    else:
        await monday.areset()
    assert shown(sent_text(await friday.aget())) == []


async def test_a_plain_memory_shows_unread_words_too(
    start_model: StartModel, over: threading.Event
) -> None:
    asked, loop = asyncio.Event(), asyncio.get_running_loop()

    def model(messages: list[Message], tools: list[str]) -> Message:
        loop.call_soon_threadsafe(asked.set)
        return slow(over)(messages, tools)

    llm, _ = start_model(model)
    block = RelevantFactsBlock(user_id="ann", llm=llm, wait_for_facts=0)
    await block.aput(talk("tea"), session_id="monday")
    await asyncio.wait_for(asked.wait(), 30)
    text = await block.aget([user("What do I like?")], session_id="friday")
    assert shown(text) == [ELSEWHERE.format("I like tea.")]
    over.set()
    await block.aclose()


# ---- what it costs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("tea", "wine", "rain"), ("wine", "tea")])
async def test_events_count_all_tokens_of_failed_answers(
    words: tuple[str, ...], learns: Learns
) -> None:
    """The server reports a token sent and a token received for each answer."""
    listener = Listener()
    with attached(listener):
        memory, server = learns(poisoned(say("I would rather not say {"), "wine"))
        await memory.aput_messages(talk(*words))
        for _ in range(4):
            await memory.aflush()
    events: list[ExtractionFailedEvent | FactsExtractedEvent] = [
        *listener.of(ExtractionFailedEvent),
        *listener.of(FactsExtractedEvent),
    ]
    assert sum(event.prompt_tokens for event in events) == len(server.requests)
    assert sum(event.completion_tokens for event in events) == len(server.requests)
    # A turn of a model that was understood before is tried again at once.
    failed = listener.of(ExtractionFailedEvent)
    assert [event.prompt_tokens for event in failed] == [4, 2] * (words[0] == "wine")
