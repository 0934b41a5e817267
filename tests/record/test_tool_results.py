"""Tools' results of earlier turns, of which a cut leaves a line with their size."""

from __future__ import annotations

import asyncio
import re

import pytest
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import (
    CondensedMemory,
    CondensedMemoryBlock,
    MemoryStore,
    TokenCounter,
)
from tests.conversation import assistant, calling, record, result, user
from tests.openai_server import say
from tests.record.conftest import OpenBlock
from tests.scripted_models import StartModel

COUNTER = TokenCounter()
LIMIT = 2_000


def turn(i: int, words: int = 60) -> list[ChatMessage]:
    said = " ".join(f"tree{(i + n) % 7}" for n in range(words))
    called = calling((f"c{i}", "look", {"n": i}))
    return [
        user(f"question {i}"),
        called,
        result(f"c{i}", said),
        assistant(f"answer {i}"),
    ]


async def put_turns(
    block: CondensedMemoryBlock, number: int, session_id: str = "chat"
) -> str:
    """What is shown after so many turns, of which each was read."""
    text = ""
    for i in range(number):
        await block.aput(turn(i), session_id=session_id)
        text = str(await block.aget([], session_id=session_id))
        assert (
            COUNTER.count(f"<{block.name}>\n{text}</{block.name}>\n")
            <= block.token_limit
        )
    return text


def shown_turns(text: str) -> list[str]:
    return [said for role, said in record(text) if role == "user"]


async def test_a_cut_leaves_a_line_of_results_before_the_last_turns(
    open_block: OpenBlock,
) -> None:
    """With the room of the results, far more turns stay; the calls stay, and what the results had is told."""
    whole = await put_turns(open_block(token_limit=LIMIT), 12)
    assert ", left out]" not in whole
    text = await put_turns(open_block(token_limit=LIMIT, keep_tool_results=1), 12)
    assert len(shown_turns(text)) >= len(shown_turns(whole)) + 3
    results = [said for role, said in record(text) if role == "tool"]
    calls = [said for role, said in record(text) if "look(" in said]
    assert len(calls) == len(results) == len(shown_turns(text))
    short = [
        said for said in results if re.fullmatch(r"\[\d+ tokens, left out\]", said)
    ]
    # Between two cuts results are added, and nothing above them changes.
    assert short
    assert results[: len(short)] == short
    assert results[-1] not in short


@pytest.mark.parametrize("kept", [0, 1, 2])
async def test_a_cut_keeps_the_results_of_so_many_turns(
    open_block: OpenBlock, kept: int
) -> None:
    block = open_block(token_limit=LIMIT, keep_tool_results=kept)
    for i in range(12):
        await block.aput(turn(i), session_id="chat")
    text = str(await block.aget([], session_id="chat"))
    results = [said for role, said in record(text) if role == "tool"]
    assert len(results) > kept
    assert sum("left out" not in said for said in results) == kept


async def test_between_two_cuts_the_record_only_grows(open_block: OpenBlock) -> None:
    block, before, cuts = (
        open_block(token_limit=LIMIT, keep_tool_results=1, show_days=False),
        "",
        0,
    )
    for i in range(30):
        await block.aput(turn(i), session_id="chat")
        text = str(await block.aget([], session_id="chat")).partition(
            "<earlier_messages"
        )[0]
        cuts += not text.startswith(before)
        before = text
    assert 0 < cuts < 10


@pytest.mark.parametrize("kept", [0, 1, 3])
async def test_every_process_shows_the_same(database_uri: str, kept: int) -> None:
    """One that has read each turn, one that begins now, and two that read in turn."""
    store, other = MemoryStore(database_uri), MemoryStore(database_uri)
    memory = CondensedMemory.from_defaults(
        "chat", chat_store=store, extract_facts=False
    )

    def open_one(where: MemoryStore) -> CondensedMemoryBlock:
        return CondensedMemoryBlock(
            store=where, token_limit=LIMIT, keep_tool_results=kept
        )

    always, sometimes = open_one(store), open_one(other)
    for i in range(25):
        await memory.aput_messages(turn(i))
        shown = str(await always.aget([], session_id="chat"))
        if i % 4 == 0:
            assert str(await sometimes.aget([], session_id="chat")) == shown
        assert str(await open_one(other).aget([], session_id="chat")) == shown
    await asyncio.gather(store.aclose(), other.aclose())


async def test_a_search_finds_the_whole_result(open_block: OpenBlock) -> None:
    block = open_block(token_limit=LIMIT, keep_tool_results=0)
    await block.aput(
        [
            *turn(0),
            user("and now?"),
            calling(("x", "look", {})),
            result("x", "larch " * 20 + "hornbeam"),
        ]
    )
    await put_turns(block, 10, session_id="default")
    found = await block.asearch("hornbeam")
    assert "hornbeam" in "".join(one.text for one in found)


async def test_results_that_are_shorter_than_the_line_stay(
    open_block: OpenBlock,
) -> None:
    block = open_block(token_limit=300, keep_tool_results=0)
    for i in range(20):
        await block.aput(turn(i, words=1), session_id="chat")
        text = str(await block.aget([], session_id="chat"))
    assert "left out" not in text


async def test_a_summary_takes_what_leaves_and_the_results_stay_short(
    open_block: OpenBlock, start_model: StartModel
) -> None:
    llm, _ = start_model(
        lambda messages, tools: say("The user asks questions and looks at oak and elm.")
    )
    block = open_block(
        token_limit=LIMIT,
        recall_token_limit=0,
        keep_tool_results=1,
        summarize=True,
        llm=llm,
    )
    for i in range(15):
        await block.aput(turn(i), session_id="chat")
        await block.aflush("chat")
        text = str(await block.aget([], session_id="chat"))
        assert len(shown_turns(text)) > min(i, 3)
    assert "<conversation_summary>" in text
    assert ", left out]" in text
