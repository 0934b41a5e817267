"""What OpenAI's servers complain of in the fields of a request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.openai_schemas import why_format_refused

BREAKPOINT = "prompt_cache_breakpoint"
_MARKED_PARTS = ("text", "image_url", "file", "input_audio", "input_text", "input_image", "input_file")
_TEXT_ONLY = ("system", "developer", "assistant", "tool")
_KEY_CHARACTERS = 64


def why_fields_refused(body: dict[str, Any], *, older: bool) -> str | None:
    """The complaint, or None. Models before GPT-5.6 know neither breakpoints nor options."""
    marks = [f"{place}.{BREAKPOINT}" for place, _, part in _parts(body) if BREAKPOINT in part]
    if older and ("prompt_cache_options" in body or marks):
        return f"Unknown parameter: '{'prompt_cache_options' if 'prompt_cache_options' in body else marks[0]}'."
    for place, role, part in _parts(body):
        complaint = _why_part_refused(place, role, part)
        if complaint:
            return complaint
    return (
        _why_key_refused(body.get("prompt_cache_key"))
        or _why_options_refused(body.get("prompt_cache_options", {}))
        or why_format_refused(body.get("response_format"))
    )


def _parts(body: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each message or item, and each of its parts, with its place and its role."""
    name = "input" if "input" in body else "messages"
    items = body[name] if isinstance(body.get(name), list) else []
    for i, item in enumerate(items):
        role = item.get("role") or ("tool" if item.get("type") == "function_call_output" else "assistant")
        yield f"{name}[{i}]", role, {BREAKPOINT: item[BREAKPOINT]} if BREAKPOINT in item else {}
        for field in ("content", "output"):
            for j, part in enumerate(item.get(field) or [] if isinstance(item.get(field), list) else []):
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


def _why_key_refused(key: Any) -> str | None:
    if key is None or (isinstance(key, str) and len(key) <= _KEY_CHARACTERS):
        return None
    return f"Invalid 'prompt_cache_key': expected a string with maximum length {_KEY_CHARACTERS}."


def _why_options_refused(options: Any) -> str | None:
    allowed = {"mode": ("implicit", "explicit"), "ttl": ("30m",)}
    if isinstance(options, dict) and all(value in allowed.get(name, ()) for name, value in options.items()):
        return None
    return "Invalid value for 'prompt_cache_options'."
