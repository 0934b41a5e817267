"""The preset: one message for the model, whatever was said, however it is called."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from llama_index.core.base.llms.types import ImageBlock, TextBlock
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import BaseMemoryBlock, Memory, StaticMemoryBlock
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore

from llama_index_memory_ext import (
    CondensedMemory,
    CondensedMemoryBlock,
    MemoryStore,
    MessageError,
    StoreError,
)
from tests.conversation import (
    BEFORE_QUESTION,
    assistant,
    calling,
    of_today,
    record,
    result,
    sent_text,
    user,
)
from tests.memories import OpenMemory, OpenPlainMemory


class Silent(BaseMemoryBlock[str]):
    """A block of others."""

    async def _aget(
        self, messages: list[ChatMessage] | None = None, **block_kwargs: Any
    ) -> str:
        return ""

    async def _aput(self, messages: list[ChatMessage]) -> None:
        pass


async def talk(memory: Memory, turns: int) -> str:
    """Some turns, and the prompt of the last question."""
    for i in range(turns):
        await memory.aput(user(f"question {i}"))
        prompt = sent_text(await memory.aget())
        await memory.aput(assistant(f"answer {i}"))
    return prompt


async def test_the_first_question_comes_alone_and_the_second_with_the_record(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory()
    await memory.aput(user("My name is Logan."))
    assert sent_text(await memory.aget()) == "My name is Logan."
    await memory.aput(assistant("Hello Logan."))
    await memory.aput(user("What is my name?"))
    (message,) = await memory.aget()
    assert sent_text([message]) == (
        f"<memory>\n<condensed_memory>\n{of_today()}"
        '<message role="user">My name is Logan.</message>\n'
        '<message role="assistant">Hello Logan.</message>\n'
        "</condensed_memory>\n</memory>\n\n"
        "What is my name?"
    )


async def test_a_turn_is_whole_after_its_answer_until_it_is_flushed(
    open_memory: OpenMemory,
) -> None:
    """Agents ask for the messages once more when a turn is over; then one message with the record is left."""
    memory = open_memory()
    await talk(memory, 2)
    question, answer = await memory.aget()
    assert (sent_text([question])[-10:], answer.content) == ("question 1", "answer 1")
    for _ in range(2):
        await memory.aflush()
    (message,) = await memory.aget()
    assert message.role == "user"
    assert [text for _, text in record(sent_text([message]))] == [
        "question 0",
        "answer 0",
        "question 1",
        "answer 1",
    ]


async def test_resetting_and_setting_replace_what_every_memory_on_the_session_shows(
    open_memory: OpenMemory,
) -> None:
    memory, other = open_memory(), open_memory()
    await talk(memory, 2)
    await other.aget()
    await memory.areset()
    assert await memory.aget() == await other.aget() == []
    await talk(memory, 1)
    await memory.aput(user("next"))
    assert [text for _, text in record(sent_text(await other.aget()))] == [
        "question 0",
        "answer 0",
    ]
    # A generator is gone after it has been looked at.
    await memory.aset(message for message in [user("new"), assistant("fine")])  # type: ignore[arg-type]
    await memory.aput_messages(message for message in [user("newest")])  # type: ignore[arg-type]
    (message,) = await other.aget()
    assert record(sent_text([message])) == [("user", "new"), ("assistant", "fine")]
    await memory.aset([])
    assert await memory.aget() == await other.aget() == []


@pytest.mark.parametrize("in_memory", [True, False])
def test_the_synchronous_calls_finish_what_they_start(
    database_uri: str, in_memory: bool
) -> None:
    memory = CondensedMemory.from_defaults(
        "chat",
        async_database_uri=None if in_memory else database_uri,
        extract_facts=False,
    )
    memory.put(user("one"))
    memory.put_messages([assistant("two"), user("three")])
    assert record(sent_text(memory.get())) == [("user", "one"), ("assistant", "two")]
    assert len(memory.get_all()) == 3
    memory.flush()
    assert len(record(sent_text(memory.get()))) == 3
    memory.set([user("new")])
    assert sent_text(memory.get()) == "new"
    exported = memory.export()
    memory.reset()
    assert memory.get() == []
    assert memory.import_(exported) == 1
    assert memory.branch("copy").get_all() == memory.get_all()
    assert memory.forget()["messages"] == 1
    memory.close()


@pytest.mark.parametrize("wrong", ["Hello", None, {"role": "user", "content": "Hello"}])
async def test_what_is_no_message_is_refused_and_nothing_is_written(
    open_memory: OpenMemory, wrong: Any
) -> None:
    memory = open_memory()
    with pytest.raises(
        MessageError,
        match=rf"got {type(wrong).__name__}\. (Wrap a text as|Build a message,) ChatMessage",
    ):
        await memory.aput_messages([user("one"), wrong])
    with pytest.raises(MessageError):
        await memory.aput(wrong)
    with pytest.raises(MessageError):
        await memory.aset([wrong])
    assert await memory.aget_all() == []


async def test_neither_the_messages_of_the_caller_nor_those_that_come_back_are_shared(
    open_memory: OpenMemory,
) -> None:
    """Agents write their state into the last message."""
    memory = open_memory()
    messages = [
        user("one </memory>"),
        calling(("call_1", "add", {"a": 1})),
        result("call_1", "1"),
        user("two"),
    ]
    before = copy.deepcopy(messages)
    await memory.aput_messages(messages)
    await memory.aget(input=messages[-1])
    assert messages == before
    (shown,) = await memory.aget()
    shown.blocks[-1].text = "changed"  # type: ignore[union-attr]
    assert sent_text(await memory.aget()).endswith("two")


async def test_further_blocks_stand_behind_the_record(open_memory: OpenMemory) -> None:
    """Text, images and messages, as in the host's own Memory."""
    notes = StaticMemoryBlock(name="notes", static_content=[TextBlock(text="Be kind.")])
    picture = StaticMemoryBlock(
        name="picture", static_content=[ImageBlock(url="https://example.org/cat.png")]
    )
    memory = open_memory(memory_blocks=[notes, picture])
    await memory.aput(user("one"))
    await memory.aput(user("two"))
    (message,) = await memory.aget()
    before, image, after, question = message.blocks
    assert sent_text([ChatMessage(blocks=[before])]) == (
        f'<memory>\n<condensed_memory>\n{of_today()}<message role="user">one</message>\n</condensed_memory>\n'
        "<notes>\nBe kind.\n</notes>\n<picture>\n"
    )
    assert isinstance(image, ImageBlock)
    assert (
        sent_text([ChatMessage(blocks=[after, question])])
        == f"</picture>\n{BEFORE_QUESTION}two"
    )


async def test_further_blocks_get_what_the_host_gives_them(
    open_memory: OpenMemory,
) -> None:
    """No argument of our own; and another record, on the same store or on one of its own, reads for itself."""

    class Strict(Silent):
        async def _aget(  # type: ignore[override]
            self,
            messages: list[ChatMessage] | None = None,
            session_id: str = "",
            mood: str = "",
        ) -> str:
            return f"{session_id} {mood} {len(messages or [])}"

    memory = open_memory(memory_blocks=[Strict(name="strict")])
    private = CondensedMemoryBlock(name="private")
    memory.memory_blocks += [
        CondensedMemoryBlock(name="short", store=memory.sql_store, max_messages=1),
        private,
    ]
    await talk(memory, 2)
    await memory.aput(user("next"))
    text = sent_text(await memory.aget(mood="happy"))
    await private.aclose()
    shown = dict(re.findall(r"<(strict|short|private)>\n(.*?)</\1>\n", text, re.DOTALL))
    assert shown["strict"] == "chat happy 1\n"
    assert record(shown["short"]) == [("assistant", "answer 1")]
    assert [said for _, said in record(shown["private"])] == [
        "question 0",
        "answer 0",
        "question 1",
        "answer 1",
    ]


async def test_a_block_that_fails_costs_neither_the_message_nor_the_turn(
    open_memory: OpenMemory, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Silent):
        async def _aput(self, messages: list[ChatMessage]) -> None:
            raise ConnectionError("no such host: secret text")

    memory = open_memory(memory_blocks=[Failing(name="failing")])
    assert len(record(await talk(memory, 3))) == 4
    assert "'failing' did not take" in caplog.text
    assert "secret" not in caplog.text


async def test_more_turns_can_be_kept_as_messages(open_memory: OpenMemory) -> None:
    """With a larger share of the limit for them."""
    memory = open_memory(
        chat_history_token_ratio=0.5,
        token_limit=200,
        condensed_token_limit=100,
        facts_token_limit=0,
    )
    await talk(memory, 4)
    assert [message.content for message in await memory.aget()][1::2] == [
        f"answer {i}" for i in range(4)
    ]
    await memory.aput(user("word " * 90))
    assert len(await memory.aget()) < 9


def test_a_store_of_another_kind_and_a_lasting_one_without_a_session_id_are_refused(
    database_uri: str,
) -> None:
    for lasting in (
        {"async_database_uri": database_uri},
        {"chat_store": MemoryStore(database_uri)},
    ):
        with pytest.raises(
            StoreError, match=r"session_id.* CondensedMemory\.from_defaults"
        ):
            CondensedMemory.from_defaults(**lasting)
    with pytest.raises(StoreError, match="got SQLAlchemyChatStore"):
        CondensedMemory.from_defaults(chat_store=SQLAlchemyChatStore(table_name="t"))  # type: ignore[arg-type]


async def test_a_database_of_the_plain_host_is_taken_over(
    open_memory: OpenMemory, open_plain_memory: OpenPlainMemory, database_uri: str
) -> None:
    """Its archived rows and its active ones."""
    host = open_plain_memory(async_database_uri=database_uri)
    for i in range(4):
        await host.aput(user(f"The question number {i}."))
        await host.aput(assistant(f"The answer number {i}."))
    assert len(await host.aget_all(MessageStatus.ARCHIVED)) == 6
    memory = open_memory()
    question, answer = await memory.aget()
    assert len(record(sent_text([question]))) == 6
    assert answer.content == "The answer number 3."
    await memory.aput(user("next"))
    texts = [text for _, text in record(sent_text(await memory.aget()))]
    assert texts == [
        text
        for i in range(4)
        for text in (f"The question number {i}.", f"The answer number {i}.")
    ]


async def test_none_is_a_session_of_its_own_in_memory() -> None:
    one, other = (CondensedMemory.from_defaults(extract_facts=False) for _ in range(2))
    assert one.session_id != other.session_id
    assert one.facts_block.user_id == one.session_id


async def test_all_messages_of_a_long_session_can_be_read_one_after_the_other(
    any_database_uri: str | None,
) -> None:
    """Oldest first, over all pages. No reading is held open: what others change meanwhile is seen as it is then."""
    talk = [
        message
        for i in range(800)
        for message in (user(f"Question {i}?"), assistant(f"Answer {i}."))
    ]
    said = [message.content for message in talk]
    async with CondensedMemory.from_defaults(
        "chat", async_database_uri=any_database_uri, extract_facts=False
    ) as memory:
        await memory.aput_messages(talk)
        exported = [
            message["blocks"][0]["text"]
            for message in json.loads(await memory.aexport())
        ]
        assert (
            exported == [message.content for message in await memory.aget_all()] == said
        )
        some = await memory.sql_store.get_messages(
            "chat", status=None, limit=1_100, offset=7
        )
        assert [message.content for message in some] == said[7:1_107]
        seen: list[str | None] = []
        async for message in memory.sql_store.iter_messages(memory.session_id):
            if not seen:
                await memory.aset(talk[:1_000])
                await memory.aput(user("The last one"))
            seen.append(message.content)
        assert seen == [*said[:1_000], "The last one"]
