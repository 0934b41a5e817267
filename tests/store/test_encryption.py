"""With a key, texts and vectors are stored encrypted; a wrong key changes nothing, and keys can be changed."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import sqlite3
import sys
import threading
from contextlib import aclosing, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from llama_index_memory_ext import (
    CondensedMemory,
    EncryptionError,
    Fact,
    MemoryStore,
    SettingError,
)
from llama_index_memory_ext.store.message_rows import insert_messages
from llama_index_memory_ext.store.rows import ReadPosition
from llama_index_memory_ext.store.vectors import KeptVectors
from tests.conversation import assistant, calling, result, sent_text, user
from tests.databases import OpenStore, ask
from tests.forked import run_forked
from tests.openai_server import Message, call, say
from tests.scripted_models import StartModel
from tests.search.test_embeddings import Meanings
from tests.store.conftest import TABLES

KEY, OTHER_KEY = Fernet.generate_key().decode(), Fernet.generate_key().decode()
CANARIES = [f"canary{number}bird" for number in range(30)]


def memory_on(
    store: MemoryStore, session_id: str = "chat", **options: Any
) -> CondensedMemory:
    options = {"extract_facts": False, "user_id": "ann", **options}
    return CondensedMemory.from_defaults(session_id, chat_store=store, **options)


async def stored(uri: str) -> str:
    """All rows of a server; all bytes of a file and of its journal."""
    if "postgres" in uri:
        rows: list[str] = []
        for table in TABLES:
            rows += await ask(uri, f"SELECT CAST(t AS TEXT) FROM {table} AS t")  # noqa: S608 - our own
        return "\n".join(rows)
    path = uri.partition("///")[2]
    files = [Path(f"{path}{ending}") for ending in ("", "-wal")]
    contents = [file.read_bytes() for file in files if file.exists()]
    return b"".join(contents).decode("latin-1")


async def table_rows(uri: str) -> list[Any]:
    """All rows of all tables."""
    rows: list[Any] = []
    engine = create_async_engine(uri)
    async with engine.connect() as connection:
        for table in sorted(TABLES):
            select = f"SELECT * FROM {table}"  # noqa: S608 - our own
            rows += sorted(map(str, await connection.execute(text(select))))
    await engine.dispose()
    return rows


async def until_a_statement_waits(uri: str) -> None:
    """Wait until a statement of the server waits for the lock of another one."""
    waiting = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    for _ in range(3_000):
        if await ask(uri, waiting) != [0]:
            return
    raise AssertionError("no statement waits")


def canaries_in(everything: str) -> list[str]:
    return [canary for canary in CANARIES if canary in everything]


def learner(messages: list[Message], tools: list[str]) -> Message:
    """Learns one fact, and summarises."""
    if "running summary" in str(messages[0]["content"]):
        return say(f"The user told of {CANARIES[8]} and {CANARIES[20]}.")
    fact = {
        "label": "n1",
        "content": f"Likes {CANARIES[20]}",
        "quote": f"I like {CANARIES[20]}",
        "confidence": 0.95,
    }
    return call(
        ("1", "report_facts", {"new_facts": [fact], "confirmed": [], "retired": []})
    )


async def fill(store: MemoryStore, llm: Any) -> CondensedMemory:
    """A conversation with tools, metadata, a summary, vectors and facts, which hold all canaries."""
    memory = memory_on(
        store,
        llm=llm,
        extract_facts=True,
        summarize=True,
        embed_model=Meanings(),
        recall_token_limit=500,
        max_messages=3,
        keep_messages=2,
    )
    for number in range(8):
        await memory.aput_messages(
            [user(f"About {CANARIES[number]}"), assistant(CANARIES[number + 8])]
        )
    question = user(f"Look for {CANARIES[16]}")
    question.additional_kwargs = {"place": CANARIES[17], "name": CANARIES[18]}
    await memory.aput_messages(
        [
            question,
            calling(("1", "search", {"words": CANARIES[19]})),
            result("1", CANARIES[21]),
            assistant(CANARIES[22]),
        ]
    )
    await memory.aput_messages([user(f"I like {CANARIES[20]}."), assistant("Noted.")])
    await memory.aflush()
    await memory.facts.aadd(
        Fact(
            content=CANARIES[23],
            quote=CANARIES[25],
            source=CANARIES[26],
            tags=(CANARIES[27], CANARIES[24]),
        )
    )
    await memory.facts.aadd(CANARIES[28])
    ids = [
        fact.id for fact in await memory.facts.alist() if fact.content == CANARIES[28]
    ]
    await memory.facts.aretire(ids[0], CANARIES[29])
    await memory.aput(user(f"What of {CANARIES[1]}?"))
    await memory.aget()
    await memory.facts_block.finish()
    await memory.condensed_block.finish()
    return memory


async def test_no_text_is_in_the_database(
    uri: str, open_store: OpenStore, start_model: StartModel
) -> None:
    """Messages, arguments of tools, metadata, facts, tags, quotes, reasons, summaries, and texts of vectors."""
    llm, _ = start_model(learner)
    store = open_store(uri, encryption_key=KEY)
    memory = await fill(store, llm)
    assert CANARIES[8] in await memory.condensed_block.asummary("chat")
    messages = str(await store.get_messages("chat", None))
    facts = str(await memory.facts.alist(state="all"))
    assert canaries_in(messages + facts) == CANARIES
    assert CANARIES[25] in await memory.facts.aexport()
    assert canaries_in(await stored(uri)) == []
    await store.aclose()
    assert canaries_in(await stored(uri)) == []
    vectors = await ask(uri, "SELECT digest FROM llama_index_memory_embeddings")
    assert len(vectors) > 10
    assert all(digest.startswith('{"$encrypted":') for digest in vectors)
    vectors = await ask(uri, "SELECT vector FROM llama_index_memory_embeddings")
    assert all(vector.startswith(b'{"$encrypted":') for vector in vectors)


WRONG = {
    "no key": {},
    "another key": {"encryption_key": OTHER_KEY},
    "another function": {
        "encrypt": lambda text: text,
        "decrypt": lambda token: token.upper(),
    },
    "a function that answers any JSON": {
        "encrypt": lambda text: text,
        "decrypt": lambda token: '"x"',
    },
}


@pytest.mark.parametrize("options", WRONG.values(), ids=WRONG)
async def test_a_wrong_or_missing_key_is_an_error_before_anything_changes(
    uri: str, open_store: OpenStore, options: dict[str, Any]
) -> None:
    """Nor does the error name a key or a text."""
    store = open_store(uri, encryption_key=KEY)
    memory = memory_on(store)
    await memory.aput_messages([user("My secret."), assistant("Fine.")])
    fact = await memory.facts.aadd("Has a secret")
    await store.aclose()
    before = await ask(uri, "SELECT position FROM llama_index_memory_cursors")
    wrong = open_store(uri, **options)
    memory = memory_on(wrong, extract_facts=True)
    for call_ in (
        memory.aput(user("More.")),
        memory.aget(),
        memory.aset([user("Other.")]),
        memory.facts.alist(),
        memory.facts.aforget(fact.id),
        memory.aflush(),
        wrong.add_message("new", user("More.")),
        wrong.forget("chat"),
        wrong.aencrypt(),
    ):
        with pytest.raises(EncryptionError) as raised:
            await call_
        shown = f"{raised.value!r} {raised.value.__context__} {raised.value.__cause__}"
        assert not any(part in shown for part in (KEY, OTHER_KEY, "secret"))
    await wrong.aclose()
    store = open_store(uri, encryption_key=KEY)
    messages = await store.get_messages("chat", None)
    assert [message.content for message in messages] == ["My secret.", "Fine."]
    assert await ask(uri, "SELECT position FROM llama_index_memory_cursors") == before


SHORT_KEY = base64.urlsafe_b64encode(bytes(16)).decode()
BAD_KEYS: list[Any] = ["short", b"x" * 44, "", [], [KEY, SHORT_KEY], 7, [None]]


@pytest.mark.parametrize("key", BAD_KEYS, ids=range(len(BAD_KEYS)))
def test_a_malformed_key_is_refused_at_construction_and_not_named(key: Any) -> None:
    for make in (MemoryStore, partial(CondensedMemory.from_defaults, "chat")):
        with pytest.raises(EncryptionError, match="32 bytes in base64") as raised:
            make(encryption_key=key)
        shown = str(raised.value)
        assert not any(part in shown for part in ("short", KEY, SHORT_KEY))
        assert type(key).__name__ in shown
        assert raised.value.__context__ is None


@pytest.mark.parametrize(
    "options",
    [
        {"encrypt": str},
        {"decrypt": str},
        {"encrypt": str, "decrypt": str, "encryption_key": KEY},
    ],
)
def test_a_key_and_functions_exclude_each_other(options: Any) -> None:
    with pytest.raises(SettingError, match="encrypt and decrypt together"):
        MemoryStore(**options)


def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, "cryptography.fernet", raising=False)
    with pytest.raises(SettingError, match=r'pip install ".*\[encryption\]"'):
        MemoryStore(encryption_key=KEY)


async def test_functions_of_the_program_encrypt_and_decrypt(
    uri: str, open_store: OpenStore
) -> None:
    def encrypt(text: str) -> str:
        return base64.b85encode(text[::-1].encode()).decode()

    def decrypt(token: str) -> str:
        return base64.b85decode(token).decode()[::-1]

    store = open_store(uri, encrypt=encrypt, decrypt=decrypt)
    await memory_on(store).aput_messages([user(CANARIES[0]), assistant("Fine.")])
    await store.aclose()
    assert canaries_in(await stored(uri)) == []
    again = open_store(uri, encrypt=encrypt, decrypt=decrypt)
    assert (await again.get_messages("chat", None))[0].content == CANARIES[0]


async def test_a_function_that_fails_stores_nothing_and_shows_no_text(
    open_store: OpenStore,
) -> None:
    def encrypt(value: str) -> str:
        if "secret" in value:
            raise RuntimeError(value)
        return value

    def answer_bytes(value: str) -> Any:
        return value.encode()

    store = open_store(None, encrypt=encrypt, decrypt=str)
    with pytest.raises(EncryptionError, match="RuntimeError") as raised:
        await store.add_message("chat", user("my secret"))
    assert "secret" not in f"{raised.value} {raised.value.__context__}"
    assert await store.get_messages("chat", None) == []
    with pytest.raises(EncryptionError, match="TypeError"):
        await open_store(None, encrypt=answer_bytes, decrypt=str).get_keys()


# ---- plain rows, older keys and versions ----


async def test_plain_rows_are_read_and_taken_over(
    uri: str, open_store: OpenStore, start_model: StartModel
) -> None:
    llm, _ = start_model(learner)
    store = open_store(uri)
    memory = await fill(store, llm)
    prompt = sent_text(await memory.aget())
    await store.aclose()
    assert set(canaries_in(await stored(uri))) >= {*CANARIES[:16], CANARIES[25]}
    store = open_store(uri, encryption_key=KEY)
    memory = memory_on(
        store,
        recall_token_limit=500,
        max_messages=3,
        keep_messages=2,
        embed_model=Meanings(),
    )
    assert await store.get_messages("chat", None)
    assert CANARIES[23] in str(await memory.facts.alist())
    counts = await store.aencrypt()
    assert counts == {"encrypted": 2, "unreadable": 0, "vacuumed": True}
    assert canaries_in(await stored(uri)) == []
    assert sent_text(await memory.aget()) == prompt
    await store.aclose()
    assert canaries_in(await stored(uri)) == []
    with pytest.raises(EncryptionError, match="has no key"):
        await open_store(uri).get_keys()


async def test_keys_rotate(uri: str, open_store: OpenStore) -> None:
    """With the old key behind the new one all is read, and after the rotation the new one is enough."""
    store = open_store(uri, encryption_key=KEY)
    memory = memory_on(store, embed_model=Meanings())
    await memory.aput_messages([user("Old words."), assistant("Fine.")])
    await memory.facts.aadd("Likes tea")
    await memory.aget()
    await store.aclose()
    with pytest.raises(EncryptionError):
        await open_store(uri, encryption_key=OTHER_KEY).get_keys()
    both = open_store(uri, encryption_key=[OTHER_KEY, KEY])
    await memory_on(both).aput_messages([user("New words."), assistant("Fine.")])
    counts = await both.aencrypt(vacuum=False)
    assert counts == {"encrypted": 2, "unreadable": 0, "vacuumed": False}
    await both.aclose()
    with pytest.raises(EncryptionError):
        await open_store(uri, encryption_key=KEY).get_keys()
    new = open_store(uri, encryption_key=OTHER_KEY)
    texts = [message.content for message in await new.get_messages("chat", None)]
    assert texts == ["Old words.", "Fine.", "New words.", "Fine."]
    contents = [fact.content for fact in await memory_on(new).facts.alist()]
    assert contents == ["Likes tea"]


ENCRYPT = """
import asyncio, sys
from llama_index_memory_ext import MemoryStore

async def main(uri, *keys):
    store = MemoryStore(uri, encryption_key=list(keys))
    await store.aencrypt(vacuum=False)
    await store.aclose()

asyncio.run(main(*sys.argv[1:]))
"""


def write_calls(store: MemoryStore, row_id: int, fact_id: str) -> list[Any]:
    """Calls that write, also to a session and to a user's facts that are new."""
    memory = memory_on(store)
    stranger = memory_on(store, "new", user_id="bob")
    vectors = KeptVectors(store.database, "ann", "model")
    return [
        memory.aput(user("More.")),
        memory.aset([user("Other.")]),
        memory.facts.aadd("Likes tea"),
        memory.facts.aforget(fact_id),
        stranger.aput(user("Hello.")),
        stranger.facts.aadd("Likes rain"),
        stranger.facts.aimport('{"content": "Likes snow"}'),
        vectors.write({fact_id: ("digest", b"vector")}),
        store.add_message("new", user("More.")),
        store.set_messages("new", [user("More.")]),
        store.archive_oldest_messages("chat", 1),
        store.delete_message("chat", row_id),
        store.delete_messages("chat"),
        store.forget("chat"),
        store.forget_user("ann"),
        store.aretain(messages=1),
        store.aencrypt(),
    ]


@pytest.mark.parametrize("keys", [[], [KEY]], ids=["no key", "the old key"])
async def test_an_open_store_notices_that_another_process_has_changed_the_key(
    uri: str, open_store: OpenStore, keys: list[str]
) -> None:
    """Nothing is written then: no plain text, and nothing with the old key."""
    store = open_store(uri, encryption_key=keys or None)
    memory = memory_on(store)
    await memory.aput_messages([user("Hello."), assistant("Hi."), user("And?")])
    fact = await memory.facts.aadd("Likes coffee")
    row_id = (await store.readers.find("chat"))[0].id
    done = await asyncio.to_thread(run_forked, ENCRYPT, uri, OTHER_KEY, *keys)
    assert (done.returncode, done.stderr) == (0, "")
    before = await table_rows(uri)
    for call_ in write_calls(store, row_id, fact.id):
        with pytest.raises(EncryptionError):
            await call_
    with pytest.raises(EncryptionError):
        await store.get_messages("chat", None)
    with pytest.raises(EncryptionError):
        await memory.facts.alist()
    assert not await store.readers.move("new", "reader", ReadPosition(), 0)
    assert await table_rows(uri) == before


async def test_a_write_that_has_begun_ends_before_the_database_is_encrypted(
    postgres_uri: str, open_store: OpenStore
) -> None:
    """Otherwise its plain rows would come after the rows were encrypted."""
    plain = open_store(postgres_uri)
    await plain.get_keys()
    has_begun = asyncio.Event()
    may_end = threading.Event()
    loop = asyncio.get_running_loop()

    def write(tx: Any) -> None:
        loop.call_soon_threadsafe(has_begun.set)
        may_end.wait(20)
        insert_messages(tx, "chat", [user(CANARIES[0])], archived=0, replaced=())

    writing = asyncio.create_task(plain.database.run(write, sessions=["chat"]))
    await has_begun.wait()
    encrypting = asyncio.create_task(
        open_store(postgres_uri, encryption_key=KEY).aencrypt()
    )
    try:
        await until_a_statement_waits(postgres_uri)
    finally:
        may_end.set()
    await writing
    assert (await encrypting)["encrypted"] == 1
    assert canaries_in(await stored(postgres_uri)) == []


async def test_rows_that_change_while_a_session_is_encrypted_keep_the_change(
    postgres_uri: str, open_store: OpenStore
) -> None:
    store = open_store(postgres_uri, encryption_key=KEY)
    await store.add_message("chat", user("Old words."))
    data = json.dumps(user("New words.").model_dump(mode="json"))
    engine = create_async_engine(postgres_uri)
    async with engine.begin() as connection:
        # As a writer does: first the lock of the session, and then its rows.
        for statement in (
            "UPDATE llama_index_memory_sessions SET epoch = epoch WHERE key = 'chat'",
            "UPDATE llama_index_memory SET data = CAST(:data AS JSON)",
        ):
            await connection.execute(text(statement), {"data": data})
        encrypting = asyncio.create_task(store.aencrypt(vacuum=False))
        await until_a_statement_waits(postgres_uri)
    await engine.dispose()
    assert (await encrypting)["encrypted"] == 1
    texts = [message.content for message in await store.get_messages("chat", None)]
    assert texts == ["New words."]


async def test_no_two_equal_texts_are_stored_alike(
    uri: str, open_store: OpenStore
) -> None:
    """AES-GCM with a repeated nonce gives texts, and its key, away."""
    store = open_store(uri, encryption_key=KEY)
    await store.set_messages("chat", [user("Hello.")] * 30)
    rows = await ask(uri, "SELECT CAST(data AS TEXT) FROM llama_index_memory")
    nonces = {base64.b64decode(json.loads(row)["$encrypted"])[:12] for row in rows}
    assert len(nonces) == 30


async def test_the_result_says_whether_the_file_was_vacuumed(
    database_uri: str, open_store: OpenStore
) -> None:
    """A program that reads keeps the plain words in the write-ahead log."""
    plain = open_store(database_uri)
    await plain.set_messages("chat", [user(canary) for canary in CANARIES])
    await plain.aclose()
    store = open_store(database_uri, encryption_key=KEY, operation_timeout=3)
    with closing(sqlite3.connect(database_uri.partition("///")[2])) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT id FROM llama_index_memory").fetchall()
        counts = await store.aencrypt()
        assert counts == {"encrypted": 1, "unreadable": 0, "vacuumed": False}
    counts = await store.aencrypt()
    assert counts == {"encrypted": 1, "unreadable": 0, "vacuumed": True}
    assert canaries_in(await stored(database_uri)) == []


async def test_an_error_within_a_call_keeps_no_file_from_being_vacuumed(
    database_uri: str, open_store: OpenStore
) -> None:
    """SQLite vacuums no file that a statement is still reading."""
    plain = open_store(database_uri)
    await plain.set_messages("chat", [user(canary) for canary in CANARIES])
    await plain.aclose()
    store = open_store(database_uri, encryption_key=KEY, pool_size=1)

    def fail(tx: Any) -> None:
        for _ in tx.execute("SELECT id, data FROM {rows}"):
            raise LookupError

    for writes in (False, True):
        # The error holds the frames, and so the result of the query.
        with pytest.raises(LookupError) as raised:
            await store.database.run(fail, writes=writes)
        counts = await store.aencrypt()
        assert counts == {"encrypted": 1, "unreadable": 0, "vacuumed": True}
        assert canaries_in(await stored(database_uri)) == []
        del raised


async def test_a_store_without_a_key_encrypts_nothing(open_store: OpenStore) -> None:
    with pytest.raises(EncryptionError, match="aencrypt needs a key"):
        await open_store(None).aencrypt()


# ---- other stores on the same database ----


async def test_a_temporary_memory_reads_with_the_key(
    open_store: OpenStore, database_uri: str
) -> None:
    store = open_store(database_uri, encryption_key=KEY)
    await memory_on(store).facts.aadd("Likes tea")
    memory = CondensedMemory.from_defaults(
        "other",
        user_id="ann",
        async_database_uri=database_uri,
        encryption_key=KEY,
        temporary=True,
    )
    assert [fact.content for fact in await memory.facts.alist()] == ["Likes tea"]
    await memory.aclose()


async def test_a_pickle_and_a_dump_hold_no_key(
    open_store: OpenStore, database_uri: str
) -> None:
    store = open_store(database_uri, encryption_key=KEY)
    await store.add_message("chat", user("Hello."))
    copied = pickle.dumps(store)
    for shown in (copied.decode("latin-1"), str(store.model_dump()), repr(store)):
        assert KEY not in shown
    async with aclosing(pickle.loads(copied)) as copy:
        with pytest.raises(EncryptionError, match="has no key"):
            await copy.get_keys()


async def test_a_lent_engine_is_encrypted_too(uri: str, open_store: OpenStore) -> None:
    """Also beside a store without a key on another table, with the same statements."""
    engine = create_async_engine(uri)
    store = open_store(async_engine=engine, encryption_key=KEY)
    other_key = open_store(
        async_engine=engine, encryption_key=OTHER_KEY, table_name="other"
    )
    for one in (store, other_key):
        await memory_on(one).aput_messages([user("Mine."), assistant("Fine.")])
        assert (await one.get_messages("chat", None))[0].content == "Mine."
    assert (await store.get_messages("chat", None))[0].content == "Mine."


async def test_a_background_job_does_not_pass_rows_that_it_cannot_read(
    uri: str, open_store: OpenStore, start_model: StartModel
) -> None:
    """Another program changes the key meanwhile, which this one does not have."""
    llm, server = start_model(learner)
    store = open_store(uri, encryption_key=KEY)
    memory = memory_on(store, llm=llm, extract_facts=True, extract_every_turns=9)
    await memory.aput_messages([user(f"I like {CANARIES[20]}."), assistant("Noted.")])
    reader = memory.facts_block.reader_of("chat")
    both = open_store(uri, encryption_key=[OTHER_KEY, KEY])
    await both.aencrypt(vacuum=False)
    with pytest.raises(EncryptionError):
        await memory.aflush()
    assert (await both.readers.cursor("chat", reader)).position == 0
    assert server.bodies == []
    memory = memory_on(both, llm=llm, extract_facts=True)
    await memory.aflush()
    contents = [fact.content for fact in await memory.facts.alist()]
    assert contents == [f"Likes {CANARIES[20]}"]
    assert (await both.readers.cursor("chat", reader)).position > 0
