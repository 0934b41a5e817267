"""What was just said is learned soon: once, with all that it needs loaded, and before another session asks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextlib import aclosing
from typing import Any

import pytest

from llama_index_memory_ext import CondensedMemory, MemoryStore
from tests.conversation import sent_text, user
from tests.learning.learning import Learns, learner, shown, slow, talk
from tests.scripted_models import StartModel


async def test_the_next_session_knows_at_once_what_was_said_in_this_one(
    lasting_database_uri: str, start_model: StartModel
) -> None:
    """The memories have stores of their own on one database. The model answers when the question is being asked."""
    go_on = threading.Event()
    llm, _ = start_model(slow(go_on))
    options: dict[str, Any] = {
        "user_id": "ann",
        "llm": llm,
        "async_database_uri": lasting_database_uri,
    }
    monday = CondensedMemory.from_defaults("monday", **options)
    friday = CondensedMemory.from_defaults("friday", **options, wait_for_facts=60)
    await monday.aput_messages(talk("tea"))
    await friday.aput(user("What do I like?"))
    asking = asyncio.create_task(friday.aget())
    assert (await asyncio.wait([asking], timeout=0.05))[0] == set()
    go_on.set()
    assert shown(sent_text(await asking)) == ["Likes tea"]
    await friday.aclose()
    await monday.aclose()


async def test_a_question_does_not_wait_for_its_own_session_or_without_a_time(
    learns: Learns,
) -> None:
    go_on = threading.Event()
    memory = learns(slow(go_on), wait_for_facts=60)[0]
    other = learns(slow(go_on), session_id="other", wait_for_facts=0)[0]
    await memory.aput_messages(talk("tea"))
    for asked, facts in (
        (memory, []),
        (other, ["I like tea.", "What do I like?"]),
    ):
        await asked.aput(user("What do I like?"))
        text = sent_text(await asyncio.wait_for(asked.aget(), 30))
        assert shown(text) == [f'The user, in another chat: "{fact}"' for fact in facts]
    go_on.set()
    await memory.aclose()


async def test_a_memory_that_does_not_wait_keeps_no_other_from_waiting(
    learns: Learns,
) -> None:
    go_on = threading.Event()
    monday = learns(slow(go_on), "monday")[0]
    hasty = learns(slow(go_on), "hasty", wait_for_facts=0)[0]
    patient = learns(slow(go_on), "patient", wait_for_facts=60)[0]
    await monday.aput_messages(talk("tea"))
    assert await hasty.facts.alist() == []
    await patient.aput(user("What do I like?"))
    asking = asyncio.create_task(patient.aget())
    assert (await asyncio.wait([asking], timeout=0.5))[0] == set()
    go_on.set()
    assert shown(sent_text(await asking)) == ["Likes tea"]
    await monday.aclose()


async def test_a_turn_whose_extraction_was_cancelled_is_read_when_the_next_one_begins(
    learns: Learns,
) -> None:
    """As where each turn has an event loop of its own; the answers are the same."""
    memory = learns(extract_every_turns=1)[0]
    for message in talk("tea"):
        await memory.aput(message)
    await memory.facts_block.jobs.stop()
    await memory.aput(user("And now?"))
    await memory.facts_block.await_jobs("chat")
    assert [fact.content for fact in await memory.facts.alist()] == ["Likes tea"]


async def test_a_store_that_has_just_started_learns_from_the_unread_turns_of_its_users(
    database_uri: str, start_model: StartModel
) -> None:
    """Without a call of ``awarm_up``: the first question of a new session has the facts."""
    # No model reads these turns.
    async with aclosing(MemoryStore(database_uri)) as store:
        earlier = CondensedMemory.from_defaults(
            "monday", user_id="ann", chat_store=store
        )
        await earlier.aput_messages(talk("tea"))
    llm, _ = start_model(learner)
    async with aclosing(MemoryStore(database_uri)) as store:
        memory = CondensedMemory.from_defaults(
            "friday", user_id="ann", chat_store=store, llm=llm, wait_for_facts=60
        )
        await memory.aput(user("What do I like?"))
        assert shown(sent_text(await memory.aget())) == ["Likes tea"]


async def test_a_store_can_be_warmed_up(database_uri: str) -> None:
    store = MemoryStore(database_uri)
    await asyncio.wait_for(store.awarm_up(), 60)
    assert "py3langid" in sys.modules
    assert await store.read_schema_version() is not None
    await store.aclose()


PROGRAM = """
import os, threading
from llama_index_memory_ext.checks.quotes import find_quote
from llama_index_memory_ext.words import language_of
for call, *texts in (
    (language_of, "The cats sleep all day."),
    (find_quote, "I mooved to Rome in May", "Yes, I moved to Rome in May!"),
):
    threading.Thread(target=call, args=texts).start()
    child = os.fork()
    if not child:
        os._exit(not call(*texts))
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="processes do not fork there")
def test_a_fork_while_a_thread_loads_a_library_does_not_hold_up_the_child() -> None:
    ignored = "ignore:This process:DeprecationWarning"
    done = subprocess.run(
        [sys.executable, "-W", ignored, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
