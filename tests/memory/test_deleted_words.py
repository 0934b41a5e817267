"""A person is deleted: no word of theirs is left, whoever has learned from it, and whatever was done before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock
from sqlalchemy import Connection, select

from llama_index_memory_ext import (
    CondensedMemory,
    Fact,
    MemoryStore,
    OfflineModel,
    RelevantFactsBlock,
    StoreError,
)
from llama_index_memory_ext.facts.book import FactBook
from tests.conversation import assistant, user
from tests.databases import OpenStore

USERS, TEAMS = ("ann", "bob", "cem"), ("team", "board")
_LINE = re.compile(r"<message role=\"[\w ]+\">(.*?)</message>")
_KNOWN = re.compile(r"(?m)^(\d+)[.:)] ")


class Gossip(OfflineModel):
    """Reports each line as a fact, whoever has said it, and says of a known fact that the newest line has ended it."""

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        transcript = (messages[-1].content or "").rpartition("<transcript>")[2]
        lines = [line for line in _LINE.findall(transcript) if "I live in" in line]
        facts = [
            {"label": f"n{i}", "content": f"Lives in {line.split()[-1][:-1]}", "quote": line, "confidence": 0.95}
            for i, line in enumerate(lines, 1)
        ]
        ended = [
            {"number": 1, "reason": f"The user said: {line}", "quote": line, "replaced_by": f"n{i}"}
            for i, line in enumerate(lines, 1)
        ]
        arguments = {"new_facts": facts, "confirmed": [], "retired": ended[-1:]}
        call = ToolCallBlock(tool_call_id="call_1", tool_name="report_facts", tool_kwargs=arguments)
        return ChatResponse(message=ChatMessage(role="assistant", blocks=[call]))

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return self.chat(messages, **kwargs)


def on(store: MemoryStore, user_id: str | None, session_id: str = "chat", **options: Any) -> CondensedMemory:
    """A memory in a session of several users, with a block for each team."""
    llm = Gossip()
    teams = [RelevantFactsBlock(name=f"{one}_facts", user_id=one, store=store, llm=llm) for one in TEAMS]
    options = {"shared": user_id is not None, "memory_blocks": teams, "llm": llm, **options}
    return CondensedMemory.from_defaults(session_id, user_id=user_id, chat_store=store, **options)


async def tell(memory: CondensedMemory, *texts: str, answer: str = "Noted.") -> None:
    for text in texts:
        await memory.aput_messages([user(text), assistant(answer)])
    await memory.aflush()


async def stored(store: MemoryStore) -> str:
    """All rows of messages, cursors and facts, as one text."""
    tables = store.database.tables

    def read(conn: Connection) -> str:
        found = [conn.execute(select(table)).all() for table in (tables.rows, tables.cursors, tables.facts)]
        return str(found)

    return await store.database.run(read, writes=False)


async def contents(store: MemoryStore, namespace: str) -> list[str]:
    return sorted(fact.content for fact in await FactBook(store, namespace).alist(state="all"))


async def step(store: MemoryStore, random: Random, number: int) -> None:
    """Let something happen in one of the sessions."""
    who, session = random.choice(USERS), random.choice(("chat", "channel"))
    memory = on(store, who, session, review=random.random() < 0.2)
    deed = random.choice(("say", "say", "say", "say", "flush", "set", "reset", "retain", "delete", "branch", "copy", "end"))
    if deed == "say":
        said = [user(f"In step {number}, I live in {who.capitalize()}ville{number}.")]
        await memory.aput_messages(said + [assistant("Noted.")] * random.randrange(2))
    elif deed == "flush":
        await memory.aflush()
    elif deed == "set":
        messages = await memory.aget_all()
        await memory.aset(messages[random.randrange(3) :])
    elif deed == "reset":
        await memory.areset()
    elif deed == "retain":
        await store.aretain(messages=3, unread=True, vacuum=False)
    elif deed == "delete":
        row_id = random.randrange(1, 20)
        await store.delete_message(session, row_id)
    elif deed == "branch":
        copy = await memory.abranch(f"{session}-{number}")
        await copy.aflush()
    elif deed == "copy":
        book = FactBook(store, random.choice(TEAMS))
        await FactBook(store, f"archive-{number}").aimport(await book.aexport())
    elif random.random() < 0.3:
        await store.forget(session)


@pytest.mark.parametrize("seed", range(6))
async def test_no_word_of_a_person_is_left_anywhere(tmp_path: Path, open_store: OpenStore, seed: int) -> None:
    """In shared sessions with two team blocks, after random turns, edits, deletions, branches and copies."""
    assert await words_left(open_store(f"sqlite+aiosqlite:///{tmp_path}/memory.db"), tmp_path, seed) == []


async def words_left(store: MemoryStore, folder: Path, seed: int) -> list[str]:
    """What is left of a person in the database and its files after one random interleaving."""
    random = Random(seed)
    for number in range(14):
        try:
            await step(store, random, number)
        except StoreError as error:
            assert "was used before" in str(error) or "holds words" in str(error), error
    leaver = random.choice(USERS)
    await store.forget_user(leaver)
    word = f"{leaver.capitalize()}ville"
    left = [f"seed {seed}: {word} in a row"] if word in await stored(store) else []
    for file in folder.iterdir():
        if word.encode() in file.read_bytes():
            left.append(f"seed {seed}: {word} in {file.name}")
    return left
