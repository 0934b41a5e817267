"""Moving a session: messages from JSON and to JSON, and copies of a session."""
# ruff: noqa: SLF001 - parts of the class that calls these functions

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.errors import MessageError, SettingError
from llama_index_memory_ext.formats import messages_to_json, moved_from_json
from llama_index_memory_ext.memory.writing import access_of, put
from llama_index_memory_ext.settings import check_id
from llama_index_memory_ext.store.links import link_session
from llama_index_memory_ext.text.messages import speaker_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llama_index_memory_ext.memory.fields import MemoryFields
    from llama_index_memory_ext.memory.runs import M


async def import_json(
    memory: MemoryFields, source: str | bytes | Iterable[Any], *, show_progress: bool
) -> int:
    """Add a conversation from JSON, and return the number of messages that were stored."""
    # Reading a long history takes seconds and must not block the event loop.
    messages = await asyncio.to_thread(
        moved_from_json, source, show_progress=show_progress
    )
    speakers = set(map(speaker_of, messages)) - {None}
    if memory.user_id is None and len(speakers) > 1:
        raise MessageError(
            f"Expected messages of one user; these name {len(speakers)} users, whose words would become those of "
            "one user. Nothing was stored. Open the session with a user_id and shared=True."
        )
    count = await put(memory, messages, strict=True)
    await memory.sql_store.database.run(
        link_session, memory.session_id, sessions=[memory.session_id]
    )
    return count


async def export_json(memory: MemoryFields) -> str:
    """Return all messages of the session as a JSON list."""
    store = memory.sql_store
    memory._is_used = True
    await store.log.check_owner(memory.session_id, access_of(memory))
    rows = await store.readers.find(memory.session_id)
    # Writing a long history takes seconds and must not block the event loop.
    return await asyncio.to_thread(
        lambda: messages_to_json([row.moved for row in rows if not row.is_damaged])
    )


async def branch(
    memory: M,
    new_session_id: str,
    until: str | int | None,
    before: str | int | None,
) -> M:
    """Return a memory of a copy of the session, up to a message."""
    check_id("new_session_id", new_session_id)
    if new_session_id is None:
        raise SettingError(
            "abranch takes a new_session_id; got None. Pass the name of the new session."
        )
    if until is not None and before is not None:
        raise SettingError(
            "abranch takes until or before, where the copy ends; got both. Leave out one of them."
        )
    access = access_of(memory)
    end = until if before is None else before
    async with memory._calls():
        await memory.sql_store.log.branch(
            memory.session_id, new_session_id, access, end, with_end=before is None
        )
    copy = memory.model_copy(update={"session_id": new_session_id})
    copy._owns_store = False
    copy._last_sources = None
    if memory.user_id is None:
        facts = memory.facts_block
        own_facts = facts.model_copy(update={"user_id": new_session_id}).belong_to(
            access.user_in(new_session_id)
        )
        copy.memory_blocks = [
            own_facts if block is facts else block for block in memory.memory_blocks
        ]
    return copy
