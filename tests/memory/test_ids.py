"""The ids of users, sessions and agents: none that everybody has, and none that looks like another one."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.memory import Memory

from llama_index_memory_ext import CondensedMemory, Fact, MemoryStore, RelevantFactsBlock, SettingError
from llama_index_memory_ext.facts.book import FactBook
from llama_index_memory_ext.store.tables import Opening
from tests.conversation import assistant, sent_text, user

# As of a request whose header was missing, or was read with its white space.
NO_IDS = ["", " ", "\t\n", "\u3000", " ann", "ann ", "ann\n"]
NO_TEXTS: list[Any] = [7, ["ann"]]


@pytest.mark.parametrize("name", ["session_id", "user_id", "agent_id"])
@pytest.mark.parametrize("value", [*NO_IDS, *NO_TEXTS], ids=repr)
def test_an_id_that_is_none_opens_no_memory_and_no_block_of_facts(database_uri: str, name: str, value: Any) -> None:
    """It says what was expected, what was seen, and what to do."""
    given: dict[str, Any] = {name: value}
    with pytest.raises(SettingError, match=rf"^{name} must be .*; saw .*\. \w") as refused:
        CondensedMemory.from_defaults(**{"session_id": "chat", "async_database_uri": database_uri, **given})
    assert "\n" not in str(refused.value)
    if name != "session_id":
        with pytest.raises(SettingError, match=rf"^{name} must be .*; saw "):
            RelevantFactsBlock(**given)


async def test_none_is_a_session_of_its_own_in_memory() -> None:
    one, other = (CondensedMemory.from_defaults(extract_facts=False) for _ in range(2))
    assert one.session_id != other.session_id
    assert one.facts_block.user_id == one.session_id


@pytest.mark.parametrize("key", ["", " ", "chat "])
async def test_the_keys_of_a_plain_memory_are_its_own(any_database_uri: str | None, key: str) -> None:
    store = MemoryStore(any_database_uri)
    memory = Memory.from_defaults(session_id=key or "x", chat_store=store)
    memory.session_id = key
    await memory.aput(user("Hello"))
    assert [message.content for message in await store.get_messages(key)] == ["Hello"]
    await store.aclose()


@pytest.mark.parametrize("value", NO_IDS, ids=repr)
async def test_what_was_stored_under_such_an_id_can_be_deleted(any_database_uri: str | None, value: str) -> None:
    """And what is another one's stays."""
    store = MemoryStore(any_database_uri)
    # As versions before have stored it.
    await store.log.append("old", [user("I like tea."), assistant("Noted.")], len, opening=Opening(value))
    await store.log.append(value, [user("Hello"), assistant("Hello")], len, opening=Opening(value))
    await FactBook(store, value).aadd(Fact(content="Likes tea", session_id="old"))
    ann = CondensedMemory.from_defaults("chat", user_id="ann", chat_store=store, extract_facts=False)
    await ann.aput(user("I like tea."))
    await ann.facts.aadd("Likes tea")
    deleted = await store.forget_user(value)
    assert (deleted["messages"], deleted["facts"]) == (4, 1)
    assert [(info.session_id, info.user_ids) for info in await store.sessions()] == [("chat", ("ann",))]
    assert "Likes tea" in sent_text(await ann.aget())
    assert await FactBook(store, value).alist() == []
    await store.aclose()
