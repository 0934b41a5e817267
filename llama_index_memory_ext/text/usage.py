"""Reads how many tokens a call of a model took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.text.finish import field_of
from llama_index_memory_ext.text.messages import message_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.base.llms.types import ChatMessage, ChatResponse

    from llama_index_memory_ext.text.tokens import TokenCounter

# OpenAI's names (Chat Completions, Responses), which others have taken over, and those of Bedrock, Gemini and Ollama.
_PROMPT = ("prompt_tokens", "input_tokens", "inputTokens", "prompt_token_count", "prompt_eval_count")
_COMPLETION = ("completion_tokens", "output_tokens", "outputTokens", "candidates_token_count", "eval_count")
# Anthropic and Bedrock do not count among the tokens of the prompt what their caches had or took.
_CACHED = (
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "cacheWriteInputTokens",
    "cacheReadInputTokens",
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Calls of a model and their tokens, cached ones included; two can be added.

    Of ``counted`` of these calls the provider has told nothing: our tokenizer has counted their texts.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    counted: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.counted + other.counted,
        )


def usage_of(prompt: Sequence[ChatMessage], response: ChatResponse, counter: TokenCounter) -> Usage:
    """Returns what a call took, as the provider tells it in ``raw`` or, if it does not, as our tokenizer counts it."""
    raw = response.raw
    for told in (field_of(raw, "usage"), field_of(raw, "usage_metadata"), raw, response.additional_kwargs):
        asked, answered = _first(told, _PROMPT), _first(told, _COMPLETION)
        if asked is not None and answered is not None:
            return Usage(1, asked + sum(_first(told, (name,)) or 0 for name in _CACHED), answered)
    asked = sum(message_tokens(message, counter) for message in prompt)
    return Usage(1, asked, message_tokens(response.message, counter), counted=1)


def _first(told: Any, names: Sequence[str]) -> int | None:
    found = (field_of(told, name) for name in names)
    return next((count for count in found if isinstance(count, int) and not isinstance(count, bool)), None)
