"""Histories of openai-agents, of the Vercel AI SDK and of Gemini, as messages of OpenAI's format."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llama_index_memory_ext.text.messages import Json, to_json

if TYPE_CHECKING:
    from collections.abc import Iterable

# The session items of openai-agents that are no messages.
_ITEM = re.compile(r"reasoning|compaction|item_reference|mcp_\w+|\w+_call(?:_output)?")
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
# Python's library of Gemini writes base64 in the alphabet for addresses.
_BASE64 = str.maketrans("-_", "+/")


class _History:
    """Messages that are collected from parts in their order. An answer ends at a text behind its calls."""

    def __init__(self) -> None:
        self.messages: list[Json] = []
        self.created_at: Json = None
        # The message that takes the next part; {} for none.
        self._current: dict[str, Json] = {}
        # The name of each call without a result, by its id.
        self._names: dict[str, str] = {}

    def add_message(self, message: Json) -> None:
        self.end_message()
        self.messages.append(message)

    def end_message(self) -> None:
        self._current = {}

    def add_part(self, role: Json, part: Json) -> None:
        if "tool_calls" in self._current:
            self.end_message()
        self._message_of(role)["content"].append(part)

    def add_call(self, call_id: Json, name: Json, arguments: Json) -> None:
        """Add a call; a call without an id gets one."""
        calls = self._message_of("assistant").setdefault("tool_calls", [])
        call_id = call_id or f"call_{len(self.messages)}_{len(calls)}"
        calls.append({"id": call_id, "name": name, "arguments": arguments or {}})
        self._names[call_id] = name

    def add_result(self, call_id: str | None, name: str, output: Json) -> None:
        """Add the result of a call; without an id, of the first call of this name that has none."""
        if not call_id:
            ids = (key for key, called in self._names.items() if called == name)
            call_id = next(ids, name)
        self._names.pop(call_id, None)
        content = output if isinstance(output, list) else to_json(output)
        self.messages.append(
            {"role": "tool", "tool_call_id": call_id, "content": content}
        )

    def _message_of(self, role: str) -> dict[str, Json]:
        if self._current.get("role") != role:
            message = {"role": role, "content": [], "created_at": self.created_at}
            self.add_message(message)
            self._current = message
        return self._current


def as_openai(entries: Iterable[Json]) -> list[Json]:
    """Return the entries as messages of OpenAI's format; entries of other formats as they are."""
    history = _History()
    for entry in entries:
        fields = entry if isinstance(entry, dict) else {}
        parts = fields.get("parts")
        kind = fields.get("type")
        role = fields.get("role")
        history.created_at = fields.get("createdAt")
        if isinstance(parts, list):
            history.end_message()
            for part in parts:
                _add_part(history, role, part)
            history.end_message()
        elif role is None and _ITEM.fullmatch(str(kind)):
            _add_item(history, fields)
        elif kind == "message" and isinstance(fields.get("content"), list):
            for part in fields["content"]:
                history.add_part(role, part)
        else:
            history.add_message(entry)
    return history.messages


def _add_item(history: _History, item: dict[str, Json]) -> None:
    """Add a session item of openai-agents."""
    call_id = item.get("call_id")
    if item["type"] == "reasoning":
        for key in ("summary", "content"):
            for part in item.get(key) or ():
                thought = {"type": "thinking", "thinking": part["text"]}
                history.add_part("assistant", thought)
    elif call_id and "output" in item:
        history.add_result(call_id, "", item["output"])
        history.end_message()
    elif call_id:
        arguments = item.get("arguments", item.get("input", item.get("action")))
        history.add_call(call_id, item.get("name", item["type"]), arguments)
    else:
        history.add_part("assistant", item)


def _add_part(history: _History, role: Json, part: Json) -> None:
    """Add a part of Gemini's contents, or of a ``UIMessage``, whose parts have a type."""
    role = role or "user"
    if role == "model":
        role = "assistant"
    if isinstance(part, str):
        history.add_part(role, {"type": "text", "text": part})
    elif "type" in part:
        _add_ui_part(history, role, part)
    else:
        _add_gemini_part(history, role, _in_snake_case(part))


def _add_ui_part(history: _History, role: str, part: dict[str, Json]) -> None:
    kind = str(part["type"])
    if kind == "step-start":
        history.end_message()
    elif kind == "reasoning":
        history.add_part(role, {"type": "thinking", "thinking": part.get("text")})
    elif kind == "file":
        file = _file(part.get("mediaType"), part.get("url"), part.get("filename"))
        history.add_part(role, file)
    elif kind.startswith("tool-") or kind == "dynamic-tool":
        # Before version 5 of the SDK, the fields were in an object, under other names.
        call = part.get("toolInvocation", part)
        call_id = call.get("toolCallId")
        name = call.get("toolName", kind.removeprefix("tool-"))
        history.add_call(call_id, name, call.get("input", call.get("args")))
        for key in ("output", "result", "errorText"):
            if call.get(key) is not None:
                history.add_result(call_id, name, to_json(call[key]))
    else:
        history.add_part(role, part)


def _add_gemini_part(history: _History, role: str, part: dict[str, Json]) -> None:
    for kind, value in part.items():
        if kind == "function_call":
            history.add_call(value.get("id"), value["name"], value.get("args"))
        elif kind == "function_response":
            history.add_result(value.get("id"), value["name"], value.get("response"))
        elif kind in ("inline_data", "file_data"):
            blob = _in_snake_case(value)
            data = str(blob.get("data")).translate(_BASE64)
            url = blob.get("file_uri", f"data:{blob.get('mime_type')};base64,{data}")
            history.add_part(role, _file(blob.get("mime_type"), url, None))
        elif kind == "text" and part.get("thought"):
            history.add_part(role, {"type": "thinking", "thinking": value})
        elif kind not in ("thought", "thought_signature"):
            history.add_part(role, {"type": kind, kind: value})


def _in_snake_case(fields: dict[str, Json]) -> dict[str, Json]:
    """Return the fields that are set, under the names that Gemini's Python library writes."""
    return {
        _CAPITAL.sub("_", key).lower(): value
        for key, value in fields.items()
        if value is not None
    }


def _file(mimetype: Json, url: Json, name: Json) -> dict[str, Json]:
    """Return OpenAI's part for a file."""
    if str(mimetype).startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    key = "file_data" if str(url).startswith("data:") else "url"
    return {"type": "file", "file": {key: url, "filename": name}}
