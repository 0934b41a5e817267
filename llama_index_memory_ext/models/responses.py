"""Responses of models: how many tokens a call used, and why the model stopped."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from operator import add
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ToolCallBlock

from llama_index_memory_ext.text.messages import message_tokens
from llama_index_memory_ext.text.tool_calls import is_longer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.base.llms.types import ChatMessage, ChatResponse

    from llama_index_memory_ext.text.tokens import TokenCounter


# OpenAI's names (Chat Completions, Responses), which other providers use, too, and the
# names of Bedrock, Gemini and Ollama.
_PROMPT = (
    "prompt_tokens",
    "input_tokens",
    "inputTokens",
    "prompt_token_count",
    "prompt_eval_count",
)
_COMPLETION = (
    "completion_tokens",
    "output_tokens",
    "outputTokens",
    "candidates_token_count",
    "eval_count",
)
# Anthropic and Bedrock count the tokens that their caches read or wrote apart from the
# tokens of the prompt.
_CACHED = (
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "cacheWriteInputTokens",
    "cacheReadInputTokens",
)

# The names of OpenAI, Anthropic, Bedrock, Google, Mistral, Cohere and Ollama.
_REASONS = (
    "finish_reason",
    "stop_reason",
    "stopReason",
    "finishReason",
    "done_reason",
    "status",
)
_TRUNCATED = frozenset(
    {
        "length",
        "max_tokens",
        "max_output_tokens",
        "model_length",
        "model_context_window_exceeded",
    }
)
_REFUSED = frozenset(
    {"content_filter", "refusal", "safety", "guardrail_intervened", "content_filtered"}
)
# Longer answers without reported tokens count as if they ended here: to count more
# would block the event loop.
_MOST_COUNTED = 50_000
_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Usage:
    """Calls of a model and their tokens; two can be added.

    ``prompt_tokens``: cached tokens included.
    ``counted``: the calls whose provider reported no tokens. Our tokenizer has counted
    their texts.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    counted: int = 0

    def __add__(self, usage: Usage) -> Usage:
        return Usage(*map(add, astuple(self), astuple(usage)))


def usage_of(
    prompt: Sequence[ChatMessage], response: ChatResponse, counter: TokenCounter
) -> Usage:
    """Return the tokens of a call: from ``raw``, or counted by our tokenizer if the provider does not report them."""
    raw = response.raw
    for report in (
        _field(raw, "usage"),
        _field(raw, "usage_metadata"),
        raw,
        response.additional_kwargs,
    ):
        prompt_tokens = _first_count(report, _PROMPT)
        completion_tokens = _first_count(report, _COMPLETION)
        if prompt_tokens is not None and completion_tokens is not None:
            for name in _CACHED:
                prompt_tokens += _first_count(report, (name,)) or 0
            return Usage(1, prompt_tokens, completion_tokens)
    prompt_tokens = sum(message_tokens(message, counter) for message in prompt)
    answer = response.message
    arguments = [
        block.tool_kwargs for block in answer.blocks if isinstance(block, ToolCallBlock)
    ]
    if is_longer([answer.content, arguments, answer.additional_kwargs], _MOST_COUNTED):
        completion_tokens = _MOST_COUNTED // _CHARACTERS_PER_TOKEN
    else:
        completion_tokens = message_tokens(answer, counter)
    return Usage(1, prompt_tokens, completion_tokens, counted=1)


def finish_reason(response: ChatResponse) -> str:
    """Return why the model stopped, in lower case, in the provider's words; "" if the response does not say.

    The reason is looked for in ``raw``, then in the ``additional_kwargs`` of the
    response and of its message.
    """
    for place in (
        response.raw,
        response.additional_kwargs,
        response.message.additional_kwargs,
    ):
        reasons = [_field(_field(place, "incomplete_details"), "reason")]
        for part in (_choice(place), place):
            reasons += [_field(part, key) for key in _REASONS]
        reason = next(filter(None, reasons), None)
        if reason:
            # Google's reasons are members of an enumeration.
            return str(getattr(reason, "name", reason)).lower()
    return ""


def was_truncated(response: ChatResponse) -> bool:
    """Return whether a limit of tokens has cut the answer."""
    return finish_reason(response) in _TRUNCATED


def was_refused(response: ChatResponse) -> bool:
    """Return whether the provider reports a ``refusal``, or a ``content_filter`` that stopped the model."""
    return finish_reason(response) in _REFUSED or bool(
        _field(_field(_choice(response.raw), "message"), "refusal")
    )


def _first_count(report: Any, names: Sequence[str]) -> int | None:
    for name in names:
        count = _field(report, name)
        if isinstance(count, int) and not isinstance(count, bool):
            return count
    return None


def _choice(place: Any) -> Any:
    """Return the first choice of a response; None if there is none."""
    choices = _field(place, "choices") or _field(place, "candidates")
    if isinstance(choices, list) and choices:
        return choices[0]
    return None


def _field(value: Any, name: str) -> Any:
    """Return a field of an object or an entry of a dict; None if there is none."""
    if isinstance(value, dict):
        return value.get(name)
    return getattr(value, name, None)
