"""Turns a message in the format of OpenAI's Chat Completions into a ChatMessage, and back."""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import (
    AudioBlock,
    ChatMessage,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)

from llama_index_memory_ext.errors import MessageError
from llama_index_memory_ext.text.messages import ASSISTANT_ROLES, body_of, calls_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from llama_index_memory_ext.text.messages import ToolCall

# The host's own converters are not used: from_openai_message_dict takes no call for a call, and raises KeyError for an
# image without a "detail"; to_openai_message_dict loses names, and downloads documents that have an address.

# A word of more letters is none: a picture, say.
_LONGEST_WORD = 1_000
_SHOWN_KEYS = 10
_NAMES = ("name", "tool_call_id")
_SAYS = ("content", "tool_calls", "function_call", "refusal", "audio")
# The two others are those of OpenAI's newer Responses.
_TEXTS = ("text", "input_text", "output_text")


def from_openai(message: Mapping[str, Any]) -> ChatMessage:
    """A message of OpenAI's format as LlamaIndex writes it.

    Raises:
        MessageError: Something that the format does not allow; what is said of it are keys and types, never words.
    """
    if not any(key in message for key in _SAYS):
        raise MessageError(f"Expected 'content' or another of {', '.join(_SAYS[1:])}; saw {described(message)}.")
    calls = _read_calls(message)
    blocks = [block for block in _read_content(message) if not (isinstance(block, TextBlock) and not block.text)]
    if not blocks and not calls:
        blocks = [TextBlock(text="")]
    kwargs = {key: _text(message[key], f"{key!r}") for key in _NAMES if message.get(key) is not None}
    if isinstance(message.get("audio"), dict) and message["audio"].get("id"):
        # The host's own name for what the model has said aloud.
        kwargs["reference_audio_id"] = _text(message["audio"]["id"], "the id of 'audio'")
    return ChatMessage(role=message["role"], blocks=[*blocks, *calls], additional_kwargs=kwargs)


def to_openai(message: ChatMessage) -> dict[str, Any]:
    """A message as OpenAI's API takes it; whatever the API has no place for is named in a text, or left out."""
    role = MessageRole.ASSISTANT if message.role in ASSISTANT_ROLES else message.role
    calls = calls_of(message)
    parts = [part for block in message.blocks for part in _parts(block, with_media=role == MessageRole.USER)]
    written: dict[str, Any] = {"role": role.value, "content": _content(parts, empty=None if calls else "")}
    if len(calls) == 1 and not calls[0].id:
        written["function_call"] = {"name": calls[0].name, "arguments": calls[0].arguments}
    elif calls:
        written["tool_calls"] = [_written_call(call, i) for i, call in enumerate(calls)]
    kwargs = message.additional_kwargs
    written.update({key: str(kwargs[key]) for key in _NAMES if kwargs.get(key) is not None})
    if kwargs.get("reference_audio_id"):
        written["audio"] = {"id": str(kwargs["reference_audio_id"])}
    return written


def described(value: Any) -> str:
    """What a value is, without a word of what stands in it.

    >>> described({"role": "user", "text": "secret"}), described(["secret"])
    ("an object with the keys 'role', 'text'", 'a list')
    """
    if isinstance(value, dict):
        keys = [repr(str(key)[: _SHOWN_KEYS * 4]) for key in value]
        more = ", ..." if len(keys) > _SHOWN_KEYS else ""
        return f"an object with the keys {', '.join(keys[:_SHOWN_KEYS])}{more}" if keys else "an empty object"
    names = {str: "a text", list: "a list", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), f"a Python {type(value).__name__}")


# ---- reading ---------------------------------------------------------------------------------------


def _read_content(message: Mapping[str, Any]) -> Iterator[Any]:
    content = message.get("content")
    if isinstance(content, list):
        for i, part in enumerate(content):
            yield _read_part(part, f"'content'[{i}]")
    elif content is not None:
        yield TextBlock(text=_text(content, "'content'", "a text, null or a list of parts"))
    if message.get("refusal") is not None:
        yield TextBlock(text=_text(message["refusal"], "'refusal'"))
    if not content and isinstance(message.get("audio"), dict) and message["audio"].get("transcript"):
        yield TextBlock(text=_text(message["audio"]["transcript"], "the transcript of 'audio'"))


def _read_part(part: Any, place: str) -> Any:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise MessageError(f"Expected an object with a 'type' in {place}; saw {described(part)}.")
    kind = part["type"]
    if kind in _TEXTS or kind == "refusal":
        key = "text" if kind in _TEXTS else kind
        return TextBlock(text=_text(part.get(key), f"{key!r} of {place}"))
    if kind == "image_url":
        return _image(part.get(kind), f"{kind!r} of {place}")
    if kind == "input_audio":
        sound = _object(part.get(kind), f"{kind!r} of {place}", "data", "format")
        return AudioBlock(audio=_base64(sound["data"], f"'data' of {place}"), format=sound["format"])
    if kind == "file" and isinstance(part.get(kind), dict) and isinstance(part[kind].get("file_data"), str):
        return _document(part[kind], f"'file_data' of {place}")
    return TextBlock(text=_mark(part))


def _image(image: Any, place: str) -> ImageBlock:
    fields = _object({"url": image} if isinstance(image, str) else image, place, "url")
    detail = None if fields.get("detail") is None else _text(fields["detail"], f"the 'detail' of {place}")
    mimetype, content = _inline(fields["url"])
    if content is not None:
        return ImageBlock(image=_base64(content, place), image_mimetype=mimetype, detail=detail)
    try:
        return ImageBlock(url=fields["url"], detail=detail)
    except ValueError:
        raise MessageError(
            f"Expected an address such as 'https://...' or 'data:...' in {place}; saw another text."
        ) from None


def _document(file: Mapping[str, Any], place: str) -> DocumentBlock:
    mimetype, content = _inline(file["file_data"])
    return DocumentBlock(
        data=_base64(file["file_data"] if content is None else content, place),
        title=None if file.get("filename") is None else _text(file["filename"], f"'filename' beside {place}"),
        document_mimetype=mimetype,
    )


def _inline(url: str) -> tuple[str | None, str | None]:
    """The type and the base64 text of a ``data:`` address, or None for both."""
    head, comma, content = url.partition(",")
    if not (head.startswith("data:") and head.endswith(";base64") and comma):
        return None, None
    return head.removeprefix("data:").split(";")[0] or None, content


def _base64(content: str, place: str) -> bytes:
    try:
        base64.b64decode(content, validate=True)
    except (ValueError, binascii.Error):
        raise MessageError(f"Expected base64 in {place}; saw {len(content)} characters that are none.") from None
    return content.encode()


def _mark(part: Mapping[str, Any]) -> str:
    """What stands in the place of a part that LlamaIndex has no block for."""
    kind = part["type"]
    told = part.get(kind, {key: value for key, value in part.items() if key != "type"})
    return f"[{kind}: {json.dumps(_readable(told), ensure_ascii=False, default=str)}]"


def _readable(value: Any) -> Any:
    """The value without texts that nobody could read, such as a film in base64."""
    if isinstance(value, dict):
        return {key: _readable(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_readable(entry) for entry in value]
    is_word = isinstance(value, str) and len(value) > _LONGEST_WORD and value.isascii() and " " not in value
    return "..." if is_word else value


def _read_calls(message: Mapping[str, Any]) -> list[ToolCallBlock]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list | None) or not all(isinstance(call, dict) for call in calls or []):
        raise MessageError(f"Expected a list of objects in 'tool_calls'; saw {_described_list(calls)}.")
    function_call = message.get("function_call")
    if function_call is not None:
        _object(function_call, "'function_call'", "name")
    found = calls_of(ChatMessage(additional_kwargs={"tool_calls": calls, "function_call": function_call}))
    nameless = [call for call in found if not call.name]
    if nameless:
        raise MessageError("Expected a 'function' with a 'name' in each of 'tool_calls'; saw a call without one.")
    return [
        ToolCallBlock(tool_call_id=call.id or None, tool_name=call.name, tool_kwargs=call.arguments) for call in found
    ]


def _described_list(value: Any) -> str:
    if not isinstance(value, list):
        return described(value)
    return f"a list with {next(described(entry) for entry in value if not isinstance(entry, dict))} in it"


def _text(value: Any, place: str, expected: str = "a text") -> str:
    if not isinstance(value, str):
        raise MessageError(f"Expected {expected} in {place}; saw {described(value)}.")
    return value


def _object(value: Any, place: str, *texts: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in texts):
        wanted = " and ".join(repr(key) for key in texts)
        raise MessageError(f"Expected an object with a text as {wanted} in {place}; saw {described(value)}.")
    return value


# ---- writing ---------------------------------------------------------------------------------------


def _parts(block: Any, *, with_media: bool) -> Iterator[dict[str, Any]]:
    """A block as a part of a content; nothing for a call, for thinking, and for what only marks a place."""
    if isinstance(block, ToolCallBlock):
        return
    if isinstance(block, TextBlock):
        yield {"type": "text", "text": block.text}
        return
    media = _media(block) if with_media else None
    # No file is opened for this and no address is asked: what is not in the message itself is named.
    text = "" if media else body_of(ChatMessage(blocks=[block]))
    if media or text:
        yield media or {"type": "text", "text": text}


def _media(block: Any) -> dict[str, Any] | None:
    if isinstance(block, ImageBlock) and (isinstance(block.image, bytes) or block.url):
        inline = _data_url(block.image_mimetype, block.image) if isinstance(block.image, bytes) else str(block.url)
        return {"type": "image_url", "image_url": {"url": inline, **({"detail": block.detail} if block.detail else {})}}
    if isinstance(block, AudioBlock) and isinstance(block.audio, bytes) and block.format:
        return {"type": "input_audio", "input_audio": {"data": block.audio.decode(), "format": block.format}}
    if isinstance(block, DocumentBlock) and isinstance(block.data, bytes):
        return {
            "type": "file",
            "file": {"filename": block.title, "file_data": _data_url(block.document_mimetype, block.data)},
        }
    return None


def _data_url(mimetype: str | None, content: bytes) -> str:
    return f"data:{mimetype or ''};base64,{content.decode()}"


def _content(parts: Sequence[dict[str, Any]], empty: str | None) -> Any:
    if not parts:
        return empty
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else list(parts)


def _written_call(call: ToolCall, i: int) -> dict[str, Any]:
    return {
        "id": call.id or f"call_{i}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
