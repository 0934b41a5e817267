"""Another process goes on as if nothing had happened."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_index_memory_ext import CondensedMemory, MemoryStore
from tests.conversation import assistant, calling, record, result, sent_text, user
from tests.forked import run_forked
from tests.memories import OpenMemory

LIMITS: dict[str, Any] = {
    "token_limit": 400,
    "condensed_token_limit": 300,
    "facts_token_limit": 0,
}
LIMITS["extract_facts"] = False
TURNS = 8

WORKER = """
import asyncio, json, os, signal, sys
from tests.memory.test_restart import LIMITS, one_turn
from llama_index_memory_ext import CondensedMemory

async def main(uri, first, last):
    memory = CondensedMemory.from_defaults("chat", async_database_uri=uri, **LIMITS)
    for i in range(int(first), int(last)):
        print(json.dumps(await one_turn(memory, i)), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""


async def one_turn(memory: CondensedMemory, i: int) -> str:
    """A question with a tool call; what the model is shown comes back."""
    await memory.aput(user(f"What is in file {i}?"))
    prompt = sent_text(await memory.aget())
    answer = assistant(f"There are {i} words in it.")
    await memory.aput_messages(
        [
            calling((f"call_{i}", "read", {"file": i})),
            result(f"call_{i}", "words " * i),
            answer,
        ]
    )
    await memory.aget()
    return prompt


@pytest.mark.parametrize("killed_after", range(1, TURNS, 2))
async def test_a_killed_process_is_continued_by_another(
    open_memory: OpenMemory, database_uri: str, tmp_path: object, killed_after: int
) -> None:
    """Killed after any turn: the prompts are those of a conversation without a break."""
    prompts = []
    for first, last in ((0, killed_after), (killed_after, TURNS)):
        done = run_forked(
            WORKER, database_uri, str(first), str(last), folder=Path.cwd()
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        prompts += [json.loads(line) for line in done.stdout.splitlines()]
    unbroken = open_memory(
        async_database_uri=f"sqlite+aiosqlite:///{tmp_path}/unbroken.db", **LIMITS
    )
    assert prompts == [await one_turn(unbroken, i) for i in range(TURNS)]
    assert 0 < len(record(prompts[-1])) < 4 * TURNS


@settings(max_examples=20)
@given(
    speakers=st.lists(
        st.sampled_from(["the same", "the other", "a new one"]), min_size=1, max_size=25
    )
)
async def test_memories_that_take_turns_show_what_one_alone_would_show(
    speakers: list[str],
) -> None:
    """Two that know each other's cuts, and new ones that know nothing."""
    alone = CondensedMemory.from_defaults("chat", **LIMITS)
    store = MemoryStore()
    memories = [
        CondensedMemory.from_defaults("chat", chat_store=store, **LIMITS)
        for _ in range(2)
    ]
    now = 0
    for i, speaker in enumerate(speakers):
        now = 1 - now if speaker == "the other" else now
        if speaker == "a new one":
            memories[now] = CondensedMemory.from_defaults(
                "chat", chat_store=store, **LIMITS
            )
        assert await one_turn(memories[now], i) == await one_turn(alone, i)
    await alone.aclose()
    await store.aclose()
