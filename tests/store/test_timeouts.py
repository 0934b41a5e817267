"""A database that does not answer: callers leave at once, calls are bounded, and writes that have begun end."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from llama_index_memory_ext import (
    CondensedMemory,
    MemoryStore,
    StoreError,
    StoreTimeoutError,
)
from llama_index_memory_ext.models.offline import OfflineModel
from llama_index_memory_ext.store.transaction import Transaction
from tests.conversation import assistant, sent_text, user
from tests.databases import OpenStore, ask
from tests.store.frozen import OwnServer, holding, own_server

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["own_server"]

NO_FACTS: dict[str, Any] = {"extract_facts": False, "facts_token_limit": 0}


def memory_on(store: MemoryStore, session_id: str = "chat") -> CondensedMemory:
    return CondensedMemory.from_defaults(session_id, chat_store=store, **NO_FACTS)


async def contents(memory: CondensedMemory) -> list[str | None]:
    return [message.content for message in await memory.aget_all()]


async def test_a_caller_of_a_frozen_server_leaves_at_once_and_its_write_is_stored_later(
    own_server: OwnServer, caplog: pytest.LogCaptureFixture, open_store: OpenStore
) -> None:
    caplog.set_level(logging.INFO, "llama_index_memory_ext")
    store = open_store(own_server.uri)
    memory = memory_on(store)
    await memory.aput_messages([user("one"), assistant("two")])
    loop = asyncio.get_running_loop()
    with own_server.frozen():
        for call in (
            memory.aget(),
            memory.aput(user("three")),
            memory.aput(user("four")),
        ):
            started = loop.time()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(call, 0.3)
            # Without it, a call leaves after 30 seconds.
            assert loop.time() - started < 20
        assert "stored" not in caplog.text
    await store.aclose()
    assert (
        caplog.text.count(
            "append_messages was completed after its caller had gone: it was stored."
        )
        == 2
    )
    assert await contents(memory) == ["one", "two", "three", "four"]
    assert "three" not in caplog.text


async def test_every_call_of_a_frozen_server_is_bounded_and_the_next_one_works(
    own_server: OwnServer, open_store: OpenStore
) -> None:
    """Also the first call of a store, which has to connect; the error says what to do."""
    store, late, idle = (
        open_store(own_server.uri, operation_timeout=1) for _ in range(3)
    )
    await idle.get_messages("chat")
    memory, first = memory_on(store), memory_on(late)
    await memory.aput(user("one"))
    lent = open_store(
        async_engine=create_async_engine(own_server.url, poolclass=NullPool),
        operation_timeout=1,
    )
    await lent.get_messages("chat")
    with own_server.frozen():
        for call in (
            memory.aget(),
            memory.aput(user("lost")),
            first.aput(user("lost")),
            lent.count_messages("chat"),
        ):
            with pytest.raises(
                StoreTimeoutError, match=r"within 1 s .*operation_timeout="
            ) as error:
                await asyncio.wait_for(call, 60)
            assert "lost" not in str(error.value)
        assert error.value.operation == "count_messages"
        # Closing does not wait for ever, either.
        await asyncio.wait_for(idle.aclose(), 60)
    await memory.aput(user("two"))
    await first.aput(user("three"))
    stored = [text for text in await contents(memory) if text != "lost"]
    assert stored == ["one", "two", "three"]


async def test_the_server_ends_what_nobody_waits_for_any_more(
    postgres_uri: str, open_store: OpenStore
) -> None:
    """And so frees its locks; a second after the caller has gone, who has time enough to open the database here."""

    def show(transaction: Transaction) -> list[object]:
        return [
            transaction.execute(f"SHOW {kind}_timeout").scalar()
            for kind in ("statement", "lock")
        ]

    store = open_store(postgres_uri, operation_timeout=60)
    assert await store.database.run(show, writes=False) == ["61s", "0"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_write_whose_caller_has_gone_is_waited_for_by_closing_and_logged_if_it_fails(
    postgres_uri: str,
    open_store: OpenStore,
    caplog: pytest.LogCaptureFixture,
    *,
    fails: bool,
) -> None:
    store, other = (
        open_store(postgres_uri),
        open_store(postgres_uri, db_schema="public"),
    )
    memory = memory_on(store)
    await memory.aput(user("one"))
    ending = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    async with holding(other, "chat"):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(memory.aput(user("my secret")), 0.2)
        while fails and not (await ask(postgres_uri, ending))[0]:
            pass
        end = asyncio.ensure_future(store.aclose())
        await asyncio.sleep(0)
        assert fails or not end.done()
    await end
    assert await other.count_messages("chat", None) == 2 - fails
    assert ("append_messages failed after its caller had gone" in caplog.text) == fails
    assert "my secret" not in caplog.text


@pytest.mark.parametrize(
    "is_new", [True, False], ids=["a new process", "a session that is open"]
)
async def test_a_locked_file_is_waited_for_as_long_as_said_and_others_go_on(
    database_uri: str, open_store: OpenStore, *, is_new: bool
) -> None:
    """With facts, too, for which a new memory looks for unread sessions first."""
    seconds = 2
    store = open_store(database_uri, operation_timeout=seconds)
    memory = CondensedMemory.from_defaults("chat", chat_store=store, llm=OfflineModel())
    if not is_new:
        await memory.aput(user("one"))
    loop = asyncio.get_running_loop()
    with closing(
        sqlite3.connect(str(make_url(database_uri).database), isolation_level=None)
    ) as locker:
        locker.execute("BEGIN EXCLUSIVE")
        for call in (
            (memory.aput(user("two")), memory.aget())
            if is_new
            else (memory.aput(user("two")),)
        ):
            started = loop.time()
            with pytest.raises(StoreTimeoutError, match="locked by another program"):
                await call
            # Not twice as long.
            assert 0.9 * seconds < loop.time() - started < 2 * seconds
        if not is_new:
            # With a write-ahead log, readers do not wait.
            assert "one" in sent_text(await memory.aget())
        locker.execute("ROLLBACK")
    await store.aclose()
    await memory.aput(user("three"))
    assert (await contents(memory))[-1] == "three"


@pytest.mark.parametrize(
    "limits",
    [
        {"operation_timeout": 0},
        {"operation_timeout": float("nan")},
        {"pool_size": 0},
        {"pool_size": True},
    ],
)
def test_limits_with_which_nothing_could_be_stored_are_refused(
    limits: dict[str, Any],
) -> None:
    with pytest.raises(StoreError, match=f"{next(iter(limits))} must be"):
        MemoryStore(**limits)


def test_limits_and_the_error_travel_with_a_pickle() -> None:
    store = MemoryStore(
        "sqlite+aiosqlite:///memory.db", operation_timeout=5, pool_size=3
    )
    copy = pickle.loads(pickle.dumps(store))
    assert (copy.operation_timeout, copy.pool_size, copy.database.seconds) == (5, 3, 5)
    error = pickle.loads(pickle.dumps(StoreTimeoutError("Log.append", 5, writes=False)))
    assert str(error) == str(StoreTimeoutError("Log.append", 5, writes=False))


async def test_a_call_that_ends_after_its_store_was_closed_leaves_the_file_free(
    tmp_path: Path, open_store: OpenStore
) -> None:
    """An open connection would keep a lock on the file, and would outlive its replacement."""
    file = tmp_path / "memory.db"
    store = open_store(f"sqlite+aiosqlite:///{file}", operation_timeout=0.2)
    await store.add_message("chat", user("one"))
    began, may_end = threading.Event(), threading.Event()

    def wait(_: Transaction) -> None:
        began.set()
        may_end.wait(60)

    call = asyncio.create_task(store.database.run(wait, seconds=60, writes=False))
    await asyncio.to_thread(began.wait, 60)
    await store.aclose()
    may_end.set()
    await call
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        # Refused while any connection is open.
        other.execute("PRAGMA journal_mode = DELETE")
        assert other.execute("PRAGMA journal_mode").fetchone() == ("delete",)
