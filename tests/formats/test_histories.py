"""Histories of openai-agents, the AI SDK and Gemini, as their makers document them: calls paired, nothing lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llama_index.core.base.llms.types import (
    DocumentBlock,
    ImageBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import MessageError, messages_from_json

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNkYPjPUA8AA4YBgBaNX2oAAAAASUVORK5CYII="
WEATHER = {"city": "Oslo"}

# https://openai.github.io/openai-agents-python/sessions/: items of the Responses API.
AGENTS_PLAIN: list[Any] = [
    {"role": "user", "content": "Weather in Oslo?"},
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Rain.", "annotations": []}],
    },
]
AGENTS_CALL: list[Any] = [
    {"role": "user", "content": "Weather in Oslo?"},
    {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "I ask the tool."}],
        "encrypted_content": "gAAA",
    },
    {
        "id": "fc_1",
        "type": "function_call",
        "call_id": "call_a",
        "name": "get_weather",
        "arguments": '{"city": "Oslo"}',
        "status": "completed",
    },
    {"type": "function_call_output", "call_id": "call_a", "output": "Rain"},
    AGENTS_PLAIN[1],
]
AGENTS_PARALLEL: list[Any] = [
    {"type": "message", "role": "user", "content": "Weather in Oslo and in Rome?"},
    *[
        {
            "type": "function_call",
            "call_id": call_id,
            "name": "get_weather",
            "arguments": json.dumps({"city": city}),
        }
        for call_id, city in (("call_a", "Oslo"), ("call_b", "Rome"))
    ],
    {
        "type": "function_call_output",
        "call_id": "call_b",
        "output": [{"type": "input_text", "text": "Sun"}],
    },
    {"type": "function_call_output", "call_id": "call_a", "output": "Rain"},
]
AGENTS_SEARCH: list[Any] = [
    {"role": "user", "content": "Weather in Oslo?"},
    {
        "id": "ws_1",
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "weather Oslo"},
    },
    AGENTS_PLAIN[1],
]

# https://ai-sdk.dev/docs/reference/ai-sdk-core/ui-message
UI_PLAIN: list[Any] = [
    {
        "id": "u1",
        "role": "user",
        "parts": [
            {"type": "text", "text": "Weather in Oslo?"},
            {
                "type": "file",
                "mediaType": "image/png",
                "filename": "sky.png",
                "url": f"data:image/png;base64,{PNG}",
            },
        ],
    },
    {
        "id": "a1",
        "role": "assistant",
        "metadata": {"model": "gpt-5"},
        "parts": [
            {"type": "step-start"},
            {"type": "text", "text": "Rain.", "state": "done"},
            {
                "type": "source-url",
                "sourceId": "s1",
                "url": "https://yr.no/oslo",
                "title": "Oslo",
            },
        ],
    },
]
UI_STEPS: list[Any] = [
    {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Weather?"}]},
    {
        "id": "a1",
        "role": "assistant",
        "parts": [
            {"type": "step-start"},
            {"type": "reasoning", "text": "I ask the tool.", "state": "done"},
            {
                "type": "tool-get_weather",
                "toolCallId": "call_a",
                "state": "output-available",
                "input": WEATHER,
                "output": {"sky": "Rain"},
            },
            {
                "type": "dynamic-tool",
                "toolName": "get_time",
                "toolCallId": "call_b",
                "state": "output-error",
                "input": {},
                "errorText": "No clock",
            },
            {"type": "step-start"},
            {"type": "text", "text": "Rain.", "state": "done"},
        ],
    },
]
UI_VERSION_4: list[Any] = [
    {
        "id": "a1",
        "role": "assistant",
        "content": "Rain.",
        "createdAt": "2025-03-01T10:00:00Z",
        "parts": [
            {"type": "step-start"},
            {
                "type": "tool-invocation",
                "toolInvocation": {
                    "state": "result",
                    "toolCallId": "call_a",
                    "toolName": "get_weather",
                    "args": WEATHER,
                    "result": "Rain",
                },
            },
            {"type": "step-start"},
            {"type": "text", "text": "Rain."},
        ],
    }
]
UI_OPEN: list[Any] = [
    {
        "id": "a1",
        "role": "assistant",
        "parts": [
            {
                "type": "tool-get_weather",
                "toolCallId": "call_a",
                "state": "input-available",
                "input": WEATHER,
            },
            {"type": "data-progress", "data": {"percent": 40}},
        ],
    }
]

# https://ai.google.dev/gemini-api/docs/function-calling
GEMINI_PLAIN: dict[str, Any] = {
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "contents": [
        {
            "role": "user",
            "parts": [
                {"text": "Weather in Oslo?"},
                {"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0x"}},
                {"fileData": {"mimeType": "image/png", "fileUri": "https://x.y/z"}},
            ],
        },
        {
            "role": "model",
            "parts": [
                {"text": "Clouds, so rain.", "thought": True},
                {"text": "Rain.", "thoughtSignature": "EjQK"},
            ],
        },
    ],
}
GEMINI_CALLS: list[Any] = [
    {"role": "user", "parts": [{"text": "Weather in Oslo and in Rome?"}]},
    {
        "role": "model",
        "parts": [
            {"functionCall": {"name": "get_weather", "args": WEATHER}},
            {"functionCall": {"name": "get_weather", "args": {"city": "Rome"}}},
        ],
    },
    {
        "role": "user",
        "parts": [
            {"functionResponse": {"name": "get_weather", "response": {"sky": "Rain"}}},
            {"functionResponse": {"name": "get_weather", "response": {"sky": "Sun"}}},
        ],
    },
    {"role": "model", "parts": [{"text": "Rain, and sun."}]},
]
# The dump of google-genai's types.
GEMINI_PYTHON: list[Any] = [
    {
        "role": "model",
        "parts": [
            {
                "text": None,
                "function_call": {"id": "fc1", "name": "get_weather", "args": WEATHER},
                "thought_signature": None,
            }
        ],
    },
    {
        "role": "function",
        "parts": [
            {
                "text": None,
                "function_response": {
                    "id": "fc1",
                    "name": "get_weather",
                    "response": {"result": "Rain"},
                },
            }
        ],
    },
]
GEMINI_CODE: list[Any] = [
    {"role": "user", "parts": ["What is 6 times 7?"]},
    {
        "role": "model",
        "parts": [
            {"executableCode": {"language": "PYTHON", "code": "print(6 * 7)"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "42"}},
        ],
    },
]


def form_of(message: ChatMessage) -> str:
    """The role of a message and its blocks, in short."""
    parts = []
    for block in message.blocks:
        if isinstance(block, ToolCallBlock):
            parts.append(f"call {block.tool_call_id} {block.tool_name}")
        elif isinstance(block, ThinkingBlock):
            parts.append(f"thinking {block.content}")
        elif isinstance(block, ImageBlock):
            parts.append("image")
        elif isinstance(block, DocumentBlock):
            parts.append("document")
        else:
            parts.append(str(getattr(block, "text", block)))
    answered = message.additional_kwargs.get("tool_call_id")
    result = f" to {answered}" if answered else ""
    return f"{message.role.value}{result}: {', '.join(parts)}"


HISTORIES: list[tuple[str, Any, list[str]]] = [
    ("agents plain", AGENTS_PLAIN, ["user: Weather in Oslo?", "assistant: Rain."]),
    (
        "agents call",
        AGENTS_CALL,
        [
            "user: Weather in Oslo?",
            "assistant: thinking I ask the tool., call call_a get_weather",
            "tool to call_a: Rain",
            "assistant: Rain.",
        ],
    ),
    (
        "agents parallel",
        AGENTS_PARALLEL,
        [
            "user: Weather in Oslo and in Rome?",
            "assistant: call call_a get_weather, call call_b get_weather",
            "tool to call_b: Sun",
            "tool to call_a: Rain",
        ],
    ),
    (
        "agents search",
        AGENTS_SEARCH,
        [
            "user: Weather in Oslo?",
            (
                'assistant: [web_search_call: {"id": "ws_1", "status": "completed", "action": '
                '{"type": "search", "query": "weather Oslo"}}], Rain.'
            ),
        ],
    ),
    (
        "ui plain",
        UI_PLAIN,
        [
            "user: Weather in Oslo?, image",
            'assistant: Rain., [source-url: {"sourceId": "s1", "url": "https://yr.no/oslo", "title": "Oslo"}]',
        ],
    ),
    (
        "ui steps",
        UI_STEPS,
        [
            "user: Weather?",
            "assistant: thinking I ask the tool., call call_a get_weather, call call_b get_time",
            'tool to call_a: {"sky": "Rain"}',
            "tool to call_b: No clock",
            "assistant: Rain.",
        ],
    ),
    (
        "ui version 4",
        UI_VERSION_4,
        [
            "assistant: call call_a get_weather",
            "tool to call_a: Rain",
            "assistant: Rain.",
        ],
    ),
    (
        "ui open",
        UI_OPEN,
        [
            "assistant: call call_a get_weather",
            'assistant: [data-progress: {"data": {"percent": 40}}]',
        ],
    ),
    (
        "gemini plain",
        GEMINI_PLAIN,
        [
            "system: Be brief.",
            "user: Weather in Oslo?, document, image",
            "assistant: thinking Clouds, so rain., Rain.",
        ],
    ),
    (
        "gemini calls",
        GEMINI_CALLS,
        [
            "user: Weather in Oslo and in Rome?",
            "assistant: call call_2_0 get_weather, call call_2_1 get_weather",
            'tool to call_2_0: {"sky": "Rain"}',
            'tool to call_2_1: {"sky": "Sun"}',
            "assistant: Rain, and sun.",
        ],
    ),
    (
        "gemini python",
        GEMINI_PYTHON,
        ["assistant: call fc1 get_weather", 'tool to fc1: {"result": "Rain"}'],
    ),
    (
        "gemini code",
        GEMINI_CODE,
        [
            "user: What is 6 times 7?",
            (
                'assistant: [executable_code: {"language": "PYTHON", "code": "print(6 * 7)"}], '
                '[code_execution_result: {"outcome": "OUTCOME_OK", "output": "42"}]'
            ),
        ],
    ),
]


@pytest.mark.parametrize(
    ("source", "forms"),
    [history[1:] for history in HISTORIES],
    ids=[history[0] for history in HISTORIES],
)
def test_a_history_comes_in_whole_with_its_calls_paired(
    source: Any, forms: list[str]
) -> None:
    messages = messages_from_json(json.dumps(source))
    assert [form_of(message) for message in messages] == forms
    calls = [
        block
        for message in messages
        for block in message.blocks
        if isinstance(block, ToolCallBlock)
    ]
    results = {message.additional_kwargs.get("tool_call_id") for message in messages}
    if source is not UI_OPEN:
        assert {call.tool_call_id for call in calls} == results - {None}
    for call in calls:
        assert json.loads(str(call.tool_kwargs)) in (WEATHER, {"city": "Rome"}, {})


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ([{"type": "human", "content": "Hello"}], "a message of LangChain"),
        ([{"lc": 1, "type": "constructor", "id": []}], "a message of LangChain"),
        ([{"role_type": "user", "content": "Hello"}], "a message of Zep"),
        ([{"id": "1", "memory": "Likes tea"}], "a memory of mem0"),
        ([{"title": "Trip", "mapping": {}}], "an export of ChatGPT"),
        ([{"uuid": "1", "chat_messages": []}], "an export of Claude"),
        ({"channel_values": {"messages": []}}, "a checkpoint of LangGraph"),
        ({"chunkedPrompt": {"chunks": []}}, "a prompt of Google AI Studio"),
        ({"schema": "llama_index_memory_ext.fact", "version": 1}, "facts that export"),
    ],
)
def test_a_wrong_file_is_named_by_the_format_that_it_looks_like(
    source: Any, form: str
) -> None:
    with pytest.raises(MessageError, match=f"It looks like {form}"):
        messages_from_json(json.dumps(source))


@pytest.mark.parametrize(
    "source",
    [
        [{"role": "model", "parts": [{"functionCall": "get_weather"}]}],
        [{"role": "model", "parts": [7]}],
        [{"role": "assistant", "parts": [{"type": "tool-x", "toolInvocation": 7}]}],
        [{"type": "reasoning", "summary": [{"secret": "words"}]}],
    ],
)
def test_parts_that_their_makers_do_not_write_are_refused(source: Any) -> None:
    with pytest.raises(MessageError) as error:
        messages_from_json(json.dumps(source))
    assert "words" not in str(error.value)


def test_the_time_of_a_message_of_the_ai_sdk_comes_along() -> None:
    answer = messages_from_json(json.dumps(UI_VERSION_4))[-1]
    assert str(answer.additional_kwargs["created_at"]).startswith("2025-03-01")
