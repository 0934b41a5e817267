"""Reads and writes conversations as JSON, in LlamaIndex's layout and OpenAI's."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.utils import get_tqdm_iterable
from pydantic import BaseModel, ValidationError

from llama_index_memory_ext.errors import LayoutError, MessageError
from llama_index_memory_ext.formats.layouts import described, from_openai, to_openai
from llama_index_memory_ext.text.messages import (
    checked_messages,
    cleaned,
    storable,
    times_in,
)

if TYPE_CHECKING:
    from llama_index_memory_ext.text.tool_calls import Json

Layout = Literal["llama_index", "openai"]

_ROLES = [role.value for role in MessageRole]
# More than any program writes, and far less than Python and databases can handle.
_MAX_LEVELS = 100
# Of a wrong role, more may be words of a user.
_LONGEST = 20
# Between two objects in JSON Lines. Within a JSON text, a comma would stand there.
_NEXT_LINE = re.compile(r"\}([ \t\r]*\n\s*)\{")
_HINT = "To read a file, pass its bytes: Path(...).read_bytes()."
_OTHERS = (
    'Convert messages of LangChain, LangGraph or Zep first, by a script of the guide "Coming from elsewhere" '
    "(docs/recipes)."
)


def messages_from_json(
    source: str | bytes | Iterable[Json], *, show_progress: bool = False
) -> list[ChatMessage]:
    """Return the messages of a conversation that LlamaIndex, or another program, has written as JSON.

    Each message may be in the format of OpenAI's Chat Completions or in LlamaIndex's
    own (``ChatMessage.model_dump(mode="json")``, also the older one with a
    ``content``). A tool call becomes a ``ToolCallBlock``, the id of the call that a
    result belongs to ``additional_kwargs["tool_call_id"]``, and a refusal a text. A
    part that LlamaIndex has no block for becomes a text that names and quotes it,
    without encoded data. A time under ``timestamp``, ``created_at``, ``create_time`` or
    ``date`` goes into ``additional_kwargs``, where a memory reads when the message was
    said, and so does a ``message_id``, by which a memory stores it once; other keys are
    left out. Lone surrogates and NUL become U+FFFD. The guide "Coming from elsewhere"
    has scripts that convert messages of LangChain, LangGraph and Zep.

    Nothing is opened here, but a model that is sent a message later may open the files
    and addresses in it: take messages with files only from sources that you trust.

    Args:
        source: The text or the bytes of a JSON list, of an object with ``messages``, or
            of JSON Lines with a message in each; or what ``json.loads`` made of one. An
            empty list gives [].
        show_progress: Whether a progress bar is shown.

    Raises:
        MessageError: It is not JSON, or no messages; also NaN, a key twice in an
            object, and more than 100 levels. The error tells the place, what was
            expected, and which keys and types were seen, never a text.

    >>> messages_from_json('[{"role": "user", "content": "Hello!"}]')[0].content
    'Hello!'
    """
    messages: list[ChatMessage] = []
    # No comprehension: before Python 3.12 its frame would keep the bar open after an
    # error.
    for value in get_tqdm_iterable(_values(source), show_progress, "Reading messages"):
        problem = ""
        try:
            messages.append(_read(value))
        except MessageError as error:
            problem = str(error)
        except ValidationError as error:
            wrong = ", ".join(
                f"{'.'.join(map(str, one['loc']))} ({one['type']})"
                for one in error.errors()[:3]
            )
            problem = f"Expected the values of LlamaIndex's {error.title}; what is wrong is {wrong}."
        except (ValueError, AttributeError, TypeError):
            # LlamaIndex looks for pictures there, and programs may put any object
            # there.
            problem = "Expected a message as LlamaIndex writes it; its 'additional_kwargs' cannot be read."
        if problem:
            # Outside of the handlers, because their errors carry the text.
            raise MessageError(f"messages[{len(messages)}]: {problem}")
    return messages


def messages_to_json(
    messages: Sequence[ChatMessage],
    *,
    layout: Layout = "llama_index",
    indent: int | None = 2,
) -> str:
    """Return the messages as a JSON list, "[]" if there are none; ``indent`` None writes a single line.

    The layout ``"llama_index"`` keeps everything: ``messages_from_json`` returns the
    same messages. ``"openai"`` is for OpenAI's Chat Completions and compatible APIs:
    thinking and most of ``additional_kwargs`` are left out. Files of which the message
    has only the path, and all else that the API has no place for, are named in a text.

    Raises:
        LayoutError: There is no such layout.
        MessageError: Something else than messages, or a message with a value that JSON
            does not have.

    >>> messages_to_json([ChatMessage(role="user", content="Hello!")], layout="openai", indent=None)
    '[{"role": "user", "content": "Hello!"}]'
    """
    if layout not in get_args(Layout):
        raise LayoutError(
            f"Expected the layout to be one of {', '.join(get_args(Layout))}; saw {layout!r}."
        )
    if layout == "openai":
        write = to_openai
    else:
        write = storable
    try:
        written = list(map(write, checked_messages(messages)))
        return json.dumps(written, ensure_ascii=False, allow_nan=False, indent=indent)
    except (ValueError, RecursionError) as error:
        raise MessageError(
            f"A message holds something that JSON cannot ({type(error).__name__}), such as an object of a program in "
            "its additional_kwargs. Take it out."
        ) from None


def _values(source: Json) -> list[Json]:
    if isinstance(source, str | bytes | bytearray):
        value = loaded_json(source)
    else:
        value = source
    if isinstance(value, Mapping):
        value = value.get("messages", [value])
    if isinstance(value, str | Mapping | BaseModel) or not isinstance(value, Iterable):
        raise MessageError(
            f"Expected a list of messages, or an object with 'messages'; saw {described(value)}. {_HINT}"
        )
    return list(value)


def loaded_json(source: str | bytes | bytearray) -> Json:
    """Return the value of a JSON text, or the list of those in JSON Lines; a MessageError for what is none."""
    try:
        if isinstance(source, str):
            text = source
        else:
            text = source.decode(json.detect_encoding(source))
        listed, count = _NEXT_LINE.subn(r"},\1{", text.removeprefix("\ufeff"))
        return json.loads(f"[{listed}]" if count else listed, object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        problem = f"Expected JSON in UTF-8, UTF-16 or UTF-32; byte {error.start} is none of {error.encoding}."
    except json.JSONDecodeError as error:
        place = f"{error.msg.lower()} at line {error.lineno}, column {error.colno}"
        # A text that is no JSON may be the name of a file.
        if isinstance(source, str):
            hint = f" {_HINT}"
        else:
            hint = ""
        problem = (
            f"Expected JSON; saw {len(text)} characters that are none: {place}.{hint}"
        )
    except (ValueError, RecursionError) as error:
        problem = (
            f"Expected JSON of messages; it cannot be read ({type(error).__name__})."
        )
    raise MessageError(
        problem
    )  # Outside of the handlers, because their errors carry the text.


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twin = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise MessageError(
            f"Expected each key once in an object; saw {twin[:40]!r} twice, of which one would be lost."
        )
    return found


def _read(value: Json) -> ChatMessage:
    if isinstance(
        value, BaseModel
    ):  # A ChatMessage, or what a client of OpenAI's API returns.
        value = value.model_dump(mode="json")
    if isinstance(value, dict):
        _check_values(value, _MAX_LEVELS)
        value = dict(cleaned(value))
    if not isinstance(value, dict) or value.get("role") is None:
        raise MessageError(
            f"Expected an object with a 'role'; saw {described(value)}. {_OTHERS}"
        )
    role = value["role"]
    if role not in _ROLES:
        is_shown = (
            isinstance(role, str) and role.isidentifier() and len(role) <= _LONGEST
        )
        if is_shown:
            seen = repr(role)
        else:
            seen = described(role)
        raise MessageError(
            f"Expected a 'role' that is one of {', '.join(_ROLES)}; saw {seen}."
        )
    message = _own(value) or from_openai(value)
    # A number or a text, which say the same once they are stored.
    told = {key: value[key] for key in times_in(value)}
    message.additional_kwargs = {**told, **message.additional_kwargs}
    return message


def _check_values(value: Json, levels: int) -> None:
    if not levels:
        raise MessageError(
            f"Expected at most {_MAX_LEVELS} levels of lists and objects; saw more."
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise MessageError("Expected numbers; saw NaN, or one that is too large.")
    for entry in (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else ()
    ):
        _check_values(entry, levels - 1)


def _own(value: dict[str, Json]) -> ChatMessage | None:
    """Return a message that is in LlamaIndex's own layout; None for one that is not."""
    content = value.get("content")
    parts = content if isinstance(content, list) else []
    has_blocks = any(isinstance(part, dict) and "block_type" in part for part in parts)
    if not has_blocks and value.keys().isdisjoint(("blocks", "additional_kwargs")):
        return None
    foreign = [
        key for key in ("tool_calls", "function_call", "tool_call_id") if value.get(key)
    ]
    if foreign:
        raise MessageError(
            f"Expected the keys of one format; saw {foreign[0]!r} of OpenAI's in {described(value)}."
        )
    if value.get("blocks"):
        # LlamaIndex would take the content instead, which has no pictures.
        value.pop("content", None)
    return ChatMessage.model_validate(value)
