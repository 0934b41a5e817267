"""What the record, facts and searches show of the answers of each provider: words, and nothing that it adds to them."""

# ruff: noqa: PLC0415 - the packages of providers take seconds to import, and other tests do without them

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.base.llms.types import ThinkingBlock
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import messages_from_json
from llama_index_memory_ext.text.entries import body_of
from llama_index_memory_ext.text.messages import calls_of
from tests.conversation import record, result, sent_text, user
from tests.memories import OpenMemory
from tests.recorded_replies import (
    QUERY,
    REPLIES,
    SIGNATURE,
    SIGNING,
    THOUGHT,
    WORDS,
    cohere,
    replay,
)

# Base64 has two alphabets, and Google's API takes both.
STANDARD = str.maketrans("-_", "+/")


def gemini_message(*parts: dict[str, Any]) -> ChatMessage:
    """What LlamaIndex's Gemini class makes of an answer with these parts."""
    pytest.importorskip("llama_index.llms.google_genai")
    from google.genai.types import GenerateContentResponse
    from llama_index.llms.google_genai.utils import chat_from_gemini_response

    content = {"role": "model", "parts": list(parts)}
    usage = {
        "promptTokenCount": 1_234,
        "candidatesTokenCount": 567,
        "totalTokenCount": 1_801,
    }
    answer = {
        "candidates": [{"content": content, "finishReason": "STOP"}],
        "usageMetadata": usage,
    }
    return chat_from_gemini_response(
        GenerateContentResponse.model_validate(answer), []
    ).message


@pytest.mark.timeout(120)
@pytest.mark.parametrize("make", REPLIES, ids=lambda make: make.__name__)
async def test_words_are_shown_and_the_turn_that_goes_on_keeps_all_else(
    make: Callable[[str], Any], open_memory: OpenMemory
) -> None:
    """The next request of the turn is the one that the class sends without a memory."""
    pytest.importorskip(f"llama_index.llms.{make.__name__.removesuffix('_responses')}")
    memory = open_memory()
    with replay(REPLIES[make]) as server:
        llm = make(server.address)
        answer = (await llm.achat([user("Weather?")])).message
        (call,) = calls_of(answer)
        assert (call.name, json.loads(call.arguments)) == ("weather", QUERY)
        turn = [user("Weather?"), answer, result(call.id or "call_1", "Rain.")]
        await memory.aput_messages(turn)
        # LlamaIndex's class for Cohere takes its own objects only, and none that come from a database.
        if make is not cohere:
            await llm.achat(await memory.aget())
            await llm.achat(turn)
            stored, given = map(json.dumps, server.bodies[-2:])
            assert stored.translate(STANDARD) == given.translate(STANDARD)
            assert (SIGNATURE in stored) == (make in SIGNING)
    await memory.aput_messages(
        [ChatMessage(role="assistant", content="It rains."), user("And now?")]
    )
    asked, called, *_ = record(sent_text(await memory.aget()))
    source = (
        "[citation: Weather]\nRain in Oslo.\n" if make.__name__ == "anthropic" else ""
    )
    head = f"[tool call {call.id}]" if call.id else "[tool call]"
    assert asked == ("user", "Weather?")
    assert called == (
        "assistant",
        f'{WORDS}\n{source}{head} weather({{"city": "Oslo"}})',
    )


async def test_a_signature_of_thoughts_in_bytes_is_stored(
    open_memory: OpenMemory,
) -> None:
    """Gemini signs its thoughts themselves, too; LlamaIndex's own dump of such a message fails."""
    thought = {"text": THOUGHT, "thought": True, "thoughtSignature": SIGNATURE}
    answer = gemini_message(thought, {"text": WORDS})
    before = answer.model_dump()
    memory = open_memory()
    await memory.aput_messages([user("Weather?"), answer])
    assert answer.model_dump() == before
    for stored in (await memory.aget_all(), messages_from_json(await memory.aexport())):
        thinking, _ = stored[-1].blocks
        assert isinstance(thinking, ThinkingBlock)
        assert thinking.additional_information["thought_signature"] == SIGNATURE
        assert body_of(stored[-1]) == WORDS
