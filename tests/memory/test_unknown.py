"""The line that says that no word of a question is in the memory."""

from __future__ import annotations

import pytest

from llama_index_memory_ext.memory.template import UNKNOWN
from llama_index_memory_ext.memory.writing import tokens_of_message
from tests.conversation import assistant, sent_text, user
from tests.memories import OpenMemory


@pytest.mark.parametrize(
    ("question", "is_said"),
    [
        ("Where do I live?", True),
        ("Wo wohne ich?", True),
        ("我住在哪里?", True),
        ("Which tea do I like?", False),
        ("Am I allergic to something?", False),
        ("Where is Oslo?", False),
        ("I live in Oslo.", False),
        ("Who am I?", False),
    ],
)
async def test_the_line_is_said_of_questions_about_the_user_without_a_known_word(
    open_memory: OpenMemory, question: str, is_said: bool
) -> None:
    """Neither the record nor the facts may have one; the tags around them are no words of the user."""
    memory = open_memory(user_id="ann", extract_facts=False, say_unknown=True)
    await memory.facts.aadd("Has an allergy to nuts")
    await memory.aput_messages([user("I like green tea."), assistant("Fine.")])
    await memory.aput(user(question))
    sent = sent_text(await memory.aget())
    assert sent.count(UNKNOWN) == is_said
    assert sent.endswith(question)


async def test_the_line_is_left_out_by_default_and_said_where_nothing_is_stored(
    open_memory: OpenMemory,
) -> None:
    question = user("What is the date of my wedding?")
    for say_unknown in (False, True):
        memory = open_memory(
            f"chat {say_unknown}", extract_facts=False, say_unknown=say_unknown
        )
        await memory.aput_messages([user("Hello."), assistant("Hello.")])
        await memory.aput(question)
        assert (UNKNOWN in sent_text(await memory.aget())) == say_unknown
    memory = open_memory("new", extract_facts=False, say_unknown=True)
    await memory.aput(question)
    assert UNKNOWN in sent_text(await memory.aget())
    assert UNKNOWN not in "".join(
        message.content or "" for message in await memory.aget_all()
    )


async def test_the_line_counts_for_the_limit(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory(extract_facts=False, say_unknown=True, token_limit=120)
    for i in range(20):
        await memory.aput_messages([user(f"Hello {i}."), assistant("Hello.")])
    await memory.aput(user("Where do I live?"))
    prompt = await memory.aget()
    assert UNKNOWN in sent_text(prompt)
    assert sum(tokens_of_message(memory, message) for message in prompt) <= 120


async def test_nothing_is_added_to_a_turn_that_fills_the_limit(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory(extract_facts=False, say_unknown=True, token_limit=80)
    await memory.aput(user(f"Where do I live? {'Say it. ' * 100}"))
    assert UNKNOWN not in sent_text(await memory.aget())
