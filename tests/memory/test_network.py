"""Nothing is sent anywhere but to the model and the database that a program names."""

from __future__ import annotations

import os
from pathlib import Path

from tests.forked import run_forked
from tests.learning.learning import fact_of
from tests.openai_server import Message, call, say, serve

# The hook sees what any library does.
WATCH = """
import sys

def watch(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if host not in ("127.0.0.1", "localhost", "::1", None):
        print("CONNECTS TO", host, file=sys.stderr, flush=True)
        raise OSError(f"no way to {host}")

sys.addaudithook(watch)
"""

TALK = """
import asyncio
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.embeddings import MockEmbedding
from llama_index.llms.openai import OpenAI
from llama_index_memory_ext import CondensedMemory

async def main():
    llm = OpenAI(model="gpt-4o-mini", max_retries=0)
    agent = FunctionAgent(llm=llm)
    memory = CondensedMemory.from_defaults(
        session_id="chat", user_id="ann", llm=llm, embed_model=MockEmbedding(embed_dim=3), max_messages=2,
        keep_messages=1, summarize=True, recall_token_limit=500, async_database_uri="sqlite+aiosqlite:///memory.db",
    )
    async with memory:
        for i in range(4):
            await agent.run(f"My name is Ann, and this is question {i}. What did I ask before?", memory=memory)
        await memory.aflush()
        print(await memory.facts_block.aexplain("What is my name?"))
        print(await memory.condensed_block.asummary("chat"))

asyncio.run(main())
"""


def model(messages: list[Message], tools: list[str]) -> Message:
    if "report_facts" in tools:
        fact = fact_of("Is called Ann", "My name is Ann", "knowledge")
        return call(("call_1", "report_facts", {"new_facts": [fact]}))
    return say("Ann has asked several questions about what she asked before.")


def watching(folder: Path) -> str:
    """A PYTHONPATH with which every Python may connect to nothing but this machine."""
    (folder / "watch").mkdir()
    (folder / "watch" / "sitecustomize.py").write_text(WATCH, encoding="utf-8")
    return os.pathsep.join([str(folder / "watch"), os.environ.get("PYTHONPATH", "")])


def test_a_conversation_connects_to_its_model_and_to_nothing_else(
    tmp_path: Path,
) -> None:
    """With facts, a summary, recalled messages, and token counts."""
    with serve(model) as server:
        environment = {"OPENAI_API_KEY": "sk-test", "OPENAI_API_BASE": server.api_base}
        done = run_forked(WATCH + TALK, folder=tmp_path, environment=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Is called Ann" in done.stdout
    assert "several questions" in done.stdout
    # Four answers, and at least one extraction and one summary: how many turns each of these has depends on the time.
    assert len(server.requests) >= 6


def test_the_watch_would_see_it(tmp_path: Path) -> None:
    for host in ("192.0.2.1", "example.invalid"):
        code = f"import socket\nsocket.create_connection(({host!r}, 80), 1)"
        assert f"CONNECTS TO {host}" in run_forked(WATCH + code, folder=tmp_path).stderr
