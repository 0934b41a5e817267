"""Reads why a model stopped, in the words of any provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llama_index.core.base.llms.types import ChatResponse

# The names of OpenAI, Anthropic, Bedrock, Google, Mistral, Cohere and Ollama.
_KEYS = ("finish_reason", "stop_reason", "stopReason", "finishReason", "done_reason", "status")
_CHOICES = ("choices", "candidates")
_TRUNCATED = frozenset({"length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"})
_REFUSED = frozenset({"content_filter", "refusal", "safety", "guardrail_intervened", "content_filtered"})


def finish_reason(response: ChatResponse) -> str:
    """Returns why the model stopped, in lower case and as its provider calls it; "" if the response does not say.

    It is looked for in ``raw``, then in the ``additional_kwargs`` of the response and of its message.
    """
    for place in (response.raw, response.additional_kwargs, response.message.additional_kwargs):
        choices = next(filter(None, (field_of(place, name) for name in _CHOICES)), None)
        choice = choices[0] if isinstance(choices, list) and choices else None
        values = [field_of(part, key) for part in (choice, place) for key in _KEYS]
        details = field_of(field_of(place, "incomplete_details"), "reason")
        if reason := next(filter(None, (details, *values)), None):
            # Google's reasons are members of an enumeration.
            return str(getattr(reason, "name", reason)).lower()
    return ""


def was_truncated(response: ChatResponse) -> bool:
    """Returns whether the limit of tokens has cut the answer."""
    return finish_reason(response) in _TRUNCATED


def was_refused(response: ChatResponse) -> bool:
    """Returns whether the provider reports a ``refusal``, or a ``content_filter`` that stopped the model."""
    choices = field_of(response.raw, "choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    return finish_reason(response) in _REFUSED or bool(field_of(field_of(choice, "message"), "refusal"))


def field_of(value: Any, name: str) -> Any:
    """Returns a field of an object or an entry of a dict; None if there is none."""
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)
