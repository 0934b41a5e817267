"""How often a call asks the server, and by how many connections."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

from sqlalchemy import event

from llama_index_memory_ext import CondensedMemory, MemoryStore
from tests.conversation import assistant, record, sent_text, user
from tests.databases import OpenStore, ask

NO_FACTS: dict[str, Any] = {"extract_facts": False}


async def connections_to(uri: str) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    return int((await ask(uri, query))[0])


async def test_a_turn_takes_few_statements(
    postgres_uri: str, open_store: OpenStore
) -> None:
    """With facts of the user; a commit is one, and a prompt takes one alone."""
    store = open_store(postgres_uri, pool_size=1)
    memory = CondensedMemory.from_defaults(
        "chat", user_id="ann", chat_store=store, **NO_FACTS
    )
    await memory.facts.aadd("Likes tea")
    asked: list[object] = []
    for kind in ("before_cursor_execute", "commit"):
        event.listen(store.database.engine, kind, lambda *given: asked.append(given))
    counts = []
    for i in range(4):
        for call in (
            memory.aput(user(f"question {i}")),
            memory.aget(),
            memory.aget(),
            memory.aput(assistant("Fine.")),
        ):
            asked.clear()
            await call
            counts.append(len(asked))
    assert counts[-4:] == [6, 1, 1, 4]
    assert record(sent_text(await memory.aget()))[-1] == ("assistant", "Fine.")
    assert await connections_to(postgres_uri) == 1


async def test_closed_loops_share_a_connection_and_leave_no_warning(
    postgres_uri: str,
) -> None:
    """Also those that are merely closed, without what ``asyncio.run`` does at the end."""
    store = MemoryStore(postgres_uri)

    def run(text: str) -> None:
        with closing(asyncio.new_event_loop()) as loop:
            loop.run_until_complete(store.add_message("chat", user(text)))

    for i in range(3):
        await asyncio.to_thread(run, f"message {i}")
        assert await connections_to(postgres_uri) == 1
    assert len(await store.get_messages("chat")) == 3
    await store.aclose()
    assert await connections_to(postgres_uri) == 0
