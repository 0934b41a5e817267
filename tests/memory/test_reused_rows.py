"""Messages are deleted, and SQLite gives the ids of their rows to later messages: these state no fact of the first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from llama_index_memory_ext import CondensedMemory
from tests.conversation import assistant, sent_text, user
from tests.learning.learning import Learns, learns, shown

__all__ = ["learns"]

Deletion = Callable[[CondensedMemory], Awaitable[object]]


async def reset(memory: CondensedMemory) -> None:
    await memory.areset()


async def take_back(memory: CondensedMemory) -> None:
    """As a program that lets its user edit the last message."""
    history = await memory.aget_all()
    await memory.aset(history[:-2])


async def delete_rows(memory: CondensedMemory) -> None:
    for row in reversed(await memory.sql_store.rows(memory.session_id)):
        await memory.sql_store.delete_message(memory.session_id, row.id)


async def forget_session(memory: CondensedMemory) -> None:
    await memory.sql_store.forget(memory.session_id)


@pytest.mark.parametrize("delete", [reset, take_back, delete_rows, forget_session])
async def test_a_fact_is_shown_beside_the_messages_that_follow_its_deleted_message(
    learns: Learns, delete: Deletion
) -> None:
    memory, _ = learns()
    await memory.aput_messages([user("I like tea"), assistant("Good.")])
    await memory.aflush()
    (fact,) = await memory.facts.alist()
    await delete(memory)
    await memory.aput_messages([user("What a day!"), assistant("Yes.")])
    await memory.aput(user("What do I like?"))

    assert fact.content in shown(sent_text(await memory.aget()))
    (stored,) = await memory.facts.alist()
    assert (stored.message_ids, stored.quote, stored.source) == ((), "", "")
    assert stored.words_deleted_at is not None


@pytest.mark.parametrize("kept", [[2, 3, 4, 5], [0, 1, 2, 3], [0, 2, 3]])
async def test_messages_that_are_set_again_keep_their_facts_and_are_not_read_again(
    learns: Learns, kept: list[int]
) -> None:
    """As a program that deletes the oldest messages, the newest, or some between."""
    memory, server = learns()
    history = []
    for text in ("Hello.", "I like tea", "Good night."):
        history += [user(text), assistant(f"{text} Fine.")]
    await memory.aput_messages(history)
    await memory.aflush()
    (fact,) = await memory.facts.alist()
    requests = len(server.requests)
    await memory.aset([history[i] for i in kept])
    await memory.aflush()

    (stored,) = await memory.facts.alist()
    assert (stored.message_ids, stored.quote) == (fact.message_ids, fact.quote)
    assert [row.message.content for row in await memory.sql_store.rows("chat")] == [
        history[i].content for i in kept
    ]
    assert len(server.requests) == requests
