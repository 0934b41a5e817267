"""Which facts and recalled messages stood in the last prompt, so that an application can cite them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import CondensedMemory
from llama_index_memory_ext.events import MessagesRecalledEvent
from llama_index_memory_ext.memory.search import MemorySearchResult
from tests.conversation import assistant, recalled, sent_text, user
from tests.learning.learning import shown
from tests.memories import OpenMemory
from tests.memory.test_events import Learner, Listener, add, heard
from tests.openai_server import say
from tests.record.test_recall import CAROLINE, SMALL, ask, fill
from tests.scripted_models import StartModel

__all__ = ["heard"]

QUESTION = "What does Caroline breed?"


async def long_talk(open_memory: OpenMemory, **options: Any) -> CondensedMemory:
    """A memory whose record no longer shows what was said first."""
    memory = open_memory(
        **{**SMALL, "facts_token_limit": 300, "user_id": "ann", **options}
    )
    said = ChatMessage(CAROLINE[1], additional_kwargs={"message_id": "m-1"})
    await memory.aput_messages([said, assistant("How nice.")])
    await fill(memory)
    return memory


def shown_by(memory: CondensedMemory) -> tuple[list[str], list[tuple[str, str]]]:
    used = memory.last_used()
    return [one.fact.content for one in used.facts], [
        (one.role, one.text) for one in used.messages
    ]


@pytest.mark.parametrize("cache_points", [False, True])
async def test_what_was_used_is_what_stands_in_the_prompt(
    open_memory: OpenMemory, cache_points: bool
) -> None:
    """In its order, with scores of 0..1 and the ids by which an application finds them.

    Facts of the profile stand in front, in an order that does not follow the question.
    """
    memory = await long_talk(open_memory, cache_points=cache_points)
    for content in ("Works with Caroline", "Lives in Paris"):
        await memory.facts.aadd(content, confidence=0.9)
    prompt = await ask(memory, QUESTION)
    used = memory.last_used()
    assert shown_by(memory) == (shown(prompt), recalled(prompt))
    assert [entry.place for entry in used.facts] == ["profile", "profile"]
    scores = {entry.fact.content: entry.score for entry in used.facts}
    assert 0 < scores["Lives in Paris"] < scores["Works with Caroline"] <= 1
    said = next(one for one in used.messages if one.text == CAROLINE[1])
    assert (said.row_ids, said.message_id, said.similarity) == ((1,), "m-1", 1.0)
    assert all(
        0 < one.similarity <= 1 and one.message_id is None
        for one in used.messages
        if one is not said
    )
    # Its words are in no log by accident.
    assert "Caroline" not in repr(used)


async def test_the_event_of_a_recall_names_the_rows_in_the_prompt_and_no_words(
    open_memory: OpenMemory, heard: Listener
) -> None:
    memory = await long_talk(open_memory)
    await ask(memory, QUESTION)
    await memory.aget()
    *_, first, second = heard.of(MessagesRecalledEvent)
    used = memory.last_used().messages
    for event in (first, second):
        assert event.row_ids == [message.row_ids[0] for message in used]
        assert event.scores == [message.similarity for message in used]
        assert (event.session_id, event.token_limit) == ("chat", 400)
        assert event.tokens > 0
        assert "alpacas" not in event.model_dump_json()
    assert second.cached


async def test_before_the_first_question_nothing_was_used_and_then_only_what_fits_it(
    open_memory: OpenMemory,
) -> None:
    memory = await long_talk(open_memory)
    assert memory.last_used() == MemorySearchResult() == MemorySearchResult((), ())
    await ask(memory, QUESTION)
    before = memory.last_used()
    assert before.messages
    await memory.aput(assistant("Alpacas."))
    await ask(memory, "Xyzzy plugh plover frotz gnusto rezrov blorb yomin")
    assert memory.last_used() == MemorySearchResult()
    # Nobody's result changes afterwards.
    assert before.messages


async def test_it_stays_when_the_answer_has_come_whatever_was_learned_since(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    """An agent asks once more then; so it is what the model was shown."""
    llm, server = start_model(Learner())
    memory = open_memory(user_id="ann", extract_facts=False)
    await memory.facts.aadd("Likes tea", confidence=0.9)
    await FunctionAgent(llm=llm, tools=[add]).run("Add numbers for me.", memory=memory)
    await memory.facts.aadd("Likes milk", confidence=0.9)
    await memory.aget()
    assert (
        shown_by(memory)[0]
        == shown(str(server.requests[0][-1]["content"]))
        == ["Likes tea"]
    )
    await memory.aput(user("And now?"))
    await memory.aget()
    assert sorted(shown_by(memory)[0]) == ["Likes milk", "Likes tea"]


async def test_a_chat_engine_asks_before_its_question_is_put(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    llm, _ = start_model(lambda messages, tools: say("Alpacas."))
    memory = await long_talk(open_memory)
    await memory.facts.aadd("Works with Caroline")
    await ask(memory, "Hm?")
    await memory.aput(assistant("Well."))
    await SimpleChatEngine.from_defaults(llm=llm, memory=memory).achat(QUESTION)
    facts, messages = shown_by(memory)
    assert facts == ["Works with Caroline"]
    assert CAROLINE in messages


async def test_what_is_cut_off_to_fit_was_not_used(open_memory: OpenMemory) -> None:
    """Also where the record shows the same words in another place."""
    memory = await long_talk(open_memory, token_limit=3_000)
    for i in range(6):
        await memory.facts.aadd(f"Works with Caroline in the {i}. week of the year")
    await memory.aput_messages([user(CAROLINE[1]), assistant("How nice.")])
    await ask(memory, QUESTION)
    assert CAROLINE in shown_by(memory)[1]
    for left in range(300, 1_500, 100):
        messages = await memory.aget(initial_token_count=memory.token_limit - left)
        prompt = sent_text(messages)
        assert shown_by(memory) == (shown(prompt), recalled(prompt))


async def test_each_memory_tells_of_its_own_prompts(open_memory: OpenMemory) -> None:
    """A branch, a memory that was pickled, and another one of the session have given none yet."""
    memory = await long_talk(open_memory)
    await memory.facts.aadd("Works with Caroline")
    await ask(memory, QUESTION)
    used = memory.last_used()
    stored = pickle.dumps(memory)
    assert b"alpacas" not in stored
    copies = [
        await memory.abranch("other"),
        pickle.loads(stored),
        open_memory(user_id="ann"),
    ]
    for copy in copies:
        assert copy.last_used() == MemorySearchResult()
    await ask(copies[0], "Xyzzy")
    assert memory.last_used() == used
    assert used.facts
    assert used.messages
    await copies[1].aclose()
