"""Conversations that LangChain, LangGraph and Zep have written come in as LlamaIndex writes them.

The values are what langchain-core 1.7, its JavaScript twin and zep-cloud 2 to 4 write.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest
from llama_index.core.base.llms.types import AudioBlock, DocumentBlock, ImageBlock, TextBlock, ToolCallBlock
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import MessageError, messages_from_json
from tests.memories import OpenMemory

PNG = "iVBORw0KGgo="
EMPTY: dict[str, Any] = {"additional_kwargs": {}, "response_metadata": {}, "name": None, "id": None}
HUMAN = {**EMPTY, "type": "human", "content": "How is the weather in Köln?", "id": "m1"}
AI_CALL = {
    **EMPTY,
    "type": "ai",
    "content": "",
    "id": "run-1",
    "tool_calls": [{"name": "weather", "args": {"city": "Köln"}, "id": "c1", "type": "tool_call"}],
    "invalid_tool_calls": [],
    "usage_metadata": None,
}
TOOL = {**EMPTY, "type": "tool", "content": "Sunny", "name": "weather", "id": "m3", "tool_call_id": "c1",
        "artifact": None, "status": "success"}  # fmt: skip
AI = {**EMPTY, "type": "ai", "content": "It is sunny.", "id": "run-2", "tool_calls": [], "invalid_tool_calls": []}
TURN = [HUMAN, AI_CALL, TOOL, AI]


def as_constructor(message: dict[str, Any], *left_out: str) -> dict[str, Any]:
    """As ``dumpd`` writes a message; its JavaScript twin leaves the type out."""
    name = {"human": "HumanMessage", "ai": "AIMessage", "tool": "ToolMessage"}[message["type"]]
    fields = {key: value for key, value in message.items() if value is not None and key not in left_out}
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", name], "kwargs": fields}


def one(**fields: Any) -> ChatMessage:
    (message,) = messages_from_json([{**EMPTY, "type": "human", "content": "", **fields}])
    return message


DUMPED = [as_constructor(message) for message in TURN]


@pytest.mark.parametrize(
    "source",
    [
        TURN,
        [{"type": message["type"], "data": message} for message in TURN],
        DUMPED,
        [as_constructor(message, "type") for message in TURN],
        {"values": {"messages": TURN}, "next": [], "created_at": "2024-05-01T10:00:00Z"},
        {"v": 4, "ts": "2024-05-01T10:00:00Z", "channel_values": {"messages": DUMPED}},
        "\n".join(map(json.dumps, TURN)),
    ],
)
def test_a_turn_with_calls_comes_in_from_each_way_in_which_langchain_writes_it(source: Any) -> None:
    question, call, result, answer = messages_from_json(source)
    assert (question.role.value, question.content) == ("user", "How is the weather in Köln?")
    assert question.additional_kwargs == {"message_id": "m1"}
    assert call.role.value == "assistant"
    assert call.blocks == [ToolCallBlock(tool_call_id="c1", tool_name="weather", tool_kwargs='{"city": "Köln"}')]
    assert (result.role.value, result.content) == ("tool", "Sunny")
    assert result.additional_kwargs == {"name": "weather", "tool_call_id": "c1", "message_id": "m3"}
    assert (answer.role.value, answer.content) == ("assistant", "It is sunny.")


@pytest.mark.parametrize(
    ("fields", "role"),
    [
        ({"type": "AIMessageChunk"}, "assistant"),
        ({"type": "function", "name": "f"}, "function"),
        ({"type": "developer"}, "developer"),
        ({"type": "chat", "role": "user"}, "user"),
    ],
)
def test_each_type_of_message_has_its_role_and_one_is_a_conversation(fields: dict[str, Any], role: str) -> None:
    (message,) = messages_from_json({**EMPTY, "content": "Hello", **fields})
    assert message.role.value == role


def test_calls_come_from_wherever_a_version_of_langchain_has_put_them() -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    use = {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}
    known = {"name": "f", "args": {"a": 1}, "id": "c1"}
    raw = {"tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    expected = [ToolCallBlock(tool_call_id="c1", tool_name="f", tool_kwargs='{"a": 1}')]
    assert one(type="ai", additional_kwargs=raw).blocks == expected
    assert one(type="ai", tool_calls=[known], additional_kwargs=raw).blocks == expected
    assert one(type="ai", content=[use]).blocks == expected
    text = {"type": "text", "text": "I ask."}
    assert one(type="ai", content=[text, use], tool_calls=[known]).blocks == [TextBlock(text="I ask."), *expected]
    (old,) = one(type="ai", additional_kwargs={"function_call": function}).blocks
    assert old == ToolCallBlock(tool_name="f", tool_kwargs='{"a": 1}')
    broken = {"name": "f", "args": "{broken", "id": "c9", "error": "no JSON", "type": "invalid_tool_call"}
    (block,) = one(type="ai", invalid_tool_calls=[broken]).blocks
    assert block == ToolCallBlock(tool_call_id="c9", tool_name="f", tool_kwargs="{broken")


def test_the_parts_of_a_content_become_blocks_and_thoughts_are_left_out() -> None:
    url = "https://example.com/a.png"
    message = one(
        content=[
            "Look:",
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "image", "base64": PNG, "mime_type": "image/png"},
            {"type": "image", "source_type": "base64", "data": PNG, "mime_type": "image/png"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
            {"type": "image", "url": url},
            {"type": "audio", "base64": "UklGRg==", "mime_type": "audio/wav"},
            {"type": "file", "base64": "JVBERi0=", "mime_type": "application/pdf", "filename": "a.pdf"},
            {"type": "reasoning", "reasoning": "secret thoughts"},
            {"type": "thinking", "thinking": "secret thoughts", "signature": "x"},
            {"type": "video", "file_id": "v1"},
        ]
    )
    linked, inline = ImageBlock(url=url), ImageBlock(image=PNG.encode(), image_mimetype="image/png")
    assert message.blocks == [
        TextBlock(text="Look:"),
        linked,
        *[inline] * 3,
        linked,
        AudioBlock(audio=b"UklGRg==", format="wav"),
        DocumentBlock(data=b"JVBERi0=", title="a.pdf", document_mimetype="application/pdf"),
        TextBlock(text='[video: {"file_id": "v1"}]'),
    ]


def test_times_and_names_are_kept_as_the_memory_and_openais_api_read_them() -> None:
    zep = {"content": "Hi", "role": "Ann Lee", "role_type": "user", "created_at": "2024-05-01T10:00:00Z", "uuid": "u1"}
    newer = {"content": "Hi", "role": "user", "name": "Ann Lee", "created_at": "2024-06-01T10:00:00Z",
             "reference_time": "2024-05-01T10:00:00Z", "uuid_": "u1", "metadata": None, "processed": True}  # fmt: skip
    expected = {"created_at": "2024-05-01T10:00:00Z", "name": "Ann_Lee", "message_id": "u1"}
    for message in messages_from_json({"messages": [zep, newer], "row_count": 2}):
        assert (message.role.value, message.content, message.additional_kwargs) == ("user", "Hi", expected)
    said = one(content="Hi", additional_kwargs={"timestamp": 1_714_557_600}, name="Ann Lee")
    assert said.additional_kwargs == {"timestamp": 1_714_557_600, "name": "Ann_Lee"}
    answer = one(type="ai", content="Hi", response_metadata={"created_at": "2024-05-01T10:00:00Z"})
    assert answer.additional_kwargs == {"created_at": "2024-05-01T10:00:00Z"}


async def test_a_conversation_with_ids_is_imported_once_with_its_times(open_memory: OpenMemory) -> None:
    zep = [
        {"content": "I live in Köln.", "role": "user", "created_at": "2024-05-01T10:00:00Z", "uuid": "u1"},
        {"content": "Noted.", "role": "assistant", "created_at": "2024-05-01T10:00:05Z", "uuid": "u2"},
    ]
    memory = open_memory("chat", user_id="ann")
    for _ in range(2):
        await memory.aimport(json.dumps({"messages": zep}))
    assert [message.content for message in await memory.aget_all()] == ["I live in Köln.", "Noted."]
    question, _ = (await memory.sql_store.readers.unread("chat", "", with_active=True)).rows
    assert question.said_at == datetime(2024, 5, 1, 10, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({**EMPTY, "type": "remove", "content": ""}, "an object with a 'role'"),
        ({"type": "robot", "data": {"content": "the secret word"}}, "an object with a 'role'"),
        ({**AI, "tool_calls": ["the secret word"]}, "objects that name a function"),
        ({**HUMAN, "additional_kwargs": "the secret word"}, "'additional_kwargs' of LangChain to be an object"),
        ({**EMPTY, "type": "chat", "role": "the secret word", "content": "x"}, "'role' that is one of"),
        ({"role_type": "norole", "role": "x", "content": "the secret word"}, "saw 'norole'"),
        ({"lc": 1, "type": "constructor", "id": [], "kwargs": {"content": "the secret word"}}, "with a 'role'"),
        ({"lc": 1, "type": "not_implemented", "id": ["a", "HumanMessage"]}, "an object with a 'role'"),
    ],
)
def test_what_is_no_message_of_theirs_is_named_without_its_words(value: dict[str, Any], complaint: str) -> None:
    with pytest.raises(MessageError) as raised:
        messages_from_json([HUMAN, value])
    assert str(raised.value).startswith("messages[1]: ")
    assert complaint in str(raised.value)
    assert "the secret word" not in str(raised.value)
