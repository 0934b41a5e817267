"""What OpenAI's servers complain of in a request: its fields and its length."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from llama_index_memory_ext import TokenCounter

BREAKPOINT = "prompt_cache_breakpoint"
_MARKED_PARTS = (
    "text",
    "image_url",
    "file",
    "input_audio",
    "input_text",
    "input_image",
    "input_file",
)
_TEXT_ONLY = ("system", "developer", "assistant", "tool")
_KEY_CHARACTERS = 64


def why_fields_refused(body: dict[str, Any], *, older: bool) -> str | None:
    """The complaint, or None. Models before GPT-5.6 know neither breakpoints nor options."""
    marks = [
        f"{place}.{BREAKPOINT}" for place, _, part in _parts(body) if BREAKPOINT in part
    ]
    if older and ("prompt_cache_options" in body or marks):
        return f"Unknown parameter: '{'prompt_cache_options' if 'prompt_cache_options' in body else marks[0]}'."
    for place, role, part in _parts(body):
        complaint = _why_part_refused(place, role, part)
        if complaint:
            return complaint
    return _why_key_refused(body.get("prompt_cache_key")) or _why_options_refused(
        body.get("prompt_cache_options", {})
    )


def _parts(body: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each message or item, and each of its parts, with its place and its role."""
    name = "input" if "input" in body else "messages"
    items = body[name] if isinstance(body.get(name), list) else []
    for i, item in enumerate(items):
        role = item.get("role") or (
            "tool" if item.get("type") == "function_call_output" else "assistant"
        )
        yield (
            f"{name}[{i}]",
            role,
            {BREAKPOINT: item[BREAKPOINT]} if BREAKPOINT in item else {},
        )
        for field in ("content", "output"):
            for j, part in enumerate(
                item.get(field) or [] if isinstance(item.get(field), list) else []
            ):
                yield f"{name}[{i}].{field}[{j}]", role, part


def _why_part_refused(place: str, role: str, part: dict[str, Any]) -> str | None:
    kind = part.get("type", "")
    if kind in ("image_url", "file", "input_audio") and role in _TEXT_ONLY:
        return f"Invalid value: '{kind}'. Supported values are: 'text' ('{place}')."
    if BREAKPOINT not in part:
        return None
    if role == "assistant" or kind not in _MARKED_PARTS:
        return f"Unknown parameter: '{place}.{BREAKPOINT}'."
    if part[BREAKPOINT] != {"mode": "explicit"}:
        return f"Invalid value for '{place}.{BREAKPOINT}'."
    return None


def why_pictures_refused(body: dict[str, Any]) -> str | None:
    """The complaint of a server whose model reads text alone, or None."""
    for place, _, part in _parts(body):
        if part.get("type") == "image_url":
            return f"Failed to deserialize the JSON body: {place}: unknown variant `image_url`, expected `text`"
    return None


def _why_key_refused(key: Any) -> str | None:
    if key is None or (isinstance(key, str) and len(key) <= _KEY_CHARACTERS):
        return None
    return f"Invalid 'prompt_cache_key': expected a string with maximum length {_KEY_CHARACTERS}."


def _why_options_refused(options: Any) -> str | None:
    allowed = {"mode": ("implicit", "explicit"), "ttl": ("30m",)}
    if isinstance(options, dict) and all(
        value in allowed.get(name, ()) for name, value in options.items()
    ):
        return None
    return "Invalid value for 'prompt_cache_options'."


_COUNTER = TokenCounter()
# What each message has besides its texts and calls, and what the answer begins with.
_MESSAGE_TOKENS, _ANSWER_TOKENS = 4, 3


def tokens_in(messages: list[dict[str, Any]]) -> int:
    """The tokens of the messages of a request."""
    return _ANSWER_TOKENS + sum(
        _MESSAGE_TOKENS + _COUNTER.count(_text_of(message)) for message in messages
    )


def why_too_long(
    body: dict[str, Any], messages: list[dict[str, Any]], window: int
) -> dict[str, Any] | None:
    """The error for messages, tools and the room that is asked for the answer, if they exceed the window."""
    tools = sum(_COUNTER.count(json.dumps(tool)) for tool in body.get("tools") or [])
    prompt, answer = (
        tokens_in(messages),
        body.get("max_completion_tokens") or body.get("max_tokens") or 0,
    )
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
    pieces = (
        [content]
        if isinstance(content, str)
        else [part.get("text") or json.dumps(part) for part in content]
    )
    calls = [json.dumps(call["function"]) for call in message.get("tool_calls") or []]
    return "".join([*pieces, *calls])
