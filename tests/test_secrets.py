"""No key and no password leaves a memory, and no message text leaves it by the logs."""

from __future__ import annotations

import copy
import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.workflow import Context, JsonPickleSerializer
from llama_index.llms.openai import OpenAI
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from llama_index_memory_ext import CondensedMemory, CondensedMemoryBlock
from tests.conftest import OpenMemory, StartModel
from tests.conversation import user
from tests.openai_server import say

PASSWORD = "hunter2"  # noqa: S105 - what is looked for below
URI = f"postgresql+asyncpg://me:{PASSWORD}@localhost:1/db"


def test_no_password_is_in_what_a_memory_shows() -> None:
    memory = CondensedMemory.from_defaults("chat", async_database_uri=URI)
    for shown in (repr(memory), str(memory), str(memory.model_dump()), str(pickle.dumps(memory))):
        assert PASSWORD not in shown
    assert PASSWORD not in json.dumps(memory.model_dump(mode="json", serialize_as_any=True), default=str)


@pytest.mark.parametrize(
    "options",
    [{"keep_messages": 3}, {"token_limit": 9, "recall_token_limit": 9}, {"start_on": "ai"}, {"max_message": 1}],
)
def test_an_error_about_settings_does_not_carry_the_key_of_the_model(options: dict[str, Any]) -> None:
    """Whatever of it is looked at."""
    llm = OpenAI(model="gpt-4o-mini", api_key="sk-secret")
    with pytest.raises(ValidationError) as error:
        CondensedMemoryBlock(llm=llm, **options)
    assert "sk-secret" not in f"{error.value!r} {error.value.errors()}"


async def test_an_error_of_the_database_does_not_quote_the_message(tmp_path: Path) -> None:
    """SQLAlchemy would print the parameters of the statement."""
    file = tmp_path / "memory.db"
    file.write_bytes(b"This is no database. " * 100)
    memory = CondensedMemory.from_defaults(
        "chat", async_database_uri=f"sqlite+aiosqlite:///{file}", extract_facts=False
    )
    with pytest.raises(SQLAlchemyError) as error:
        await memory.aput(user("my secret"))
    assert "my secret" not in str(error.value)
    await memory.sql_store.aclose()


async def test_logs_hold_no_message_text(open_memory: OpenMemory, caplog: pytest.LogCaptureFixture) -> None:
    """Above DEBUG, which is SQLAlchemy's and the drivers' to fill."""
    caplog.set_level(logging.INFO)
    memory = open_memory(token_limit=60, condensed_token_limit=50, facts_token_limit=0)
    for _ in range(5):
        await memory.aput(user("my secret"))
        await memory.aget()
    assert "my secret" not in caplog.text


@pytest.mark.filterwarnings("ignore:Skipping serialization of known unserializable key")
async def test_serialising_a_run_leaves_the_memory_whole(open_memory: OpenMemory, start_model: StartModel) -> None:
    """The host takes attributes away from a live object that cannot be pickled."""
    llm, _ = start_model(lambda messages, tools: say("Fine."))
    memory = open_memory()
    agent = FunctionAgent(llm=llm)
    context = Context(agent)
    await agent.run("One?", memory=memory, ctx=context)
    assert "sk-test-key" not in JsonPickleSerializer().serialize(memory)
    assert len(memory.memory_blocks) == 2
    assert str(await agent.run("Two?", memory=memory, ctx=context)) == "Fine."
    assert len(await memory.aget_all()) == 4
    assert copy.deepcopy(memory) is memory
