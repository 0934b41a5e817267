"""Converts messages that LangChain, LangGraph and Zep have written to OpenAI's format."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llama_index_memory_ext.errors import MessageError
from llama_index_memory_ext.formats.openai import described
from llama_index_memory_ext.text.identity import ID_KEY
from llama_index_memory_ext.text.times import times_in

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
    return isinstance(value, dict) and (bool(_langchain(value)[0]) or _is_zeps(value))


def from_foreign(value: dict[str, Json]) -> dict[str, Json]:
    """Returns a message of LangChain's or Zep's in OpenAI's format, its times and ``message_id`` beside it.

    Raises a MessageError for ``additional_kwargs`` that are no object.
    """
    kind, fields = _langchain(value)
    message = _from_langchain(kind, fields) if kind else _from_zep(value)
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


def _is_zeps(value: dict[str, Json]) -> bool:
    return not value.keys().isdisjoint(("role_type", "uuid", "uuid_")) and "content" in value


def _from_langchain(kind: str, fields: dict[str, Json]) -> dict[str, Json]:
    kwargs, content = fields.get("additional_kwargs") or {}, fields["content"]
    if not isinstance(kwargs, dict):
        raise MessageError(f"Expected 'additional_kwargs' of LangChain to be an object; saw {described(kwargs)}.")
    told = fields.get("response_metadata")
    times = {**(told if isinstance(told, dict) else {}), **kwargs, **fields}
    return {
        "role": _ROLES[kind] or fields.get("role"),
        "content": _parts(content),
        **_calls(fields, kwargs),
        **{key: fields.get(key) for key in ("name", "tool_call_id")},
        **{key: times[key] for key in times_in(times)},
        ID_KEY: fields.get("id"),
    }


def _calls(fields: dict[str, Json], kwargs: dict[str, Json]) -> dict[str, Json]:
    """Returns the calls of a message, which older versions have in ``additional_kwargs`` or in the content alone."""
    calls = [*_listed(fields.get("tool_calls")), *_listed(fields.get("invalid_tool_calls"))]
    if calls:
        return {"tool_calls": calls}
    raw = kwargs.get("tool_calls") or [part for part in _listed(fields["content"]) if _kind(part) == _CALL]
    return {"tool_calls": raw, "function_call": kwargs.get("function_call")}


def _parts(content: Json) -> Json:
    return [_part(part) for part in content if _kind(part) not in _HIDDEN] if isinstance(content, list) else content


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value] if value else []


def _kind(part: Json) -> str:
    return str(part.get("type")) if isinstance(part, dict) else ""


def _part(part: Json) -> Json:
    """Returns a part of a content as OpenAI writes it. What is not known here is left as it is."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    write = _WRITERS.get(_kind(part))
    # Anthropic writes the data into an object of their own.
    source = part["source"] if write and isinstance(part.get("source"), dict) else part
    return (write(source) if write else None) or part


def _image(source: dict[str, Json]) -> Json:
    url = _data_url(source) or source.get("url")
    return {"type": "image_url", "image_url": {"url": url}} if url else None


def _audio(source: dict[str, Json]) -> Json:
    mimetype, data = _data(source)
    return (
        {"type": "input_audio", "input_audio": {"data": data, "format": mimetype.rpartition("/")[2]}} if data else None
    )


def _file(source: dict[str, Json]) -> Json:
    url = _data_url(source)
    return {"type": "file", "file": {"file_data": url, "filename": source.get("filename")}} if url else None


_WRITERS = {"image": _image, "audio": _audio, "file": _file}


def _data(source: dict[str, Json]) -> tuple[str, Json]:
    mimetype = source.get("mime_type") or source.get("media_type") or ""
    return str(mimetype), source.get("base64") or source.get("data")


def _data_url(source: dict[str, Json]) -> str:
    mimetype, data = _data(source)
    return f"data:{mimetype};base64,{data}" if data else ""


def _from_zep(value: dict[str, Json]) -> dict[str, Json]:
    # The older "role" is any name, beside a "role_type".
    role_type, role = value.get("role_type"), value.get("role")
    return {
        "role": role_type or role,
        "content": value["content"],
        "name": value.get("name") or (role if role_type and role != role_type else None),
        # The time that the program has given, before that at which Zep has received it.
        "created_at": value.get("reference_time") or value.get("created_at"),
        ID_KEY: value.get("uuid") or value.get("uuid_"),
    }
