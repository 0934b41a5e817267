"""Converts messages of OpenAI to LlamaIndex's, and LlamaIndex's to OpenAI's."""

from __future__ import annotations

import base64
import re

from llama_index.core.base.llms import types
from llama_index.core.base.llms.types import (
    ChatMessage,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)

from llama_index_memory_ext.errors import MessageError
from llama_index_memory_ext.text.messages import ID_KEY, body_of, cleaned
from llama_index_memory_ext.text.tool_calls import (
    ASSISTANT_ROLES,
    Json,
    calls_of,
    to_json,
)

# LlamaIndex's own converters are not used: from_openai_message_dict ignores calls and
# raises KeyError for an image without a "detail"; to_openai_message_dict loses names
# and downloads documents that have an address.

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


def described(value: Json) -> str:
    """Return what a value is, without any of its texts but keys."""
    if isinstance(value, dict) and value:
        keys = [repr(str(key)[:40]) for key in value]
        return f"an object with the keys {', '.join(keys[:_SHOWN_KEYS])}{', ...' if len(keys) > _SHOWN_KEYS else ''}"
    names = {
        dict: "an empty object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        type(None): "null",
    }
    names |= {int: "a number", float: "a number"}
    return names.get(type(value), f"a Python {type(value).__name__}")


def from_openai(message: dict[str, Json]) -> ChatMessage:
    """Return a message of OpenAI's format as LlamaIndex writes it, or raises a ``MessageError``."""
    if not any(key in message for key in _CONTENT_KEYS):
        others = ", ".join(_CONTENT_KEYS[1:])
        raise MessageError(
            f"Expected 'content' or another of {others}; saw {described(message)}."
        )
    blocks = [
        block for block in _content_blocks(message) if block != TextBlock(text="")
    ]
    listed = message.get("tool_calls") or []
    given = [
        *(listed if isinstance(listed, list) else [listed]),
        message.get("function_call"),
    ]
    given = list(filter(None, given))
    calls = calls_of(ChatMessage(additional_kwargs=message))
    if not all(isinstance(call, dict) for call in given) or not all(
        call.name for call in calls
    ):
        seen = " and ".join(map(described, given))
        raise MessageError(
            f"Expected objects that name a function in 'tool_calls' and 'function_call'; saw {seen}."
        )
    for call_id, name, kwargs in calls:
        blocks.append(
            ToolCallBlock(
                tool_call_id=call_id or None, tool_name=name, tool_kwargs=kwargs
            )
        )
    names = {
        key: _text(message, key)
        for key in (*_NAMES, ID_KEY)
        if message.get(key) is not None
    }
    return ChatMessage(
        role=message["role"],
        blocks=blocks or [TextBlock(text="")],
        additional_kwargs=names,
    )


def to_openai(message: ChatMessage) -> dict[str, Json]:
    """Return a message as OpenAI's API takes it. What the API has no place for is named in a text, or left out."""
    if message.role in ASSISTANT_ROLES:
        role = MessageRole.ASSISTANT
    else:
        role = message.role
    parts: list[dict[str, Json]] = []
    for block in message.blocks:
        if role == MessageRole.USER:
            medium = _medium(block)
        else:
            medium = None
        # No file is opened and no address is asked for. A medium that is not in the
        # message is named.
        if medium or isinstance(block, ToolCallBlock):
            text = ""
        else:
            text = body_of(ChatMessage(blocks=[block]))
        if medium or text:
            parts.append(medium or {"type": "text", "text": text})
    calls = calls_of(message)
    kwargs = message.additional_kwargs
    functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
    if [part["type"] for part in parts] == ["text"]:
        content = parts[0]["text"]
    else:
        content = parts or (None if calls else "")
    written: dict[str, Json] = {"role": role.value, "content": content}
    if len(calls) == 1 and not calls[0].id:
        written["function_call"] = functions[0]
    elif calls:
        ids = [call.id or f"call_{i}" for i, call in enumerate(calls)]
        pairs = zip(ids, functions, strict=True)
        written["tool_calls"] = [
            {"id": one, "type": "function", "function": function}
            for one, function in pairs
        ]
    return dict(
        cleaned(
            written
            | {key: str(kwargs[key]) for key in _NAMES if kwargs.get(key) is not None}
        )
    )


def _content_blocks(message: dict[str, Json]) -> list[types.ContentBlock]:
    """Return the blocks of all that is no call."""
    content = message.get("content")
    audio = message.get("audio")
    if not isinstance(content, str | list | None):
        raise MessageError(
            f"Expected a text, null or a list of parts in 'content'; saw {described(content)}."
        )
    if isinstance(content, list):
        parts = content
    else:
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
    value = part.get(kind)
    place = f"{kind!r} of {place}"
    if kind == "image_url":
        if isinstance(value, str):
            image = {"url": value}
        else:
            image = value
        if not _INLINE.fullmatch(_text(image, "url", place)):
            return types.ImageBlock(url=image["url"], detail=image.get("detail"))
        mimetype, data = _base64(image, "url", place)
        return types.ImageBlock(
            image=data, image_mimetype=mimetype, detail=image.get("detail")
        )
    if kind == "input_audio":
        return types.AudioBlock(
            audio=_base64(value, "data", place)[1], format=_text(value, "format", place)
        )
    if (
        kind == "file"
        and isinstance(value, dict)
        and value.get("file_data") is not None
    ):
        mimetype, data = _base64(value, "file_data", place)
        return types.DocumentBlock(
            data=data, title=value.get("filename"), document_mimetype=mimetype
        )
    # LlamaIndex has no block for it, nor for a file of which only OpenAI's id is known.
    quoted = to_json(
        part.get(kind, {key: entry for key, entry in part.items() if key != "type"})
    )
    return TextBlock(text=f"[{kind}: {_ENCODED.sub('...', quoted)}]")


def _base64(parent: Json, key: str, place: str) -> tuple[str | None, bytes]:
    """Return the base64 under a key of an object, and its type if it is in a data URL."""
    content = _text(parent, key, place)
    inline = _INLINE.fullmatch(content)
    mimetype, data = (inline[1] or None, inline[2]) if inline else (None, content)
    try:
        base64.b64decode(data, validate=True)
    except ValueError:
        raise MessageError(
            f"Expected base64 in {key!r} of {place}; saw {len(data)} other characters."
        ) from None
    return mimetype, data.encode()


def _text(parent: Json, key: str, place: str = "the message") -> str:
    """Return the text that an object must have under a key."""
    if isinstance(parent, dict):
        value = parent.get(key)
    else:
        value = None
    if not isinstance(value, str):
        if value is None:
            seen = described(parent)
        else:
            seen = f"{described(value)} there"
        raise MessageError(f"Expected {place} to have a text as {key!r}; saw {seen}.")
    return value


def _medium(block: types.ContentBlock) -> dict[str, Json] | None:
    """Return a block with a picture, a sound or a document in it as OpenAI writes it; None for any other block."""
    if isinstance(block, types.ImageBlock):
        image = {"url": str(block.url or ""), "detail": block.detail}
        if isinstance(block.image, bytes):
            image["url"] = _data_url(block.image_mimetype, block.image)
        if image["url"]:
            return {
                "type": "image_url",
                "image_url": {key: value for key, value in image.items() if value},
            }
    if (
        isinstance(block, types.AudioBlock)
        and isinstance(block.audio, bytes)
        and block.format
    ):
        return {
            "type": "input_audio",
            "input_audio": {"data": block.audio.decode(), "format": block.format},
        }
    if isinstance(block, types.DocumentBlock) and isinstance(block.data, bytes):
        file_data = _data_url(block.document_mimetype, block.data)
        return {
            "type": "file",
            "file": {"filename": block.title, "file_data": file_data},
        }
    return None


def _data_url(mimetype: str | None, data: bytes) -> str:
    return f"data:{mimetype or ''};base64,{data.decode()}"
