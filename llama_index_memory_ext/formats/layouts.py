"""Reads a message in the layout of OpenAI."""

from __future__ import annotations

import base64
import re
from typing import NamedTuple

from llama_index.core.base.llms import types
from llama_index.core.base.llms.types import (
    ChatMessage,
    TextBlock,
    ToolCallBlock,
)

from llama_index_memory_ext.errors import MessageError
from llama_index_memory_ext.text.messages import (
    ID_KEY,
    Json,
    calls_of,
    to_json,
)

# LlamaIndex's from_openai_message_dict is not used: it ignores calls, and raises
# KeyError for an image without a "detail".

_NAMES = ("name", "tool_call_id")
_CONTENT_KEYS = ("content", "tool_calls", "function_call", "refusal", "audio")
# The parts that are texts; input_text and output_text are of OpenAI's newer Responses.
_TEXT_KEYS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
_INLINE = re.compile(r"data:([^;,]*)[^,]*;base64,(.*)", re.DOTALL)
# In JSON, a thousand characters without a space or a quote are encoded data.
_ENCODED = re.compile("[!#-~]{1001,}")
_SHOWN_KEYS = 10
_TYPE_NAMES: dict[type, str] = {
    dict: "an empty object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    type(None): "null",
    int: "a number",
    float: "a number",
}


class _Base64(NamedTuple):
    """Data in base64; ``mimetype`` is None if no data URL names it."""

    mimetype: str | None
    data: bytes


def described(value: Json) -> str:
    """Return the type of a value, or the keys of an object; never a text."""
    if isinstance(value, dict) and value:
        keys = [repr(str(key)[:40]) for key in value]
        if len(keys) > _SHOWN_KEYS:
            keys = [*keys[:_SHOWN_KEYS], "..."]
        return f"an object with the keys {', '.join(keys)}"
    return _TYPE_NAMES.get(type(value), f"a Python {type(value).__name__}")


def from_openai(message: dict[str, Json]) -> ChatMessage:
    """Return LlamaIndex's message for a message of OpenAI's format; raise a MessageError for any other format."""
    if not any(key in message for key in _CONTENT_KEYS):
        keys = ", ".join(_CONTENT_KEYS[1:])
        raise MessageError(
            f"Expected 'content' or another of {keys}; got {described(message)}."
        )
    content = _content_blocks(message)
    blocks = [block for block in content if block != TextBlock(text="")]
    blocks += _call_blocks(message)
    names = {}
    for key in (*_NAMES, ID_KEY):
        if message.get(key) is not None:
            names[key] = _text(message, key)
    return ChatMessage(
        role=message["role"],
        blocks=blocks or [TextBlock(text="")],
        additional_kwargs=names,
    )


def _call_blocks(message: dict[str, Json]) -> list[ToolCallBlock]:
    entries = message.get("tool_calls") or []
    if not isinstance(entries, list):
        entries = [entries]
    entries = list(filter(None, [*entries, message.get("function_call")]))
    calls = calls_of(ChatMessage(additional_kwargs=message))
    are_objects = all(isinstance(entry, dict) for entry in entries)
    if not are_objects or not all(call.name for call in calls):
        seen = " and ".join(map(described, entries))
        raise MessageError(
            f"Expected objects that name a function in 'tool_calls' and 'function_call'; got {seen}."
        )
    return [
        ToolCallBlock(
            tool_call_id=call.id or None,
            tool_name=call.name,
            tool_kwargs=call.arguments,
        )
        for call in calls
    ]


def _content_blocks(message: dict[str, Json]) -> list[types.ContentBlock]:
    """Return the blocks of a message without its calls."""
    content = message.get("content")
    audio = message.get("audio")
    if not isinstance(content, str | list | None):
        raise MessageError(
            f"Expected a text, null or a list of parts in 'content'; got {described(content)}."
        )
    parts = content
    if not isinstance(parts, list):
        parts = [{"type": "text", "text": content or ""}]
    blocks = [_block(part, f"'content'[{i}]") for i, part in enumerate(parts)]
    if message.get("refusal"):
        blocks.append(TextBlock(text=_text(message, "refusal")))
    if isinstance(audio, dict) and audio.get("transcript") and not content:
        blocks.append(TextBlock(text=_text(audio, "transcript", "'audio'")))
    return blocks


def _block(part: Json, place: str) -> types.ContentBlock:
    kind = _text(part, "type", place)
    if kind in _TEXT_KEYS:
        return TextBlock(text=_text(part, _TEXT_KEYS[kind], place))
    if kind == "thinking":
        return types.ThinkingBlock(content=_text(part, kind, place))
    value = part.get(kind)
    value_place = f"{kind!r} of {place}"
    if kind == "image_url":
        return _image_block(value, value_place)
    if kind == "input_audio":
        sound = _base64(value, "data", value_place)
        sound_format = _text(value, "format", value_place)
        return types.AudioBlock(audio=sound.data, format=sound_format)
    has_file = isinstance(value, dict) and value.get("file_data") is not None
    if kind == "file" and has_file:
        file = _base64(value, "file_data", value_place)
        return types.DocumentBlock(
            data=file.data, title=value.get("filename"), document_mimetype=file.mimetype
        )
    # LlamaIndex has no block for this kind, nor for a file that has only OpenAI's id.
    rest = {key: entry for key, entry in part.items() if key != "type"}
    quoted = to_json(part.get(kind, rest))
    return TextBlock(text=f"[{kind}: {_ENCODED.sub('...', quoted)}]")


def _image_block(image: Json, place: str) -> types.ImageBlock:
    """Return the block for a picture; a text is the address of the picture."""
    if isinstance(image, str):
        image = {"url": image}
    if not _INLINE.fullmatch(_text(image, "url", place)):
        return types.ImageBlock(url=image["url"], detail=image.get("detail"))
    inline = _base64(image, "url", place)
    return types.ImageBlock(
        image=inline.data, image_mimetype=inline.mimetype, detail=image.get("detail")
    )


def _base64(parent: Json, key: str, place: str) -> _Base64:
    """Return the base64 under a key of an object, and its type if it is in a data URL."""
    data = _text(parent, key, place)
    mimetype = None
    inline = _INLINE.fullmatch(data)
    if inline:
        mimetype = inline[1] or None
        data = inline[2]
    try:
        base64.b64decode(data, validate=True)
    except ValueError:
        raise MessageError(
            f"Expected base64 in {key!r} of {place}; got {len(data)} other characters."
        ) from None
    return _Base64(mimetype, data.encode())


def _text(parent: Json, key: str, place: str = "the message") -> str:
    """Return the text under a key of an object; raise a MessageError without such a text."""
    value = parent.get(key) if isinstance(parent, dict) else None
    if isinstance(value, str):
        return value
    seen = described(parent) if value is None else f"{described(value)} there"
    raise MessageError(f"Expected {place} to have a text as {key!r}; got {seen}.")
