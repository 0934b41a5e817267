"""Reads and writes conversations as JSON, in LlamaIndex's layout and OpenAI's."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.utils import get_tqdm_iterable
from pydantic import BaseModel, ValidationError

from llama_index_memory_ext.errors import LayoutError, MessageError
from llama_index_memory_ext.formats.openai import described, from_openai, to_openai
from llama_index_memory_ext.text.messages import checked_messages, cleaned, storable

if TYPE_CHECKING:
    from collections.abc import Sequence

Layout = Literal["llama_index", "openai"]

_ROLES = [role.value for role in MessageRole]
# More than any program writes, and far less than Python and databases can handle.
_MAX_LEVELS = 100
_LONGEST_ROLE = 20
_FILE_HINT = "To read a file, pass its bytes: Path(...).read_bytes()."


def messages_from_json(source: str | bytes | Iterable[Any], *, show_progress: bool = False) -> list[ChatMessage]:
    """Returns the messages of a conversation that LlamaIndex, or a program for OpenAI's API, has written as JSON.

    Each message may be in the format of OpenAI's Chat Completions or in LlamaIndex's own
    (``ChatMessage.model_dump(mode="json")``, also the older one with a ``content``). A tool call becomes a
    ``ToolCallBlock``, the id of the call that a result belongs to ``additional_kwargs["tool_call_id"]``, and a
    refusal a text. A part of a type that LlamaIndex has no block for becomes a text that names and quotes it, without
    encoded data. Keys of a message that these formats do not have (ids, times, ...) are left out. Lone
    surrogates and NUL become U+FFFD.

    No file and no address in a message is opened here, but a model that is sent the message later may do so: take
    messages with files only from sources that you trust.

    Args:
        source: The text or the bytes of a JSON list, of an object with ``messages``, or of JSON Lines with a message
            in each; or what ``json.loads`` made of one.
        show_progress: Whether a progress bar is shown.

    Returns:
        All messages in their order; [] for an empty list.

    Raises:
        MessageError: It is not JSON, or no messages. The error tells the place, what was expected, and which keys and
            types were seen, never a text. NaN, a key that an object has twice, and JSON deeper than 100 levels are
            refused.

    >>> messages_from_json('[{"role": "user", "content": "Hello!"}]')[0].content
    'Hello!'
    """
    messages: list[ChatMessage] = []
    for value in get_tqdm_iterable(_values(source), show_progress, "Reading messages"):
        messages.append(_message(value, len(messages)))
    return messages


def messages_to_json(messages: Sequence[ChatMessage], *, layout: Layout = "llama_index", indent: int | None = 2) -> str:
    """Returns the messages as a JSON list; "[]" if there are none.

    Args:
        messages: In their order. They are not changed.
        layout: ``"llama_index"`` keeps everything: ``messages_from_json`` returns the same messages. ``"openai"`` is
            for OpenAI's Chat Completions and compatible APIs: thinking and most of ``additional_kwargs`` are
            left out. Files of which the message has only the path, and all else that the API has no place
            for, are named in a text.
        indent: Spaces for each level; None for a single line.

    Raises:
        LayoutError: There is no such layout.
        MessageError: Something else than messages, or a message with a value that JSON does not have.

    >>> messages_to_json([ChatMessage(role="user", content="Hello!")], layout="openai", indent=None)
    '[{"role": "user", "content": "Hello!"}]'
    """
    if layout not in get_args(Layout):
        raise LayoutError(f"Expected the layout to be one of {', '.join(get_args(Layout))}; saw {layout!r}.")
    try:
        written = [
            storable(message) if layout == "llama_index" else cleaned(to_openai(message))
            for message in checked_messages(messages)
        ]
        return json.dumps(written, ensure_ascii=False, allow_nan=False, indent=indent)
    except (ValueError, RecursionError) as error:
        raise MessageError(
            f"A message holds something that JSON cannot ({type(error).__name__}), such as an object of a program in "
            "its additional_kwargs. Take it out."
        ) from None


def _values(source: Any) -> list[Any]:
    """Returns the messages as plain values."""
    value = _loaded(source) if isinstance(source, str | bytes | bytearray) else source
    if isinstance(value, Mapping):
        if "messages" not in value and "role" not in value:
            raise MessageError(f"Expected a list of messages, or an object with 'messages'; saw {described(value)}.")
        value = value.get("messages", [value])
    if isinstance(value, str | Mapping | BaseModel) or not isinstance(value, Iterable):
        raise MessageError(f"Expected a list of messages, or a JSON text of one; saw {described(value)}. {_FILE_HINT}")
    return list(value)


def _loaded(source: str | bytes | bytearray) -> Any:
    load = partial(json.loads, object_pairs_hook=_unique)
    try:
        text = source if isinstance(source, str) else source.decode(json.detect_encoding(source))
        text = text.removeprefix("\ufeff")
        return load(text)
    except UnicodeDecodeError as error:
        raise MessageError(
            f"Expected JSON in UTF-8, UTF-16 or UTF-32; byte {error.start} is none of {error.encoding}."
        ) from None
    except json.JSONDecodeError as error:
        is_lines = error.msg == "Extra data" and "\n" in text.strip()
        problem = f"{error.msg.lower()} at line {error.lineno}, column {error.colno}"
    except (ValueError, RecursionError) as error:
        raise MessageError(f"Expected JSON of messages; it cannot be read ({type(error).__name__}).") from None
    # Raised here, because the error above carries the whole text.
    if not is_lines:
        # A text that is no JSON may be the name of a file.
        hint = f" {_FILE_HINT}" if isinstance(source, str) else ""
        raise MessageError(f"Expected JSON; saw {len(text)} characters that are none: {problem}.{hint}")
    return [_line(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _line(number: int, line: str) -> Any:
    try:
        value = json.loads(line, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise MessageError(
            f"Expected JSON, or a message on each line; line {number} is no JSON ({type(error).__name__})."
        ) from None
    if isinstance(value, dict) and "role" not in value and "messages" in value:
        raise MessageError(f"Expected one conversation; line {number} holds one of its own. Read each line for itself.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twin = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise MessageError(f"Expected each key once in an object; saw {twin[:40]!r} twice, of which one would be lost.")
    return found


def _message(value: Any, place: int) -> ChatMessage:
    try:
        return _read(value)
    except MessageError as error:
        raise MessageError(f"messages[{place}]: {error}") from None


def _read(value: Any) -> ChatMessage:
    if isinstance(value, BaseModel):
        # A ChatMessage, or what a client of OpenAI's API returns.
        try:
            value = value.model_dump(mode="json")
        except ValueError as error:
            seen = f"{type(value).__name__} cannot be written as JSON ({type(error).__name__})"
            raise MessageError(f"A {seen}.") from None
    if not isinstance(value, dict):
        raise MessageError(f"Expected an object with a 'role'; saw {described(value)}.")
    _check_values(value, _MAX_LEVELS)
    value = cleaned(value)
    role = value.get("role")
    if role not in _ROLES:
        is_name = isinstance(role, str) and role.isidentifier() and len(role) <= _LONGEST_ROLE
        seen = repr(role) if is_name else described(value) if role is None else f"{described(role)} there"
        raise MessageError(f"Expected a 'role' that is one of {', '.join(_ROLES)}; saw {seen}.")
    return _own(value) if _is_own(value) else from_openai(value)


def _is_own(value: dict[str, Any]) -> bool:
    """Returns whether a message is in LlamaIndex's own layout."""
    content = value.get("content")
    parts = content if isinstance(content, list) else []
    has_blocks = any(isinstance(part, dict) and "block_type" in part for part in parts)
    return has_blocks or "blocks" in value or "additional_kwargs" in value


def _check_values(value: Any, levels: int) -> None:
    if not levels:
        raise MessageError(f"Expected at most {_MAX_LEVELS} levels of lists and objects; saw more.")
    if isinstance(value, float) and not math.isfinite(value):
        raise MessageError("Expected numbers; saw NaN, or one that is too large.")
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_values(entry, levels - 1)


def _own(value: dict[str, Any]) -> ChatMessage:
    foreign = [key for key in ("tool_calls", "function_call", "tool_call_id") if value.get(key)]
    if foreign:
        raise MessageError(f"Expected the keys of one format; saw {foreign[0]!r} of OpenAI's in {described(value)}.")
    # If there is a content too, LlamaIndex would ignore the blocks, and with them the pictures.
    fields = {key: entry for key, entry in value.items() if key != "content" or not value.get("blocks")}
    try:
        return ChatMessage.model_validate(fields)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)[:3]
        places = ", ".join(f"{'.'.join(map(str, one['loc']))} ({one['type']})" for one in errors)
        problem = f"what is wrong is {places}"
    except (ValueError, AttributeError, TypeError):
        # LlamaIndex looks for the pictures of its older format there.
        problem = "its 'additional_kwargs' cannot be read"
    raise MessageError(f"Expected a message as LlamaIndex writes it; {problem}.")
