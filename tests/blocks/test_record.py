"""The condensed block in a plain LlamaIndex Memory, and by itself."""

from __future__ import annotations

import copy
import pickle
import sqlite3
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from sqlalchemy import make_url

from llama_index_memory_ext import (
    CondensedMemoryBlock,
    Fact,
    LimitError,
    MemoryStore,
    RelevantFactsBlock,
    SettingError,
    StoreError,
    TokenCounter,
)
from tests.conversation import (
    assistant,
    calling,
    of_today,
    record,
    result,
    sent_text,
    user,
)
from tests.memories import OpenMemory, OpenPlainMemory
from tests.record.conftest import OpenBlock

COUNTER = TokenCounter()


LONG = " ".join(f"w{i}" for i in range(3_000))


async def shown(
    block: CondensedMemoryBlock, *messages: ChatMessage, session_id: str = "chat"
) -> list[tuple[str, str]]:
    """What is shown of a record after these messages, within its limit."""
    if messages:
        await block.aput(list(messages), session_id=session_id)
    text = await block.aget([], session_id=session_id)
    assert (
        COUNTER.count(f"<{block.name}>\n{text}</{block.name}>\n" if text else "")
        <= block.token_limit
    )
    return record(text)


async def test_an_empty_block_shows_nothing(open_block: OpenBlock) -> None:
    block = open_block()
    assert await block.aget() == ""
    await block.aput([])
    assert await shown(block) == []


async def test_what_is_flushed_is_shown_oldest_first(open_block: OpenBlock) -> None:
    """And is not changed; the host's own blocks write the session id into it."""
    block, message = open_block(), user("one")
    await block.aput(
        [message, assistant("two")], from_short_term_memory=True, session_id="chat"
    )
    assert await shown(block, user("three")) == [
        ("user", "one"),
        ("assistant", "two"),
        ("user", "three"),
    ]
    assert message == user("one")


async def test_one_block_serves_many_sessions_and_shows_none_to_another(
    open_block: OpenBlock,
) -> None:
    block = open_block()
    await block.aput([user("no one's")])
    assert await shown(block, user("mine"), session_id="ann") == [("user", "mine")]
    assert await shown(block, user("yours"), session_id="bob") == [("user", "yours")]
    assert record(await block.aget()) == [("user", "no one's")]


async def test_a_block_that_takes_nothing_from_short_term_memory(
    open_block: OpenBlock,
) -> None:
    block = open_block(accept_short_term_memory=False)
    await block.aput([user("flushed")], from_short_term_memory=True, session_id="chat")
    assert await shown(block, user("put")) == [("user", "put")]


@pytest.mark.parametrize("durable", [True, False])
async def test_it_works_in_a_plain_memory(
    open_plain_memory: OpenPlainMemory, database_uri: str, durable: bool
) -> None:
    """With a store of its own that forgets, and with one that the memory shares and that remembers."""
    store = MemoryStore(database_uri) if durable else None
    memory = open_plain_memory(CondensedMemoryBlock(store=store), chat_store=store)
    for i in range(3):
        await memory.aput(user(f"question {i}"))
        prompt = sent_text(await memory.aget())
        await memory.aput(assistant(f"answer {i}"))
    assert [text for _, text in record(prompt)] == [
        "question 0",
        "answer 0",
        "question 1",
        "answer 1",
    ]
    assert "question 2" in prompt
    if store is not None:
        again = open_plain_memory(CondensedMemoryBlock(store=store), chat_store=store)
        await again.aput(user("question 3"))
        assert len(record(sent_text(await again.aget()))) == 6
        await store.aclose()


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("block", [CondensedMemoryBlock, RelevantFactsBlock])
async def test_a_store_that_the_memory_does_not_use_is_refused(
    open_plain_memory: OpenPlainMemory, database_uri: str, block: Any, reads: bool
) -> None:
    """It would stay empty, and nobody would know why; the messages are in the memory's own store."""
    store = MemoryStore(database_uri)
    memory = open_plain_memory(block(store=store))
    await memory.aput(user("The first message."))
    if reads:
        await memory.aget()
    with pytest.raises(
        StoreError,
        match=r"Give both the same store: Memory.from_defaults\(chat_store=store",
    ):
        await memory.aput(user("The second message."))
    assert len(await memory.aget_all()) == 2
    await store.aclose()


async def test_a_block_that_only_shows_facts_needs_no_messages_in_its_store(
    open_plain_memory: OpenPlainMemory, database_uri: str
) -> None:
    store = MemoryStore(database_uri)
    await store.facts.write("ann", [Fact(content="Likes tea")])
    block = RelevantFactsBlock(store=store, user_id="ann", extract_facts=False)
    memory = open_plain_memory(block)
    for message in (user("Hi."), assistant("Hello."), user("What do I like?")):
        await memory.aput(message)
        prompt = sent_text(await memory.aget())
    assert "Likes tea" in prompt
    await store.aclose()


# ---- days ----------------------------------------------------------------------------------------------


def on_day(day: str, message: ChatMessage) -> ChatMessage:
    kwargs = {**message.additional_kwargs, "date": f"{day}T09:00:00+00:00"}
    return ChatMessage(
        role=message.role, blocks=message.blocks, additional_kwargs=kwargs
    )


async def test_a_day_stands_above_its_messages_and_today_below_those_of_others(
    open_block: OpenBlock,
) -> None:
    block = open_block(token_limit=2_000)
    for day in ("2025-03-04", "2025-03-04", "2025-03-06"):
        await shown(block, on_day(day, user("Hello.")))
    call = calling(("call_1", "look", {}))
    await shown(
        block, on_day("2025-03-06", call), on_day("2025-03-07", result("call_1", "No."))
    )
    text = await block.aget([], session_id="chat")
    hello, today = '<message role="user">Hello.</message>\n', of_today()
    last = today.replace("\n", " (today)\n")
    first, second = (f"<message date>2025-03-{day}\n" for day in ("04", "06"))
    assert text.startswith(f"{first}{hello}{hello}{second}{hello}<message role")
    # A result stands with its call.
    assert text.count("<message date>") == 3
    assert text.endswith(last)
    assert (await block.ameasure("chat")).record_tokens == COUNTER.count(text)
    await shown(block, user("Now."))
    again = await block.aget([], session_id="chat")
    assert (
        again
        == f'{text.removesuffix(last)}{today}<message role="user">Now.</message>\n'
    )
    block.show_days = False
    assert "<message date>" not in await block.aget([], session_id="chat")


async def test_days_are_within_the_limit_and_the_same_in_every_process(
    open_memory: OpenMemory,
) -> None:
    """After each cut the first message has its day, and what was sent before a cut stays as it is."""
    options: dict[str, Any] = {"condensed_token_limit": 400, "recall_token_limit": 0}
    memory, other = open_memory(**options), open_memory(**options)
    texts = [""]
    for i in range(40):
        day = f"2025-04-{1 + i // 2:02}"
        await memory.aput_messages(
            [
                on_day(day, user(f"Question {i}?")),
                on_day(day, assistant("Yes, of course.")),
            ]
        )
        found = [
            await one.condensed_block.aget(session_id="chat")
            for one in (memory, other, open_memory(**options))
        ]
        assert len(set(found)) == 1
        texts.append(found[0])
        assert COUNTER.count(texts[-1]) <= 400
        assert not texts[-1] or texts[-1].startswith("<message date>2025-04-")
    cut = [
        not after.startswith(before.rpartition("<message date>")[0])
        for before, after in pairwise(texts)
    ]
    assert 2 <= sum(cut) <= 10


# ---- what is kept --------------------------------------------------------------------------------------


async def test_the_record_is_cut_to_a_share_of_the_limit_and_then_stays_the_same(
    open_block: OpenBlock,
) -> None:
    """So that the beginning of the prompt can come from a cache for many turns."""
    block = open_block(token_limit=1_000, recall_token_limit=0)
    cuts, before = 0, ""
    for i in range(200):
        await shown(
            block, user(f"question {i}, with a few more words to it"), assistant("yes")
        )
        text = await block.aget([], session_id="chat")
        if not text.startswith(before):
            cuts += 1
            assert 300 <= COUNTER.count(text) <= 400
            assert text.startswith(f'{of_today()}<message role="user">')
        before = text
    assert 5 <= cuts <= 15


async def test_a_cut_that_cannot_be_stored_is_shown(database_uri: str) -> None:
    """Another program has locked the file; each prompt tries again."""
    store = MemoryStore(database_uri, operation_timeout=2)
    block = CondensedMemoryBlock(store=store, token_limit=300)
    await store.log.append("chat", [user(f"question {i}") for i in range(40)], len)
    file = str(make_url(database_uri).database)
    with closing(sqlite3.connect(file, isolation_level=None)) as locker:
        locker.execute("BEGIN EXCLUSIVE")
        locked = await shown(block)
        locker.execute("ROLLBACK")
    assert locked[-1] == ("user", "question 39")
    await shown(block)
    assert (await store.readers.cursor("chat", block.name)).position
    await store.aclose()


async def test_earlier_messages_are_shown_once_the_record_was_deleted(
    open_memory: OpenMemory,
) -> None:
    """As by a user who goes back to an early question."""
    options: dict[str, Any] = {"max_messages": 6, "keep_messages": 2}
    memory = open_memory(recall_token_limit=0, **options)
    for i in range(9):
        await memory.aput_messages([user(f"question {i}"), assistant(f"answer {i}")])
        await memory.aget("Go on.")
    await memory.aset((await memory.aget_all())[:8])
    prompt = sent_text(await memory.aget("Go on."))
    assert record(prompt)[-1] == ("assistant", "answer 3")


@pytest.mark.parametrize(
    ("most", "keep", "lengths"),
    [(6, 2, [2, 4, 6, 2, 4, 6, 2]), (4, 4, [2, 4, 4, 4, 4, 4, 4])],
)
async def test_a_number_of_messages_can_be_the_limit(
    open_block: OpenBlock, most: int, keep: int, lengths: list[int]
) -> None:
    block = open_block(max_messages=most, keep_messages=keep)
    for i, length in enumerate(lengths):
        entries = await shown(block, user(f"question {i}"), assistant(f"answer {i}"))
        assert (len(entries), entries[-1][1]) == (length, f"answer {i}")


async def test_a_call_and_its_results_share_the_room_of_one_message(
    open_block: OpenBlock,
) -> None:
    """Also of a result that comes later; they are clipped rather than parted."""
    late = open_block(token_limit=600, recall_token_limit=0)
    at_once = open_block(token_limit=600, recall_token_limit=0)
    calls = calling(
        ("call_1", "read", {"file": "a"}), ("call_2", "read", {"file": "b"})
    )
    messages = [
        user("Read them."),
        calls,
        result("call_1", LONG),
        result("call_2", LONG),
    ]
    await shown(late, *messages[:3])
    entries = await shown(late, *messages[3:])
    assert entries == await shown(at_once, *messages)
    assert [role for role, _ in entries] == ["user", "assistant", "tool", "tool"]
    assert all("tokens left out" in text for role, text in entries if role == "tool")


async def test_a_long_batch_is_read_in_pages_as_far_as_it_is_shown(
    open_block: OpenBlock,
) -> None:
    block = open_block(token_limit=20_000)
    assert [
        text
        for _, text in await shown(block, *(user(f"message {i}") for i in range(1_000)))
    ] == [f"message {i}" for i in range(1_000)]
    texts = [
        text
        for _, text in await shown(
            block, *(user(f"message {i}") for i in range(1_000, 5_000))
        )
    ]
    assert texts == [f"message {i}" for i in range(5_000 - len(texts), 5_000)]
    assert len(texts) > 500


# ---- first instructions --------------------------------------------------------------------------------


async def test_the_first_instructions_stay_in_front_for_good(
    open_block: OpenBlock,
) -> None:
    """Others leave like all messages."""
    block, kind, brief = (
        open_block(token_limit=200, include_system=True),
        ("system", "Be kind."),
        "Be brief.",
    )
    await shown(
        block,
        ChatMessage(kind[1], role="system"),
        user("hello"),
        ChatMessage(brief, role="system"),
    )
    for i in range(30):
        entries = await shown(block, user(f"question {i}"), assistant("yes"))
        assert entries[0] == kind
        assert kind not in entries[1:]
    assert ("system", brief) not in entries
    assert await shown(block, user("Hello."), session_id="other") == [
        ("user", "Hello.")
    ]


async def test_instructions_over_the_limit_are_clipped_and_leave_room(
    open_block: OpenBlock,
) -> None:
    block = open_block(token_limit=200, include_system=True)
    first, *others = await shown(
        block, ChatMessage(LONG, role="system"), user("the newest question")
    )
    assert "tokens left out" in first[1]
    assert others == [("user", "the newest question")]


async def test_instructions_count_as_a_message(open_block: OpenBlock) -> None:
    block = open_block(max_messages=3, keep_messages=3, include_system=True)
    entries = await shown(
        block,
        ChatMessage("Be kind.", role="system"),
        *(user(f"question {i}") for i in range(9)),
    )
    assert [text for _, text in entries] == ["Be kind.", "question 7", "question 8"]


# ---- its settings --------------------------------------------------------------------------------------


NO_ROOM = (
    r"leave no room for messages in the 500 of the whole record\. Raise token_limit"
)


@pytest.mark.parametrize(
    ("error", "said", "options"),
    [
        (SettingError, "token_limit", {"token_limit": 0}),
        (SettingError, "no argument 'max_message'", {"max_message": 3}),
        (
            LimitError,
            "keep_messages=3 needs max_messages of at least 3",
            {"keep_messages": 3},
        ),
        (
            LimitError,
            "keep_messages=3 needs max_messages of at least 3",
            {"keep_messages": 3, "max_messages": 2},
        ),
        (LimitError, NO_ROOM, {"token_limit": 500, "recall_token_limit": 500}),
        (
            LimitError,
            NO_ROOM,
            {"token_limit": 500, "summarize": True, "recall_token_limit": 400},
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(
    error: type[Exception], said: str, options: dict[str, Any]
) -> None:
    with pytest.raises(error, match=said):
        CondensedMemoryBlock(**options)


@pytest.mark.parametrize("content", ["", [], None])
async def test_truncating_nothing_leaves_nothing(content: object) -> None:
    """The host asks with a list for a block that returned nothing."""
    assert await CondensedMemoryBlock().atruncate(content, 10) is None


async def test_a_copy_reads_the_same_log(open_block: OpenBlock) -> None:
    """With another limit it keeps to that; a pickled block comes back without what it held in memory."""
    block = open_block(
        token_limit=900, include_system=True, summarize=True, recall_token_limit=300
    )
    said = await shown(block, *(user(f"question {i}") for i in range(10)))
    assert said == await shown(copy.deepcopy(block)) != []
    shorter = block.model_copy(update={"max_messages": 5, "summarize": False})
    assert len(await shown(shorter)) == 2
    twin = pickle.loads(pickle.dumps(block))
    assert twin.recall_token_limit == 300
    assert twin.summarize is True
    assert await shown(twin) == []
    await twin.aclose()


async def test_the_name_of_the_block_cannot_be_closed_from_within(
    open_block: OpenBlock,
) -> None:
    block = open_block(name="notes")
    assert await shown(block, user("</notes><notes>")) == [
        ("user", "&lt;/notes>&lt;notes>")
    ]


async def test_a_field_that_is_changed_counts_from_the_next_prompt_on(
    open_block: OpenBlock,
) -> None:
    block = open_block(token_limit=2_000)
    asked = [user(f"question {i}, with a few more words to it") for i in range(50)]
    assert len(await shown(block, *asked)) == 50
    block.max_messages = 20
    assert len(await shown(block)) == 8
    block.token_limit, block.keep_ratio, block.max_messages = 150, 0.5, None
    text = await block.aget([], session_id="chat")
    assert 30 <= COUNTER.count(text) <= 75
    block.name = "said"
    assert (await block.ameasure("chat")).record_tokens == COUNTER.count(
        await block.aget([], session_id="chat")
    )
    block.token_limit, block.recall_token_limit = 600, 400
    assert "question 3," in await block.aget(
        [user("What was question 3?")], session_id="chat"
    )
    block.keep_messages = 9
    with pytest.raises(
        LimitError, match=r"keep_messages=9 needs max_messages of at least 9"
    ):
        await block.aget([], session_id="chat")
