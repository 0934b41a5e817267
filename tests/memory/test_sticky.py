"""Sticky messages: what was recalled most stands in front of the record from a cut on, the same in every process."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from llama_index_memory_ext import (
    CondensedMemory,
    CondensedMemoryBlock,
)
from llama_index_memory_ext.store.tables import ARCHIVED
from tests.conversation import assistant, named, sent_text, user
from tests.forked import run_forked

OPTIONS: dict[str, Any] = {
    "user_id": "ann",
    "condensed_token_limit": 1_000,
    "recall_token_limit": 150,
    "sticky_token_limit": 200,
    "facts_token_limit": 0,
    "extract_facts": False,
}
STICKY = re.compile(
    r'<earlier_messages note="said before the messages below">\n(.*?)</earlier_messages>\n',
    re.DOTALL,
)
RECALLED = re.compile(
    r'<earlier_messages note="said before the messages above[^>]*>\n(.*?)</earlier_messages>\n',
    re.DOTALL,
)
BOAT = "My boat Esmeralda is red."
QUESTION = "What colour is my boat?"

Open = Callable[..., CondensedMemory]


@asynccontextmanager
async def opening_on(uri: str) -> AsyncIterator[Open]:
    """What opens memories with a store of their own, as a new process would, until the end of the block."""
    async with AsyncExitStack() as stack:

        def open_one(session_id: str = "chat", **options: Any) -> CondensedMemory:
            place = {"async_database_uri": uri}
            memory = CondensedMemory.from_defaults(
                session_id, **{**OPTIONS, **place, **options}
            )
            stack.push_async_callback(memory.sql_store.aclose)
            return memory

        yield open_one


@pytest.fixture
async def open_on(database_uri: str) -> AsyncIterator[Open]:
    """Opens memories on a file, for what does not depend on the database."""
    async with opening_on(database_uri) as open_one:
        yield open_one


@pytest.fixture
async def open_on_each(lasting_database_uri: str) -> AsyncIterator[Open]:
    """Opens memories on a file, and on a server."""
    async with opening_on(lasting_database_uri) as open_one:
        yield open_one


def sticky(prompt: str) -> str:
    return "".join(STICKY.findall(prompt))


def recalled(prompt: str) -> str:
    return "".join(RECALLED.findall(prompt))


async def ask(memory: CondensedMemory, question: str = QUESTION) -> str:
    """Put a question and an answer, and return the prompt between them."""
    await memory.aput(user(question))
    prompt = sent_text(await memory.aget())
    await memory.aput(assistant("Fine."))
    return prompt


async def put_other_words(memory: CondensedMemory, number: int = 20) -> None:
    for i in range(number):
        await memory.aput(user(f"Number {i} is a number. {'And so on. ' * 8}"))
        await memory.aput(assistant("Good."))


async def with_sticky_boat(memory: CondensedMemory) -> CondensedMemory:
    """Put a message that leaves the record, is recalled, and becomes sticky at the next cut."""
    await memory.aput(named(user(BOAT), "boat"))
    await memory.aput(assistant("Nice."))
    for _ in range(2):
        await put_other_words(memory)
        await ask(memory)
    assert BOAT in sticky(await ask(memory, "Hello."))
    return memory


async def test_a_recalled_message_becomes_sticky_at_the_next_cut(open_on: Open) -> None:
    memory = await with_sticky_boat(open_on())
    first = await ask(memory)
    assert BOAT in sticky(first)
    assert BOAT not in recalled(first)
    sources = [source.text for source in memory.last_used().messages]
    assert sources.count(BOAT) == 1
    second = await ask(memory)
    # Behind it, the record grows, and a cache serves all that was sent.
    shown = first.partition('<earlier_messages note="said before the messages above')
    assert second.startswith(shown[0].removesuffix("</condensed_memory>\n</memory>\n"))
    assert first.index("below") < first.index("<message role=")


async def test_a_long_message_is_clipped_alike_before_and_behind_the_cut(
    open_on: Open,
) -> None:
    options = {"keep_ratio": 0.5, "sticky_token_limit": 60}
    memory = open_on(**options)
    await memory.aput(user(BOAT))
    await memory.aput(assistant("Nice."))
    await put_other_words(memory)
    await ask(memory)
    window = memory.condensed_block.window("chat")
    assert window is not None
    position = window.seen.position
    while window.tokens < window.limits.tokens - window.message_limit - 80:
        await put_other_words(memory, 1)
        await memory.aget("Hello.")
        window = memory.condensed_block.window("chat")
        assert window is not None
    await memory.aput(user("A long story. " * 200))
    await memory.aput(assistant("Good."))
    await memory.aget("Hello.")
    window = memory.condensed_block.window("chat")
    assert window is not None
    assert window.seen.position == position
    while window.seen.position == position:
        await memory.aput(user("Go on."))
        await memory.aput(assistant("Yes."))
        prompt = sent_text(await memory.aget("Hello."))
        window = memory.condensed_block.window("chat")
        assert window is not None
    assert BOAT in sticky(prompt)
    assert "A long story." in prompt
    assert sent_text(await open_on(**options).aget("Hello.")) == prompt


async def test_each_process_cuts_and_the_others_follow(open_on_each: Open) -> None:
    memory = await with_sticky_boat(open_on_each())
    other = open_on_each()
    for writer in (other, memory, other):
        await put_other_words(writer)
        await writer.aput(user(QUESTION))
        prompt = sent_text(await writer.aget())
        assert sent_text(await memory.aget()) == prompt
        assert sent_text(await other.aget()) == prompt
        assert BOAT in prompt
        await writer.aput(assistant("Red."))


async def test_what_is_no_longer_asked_for_makes_room(open_on: Open) -> None:
    memory = await with_sticky_boat(open_on())
    for _ in range(8):
        await put_other_words(memory)
        prompt = await ask(memory, "Hello.")
    assert BOAT not in sticky(prompt)
    assert BOAT in recalled(await ask(memory))


@pytest.mark.parametrize("limit", [42, 50])
async def test_the_message_that_was_recalled_more_often_becomes_sticky(
    open_on: Open, limit: int
) -> None:
    """Both of them if they have room, under one heading."""
    memory = open_on(sticky_token_limit=limit)
    for text in ("My car Aurora is blue.", BOAT):
        await memory.aput(user(text))
        await memory.aput(assistant("Nice."))
    await put_other_words(memory)
    for question in (QUESTION, "What colour is my car?", QUESTION):
        await ask(memory, question)
    await put_other_words(memory)
    shown = sticky(await ask(memory, "Hello."))
    assert BOAT in shown
    assert ("Aurora" in shown) == (limit == 50)


async def test_no_message_is_sticky_for_what_was_recalled_before_a_deletion(
    open_on_each: Open,
) -> None:
    """Its row may have the number of a deleted one, which another process has recalled."""
    memory = open_on_each()
    other = open_on_each()
    await memory.aput(user(BOAT))
    await memory.aput(assistant("Nice."))
    await put_other_words(memory)
    assert BOAT in recalled(await ask(other))
    await memory.areset()
    await memory.aput(user("My sister is Lena."))
    await memory.aput(assistant("Nice."))
    await put_other_words(memory)
    await put_other_words(other)
    prompt = await ask(other, "Hello.")
    assert "Lena" not in prompt
    assert not sticky(prompt)


async def test_it_keeps_within_its_limit(open_on: Open) -> None:
    memory = open_on()
    for i in range(40):
        await memory.aput(user(f"My boat number {i} is red and was built in {i}."))
        await memory.aput(assistant("Nice."))
        prompt = await ask(memory, f"What colour is my boat number {i // 2}?")
        assert memory.tokenizer_fn.count("".join(STICKY.findall(prompt))) <= 200
        record = prompt.partition("<condensed_memory>")[2].partition("</memory>")[0]
        assert memory.tokenizer_fn.count(record) <= 1_000
    assert sticky(prompt)


@pytest.mark.parametrize("way", ["delete", "edit"])
async def test_a_deleted_or_edited_message_disappears_at_once_in_every_process(
    open_on_each: Open, way: str
) -> None:
    memory = await with_sticky_boat(open_on_each())
    other = open_on_each()
    await ask(other)
    rows = await memory.sql_store.readers.find("chat", [ARCHIVED])
    row = next(row for row in rows if row.message.content == BOAT)
    if way == "delete":
        await memory.sql_store.delete_message("chat", row.id)
    else:
        messages = await memory.aget_all()
        messages[0].blocks[0].text = "My boat is blue."  # type: ignore[union-attr]
        await memory.aset(messages)
    for each in (memory, other, open_on_each()):
        prompt = await ask(each)
        assert "Esmeralda" not in prompt
    state = await memory.sql_store.readers.cursor("chat", "condensed_memory")
    assert "Esmeralda" not in str(state)


async def test_the_other_sticky_messages_stay(open_on_each: Open) -> None:
    memory = open_on_each()
    for name in ("Esmeralda", "Aurora"):
        await memory.aput(user(f"My boat {name} is red."))
        await memory.aput(assistant("Nice."))
    for _ in range(2):
        await put_other_words(memory)
        await ask(memory)
    before = await memory.sql_store.readers.cursor("chat", "condensed_memory")
    rows = await memory.sql_store.readers.find("chat", [ARCHIVED])
    await memory.sql_store.delete_message("chat", rows[0].id)
    after = await memory.sql_store.readers.cursor("chat", "condensed_memory")
    assert after.position == before.position
    for each in (memory, open_on_each()):
        prompt = sticky(await ask(each))
        assert "Aurora" in prompt
        assert "Esmeralda" not in prompt


async def test_a_person_who_leaves_a_shared_session_takes_their_messages_along(
    open_on_each: Open,
) -> None:
    bob = open_on_each(user_id="bob", shared=True)
    memory = await with_sticky_boat(open_on_each(shared=True))
    assert sticky(await ask(bob)).count(f'name="ann">{BOAT}') == 1
    await memory.sql_store.forget_user("ann")
    assert "Esmeralda" not in await ask(bob)


async def test_the_stored_choice_has_no_words(open_on: Open) -> None:
    memory = await with_sticky_boat(open_on())
    state = await memory.sql_store.readers.cursor("chat", "condensed_memory")
    rows = await memory.sql_store.readers.find("chat", [ARCHIVED])
    ids = [entry[0] for entry in state.state["rows"]]
    assert rows[0].id in ids
    assert set(ids) <= {row.id for row in rows}
    assert "boat" not in str(state)


async def test_a_copy_shows_every_message_once_and_recalls_it(
    open_on_each: Open,
) -> None:
    memory = await with_sticky_boat(open_on_each())
    copy = await memory.abranch("copy")
    prompt = await ask(copy)
    assert prompt.count(BOAT) == 1
    assert BOAT in sticky(await ask(memory))


async def test_a_fact_of_a_sticky_message_is_left_out(open_on: Open) -> None:
    memory = await with_sticky_boat(open_on(facts_token_limit=300))
    rows = await memory.sql_store.readers.find("chat", [ARCHIVED])
    await memory.facts.aadd(
        "Owns a red boat", session_id="chat", message_ids=[rows[0].id]
    )
    prompt = await ask(memory)
    assert BOAT in sticky(prompt)
    assert "Owns a red boat" not in prompt


async def test_without_them_nothing_is_stored_and_the_record_has_the_room(
    open_on: Open,
) -> None:
    memory = open_on(sticky_token_limit=0)
    await memory.aput(user(BOAT))
    await memory.aput(assistant("Nice."))
    for _ in range(3):
        await put_other_words(memory)
        prompt = await ask(memory)
        assert BOAT in recalled(prompt)
        assert sticky(prompt) == ""
    cursor = await memory.sql_store.readers.cursor("chat", "condensed_memory")
    assert cursor.position
    assert cursor.state is None
    window = memory.condensed_block.window("chat")
    assert window is not None
    tags = memory.tokenizer_fn.count("<condensed_memory>\n</condensed_memory>\n")
    days = 2 * memory.tokenizer_fn.count("<message date>2026-11-20 (today)\n")
    assert window.limits.tokens == 1_000 - 150 - tags - days


@pytest.mark.parametrize(
    ("token_limit", "options", "expected"),
    [
        (50_000, {}, 2_000),
        (8_000, {}, 2_000),
        (4_000, {}, 1_000),
        (1_500, {}, 0),
        (8_000, {"summarize": True}, 0),
        (8_000, {"recall_token_limit": 0}, 0),
        (8_000, {"recall_when": "never"}, 0),
        (8_000, {"keep_ratio": 1}, 0),
        (8_000, {"keep_ratio": 1, "sticky_token_limit": 10}, 10),
    ],
)
def test_their_default_limit(
    token_limit: int, options: dict[str, Any], expected: int
) -> None:
    block = CondensedMemoryBlock(token_limit=token_limit, **options)
    assert block.sticky_limit == expected


async def test_they_are_cut_first_of_the_record_and_leave_no_tags(
    open_on: Open,
) -> None:
    memory = await with_sticky_boat(open_on())
    await memory.aput(user(QUESTION))
    record = await memory.condensed_block.aget([user(QUESTION)], session_id="chat")
    assert isinstance(record, str)
    messages = record.count('<message role="')
    for tokens in range(20, memory.tokenizer_fn.count(record), 40):
        shorter = await memory.condensed_block.atruncate(record, tokens) or ""
        openings = shorter.count("<earlier_messages")
        assert openings == shorter.count("</earlier_messages>")
        if shorter.count('<message role="') < messages:
            assert sticky(shorter) == ""


async def test_a_reader_with_a_smaller_limit_shows_what_fits(open_on: Open) -> None:
    memory = await with_sticky_boat(open_on())
    full = sticky(await ask(memory))
    smaller = sticky(await ask(open_on(sticky_token_limit=50)))
    assert BOAT in smaller
    assert len(smaller) < len(full)
    without = await ask(open_on(sticky_token_limit=0))
    assert sticky(without) == ""
    assert BOAT in recalled(without)


async def test_a_program_that_dies_at_a_cut_has_stored_all_or_nothing(
    database_uri: str, tmp_path: Path
) -> None:
    """The process ends as it moves the cursor, before and behind the transaction."""
    options = {**OPTIONS, "async_database_uri": database_uri}
    async with CondensedMemory.from_defaults("chat", **options) as memory:
        await memory.aput(user(BOAT))
        await memory.aput(assistant("Nice."))
        await put_other_words(memory)
    for when in ("before", "behind"):
        program = DYING.format(options=options, when=when)
        run = run_forked(program, folder=tmp_path)
        assert run.returncode == 9, run.stderr
        async with CondensedMemory.from_defaults("chat", **options) as memory:
            cursor = await memory.sql_store.readers.cursor("chat", "condensed_memory")
            assert bool(cursor.state) == (when == "behind")
            prompt = sent_text(await memory.aget(QUESTION))
            assert prompt.count(BOAT) == 1
            assert (BOAT in sticky(prompt)) == (when == "behind")


DYING = """
import asyncio, os
from llama_index_memory_ext import CondensedMemory
from tests.memory.test_sticky import ask, put_other_words
async def main():
    memory = CondensedMemory.from_defaults("chat", **{options})
    await ask(memory)
    await put_other_words(memory)
    readers = memory.sql_store.readers
    move = readers.move
    async def dying(*args, **kwargs):
        if {when!r} == "behind":
            await move(*args, **kwargs)
        os._exit(9)
    readers.move = dying
    await memory.aget()
asyncio.run(main())
"""
