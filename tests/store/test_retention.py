"""Deleting what is old: which messages go, what stays of facts, and where readers go on."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.storage.chat_store.base_db import MessageStatus

from llama_index_memory_ext import Fact, MemoryStore, SettingError
from llama_index_memory_ext.store.lost_words import without_words
from llama_index_memory_ext.store.rows import SessionAccess
from llama_index_memory_ext.store.transaction import Transaction
from tests.conversation import assistant, calling, record, result, sent_text, user
from tests.databases import OpenStore
from tests.learning.learning import learner, likes
from tests.memories import on
from tests.scripted_models import StartModel
from tests.search.test_embeddings import Meanings

DAY = 86_400 * 10**9
NOTHING = {"messages": 0, "facts": 0, "unread": 0}


async def age(store: MemoryStore, session_id: str, days: float) -> None:
    """Make all that is stored of a session so many days older."""
    older = "UPDATE {rows} SET timestamp = timestamp - :change WHERE key = :key"

    def write(transaction: Transaction) -> None:
        transaction.execute(older, key=session_id, change=int(days * DAY))

    await store.database.run(write)


async def said(store: MemoryStore, session_id: str = "chat") -> list[str]:
    return [
        str(message.content) for message in await store.get_messages(session_id, None)
    ]


def turn(word: str) -> list[ChatMessage]:
    return [user(f"Tell {word}."), assistant(f"Told {word}.")]


def talk(*words: str) -> list[ChatMessage]:
    """Turns from which ``learner`` learns facts, each with an answer that no other turn has."""
    messages = []
    for word in words:
        messages += [user(f"I like {word}."), assistant(f"Told {word}.")]
    return messages


async def age_turn(store: MemoryStore, word: str, days: float) -> None:
    """Make a turn so many days older, as if it were imported or the clock had been wrong."""
    older = "UPDATE {rows} SET timestamp = timestamp - :change WHERE id {in_row_ids}"
    found = await store.readers.find("chat")
    ids = [row.id for row in found if f" {word}." in str(row.message.content)]

    def write(transaction: Transaction) -> None:
        transaction.execute(older, row_ids=ids, change=int(days * DAY))

    await store.database.run(write)


@pytest.mark.parametrize("days", [2, -2])
async def test_an_old_turn_goes_behind_a_younger_one(
    store: MemoryStore, days: int
) -> None:
    """Whether the old turn was imported, or the clock was ahead when the younger one was written."""
    memory = on(store, recall_token_limit=500)
    await memory.aput_messages(
        [*turn("apples"), *turn("bread"), *turn("cheese"), user("Now?")]
    )
    await memory.aget()
    before = await store.readers.find("chat")
    if days > 0:
        for word in ("bread", "Now"):
            await age_turn(store, word, days)
        left = ["Tell apples.", "Told apples.", "Tell cheese.", "Told cheese.", "Now?"]
    else:
        await age(store, "chat", 2)
        await age_turn(store, "bread", days)
        left = ["Tell bread.", "Told bread.", "Now?"]
    deleted = await store.aretain(days=1)
    assert deleted == {"messages": len(before) - len(left), "facts": 0, "unread": 0}
    assert await said(store) == left
    entries = record(sent_text(await memory.aget()))
    assert [text for _, text in entries] == left[:-1]
    for word in ("apples", "bread", "cheese"):
        found = await memory.asearch(word)
        texts = " ".join(message.text for message in found.messages)
        assert (f"Tell {word}." in texts) == (f"Tell {word}." in left)
    assert await store.aretain(days=1) == NOTHING
    assert await store.aretain(messages=9) == NOTHING


async def test_the_words_on_both_sides_of_an_old_turn_leave_the_facts(
    store: MemoryStore, start_model: StartModel
) -> None:
    """Facts elsewhere keep their words, and nothing is read again."""
    llm, server = start_model(learner)
    memory = on(store, llm=llm)
    likes_of = {}
    await memory.aput_messages(
        [*talk("tea"), user("I like milk."), *talk("rain", "snow", "wind")]
    )
    await memory.aflush()
    await age_turn(store, "rain", 2)
    assert await store.aretain(days=1) == {"messages": 2, "facts": 3, "unread": 0}
    for fact in await memory.facts.alist():
        likes_of[fact.content] = (fact.quote, bool(fact.source), len(fact.message_ids))
        assert (fact.session_id is None) == (not fact.message_ids)
        assert bool(fact.words_deleted_at) == (not fact.source)
    assert likes_of == {
        "Likes tea": ("I like tea", True, 1),
        "Likes milk": ("I like milk", False, 1),
        "Likes rain": ("", False, 0),
        "Likes snow": ("I like snow", False, 1),
        "Likes wind": ("I like wind", True, 1),
    }
    await memory.aput_messages(talk("hail"))
    await memory.aflush()
    assert likes(server.requests)[1:] == [["hail"]]
    await memory.facts_block.aclose()


@pytest.mark.parametrize("messages", [None, 5])
async def test_a_message_of_an_unknown_time_is_not_old_and_keeps_no_other(
    store: MemoryStore, messages: int | None
) -> None:
    await on(store).aput_messages([*turn("one"), *turn("two"), *turn("three")])
    await age(store, "chat", 40)
    unknown = "UPDATE {rows} SET timestamp = 0 WHERE id {in_row_ids}"
    ids = [row.id for row in await store.readers.find("chat")]
    await store.database.run(
        lambda tx: tx.execute(unknown, row_ids=ids[2:4]), writes=True
    )
    await store.aretain(days=30, messages=messages)
    assert await said(store) == ["Tell two.", "Told two."]


@pytest.mark.parametrize(("most", "left"), [(5, 5), (4, 3), (3, 3), (2, 1), (1, 1)])
async def test_of_more_messages_than_so_many_the_oldest_turns_go(
    open_store: OpenStore, most: int, left: int
) -> None:
    """A turn goes as a whole, and the question that is being answered stays."""
    store = open_store()
    await on(store).aput_messages([*turn("one"), *turn("two"), user("Now?")])
    assert (await store.aretain(messages=most))["messages"] == 5 - left
    messages = ["Tell one.", "Told one.", "Tell two.", "Told two.", "Now?"]
    assert await said(store) == messages[5 - left :]


async def test_the_turn_that_goes_on_stays_however_old_it_is(
    store: MemoryStore,
) -> None:
    """Also where its question has moved into the log already."""
    memory = on(store)
    await memory.aput_messages(
        [*turn("one"), user("Look."), calling(("c1", "look", {}))]
    )
    await memory.aflush()
    await memory.aput(result("c1", "Seen."))
    await age(store, "chat", 10)
    assert (await store.aretain(days=1))["messages"] == 2
    assert (await said(store))[0] == "Look."
    assert len(await said(store)) == 3


async def test_the_last_turn_of_a_user_who_never_comes_back_goes_when_it_is_old(
    store: MemoryStore,
) -> None:
    """Nothing has closed the memory. The number of messages alone deletes no current turn."""
    memory = on(store)
    await memory.aput_messages([*turn("one"), *turn("two")])
    assert (await store.aretain(days=1, messages=1))["messages"] == 2
    assert await said(store) == ["Tell two.", "Told two."]
    await age(store, "chat", 2)
    assert (await store.aretain(days=1))["messages"] == 2
    assert await said(store) == []
    await memory.aput(user("Now?"))
    assert sent_text(await memory.aget()).strip() == "Now?"


async def test_only_the_named_sessions_are_looked_at_and_none_of_an_empty_list(
    store: MemoryStore,
) -> None:
    for name in ("one", "two"):
        memory = on(store, name)
        await memory.aput_messages(turn("it"))
        await memory.aflush()
        await age(store, name, 2)
    assert await store.aretain(days=1, session_ids=[]) == NOTHING
    assert await store.aretain(days=1, session_ids=["none"]) == NOTHING
    assert (await store.aretain(days=1, session_ids=["one"]))["messages"] == 2
    assert [info.session_id for info in await store.sessions()] == ["two"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"days": 0},
        {"days": -1},
        {"days": 40_000},
        {"days": "90"},
        {"days": timedelta(days=90)},
        {"messages": 0},
        {"messages": "20"},
        {"days": 1, "session_ids": "chat"},
        {},
    ],
)
async def test_what_is_out_of_range_is_refused(
    open_store: OpenStore, wrong: dict[str, Any]
) -> None:
    store = open_store()
    await on(store).aput_messages([*turn("one"), *turn("two")])
    with pytest.raises(SettingError, match=r"days above 0|messages must be"):
        await store.aretain(**wrong)
    assert len(await said(store)) == 4


async def test_unread_messages_stay_until_they_are_read_or_named(
    store: MemoryStore, start_model: StartModel
) -> None:
    llm, server = start_model(learner)
    memory = on(store, llm=llm, extract_every_turns=50)
    await memory.aput_messages(talk("tea"))
    await memory.aflush()
    await memory.aput_messages([*talk("milk"), user("Now?")])
    await age(store, "chat", 2)
    assert await store.aretain(days=1) == {"messages": 2, "facts": 1, "unread": 2}
    await memory.aput(assistant("Now."))
    await memory.aflush()
    await age(store, "chat", 2)
    assert await store.aretain(days=1) == {"messages": 4, "facts": 1, "unread": 0}
    await memory.aput_messages(talk("rain"))
    await memory.sql_store.archive_oldest_messages("chat", 2)
    await age(store, "chat", 2)
    assert (await store.aretain(days=1))["unread"] == 2
    counts = await store.aretain(days=1, unread=True)
    assert counts == {"messages": 2, "facts": 0, "unread": 0}
    await memory.aflush()
    assert likes(server.requests) == [["tea"], ["milk"]]
    await memory.facts_block.aclose()


@pytest.mark.parametrize("block", ["facts", "profile"])
async def test_a_turn_stays_until_the_slowest_reader_has_read_all_of_it(
    store: MemoryStore, block: str
) -> None:
    """A cursor may be within a turn. A block may have any name."""
    names = [f"{block} of ann", f"{block} of bob"]
    for name, word in (("ann", "tea"), ("bob", "milk")):
        access = SessionAccess(name, shared=True)
        await store.log.append("chat", turn(word), len, access=access, readers=names)
    first, second, *_, last = await store.readers.find("chat")
    start = await store.readers.unread("chat", "")
    move = partial(store.readers.move, "chat")
    assert await move(names[0], start, last.id)
    for old, row in ((0, first), (first.id, second)):
        assert (await store.aretain(messages=2))["unread"] == 2
        assert await move(names[1], replace(start, position=old), row.id)
    assert (await store.aretain(messages=2))["messages"] == 2
    assert await said(store) == ["Tell milk.", "Told milk."]


def test_a_quote_of_two_messages_leaves_a_fact_with_one_of_them() -> None:
    fact = Fact(
        content="Likes tea", quote="Tea.\nYes.", session_id="chat", message_ids=(1, 2)
    )
    remaining = without_words(fact, {1}, "\nTea.\n")
    assert (remaining.quote, remaining.message_ids) == ("", (2,))
    assert remaining.session_id == "chat"


async def test_a_deleted_word_leaves_the_facts_though_a_remaining_message_holds_it(
    store: MemoryStore,
) -> None:
    messages = [user("Milk?"), assistant("No."), user("I like it."), assistant("No. 1")]
    await store.set_messages("chat", messages, MessageStatus.ARCHIVED)
    rows = await store.readers.find("chat")
    fact = Fact(
        content="Likes milk",
        quote="I like it",
        source="No.\nI like it.",
        session_id="chat",
        message_ids=(rows[2].id,),
    )
    await store.facts.write("ann", [fact])
    assert (await store.aretain(messages=2))["facts"] == 1


def bytes_of(file: Path) -> bytes:
    """The bytes of a file and of its write-ahead log."""
    files = (file, Path(f"{file}-wal"))
    return b"".join(part.read_bytes() for part in files if part.exists())


async def test_no_byte_of_it_is_left_in_the_file(
    tmp_path: Path, open_store: OpenStore, start_model: StartModel
) -> None:
    llm, _ = start_model(learner)
    file = tmp_path / "memory.db"
    store = open_store(f"sqlite+aiosqlite:///{file}")
    memory = on(store, llm=llm, embed_model=Meanings(), recall_token_limit=500)
    words = ("xylophones", "marzipans", "obelisks")
    await memory.aput_messages(talk(*words))
    await memory.aflush()
    await memory.aget()
    texts = {
        text for word in words[:2] for text in (f"I like {word}.", f"I like {word}")
    }
    stored = bytes_of(file)
    assert all(text.encode() in stored for text in texts)
    await store.aretain(messages=2)
    stored = bytes_of(file)
    assert not any(text.encode() in stored for text in texts)
    assert b"I like obelisks." in stored
    assert len(await memory.facts.alist()) == 3
    await memory.facts_block.aclose()
