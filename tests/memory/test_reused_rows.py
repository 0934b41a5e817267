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
