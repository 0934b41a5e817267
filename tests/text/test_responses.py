"""How many tokens a call of a model took."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from llama_index.core.llms import ChatResponse

from llama_index_memory_ext import TokenCounter
from llama_index_memory_ext.text.responses import Usage, usage_of
from tests.conversation import assistant, user

OPENAI = SimpleNamespace(usage=SimpleNamespace(prompt_tokens=90, completion_tokens=7, total_tokens=97))
RESPONSES = SimpleNamespace(usage=SimpleNamespace(input_tokens=90, output_tokens=7, input_tokens_details={}))
ANTHROPIC = {
    "usage": SimpleNamespace(
        input_tokens=20, cache_creation_input_tokens=30, cache_read_input_tokens=40, output_tokens=7
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


@pytest.mark.parametrize("raw", [None, {}, {"usage": None}, {"usage": {"prompt_tokens": None}}])
def test_what_the_provider_does_not_tell_is_counted_and_marked(raw: Any) -> None:
    response = ChatResponse(message=assistant("Fine."), raw=raw)
    counter = TokenCounter()
    expected = Usage(1, counter.count("Hello."), counter.count("Fine."), counted=1)
    assert usage_of([user("Hello.")], response, counter) == expected
    assert expected + Usage(1, 1, 1) == Usage(2, counter.count("Hello.") + 1, counter.count("Fine.") + 1, 1)
