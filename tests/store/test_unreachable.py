"""A database to which there is no connection: its driver, its server, the way there, or the right to it is missing."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from llama_index_memory_ext import (
    CondensedMemory,
    MemoryExtError,
    MemoryStore,
    StoreError,
)
from llama_index_memory_ext.background.threads import pending
from llama_index_memory_ext.errors import is_no_answer
from tests.conversation import user
from tests.databases import OpenStore

PASSWORD = "hunter2"  # noqa: S105 - of nobody


@pytest.mark.parametrize(
    "uri",
    [
        f"postgresql+asyncpg://ann:{PASSWORD}@127.0.0.1:1/memory",
        f"postgresql+asyncpg://ann:{PASSWORD}@no-host.invalid/memory",
        f"postgresql+asyncpg://ann@127.0.0.1:1/memory?password={PASSWORD}",
        f"postgresql+asyncpg://ann:{PASSWORD}@127.0.0.1:1/memory?sslmode=require",
    ],
)
async def test_a_server_that_is_not_there_is_named_without_the_password(
    uri: str,
) -> None:
    memory = CondensedMemory.from_defaults(
        "chat", async_database_uri=uri, extract_facts=False
    )
    for call in (
        memory.aput(user("my secret")),
        memory.aget("my secret"),
        memory.sql_store.read_schema_version(),
    ):
        with pytest.raises(
            StoreError,
            match=r"^The database at postgresql\+asyncpg://.*memory.* cannot be used: ",
        ) as error:
            await call
        said = str(error.value)
        assert "\n" not in said
        assert (
            "See whether it is there, and whether the address, the user and the password are right."
            in said
        )
        assert "my secret" not in said
        assert PASSWORD not in "".join(traceback.format_exception(error.value))
        assert isinstance(error.value.__cause__, OperationalError)
        # Of a job in the background it is not the turn's fault.
        assert is_no_answer(error.value)
    await memory.sql_store.aclose()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"database": "no_such"}, 'database "no_such" does not exist'),
        ({"username": "nobody_here"}, "nobody_here"),
    ],
    ids=["database", "user"],
)
@pytest.mark.parametrize("lends", [False, True], ids=["an address", "an engine"])
async def test_what_the_server_refuses_is_told(
    postgres_uri: str,
    wrong: dict[str, Any],
    said: str,
    open_store: OpenStore,
    *,
    lends: bool,
) -> None:
    uri = make_url(postgres_uri).set(**wrong).render_as_string(hide_password=False)
    store = (
        open_store(async_engine=create_async_engine(uri)) if lends else open_store(uri)
    )
    with pytest.raises(StoreError, match=f"cannot be used: .*{said}"):
        await store.get_messages("chat")


async def test_a_file_that_cannot_be_opened_is_named_and_used_once_it_can(
    tmp_path: Path,
) -> None:
    """In a folder that is missing, and where a folder has its name."""
    file = tmp_path / "no/memory.db"
    memory = CondensedMemory.from_defaults(
        "chat", async_database_uri=f"sqlite:///{file}", extract_facts=False
    )
    with pytest.raises(StoreError, match=r"needs a folder .*/no': create it first"):
        await memory.aget()
    file.mkdir(parents=True)
    with pytest.raises(
        StoreError,
        match=r"memory\.db cannot be used: unable to open database file\. See",
    ) as error:
        await memory.aput(user("one"))
    assert "sqlalche.me" not in str(error.value)
    file.rmdir()
    await memory.aput(user("two"))
    assert [message.content for message in await memory.aget_all()] == ["two"]
    await memory.aclose()


def test_a_driver_that_is_not_installed_is_named_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = f"postgresql+asyncpg://ann:{PASSWORD}@host/memory"
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for open_one in (
        MemoryStore,
        lambda uri: CondensedMemory.from_defaults("chat", async_database_uri=uri),
    ):
        opens: Callable[[str], object] = open_one
        with pytest.raises(
            StoreError,
            match=r'cannot be used: it needs psycopg\. pip install "llama-index-memory-ext\[postgres\]"',
        ) as error:
            opens(uri)
        assert PASSWORD not in str(error.value)
        assert isinstance(error.value, MemoryExtError)
        assert isinstance(error.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize("replaces", [False, True], ids=["deleted", "replaced"])
async def test_a_file_that_is_deleted_under_a_program_is_named_and_nothing_is_stored_in_it(
    tmp_path: Path, open_store: OpenStore, *, replaces: bool
) -> None:
    file = tmp_path / "memory.db"
    store = open_store(f"sqlite:///{file}")
    await store.add_message("chat", user("before"))
    has_begun, may_end = threading.Event(), threading.Event()

    def work(_: object) -> None:
        has_begun.set()
        may_end.wait()

    working = asyncio.create_task(store.database.run(work, sessions=["chat"]))
    await asyncio.to_thread(has_begun.wait)
    if replaces:
        file.rename(tmp_path / "kept.db")
    for ending in ("", "-wal", "-shm"):
        (tmp_path / f"memory.db{ending}").unlink(missing_ok=True)
    if replaces:
        file.touch()

    calls = [
        asyncio.create_task(store.add_message("chat", user("lost"))) for _ in range(4)
    ]
    # A call that begins after the discovery is stored in a new file. These wait before it.
    owner = id(store.database)
    while [job.owner for job in pending].count(owner) <= len(calls):  # noqa: ASYNC110
        await asyncio.sleep(0)
    may_end.set()
    await working
    for error in await asyncio.gather(*calls, return_exceptions=True):
        with pytest.raises(
            StoreError, match=r"was deleted or replaced .* this call has stored nothing"
        ):
            raise error or AssertionError("stored")

    await store.add_message("chat", user("after"))
    assert [one.content for one in await store.get_messages("chat")] == ["after"]


async def test_a_program_may_change_its_folder(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///memory.db", pool_size=1)
    await store.add_message("chat", user("one"))
    monkeypatch.chdir("/")
    await store.add_message("chat", user("two"))
    assert await store.count_messages("chat") == 2
