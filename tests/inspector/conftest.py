"""The fixtures of these tests."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest

from llama_index_memory_ext import CondensedMemory, Fact, MemoryStore
from llama_index_memory_ext.apps.inspector.pages import Access
from llama_index_memory_ext.apps.inspector.server import Inspector
from tests.cli.conftest import command, without
from tests.databases import database_uri, postgres_server, postgres_uri
from tests.inspector.example import fill
from tests.scripted_models import start_model

__all__ = [
    "command",
    "database_uri",
    "postgres_server",
    "postgres_uri",
    "start_model",
    "without",
]

Inspect = Callable[..., Awaitable["Inspected"]]


class Inspected(httpx.AsyncClient):
    """A browser that knows the address of an inspector."""

    def __init__(self, inspector: Inspector) -> None:
        self.inspector = inspector
        # An error of the application is an answer, too.
        transport = httpx.ASGITransport(inspector, raise_app_exceptions=True)
        super().__init__(
            transport=transport,
            base_url=f"http://127.0.0.1:8000/{inspector.access.token}/",
            headers={"sec-fetch-site": "same-origin"},
        )

    async def page(self, name: str, **query: str) -> str:
        """The text of a page."""
        return (await self.get(name, params=query or None)).text

    async def page_after(self, response: httpx.Response) -> str:
        """The text of the page that an action leads to."""
        assert response.status_code == 303
        return await self.page(response.headers["location"].split("/", 2)[2])

    async def facts_of_mia(self, words: str = "") -> list[Fact]:
        """The stored facts of Mia that have these words."""
        facts = (await self.inspector.reader.facts.read("mia")).facts
        return [fact for fact in facts if words in fact.content]


def memory_in(
    file: Path, session: str, user: str | None = "ann", **options: Any
) -> CondensedMemory:
    """The memory of a program that uses the file, without a model."""
    if "chat_store" not in options:
        options["async_database_uri"] = f"sqlite+aiosqlite:///{file}"
    options = {"extract_facts": False, **options}
    return CondensedMemory.from_defaults(session, user_id=user, **options)


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A filled database, to be copied."""
    file = tmp_path_factory.mktemp("example") / "memory.db"
    asyncio.run(fill(f"sqlite+aiosqlite:///{file}", turns=20, others=60))
    return file


@pytest.fixture
def filled(example: Path, tmp_path: Path) -> Path:
    """A filled database of this test's own."""
    return Path(shutil.copy(example, tmp_path / "memory.db"))


@pytest.fixture
async def inspect() -> AsyncIterator[Inspect]:
    """Opens inspectors of databases, by their address or file, and closes them at the end."""
    async with AsyncExitStack() as stack:

        async def open_one(
            database: str | Path,
            *,
            writes: bool = False,
            limits: dict[str, int] | None = None,
        ) -> Inspected:
            uri = (
                f"sqlite+aiosqlite:///{database}"
                if isinstance(database, Path)
                else database
            )
            store = MemoryStore(uri)
            stack.push_async_callback(store.aclose)
            reader = await stack.enter_async_context(aclosing(store.read_only()))
            inspector = Inspector(reader, store, limits or {}, Access(writes))
            return await stack.enter_async_context(Inspected(inspector))

        yield open_one
