"""How OpenAI's servers refuse a request that is longer than the context window of the model."""

from __future__ import annotations

import json
from typing import Any

from llama_index_memory_ext import TokenCounter

_COUNTER = TokenCounter()
# What each message has besides its texts and calls, and what the answer begins with.
_MESSAGE_TOKENS, _ANSWER_TOKENS = 4, 3


def tokens_in(messages: list[dict[str, Any]]) -> int:
    """The tokens of the messages of a request."""
    return _ANSWER_TOKENS + sum(_MESSAGE_TOKENS + _COUNTER.count(_text_of(message)) for message in messages)


def why_too_long(body: dict[str, Any], messages: list[dict[str, Any]], window: int) -> dict[str, Any] | None:
    """The error for messages, tools and the room that is asked for the answer, if they exceed the window."""
    tools = sum(_COUNTER.count(json.dumps(tool)) for tool in body.get("tools") or [])
    prompt, answer = tokens_in(messages), body.get("max_completion_tokens") or body.get("max_tokens") or 0
    if prompt + tools + answer <= window:
        return None
    return {
        "message": (
            f"This model's maximum context length is {window} tokens. However, you requested {prompt + tools + answer} "
            f"tokens ({prompt} in the messages, {tools} in the functions, and {answer} in the completion). Please "
            "reduce the length of the messages, functions, or completion."
        ),
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    pieces = [content] if isinstance(content, str) else [part.get("text") or json.dumps(part) for part in content]
    calls = [json.dumps(call["function"]) for call in message.get("tool_calls") or []]
    return "".join([*pieces, *calls])
