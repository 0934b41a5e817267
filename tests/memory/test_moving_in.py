"""Histories of other programs arrive whole, in order, and as the guide says."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import CondensedMemory, MessageError, messages_from_json
from tests.conversation import assistant, calling, record, result, sent_text, user
from tests.forked import run_forked
from tests.learning.learning import learner
from tests.memories import OpenMemory
from tests.openai_server import Message, say, serve
from tests.store.test_retention import age

TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "What is 2 * 3?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "multiply", "arguments": '{"a": 2}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "6"},
    {"role": "assistant", "content": "It is 6."},
    {"role": "user", "content": "Thanks."},
    {"role": "assistant", "content": "You are welcome."},
]


async def test_what_was_exported_is_imported_as_it_was(open_memory: OpenMemory) -> None:
    """In another session; in LlamaIndex's layout all of it, none is nothing, and importing twice stores twice."""
    one, other = open_memory("one"), open_memory("other")
    conversation = [
        user("2 * 3?"),
        calling(("c1", "f", {"a": 2})),
        result("c1", "6"),
        assistant("6."),
        user("Thanks."),
    ]
    await one.aput_messages(conversation)
    exported = await one.aexport()
    assert await other.aimport(exported) == 5
    assert await other.aexport() == exported
    assert await other.aget_all() == await one.aget_all() == conversation
    empty = open_memory("empty")
    assert (await empty.aexport(), await empty.aimport("[]")) == ("[]", 0)
    await one.aimport(exported)
    assert await one.aget_all() == conversation * 2


async def days_of(memory: CondensedMemory) -> list[int]:
    """How many days ago each message of the session was stored."""
    rows = await memory.sql_store.readers.find(memory.session_id)
    now = datetime.now(timezone.utc)
    return [round((now - (row.said_at() or now)) / timedelta(days=1)) for row in rows]


@pytest.mark.parametrize("redact", [None, str])
async def test_an_import_keeps_when_a_message_was_stored(
    open_memory: OpenMemory, lasting_database_uri: str, redact: type[str] | None
) -> None:
    """Which is no part of the message: a day as in "yesterday" counts from there, and ids lead to their messages."""
    old = open_memory("old", async_database_uri=lasting_database_uri)
    messages = [
        ChatMessage("I moved.", additional_kwargs={"message_id": f"m-{number}"})
        for number in range(1_500)
    ]
    await old.aput_messages(messages)
    await age(old.sql_store, "old", 10)
    exported = await old.aexport()
    assert messages_from_json(exported) == await old.aget_all() == messages
    new = open_memory("new", redact=redact)
    await new.aput(user("Hello!"))
    await new.aimport(exported)
    assert await new.aget_all() == [user("Hello!"), *messages]
    assert await days_of(new) == [0] + [10] * 1_500
    assert json.loads(await new.aexport())[1:] == json.loads(exported)
    branch = await new.abranch("branch", until="m-700")
    assert (await branch.aget_all())[-1] == messages[700]
    # Their age counts behind a younger turn, too.
    await new.aflush()
    deleted = await new.sql_store.aretain(days=5, session_ids=["new"])
    assert deleted["messages"] == 1_500
    assert await new.aget_all() == [user("Hello!")]


@pytest.mark.parametrize(
    "time",
    [
        {},
        {"stored_at": None},
        {"stored_at": "2999-01-01T00:00:00Z"},
    ],
)
async def test_without_a_time_in_the_past_an_imported_message_is_of_today(
    open_memory: OpenMemory, time: dict[str, Any]
) -> None:
    memory = open_memory()
    exported = {**user("I moved yesterday.").model_dump(mode="json"), **time}
    await memory.aimport([exported])
    assert await memory.aget_all() == [user("I moved yesterday.")]
    assert await days_of(memory) == [0]


@pytest.mark.parametrize("time", ["soon", "NaN", "", 1e30, -5, 7, True, [], {}])
async def test_a_time_of_storing_that_is_none_is_refused(
    open_memory: OpenMemory, time: Any
) -> None:
    memory = open_memory()
    exported = {**user("I moved.").model_dump(mode="json"), "stored_at": time}
    with pytest.raises(
        MessageError, match=r"messages\[1\]: Expected 'stored_at' to be .*; got "
    ) as caught:
        await memory.aimport([{"role": "user", "content": "Hello!"}, exported])
    assert "soon" not in str(caught.value)
    assert await memory.aget_all() == []


async def test_a_time_without_an_offset_is_in_utc_and_before_1973_is_not_exported(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory()
    stored_at = datetime.now(timezone.utc) - timedelta(days=3)
    exported = user("I moved.").model_dump(mode="json")
    exported["stored_at"] = stored_at.replace(tzinfo=None).isoformat()
    await memory.aimport([exported])
    [message] = json.loads(await memory.aexport())
    assert message["stored_at"] == stored_at.isoformat()
    # As of a computer whose clock began anew.
    days = (datetime.now(timezone.utc) - datetime(1970, 1, 2, tzinfo=timezone.utc)).days
    await age(memory.sql_store, "chat", days - 3)
    export = await memory.aexport()
    assert "stored_at" not in export
    await memory.aimport(export)


@pytest.mark.parametrize("at", [0, 3, 6])
async def test_one_message_that_cannot_be_read_keeps_all_out(
    open_memory: OpenMemory, at: int
) -> None:
    memory = open_memory()
    with pytest.raises(MessageError, match=rf"messages\[{at}\]"):
        await memory.aimport(
            [*TURNS[:at], {"role": "user", "text": "lost?"}, *TURNS[at:]]
        )
    assert await memory.aget_all() == []


def known(message_id: str, text: str) -> dict[str, Any]:
    about = {"message_id": message_id, "timestamp": "2026-05-01T12:00:00Z"}
    return {"role": "user", "content": text, "additional_kwargs": about}


async def test_an_import_counts_the_messages_that_it_has_stored(
    open_memory: OpenMemory, lasting_database_uri: str
) -> None:
    """A repeated message is stored once, in a file and in the session."""
    memory = open_memory(async_database_uri=lasting_database_uri)
    talk = [known("a", "One."), known("b", "Two."), known("a", "One.")]
    assert await memory.aimport(talk) == 2
    assert await memory.aimport([*talk, TURNS[0]]) == 1
    assert [message.content for message in await memory.aget_all()] == [
        "One.",
        "Two.",
        "What is 2 * 3?",
    ]


@pytest.mark.parametrize("redact", [None, str.upper])
@pytest.mark.parametrize(
    "talk",
    [
        [known("b", "Two."), known("c", "Three."), known("b", "Other words.")],
        [known("d", "Four."), known("e", "Five."), known("a", "Other words.")],
    ],
)
async def test_no_message_is_lost_for_the_id_of_another(
    open_memory: OpenMemory,
    lasting_database_uri: str,
    talk: list[dict[str, Any]],
    redact: Any,
) -> None:
    """Two messages with one id, in a file or with the session, are a mistake, and nothing is stored."""
    memory = open_memory(async_database_uri=lasting_database_uri, redact=redact)
    await memory.aimport([known("a", "One.")])
    with pytest.raises(
        MessageError, match=r"messages\[2\].* another message_id"
    ) as error:
        await memory.aimport(talk)
    assert "words." not in str(error.value).replace("other words.", "")
    assert len(await memory.aget_all()) == 1
    # A repeated put keeps the first message, as ever.
    await memory.aput_messages(messages_from_json(talk))
    assert len(await memory.aget_all()) == 3


async def test_words_of_several_users_need_their_names(open_memory: OpenMemory) -> None:
    """Without a user, they would all be the words of the next user."""
    talk = [
        {"role": "user", "content": text, "additional_kwargs": {"user_id": name}}
        for name, text in (("ann", "I like tea."), ("bob", "I like trains."))
    ]
    memory = open_memory("nobody")
    with pytest.raises(MessageError, match="shared=True"):
        await memory.aimport(talk)
    assert await memory.aget_all() == []
    assert await memory.aimport(talk[:1]) == 1
    with pytest.raises(MessageError, match="shared=True"):
        await open_memory("alone", user_id="ann").aimport(talk)
    shared = open_memory("shared", user_id="ann", shared=True)
    assert await shared.aimport(talk) == 2
    (info,) = await shared.sql_store.sessions("bob")
    assert info.user_ids == ("ann", "bob")


GUIDE = (Path(__file__).parents[2] / "docs" / "migrate.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE, flags=re.DOTALL | re.MULTILINE)


def model(messages: list[Message], tools: list[str]) -> Message:
    if tools:
        return learner(messages, tools)
    # A later summary covers the earlier one.
    if "The user talked about tea." in str(messages):
        return say("The user talked about tea, and about more tea.")
    return say("The user talked about tea.")


def output_of(word: str, folder: Path, then: str = "") -> str:
    """What the block of code prints that a word stands in, and the code behind it, run in a folder."""
    (code,) = [block for block in BLOCKS if word in block]
    with serve(model) as server:
        environment = {"OPENAI_API_KEY": "sk-test", "OPENAI_API_BASE": server.api_base}
        done = run_forked(code + then, folder=folder, environment=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


async def test_a_chat_memory_buffer_and_its_facts_arrive(
    tmp_path: Path, open_memory: OpenMemory
) -> None:
    assert output_of("ChatMemoryBuffer", tmp_path) == "1 ['The user likes tea.']\n"
    memory = open_memory(
        "chat-17",
        user_id="logan",
        async_database_uri=f"sqlite+aiosqlite:///{tmp_path}/buffer.db",
    )
    assert await memory.aget_all() == [user("My name is Logan.")]
    await memory.aput(user("What do I like?"))
    prompt = sent_text(await memory.aget())
    assert record(prompt) == [("user", "My name is Logan.")]
    assert ">The user likes tea.</fact>" in prompt


def test_a_chat_summary_memory_buffer_is_continued(tmp_path: Path) -> None:
    """With a history: its summary stays in front, and what leaves the record is summed up."""
    then = """
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import ChatSummaryMemoryBuffer

history = [ChatMessage(role="user", content=f"Tea number {i}, " + "and so on " * 100) for i in range(60)]
before.put_messages(history)
before.get()
print(before.get_all()[0].role.value, before.get_all()[0].content)
memory.set(before.get_all())
memory.put_messages(history)
memory.flush()
memory.put(ChatMessage(role="user", content="And now?"))
print(memory.get()[0].content)
"""
    printed = output_of("ChatSummaryMemoryBuffer", tmp_path, then)
    assert "The user talked about tea." in printed.splitlines()[0]
    summary = printed.partition("<conversation_summary")[2]
    assert "about more tea" not in printed.partition("<conversation_summary")[0]
    assert "The user talked about tea, and about more tea." in summary


async def test_a_cancelled_import_stores_all_or_nothing(
    open_memory: OpenMemory,
) -> None:
    """At whatever moment it is cancelled."""
    for steps in (0, 1, 2, 3, 5, 8, 13, 21):
        memory = open_memory(f"after-{steps}")
        task = asyncio.create_task(memory.aimport(TURNS * 50))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(await memory.aget_all()) in (0, 300)
