"""No key and no password leaves a memory, and no message text leaves it by the logs."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import pickle
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.workflow import JsonPickleSerializer
from llama_index.llms.openai import OpenAI
from llama_index_instrumentation.event_handlers.base import BaseEventHandler
from pydantic import BaseModel
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from llama_index_memory_ext import (
    CondensedMemory,
    CondensedMemoryBlock,
    MemoryRetriever,
    MemoryStore,
    MemoryToolSpec,
    RelevantFactsBlock,
)
from tests.conversation import user
from tests.memories import OpenMemory
from tests.memory.test_events import attached
from tests.openai_server import Message, fail, say
from tests.scripted_models import StartModel

KEY = "sk-secret-key"
SECRET = user("my secret")
PASSWORD = "hunter2"  # noqa: S105 - what is looked for below
URI = f"postgresql+asyncpg://me:{PASSWORD}@localhost:1/db"
URI_WITH_OPTION = f"postgresql+asyncpg://localhost:1/db?user=me&password={PASSWORD}"


class EmbeddingWithKey(MockEmbedding):
    api_key: str = KEY


def memory_with_secrets(uri: str | None = URI, **options: Any) -> CondensedMemory:
    llm = OpenAI(model="gpt-4o-mini", api_key=KEY)
    return CondensedMemory.from_defaults(
        "chat",
        async_database_uri=uri,
        llm=llm,
        embed_model=EmbeddingWithKey(embed_dim=3),
        summarize=True,
        **options,
    )


def parts_of(memory: CondensedMemory) -> list[Any]:
    """All that has a key or the address, and blocks without a memory."""
    llm, embed_model = (
        OpenAI(model="gpt-4o-mini", api_key=KEY),
        EmbeddingWithKey(embed_dim=3),
    )
    blocks = [memory.condensed_block, memory.facts_block, CondensedMemoryBlock(llm=llm)]
    blocks.append(RelevantFactsBlock(llm=llm, embed_model=embed_model))
    return [
        memory,
        *blocks,
        memory.facts,
        MemoryRetriever(memory),
        MemoryToolSpec(memory),
        memory.sql_store,
    ]


def has_secret(shown: str) -> bool:
    return KEY in shown or PASSWORD in shown


def whole(error: BaseException) -> str:
    """All that a log of the error would hold."""
    return "".join(traceback.format_exception(error))


WAYS: dict[str, Callable[[Any], str]] = {
    "repr": repr,
    "str": str,
    "deepcopy": lambda part: repr(copy.deepcopy(part)),
    "pickle": lambda part: str(pickle.dumps(part)),
    "unpickled": lambda part: repr(pickle.loads(pickle.dumps(part))),
    "serializer of workflows": JsonPickleSerializer().serialize,
}
DUMPS: dict[str, Callable[[Any], str]] = {
    "model_dump": lambda part: str(part.model_dump()),
    "model_dump as any": lambda part: str(part.model_dump(serialize_as_any=True)),
    "model_dump for JSON": lambda part: json.dumps(
        part.model_dump(mode="json", serialize_as_any=True), default=str
    ),
    "model_dump_json": lambda part: part.model_dump_json(),
    "model_dump_json as any": lambda part: part.model_dump_json(serialize_as_any=True),
    "fields": lambda part: str(part.__repr_args__()),
    "copy": lambda part: repr(part.model_copy()),
    "attributes": lambda part: (
        str([vars(part), dict(part)]) if isinstance(part, MemoryStore) else ""
    ),
}


@pytest.mark.parametrize("uri", [None, URI, URI_WITH_OPTION])
@pytest.mark.parametrize("way", [*WAYS, *DUMPS])
def test_no_secret_is_in_what_a_memory_shows(uri: str | None, way: str) -> None:
    """Nor in what its blocks, its store and its facts show."""
    memory = memory_with_secrets(uri)
    parts = parts_of(memory)
    if uri is None and ("pickle" in way or "serializer" in way):
        # What holds such a memory refuses.
        parts = [
            part
            for part in parts
            if part is not memory and getattr(part, "memory", None) is None
        ]
    if way in DUMPS:
        shown = [DUMPS[way](part) for part in parts if isinstance(part, BaseModel)]
    else:
        shown = [WAYS[way](part) for part in parts]
    assert not any(map(has_secret, shown))
    assert not has_secret(f"{memory.to_dict()} {memory.sql_store.database.identity}")
    asyncio.run(memory.sql_store.aclose())


@pytest.mark.parametrize("block_type", [CondensedMemoryBlock, RelevantFactsBlock])
async def test_copies_share_the_models_and_a_pickle_has_none(block_type: Any) -> None:
    llm, embed_model = OpenAI(api_key=KEY), EmbeddingWithKey(embed_dim=3)
    block = block_type(llm=llm, embed_model=embed_model)
    await block.aget([SECRET])
    for copied in (block.model_copy(), copy.copy(block), copy.deepcopy(block)):
        assert copied.llm is llm
        assert copied.embed_model is embed_model
    stored = pickle.dumps(block)
    assert KEY.encode() not in stored
    assert (pickle.loads(stored).llm, pickle.loads(stored).embed_model) == (None, None)
    assert block.llm is llm
    with pytest.raises(ValueError, match="llm") as error:
        block_type(llm=KEY)
    assert not has_secret(whole(error.value))


async def test_an_error_about_a_wrong_password_does_not_carry_it(
    postgres_uri: str,
) -> None:
    """Of a user who has to give one, other than the rest of this server's."""
    async with create_async_engine(
        postgres_uri, poolclass=NullPool
    ).begin() as connection:
        rules = Path((await connection.execute(text("SHOW hba_file"))).scalar_one())
        rules.write_text(f"local all locked scram-sha-256\n{rules.read_text()}")  # noqa: ASYNC240 - nobody waits
        await connection.execute(text("CREATE ROLE locked LOGIN PASSWORD 'another'"))
        await connection.execute(text("SELECT pg_reload_conf()"))
    uri = make_url(postgres_uri).set(username="locked", password=PASSWORD)
    memory = memory_with_secrets(uri.render_as_string(hide_password=False))
    with pytest.raises(Exception, match="password authentication failed") as error:
        await memory.aput(SECRET)
    assert not has_secret(whole(error.value))


async def test_neither_the_warning_about_an_open_store_nor_its_numbers_carry_the_password(
    postgres_uri: str,
) -> None:
    memory = memory_with_secrets(
        make_url(postgres_uri)
        .set(password=PASSWORD)
        .render_as_string(hide_password=False)
    )
    stats = await memory.astats()
    with pytest.warns(ResourceWarning, match="was not closed") as warned:
        memory.sql_store.database.__del__()
    await memory.sql_store.aclose()
    told = [
        str(stats),
        repr(stats),
        stats.model_dump_json(),
        *(str(warning.message) for warning in warned),
    ]
    assert not any(map(has_secret, told))


def failing_model(messages: list[Message], tools: list[str]) -> Message:
    """Quotes what it was sent, and the key, in its errors and in answers that are of no use."""
    quoted = f"{KEY}: {messages[-1]['content']}"
    return fail(500, quoted) if "report_facts" in tools else say(f"Error 500: {quoted}")


def answered(answer: Message, messages: list[Message], tools: list[str]) -> Message:
    return answer


async def talk(memory: CondensedMemory) -> None:
    for i in range(6):
        await memory.aput(
            user(
                f"my secret {i}: I live in Paris, and I like tea more than anything else."
            )
        )
        await memory.aget()
    await memory.aflush()


@pytest.mark.parametrize(
    "model", [failing_model, lambda messages, tools: say("my secret, repeated")]
)
async def test_logs_hold_no_message_text(
    model: Any,
    open_memory: OpenMemory,
    start_model: StartModel,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Above DEBUG, which is SQLAlchemy's and the drivers' to fill; ours hold none at any level."""
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, "llama_index_memory_ext")
    llm, server = start_model(model)
    memory = open_memory(
        llm=llm,
        summarize=True,
        token_limit=260,
        condensed_token_limit=200,
        facts_token_limit=60,
    )
    await talk(memory)
    assert server.requests
    assert "Facts were not extracted" in caplog.text
    assert "my secret" not in caplog.text
    assert "Paris" not in caplog.text


async def test_no_log_and_no_event_holds_a_key(
    open_memory: OpenMemory, start_model: StartModel, caplog: pytest.LogCaptureFixture
) -> None:
    """At any level, of any library but the databases', which are never told one."""
    caplog.set_level(logging.DEBUG)
    events: list[str] = []

    class Recorder(BaseEventHandler):
        def handle(self, event: Any, **kwargs: Any) -> None:
            events.append(f"{event!r} {event.model_dump()}")

    for name, answer in {"refused": fail(500, "No."), "fine": say("Fine.")}.items():
        llm, _ = start_model(partial(answered, answer))
        options: dict[str, Any] = {
            "embed_model": EmbeddingWithKey(embed_dim=3),
            "summarize": True,
            "max_messages": 2,
        }
        memory = open_memory(name, llm=llm, **options)
        with attached(Recorder(), "root"):
            await memory.facts.aadd("Likes tea")
            await talk(memory)
    await FunctionAgent(llm=llm).run("What do I drink?", memory=memory)
    assert any("LLMChatStartEvent" in event for event in events)
    told = "".join(events) + caplog.text
    assert "sk-test-key" not in told
    assert KEY not in told
