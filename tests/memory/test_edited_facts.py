"""A fact whose content was changed by hand is stated by no message, so no message in the prompt hides it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from llama_index_memory_ext import CondensedMemory, Fact
from llama_index_memory_ext.facts.explanation import Explanation
from tests.memories import OpenMemory
from tests.memory.test_profile import (
    BEHIND,
    OPTIONS,
    PROFILE,
    ask,
    ask_until_cut,
    contents,
)

Edit = Callable[[CondensedMemory, Fact], Awaitable[object]]
WALNUTS = "Is allergic to walnuts"
QUESTION = "Am I allergic to peanuts?"


async def update(memory: CondensedMemory, fact: Fact) -> object:
    return await memory.facts.aupdate(fact.id, content=WALNUTS)


async def add_again(memory: CondensedMemory, fact: Fact) -> object:
    return await memory.facts.aadd(fact.model_copy(update={"content": WALNUTS}))


async def import_again(memory: CondensedMemory, fact: Fact) -> object:
    exported = await memory.facts.aexport()
    return await memory.facts.aimport(exported.replace(fact.content, WALNUTS))


async def allergic(memory: CondensedMemory) -> Fact:
    """A fact that the first message of the session states."""
    await ask(memory, "I am allergic to peanuts.")
    first, *_ = await memory.sql_store.readers.find("chat")
    return await memory.facts.aadd(
        "Is allergic to peanuts",
        session_id="chat",
        message_ids=[first.id],
        quote="I am allergic to peanuts.",
        source="I am allergic to peanuts.",
    )


def reasons(explanation: Explanation) -> dict[str, str]:
    return {entry.fact.content: entry.why for entry in explanation.facts}


@pytest.mark.parametrize("edit", [update, add_again, import_again])
async def test_an_edited_fact_is_shown_beside_its_message(
    open_memory: OpenMemory, edit: Edit
) -> None:
    memory = open_memory(**OPTIONS)
    fact = await allergic(memory)
    prompt = await ask(memory, QUESTION)
    assert contents(PROFILE, prompt) + contents(BEHIND, prompt) == []
    await edit(memory, fact)
    prompt = await ask(memory, QUESTION)
    assert "I am allergic to peanuts." in prompt
    assert contents(PROFILE, prompt) + contents(BEHIND, prompt) == [WALNUTS]
    assert reasons(await memory.facts_block.aexplain(QUESTION)) == {
        WALNUTS: "in the profile"
    }


async def test_an_edited_fact_is_shown_beside_its_recalled_message(
    open_memory: OpenMemory,
) -> None:
    options = {**OPTIONS, "recall_token_limit": 100, "profile_token_limit": 40}
    memory = open_memory(**options)
    fact = await allergic(memory)
    await memory.facts.aadd("Owns a red boat", pinned=True)
    await ask_until_cut(memory)
    prompt = await ask(memory, QUESTION)
    assert "allergic to peanuts." in prompt.partition("<earlier_messages")[2]
    assert contents(BEHIND, prompt) == []
    await update(memory, fact)
    assert contents(BEHIND, await ask(memory, QUESTION)) == [WALNUTS]


async def test_only_another_content_is_an_edit(open_memory: OpenMemory) -> None:
    """Other fields, case and punctuation leave the statement as it is; what was edited once stays edited."""
    memory = open_memory(**OPTIONS)
    fact = await allergic(memory)
    for fields in ({"confidence": 0.8}, {"content": "is allergic to Peanuts."}):
        await memory.facts.aupdate(fact.id, **fields)
        await memory.facts.aadd((await memory.facts.alist())[0])
        prompt = await ask(memory, QUESTION)
        assert contents(PROFILE, prompt) + contents(BEHIND, prompt) == []
    for content in (WALNUTS, fact.content):
        changed = await memory.facts.aupdate(fact.id, content=content)
        assert changed.edited
        assert contents(PROFILE, await ask(memory, QUESTION)) == [content]


async def test_an_edited_fact_loses_the_words_of_its_deleted_message(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory(**OPTIONS)
    await update(memory, await allergic(memory))
    await ask(memory)
    await memory.sql_store.aretain(messages=1, vacuum=False)
    (fact,) = await memory.facts.alist()
    assert (fact.content, fact.quote, fact.source) == (WALNUTS, "", "")
