"""What LlamaIndex's class for Amazon Bedrock makes of the memory's messages."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from llama_index.core.base.llms.types import CacheControl, ChatMessage, ToolCallBlock

from tests.conversation import BEFORE_QUESTION
from tests.memories import OpenMemory

POINT = {"cachePoint": {"type": "default"}}


def exchange(number: int) -> list[ChatMessage]:
    """A turn with a tool call."""
    call = ToolCallBlock(
        tool_call_id=f"tooluse_{number}", tool_name="look", tool_kwargs={"at": number}
    )
    return [
        ChatMessage(role="user", content=f"What is number {number}?"),
        ChatMessage(role="assistant", blocks=[call]),
        ChatMessage(
            role="tool",
            content="a fox " * 100,
            additional_kwargs={"tool_call_id": f"tooluse_{number}"},
        ),
        ChatMessage(role="assistant", content=f"Number {number} is a fox."),
    ]


async def test_cache_points_stand_between_the_texts_of_the_record(
    open_memory: OpenMemory, caplog: pytest.LogCaptureFixture
) -> None:
    """None is within a result, and none follows another or stands first; the control that was lent stays as it is."""
    # The library of AWS, which no other test needs.
    from llama_index.llms.bedrock_converse.utils import (  # noqa: PLC0415
        messages_to_converse_messages,
    )

    control = CacheControl(type="default")
    memory = open_memory(cache_points=control, condensed_token_limit=3_000)
    for number in range(4):
        await memory.aput_messages(exchange(number))
    await memory.aput_messages(exchange(4)[:3])
    with caplog.at_level(logging.WARNING):
        messages, system = messages_to_converse_messages(
            await memory.aget(), "amazon.nova-pro-v1:0"
        )
    assert caplog.records == []
    assert control == CacheControl(type="default")
    assert system == []
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    prompt: list[dict[str, Any]] = messages[0]["content"]
    points = [i for i, block in enumerate(prompt) if block == POINT]
    assert 1 <= len(points) <= 4
    assert all("text" in prompt[i - 1] for i in points)
    assert points[0] > 0
    (result,) = messages[2]["content"]
    assert [list(block) for block in result["toolResult"]["content"]] == [["text"]]
    text = "".join(block.get("text", "") for block in prompt)
    assert text.startswith("<memory>\n<condensed_memory>\n")
    assert text.endswith(f"{BEFORE_QUESTION}What is number 4?")
