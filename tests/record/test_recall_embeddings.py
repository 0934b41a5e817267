"""Earlier messages are found by their meaning, too, where there is an embedding model."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.storage.chat_store.base_db import MessageStatus

from llama_index_memory_ext import CondensedMemory, MemoryRetriever, MemoryStore
from llama_index_memory_ext.store.tables import vectors_namespace
from llama_index_memory_ext.store.vectors import KeptVectors
from tests.conversation import assistant, calling, recalled, result, sent_text, user
from tests.memories import OpenMemory
from tests.record.test_recall import SMALL, fill, say
from tests.search.test_embeddings import Awaited, Meanings

HOUND, CAR = "Our wauwau sleeps a lot.", "A motorwagen was sold."


class DocumentsWait(Awaited):
    """Questions are embedded at once, all else when the gate opens."""

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


async def begin(memory: CondensedMemory, first: str = HOUND) -> None:
    """A message that leaves the record."""
    await say(memory, user(first), assistant(CAR))
    await fill(memory)


async def ask(memory: CondensedMemory, question: str = "dog?") -> list[str]:
    """What is recalled when all is embedded."""
    await memory.condensed_block.await_jobs(memory.session_id)
    found = [text for _, text in recalled(sent_text(await memory.aget(question)))]
    # The question has ended the turn before it, which is embedded, too.
    await memory.condensed_block.await_jobs(memory.session_id)
    return found


async def stored(store: MemoryStore, session_id: str = "chat") -> set[int]:
    """The messages that have a vector."""
    query = "SELECT id FROM {embeddings} WHERE namespace = :namespace"
    namespace = vectors_namespace(session_id)
    ids = await store.database.run(
        lambda tx: tx.scalars(query, namespace=namespace), writes=False
    )
    return set(map(int, ids))


async def row_of(memory: CondensedMemory, text: str) -> int:
    rows = (
        await memory.sql_store.readers.unread(memory.session_id, "", with_active=True)
    ).rows
    return next(row.id for row in rows if row.message.content == text)


async def test_a_search_finds_messages_by_their_meaning(
    open_memory: OpenMemory,
) -> None:
    """The first search has them embedded, if nothing is recalled; until then it goes by words."""
    model = DocumentsWait(asked=[], gate=asyncio.Event())
    memory = open_memory(**{**SMALL, "recall_token_limit": 0}, embed_model=model)
    await begin(memory)
    assert model.asked == []
    retriever = MemoryRetriever(memory, similarity_top_k=1)
    assert await retriever.aretrieve("dog?") == []
    model.gate.set()
    await memory.condensed_block.await_jobs("chat")
    (node,) = await retriever.aretrieve("dog?")
    assert node.node.get_content() == HOUND


async def test_a_text_that_only_tells_something_is_about_its_meaning(
    open_memory: OpenMemory,
) -> None:
    """Its words weigh a quarter, and it has all tokens for recall. A request has its words in full."""
    memory = open_memory(**SMALL, embed_model=Meanings())
    await say(memory, user("wauwau doggo"), assistant("I see."))
    for i in range(20):
        message = f"I was in the big garden with number {i}."
        await say(memory, user(message), assistant("How nice."))
    await fill(memory)
    await ask(memory)
    block = memory.condensed_block
    statement = "We had dog and dog and dog and dog in the garden of my sister"
    best = await block.asearch(statement, session_id="chat", most=1)
    assert [message.text for message in best] == ["wauwau doggo"]
    best = await block.asearch(f"Show me: {statement}", session_id="chat", most=1)
    assert [message.text for message in best] != ["wauwau doggo"]
    shown = await ask(memory, statement)
    assert "wauwau doggo" in shown
    tokens = memory.tokenizer_fn.count("".join(shown))
    assert tokens > SMALL["recall_token_limit"] // 2


async def test_tools_are_embedded_with_their_results_and_instructions_are_not(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory(**SMALL, embed_model=(model := Meanings(asked=[])))
    system = ChatMessage(role="system", content="Answer briefly.")
    await say(
        memory,
        system,
        user("Look it up."),
        calling(("1", "lookup", {"of": "pets"})),
        result("1", "a wauwau"),
    )
    await say(memory, assistant("Done."))
    await fill(memory)
    assert "a wauwau" in " ".join(await ask(memory))
    (call,) = (text for text in model.asked if "lookup" in text)
    assert "a wauwau" in call
    assert not any("briefly" in text for text in model.asked)


async def test_a_model_that_fails_costs_no_message(
    open_memory: OpenMemory, caplog: pytest.LogCaptureFixture
) -> None:
    """The prompt is that without a model, no text is logged, and ``astats`` says it; a model that works mends it."""
    memory = open_memory(**SMALL, embed_model=Meanings(failing=True))
    await begin(memory)
    with caplog.at_level(logging.DEBUG, "llama_index_memory_ext"):
        assert (
            await ask(memory, "sleeps")
            == await ask(open_memory(**SMALL), "sleeps")
            != []
        )
    assert "wauwau" not in caplog.text
    failures = (await memory.astats()).failures
    assert failures["recall embeddings"].error == "ConnectionError"
    fresh = open_memory(**SMALL, embed_model=Meanings())
    await fresh.aput_messages([user("And?"), assistant("So.")])
    await fresh.aput(user("Then?"))
    assert HOUND in await ask(fresh)


async def test_no_message_is_embedded_twice(any_database_uri: str | None) -> None:
    """Not by another process either, which finds the vectors before it answers its first question."""
    stores = [
        MemoryStore(any_database_uri) for _ in range(2 if any_database_uri else 1)
    ]
    models = Meanings(asked=[]), Meanings(asked=[])
    memories = [
        CondensedMemory.from_defaults(
            "chat", chat_store=store, embed_model=model, **SMALL
        )
        for store, model in zip((stores[0], stores[-1]), models, strict=True)
    ]
    await begin(memories[0])
    assert HOUND in await ask(memories[0])
    # These two were said twice.
    once = [text for text in models[0].asked if text not in {"Hm.", "Well."}]
    assert len(once) == len(set(once))
    assert HOUND in [
        text for _, text in recalled(sent_text(await memories[1].aget("dog?")))
    ]
    assert HOUND in await ask(memories[1])
    assert not {*models[1].asked} & {HOUND, CAR}
    for store in stores:
        await store.aclose()


async def test_vectors_are_deleted_with_their_messages(store: MemoryStore) -> None:
    """And counted; those of another session stay."""
    one, other = (
        CondensedMemory.from_defaults(
            name, user_id=name, chat_store=store, embed_model=Meanings(), **SMALL
        )
        for name in ("chat", "other")
    )
    for memory in (one, other):
        await say(
            memory,
            user("Look."),
            calling(("1", "lookup", {"of": "pets"})),
            result("1", "a wauwau"),
        )
        await say(memory, assistant("Done."))
        await begin(memory)
        await ask(memory)
    kept = await stored(store, "other")
    before = await stored(store)
    assert len(before) == len(kept) > 40
    wauwau, called = await row_of(one, HOUND), await row_of(one, "a wauwau")
    await store.delete_message("chat", wauwau)
    await store.delete_message("chat", called)
    # The vector of the call was that of its result, too.
    assert before - await stored(store) == {wauwau, called - 1}
    # What is left is read from the store, and the call is embedded anew.
    assert HOUND not in await ask(one)
    await one.condensed_block.await_jobs("chat")
    assert before - await stored(store) == {wauwau}
    await one.areset(MessageStatus.ARCHIVED)
    assert await stored(store) == set()
    await begin(one)
    assert HOUND in await ask(one)
    assert (await one.aforget(vacuum=False))["embeddings"] > 40
    assert await stored(store) == set()
    assert await stored(store, "other") == kept
    await store.forget("other")
    assert await stored(store, "other") == set()


async def test_a_vector_that_comes_after_its_message_was_deleted_is_not_kept(
    store: MemoryStore,
) -> None:
    """Even if another message has its number by now."""
    await store.add_message("chat", user("one"), MessageStatus.ARCHIVED)
    page = await store.readers.unread("chat", "")
    vectors = KeptVectors(store.database, "chat", "a model", page.epoch)
    assert await vectors.write({str(page.rows[0].id): ("", b"1")})
    assert await stored(store) == {page.rows[0].id}
    await store.delete_messages("chat")
    await store.add_message("chat", user("two"), MessageStatus.ARCHIVED)
    again = (await store.readers.unread("chat", "")).rows[0].id
    assert not await vectors.write({str(again): ("", b"1")})
    assert await stored(store) == set()


class Disturbed(DocumentsWait):
    """Something happens while a question is embedded."""

    happens: Any = None

    async def _aget_query_embedding(self, query: str) -> list[float]:
        if self.happens is not None:
            happens, self.happens = self.happens, None
            await happens()
        return self._get_query_embedding(query)


@pytest.mark.parametrize("call", ["recall", "search"])
async def test_rows_that_have_the_ids_of_deleted_ones_are_not_taken_for_them(
    open_memory: OpenMemory, call: str
) -> None:
    """What is found for a question is read later; by then SQLite may have given its rows to other messages."""
    memory = open_memory(
        **SMALL, embed_model=(model := Disturbed(gate=asyncio.Event()))
    )
    model.gate.set()
    await begin(memory)
    await ask(memory)
    talk = [
        user(f"Another doggo, {i}." if i == 50 else f"Another talk, {i}.")
        for i in range(60)
    ]

    async def replace() -> None:
        await memory.sql_store.log.append("chat", talk, len, replace=True)

    model.happens = replace
    if call == "recall":
        assert recalled(sent_text(await memory.aget("puppy?"))) == []
    else:
        found = await memory.condensed_block.asearch(
            "puppy?", session_id="chat", most=100
        )
        said = {
            row.id: row.message.content
            for row in (await memory.sql_store.readers.unread("chat", "")).rows
        }
        assert [said[one.row_ids[0]] for one in found] == [one.text for one in found]
        assert HOUND not in said.values()
