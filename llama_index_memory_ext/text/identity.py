"""Tells by what a message is known: the id that a program has given it, or all that it says."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from llama_index_memory_ext.errors import MessageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index_memory_ext.text.tool_calls import Json

# Where a program writes the id into ``additional_kwargs``.
ID_KEY = "message_id"
# Where it writes who has said it, in a session of several users.
SPEAKER_KEY = "user_id"
# LlamaIndex writes it into messages that it hands to blocks.
_HOSTS_KEY = "session_id"
# Longer ones would not fit into the index of a server.
_MOST_CHARACTERS = 255


def message_id_of(kwargs: Mapping[str, Json], key: str = ID_KEY) -> str | None:
    """Returns the id in a message's ``additional_kwargs``, a number as its text; None if it has none.

    With another ``key``, the id of something else.

    Raises a MessageError for one that is neither a text nor a number, is blank, or has more than 255 characters.

    >>> message_id_of({"message_id": 7}), message_id_of({"tool_call_id": "c1"})
    ('7', None)
    """
    value = kwargs.get(key)
    if value is None:
        return None
    text = value if isinstance(value, str) else _text_of(value)
    if not text.strip() or len(text) > _MOST_CHARACTERS or (key != ID_KEY and text != text.strip()):
        seen = f"{len(text)} characters" if isinstance(value, str) else f"a {type(value).__name__}"
        raise MessageError(
            f"Expected additional_kwargs[{key!r}] to be a text of 1 to {_MOST_CHARACTERS} characters, without blanks "
            f"around it, or a number; saw {seen}. Write str(...) around an id of another type."
        )
    return text


def is_same(stored: Json, given: Mapping[str, Json]) -> bool:
    """Returns whether a stored message, as JSON, is the given one.

    What LlamaIndex itself adds does not count, nor does an id that the given one leaves out.
    """
    kwargs = given.get("additional_kwargs") or {}
    ignored = {_HOSTS_KEY} if ID_KEY in kwargs else {_HOSTS_KEY, ID_KEY}
    return isinstance(stored, dict) and _without(stored, ignored) == _without(given, ignored)


def _without(data: Mapping[str, Json], ignored: set[str]) -> dict[str, Json]:
    kwargs = data.get("additional_kwargs")
    if not isinstance(kwargs, dict):
        return dict(data)
    return {**data, "additional_kwargs": {key: value for key, value in kwargs.items() if key not in ignored}}


def _text_of(value: Json) -> str:
    """Returns a number as a text, and "" for all else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # The text of a longer integer is refused by Python.
    is_short = is_number and (isinstance(value, float) or value.bit_length() < _MOST_CHARACTERS)
    return str(value) if is_short and math.isfinite(value) else ""
