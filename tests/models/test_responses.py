"""What a response tells beside its text: how many tokens it took, and why the model stopped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage, ChatResponse
from openai.types.chat import ChatCompletion

from llama_index_memory_ext import TokenCounter
from llama_index_memory_ext.models.ask import (
    Usage,
    finish_reason,
    usage_of,
    was_refused,
    was_truncated,
)
from tests.conversation import assistant, user

OPENAI = SimpleNamespace(
    usage=SimpleNamespace(prompt_tokens=90, completion_tokens=7, total_tokens=97)
)
RESPONSES = SimpleNamespace(
    usage=SimpleNamespace(input_tokens=90, output_tokens=7, input_tokens_details={})
)
ANTHROPIC = {
    "usage": SimpleNamespace(
        input_tokens=20,
        cache_creation_input_tokens=30,
        cache_read_input_tokens=40,
        output_tokens=7,
    )
}
BEDROCK = {"usage": {"inputTokens": 50, "cacheReadInputTokens": 40, "outputTokens": 7}}
GEMINI = {"usage_metadata": {"prompt_token_count": 90, "candidates_token_count": 7}}
OLLAMA = {"prompt_eval_count": 90, "eval_count": 7}


@pytest.mark.parametrize("raw", [OPENAI, RESPONSES, ANTHROPIC, BEDROCK, GEMINI, OLLAMA])
def test_what_the_provider_tells_is_taken(raw: Any) -> None:
    """With what its cache had, which some do not count among the prompt."""
    response = ChatResponse(message=assistant("Fine."), raw=raw)
    assert usage_of([user("Hello.")], response, TokenCounter()) == Usage(1, 90, 7)


@pytest.mark.parametrize(
    "raw", [None, {}, {"usage": None}, {"usage": {"prompt_tokens": None}}]
)
def test_what_the_provider_does_not_tell_is_counted_and_marked(raw: Any) -> None:
    response = ChatResponse(message=assistant("Fine."), raw=raw)
    counter = TokenCounter()
    expected = Usage(1, counter.count("Hello."), counter.count("Fine."), counted=1)
    assert usage_of([user("Hello.")], response, counter) == expected
    assert expected + Usage(1, 1, 1) == Usage(
        2, counter.count("Hello.") + 1, counter.count("Fine.") + 1, 1
    )


def response(raw: Any, **kwargs: Any) -> ChatResponse:
    return ChatResponse(
        message=ChatMessage(role="assistant", content="Hi"),
        raw=raw,
        additional_kwargs=kwargs,
    )


def completion(reason: str, **message: Any) -> ChatCompletion:
    choice = {
        "index": 0,
        "finish_reason": reason,
        "message": {"role": "assistant", "content": None, **message},
    }
    fields: dict[str, Any] = {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
    }
    return ChatCompletion.model_validate(fields)


CUT = [
    response(completion("length")),
    response({"choices": [{"finish_reason": "length"}]}),
    response(
        {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    ),
    response({"stop_reason": "max_tokens"}),
    response({"stopReason": "max_tokens"}),
    response({"candidates": [{"finishReason": "MAX_TOKENS"}]}),
    response({"done_reason": "length"}),
    response(None, finish_reason="length"),
]
REFUSED = [
    response(completion("content_filter")),
    response(completion("stop", refusal="I cannot help with that.")),
    response({"stop_reason": "refusal"}),
    response({"stopReason": "guardrail_intervened"}),
]
NOTHING: list[Any] = [
    None,
    {},
    [],
    "text",
    7,
    {"choices": []},
    {"choices": [None]},
    completion("stop"),
]
OTHERS = list(map(response, NOTHING))


@pytest.mark.parametrize("answer", [*CUT, *REFUSED, *OTHERS])
def test_an_answer_that_was_cut_and_one_that_was_refused_are_seen_for_every_provider(
    answer: ChatResponse,
) -> None:
    assert was_truncated(answer) is (answer in CUT)
    assert was_refused(answer) is (answer in REFUSED)
    assert answer not in OTHERS or finish_reason(answer) in ("", "stop")
