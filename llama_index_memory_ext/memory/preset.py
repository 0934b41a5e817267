"""Checks the arguments of ``CondensedMemory.from_defaults``, and says which of them are passed on as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_index.core.memory import InsertMethod
from llama_index.core.prompts import RichPromptTemplate

from llama_index_memory_ext.errors import LimitError, StoreError
from llama_index_memory_ext.record.selection import CondensedOptions
from llama_index_memory_ext.store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Mapping


class PresetOptions(CondensedOptions, total=False):
    """Options of LlamaIndex's ``Memory`` that the preset passes on, besides those of its ``CondensedMemoryBlock``."""

    chat_history_token_ratio: float
    memory_blocks_template: RichPromptTemplate | None
    insert_method: InsertMethod | str
    image_token_size_estimate: int
    audio_token_size_estimate: int
    video_token_size_estimate: int


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the options of the record, and those of the host's ``Memory`` that are given.

    Raises:
        TypeError: There is no option of such a name.
    """
    of_record = CondensedOptions.__annotations__
    unknown = sorted(options.keys() - PresetOptions.__annotations__.keys())
    if unknown:
        raise TypeError(
            f"CondensedMemory.from_defaults() has no argument {unknown[0]!r}. Those of the record are "
            f"{', '.join(sorted(of_record))}."
        )
    record = {name: value for name, value in options.items() if name in of_record}
    return record, {name: value for name, value in options.items() if name not in of_record and value is not None}


def check_limits(token_limit: int, condensed: int, facts: int) -> None:
    """Raises a LimitError if the limits of the blocks do not fit into that of the memory."""
    if condensed < 1 or facts < 0 or condensed + facts > token_limit:
        raise LimitError(
            f"The blocks' limits must be at least 1 (0 for no facts) and fit into token_limit={token_limit}; "
            f"condensed_token_limit={condensed} and facts_token_limit={facts} make {condensed + facts}. "
            "Lower them, or raise token_limit."
        )


def check_store(store: object, session_id: str | None) -> None:
    """Raises a StoreError for a store without cursors, or one that outlives a session without a name."""
    if not isinstance(store, MemoryStore):
        raise StoreError(
            f"chat_store must be a MemoryStore, which keeps the cursors of the blocks; it is a "
            f"{type(store).__name__}. Use MemoryStore(async_database_uri)."
        )
    if not (session_id or store.is_in_memory):
        raise StoreError(
            f"{store!r} outlives this process, but without a session_id nobody could find the conversation "
            "again. Give it one: CondensedMemory.from_defaults(session_id=...)."
        )
