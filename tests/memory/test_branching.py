"""A copy of a session: it begins as the other one was up to a message, and both go on apart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.storage.chat_store.base_db import MessageStatus

from llama_index_memory_ext import (
    CondensedMemory,
    MemoryStore,
    SessionOwnerError,
    SettingError,
    StoreError,
)
from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED
from tests.conversation import (
    assistant,
    calling,
    named,
    record,
    result,
    sent_text,
    user,
)
from tests.learning.learning import Learns, contents, learns, likes, talk
from tests.memories import OpenMemory, on
from tests.openai_server import Message, say

__all__ = ["learns"]


def talk_about(*words: str) -> list[ChatMessage]:
    """A turn about each word, whose question has the id q-word, and its answer a-word."""
    turns = [
        (
            named(user(f"Tell {one}."), f"q-{one}"),
            named(assistant(f"Told {one}."), f"a-{one}"),
        )
        for one in words
    ]
    return [message for turn in turns for message in turn]


async def said(memory: CondensedMemory) -> list[str]:
    return [str(message.content) for message in await memory.aget_all()]


async def shown(memory: CondensedMemory) -> list[str]:
    return [text for _, text in record(sent_text(await memory.aget()))]


async def test_a_copy_ends_with_the_message_and_begins_between_two_turns(
    store: MemoryStore,
) -> None:
    memory = on(store)
    await memory.aput_messages([*talk_about("one", "two", "three"), user("Now?")])
    copy = await memory.abranch("copy", until="a-two")
    assert await said(copy) == ["Tell one.", "Told one.", "Tell two.", "Told two."]
    assert await copy.aget_all(MessageStatus.ACTIVE) == []
    await copy.aput(user("Else?"))
    assert await shown(copy) == ["Tell one.", "Told one.", "Tell two.", "Told two."]
    await memory.aput(assistant("Now."))
    assert (await said(memory))[4:] == ["Tell three.", "Told three.", "Now?", "Now."]
    assert (await said(copy))[4:] == ["Else?"]


async def test_before_a_question_it_can_be_asked_anew(store: MemoryStore) -> None:
    memory = on(store)
    await memory.aput_messages(talk_about("one", "two"))
    copy = await memory.abranch("copy", before="q-two")
    await copy.aput(named(user("Tell two, shorter."), "q-two"))
    assert await said(copy) == ["Tell one.", "Told one.", "Tell two, shorter."]
    # Ids belong to the session, and those that were copied are known.
    await copy.aput(named(user("Tell one."), "q-one"))
    assert len(await said(copy)) == 3


async def test_without_an_end_all_is_copied_with_users_times_and_roles(
    store: MemoryStore,
) -> None:
    memory = on(store)
    call = calling(("c1", "look", {"at": "this"}))
    await memory.aput_messages(
        [
            *talk_about("one"),
            user("Look."),
            call,
            result("c1", "Seen."),
            assistant("Done."),
        ]
    )
    await memory.abranch("copy")
    before, after = [
        await store.readers.find(key, [ARCHIVED, ACTIVE]) for key in ("chat", "copy")
    ]
    kept = ("role", "data", "timestamp", "user_id")
    assert [[getattr(row, name) for name in kept] for row in before] == [
        [getattr(row, name) for name in kept] for row in after
    ]
    assert [info.user_ids for info in await store.sessions()] == [("ann",), ("ann",)]


async def test_of_an_empty_session_the_copy_is_empty(store: MemoryStore) -> None:
    memory = on(store)
    copy = await memory.abranch("copy")
    assert await said(copy) == []
    assert await store.readers.has_session("copy") is False
    await copy.aput(user("Hello."))
    assert await said(copy) == ["Hello."]


async def test_a_copy_has_the_settings_of_its_memory_and_leaves_its_store_open() -> (
    None
):
    """A store in memory, which the memory has made, would be lost."""
    options: dict[str, Any] = {"max_messages": 4, "facts_token_limit": 500}
    memory = CondensedMemory.from_defaults(
        "chat", user_id="ann", token_limit=9_000, extract_facts=False, **options
    )
    await memory.aput_messages(talk_about("one"))
    async with await memory.abranch("copy") as copy:
        assert (copy.token_limit, copy.condensed_block.max_messages) == (9_000, 4)
        assert (copy.user_id, copy.facts.namespace) == ("ann", "ann")
    assert len(await said(memory)) == 2
    await memory.aclose()


async def test_what_is_wrong_is_refused_and_copies_nothing(store: MemoryStore) -> None:
    memory, bobs = on(store), on(store, "bobs", "bob")
    await memory.aput_messages(talk_about("one"))
    await bobs.aput_messages(talk_about("two"))
    for new in ("chat", "bobs"):
        with pytest.raises(StoreError, match="was used before"):
            await memory.abranch(new)
    with pytest.raises(
        StoreError, match="message_id of a message of 'chat'; got 'q-two'"
    ):
        await memory.abranch("copy", until="q-two")
    with pytest.raises(SettingError, match=r"takes until or before.*; got both"):
        await memory.abranch("copy", until="q-one", before="a-one")
    for wrong in (None, "", " copy"):
        with pytest.raises(SettingError, match="new_session_id"):
            await memory.abranch(wrong)  # type: ignore[arg-type]
    with pytest.raises(SessionOwnerError):
        await on(store, "bobs").abranch("copy")
    assert await store.get_messages("copy", None) == []
    assert await store.readers.has_session("copy") is False


async def test_of_two_copies_to_one_name_at_once_one_is_made(
    store: MemoryStore,
) -> None:
    one, two = on(store, "one"), on(store, "two")
    await one.aput_messages(talk_about("one"))
    await two.aput_messages(talk_about("two"))
    results = await asyncio.gather(
        one.abranch("copy"), two.abranch("copy"), return_exceptions=True
    )
    assert [type(result) for result in results].count(StoreError) == 1
    assert len(await store.get_messages("copy", None)) == 2


async def test_a_shared_session_is_copied_with_all_who_speak_there(
    store: MemoryStore,
) -> None:
    ann, bob = (on(store, user_id=name, shared=True) for name in ("ann", "bob"))
    await ann.aput(user("Hello from Ann."))
    await bob.aput(user("Hello from Bob."))
    copy = await ann.abranch("copy")
    assert [info.user_ids for info in await store.sessions(session_ids=["copy"])] == [
        ("ann", "bob")
    ]
    await copy.aput(user("Who is here?"))
    assert "ann" in sent_text(await copy.aget())
    with pytest.raises(SessionOwnerError):
        await on(store, "copy", "eve").aput(user("Me too."))


async def test_no_fact_is_extracted_twice_and_what_is_unread_is_read(
    learns: Learns,
) -> None:
    memory, server = learns()
    await memory.aput_messages(talk("tea", "milk"))
    await memory.aflush()
    copy = await memory.abranch("copy")
    await copy.aput_messages(talk("rain"))
    await copy.aflush()
    assert likes(server.requests) == [["tea", "milk"], ["rain"]]
    assert await contents(memory) == ["Likes milk", "Likes rain", "Likes tea"]
    silent, _ = learns(session_id="silent", extract_facts=False)
    await silent.aput_messages(talk("snow"))
    heard, server = learns(session_id="silent")
    await (await heard.abranch("heard")).aflush()
    assert likes(server.requests) == [["snow"]]


async def test_a_session_without_a_user_and_its_copy_have_facts_of_their_own(
    learns: Learns,
) -> None:
    memory, _ = learns(user_id=None)
    await memory.aput_messages(talk("tea"))
    await memory.aflush()
    copy = await memory.abranch("copy")
    assert await contents(copy) == []
    await copy.aput_messages(talk("rain"))
    await copy.aflush()
    assert await contents(copy) == ["Likes rain", "Likes tea"]
    assert await contents(memory) == ["Likes tea"]
    await copy.aforget()
    assert await contents(memory) == ["Likes tea"]


def summarising(messages: list[Message], tools: list[str]) -> Message:
    return say("The user told of apples, bread and cheese.")


@pytest.mark.parametrize(
    ("until", "is_kept", "last"),
    [
        ("a-dates", True, ["Tell dates.", "Told dates."]),
        ("a-cheese", True, []),
        ("a-apples", False, ["Tell apples.", "Told apples."]),
    ],
)
async def test_the_record_begins_with_its_window_and_the_summary_of_what_is_in_the_copy(
    open_memory: OpenMemory,
    learns: Learns,
    until: str,
    is_kept: bool,
    last: list[str],
) -> None:
    memory, _ = learns(
        summarising,
        extract_facts=False,
        summarize=True,
        max_messages=3,
        keep_messages=2,
    )
    await memory.aput_messages(talk_about("apples", "bread", "cheese", "dates"))
    await memory.aflush()
    summary = await memory.condensed_block.asummary("chat")
    assert summary
    copy = await memory.abranch("copy", until=until)
    assert await copy.condensed_block.asummary("copy") == (summary if is_kept else "")
    await copy.aput(user("And now?"))
    assert (await shown(copy))[-2:] == last
