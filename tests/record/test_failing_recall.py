"""Whatever goes wrong in recall, the record is shown without it, and the next question finds what it asks for."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from llama_index_memory_ext import CondensedMemory
from llama_index_memory_ext.record.recall import MessageIndex
from tests.conversation import assistant, recalled, record, sent_text, user
from tests.memories import OpenMemory
from tests.record.test_recall import SMALL, ask, fill, say

ALPACAS, QUESTION = "My sister Caroline breeds alpacas.", "What does Caroline breed?"


def break_search(index: MessageIndex) -> None:
    index._ranker = None  # type: ignore[assignment]  # so it is broken


def break_rows(index: MessageIndex) -> None:
    del index._ranker._lengths[:]  # type: ignore[attr-defined]


def break_display(index: MessageIndex) -> None:
    index._counter = None  # type: ignore[assignment]


def break_growth(index: MessageIndex) -> None:
    index._units = [None]  # type: ignore[list-item]


async def begin(open_memory: OpenMemory, **options: Any) -> CondensedMemory:
    memory = open_memory(**SMALL, **options)
    await say(memory, user(ALPACAS), assistant("How nice."))
    await fill(memory)
    assert ("user", ALPACAS) in recalled(await ask(memory, QUESTION))
    return memory


def index_of(memory: CondensedMemory) -> MessageIndex:
    index = memory.condensed_block._parts.search.indexes.get("chat")
    assert index is not None
    return index


# There is no known way to a broken index, so these reach into it.
@pytest.mark.parametrize("damage", [break_search, break_rows, break_display, break_growth])
async def test_a_broken_index_costs_no_answer_and_is_made_anew(
    open_memory: OpenMemory, caplog: pytest.LogCaptureFixture, damage: Any
) -> None:
    memory = await begin(open_memory)
    await memory.aput(assistant("Alpacas."))
    await memory.aput(user(f"{QUESTION} Tell me."))
    damage(broken := index_of(memory))
    prompt = sent_text(await memory.aget())
    assert recalled(prompt) == []
    assert ("assistant", "Well.") in record(prompt)
    assert ("user", ALPACAS) in recalled(await ask(memory, QUESTION))
    assert index_of(memory) is not broken
    (line,) = (one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING)
    assert "Earlier messages were not found" in line
    assert "aroline" not in caplog.text


@pytest.mark.parametrize("damage", [break_search, break_display, break_growth])
async def test_a_search_in_a_broken_index_finds_nothing_and_the_next_one_all(
    open_memory: OpenMemory, damage: Any
) -> None:
    memory = await begin(open_memory)
    damage(index_of(memory))
    await memory.aput_messages([assistant("Alpacas."), user("And?"), assistant("So.")])
    assert await memory.condensed_block.asearch(QUESTION, session_id="chat") == []
    found = await memory.condensed_block.asearch(QUESTION, session_id="chat")
    assert ALPACAS in [one.text for one in found]


async def test_a_failure_that_does_not_end_is_told_once(
    open_memory: OpenMemory, caplog: pytest.LogCaptureFixture
) -> None:
    memory = await begin(open_memory)
    for number in range(3):
        break_search(index_of(memory))
        await memory.aput(user(f"{QUESTION} {number}"))
        assert recalled(sent_text(await memory.aget())) == []
        await ask(memory, f"{QUESTION} {number} times?")
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) == 1
