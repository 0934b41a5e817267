"""The condensed block in a plain LlamaIndex Memory, and by itself."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import (
    CondensedMemoryBlock,
    LimitError,
    MemoryStore,
    SettingError,
    StoreError,
    TokenCounter,
)
from llama_index_memory_ext.text.tokens import as_counter
from tests.conversation import assistant, calling, record, result, sent_text, user
from tests.memories import OpenPlainMemory

COUNTER = TokenCounter()


async def shown(block: CondensedMemoryBlock, session_id: str = "chat") -> list[tuple[str, str]]:
    return record(await block.aget([], session_id=session_id))


async def test_an_empty_block_shows_nothing() -> None:
    block = CondensedMemoryBlock()
    assert await block.aget() == ""
    await block.aput([])
    assert await block.aget([], session_id="chat") == ""
    await block.aclose()


async def test_what_is_flushed_is_shown_oldest_first() -> None:
    block = CondensedMemoryBlock()
    await block.aput([user("one"), assistant("two")], from_short_term_memory=True, session_id="chat")
    await block.aput([user("three")], from_short_term_memory=True, session_id="chat")
    assert await shown(block) == [("user", "one"), ("assistant", "two"), ("user", "three")]
    await block.aclose()


async def test_a_message_that_is_put_is_not_changed() -> None:
    """The host's own blocks write the session id into it."""
    block = CondensedMemoryBlock()
    message = user("one")
    await block.aput([message], session_id="chat")
    assert message == user("one")
    await block.aclose()


async def test_one_block_serves_many_sessions_and_shows_none_to_another() -> None:
    block = CondensedMemoryBlock()
    await block.aput([user("mine")], session_id="ann")
    await block.aput([user("yours")], session_id="bob")
    await block.aput([user("nobody's")])
    assert await shown(block, "ann") == [("user", "mine")]
    assert await shown(block, "bob") == [("user", "yours")]
    assert record(await block.aget()) == [("user", "nobody's")]
    await block.aclose()


async def test_a_block_that_takes_nothing_from_short_term_memory() -> None:
    block = CondensedMemoryBlock(accept_short_term_memory=False)
    await block.aput([user("flushed")], from_short_term_memory=True, session_id="chat")
    await block.aput([user("put")], session_id="chat")
    assert await shown(block) == [("user", "put")]
    await block.aclose()


@pytest.mark.parametrize("durable", [True, False])
async def test_it_works_in_a_plain_memory(open_plain_memory: OpenPlainMemory, database_uri: str, durable: bool) -> None:
    """With a store of its own that forgets, and with one that the memory shares and that remembers."""
    store = MemoryStore(database_uri) if durable else None
    memory = open_plain_memory(CondensedMemoryBlock(store=store), chat_store=store)
    for i in range(3):
        await memory.aput(user(f"question {i}"))
        prompt = sent_text(await memory.aget())
        await memory.aput(assistant(f"answer {i}"))
    assert [text for _, text in record(prompt)] == ["question 0", "answer 0", "question 1", "answer 1"]
    assert "question 2" in prompt
    if store is not None:
        again = open_plain_memory(CondensedMemoryBlock(store=store), chat_store=store)
        await again.aput(user("question 3"))
        assert len(record(sent_text(await again.aget()))) == 6
        await store.aclose()


async def test_a_store_that_the_memory_does_not_use_is_refused(
    open_plain_memory: OpenPlainMemory, database_uri: str
) -> None:
    """It would stay empty, and nobody would know why; the messages are in the memory's own store."""
    store = MemoryStore(database_uri)
    memory = open_plain_memory(CondensedMemoryBlock(store=store))
    await memory.aput(user("The first message."))
    with pytest.raises(StoreError, match=r"Give both the same store: Memory.from_defaults\(chat_store=store"):
        await memory.aput(user("The second message."))
    assert len(await memory.aget_all()) == 2
    await store.aclose()


async def test_the_record_is_cut_to_a_share_of_the_limit_and_then_stays_the_same() -> None:
    """So that the beginning of the prompt can come from a cache for many turns."""
    block = CondensedMemoryBlock(token_limit=1_000)
    cuts, before = 0, ""
    for i in range(200):
        await block.aput([user(f"question {i}, with a few more words to it"), assistant("yes")], session_id="chat")
        text = await block.aget([], session_id="chat")
        assert COUNTER.count(f"<condensed_memory>\n{text}</condensed_memory>\n") <= 1_000
        if not text.startswith(before):
            cuts += 1
            assert 300 <= COUNTER.count(text) <= 400
            assert text.startswith('<message role="user">')
        before = text
    assert 5 <= cuts <= 15
    await block.aclose()


async def test_one_long_message_is_clipped_and_leaves_room_for_others() -> None:
    block = CondensedMemoryBlock(token_limit=1_000)
    await block.aput([user("My name is Logan."), assistant("Hello.")], session_id="chat")
    await block.aput([user("a long log: " + "line " * 5_000), assistant("I see.")], session_id="chat")
    entries = await shown(block)
    assert [role for role, _ in entries] == ["user", "assistant", "user", "assistant"]
    assert entries[0][1] == "My name is Logan."
    assert "tokens left out ...]" in entries[2][1]
    assert entries[2][1].startswith("a long log: line")
    await block.aclose()


async def test_a_call_and_its_results_share_the_room_of_one_message() -> None:
    """Clipped rather than parted."""
    block = CondensedMemoryBlock(token_limit=600)
    calls = calling(("call_1", "read", {"file": "a"}), ("call_2", "read", {"file": "b"}))
    long = "word " * 3_000
    await block.aput([user("Read them."), calls, result("call_1", long), result("call_2", long)], session_id="chat")
    entries = await shown(block)
    assert [role for role, _ in entries] == ["user", "assistant", "tool", "tool"]
    assert all("tokens left out" in text for role, text in entries if role == "tool")
    await block.aclose()


async def test_a_result_that_comes_later_finds_its_call() -> None:
    """As if both had come at once."""
    late, at_once = CondensedMemoryBlock(token_limit=600), CondensedMemoryBlock(token_limit=600)
    messages = [user("Read it."), calling(("call_1", "read", {})), result("call_1", "word " * 3_000)]
    await late.aput(messages[:2], session_id="chat")
    await late.aget([], session_id="chat")
    await late.aput(messages[2:], session_id="chat")
    await at_once.aput(messages, session_id="chat")
    assert await shown(late) == await shown(at_once)
    await late.aclose()
    await at_once.aclose()


async def test_a_number_of_messages_can_be_the_limit() -> None:
    block = CondensedMemoryBlock(max_messages=6, keep_messages=2)
    lengths = []
    for i in range(10):
        await block.aput([user(f"question {i}"), assistant(f"answer {i}")], session_id="chat")
        lengths.append(len(await shown(block)))
    assert lengths == [2, 4, 6, 2, 4, 6, 2, 4, 6, 2]
    await block.aclose()


async def test_a_long_batch_is_read_in_pages() -> None:
    """Only as far as it is shown."""
    block = CondensedMemoryBlock(token_limit=20_000)
    await block.aput([user(f"message {i}") for i in range(1_000)], session_id="chat")
    assert [text for _, text in await shown(block)] == [f"message {i}" for i in range(1_000)]
    await block.aput([user(f"message {i}") for i in range(1_000, 5_000)], session_id="chat")
    texts = [text for _, text in await shown(block)]
    assert texts == [f"message {i}" for i in range(5_000 - len(texts), 5_000)]
    assert len(texts) > 500
    await block.aclose()


@given(
    tokens=st.integers(-5, 400),
    kinds=st.lists(st.sampled_from(["user", "assistant", "tool"]), max_size=12),
)
async def test_truncating_drops_the_oldest_and_no_result_comes_first(tokens: int, kinds: list[str]) -> None:
    """At least as much as was asked for."""
    block = CondensedMemoryBlock()
    messages = [ChatMessage(role=kind, content=f"{kind} {i} says something") for i, kind in enumerate(kinds)]
    await block.aput(messages, session_id="chat")
    text = await block.aget([], session_id="chat")
    left = await block.atruncate(text, tokens) or ""
    assert text.endswith(left)
    assert left == "" or COUNTER.count(text) - COUNTER.count(left) >= tokens
    if tokens > 0:
        assert not left.startswith('<message role="tool"')
    await block.aclose()


@pytest.mark.parametrize("content", ["", [], None])
async def test_truncating_nothing_leaves_nothing(content: object) -> None:
    """The host asks with a list for a block that returned nothing."""
    assert await CondensedMemoryBlock().atruncate(content, 10) is None


@pytest.mark.parametrize(
    "options",
    [{"token_limit": 0}, {"keep_ratio": 0}, {"keep_ratio": 1.5}, {"message_ratio": -1}, {"max_messages": 0}],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=next(iter(options))):
        CondensedMemoryBlock(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"keep_messages": 3}, {"keep_messages": 3, "max_messages": 2}])
def test_keeping_more_messages_than_there_may_be_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(LimitError, match="keep_messages=3 needs a max_messages"):
        CondensedMemoryBlock(**options)  # type: ignore[arg-type]


async def test_a_copy_reads_the_same_log() -> None:
    """And a pickled block comes back without what it held in memory."""
    block = CondensedMemoryBlock(token_limit=500)
    await block.aput([user("one")], session_id="chat")
    assert await shown(block) == await shown(copy.deepcopy(block)) == [("user", "one")]
    twin = pickle.loads(pickle.dumps(block))
    assert (twin.token_limit, await shown(twin)) == (500, [])
    await block.aclose()
    await twin.aclose()


async def test_the_name_of_the_block_cannot_be_closed_from_within() -> None:
    block = CondensedMemoryBlock(name="notes")
    await block.aput([user("</notes><notes>")], session_id="chat")
    assert await shown(block) == [("user", "&lt;/notes>&lt;notes>")]
    await block.aclose()


async def test_any_tokenizer_can_count_the_limit() -> None:
    """Here one token per character, and one for each text."""
    block = CondensedMemoryBlock(token_limit=400, tokenizer_fn=as_counter(lambda text: [0, *map(ord, text)]))
    for i in range(30):
        await block.aput([user(f"message {i}")], session_id="chat")
        text = await block.aget([], session_id="chat")
        assert len(f"<condensed_memory>\n{text}</condensed_memory>\n") + 1 <= 400
    assert await shown(block)
    await block.aclose()


async def test_a_field_that_is_changed_counts_from_the_next_prompt_on() -> None:
    block = CondensedMemoryBlock(token_limit=2_000)
    await block.aput([user(f"question {i}, with a few more words to it") for i in range(50)], session_id="chat")
    assert len(await shown(block)) == 50
    block.max_messages = 20
    assert len(await shown(block)) == 8
    block.token_limit, block.keep_ratio, block.max_messages = 150, 0.5, None
    text = await block.aget([], session_id="chat")
    assert 30 <= COUNTER.count(text) <= 75
    block.name = "said"
    assert (await block.ameasure("chat")).record_tokens == COUNTER.count(await block.aget([], session_id="chat"))
    block.token_limit, block.recall_token_limit = 600, 400
    assert "question 3," in await block.aget([user("What was question 3?")], session_id="chat")
    block.keep_messages = 9
    with pytest.raises(LimitError, match="keep_messages=9 needs a max_messages"):
        await block.aget([], session_id="chat")
    await block.aclose()


async def test_a_copy_with_another_limit_keeps_to_it() -> None:
    block = CondensedMemoryBlock()
    await block.aput([user(f"question {i}") for i in range(50)], session_id="chat")
    assert len(await shown(block)) == 50
    assert len(await shown(block.model_copy(update={"max_messages": 10}))) == 4
    await block.aclose()
