"""A database to which there is no connection: its driver, its server, the way there, or the right to it is missing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from llama_index_memory_ext import CondensedMemory, MemoryExtError, MemoryStore, StoreError
from llama_index_memory_ext.errors import is_no_answer
from tests.cli.terminal import run
from tests.conversation import user

PASSWORD = "hunter2"  # noqa: S105 - of nobody


@pytest.mark.parametrize(
    "uri",
    [
        f"postgresql+asyncpg://ann:{PASSWORD}@127.0.0.1:1/memory",
        f"postgresql+asyncpg://ann:{PASSWORD}@no-host.invalid/memory",
        f"postgresql+asyncpg://ann:{PASSWORD}@/memory?host=/no/such/folder",
        f"postgresql+asyncpg://ann@127.0.0.1:1/memory?password={PASSWORD}",
        f"postgresql+asyncpg://ann:{PASSWORD}@127.0.0.1:1/memory?ssl=require",
    ],
)
async def test_a_server_that_is_not_there_is_named_without_the_password(uri: str) -> None:
    memory = CondensedMemory.from_defaults("chat", async_database_uri=uri, extract_facts=False)
    for call in (memory.aput(user("my secret")), memory.aget("my secret"), memory.sql_store.read_schema_version()):
        with pytest.raises(
            StoreError, match=r"^The database at postgresql\+asyncpg://.*memory.* cannot be used: "
        ) as error:
            await call
        said = str(error.value)
        assert "\n" not in said
        assert "See whether it is there, and whether the address, the user and the password are right." in said
        assert not {PASSWORD, "my secret"} & set(said.replace("@", " ").replace(":", " ").split())
        assert PASSWORD not in said
        assert isinstance(error.value.__cause__, OperationalError)
        # Of a job in the background it is not the turn's fault.
        assert is_no_answer(error.value)
    await memory.sql_store.aclose()


async def test_what_the_server_refuses_is_told(postgres_uri: str) -> None:
    url = make_url(postgres_uri)
    for wrong, said in (
        (url.set(database="no_such_memory"), 'database "no_such_memory" does not exist'),
        (url.set(username="nobody_here"), "nobody_here"),
    ):
        store = MemoryStore(wrong.render_as_string(hide_password=False))
        with pytest.raises(StoreError, match=f"cannot be used: .*{said}") as error:
            await store.get_messages("chat")
        assert isinstance(error.value.__cause__, OperationalError)
        await store.aclose()


async def test_an_engine_that_was_lent_says_it_too() -> None:
    engine = create_async_engine(f"postgresql+asyncpg://ann:{PASSWORD}@127.0.0.1:1/memory")
    with pytest.raises(StoreError, match=r"ann:\*\*\*@127\.0\.0\.1:1/memory cannot be used"):
        await MemoryStore(async_engine=engine).get_messages("chat")
    await engine.dispose()


async def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "folder.db"
    folder.mkdir()
    store = MemoryStore(f"sqlite+aiosqlite:///{folder}")
    with pytest.raises(StoreError, match=r"folder\.db cannot be used: unable to open database file\. See") as error:
        await store.get_messages("chat")
    assert "sqlalche.me" not in str(error.value)
    await store.aclose()


async def test_a_server_that_comes_back_is_used(tmp_path: Path) -> None:
    """Nothing is kept of the failure."""
    folder = tmp_path / "memory.db"
    folder.mkdir()
    memory = CondensedMemory.from_defaults(
        "chat", async_database_uri=f"sqlite+aiosqlite:///{folder}", extract_facts=False
    )
    with pytest.raises(StoreError):
        await memory.aput(user("one"))
    folder.rmdir()
    await memory.aput(user("two"))
    assert [message.content for message in await memory.aget_all()] == ["two"]
    await memory.aclose()


def test_a_driver_that_is_not_installed_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"postgresql+asyncpg://ann:{PASSWORD}@host/memory"
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for open_one in (MemoryStore, lambda uri: CondensedMemory.from_defaults("chat", async_database_uri=uri)):
        opens: Callable[[str], object] = open_one
        with pytest.raises(
            StoreError, match=r'cannot be used: it needs psycopg\. pip install "llama-index-memory-ext\[postgres\]"'
        ) as error:
            opens(uri)
        assert PASSWORD not in str(error.value)
        assert isinstance(error.value, MemoryExtError)
        assert isinstance(error.value.__cause__, ModuleNotFoundError)


def test_the_command_line_says_it_once(tmp_path: Path) -> None:
    (tmp_path / "psycopg.py").write_text("raise ModuleNotFoundError('No', name='psycopg')")
    uri = f"postgresql+asyncpg://ann:{PASSWORD}@127.0.0.1:1/memory"
    done = run("sessions", "list", "--db", uri, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.count("cannot be used") == 1
    assert 'it needs psycopg. pip install "llama-index-memory-ext[postgres]"' in done.stderr
    done = run("sessions", "list", "--db", uri)
    assert done.returncode == 1
    assert done.stderr.count("cannot be used") == 1
    assert "Connection refused" in done.stderr
    assert PASSWORD not in done.stderr
