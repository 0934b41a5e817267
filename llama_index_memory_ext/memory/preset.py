"""Checks the arguments of ``CondensedMemory.from_defaults``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index.core.memory.memory import generate_chat_store_key

from llama_index_memory_ext.errors import LayoutError, SettingError, StoreError
from llama_index_memory_ext.memory.prompt_caches import warn_without_cache_points
from llama_index_memory_ext.memory.template import MemoryBlocksTemplate
from llama_index_memory_ext.refusals import shown
from llama_index_memory_ext.store import MemoryStore

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


def check_shared(shared: object, user_id: str | None) -> None:
    """Raises a SettingError for a shared session of no user: it would not be known who says what."""
    if not isinstance(shared, bool) or (shared and user_id is None):
        raise SettingError(
            f"shared must be True or False, and with True the memory needs a user_id, which says who is speaking; saw "
            f"shared={shown(shared)} and {'no' if user_id is None else 'a'} user_id. Give it the id of its user."
        )


def session_of(store: object, session_id: object) -> str:
    """Returns the name of the session, by default a new one.

    Raises a StoreError for a store without cursors, or one that outlives a session without a name; a SettingError for
    a name that is no text.
    """
    if not isinstance(store, MemoryStore):
        raise StoreError(
            f"chat_store must be a MemoryStore, which keeps the cursors of the blocks; it is a "
            f"{type(store).__name__}. Use MemoryStore(async_database_uri)."
        )
    if not isinstance(session_id, str | None):
        raise SettingError(
            f"session_id must be a text, or None for a new one; saw {shown(session_id)}. str() makes one of a number."
        )
    if not (session_id or store.database.in_memory):
        raise StoreError(
            f"{store!r} outlives this process, but without a session_id nobody could find the conversation "
            "again. Give it one: CondensedMemory.from_defaults(session_id=...)."
        )
    return session_id or generate_chat_store_key()


def check_travels(store: MemoryStore) -> None:
    """Raises a StoreError if a memory on this store would come out of a pickle without its conversation."""
    if store.database.in_memory:
        raise StoreError(
            "This memory cannot be pickled: its database is in memory, and the copy would be empty. Keep it in a file "
            'or on a server, as with async_database_uri="sqlite+aiosqlite:///memory.db", or pass on the memory itself.'
        )
