"""A fact may go with the message in which the user stated it, where the program wants that."""

from __future__ import annotations

from typing import Any

import pytest

from llama_index_memory_ext import CondensedMemory
from tests.conversation import assistant, sent_text, user
from tests.learning.learning import contents, learner, shown, talk
from tests.scripted_models import StartModel


@pytest.fixture
def options(any_database_uri: str | None, start_model: StartModel) -> dict[str, Any]:
    llm, _ = start_model(learner)
    return {"user_id": "ann", "llm": llm, "async_database_uri": any_database_uri}


async def learned(memory: CondensedMemory, *words: str) -> None:
    await memory.aput_messages(talk(*words))
    await memory.aflush()


async def reasons(memory: CondensedMemory) -> dict[str, tuple[str | None, str | None]]:
    facts = await memory.facts.alist(with_retired=True)
    return {
        fact.content: (fact.retired_by, fact.retired_reason)
        for fact in facts
        if fact.retired
    }


@pytest.mark.parametrize("option", [False, True])
async def test_a_fact_stays_or_goes_when_its_message_was_taken_back(
    options: dict[str, Any], option: bool
) -> None:
    """Kept, unless the program says otherwise; then it is retired with a reason, and never shown again."""
    async with CondensedMemory.from_defaults(
        "chat", retire_with_messages=option, **options
    ) as memory:
        await learned(memory, "tea", "rain")
        await memory.aset((await memory.aget_all())[:-2])
        gone = {"Likes rain": ("hand", "its message was deleted")} if option else {}
        assert await reasons(memory) == gone
        await learned(memory, "snow")
        await memory.areset()
        left = (
            {}
            if not option
            else {
                f"Likes {word}": gone["Likes rain"] for word in ("tea", "rain", "snow")
            }
        )
        assert await reasons(memory) == left


async def test_a_message_that_the_store_has_deleted_is_noticed_with_the_next_question(
    options: dict[str, Any],
) -> None:
    """Also by a memory that was not there, and where its row was given to another message."""
    async with CondensedMemory.from_defaults("chat", **options) as memory:
        await learned(memory, "tea", "rain")
        store = memory.sql_store
        rows = (await store.readers.unread("chat", "")).rows
        await store.delete_message("chat", rows[-1].id)
        await store.delete_message("chat", rows[-2].id)
        await memory.aput_messages([user("What is it that I like?"), assistant("Yes.")])
        other = CondensedMemory.from_defaults(
            "chat",
            retire_with_messages=True,
            user_id="ann",
            chat_store=store,
            extract_facts=False,
            # Beside a profile, facts are left out whose messages the record shows.
            profile_token_limit=0,
        )
        assert shown(sent_text(await other.aget())) == ["Likes tea"]
        assert list(await reasons(other)) == ["Likes rain"]


async def test_a_fact_that_is_pinned_restored_or_said_elsewhere_too_stays(
    options: dict[str, Any],
) -> None:
    """Nor does one go that the user has never stated in this session."""
    async with CondensedMemory.from_defaults(
        "chat", retire_with_messages=True, **options
    ) as memory:
        await learned(memory, "tea", "rain", "snow", "hail")
        by_content = {fact.content: fact.id for fact in await memory.facts.alist()}
        await memory.facts.aupdate(by_content["Likes tea"], pinned=True)
        await memory.facts.aadd("Likes milk")
        await memory.aput_messages([user("As I said: I like rain."), assistant("Yes.")])
        await memory.aflush()
        await memory.aset((await memory.aget_all())[-2:])
        assert await contents(memory) == ["Likes milk", "Likes rain", "Likes tea"]
        await memory.facts.arestore(by_content["Likes snow"])
        await memory.areset()
        assert await contents(memory) == ["Likes milk", "Likes snow", "Likes tea"]
