"""PostgreSQL: several processes, engines of one's own, lost connections and impatient servers."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from collections.abc import Callable, Coroutine
from itertools import product
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from llama_index_memory_ext import CondensedMemory, Fact, MemoryStore, StoreError
from llama_index_memory_ext.store.rows import SessionAccess
from tests.conversation import assistant, record, sent_text, user
from tests.databases import ENGINES_AT, OpenStore, ask, engine_at
from tests.forked import python_command
from tests.learning.learning import learner
from tests.openai_server import Message, serve
from tests.record.test_running_summary import count_up, summary_in
from tests.scripted_models import client_without_connections
from tests.store.frozen import holding
from tests.store.test_encryption import until_a_statement_waits

NO_FACTS: dict[str, Any] = {"extract_facts": False, "facts_token_limit": 0}
# Which of its commits a process does not live to see: its 16 messages alone make more than 12.
KILLED_AT = {"one": "0", "two": "0", "killed": "12"}
SUMMING_UP: dict[str, Any] = {"max_messages": 6, "keep_messages": 2, "summarize": True}


async def end_connections(uri: str) -> None:
    """As a restart of the server does."""
    await ask(
        uri,
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND datname = current_database()",
    )


async def run_workers(code: str, *arguments: list[str]) -> list[str]:
    """What each process prints; the last one may be killed."""
    workers = [
        subprocess.Popen(
            [*python_command(), "-c", code, *each],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for each in arguments
    ]
    ended = [
        await asyncio.to_thread(worker.communicate, timeout=500) for worker in workers
    ]
    for worker, (_, errors) in zip(workers, ended, strict=True):
        assert worker.returncode in (0, -signal.SIGKILL), errors
        assert errors == ""
    return [printed for printed, _ in ended]


# ---- several processes ---------------------------------------------------------------------------------

WORKER = """
import asyncio, json, os, signal, sys
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai import OpenAI
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine
from llama_index_memory_ext import CondensedMemory, MemoryStore

async def main(uri, api_base, name, killed_at):
    # Nothing here is about time limits, which a busy machine would pass.
    engine = create_async_engine(uri, pool_size=1, max_overflow=0, pool_timeout=500)
    store = MemoryStore(async_engine=engine, operation_timeout=500)
    commits = []

    @event.listens_for(engine.sync_engine, "commit")
    def die(connection):
        commits.append(1)
        if len(commits) == int(killed_at):
            os.kill(os.getpid(), signal.SIGKILL)

    options = json.loads(sys.argv[5])
    llm = OpenAI(model="gpt-4o-mini", api_base=api_base, api_key="sk-test", max_retries=0, timeout=500)
    memory = CondensedMemory.from_defaults("chat", user_id="ann", chat_store=store, llm=llm, **options)
    for i, what in enumerate(("Python", "Docker", "tea", "chess", "jazz", "rain", "snow", "trees")):
        async with memory.turn():
            await memory.aput(ChatMessage(role="user", content=f"I like {what}. I use {name}{i}."))
            await memory.aget()
            await memory.aput(ChatMessage(role="assistant", content=f"So {name}{i} it is."))
        print((await memory.sql_store.readers.cursor("chat", "condensed_memory")).position, flush=True)
    await memory.aclose()
    await engine.dispose()

asyncio.run(main(*sys.argv[1:5]))
"""


def model(messages: list[Message], tools: list[str]) -> Message:
    """Learns what a user likes and uses, and sums up by writing all down again."""
    return (
        learner(messages, tools)
        if tools == ["report_facts"]
        else count_up(messages, tools)
    )


@pytest.mark.timeout(600)
async def test_processes_share_a_session_and_a_user(postgres_uri: str) -> None:
    """Each row is stored, summed up and extracted once, though one of them is killed just before it commits."""
    store = MemoryStore(postgres_uri, operation_timeout=500)
    await store.get_messages("chat")
    with serve(model) as server:
        options = [postgres_uri, server.api_base]
        printed = await run_workers(
            WORKER,
            *(
                [*options, name, killed_at, json.dumps(SUMMING_UP)]
                for name, killed_at in KILLED_AT.items()
            ),
        )
        llm = client_without_connections(server)
        one, two = (
            CondensedMemory.from_defaults(
                "chat", user_id="ann", chat_store=store, llm=llm, **SUMMING_UP
            )
            for _ in range(2)
        )
        await one.aflush()
        shown = sent_text(await one.aget())
    for lines in printed:
        positions = [int(line) for line in lines.splitlines()]
        assert positions == sorted(positions)

    rows = [message.content or "" for message in await one.aget_all()]
    assert len(rows) == len(set(rows))
    for name in KILLED_AT:
        mine = [row for row in rows if re.search(rf"\b{name}\d", row)]
        said = [
            text
            for i in range(8)
            for text in (f"I use {name}{i}.", f"So {name}{i} it is.")
        ]
        assert all(row.endswith(text) for row, text in zip(mine, said, strict=False))
        assert 0 < len(mine) < 16 if name == "killed" else len(mine) == 16

    summed_up, kept = summary_in(shown), [text for _, text in record(shown)]
    assert kept == rows[-len(kept) :]
    places = [summed_up.find(row) for row in rows[: -len(kept)]]
    assert places == sorted(places)
    assert all(summed_up.count(row) == 1 for row in rows[: -len(kept)])
    assert sent_text(await two.aget()) == shown

    uses = re.findall(r"I (use) (\w+)", str(rows))
    likes = set(re.findall(r"I (like) (\w+)", str(rows)))
    facts = await one.facts.alist(state="all")
    assert sorted(fact.content for fact in facts) == sorted(
        f"{verb.title()}s {what}" for verb, what in [*uses, *likes]
    )
    reader = one.facts_block.reader_of("chat")
    # An answer that comes behind the words of others waits for the next words of the user's.
    unread = (
        await store.readers.unread("chat", reader, with_active=True, limit=9)
    ).rows
    assert "user" not in [row.role for row in unread]
    assert server.refusals == []
    await store.aclose()


# ---- engines of one's own ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ENGINES_AT)
@pytest.mark.parametrize(
    ("any_database_uri", "level"),
    [
        *product(["postgres"], ["AUTOCOMMIT", "REPEATABLE READ", "SERIALIZABLE"]),
        ("file", "AUTOCOMMIT"),
        ("file", "READ UNCOMMITTED"),
    ],
    indirect=["any_database_uri"],
)
async def test_the_isolation_of_an_engine_that_was_lent_does_no_harm(
    any_database_uri: str, way: str, level: str
) -> None:
    """Without a transaction half of a change would stay, and in a snapshot from before its lock a writer would fail."""
    async with engine_at(way, any_database_uri, level) as engine:
        stores = [MemoryStore(async_engine=engine) for _ in range(3)]
        await stores[0].add_message("chat", user("first"))
        for i in range(5):
            writing = (
                store.log.append("chat", [user(f"{name} {i}")], len)
                for name, store in enumerate(stores)
            )
            await asyncio.gather(*writing)
        with pytest.raises(ZeroDivisionError):
            await stores[0].log.append(
                "chat", [user("half")], lambda queue: 1 // 0, replace=True
            )
        assert await stores[0].count_messages("chat", None) == 16
        assert await stores[0].vacuum()
        async with engine.connect() as connection:
            # Of a connection without transactions SQLAlchemy says what the server would do.
            isolation = await connection.get_isolation_level()
            assert isolation in (level, "READ COMMITTED", "SERIALIZABLE")


async def test_connections_that_the_server_has_ended_cost_one_call_at_most(
    postgres_uri: str, open_store: OpenStore
) -> None:
    """A restart of the server. By an address or with ``pool_pre_ping`` not even one; what was acknowledged stays."""

    def lent(*, ping: bool) -> MemoryStore:
        engine = create_async_engine(
            postgres_uri, pool_size=2, pool_pre_ping=ping, hide_parameters=True
        )
        return open_store(async_engine=engine)

    for i, (store, failures) in enumerate(
        ((open_store(postgres_uri), 0), (lent(ping=True), 0), (lent(ping=False), 1))
    ):
        memory = CondensedMemory.from_defaults(
            f"chat {i}", chat_store=store, **NO_FACTS
        )
        await memory.aput(user("message 0"))
        await end_connections(postgres_uri)
        outcomes = [
            (
                await asyncio.gather(
                    memory.aput(user(f"message {i}")), return_exceptions=True
                )
            )[0]
            for i in (1, 2)
        ]
        errors = [outcome for outcome in outcomes if isinstance(outcome, StoreError)]
        assert len(errors) == failures
        assert "message 1" not in str(errors)
        kept = [f"message {i}" for i in range(3) if outcomes[i - 1] is None or i == 0]
        assert [message.content for message in await memory.aget_all()] == kept


async def test_a_connection_lost_in_the_middle_of_a_write_leaves_nothing_half_done(
    postgres_uri: str, open_store: OpenStore
) -> None:
    """The next call works."""
    engine = create_async_engine(postgres_uri, pool_size=1, max_overflow=0)
    memory = CondensedMemory.from_defaults(
        "chat", chat_store=open_store(async_engine=engine), **NO_FACTS
    )
    await memory.aput_messages([user("one"), assistant("two")])
    ended: list[str] = []

    @event.listens_for(engine.sync_engine, "after_cursor_execute")
    def lose(connection: Any, cursor: Any, statement: str, *others: Any) -> None:
        if statement.startswith("INSERT INTO llama_index_memory (") and not ended:
            ended.append(statement)
            connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(
        StoreError, match="The connection was lost: check whether it was stored"
    ):
        await memory.aput(user("lost"))
    await memory.aput(user("three"))
    contents = [message.content for message in await memory.aget_all()]
    assert contents == ["one", "two", "three"]


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
async def test_an_impatient_server_costs_a_call_and_no_row(
    postgres_uri: str, setting: str, open_store: OpenStore
) -> None:
    """While somebody else holds the lock of the session; the call can be made again."""
    # By another name of the same table: within a process, writers of one store wait for each other without a server.
    holder = open_store(postgres_uri, db_schema="public")
    impatient = create_async_engine(
        postgres_uri, connect_args={"server_settings": {setting: "200"}}
    )
    memory = CondensedMemory.from_defaults(
        "chat", chat_store=open_store(async_engine=impatient), **NO_FACTS
    )
    await memory.aput(user("one"))
    async with holding(holder, "chat"):
        with pytest.raises(
            StoreError, match=r"has refused append_messages: .*timeout"
        ) as error:
            await memory.aput(user("two"))
    assert isinstance(error.value.__cause__, DBAPIError)
    await memory.aput(user("two"))
    assert [message.content for message in await memory.aget_all()] == ["one", "two"]


# ---- other places --------------------------------------------------------------------------------------


async def test_tables_of_another_schema_and_name_are_apart(
    empty_postgres_uri: str, open_store: OpenStore
) -> None:
    """Two applications in one database; names that need quoting; each has a version of its own."""
    places: list[dict[str, Any]]
    places = [
        {},
        {"db_schema": "agents"},
        {"db_schema": "Other Agents", "table_name": "chat-table"},
    ]
    stores = [open_store(empty_postgres_uri, **place) for place in places]
    for i, store in enumerate(stores):
        assert await store.read_schema_version() is None
        await store.facts.write("ann", [Fact(content=f"Likes place {i}")])
        await store.add_message("chat", user(f"I like place {i}."))
    for i, store in enumerate(stores):
        known = [fact.content for fact in (await store.facts.read("ann")).facts]
        assert known == [f"Likes place {i}"]
        contents = [message.content for message in await store.get_messages("chat")]
        assert contents == [f"I like place {i}."]


DELETIONS: dict[str, Callable[[MemoryStore], Coroutine[Any, Any, dict[str, int]]]] = {
    "old turns": lambda store: store.aretain(messages=2, vacuum=False),
    "a user": lambda store: store.forget_user("bob", vacuum=False),
}


async def test_a_deletion_of_messages_brings_no_fact_back_that_is_deleted_meanwhile(
    postgres_uri: str, open_store: OpenStore
) -> None:
    store = open_store(postgres_uri)
    await store.add_messages("chat", [user("I like tea."), assistant("Fine.")])
    rows = await store.rows("chat")
    fact = Fact(
        content="Likes tea",
        quote="I like tea.",
        session_id="chat",
        message_ids=(rows[0].id,),
    )
    await store.facts.write("ann", [fact])
    engine = create_async_engine(postgres_uri)
    async with engine.begin() as writer:
        await writer.exec_driver_sql(
            "UPDATE llama_index_memory_users SET change = change + 1 WHERE namespace = 'ann'"
        )
        deletion = asyncio.create_task(store.delete_message("chat", rows[0].id))
        await until_a_statement_waits(postgres_uri)
        await writer.exec_driver_sql("DELETE FROM llama_index_memory_facts")
    await deletion
    await engine.dispose()
    assert (await store.facts.read("ann")).facts == []


@pytest.mark.parametrize("delete", DELETIONS.values(), ids=list(DELETIONS))
async def test_a_deletion_waits_for_a_writer_of_the_facts_that_it_changes(
    postgres_uri: str,
    open_store: OpenStore,
    delete: Callable[[MemoryStore], Coroutine[Any, Any, dict[str, int]]],
) -> None:
    """Otherwise both changes had one number, and who has read the one would never read the other."""
    store = open_store(postgres_uri)
    for name, word in (("bob", "milk"), ("ann", "tea")):
        turn = [user(f"I like {word}."), assistant("Fine.")]
        access = SessionAccess(name, shared=True)
        await store.log.append("chat", turn, len, access=access)
    fact = Fact(
        content="Likes tea",
        quote="I like tea.",
        source="I like milk.\nI like tea.",
        session_id="chat",
        message_ids=((await store.readers.find("chat"))[2].id,),
    )
    await store.facts.write("ann", [fact])
    before = await store.facts.read("ann")
    engine = create_async_engine(postgres_uri)
    async with engine.begin() as writer:
        await writer.exec_driver_sql(
            "UPDATE llama_index_memory_users SET change = change + 1 WHERE namespace = 'ann'"
        )
        deletion = asyncio.create_task(delete(store))
        await until_a_statement_waits(postgres_uri)
    await deletion
    await engine.dispose()
    seen = before._replace(change=before.change + 1)
    changes = await store.facts.read("ann", seen)
    assert (changes.fresh, [fact.source for fact in changes.facts]) == (True, [""])
