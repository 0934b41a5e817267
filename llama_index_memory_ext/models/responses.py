"""Reads what a response tells beside its text: how many tokens it took, and why the model stopped."""

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


# OpenAI's names (Chat Completions, Responses), which others have taken over, and those
# of Bedrock, Gemini and Ollama.
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
# Anthropic and Bedrock do not count among the tokens of the prompt what their caches
# had or took.
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
# Of an answer of which nothing is told so many characters are counted; a longer one
# counts as if it ended there.
_MOST_COUNTED = 50_000
_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Usage:
    """Calls of a model and their tokens, cached ones included; two can be added.

    Of ``counted`` of these calls the provider has told nothing: our tokenizer has
    counted their texts.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    counted: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(add, astuple(self), astuple(other)))


def usage_of(
    prompt: Sequence[ChatMessage], response: ChatResponse, counter: TokenCounter
) -> Usage:
    """Return what a call took, as the provider tells it in ``raw`` or, if it does not, as our tokenizer counts it."""
    raw = response.raw
    for told in (
        _field(raw, "usage"),
        _field(raw, "usage_metadata"),
        raw,
        response.additional_kwargs,
    ):
        asked = _first(told, _PROMPT)
        answered = _first(told, _COMPLETION)
        if asked is not None and answered is not None:
            return Usage(
                1, asked + sum(_first(told, (name,)) or 0 for name in _CACHED), answered
            )
    asked = sum(message_tokens(message, counter) for message in prompt)
    arguments = [
        block.tool_kwargs
        for block in response.message.blocks
        if isinstance(block, ToolCallBlock)
    ]
    if is_longer(
        [response.message.content, arguments, response.message.additional_kwargs],
        _MOST_COUNTED,
    ):
        # To count more would block the event loop.
        answered = _MOST_COUNTED // _CHARACTERS_PER_TOKEN
    else:
        answered = message_tokens(response.message, counter)
    return Usage(1, asked, answered, counted=1)


def finish_reason(response: ChatResponse) -> str:
    """Return why the model stopped, in lower case and as its provider calls it; "" if the response does not say.

    It is looked for in ``raw``, then in the ``additional_kwargs`` of the response and
    of its message.
    """
    for place in (
        response.raw,
        response.additional_kwargs,
        response.message.additional_kwargs,
    ):
        values = [
            _field(part, key) for part in (_choice(place), place) for key in _REASONS
        ]
        details = _field(_field(place, "incomplete_details"), "reason")
        if reason := next(filter(None, (details, *values)), None):
            # Google's reasons are members of an enumeration.
            return str(getattr(reason, "name", reason)).lower()
    return ""


def was_truncated(response: ChatResponse) -> bool:
    """Return whether the limit of tokens has cut the answer."""
    return finish_reason(response) in _TRUNCATED


def was_refused(response: ChatResponse) -> bool:
    """Return whether the provider reports a ``refusal``, or a ``content_filter`` that stopped the model."""
    return finish_reason(response) in _REFUSED or bool(
        _field(_field(_choice(response.raw), "message"), "refusal")
    )


def _first(told: Any, names: Sequence[str]) -> int | None:
    found = (_field(told, name) for name in names)
    return next(
        (
            count
            for count in found
            if isinstance(count, int) and not isinstance(count, bool)
        ),
        None,
    )


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
