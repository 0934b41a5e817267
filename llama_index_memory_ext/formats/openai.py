"""Converts a message between OpenAI's Chat Completions and LlamaIndex."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from llama_index.core.base.llms import types
from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock, ToolCallBlock

from llama_index_memory_ext.errors import MessageError
from llama_index_memory_ext.text.messages import body_of
from llama_index_memory_ext.text.tool_calls import ASSISTANT_ROLES, calls_of

# LlamaIndex's own converters are not used: from_openai_message_dict ignores calls and raises KeyError for an image
# without a "detail"; to_openai_message_dict loses names and downloads documents that have an address.

_NAMES = ("name", "tool_call_id")
_CONTENT_KEYS = ("content", "tool_calls", "function_call", "refusal", "audio")
# The parts that are texts; input_text and output_text are of OpenAI's newer Responses.
_TEXT_KEYS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_DATA_URL = re.compile(r"data:([^;,]*)[^,]*;base64,(.*)", re.DOTALL)
# A text of more characters without a space is encoded data.
_LONGEST_WORD = 1_000
_SHOWN_KEYS = 10


def described(value: Any) -> str:
    """Returns what a value is, without any of its texts but keys.

    >>> described({"role": "user", "text": "secret"}), described(["secret"])
    ("an object with the keys 'role', 'text'", 'a list')
    """
    if isinstance(value, dict):
        keys = [repr(str(key)[:40]) for key in value]
        more = ", ..." if len(keys) > _SHOWN_KEYS else ""
        return f"an object with the keys {', '.join(keys[:_SHOWN_KEYS])}{more}" if keys else "an empty object"
    names = {str: "a text", list: "a list", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), f"a Python {type(value).__name__}")


def from_openai(message: dict[str, Any]) -> ChatMessage:
    """Returns a message of OpenAI's format as LlamaIndex writes it.

    Raises:
        MessageError: The format does not allow it. The error tells keys and types, never texts.
    """
    if not any(key in message for key in _CONTENT_KEYS):
        expected = f"'content' or another of {', '.join(_CONTENT_KEYS[1:])}"
        raise MessageError(f"Expected {expected}; saw {described(message)}.")
    calls = _call_blocks(message)
    audio = message["audio"] if isinstance(message.get("audio"), dict) else {}
    blocks = _content_blocks(message, audio) + calls or [TextBlock(text="")]
    kwargs = {key: _text(message[key], repr(key)) for key in _NAMES if message.get(key) is not None}
    if audio.get("id"):
        # LlamaIndex's own name for it.
        kwargs["reference_audio_id"] = _text(audio["id"], "the id of 'audio'")
    return ChatMessage(role=message["role"], blocks=blocks, additional_kwargs=kwargs)


def to_openai(message: ChatMessage) -> dict[str, Any]:
    """Returns a message as OpenAI's API takes it. What the API has no place for is named in a text, or left out."""
    role = MessageRole.ASSISTANT if message.role in ASSISTANT_ROLES else message.role
    parts = list(filter(None, (_part(block, with_media=role == MessageRole.USER) for block in message.blocks)))
    is_text = len(parts) == 1 and parts[0]["type"] == "text"
    calls, kwargs = _written_calls(message), message.additional_kwargs
    audio = kwargs.get("reference_audio_id")
    return {
        "role": role.value,
        "content": parts[0]["text"] if is_text else parts or (None if calls else ""),
        **calls,
        **{key: str(kwargs[key]) for key in _NAMES if kwargs.get(key) is not None},
        **({"audio": {"id": str(audio)}} if audio else {}),
    }


# ---- reading -------------------------------------------------------------------------------------------


def _content_blocks(message: dict[str, Any], audio: dict[str, Any]) -> list[Any]:
    """Returns the blocks of all that is no call, without empty texts."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    blocks = [_block(part, f"'content'[{i}]") for i, part in enumerate(parts)]
    if not isinstance(content, list | None):
        blocks.append(TextBlock(text=_text(content, "'content'", "a text, null or a list of parts")))
    if message.get("refusal") is not None:
        blocks.append(TextBlock(text=_text(message["refusal"], "'refusal'")))
    if not content and audio.get("transcript"):
        blocks.append(TextBlock(text=_text(audio["transcript"], "the transcript of 'audio'")))
    return [block for block in blocks if block != TextBlock(text="")]


def _block(part: Any, place: str) -> Any:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise MessageError(f"Expected an object with a 'type' in {place}; saw {described(part)}.")
    kind = part["type"]
    if kind in _TEXT_KEYS:
        key = _TEXT_KEYS[kind]
        return TextBlock(text=_text(part.get(key), f"{key!r} of {place}"))
    readers = {"image_url": _image, "input_audio": _sound, "file": _document}
    block = readers[kind](part.get(kind), f"{kind!r} of {place}") if kind in readers else None
    # LlamaIndex has no block for it.
    quoted = part.get(kind, {key: entry for key, entry in part.items() if key != "type"})
    return block or TextBlock(text=f"[{kind}: {json.dumps(_readable(quoted), ensure_ascii=False, default=str)}]")


def _image(value: Any, place: str) -> Any:
    image = {"url": value} if isinstance(value, str) else _object(value, place, "url")
    detail = _optional_text(image, "detail", place)
    inline = _DATA_URL.fullmatch(image["url"])
    if inline:
        return types.ImageBlock(image=_base64(inline[2], place), image_mimetype=inline[1] or None, detail=detail)
    try:
        return types.ImageBlock(url=image["url"], detail=detail)
    except ValueError:
        expected = "an address such as 'https://...' or 'data:...'"
        raise MessageError(f"Expected {expected} in {place}; saw another text.") from None


def _sound(value: Any, place: str) -> Any:
    sound = _object(value, place, "data", "format")
    return types.AudioBlock(audio=_base64(sound["data"], f"'data' of {place}"), format=sound["format"])


def _document(value: Any, place: str) -> Any:
    if not isinstance(value, dict) or not isinstance(value.get("file_data"), str):
        # It has an id of OpenAI's instead.
        return None
    inline = _DATA_URL.fullmatch(value["file_data"])
    mimetype, content = (inline[1] or None, inline[2]) if inline else (None, value["file_data"])
    data, title = _base64(content, f"'file_data' of {place}"), _optional_text(value, "filename", place)
    return types.DocumentBlock(data=data, title=title, document_mimetype=mimetype)


def _base64(content: str, place: str) -> bytes:
    try:
        base64.b64decode(content, validate=True)
    except ValueError:
        raise MessageError(f"Expected base64 in {place}; saw {len(content)} characters that are none.") from None
    return content.encode()


def _readable(value: Any) -> Any:
    """Returns the value without texts of encoded data."""
    if isinstance(value, dict):
        return {key: _readable(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return list(map(_readable, value))
    is_data = isinstance(value, str) and len(value) > _LONGEST_WORD and value.isascii() and " " not in value
    return "..." if is_data else value


def _call_blocks(message: dict[str, Any]) -> list[Any]:
    listed = message.get("tool_calls")
    if not isinstance(listed, list | None):
        raise MessageError(f"Expected a list of objects in 'tool_calls'; saw {described(listed)}.")
    for call in listed or []:
        if not isinstance(call, dict):
            raise MessageError(f"Expected a list of objects in 'tool_calls'; saw a list with {described(call)} in it.")
    if message.get("function_call") is not None:
        _object(message["function_call"], "'function_call'", "name")
    calls = calls_of(ChatMessage(additional_kwargs=message))
    if not all(call.name for call in calls):
        raise MessageError("Expected a 'function' with a 'name' in each of 'tool_calls'; saw a call without one.")
    return [
        ToolCallBlock(tool_call_id=call_id or None, tool_name=name, tool_kwargs=kwargs)
        for call_id, name, kwargs in calls
    ]


def _text(value: Any, place: str, expected: str = "a text") -> str:
    if not isinstance(value, str):
        raise MessageError(f"Expected {expected} in {place}; saw {described(value)}.")
    return value


def _optional_text(value: dict[str, Any], key: str, place: str) -> str | None:
    return None if value.get(key) is None else _text(value[key], f"the {key!r} of {place}")


def _object(value: Any, place: str, *texts: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in texts):
        wanted = " and ".join(map(repr, texts))
        raise MessageError(f"Expected an object with a text as {wanted} in {place}; saw {described(value)}.")
    return value


# ---- writing -------------------------------------------------------------------------------------------


def _part(block: Any, *, with_media: bool) -> dict[str, Any] | None:
    """Returns a block as a part of a content; None for a call, for thinking, and for a cache point."""
    media = _media(block) if with_media else None
    # No file is opened and no address is asked for. A medium that is not in the message is named.
    text = "" if isinstance(block, ToolCallBlock) else body_of(ChatMessage(blocks=[block]))
    return media or ({"type": "text", "text": text} if text or isinstance(block, TextBlock) else None)


def _media(block: Any) -> dict[str, Any] | None:
    if isinstance(block, types.ImageBlock):
        url = _address(block.image_mimetype, block.image, block.url)
        image = {"url": url, "detail": block.detail} if block.detail else {"url": url}
        return {"type": "image_url", "image_url": image} if url else None
    if isinstance(block, types.AudioBlock) and isinstance(block.audio, bytes) and block.format:
        return {"type": "input_audio", "input_audio": {"data": block.audio.decode(), "format": block.format}}
    if isinstance(block, types.DocumentBlock) and isinstance(block.data, bytes):
        file_data = _address(block.document_mimetype, block.data)
        return {"type": "file", "file": {"filename": block.title, "file_data": file_data}}
    return None


def _address(mimetype: str | None, content: object, url: object = None) -> str:
    if isinstance(content, bytes):
        return f"data:{mimetype or ''};base64,{content.decode()}"
    return str(url) if url else ""


def _written_calls(message: ChatMessage) -> dict[str, Any]:
    calls = calls_of(message)
    functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
    if len(calls) == 1 and not calls[0].id:
        return {"function_call": functions[0]}
    ids = [call.id or f"call_{i}" for i, call in enumerate(calls)]
    found = [{"id": ids[i], "type": "function", "function": function} for i, function in enumerate(functions)]
    return {"tool_calls": found} if found else {}
