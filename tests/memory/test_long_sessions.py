"""All messages of a long session can be read while other tasks go on."""

from __future__ import annotations

import json

from llama_index.core.storage.chat_store.base_db import MessageStatus

from llama_index_memory_ext import CondensedMemory
from tests.conversation import assistant, user

MESSAGES = [message for i in range(800) for message in (user(f"Question {i}?"), assistant(f"Answer {i}."))]


async def test_all_messages_can_be_read_one_after_the_other(any_database_uri: str | None) -> None:
    """Oldest first, over all pages, with a status or without; the same as in a list, and in an export."""
    options = {"async_database_uri": any_database_uri, "extract_facts": False}
    async with CondensedMemory.from_defaults("chat", **options) as memory:  # type: ignore[arg-type]
        assert [message async for message in memory.aiter_all()] == []
        await memory.aput_messages(MESSAGES)
        said = [message.content for message in MESSAGES]
        assert [message.content async for message in memory.aiter_all()] == said
        assert [message.content async for message in memory.aiter_all(MessageStatus.ACTIVE)] == said[-2:]
        assert [message.content for message in await memory.aget_all()] == said
        exported = [message["blocks"][0]["text"] for message in json.loads(await memory.aexport())]
        assert exported == said
        store = memory.sql_store
        some = await store.get_messages("chat", status=None, limit=1_100, offset=7)
        assert [message.content for message in some] == said[7:1_107]


async def test_what_changes_meanwhile_is_seen_as_it_is_then(database_uri: str) -> None:
    """No reading is held open: others write in between, and what they delete is not shown any more."""
    options = {"async_database_uri": database_uri, "extract_facts": False}
    async with CondensedMemory.from_defaults("chat", **options) as memory:  # type: ignore[arg-type]
        await memory.aput_messages(MESSAGES)
        seen: list[str | None] = []
        async for message in memory.aiter_all():
            if not seen:
                await memory.aset(MESSAGES[:1_000])
                await memory.aput(user("The last one"))
            seen.append(message.content)
        assert seen == [*(message.content for message in MESSAGES[:1_000]), "The last one"]
