"""Why a model stopped, in the words of the providers."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.llms import ChatMessage, ChatResponse
from openai.types.chat import ChatCompletion

from llama_index_memory_ext.text.responses import finish_reason, was_refused, was_truncated


def response(raw: Any, **kwargs: Any) -> ChatResponse:
    return ChatResponse(message=ChatMessage(role="assistant", content="Hi"), raw=raw, additional_kwargs=kwargs)


def completion(reason: str, **message: Any) -> ChatCompletion:
    choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": None, **message}}
    fields: dict[str, Any] = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return ChatCompletion.model_validate(fields)


@pytest.mark.parametrize(
    "cut",
    [
        response(completion("length")),
        response({"choices": [{"finish_reason": "length"}]}),
        response({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}),
        response({"stop_reason": "max_tokens"}),
        response({"stopReason": "max_tokens"}),
        response({"candidates": [{"finishReason": "MAX_TOKENS"}]}),
        response({"done_reason": "length"}),
        response(None, finish_reason="length"),
    ],
)
def test_an_answer_that_the_limit_has_cut_is_seen_for_every_provider(cut: ChatResponse) -> None:
    assert was_truncated(cut)
    assert not was_refused(cut)


@pytest.mark.parametrize(
    "refused",
    [
        response(completion("content_filter")),
        response(completion("stop", refusal="I cannot help with that.")),
        response({"stop_reason": "refusal"}),
        response({"stopReason": "guardrail_intervened"}),
    ],
)
def test_an_answer_that_was_refused_or_filtered_is_seen(refused: ChatResponse) -> None:
    assert was_refused(refused)
    assert not was_truncated(refused)


@pytest.mark.parametrize("raw", [None, {}, [], "text", 7, {"choices": []}, {"choices": [None]}, completion("stop")])
def test_any_other_answer_is_neither(raw: Any) -> None:
    assert finish_reason(response(raw)) in ("", "stop")
    assert not was_truncated(response(raw))
    assert not was_refused(response(raw))
