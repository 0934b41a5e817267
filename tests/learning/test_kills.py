"""A process that is killed at any step loses no fact, and none is learned twice."""

from __future__ import annotations

import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from llama_index_memory_ext import MemoryStore
from tests.forked import run_forked
from tests.learning.learning import Learns

# Kills itself before the call of the database that is named by its number.
PROGRAM = """
import asyncio, os, signal, sys
from llama_index.llms.openai import OpenAI
from llama_index_memory_ext import CondensedMemory
from llama_index_memory_ext.store.database import Database
from tests.conversation import user
from tests.learning.learning import talk

uri, api_base, name, step = sys.argv[1:]
run = Database.run
calls = []

async def run_or_die(self, *args, **options):
    calls.append(args)
    if len(calls) == int(step):
        os.kill(os.getpid(), signal.SIGKILL)
    return await run(self, *args, **options)

async def main():
    Database.run = run_or_die
    llm = OpenAI(model="gpt-4o-mini", api_base=api_base, api_key="x", max_retries=0)
    memory = CondensedMemory.from_defaults(name, user_id="ann", llm=llm, async_database_uri=uri)
    for i in range(12):
        await memory.aput_messages(talk(f"{name}w{i}"))
        await memory.aget()
    await memory.aclose()

asyncio.run(main())
"""
# Six calls end within the first turns, the others while facts are stored and at the end.
STEPS = (2, 5, 9, 20, 31, 36, 41, 46, 51, 56)


@pytest.mark.parametrize("steps", [STEPS], ids=["ten kills"])
async def test_what_was_stored_before_a_kill_is_learned_once(
    steps: tuple[int, ...], database_uri: str, learns: Learns
) -> None:
    memory, server = learns(session_id="later", wait_for_facts=60)
    kills = 0
    for step in steps:
        arguments = (database_uri, server.api_base, f"s{step}", str(step))
        done = run_forked(PROGRAM, *arguments, folder=Path.cwd())
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        kills += done.returncode != 0
    assert kills >= len(steps) - 2
    learned = Counter(fact.content for fact in await memory.facts.alist())
    said: Counter[str] = Counter()
    store = MemoryStore(database_uri)
    for step in steps:
        for message in await store.get_messages(f"s{step}", None):
            words = re.findall(r"I like (\w+)", str(message.content))
            said.update(f"Likes {word}" for word in words)
    await store.aclose()
    assert learned == said
    assert max(said.values()) == 1
