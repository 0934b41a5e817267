"""Tells by what a stored message is known: whether it is the one that was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llama_index_memory_ext.text.tool_calls import Json

# LlamaIndex writes it into messages that it hands to blocks.
_HOSTS_KEY = "session_id"


def is_same(stored: Json, given: dict[str, Json]) -> bool:
    """Returns whether a stored message, as JSON, is the given one, but for what LlamaIndex itself adds."""
    return isinstance(stored, dict) and _compared(stored) == _compared(given)


def _compared(data: dict[str, Json]) -> dict[str, Json]:
    kwargs = data.get("additional_kwargs")
    if not isinstance(kwargs, dict):
        return data
    return {**data, "additional_kwargs": {key: value for key, value in kwargs.items() if key != _HOSTS_KEY}}
