"""Converts messages that LangChain, LangGraph and Zep have written to OpenAI's format."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llama_index_memory_ext.errors import MessageError
from llama_index_memory_ext.formats.openai import described
from llama_index_memory_ext.text.messages import ID_KEY, times_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index_memory_ext.text.tool_calls import Json

# The types of LangChain's messages, and the roles that they stand for; that of a "chat" message is its own.
_ROLES = {"human": "user", "ai": "assistant", "chat": ""}
_ROLES |= {name: name for name in ("system", "developer", "tool", "function")}
# "AIMessageChunk" is a type, too, and "AIMessage" the end of a path.
_CLASS = re.compile(r"Message(?:Chunk)?$")
# Parts of a content that are calls, which stand in "tool_calls" as well, and what a model thinks.
_CALL = "tool_use"
_HIDDEN = frozenset({_CALL, "tool_call", "tool_call_chunk", "invalid_tool_call", "input_json_delta"})
_HIDDEN |= {"reasoning", "thinking", "redacted_thinking"}
# What OpenAI's API does not take in a name.
_NOT_IN_NAMES = re.compile(r"[\s<|\\/>]+")
_LONGEST_NAME = 64
_STATES = ("checkpoint", "values", "channel_values")


def state_of(value: Mapping[str, Json]) -> Mapping[str, Json]:
    """Returns what holds the messages of a thread's state or a checkpoint of LangGraph; any other object as it is."""
    for key in _STATES:
        inner = value.get(key)
        value = inner if isinstance(inner, dict) else value
    return value


def is_foreign(value: Json) -> bool:
    """Whether a value is a message of LangChain's or Zep's."""
    if not isinstance(value, dict):
        return False
    is_zeps = not value.keys().isdisjoint(("role_type", "uuid", "uuid_")) and "content" in value
    return is_zeps or bool(_langchain(value)[0])


def from_foreign(value: dict[str, Json]) -> dict[str, Json]:
    """Return a message of LangChain's or Zep's in OpenAI's format, its times and ``message_id`` beside it.

    Raise a MessageError for ``additional_kwargs`` that are no object.
    """
    kind, fields = _langchain(value)
    if kind:
        message = _from_langchain(kind, fields)
    else:
        # The older "role" of Zep is any name, beside a "role_type".
        role_type, role = value.get("role_type"), value.get("role")
        message = {
            "role": role_type or role,
            "content": value["content"],
            "name": value.get("name") or (role if role_type and role != role_type else None),
            # The time that the program has given, before that at which Zep has received it.
            "created_at": value.get("reference_time") or value.get("created_at"),
            ID_KEY: value.get("uuid") or value.get("uuid_"),
        }
    if isinstance(name := message.get("name"), str):
        message["name"] = _NOT_IN_NAMES.sub("_", name)[:_LONGEST_NAME]
    return {key: entry for key, entry in message.items() if entry not in (None, "") or key == "content"}


def _langchain(value: dict[str, Json]) -> tuple[str, dict[str, Json]]:
    """Returns the type of a message and its fields, as ``model_dump``, ``message_to_dict`` or ``dumpd`` gives them."""
    kind, fields = value.get("type"), value.get("data", value)
    if value.get("lc") and kind == "constructor":
        path = value.get("id")
        kind, fields = path[-1] if isinstance(path, list) and path else "", value.get("kwargs")
    kind = _CLASS.sub("", kind).lower() if isinstance(kind, str) else ""
    is_message = kind in _ROLES and isinstance(fields, dict) and "content" in fields
    return (kind, fields) if is_message else ("", {})


def _from_langchain(kind: str, fields: dict[str, Json]) -> dict[str, Json]:
    kwargs, content = fields.get("additional_kwargs") or {}, fields["content"]
    if not isinstance(kwargs, dict):
        raise MessageError(f"Expected 'additional_kwargs' of LangChain to be an object; saw {described(kwargs)}.")
    told = fields.get("response_metadata")
    times = {**(told if isinstance(told, dict) else {}), **kwargs, **fields}
    calls = [*_listed(fields.get("tool_calls")), *_listed(fields.get("invalid_tool_calls"))]
    function_call = None
    if not calls:
        # Older versions have them in ``additional_kwargs``, or in the content alone.
        calls = kwargs.get("tool_calls") or [part for part in _listed(content) if _kind(part) == _CALL]
        function_call = kwargs.get("function_call")
    parts = content if isinstance(content, list) else []
    return {
        "role": _ROLES[kind] or fields.get("role"),
        "content": [_part(part) for part in parts if _kind(part) not in _HIDDEN] if parts else content,
        "tool_calls": calls,
        "function_call": function_call,
        **{key: fields.get(key) for key in ("name", "tool_call_id")},
        **{key: times[key] for key in times_in(times)},
        ID_KEY: fields.get("id"),
    }


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value] if value else []


def _kind(part: Json) -> str:
    return str(part.get("type")) if isinstance(part, dict) else ""


def _part(part: Json) -> Json:
    """Return a part of a content as OpenAI writes it. What is not known here is left as it is."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = _kind(part)
    if kind not in ("image", "audio", "file"):
        return part
    # Anthropic writes the data into an object of their own.
    source = part["source"] if isinstance(part.get("source"), dict) else part
    mimetype = str(source.get("mime_type") or source.get("media_type") or "")
    data, url = source.get("base64") or source.get("data"), source.get("url")
    encoded = f"data:{mimetype};base64,{data}"
    if kind == "image" and (data or url):
        return {"type": "image_url", "image_url": {"url": encoded if data else url}}
    if kind == "audio" and data:
        return {"type": "input_audio", "input_audio": {"data": data, "format": mimetype.rpartition("/")[2]}}
    if kind == "file" and data:
        return {"type": "file", "file": {"file_data": encoded, "filename": source.get("filename")}}
    return part
