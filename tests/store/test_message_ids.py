"""A message with an id is stored once in its session, however often it is put."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import (
    CondensedMemory,
    MemoryStore,
    MessageError,
    StoreError,
)
from llama_index_memory_ext.store.rows import SessionAccess
from llama_index_memory_ext.store.transaction import Transaction
from tests.conversation import record, result, sent_text, user
from tests.databases import OpenStore, host_on
from tests.openai_server import say
from tests.scripted_models import StartModel


def known(message_id: Any, text: str = "Hello.") -> ChatMessage:
    return ChatMessage(
        role="user", content=text, additional_kwargs={"message_id": message_id}
    )


async def said(store: MemoryStore, session_id: str = "chat") -> list[str | None]:
    return [
        message.content for message in await store.get_messages(session_id, status=None)
    ]


def read_ids(tx: Transaction) -> list[str]:
    return tx.scalars("SELECT message_id FROM {message_ids}")


async def test_a_message_that_is_put_again_is_passed_over(store: MemoryStore) -> None:
    """Also once it is archived, within one call, and by the calls of the host; the others of a call are written."""
    await store.log.append("chat", [known("a", "one"), known(None, "two")], len)
    again = [
        known("a", "one"),
        known("b", "three"),
        known("b", "three"),
        known(None, "two"),
    ]
    await store.log.append("chat", again, len)
    await store.add_message("chat", known("b", "three"))
    repeated = await store.log.append("chat", [known("a", "one")], len)
    assert (repeated.written, [*repeated.flushed]) == (0, [])
    await store.add_message("other", known("a", "elsewhere"))
    assert await said(store) == ["one", "two", "three", "two"]
    assert await said(store, "other") == ["elsewhere"]


@pytest.mark.parametrize("any_database_uri", ["file", "postgres"], indirect=True)
async def test_of_many_that_put_it_at_once_one_writes_it(
    any_database_uri: str, open_store: OpenStore
) -> None:
    """Through stores of their own, as several processes have."""
    stores = [open_store(any_database_uri) for _ in range(4)]
    await asyncio.gather(*(store.add_message("chat", known(7)) for store in stores))
    assert await said(stores[0]) == ["Hello."]


async def test_with_a_message_its_id_is_free_again(store: MemoryStore) -> None:
    """However it was deleted; the ids of those that are left are still known."""
    talk = [known("a", "one"), known("b", "two"), known("c", "three")]
    await store.add_messages("chat", talk)
    rows = (await store.readers.unread("chat", "", with_active=True)).rows
    await store.delete_message("chat", rows[1].id)
    await store.add_messages("chat", talk)
    assert await said(store) == ["one", "three", "two"]
    for delete in (store.delete_messages, store.forget, store.forget_user):
        await delete("chat")
        # An id is data of the user.
        assert await store.database.run(read_ids, writes=False) == []
        access = SessionAccess("chat")
        await store.log.append("chat", talk, len, access=access)
        assert await said(store) == ["one", "two", "three"]


async def test_an_id_is_not_that_of_the_next_message_after_the_plain_host_has_deleted_it(
    database_uri: str, open_store: OpenStore
) -> None:
    """SQLite gives the ids of deleted rows away again: the id is free, and no copy ends there."""
    store = open_store(database_uri)
    await store.add_message("chat", known("a", "one"))
    async with host_on(database_uri) as host:
        await host.delete_messages("chat")
        await host.add_message("chat", user("secret"))
    with pytest.raises(StoreError, match="Nothing was copied"):
        await store.log.branch("chat", "copy", SessionAccess(), "a", with_end=True)
    await store.add_message("chat", known("a", "one"))
    assert await said(store) == ["secret", "one"]
    await store.log.branch("chat", "copy", SessionAccess(), "a", with_end=False)
    assert await said(store, "copy") == ["secret"]


async def test_a_history_with_ids_can_be_set_anew(store: MemoryStore) -> None:
    """Also by a program that leaves them out; what was changed counts then."""
    talk = [known("a", "one"), known("b", "two"), known("c", "three")]
    await store.set_messages("chat", talk)
    ids = [
        row.id
        for row in (await store.readers.unread("chat", "", with_active=True)).rows
    ]
    await store.set_messages(
        "chat", [user("one"), known("b", "2"), known("a", "one"), known("c", "three")]
    )
    assert await said(store) == ["one", "2", "three"]
    await store.add_messages("chat", talk)
    assert await said(store) == ["one", "2", "three"]
    assert (await store.readers.unread("chat", "", with_active=True)).rows[0].id == ids[
        0
    ]


async def test_with_other_words_the_first_stays_and_the_log_says_so(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.add_message("chat", known("a", "one"))
    await store.add_message("chat", known("a", "one"))
    assert not caplog.records
    await store.add_message("chat", known("a", "secret"))
    assert await said(store) == ["one"]
    assert "with the same message_id" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    "wrong", ["", " ", True, ["a"], {}, float("nan"), "x" * 256, 10**400]
)
async def test_an_id_that_is_none_is_refused(wrong: Any, open_store: OpenStore) -> None:
    store = open_store()
    with pytest.raises(MessageError, match="message_id"):
        await store.add_messages("chat", [user("one"), known(wrong)])
    assert await said(store) == []


async def test_an_id_is_neither_shown_nor_sent(
    store: MemoryStore, start_model: StartModel
) -> None:
    """LlamaIndex sends all ``additional_kwargs`` of a message with calls in them; a refusal would say so."""
    llm, server = start_model(lambda messages, tools: say("Fine."))
    memory = CondensedMemory.from_defaults(
        "chat", chat_store=store, extract_facts=False
    )
    called = {
        "id": "c1",
        "type": "function",
        "function": {"name": "look", "arguments": "{}"},
    }
    question, answer = known("id 1"), result("c1", "Nothing.")
    asking = ChatMessage(
        role="assistant",
        additional_kwargs={"tool_calls": [called], "message_id": "id 2"},
    )
    answer.additional_kwargs["message_id"] = "id 3"
    for _ in range(2):
        await memory.aput_messages([question, asking, answer])
    assert (await llm.achat(await memory.aget())).message.content == "Fine."
    assert "id 1" not in str(server.bodies)
    await memory.aput(user("And now?"))
    shown = sent_text(await memory.aget())
    assert len(record(shown)) == 3
    assert "id " not in shown
    assert question.additional_kwargs == {"message_id": "id 1"}
    ids = [one.additional_kwargs.get("message_id") for one in await memory.aget_all()]
    assert ids == ["id 1", "id 2", "id 3", None]
