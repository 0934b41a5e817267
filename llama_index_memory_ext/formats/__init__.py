"""Conversations as JSON: reads the layouts of LlamaIndex and OpenAI, and writes the first."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.utils import get_tqdm_iterable
from pydantic import BaseModel, ValidationError

from llama_index_memory_ext.errors import MessageError
from llama_index_memory_ext.formats.layouts import described, from_openai
from llama_index_memory_ext.text.messages import (
    Json,
    MovedMessage,
    checked_messages,
    clean,
    storable,
    times_in,
)

# Beside an exported message: when it was stored.
_STORED_AT = "stored_at"
_ROLES = [role.value for role in MessageRole]
# Above the levels of any real message, and far below the limits of Python and databases.
_MAX_LEVELS = 100
# A longer text in the place of a role may be words of a user.
_LONGEST_ROLE = 20
# Between two objects in JSON Lines. Within a JSON text, a comma would stand there.
_NEXT_LINE = re.compile(r"\}([ \t\r]*\n\s*)\{")
_HINT = "To read a file, pass its bytes: Path(...).read_bytes()."


def messages_from_json(
    source: str | bytes | Iterable[Json], *, show_progress: bool = False
) -> list[ChatMessage]:
    """Return the messages of a conversation that LlamaIndex or another program has written as JSON.

    Each message is in the layout of OpenAI's Chat Completions or of LlamaIndex:
    ``ChatMessage.model_dump(mode="json")``, including the older layout with a ``content``.

    - A tool call becomes a ``ToolCallBlock``, and a refusal becomes a text.
    - The id of the call that a result answers becomes
      ``additional_kwargs["tool_call_id"]``.
    - A part without a block in LlamaIndex becomes a text that names and quotes it,
      without encoded data.
    - A time under ``timestamp``, ``created_at``, ``create_time`` or ``date`` goes into
      ``additional_kwargs``, as the time of the message.
    - A ``message_id`` goes there too, so that a memory stores the message once.
    - Other keys are left out. Lone surrogates and NUL become U+FFFD.

    The guide "Migrate from another memory" has scripts that convert messages of other
    programs.

    This function opens no file and no address. A model that later gets a message may
    open them, so take messages with files only from sources that you trust.

    Args:
        source: The text or the bytes of a JSON list, of an object with ``messages``, or
            of JSON Lines with a message in each line; or the value of ``json.loads``.
            An empty list gives [].
        show_progress: Whether a progress bar is shown.

    Raises:
        MessageError: The source is not JSON, holds no messages, or has NaN or more than
            100 levels. The error names the place, the expected value, and the keys and
            types there, never a text.

    Examples:
        >>> messages_from_json('[{"role": "user", "content": "Hello!"}]')[0].content
        'Hello!'
    """
    messages = moved_from_json(source, show_progress=show_progress)
    return [ChatMessage(**dict(message)) for message in messages]


def moved_from_json(
    source: str | bytes | Iterable[Json], *, show_progress: bool
) -> list[ChatMessage]:
    """As ``messages_from_json``, but messages of an export are each a ``MovedMessage``."""
    messages = []
    # No comprehension: before Python 3.12 its frame would keep the bar open after an
    # error.
    values = _values(source)
    for value in get_tqdm_iterable(values, show_progress, "Reading messages"):
        problem = ""
        try:
            messages.append(_read(value))
        except MessageError as error:
            problem = str(error)
        except ValidationError as error:
            problem = _wrong_fields(error)
        except (ValueError, AttributeError, TypeError):
            # LlamaIndex looks for pictures in additional_kwargs, and programs put
            # objects of any class there.
            problem = "Expected a message as LlamaIndex writes it; its 'additional_kwargs' cannot be read."
        if problem:
            # Outside of the handlers, because an error in a handler would carry the text.
            raise MessageError(f"messages[{len(messages)}]: {problem}")
    return messages


def messages_to_json(messages: Sequence[ChatMessage], *, indent: int | None = 2) -> str:
    """Return the messages as a JSON list, "[]" if there are none; ``indent`` None writes a single line.

    ``messages_from_json`` returns the same messages.

    Raises:
        MessageError: An entry is not a message, or JSON has no value for its content.

    Examples:
        >>> messages_to_json([])
        '[]'
    """
    try:
        written = list(map(_own_layout, checked_messages(messages)))
        return json.dumps(written, ensure_ascii=False, allow_nan=False, indent=indent)
    except (ValueError, RecursionError) as error:
        raise MessageError(
            f"Expected values that JSON has; a message holds another value ({type(error).__name__}), such as an object "
            "of a program in its additional_kwargs. Remove this value."
        ) from None


def _own_layout(message: ChatMessage) -> dict[str, Json]:
    written = storable(message)
    if isinstance(message, MovedMessage):
        written[_STORED_AT] = message.stored_at.isoformat()
    return written


def _wrong_fields(error: ValidationError) -> str:
    fields = []
    for entry in error.errors()[:3]:
        place = ".".join(map(str, entry["loc"]))
        fields.append(f"{place} ({entry['type']})")
    return f"Expected the values of LlamaIndex's {error.title}; got wrong values in {', '.join(fields)}."


def _values(source: Json) -> list[Json]:
    value = source
    if isinstance(value, str | bytes | bytearray):
        value = loaded_json(value)
    if isinstance(value, Mapping):
        value = value.get("messages", [value])
    if isinstance(value, str | Mapping | BaseModel) or not isinstance(value, Iterable):
        raise MessageError(
            f"Expected a list of messages, or an object with 'messages'; got {described(value)}. {_HINT}"
        )
    return list(value)


def loaded_json(source: str | bytes | bytearray) -> Json:
    """Return the value of a JSON text, or the values of JSON Lines; raise a MessageError for any other text."""
    try:
        text = source
        if not isinstance(text, str):
            text = text.decode(json.detect_encoding(text))
        value, line_ends = _NEXT_LINE.subn(r"},\1{", text.removeprefix("\ufeff"))
        if line_ends:
            value = f"[{value}]"
        return json.loads(value)
    except UnicodeDecodeError as error:
        problem = f"Expected JSON in UTF-8, UTF-16 or UTF-32; byte {error.start} is not {error.encoding}."
    except json.JSONDecodeError as error:
        place = f"{error.msg.lower()} at line {error.lineno}, column {error.colno}"
        problem = f"Expected JSON; got {len(text)} other characters: {place}."
        # A text that is no JSON may be the name of a file.
        if isinstance(source, str):
            problem += f" {_HINT}"
    except (ValueError, RecursionError) as error:
        problem = (
            f"Expected JSON of messages; it cannot be read ({type(error).__name__})."
        )
    # Outside of the handlers, because an error in a handler would carry the text.
    raise MessageError(problem)


def _read(value: Json) -> ChatMessage:
    if isinstance(value, MovedMessage):
        return value
    # A ChatMessage, or a message that a client of OpenAI's API returns.
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, dict):
        _check_values(value, _MAX_LEVELS)
        value = dict(clean(value))
    _check_format(value)
    message = _own(value) or from_openai(value)
    # A time may be a number or a text; both mean the same once they are stored.
    times = {key: value[key] for key in times_in(value)}
    message.additional_kwargs = {**times, **message.additional_kwargs}
    stored_at = value.get(_STORED_AT)
    if stored_at is None:
        return message
    time = times_in({"date": stored_at}).get("date")
    if time is None:
        raise MessageError(
            f"Expected {_STORED_AT!r} to be a time from 1974 on, such as '2026-05-01T12:00:00Z'; got "
            f"{described(stored_at)}. Correct it, or leave it out: then the message is stored as new."
        )
    return MovedMessage(**dict(message), stored_at=time)


def _check_format(value: Json) -> None:
    if not isinstance(value, dict) or value.get("role") is None or "parts" in value:
        raise MessageError(
            f"Expected an object with a 'role' in the layout of LlamaIndex or OpenAI; got {described(value)}. "
            "docs/migrate.md has scripts that convert messages of other programs."
        )
    role = value["role"]
    if role in _ROLES:
        return
    seen = described(role)
    if isinstance(role, str) and role.isidentifier() and len(role) <= _LONGEST_ROLE:
        seen = repr(role)
    raise MessageError(
        f"Expected a 'role' that is one of {', '.join(_ROLES)}; got {seen}."
    )


def _check_values(value: Json, levels: int) -> None:
    if not levels:
        raise MessageError(
            f"Expected at most {_MAX_LEVELS} levels of lists and objects; got more."
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise MessageError(
            "Expected a finite number; got NaN, or a number that is too large."
        )
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            _check_values(entry, levels - 1)


def _own(value: dict[str, Json]) -> ChatMessage | None:
    """Return a message of LlamaIndex's own layout; None for a value of another layout."""
    content = value.get("content")
    parts = content if isinstance(content, list) else []
    has_blocks = any(isinstance(part, dict) and "block_type" in part for part in parts)
    if not has_blocks and value.keys().isdisjoint(("blocks", "additional_kwargs")):
        return None
    for key in ("tool_calls", "function_call", "tool_call_id"):
        if value.get(key):
            raise MessageError(
                f"Expected the keys of one format; got {key!r} of OpenAI's in {described(value)}."
            )
    if value.get("blocks"):
        # LlamaIndex would take the content instead, which has no pictures.
        value.pop("content", None)
    return ChatMessage.model_validate(value)
