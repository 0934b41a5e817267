"""Reads a conversation from JSON, as LlamaIndex and OpenAI's API write it, and writes one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from pydantic import BaseModel, ValidationError

from llama_index_memory_ext.errors import LayoutError, MessageError
from llama_index_memory_ext.formats.openai import described, from_openai, to_openai
from llama_index_memory_ext.text.messages import checked_messages, cleaned, storable
from llama_index_memory_ext.text.progress import progress

if TYPE_CHECKING:
    from collections.abc import Sequence

Layout = Literal["llama_index", "openai"]

_LAYOUTS = ("llama_index", "openai")
_ROLES = [role.value for role in MessageRole]
# Deeper than what any program writes, and far from where Python or a database gives up.
_DEEPEST = 100
_LONGEST_NAME = 20
_ONLY_OPENAI = ("tool_calls", "function_call", "tool_call_id")


def messages_from_json(source: str | bytes | Iterable[Any], *, show_progress: bool = False) -> list[ChatMessage]:
    """The messages of a conversation that LlamaIndex, or a program for OpenAI's API, has written as JSON.

    Each message may be in the format of OpenAI's Chat Completions or in LlamaIndex's own
    (``ChatMessage.model_dump(mode="json")``, also the older one with a ``content``). A call of a tool becomes a
    ``ToolCallBlock``, the id of the call that a result belongs to ``additional_kwargs["tool_call_id"]``, and a
    refusal a text. A part of a kind that LlamaIndex has no block for becomes a text that names it and quotes it, but
    for what is encoded in it. Other keys of a message than these formats have (ids, times, ...) are left out. Lone
    surrogates and NUL become U+FFFD.

    No file and no address in a message is opened here, but a model that is sent the message later may: take
    messages with files only from those whom you trust with these.

    Args:
        source: The text or the bytes of a JSON list, of an object with ``messages``, or of JSON Lines with a message
            in each; or what ``json.loads`` made of one.
        show_progress: Whether a bar is shown.

    Returns:
        As many messages as there are, in their order; [] for an empty list.

    Raises:
        MessageError: It is not JSON, or no messages. It says where, what was expected, and which keys and types were
            seen, never what was said. NaN, a key that an object has twice, and JSON deeper than 100 levels are refused.

    >>> messages_from_json('[{"role": "user", "content": "Hello!"}]')[0].content
    'Hello!'
    """
    values = _values(source)
    with progress("Reading messages", len(values), shown=show_progress) as step:
        messages = []
        for i, value in enumerate(values):
            messages.append(_message(i, value))
            step(1)
    return messages


def messages_to_json(messages: Sequence[ChatMessage], *, layout: Layout = "llama_index", indent: int | None = 2) -> str:
    """The messages as a JSON list; "[]" if there are none.

    Args:
        messages: In their order. They are not changed.
        layout: ``"llama_index"`` keeps all, and ``messages_from_json`` gives the same messages back. ``"openai"`` is
            for OpenAI's Chat Completions and whoever takes the same: thinking and most of ``additional_kwargs`` are
            left out; files of which the message has no more than the path, and whatever else the API has no place
            for, are named in a text.
        indent: Spaces for each level; None for a single line.

    Raises:
        LayoutError: There is no such layout.
        MessageError: Something else than messages, or one that holds what JSON cannot.

    >>> messages_to_json([ChatMessage(role="user", content="Hello!")], layout="openai", indent=None)
    '[{"role": "user", "content": "Hello!"}]'
    """
    if layout not in _LAYOUTS:
        raise LayoutError(f"Expected the layout to be one of {', '.join(_LAYOUTS)}; saw {layout!r}.")
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


# ---- what was given --------------------------------------------------------------------------------


def _values(source: Any) -> list[Any]:
    """The messages as plain values, in whatever they were given."""
    # A text that is no JSON may be meant as the name of a file.
    hint = " To read a file, pass its bytes: Path(...).read_bytes()." if isinstance(source, str) else ""
    value = _loaded(_decoded(source), hint) if isinstance(source, str | bytes | bytearray) else source
    if isinstance(value, Mapping):
        if "messages" not in value and "role" not in value:
            raise MessageError(f"Expected a list of messages, or an object with 'messages'; saw {described(value)}.")
        value = value.get("messages", [value])
    if isinstance(value, str | Mapping | BaseModel) or not isinstance(value, Iterable):
        raise MessageError(
            f"Expected a list of messages, or a JSON text of one; saw {described(value)}. "
            "To read a file, pass its bytes: Path(...).read_bytes()."
        )
    return list(value)


def _decoded(source: str | bytes | bytearray) -> str:
    if isinstance(source, str):
        return source.removeprefix("\ufeff")
    try:
        return source.decode(json.detect_encoding(source)).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise MessageError(
            f"Expected JSON in UTF-8, UTF-16 or UTF-32; byte {error.start} is none of {error.encoding}."
        ) from None


def _loaded(text: str, hint: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_without_twins)
    except json.JSONDecodeError as error:
        several = error.msg == "Extra data" and "\n" in text.strip()
        complaint = f"{error.msg.lower()} at line {error.lineno}, column {error.colno}"
    except (ValueError, RecursionError) as error:
        raise MessageError(f"Expected JSON of messages; it cannot be read ({type(error).__name__}).") from None
    # Behind the block: an error within it would carry the whole text along.
    if several:
        return [_loaded_line(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    raise MessageError(f"Expected JSON; saw {len(text)} characters that are none: {complaint}.{hint}")


def _loaded_line(number: int, line: str) -> Any:
    try:
        value = json.loads(line, object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:
        raise MessageError(
            f"Expected JSON, or a message on each line; line {number} is no JSON ({type(error).__name__})."
        ) from None
    if isinstance(value, dict) and "role" not in value and "messages" in value:
        raise MessageError(f"Expected one conversation; line {number} holds one of its own. Read each line for itself.")
    return value


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twin = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise MessageError(f"Expected each key once in an object; saw {twin[:40]!r} twice, of which one would be lost.")
    return found


# ---- one message -----------------------------------------------------------------------------------


def _message(i: int, value: Any) -> ChatMessage:
    try:
        return _read(value)
    except MessageError as error:
        raise MessageError(f"messages[{i}]: {error}") from None


def _read(value: Any) -> ChatMessage:
    if isinstance(value, BaseModel):
        value = _dumped(value)
    if not isinstance(value, dict):
        raise MessageError(f"Expected an object with a 'role'; saw {described(value)}.")
    _check_values(value, _DEEPEST)
    value = cleaned(value)
    _check_role(value)
    return _own(value) if _is_own(value) else from_openai(value)


def _dumped(value: BaseModel) -> Any:
    """A message as ``ChatMessage`` or a client of OpenAI's API has it in a program."""
    try:
        return value.model_dump(mode="json")
    except ValueError as error:
        raise MessageError(f"A {type(value).__name__} cannot be written as JSON ({type(error).__name__}).") from None


def _check_values(value: Any, levels: int) -> None:
    if not levels:
        raise MessageError(f"Expected at most {_DEEPEST} levels of lists and objects; saw more.")
    if isinstance(value, float) and not math.isfinite(value):
        raise MessageError("Expected numbers; saw NaN, or one that is too large.")
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for entry in entries:
        _check_values(entry, levels - 1)


def _check_role(value: Mapping[str, Any]) -> None:
    role = value.get("role")
    if role not in _ROLES:
        is_name = isinstance(role, str) and role.isidentifier() and len(role) <= _LONGEST_NAME
        seen = repr(role) if is_name else described(value) if role is None else f"{described(role)} there"
        raise MessageError(f"Expected a 'role' that is one of {', '.join(_ROLES)}; saw {seen}.")


def _is_own(value: Mapping[str, Any]) -> bool:
    """Whether a message is in LlamaIndex's own format."""
    content = value.get("content")
    of_blocks = isinstance(content, list) and any(isinstance(part, dict) and "block_type" in part for part in content)
    return "blocks" in value or "additional_kwargs" in value or of_blocks


def _own(value: Mapping[str, Any]) -> ChatMessage:
    foreign = [key for key in _ONLY_OPENAI if value.get(key)]
    if foreign:
        raise MessageError(f"Expected the keys of one format; saw {foreign[0]!r} of OpenAI's in {described(value)}.")
    # The host would take a content for all there is, and leave out the pictures beside the words.
    fields = {key: entry for key, entry in value.items() if key != "content" or not value.get("blocks")}
    try:
        return ChatMessage.model_validate(fields)
    except ValidationError as error:
        places = [
            f"{'.'.join(map(str, one['loc']))} ({one['type']})"
            for one in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise MessageError(
            f"Expected a message as LlamaIndex writes it; what is wrong is {', '.join(places[:3])}."
        ) from None
    except (ValueError, AttributeError, TypeError):
        # The host looks for pictures of its older format in there.
        raise MessageError(
            "Expected a message as LlamaIndex writes it; its 'additional_kwargs' cannot be read."
        ) from None
