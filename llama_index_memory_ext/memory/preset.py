"""Checks the arguments of ``CondensedMemory.from_defaults``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_index.core.memory.memory import generate_chat_store_key

from llama_index_memory_ext.errors import LayoutError, SettingError, StoreError
from llama_index_memory_ext.memory.prompt_caches import warn_without_cache_points
from llama_index_memory_ext.memory.template import MemoryBlocksTemplate
from llama_index_memory_ext.refusals import check_id
from llama_index_memory_ext.store import DEFAULT_TABLE_NAME, MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llama_index.core.llms.llm import LLM

    from llama_index_memory_ext.record.window import CachePoints


def check_blocks(blocks: Iterable[object], needed: set[type]) -> None:
    """Raises a SettingError if the record or the facts, the ``needed`` ones, are missing."""
    if not needed <= set(map(type, blocks)):
        raise SettingError(
            "a CondensedMemory needs a CondensedMemoryBlock and a RelevantFactsBlock on its own store: build it "
            "with CondensedMemory.from_defaults(...)"
        )


def check_cache_points(cache_points: CachePoints, memory_blocks_template: object, llm: LLM | None) -> None:
    """Raises a LayoutError if the template cannot keep cache points; warns if there are none and a model needs them."""
    if not cache_points:
        warn_without_cache_points(llm)
    if cache_points and not isinstance(memory_blocks_template, MemoryBlocksTemplate | None):
        raise LayoutError(
            "cache_points=True needs the record in text blocks of its own, which only MemoryBlocksTemplate keeps; "
            f"memory_blocks_template is a {type(memory_blocks_template).__name__}. Leave one of the two out."
        )


def session_of(store: object, session_id: object) -> str:
    """Returns the name of the session, by default a new one.

    Raises a StoreError for a store without cursors, or one that outlives a session without a name; a SettingError for
    what is no id.
    """
    if not isinstance(store, MemoryStore):
        raise StoreError(
            f"chat_store must be a MemoryStore, which keeps the cursors of the blocks; it is a "
            f"{type(store).__name__}. Use MemoryStore(async_database_uri)."
        )
    check_id("session_id", session_id)
    if not (session_id or store.database.in_memory):
        raise StoreError(
            f"{store!r} outlives this process, but without a session_id nobody could find the conversation "
            "again. Give it one: CondensedMemory.from_defaults(session_id=...)."
        )
    return generate_chat_store_key() if session_id is None else str(session_id)


def store_of(chat_store: MemoryStore | None, **place: Any) -> MemoryStore:
    """Returns the store that is given, or a new one at this place; a SettingError for both."""
    if chat_store is None:
        return MemoryStore(**place)
    if given := [name for name, value in place.items() if value not in (None, DEFAULT_TABLE_NAME)]:
        raise SettingError(
            f"chat_store has a database and tables of its own; saw {', '.join(given)} beside it. Leave out one of them."
        )
    return chat_store


def check_travels(store: MemoryStore) -> None:
    """Raises a StoreError if a memory on this store would come out of a pickle without its conversation."""
    if store.database.in_memory:
        raise StoreError(
            "This memory cannot be pickled: its database is in memory, and the copy would be empty. Keep it in a file "
            'or on a server, as with async_database_uri="sqlite+aiosqlite:///memory.db", or pass on the memory itself.'
        )
