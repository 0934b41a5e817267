"""Facts that were imported into another database belong to the messages that state them there, or to none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import (
    CondensedMemory,
    Fact,
    MemoryStore,
    messages_from_json,
)
from llama_index_memory_ext.facts.book import FactBook
from tests.conversation import assistant, sent_text, user
from tests.learning.learning import contents
from tests.memory.test_owners import on, tell

NUTS = "I am allergic to nuts."


@pytest.fixture
async def new(any_database_uri: str | None) -> AsyncIterator[MemoryStore]:
    """Another database, in which other rows have the ids of the old ones."""
    async with AsyncExitStack() as stack:
        store = MemoryStore(any_database_uri or "sqlite+aiosqlite:///:memory:")
        stack.push_async_callback(store.aclose)
        await tell(on(store, "cem", "of cem", extract_facts=False), *["Hello."] * 4)
        yield store


@pytest.fixture
async def old() -> AsyncIterator[MemoryStore]:
    """A database in which Bob has said in the session "chat" what he is allergic to."""
    store = MemoryStore()
    bob = on(store, "bob", extract_facts=False)
    await tell(bob, "Hello.", NUTS, "I like tea.", answer="Noted.")
    row = (await store.readers.find("chat"))[2]
    await bob.facts.aadd(allergy(message_ids=(row.id,)))
    yield store
    await store.aclose()


def allergy(**fields: Any) -> Fact:
    return Fact(
        id="nuts",
        content="Is allergic to nuts",
        session_id="chat",
        quote="allergic to nuts",
        source=f"Noted.\n{NUTS}\nNoted.",
        **fields,
    )


async def exported(store: MemoryStore, **options: Any) -> tuple[str, str]:
    """The messages and the facts of Bob."""
    memory = on(store, "bob", extract_facts=False, **options)
    return await memory.aexport(), await memory.facts.aexport()


async def row_texts(memory: CondensedMemory) -> list[str]:
    """The texts of the rows that Bob's fact names."""
    (fact,) = await memory.facts.alist()
    rows = await memory.sql_store.readers.rows_by_id("chat", fact.message_ids)
    assert len(rows) == len(fact.message_ids)
    return [str(row.message.content) for row in rows]


@pytest.mark.parametrize("first", ["facts", "messages"])
async def test_a_fact_finds_its_message(
    old: MemoryStore, new: MemoryStore, first: str
) -> None:
    """Whichever comes first: the prompt leaves it out, and retention takes its words."""
    messages, facts = await exported(old)
    bob = on(new, "bob", extract_facts=False)
    if first == "facts":
        assert await bob.facts.aimport(facts) == 1
        assert await row_texts(bob) == []
    assert await bob.aimport(messages) == 6
    if first == "messages":
        assert await bob.facts.aimport(facts) == 1
    assert await row_texts(bob) == [NUTS]
    await bob.aput(user("Am I allergic?"))
    prompt = sent_text(await bob.aget())
    assert (NUTS in prompt, "<fact" in prompt) == (True, False)
    await new.aretain(messages=1, vacuum=False)
    (fact,) = await bob.facts.alist()
    assert (fact.quote, fact.source, fact.message_ids) == ("", "", ())


@pytest.mark.parametrize("first", ["facts", "messages"])
async def test_a_session_of_another_user_with_the_same_name_is_no_source(
    old: MemoryStore, new: MemoryStore, first: str
) -> None:
    """Even with the same words: deleting these leaves the fact as it is."""
    _, facts = await exported(old)
    bob = on(new, "bob", "other", extract_facts=False)
    if first == "facts":
        await bob.facts.aimport(facts)
    ann = on(new, "ann", extract_facts=False)
    await ann.aimport(json.dumps([{"role": "user", "content": NUTS}] * 4))
    if first == "messages":
        await bob.facts.aimport(facts)
    assert await row_texts(bob) == []
    await ann.aflush()
    await new.aretain(messages=1, vacuum=False)
    await new.forget_user("ann", vacuum=False)
    (fact,) = await bob.facts.alist()
    assert fact.quote == "allergic to nuts"


async def test_of_a_part_of_a_session_only_its_messages_count(
    old: MemoryStore, new: MemoryStore
) -> None:
    messages, facts = await exported(old)
    bob = on(new, "bob", extract_facts=False)
    await bob.aimport(json.loads(messages)[4:])
    await bob.facts.aimport(facts)
    assert await row_texts(bob) == []
    await bob.aput(user("Am I allergic?"))
    assert "Is allergic to nuts" in sent_text(await bob.aget())


async def test_a_second_import_and_the_same_database_change_nothing(
    old: MemoryStore,
) -> None:
    messages, facts = await exported(old)
    bob = on(old, "bob", extract_facts=False)
    (before,) = await bob.facts.alist()
    for _ in range(2):
        await bob.facts.aimport(facts)
        assert await bob.facts.alist() == [before]
    await bob.aimport(messages)
    assert await row_texts(bob) == [NUTS]


async def test_a_fact_follows_its_message_into_a_renamed_session(
    old: MemoryStore,
) -> None:
    """The session is branched and forgotten; retention takes the words of the fact from the new session."""
    bob = on(old, "bob", extract_facts=False)
    renamed = await bob.abranch("renamed")
    facts = (await bob.facts.aexport()).replace('"chat"', '"renamed"')
    await renamed.facts.aimport(facts)
    await old.forget("chat")
    await tell(renamed, "And now?")
    await old.aretain(messages=1, vacuum=False)
    (fact,) = await renamed.facts.alist()
    assert (fact.quote, fact.source, fact.message_ids) == ("", "", ())


async def test_a_short_quote_is_found_in_its_line_alone(new: MemoryStore) -> None:
    """A quote may stand in many messages; the text around it tells which is meant."""
    bob = on(new, "bob", extract_facts=False)
    await tell(bob, "Yesterday it rained.", "Yes, nuts.", "Yes.")
    fact = allergy().model_copy(
        update={"quote": "Yes", "source": "Allergic?\nYes, nuts.\nNoted."}
    )
    await bob.facts.aimport(fact.model_dump_json())
    assert await row_texts(bob) == ["Yes, nuts."]
    whole = fact.model_copy(update={"quote": "Yes, nuts.", "source": ""})
    await bob.facts.aimport(whole.model_dump_json())
    assert await row_texts(bob) == ["Yes, nuts."]


async def share(store: MemoryStore) -> None:
    """Ann and Bob say the same in one session, and a team has Bob's fact."""
    for name in ("ann", "bob"):
        memory = on(store, name, shared=True, extract_facts=False)
        await memory.aput_messages([user(f"I am {name}."), assistant("Hello.")])
        await memory.aput_messages([user(NUTS), assistant("Noted.")])
    row = (await store.readers.find("chat"))[6]
    await FactBook(store, "bob").aadd(allergy(message_ids=(row.id,)))


async def exported_by_both() -> tuple[str, str]:
    """The messages of a session that Ann and Bob share, and the facts of Bob."""
    source = MemoryStore()
    await share(source)
    both = await exported(source, shared=True)
    await source.aclose()
    return both


async def test_words_of_a_shared_session_stay_those_of_their_speakers(
    new: MemoryStore,
) -> None:
    """By JSON, by messages and by an import; each user's facts come from the user's messages alone."""
    messages, facts = await exported_by_both()
    bob = on(new, "bob", shared=True, extract_facts=False)
    await on(new, "ann", shared=True, extract_facts=False).aimport(messages)
    await bob.facts.aimport(facts)
    rows = await new.readers.find("chat")
    assert [row.user_id for row in rows if row.role == "user"] == [
        "ann",
        "ann",
        "bob",
        "bob",
    ]
    (fact,) = await bob.facts.alist()
    assert fact.message_ids == (rows[6].id,)
    assert await bob.aexport() == messages
    # The same messages again are the same, and keep their rows.
    await bob.aset(await bob.aget_all())
    assert [row.id for row in await new.readers.find("chat")] == [
        row.id for row in rows
    ]
    await new.forget_user("ann", vacuum=False)
    assert await contents(bob) == ["Is allergic to nuts"]
    await new.forget_user("bob", vacuum=False)
    assert await new.sessions("bob") == []


@pytest.mark.parametrize("first", ["facts", "messages"])
async def test_a_fact_has_the_speaker_of_its_message(
    new: MemoryStore, first: str
) -> None:
    messages, facts = await exported_by_both()
    bob = on(new, "bob", shared=True, extract_facts=False)
    if first == "facts":
        await bob.facts.aimport(facts)
    await bob.aimport(messages)
    if first == "messages":
        await bob.facts.aimport(facts)
    speakers = await new.database.run(
        lambda tx: tx.scalars("SELECT said_by FROM {facts}"), writes=False
    )
    assert speakers == ["bob"]


async def test_the_words_of_an_answer_are_no_source(new: MemoryStore) -> None:
    bob = on(new, "bob", extract_facts=False)
    await tell(bob, "Hello.", answer=NUTS)
    await bob.facts.aimport(allergy().model_dump_json())
    assert await row_texts(bob) == []


async def test_a_shared_session_takes_its_own_export_as_known(
    new: MemoryStore,
) -> None:
    """The export names the speakers, and the messages were put without."""
    ann = on(new, "ann", shared=True, extract_facts=False)
    bob = on(new, "bob", shared=True, extract_facts=False)
    for number, memory in enumerate((ann, bob, ann)):
        about = {"message_id": str(number)}
        await memory.aput(ChatMessage("I like tea.", additional_kwargs=about))
    rows = await new.readers.find("chat")
    exported_messages = await ann.aexport()
    assert await ann.aimport(exported_messages) == 0
    await bob.aset(messages_from_json(exported_messages))
    assert await new.readers.find("chat") == rows


async def test_a_fact_of_a_team_goes_with_its_speaker(new: MemoryStore) -> None:
    """Also if another user has repeated the words, and an import finds them there."""
    messages, facts = await exported_by_both()
    ann = on(new, "ann", shared=True, extract_facts=False)
    await ann.aimport(messages)
    alone = facts.replace(NUTS, "I am bob.").replace("allergic to nuts", "am bob")
    team = FactBook(new, "team")
    await team.aimport(alone)
    (fact,) = await team.alist()
    await new.delete_message("chat", fact.message_ids[0])
    await tell(ann, "I am bob.")
    await team.aimport(alone)
    await new.forget_user("ann", vacuum=False)
    assert len(await team.alist()) == 1
    await new.forget_user("bob", vacuum=False)
    assert await team.alist() == []
