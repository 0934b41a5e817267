"""The prompt of a session page is that of a new memory, and nothing is stored for it."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage, TextBlock
from llama_index.core.storage.chat_store.base_db import MessageStatus

from llama_index_memory_ext import (
    CondensedMemory,
    MemoryStore,
    PromptPreview,
    preview_prompt,
)
from llama_index_memory_ext.apps.inspector.views import Views
from llama_index_memory_ext.text.entries import body_of
from tests.conversation import assistant, calling, result, user
from tests.inspector.conftest import Inspect, memory_in
from tests.inspector.example import SESSION
from tests.inspector.test_inspector import bytes_of
from tests.openai_server import call
from tests.scripted_models import StartModel
from tests.search.test_embeddings import Meanings

# The record is cut, and messages that left it are recalled.
LIMITS: dict[str, Any] = {
    "token_limit": 9_000,
    "condensed_token_limit": 1_600,
    "recall_token_limit": 500,
}


@pytest.fixture
async def store(filled: Path) -> AsyncIterator[MemoryStore]:
    """The store of the service, beside that of the inspector."""
    async with aclosing(MemoryStore(f"sqlite+aiosqlite:///{filled}")) as store:
        yield store


def open_memory(file: Path) -> CondensedMemory:
    return memory_in(file, SESSION, "mia", **LIMITS)


async def look(views: Views, question: str = "") -> PromptPreview:
    query = defaultdict(str, id=SESSION, user="mia", q=question)
    page = await views.session(query)
    preview: PromptPreview = page["preview"]
    return preview


def text_of(preview: PromptPreview) -> str:
    return "".join(part.text for part in preview.parts)


async def prompt_of(file: Path, question: str = "") -> str:
    """The prompt of a memory that begins with a copy of the database."""
    copy = file.with_name("copy.db")
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as db:
        source.backup(db)
    async with open_memory(copy) as memory:
        prompt = await memory.aget()
        if question:
            await memory.aput(user(question))
            prompt = await memory.aget()
    for beside in file.parent.glob("copy.db*"):
        beside.unlink()
    memory_text = "".join(
        block.text for block in prompt[0].blocks if isinstance(block, TextBlock)
    )
    return memory_text + "".join(map(body_of, prompt[1:]))


QUESTIONS = ["", "What does a rail pass cost?", "Wie lange dauert die Fahrt?"]


async def look_and_compare(views: Views, file: Path) -> None:
    for question in QUESTIONS:
        assert text_of(await look(views, question)) == await prompt_of(file, question)


@pytest.mark.parametrize("calls", [0, 1, 12])
async def test_each_page_shows_the_prompt_of_a_new_memory(
    filled: Path, store: MemoryStore, calls: int
) -> None:
    memory = open_memory(filled)
    turn = [user("Which trains leave from Leeds, and what does a rail pass cost?")]
    for i in range(calls):
        turn.append(calling((f"c{i}", "find_trains", {"page": i})))
        turn.append(result(f"c{i}", f"Page {i}: the rail pass number {i} costs much."))
    async with memory, aclosing(store.read_only()) as reader:
        views = Views(reader, LIMITS)
        await look_and_compare(views, filled)
        # A turn without an answer yet, and then with its answer.
        await memory.aput_messages(turn)
        await look_and_compare(views, filled)
        await memory.aput(assistant("The rail pass of Leeds costs nothing."))
        await look_and_compare(views, filled)
        # Other facts may be chosen for the profile than an earlier page has chosen.
        await memory.facts.aadd("Has a rail pass for seven days", pinned=True)
        await memory.facts.aadd("Lives in Leeds", confidence=1.0)
        await memory.aput(user("What did you say about Leeds?"))
        await memory.aget()
        await look_and_compare(views, filled)


async def test_each_page_shows_the_prompt_of_a_new_memory_after_deletions(
    filled: Path, store: MemoryStore
) -> None:
    async with open_memory(filled) as memory, aclosing(store.read_only()) as reader:
        views = Views(reader, LIMITS)
        await memory.aput_messages([user("I need a rail pass."), assistant("Why?")])
        await look_and_compare(views, filled)
        await memory.areset(MessageStatus.ACTIVE)
        await look_and_compare(views, filled)
        kept = (await memory.facts.alist())[:3]
        await memory.facts.aforget(*[fact.id for fact in kept])
        await look_and_compare(views, filled)
        await memory.aset((await memory.aget_all())[:30])
        await look_and_compare(views, filled)


async def test_a_preview_cancels_no_job_of_the_program(
    store: MemoryStore, start_model: StartModel
) -> None:
    asked = threading.Event()
    may_answer = threading.Event()

    def model(messages: list[dict[str, Any]], tools: list[str]) -> dict[str, Any]:
        asked.set()
        may_answer.wait(60)
        return call(("c", "report_facts", {"facts": []}))

    llm, server = start_model(model)
    memory = CondensedMemory.from_defaults(
        SESSION, user_id="mia", chat_store=store, llm=llm, extract_every_turns=1
    )
    await memory.aput_messages([user("I live in Rome."), assistant("Fine.")])
    await asyncio.to_thread(asked.wait, 60)
    await preview_prompt(store, SESSION, "mia", LIMITS)
    may_answer.set()
    await memory.aflush()
    # A job that was cancelled would have begun again.
    assert len(server.requests) == 1


async def test_vectors_are_read_from_the_store_and_none_is_written(
    filled: Path, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does a log complain that the store takes none."""
    before = bytes_of(filled)
    async with aclosing(store.read_only()) as reader:
        views = Views(reader, {**LIMITS, "embed_model": Meanings()})
        with caplog.at_level(logging.WARNING):
            for question in QUESTIONS:
                preview = await look(views, question)
    assert preview.explanation.facts[0].similarity
    assert not caplog.records
    assert bytes_of(filled) == before


async def test_the_first_instruction_of_a_long_session_is_shown(
    tmp_path: Path, inspect: Inspect
) -> None:
    messages = [ChatMessage("Answer like a pirate.", role="system")]
    for i in range(1_200):
        messages += [user(f"I have seen bird number {i}."), assistant("Which?")]
    async with memory_in(tmp_path / "memory.db", "birds") as memory:
        await memory.aput_messages(messages)
    limits: Any = {"condensed_token_limit": 1_000, "include_system": True}
    client = await inspect(tmp_path / "memory.db", limits=limits)
    assert "Answer like a pirate." in await client.page("session", id="birds")


async def test_the_question_of_a_long_turn_is_the_one_of_the_prompt(
    filled: Path, store: MemoryStore
) -> None:
    """The turn has more messages than a page."""
    turn: list[ChatMessage] = [user("Which trains leave from Leeds?")]
    for i in range(40):
        turn += [
            calling((f"c{i}", "find_trains", {"page": i})),
            result(f"c{i}", "7:24"),
        ]
    async with open_memory(filled) as memory, aclosing(store.read_only()) as reader:
        await memory.aput_messages(turn)
        preview = await look(Views(reader, LIMITS))
        await memory.aget()
        assert preview.question == "Which trains leave from Leeds?"
        used = [entry.fact.id for entry in memory.last_used().facts]
        explained = preview.explanation.facts
        injected = [entry.fact.id for entry in explained if entry.injected]
        assert sorted(injected) == sorted(used)


async def test_a_session_without_a_name_shows_its_own_record(
    filled: Path, store: MemoryStore, inspect: Inspect
) -> None:
    """And not the record of the session that is called "default"."""
    for name, text in (("", "I like tea."), ("default", "I like milk.")):
        messages = [user(text), assistant("Noted.")]
        await store.add_messages(name, messages, MessageStatus.ARCHIVED)
        await store.add_messages(name, [user("What do I like?")])
    client = await inspect(filled)
    page = await client.page("session", id="")
    assert "I like tea." in page
    assert "I like milk." not in page
