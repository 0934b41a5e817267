"""A damaged row costs itself only: the other rows are read, a warning names it, and it can be deleted."""

from __future__ import annotations

import json
import re

import pytest
from cryptography.fernet import Fernet

from llama_index_memory_ext import Fact, MemoryStore
from llama_index_memory_ext.store.encryption import Cipher
from llama_index_memory_ext.store.rows import SessionAccess
from llama_index_memory_ext.store.vectors import KeptVectors
from tests.conversation import assistant, calling, record, result, sent_text, user
from tests.databases import OpenStore, ask, stored_cursor
from tests.scripted_models import StartModel
from tests.store.test_encryption import CANARIES, learner, memory_on

KEY, OTHER_KEY = Fernet.generate_key().decode(), Fernet.generate_key().decode()
WORD = "canary"
OF_OTHER_KEY = json.dumps(Cipher(OTHER_KEY).encrypt({"role": WORD}))
# A row of a server is always JSON.
DAMAGES = {
    "of another key": OF_OTHER_KEY,
    "cut": '{"$encrypted": "AAAA"}',
    "no text": '{"$encrypted": [6]}',
    "a list": f'["{WORD}"]',
    "no JSON": f'{{"{WORD}',
}


@pytest.fixture(params=DAMAGES.values(), ids=list(DAMAGES))
def damage(request: pytest.FixtureRequest, uri: str) -> str:
    if "postgres" in uri and request.param == DAMAGES["no JSON"]:
        pytest.skip("no such row")
    return str(request.param)


async def damage_rows(
    uri: str, table: str, column: str, value: str, where: str
) -> None:
    kind = "JSON" if "postgres" in uri else "TEXT"
    await ask(
        uri,
        f"UPDATE llama_index_memory{table} SET {column} = CAST('{value}' AS {kind}) "  # noqa: S608 - our own
        f"WHERE {where}",
    )


async def texts_of(store: MemoryStore) -> list[str | None]:
    return [message.content for message in await store.get_messages("chat", None)]


async def rows_of(store: MemoryStore) -> list[int]:
    return [row.id for row in await store.readers.find("chat")]


async def test_a_damaged_message_is_named_and_can_be_deleted(
    uri: str, damage: str, open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The other messages are read, by every way to them; and the text of no message is in the log."""
    store = open_store(uri, encryption_key=KEY)
    memory = memory_on(store)
    for number in range(3):
        await memory.aput_messages([user(f"Word {number}."), assistant("Fine.")])
    row_id = (await rows_of(store))[2]
    await damage_rows(uri, "", "data", damage, f"id = {row_id}")
    rest = ["Word 0.", "Fine.", "Fine.", "Word 2.", "Fine."]
    assert await texts_of(store) == rest
    assert f"Row {row_id} of session 'chat'" in caplog.text
    assert [message.content for message in await memory.aget_all()] == rest
    exported = json.loads(await memory.aexport())
    assert len(exported) == 5
    shown = sent_text(await memory.aget(input="Which word?"))
    assert record(shown) == [
        ("user", "Word 0."),
        ("assistant", "Fine."),
        ("assistant", "Fine."),
        ("user", "Word 2."),
        ("assistant", "Fine."),
    ]
    assert WORD not in caplog.text
    deleted = await store.delete_message("chat", row_id)
    assert deleted is not None
    assert not deleted.content
    assert await store.delete_message("chat", row_id) is None
    caplog.clear()
    assert await texts_of(store) == rest
    assert caplog.text == ""


async def test_a_damaged_message_of_another_session_is_named_with_that_session(
    database_uri: str, open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(database_uri)
    for number in (1, 2):
        await store.log.append(
            "other",
            [user(f"Word {number}.")],
            None,
            access=SessionAccess("ann"),
            readers=["facts of ann"],
        )
    await damage_rows(database_uri, "", "data", "[]", "id = 1")
    rows = await store.readers.unread_elsewhere("chat", "facts of ann", "ann")
    assert [row.is_damaged for row in rows] == [True, False]
    assert "Row 1 of session 'other'" in caplog.text


@pytest.mark.parametrize("place", [3, 4], ids=["call", "result"])
async def test_a_damaged_message_of_the_turn_loses_no_answer(
    uri: str, open_store: OpenStore, caplog: pytest.LogCaptureFixture, place: int
) -> None:
    store = open_store(uri, encryption_key=KEY)
    memory = memory_on(store)
    await memory.aput_messages([user("Before."), assistant("Fine.")])
    await memory.aput_messages(
        [user("Look!"), calling(("1", "search", {"words": "x"})), result("1", "found")]
    )
    row_id = (await rows_of(store))[place]
    await damage_rows(uri, "", "data", OF_OTHER_KEY, f"id = {row_id}")
    prompt = await memory.aget()
    assert "Look!" in sent_text(prompt)
    # A provider refuses a call without its result, and a result without its call.
    assert [message.role for message in prompt] == ["user"]
    assert f"Row {row_id} of session 'chat'" in caplog.text
    await memory.aput(assistant("The answer."))
    await memory.aput(user("Thanks."))
    shown = sent_text(await memory.aget())
    assert ("assistant", "The answer.") in record(shown)
    assert ("assistant", "Fine.") in record(shown)
    texts = [text for text in await texts_of(store) if text not in ("found", None)]
    assert texts == ["Before.", "Fine.", "Look!", "The answer.", "Thanks."]


async def test_readers_go_on_behind_a_damaged_message(
    uri: str, open_store: OpenStore, start_model: StartModel
) -> None:
    llm, _ = start_model(learner)
    store = open_store(uri, encryption_key=KEY)
    memory = memory_on(store)
    likes = f"I like {CANARIES[20]}."
    for text in ("Hello.", likes, "Bye."):
        await memory.aput_messages([user(text), assistant("Noted.")])
    for row_id in (await rows_of(store))[::5]:
        await damage_rows(uri, "", "data", OF_OTHER_KEY, f"id = {row_id}")
    memory = memory_on(
        store,
        llm=llm,
        extract_facts=True,
        summarize=True,
        max_messages=3,
        keep_messages=2,
    )
    await memory.aput(user("Hello again."))
    assert likes in sent_text(await memory.aget(input="What do I like?"))
    await memory.aflush()
    await memory.condensed_block.finish()
    contents = [fact.content for fact in await memory.facts.alist()]
    assert contents == [f"Likes {CANARIES[20]}"]
    reader = memory.facts_block.reader_of("chat")
    assert await store.readers.sessions_of_reader(reader, pending=True) == []
    found = await memory.asearch(f"What is {CANARIES[20]}?")
    assert likes in str(found)


async def test_a_page_of_damaged_messages_hides_no_later_ones(
    uri: str, open_store: OpenStore
) -> None:
    store = open_store(uri, encryption_key=KEY)
    count = 101
    await store.set_messages("chat", [user(f"Word {i}.") for i in range(count)])
    last = (await rows_of(store))[-1]
    await damage_rows(uri, "", "data", OF_OTHER_KEY, f"id <> {last}")
    assert await texts_of(store) == ["Word 100."]
    assert await store.archive_oldest_messages("chat", 2) == []
    assert await store.count_messages("chat") == count - 2
    assert await store.delete_oldest_messages("chat", 1) == []
    assert await store.count_messages("chat") == count - 3
    await store.set_messages("chat", [user("New.")])
    assert await texts_of(store) == ["New."]
    assert await store.count_messages("chat", None) == 1


async def test_a_message_whose_row_is_damaged_can_be_put_again(
    uri: str, open_store: OpenStore
) -> None:
    store = open_store(uri, encryption_key=KEY)
    message = user("Hello.")
    message.additional_kwargs["message_id"] = "a"
    await store.add_message("chat", message)
    await damage_rows(uri, "", "data", OF_OTHER_KEY, "key = 'chat'")
    for _ in range(2):
        await store.add_message("chat", message)
    assert await texts_of(store) == ["Hello."]


async def test_a_damaged_fact_is_named_and_can_be_deleted(
    uri: str, damage: str, open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(uri, encryption_key=KEY)
    book = memory_on(store).facts
    damaged_fact = await book.aadd("Likes rain")
    await book.aadd("Likes tea")
    await damage_rows(uri, "_facts", "data", damage, f"id = '{damaged_fact.id}'")
    store = open_store(uri, encryption_key=KEY)
    memory = memory_on(store)
    assert [fact.content for fact in await memory.facts.alist()] == ["Likes tea"]
    assert f"Fact {damaged_fact.id!r} of 'ann'" in caplog.text
    assert WORD not in caplog.text
    await memory.aput(user("What do I like?"))
    assert "Likes tea" in sent_text(await memory.aget())
    await memory.facts.aadd("Likes snow")
    assert await store.facts.delete("ann", [damaged_fact.id]) == 1
    contents = {fact.content for fact in await memory.facts.alist()}
    assert contents == {"Likes tea", "Likes snow"}


async def test_a_stored_object_that_is_no_fact_is_left_out(
    uri: str, open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(uri)
    book = memory_on(store).facts
    fact = await book.aadd("Likes rain")
    await book.aadd("Likes tea")
    no_fact = f'{{"content": ["{WORD}"]}}'
    await damage_rows(uri, "_facts", "data", no_fact, f"id = '{fact.id}'")
    facts = await memory_on(open_store(uri)).facts.alist()
    assert [fact.content for fact in facts] == ["Likes tea"]
    assert f"Fact {fact.id!r} of 'ann'" in caplog.text
    assert WORD not in caplog.text


async def test_damaged_states_and_vectors_are_made_again(
    uri: str, damage: str, open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(uri, encryption_key=KEY)
    memory = memory_on(store)
    await memory.aput_messages([user("Hello."), assistant("Hi."), user("And?")])
    fact = await memory.facts.aadd("Likes tea")
    vectors = KeptVectors(store.database, "ann", "model")
    await vectors.write({fact.id: ("digest", b"vector")})
    page = await store.readers.unread("chat", "r")
    first, row_id, _ = await rows_of(store)
    assert await store.readers.move("chat", "r", page, row_id, {"summary": "x"})
    await damage_rows(uri, "_cursors", "state", damage, "reader = 'r'")
    await ask(
        uri,
        'UPDATE llama_index_memory_embeddings SET digest = \'{"$encrypted": "AAAA"}\'',
    )
    assert await stored_cursor(store, "chat", "r") == (row_id, None)
    assert "The state of 'r' in session 'chat'" in caplog.text
    assert await vectors.read([fact.id]) == {}
    await vectors.write({fact.id: ("digest", b"new")})
    assert await vectors.read([fact.id]) == {fact.id: ("digest", b"new")}
    await memory.abranch("copy")
    copied = (await store.readers.find("copy"))[1]
    assert await stored_cursor(store, "copy", "r") == (copied.id, None)
    await store.delete_message("chat", first)
    assert await stored_cursor(store, "chat", "r") == (0, None)


async def test_damaged_rows_can_be_forgotten_and_retained(
    uri: str, damage: str, open_store: OpenStore
) -> None:
    store = open_store(uri, encryption_key=KEY)
    for name in ("ann", "bob"):
        memory = memory_on(store, user_id=name, shared=True)
        await memory.aput_messages([user(f"I am {name}."), assistant("Hello.")])
        row_id = (await rows_of(store))[-2]
        for content in ("Likes tea", "Likes rain"):
            await memory.facts.aadd(
                Fact(content=content, session_id="chat", message_ids=(row_id,))
            )
    ids = await ask(
        uri, "SELECT id FROM llama_index_memory_facts ORDER BY namespace, change"
    )
    damaged = f"id IN ('{ids[0]}', '{ids[2]}')"
    await damage_rows(uri, "_facts", "data", damage, damaged)
    await damage_rows(uri, "", "data", damage, f"id = {(await rows_of(store))[0]}")
    assert (await store.aretain(messages=2))["messages"] == 2
    assert (await store.forget_user("ann"))["facts"] == 2
    assert await texts_of(store) == ["I am bob.", "Hello."]
    facts = await memory_on(store, user_id="bob", shared=True).facts.alist()
    assert [fact.content for fact in facts] == ["Likes rain"]
    assert (await store.forget_user("bob"))["facts"] == 2


async def test_a_damaged_copy_of_a_forgotten_fact_is_deleted(
    uri: str, open_store: OpenStore
) -> None:
    store = open_store(uri, encryption_key=KEY)
    ann = memory_on(store).facts
    fact = await ann.aadd("Likes tea")
    bob = memory_on(store, user_id="bob").facts
    await bob.aimport(await ann.aexport())
    rain = await bob.aadd("Likes rain")
    copy = f"namespace = 'bob' AND id = '{fact.id}'"
    await damage_rows(uri, "_facts", "data", OF_OTHER_KEY, copy)
    await store.forget_user("ann")
    assert await ask(uri, "SELECT id FROM llama_index_memory_facts") == [rain.id]


async def test_the_rows_beside_a_damaged_one_get_the_new_key(
    uri: str, damage: str, open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(uri, encryption_key=KEY)
    memory = memory_on(store)
    await memory.aput_messages([user("One."), assistant("Two."), user("Three.")])
    fact = await memory.facts.aadd("Likes rain")
    await memory.facts.aadd("Likes tea")
    row_id = (await rows_of(store))[1]
    await damage_rows(uri, "", "data", damage, f"id = {row_id}")
    await damage_rows(uri, "_facts", "data", damage, f"id = '{fact.id}'")
    new_key = Fernet.generate_key().decode()
    both = open_store(uri, encryption_key=[new_key, KEY])
    counts = await both.aencrypt()
    assert counts == {"encrypted": 2, "unreadable": 2, "vacuumed": True}
    assert re.search(rf"'key': 'chat', 'row_id': {row_id}\b", caplog.text)
    assert f"'id': '{fact.id}', 'namespace': 'ann'" in caplog.text
    assert WORD not in caplog.text
    new = open_store(uri, encryption_key=new_key)
    assert await texts_of(new) == ["One.", "Three."]
    facts = await memory_on(new).facts.alist()
    assert [fact.content for fact in facts] == ["Likes tea"]
