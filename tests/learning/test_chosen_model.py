"""Which model reads what is said: one that the program has named, and never one that LlamaIndex makes by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from llama_index.core.llms import MockLLM
from llama_index.core.settings import Settings

from llama_index_memory_ext.errors import NoModelError
from tests.conversation import assistant, user
from tests.forked import run_forked
from tests.learning.learning import contents, learner, talk
from tests.memories import OpenMemory
from tests.openai_server import OpenAIServer, serve
from tests.scripted_models import StartModel

LOCAL_AGENT = """
import asyncio, logging, time
from llama_index.core import Settings
from llama_index.core.agent.workflow import FunctionAgent
from llama_index_memory_ext import CondensedMemory, OfflineModel

logging.basicConfig(level="INFO", format="%(levelname)s %(name)s %(message)s")
agent = FunctionAgent(llm=OfflineModel())

async def main():
    for session_id in ("monday", "tuesday"):
        memory = CondensedMemory.from_defaults(session_id, user_id="ann", async_database_uri="sqlite+aiosqlite:///a.db")
        async with memory:
            await agent.run("I like tea.", memory=memory)
            await agent.run("And now?", memory=memory)
            await memory.aflush()
            stats = await memory.astats()
            print(stats.failures, stats.set_aside, stats.pending)

asyncio.run(main())
"""


def ours(text: str) -> list[str]:
    """The lines that this package has logged."""
    return [line for line in text.splitlines() if "llama_index_memory_ext" in line]


def run_with_openai(code: str, folder: Path) -> tuple[str, list[str], OpenAIServer]:
    """What a program prints, what it logs of ours, and the server that it takes for OpenAI's."""
    with serve(learner) as server:
        environment = {"OPENAI_API_KEY": "sk-test", "OPENAI_API_BASE": server.api_base}
        done = run_forked(code, folder=folder, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout, ours(done.stderr), server


@pytest.mark.parametrize("setting", ["", "Settings.llm = None"])
def test_the_words_of_a_local_agent_go_to_no_model_that_nobody_has_named(
    setting: str, tmp_path: Path
) -> None:
    """What to do is said once, nothing has failed, and nothing is read."""
    printed, logged, server = run_with_openai(
        LOCAL_AGENT.replace("async def", f"{setting}\n\nasync def"), tmp_path
    )
    assert server.requests == []
    assert [line for line in printed.splitlines() if "{" in line] == [
        "{} () 4",
        "{} () 4",
    ]
    (warning,) = [line for line in logged if "INFO" not in line]
    assert warning.startswith("WARNING")
    assert "pass llm=... or set Settings.llm" in warning


def test_the_model_that_the_program_has_set_reads_them_and_is_named_once(
    tmp_path: Path,
) -> None:
    """It is there when it is needed."""
    setting = "from llama_index.llms.openai import OpenAI\nSettings.llm = OpenAI(model='gpt-4o-mini')\n\n"
    printed, logged, server = run_with_openai(
        LOCAL_AGENT.replace("async def", f"{setting}async def"), tmp_path
    )
    assert server.requests
    assert printed == "{} () 0\n{} () 0\n"
    assert [line.split(" ", 2)[2] for line in logged] == [
        "Facts are extracted by OpenAI gpt-4o-mini."
    ]


@pytest.mark.parametrize(
    "chosen", [None, MockLLM()], ids=["none was set", "none is wanted"]
)
async def test_what_was_said_without_a_model_is_read_as_soon_as_there_is_one(
    open_memory: OpenMemory,
    start_model: StartModel,
    monkeypatch: pytest.MonkeyPatch,
    chosen: MockLLM | None,
) -> None:
    monkeypatch.setattr(Settings, "_llm", chosen)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    memory = open_memory(user_id="ann", extract_facts=True, extract_every_turns=1)
    await memory.aput_messages(talk("tea", "rain"))
    for _ in range(3):
        await memory.aflush()
    stats = await memory.astats()
    assert (stats.pending, stats.failures, stats.facts) == (4, {}, 0)
    llm, server = start_model(learner)
    Settings.llm = llm
    await memory.aput_messages([user("And now?"), assistant("Fine.")])
    await memory.facts_block.await_jobs(memory.session_id)
    assert await contents(memory) == ["Likes rain", "Likes tea"]
    assert len(server.requests) == 1


async def test_a_backfill_asks_for_a_model(
    open_memory: OpenMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not LlamaIndex could make one."""
    monkeypatch.setattr(Settings, "_llm", None)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    memory = open_memory(user_id="ann", extract_facts=False)
    await memory.aput_messages([user("I like tea."), assistant("Fine.")])
    with pytest.raises(NoModelError, match="pass llm="):
        await memory.abackfill()
    assert Settings._llm is None
