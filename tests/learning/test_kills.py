"""A process that is killed at any step loses no fact, and none is learned twice."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.conversation import user
from tests.forked import run_forked
from tests.learning.learning import contents, learner
from tests.memories import OpenMemory
from tests.scripted_models import StartModel

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
        await memory.aput_messages(talk(f"drink{i}"))
        await memory.aget()
    await memory.aclose()

asyncio.run(main())
"""
# Within the first turns, while facts are stored, and at the end.
STEPS = (2, 20, 41, 56)


@pytest.mark.parametrize("step", STEPS)
async def test_what_was_stored_before_a_kill_is_learned_once(
    step: int, database_uri: str, open_memory: OpenMemory, start_model: StartModel
) -> None:
    """By the next session of the user."""
    llm, server = start_model(learner)
    arguments = (database_uri, server.api_base, "chat", str(step))
    done = run_forked(PROGRAM, *arguments, folder=Path.cwd())
    assert done.returncode == -signal.SIGKILL, done.stderr
    memory = open_memory("later", user_id="ann", llm=llm)
    await memory.aput(user("Hello."))
    await memory.facts_block.await_jobs("chat")
    messages = await memory.sql_store.get_messages("chat", None)
    said = re.findall(r"I like (\w+)", str([message.content for message in messages]))
    assert await contents(memory) == sorted(f"Likes {word}" for word in said)
    assert len(said) >= step // 12
