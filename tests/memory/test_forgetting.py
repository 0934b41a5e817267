"""Deleting a person: what is gone, what stays, and that nothing brings it back."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from llama_index_memory_ext import (
    CondensedMemory,
    Fact,
    MemoryStore,
    RelevantFactsBlock,
    StoreError,
)
from llama_index_memory_ext.facts.book import FactBook
from llama_index_memory_ext.store.log import claim_session
from llama_index_memory_ext.store.rows import ReadPosition, SessionAccess
from llama_index_memory_ext.store.transaction import Transaction
from tests.conversation import assistant, calling, result, sent_text, user
from tests.databases import OpenStore
from tests.learning.learning import learner, shown
from tests.memories import OpenPlainMemory, deleted, on
from tests.openai_server import Message, say
from tests.scripted_models import StartModel
from tests.search.test_embeddings import Meanings
from tests.store.test_schema import role_of

# Only a test that fails waits so long: how fast the machine is decides nothing.
PATIENCE_SECONDS = 300
KINDS = ("", "_cursors", "_facts", "_embeddings")
# Quotes, wildcards of LIKE, a statement, other alphabets, and a long one.
ODD_IDS = [
    "ann's",
    'a "b"',
    "100%",
    "a_n",
    "'; DROP TABLE x; --",
    "\u65e5\u672c \U0001f600 \u0416",
    "x" * 999,
    "<log>",
]


async def rows_in(store: MemoryStore) -> dict[str, int | None]:
    """How many rows there are in each table."""

    def count(transaction: Transaction) -> dict[str, int | None]:
        counts = {}
        for kind in KINDS:
            query = f"SELECT COUNT(*) FROM llama_index_memory{kind}"  # noqa: S608
            counts[kind] = transaction.execute(query).scalar()
        return counts

    return await store.database.run(count, writes=False)


async def is_empty(store: MemoryStore) -> bool:
    return not any((await rows_in(store)).values())


# ---- what is gone, and what stays ----------------------------------------------------------------------------


async def test_all_sessions_and_facts_of_a_user_are_deleted_and_counted(
    store: MemoryStore,
) -> None:
    """Of others nothing; and a second time there is nothing to delete."""
    one, two, bobs = (
        on(store),
        on(store, "other", embed_model=Meanings()),
        on(store, "bobs", "bob"),
    )
    for memory in (one, two, bobs):
        await memory.aput_messages(
            [user("Hello."), assistant("Hello."), user("What do I like?")]
        )
        await memory.facts.aadd("Likes tea")
    await one.facts.aretire((await one.facts.alist())[0].id)
    await two.aget()
    # What was reset is known as theirs.
    await two.areset()
    # The first message opens a session, so each has a row that says whose it is. One has a
    # profile.
    assert await one.aforget() == deleted(messages=3, cursors=3, facts=2, embeddings=1)
    assert await one.aforget() == deleted()
    assert [session.session_id for session in await store.sessions()] == ["bobs"]
    assert shown(sent_text(await bobs.aget())) == ["Likes tea"]
    assert await bobs.aforget() == deleted(messages=3, cursors=2, facts=1)
    assert await is_empty(store)
    await two.facts_block.aclose()


async def test_the_memory_can_be_used_on(store: MemoryStore) -> None:
    """As a new one, which can be deleted again; another memory that has read all of it shows nothing either."""
    memory, other = (
        on(store, condensed_token_limit=300, recall_token_limit=50) for _ in range(2)
    )
    for _ in range(2):
        await memory.facts.aadd("Likes tea")
        for i in range(10):
            await memory.aput_messages(
                [user(f"Question {i}?"), assistant(f"Answer {i}.")]
            )
        await memory.aput(user("Which question did I ask, and what do I like?"))
        for each in (memory, other):
            prompt = sent_text(await each.aget())
            assert "Likes tea" in prompt
            assert "Answer 9." in prompt
        assert (await memory.aforget())["messages"] == 21
        assert await memory.aget() == await other.aget() == []
        await other.aput_messages([user("Three."), assistant("Four."), user("Five?")])
        for each in (memory, other):
            prompt = sent_text(await each.aget())
            assert "Three." in prompt
            assert "Question" not in prompt
            assert "Likes tea" not in prompt
        assert (await store.sessions())[0].user_ids == ("ann",)
        await other.aforget()
        assert store.cache.size == 0
    assert await is_empty(store)


async def test_sessions_of_a_plain_memory_are_found_by_their_facts_or_by_name(
    open_plain_memory: OpenPlainMemory, start_model: StartModel, store: MemoryStore
) -> None:
    """Whose they are is known before a model is asked."""
    llm, _ = start_model(lambda messages, tools: say("not a fact"))
    block = RelevantFactsBlock(store=store, user_id="ann", llm=llm)
    memory = open_plain_memory(block, session_id="plain", chat_store=store)
    await memory.aput_messages([user("I like tea."), assistant("Fine."), user("And?")])
    await block.await_jobs("plain")
    await store.add_message("unknown", user("Hello."))
    assert {
        session.session_id: session.user_ids for session in await store.sessions()
    } == {
        "plain": ("ann",),
        "unknown": (),
    }
    await store.jobs.stop()
    assert (await store.forget_user("ann", session_ids=["unknown"]))["messages"] == 4
    assert await is_empty(store)
    await block.aclose()


async def test_what_is_no_id_is_refused(open_store: OpenStore) -> None:
    """A text would be taken for a list of its letters."""
    store = open_store()
    await store.add_message("c", user("Hello."))
    for user_id, sessions in ((None, []), (7, []), ("ann", "chat")):
        with pytest.raises(StoreError, match="Nothing was deleted"):
            await store.forget_user(user_id, session_ids=sessions)  # type: ignore[arg-type]
    assert await store.count_messages("c") == 1


async def test_ids_may_be_any_text(store: MemoryStore) -> None:
    """But for those that name nobody. Each is deleted without the others, of which some look alike to a pattern."""
    memories = {
        user_id: on(store, f"of {user_id}", user_id)
        for user_id in [*ODD_IDS, "100 percent", "aXn", "ANN'S"]
    }
    for user_id, memory in memories.items():
        await memory.aput_messages(
            [user("Hello."), assistant(user_id), user("What do I like?")]
        )
        await memory.facts.aadd(f"Likes {user_id}!")
        assert shown(sent_text(await memory.aget()))
    sessions = {
        session.session_id: session.user_ids for session in await store.sessions()
    }
    assert sessions == {f"of {user_id}": (user_id,) for user_id in memories}
    for i, memory in enumerate(memories.values(), start=1):
        assert await memory.aforget(vacuum=False) == deleted(
            messages=3, cursors=2, facts=1
        )
        assert len(await store.sessions()) == len(memories) - i
    assert await is_empty(store)


# ---- in the files ----------------------------------------------------------------------------------------------

WORDS = (
    "zanzibar",
    "quagmire",
    "xylophone",
    "obelisk",
    "marzipan",
    "nutmeg",
    "turmeric",
    "ocelot",
    "annabel-q",
)


async def fill(memory: CondensedMemory, old: CondensedMemory) -> None:
    """Words of a person in all places where there are any, and so much that pages of the file become free."""
    await old.aput_messages(
        [user("I was born in zanzibar. " * 200), assistant("Fine."), user("Go on.")]
    )
    await old.areset()
    await memory.aput_messages(
        [user("My secret is quagmire. " * 300), assistant("I see.")]
    )
    await memory.aput_messages(
        [
            calling(("call_1", "look", {"for": "xylophone"})),
            result("call_1", "obelisk " * 500),
        ]
    )
    await memory.aput(user("And?"))
    page = await memory.sql_store.readers.page(
        "chat", "condensed_memory", ReadPosition(), limit=10
    )
    state = {"summary": "It was about marzipan.", "summarised": 1}
    await memory.sql_store.readers.move("chat", "condensed_memory", page, 1, state)
    fact = Fact(
        content="Likes nutmeg", quote="I like nutmeg", source="turmeric, I said. " * 100
    )
    await memory.facts.aadd(fact)
    await memory.facts.aadd("Likes the ocelot")
    await memory.facts.aretire((await memory.facts.alist())[0].id)
    await memory.aget()


def words_in(folder: Path, words: Sequence[str] = WORDS) -> set[tuple[str, str]]:
    """The words that are found in the bytes of any file."""
    files = [file for file in folder.iterdir() if file.is_file()]
    assert files
    return {
        (file.name, word)
        for file in files
        for word in words
        if word.encode() in file.read_bytes().lower()
    }


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
@pytest.mark.parametrize("closed", [False, True])
async def test_no_word_of_the_person_is_in_the_files(
    tmp_path: Path, mode: str, closed: bool, open_store: OpenStore
) -> None:
    """Not even while the database is open, and those of others still are."""
    with closing(sqlite3.connect(tmp_path / "memory.db")) as connection:
        assert connection.execute(f"PRAGMA journal_mode = {mode}").fetchone() == (
            mode.lower(),
        )
    store = open_store(f"sqlite+aiosqlite:///{tmp_path}/memory.db")
    await on(store, "bobs", "bob").aput(user("I keep a platypus. " * 100))
    memory = on(
        store, user_id="annabel-q", embed_model=Meanings(), recall_token_limit=0
    )
    await fill(memory, on(store, "annabel-q-old", "annabel-q"))
    assert {word for _, word in words_in(tmp_path)} >= {
        "quagmire",
        "obelisk",
        "marzipan",
        "turmeric",
        "annabel-q",
    }
    if closed:
        await memory.facts_block.aclose()
        await store.aclose()
    assert (await store.forget_user("annabel-q"))["embeddings"] == 1
    assert words_in(tmp_path) == set()
    assert words_in(tmp_path, ["platypus"])
    await memory.aclose()
    await store.aclose()
    assert words_in(tmp_path) == set()


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (
            "DELETE",
            "The database was not vacuumed: The database has not answered within",
        ),
        ("WAL", "another connection is reading"),
    ],
)
async def test_a_database_that_somebody_reads_is_vacuumed_later(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    open_store: OpenStore,
    mode: str,
    said: str,
) -> None:
    """The rows are gone at once, and the log says what is left to do."""
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{tmp_path}/memory.db", connect_args={"timeout": 0.05}
    )
    async with engine.connect() as connection:
        await connection.exec_driver_sql(f"PRAGMA journal_mode = {mode}")
    memory = on(open_store(async_engine=engine))
    await memory.aput(user("quagmire"))
    async with engine.connect() as reader:
        await reader.exec_driver_sql("BEGIN")
        await reader.exec_driver_sql("SELECT count(*) FROM llama_index_memory")
        if mode == "WAL":
            assert (await memory.aforget())["messages"] == 1
        else:
            assert not await memory.sql_store.vacuum()
    assert said in caplog.text
    assert "await store.vacuum()" in caplog.text
    assert "quagmire" not in caplog.text
    await memory.aforget(vacuum=False)
    assert await memory.sql_store.vacuum()
    assert words_in(tmp_path) == set()


async def test_a_server_is_vacuumed_by_who_may(
    postgres_uri: str, caplog: pytest.LogCaptureFixture, open_store: OpenStore
) -> None:
    """Tables with odd names, too; for another database user it is a warning."""
    names = {"table_name": 'Odd "Name', "db_schema": "My Schema"}
    for store in (open_store(postgres_uri), open_store(postgres_uri, **names)):
        await on(store).aput(user("Hello."))
        assert (await on(store).aforget())["messages"] == 1
        assert await store.vacuum()
    assert caplog.text == ""
    theirs = on(open_store(await role_of(postgres_uri)))
    await theirs.aput(user("Hello."))
    assert (await theirs.aforget())["messages"] == 1
    assert (
        "may not vacuum llama_index_memory, llama_index_memory_cursors" in caplog.text
    )


# ---- what is under way brings nothing back ------------------------------------------------------------------------


class Slow:
    """A model that has been asked, and answers when it may."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked, self.may_answer = threading.Event(), threading.Event()

    def __call__(self, messages: list[Message], tools: list[str]) -> Message:
        self.asked.set()
        assert self.may_answer.wait(PATIENCE_SECONDS)
        answer: Message = self.answer(messages, tools)
        return answer


@pytest.mark.parametrize("goes_on", [False, True], ids=["it ends", "it goes on"])
async def test_an_extraction_that_answers_later_stores_nothing(
    store: MemoryStore, start_model: StartModel, *, goes_on: bool
) -> None:
    """Nor does it make the session known again; of one that goes on, only what is said then is learned."""
    model = Slow(learner)
    llm, _ = start_model(model)
    memory = on(store, llm=llm, extract_every_turns=1)
    await memory.aput_messages([user("I like tea."), assistant("Fine."), user("And?")])
    assert await asyncio.to_thread(model.asked.wait, PATIENCE_SECONDS)
    await on(store, "another").aforget()
    if goes_on:
        await memory.aput_messages(
            [user("I like cake."), assistant("Fine."), user("And?")]
        )
    model.may_answer.set()
    await memory.facts_block.await_jobs("chat")
    assert [fact.content for fact in await memory.facts.alist()] == [
        "Likes cake"
    ] * goes_on
    assert await is_empty(store) != goes_on
    await memory.facts_block.aclose()


async def test_a_fact_that_is_written_later_by_who_has_seen_others_is_not_stored(
    store: MemoryStore,
) -> None:
    """Nor does the attempt make the person known again."""
    await store.facts.write("ann", [Fact(content="Likes tea")])
    seen = await store.facts.read("ann")
    await store.forget_user("ann")
    assert not await store.facts.write("ann", [Fact(content="Likes cake")], seen)
    assert await is_empty(store)


async def test_forgetting_while_others_write_ends_for_all(store: MemoryStore) -> None:
    """Nobody waits for each other, and what is written afterwards can be deleted."""
    memories = [
        on(store, session, who, shared=True)
        for session in ("a", "b", "c")
        for who in ("ann", "bob")
    ]

    async def write(memory: CondensedMemory) -> None:
        for i in range(5):
            await memory.aput(user(f"message {i}"))
            await memory.facts.aadd(f"Likes number {i}")
            await memory.aget()

    async def forget(who: str) -> None:
        for _ in range(5):
            await store.forget_user(who, vacuum=False)

    await asyncio.gather(*map(write, memories), forget("ann"), forget("bob"))
    for who in ("ann", "bob"):
        await store.forget_user(who)
    assert await is_empty(store)


# ---- which sessions there are --------------------------------------------------------------------------------------


async def test_sessions_are_listed_with_whose_they_are_and_when(
    store: MemoryStore,
) -> None:
    """That which was written to last comes first; a session that was reset or deleted has none left to list."""
    before = datetime.now(timezone.utc)
    await on(store, "old", shared=True).aput_messages(
        [user("Hello."), assistant("Hello.")]
    )
    await on(store, "own", None).aput(user("Hello."))
    await on(store, "own", None).facts.aadd("Likes tea")
    for name in ("nobody's", "reset", "deleted"):
        await store.add_message(name, user("Hello."))
    await on(store, "reset").areset()
    assert await store.forget("deleted") == {"messages": 1, "cursors": 0}
    await on(store, "old", "bob", shared=True).aput(user("Hello."))
    sessions = await store.sessions()
    assert [
        (session.session_id, session.messages, session.user_ids) for session in sessions
    ] == [
        ("old", 3, ("ann", "bob")),
        ("nobody's", 1, ()),
        ("own", 1, ("own",)),
    ]
    for session in sessions:
        assert session.first_at is not None
        assert session.last_at is not None
        assert (
            before <= session.first_at <= session.last_at <= datetime.now(timezone.utc)
        )
    # The facts of a session's user stay, even if it has none.
    assert await store.forget("own") == {"messages": 1, "cursors": 1}
    assert await on(store, "own", None).aforget() == deleted(facts=1)


async def test_sessions_of_a_user_can_be_listed_alone(store: MemoryStore) -> None:
    """With those that are named besides."""
    for session_id, user_id in (
        ("one", "ann"),
        ("two", "bob"),
        ("three", "ann"),
        ("ann", None),
        ("two", "ann"),
    ):
        await on(store, session_id, user_id, shared=user_id is not None).aput(
            user("Hello.")
        )
    for user_id, session_ids, expected in (
        ("ann", [], {"one": ("ann",), "two": ("ann", "bob"), "three": ("ann",)}),
        ("bob", [], {"two": ("ann", "bob")}),
        ("bob", ["one", "nowhere"], {"two": ("ann", "bob"), "one": ("ann",)}),
        (None, ["three"], {"three": ("ann",)}),
        ("carl", [], {}),
        ("", [], {}),
    ):
        found = await store.sessions(user_id, session_ids=session_ids)
        assert {session.session_id: session.user_ids for session in found} == expected


async def test_a_session_named_like_another_user_does_not_take_that_users_facts_along(
    store: MemoryStore,
) -> None:
    """Only of a session that is nothing but a session are the facts those of whoever talks in it."""
    for session_id, user_id in (
        ("ann", "ann"),
        ("anns", "ann"),
        ("ann", "bob"),
        ("chat", None),
        ("chat", "bob"),
    ):
        memory = on(store, session_id, user_id, shared=user_id is not None)
        await memory.aput(user("Hello."))
        await memory.facts.aadd(f"Is {user_id}")
    assert (await store.forget_user("bob"))["facts"] == 3
    assert len(await FactBook(store, "ann").alist()) == 2
    assert [info.session_id for info in await store.sessions()] == ["anns", "ann"]


async def test_many_sessions_are_deleted_at_once(store: MemoryStore) -> None:
    """More than a statement takes parameters."""
    await store.add_message("s7", user("Hello."))
    sessions = [f"s{i}" for i in range(1_200)]

    def claim(transaction: Transaction) -> None:
        for session_id in sessions:
            claim_session(transaction, session_id, SessionAccess("ann"), (), [])

    await store.database.run(claim, sessions=sessions)
    assert await store.forget_user("ann", vacuum=False) == deleted(
        messages=1, cursors=1_200
    )
    assert await is_empty(store)
