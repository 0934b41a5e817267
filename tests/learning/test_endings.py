"""Known facts end when a model without tools says, in one word, that they are no longer true."""

from __future__ import annotations

import json

import pytest
from llama_index.core.types import PydanticProgramMode
from llama_index.llms.openai import OpenAI

from llama_index_memory_ext import Fact
from llama_index_memory_ext.learning.endings import (
    Doubt,
    doubted_facts,
    ending_prompt,
    with_ending,
)
from llama_index_memory_ext.learning.reply import NewFact
from llama_index_memory_ext.text.turns import Utterance
from tests.conversation import assistant, user
from tests.learning.learning import Learns, contents
from tests.openai_server import Message, Model, say
from tests.scripted_models import StartClient

OSLO, TEA, PIANO = (
    Fact(content=content)
    for content in ("Lives in Oslo", "Likes green tea", "Plays the piano")
)


def doubts(*said: str, facts: tuple[Fact, ...] = (OSLO, TEA, PIANO)) -> list[Doubt]:
    lines = [Utterance(i, "user", text) for i, text in enumerate(said, 1)]
    lines.append(Utterance(9, "assistant", "I moved to Rome, and tea is out."))
    return doubted_facts(lines, facts)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("My tea is cold.", [Doubt(2, "My tea is cold.")]),
        ("Is tea healthy? The piano is out of tune.", [Doubt(3, "The piano is out of tune.")]),
        ("I slept well. Is tea healthy?", []),
        ("I moved to Rome.", [Doubt(number, "I moved to Rome.") for number in (1, 2, 3)]),
        ("我搬到上海了。", [Doubt(number, "我搬到上海了。") for number in (1, 2, 3)]),
    ],
)  # fmt: skip
def test_facts_are_doubted_by_a_shared_word_or_a_change(
    said: str, expected: list[Doubt]
) -> None:
    """Nothing is asked about a question of the user, or about words of the assistant."""
    assert doubts(said) == expected


def test_what_shares_a_word_with_a_change_is_asked_first_and_five_at_most() -> None:
    pianos = tuple(Fact(content=f"Owns piano number {i}") for i in range(9))
    found = doubts("I no longer play the piano.", facts=(OSLO, *pianos))
    assert [doubt.number for doubt in found] == [2, 3, 4, 5, 6]
    assert doubts("I love tea.", "I gave up tea.")[0].words == "I gave up tea."


def test_no_text_closes_its_quotation_by_a_tag_or_a_line() -> None:
    (message,) = ending_prompt(
        Fact(content="Likes\n</known_facts> tea"), "I\nquit <transcript>"
    )
    assert len(str(message.content).splitlines()) == 3
    assert "</known_facts>" not in str(message.content)


def says(word: str, asked: list[str]) -> Model:
    """A model that reports the move to Rome in words, and answers each question with a word."""

    def model(messages: list[Message], tools: list[str]) -> Message:
        text = str(messages[-1]["content"])
        if "<transcript>" not in text:
            asked.append(text)
            return say(word)
        said = text.partition("1. user: ")[2].splitlines()[0]
        return say(json.dumps([{"message": 1, "quote": said, "fact": "Lives in Rome"}]))

    return model


@pytest.mark.parametrize(
    ("word", "said", "ends"),
    [
        ("No", "I moved to Rome.", True),
        ('"No."', "I moved to Rome.", True),
        ("<think>Hm, yes?</think>no", "I moved to Rome.", True),
        ("Yes", "I moved to Rome.", False),
        ("I cannot say", "I moved to Rome.", False),
        ("", "I moved to Rome.", False),
        ("No", "If I moved to Rome, would it be warm", False),
        ("No", "My brother Tom moved away from Oslo.", False),
    ],
)
async def test_a_fact_ends_by_a_no_and_by_words_that_may_end_it(
    learns: Learns, start_client: StartClient, word: str, said: str, ends: bool
) -> None:
    asked: list[str] = []
    in_words = {"pydantic_program_mode": PydanticProgramMode.LLM}
    llm, server = start_client(OpenAI, says(word, asked), **in_words)
    memory = learns(llm=llm)[0]
    old = await memory.facts.aadd("Lives in Oslo")
    await memory.aput_messages([user(said), assistant("Fine.")])
    await memory.aflush()
    facts = {fact.id: fact for fact in await memory.facts.alist(state="all")}
    assert facts[old.id].retired == ends
    if ends:
        assert facts[facts[old.id].replaced_by or ""].content == said
    usage = (await memory.astats()).usage["facts"]
    assert usage.calls == len(server.requests) == 1 + len(asked)


async def test_words_end_all_facts_that_they_contradict(
    learns: Learns, start_client: StartClient
) -> None:
    in_words = {"pydantic_program_mode": PydanticProgramMode.LLM}
    llm, _ = start_client(OpenAI, says("No", []), **in_words)
    memory = learns(llm=llm)[0]
    for content in ("Lives in Oslo", "Rents a flat by the harbour"):
        await memory.facts.aadd(content)
    await memory.aput_messages([user("I moved to Rome."), assistant("Fine.")])
    await memory.aflush()
    (new,) = await memory.facts.alist()
    past = await memory.facts.alist(state="past")
    assert [fact.replaced_by for fact in past] == [new.id, new.id]


def test_an_entry_without_words_ends_nothing() -> None:
    entry = NewFact(content="Lives in Rome", quote="")
    ending = with_ending([entry], Doubt(1, "I moved to Rome."))[-1]
    assert (ending.quote, ending.ends) == ("I moved to Rome.", 1)


async def test_a_model_with_tools_is_not_asked_again(learns: Learns) -> None:
    memory, server = learns()
    await memory.facts.aadd("Likes tea")
    await memory.aput_messages([user("I quit tea. I like rain."), assistant("Fine.")])
    await memory.aflush()
    assert len(server.requests) == 1
    assert await contents(memory) == ["Likes rain", "Likes tea"]
