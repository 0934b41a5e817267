"""A person is deleted: no word of theirs is left, whoever has learned from it, and whatever was done before."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock

from llama_index_memory_ext import (
    CondensedMemory,
    Fact,
    MemoryStore,
    OfflineModel,
    RelevantFactsBlock,
)
from llama_index_memory_ext.agent_view import ALL_FACTS
from llama_index_memory_ext.fact import ONLY_ENDS
from llama_index_memory_ext.facts.book import FactBook
from llama_index_memory_ext.store.schema import TABLES
from llama_index_memory_ext.store.transaction import Transaction
from tests.conversation import assistant, user
from tests.databases import OpenStore
from tests.learning.learning import as_report, fact_of
from tests.memories import OpenMemory
from tests.memory.test_forgetting import words_in

USERS, TEAMS = ("ann", "bob", "cem"), ("team", "board")
DEEDS = (
    "say",
    "say",
    "say",
    "say",
    "flush",
    "set",
    "reset",
    "retain",
    "delete",
    "branch",
    "copy",
    "end",
)
_LINE = re.compile(r"^(?:\d+\. )?[a-z ]+: (.*)$", re.MULTILINE)


class Gossip(OfflineModel):
    """Reports each line as a fact, whoever has said it, and says of a known fact that the newest line has ended it."""

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        transcript = (messages[-1].content or "").rpartition("<transcript>")[2]
        lines = [line for line in _LINE.findall(transcript) if "I live in" in line]
        facts = [
            fact_of(f"Lives in {line.split()[-1][:-1]}", line) | {"label": f"n{i}"}
            for i, line in enumerate(lines, 1)
        ]
        ended = [
            {"number": 1, "quote": line, "replaced_by": f"n{i}"}
            for i, line in enumerate(lines, 1)
        ]
        arguments = as_report({"new_facts": facts, "retired": ended[-1:]})
        call = ToolCallBlock(
            tool_call_id="call_1", tool_name="report_facts", tool_kwargs=arguments
        )
        return ChatResponse(message=ChatMessage(role="assistant", blocks=[call]))

    async def achat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponse:
        return self.chat(messages, **kwargs)


def on(
    store: MemoryStore, user_id: str | None, session_id: str = "chat", **options: Any
) -> CondensedMemory:
    """A memory in a session of several users, with a block for each team."""
    llm = Gossip()
    teams = [
        RelevantFactsBlock(name=f"{one}_facts", user_id=one, store=store, llm=llm)
        for one in TEAMS
    ]
    options = {
        "shared": user_id is not None,
        "memory_blocks": teams,
        "llm": llm,
        **options,
    }
    return CondensedMemory.from_defaults(
        session_id, user_id=user_id, chat_store=store, **options
    )


async def tell(memory: CondensedMemory, *texts: str, answer: str = "Noted.") -> None:
    for text in texts:
        await memory.aput_messages([user(text), assistant(answer)])
    await memory.aflush()


async def stored(store: MemoryStore) -> str:
    """All rows of all tables, as one text."""

    def read(transaction: Transaction) -> str:
        # A row that is printed as it is would be cut.
        found = [
            [*map(tuple, transaction.execute(f"SELECT * FROM {{{table}}}"))]  # noqa: S608
            for table in TABLES
        ]
        return str(found)

    return await store.database.run(read, writes=False)


def without_origin(fact: Fact) -> Fact:
    """Return a copy of a fact that names neither its session nor its messages."""
    return fact.model_copy(update={"session_id": None, "message_ids": ()})


async def contents(store: MemoryStore, namespace: str) -> list[str]:
    return sorted(
        fact.content for fact in await FactBook(store, namespace).alist(state="all")
    )


async def step(store: MemoryStore, random: Random, number: int) -> None:
    """Let something happen in one of the sessions."""
    who, session = random.choice(USERS), random.choice(("chat", "channel"))
    memory = on(store, who, session, review=random.random() < 0.2)
    deed = random.choice(DEEDS)
    if deed == "say":
        question = user(f"In step {number}, I live in {word_of(who)}{number}.")
        question.additional_kwargs["message_id"] = f"{word_of(who)}-{number}"
        said = [question]
        await memory.aput_messages(said + [assistant("Noted.")] * random.randrange(2))
    elif deed == "flush":
        await memory.aflush()
    elif deed == "set":
        messages = await memory.aget_all()
        await memory.aset(messages[random.randrange(3) :])
    elif deed == "reset":
        await memory.areset()
    elif deed == "retain":
        await store.aretain(messages=3, unread=True, vacuum=False)
    elif deed == "delete":
        row_id = random.randrange(1, 20)
        await store.delete_message(session, row_id)
    elif deed == "branch":
        copy = await memory.abranch(f"{session}-{number}")
        await copy.aflush()
    elif deed == "copy":
        book = FactBook(store, random.choice(TEAMS))
        await FactBook(store, f"archive-{number}").aimport(await book.aexport())
        facts = [without_origin(fact) for fact in await book.alist(state="all")]
        await store.facts.write(f"other-archive-{number}", facts)
    elif random.random() < 0.3:
        await store.forget(session)


# ---- what a team has learned -----------------------------------------------------------------------------------


async def test_a_team_forgets_a_person_and_keeps_the_others(store: MemoryStore) -> None:
    """With quote and source, by each of the calls."""
    ann, bob = on(store, "ann"), on(store, "bob")
    await tell(bob, "I live in Bobville1.")
    await tell(ann, "I live in Annville1.")
    await tell(bob, "I live in Bobville2.")
    both = ["Lives in Annville1", "Lives in Bobville1", "Lives in Bobville2"]
    assert await contents(store, "team") == await contents(store, "board") == both
    await ann.aforget(vacuum=False)
    assert await contents(store, "team") == await contents(store, "board") == both[1:]
    text = await stored(store)
    assert "Annville" not in text
    assert text.count("I live in Bobville2") > 1
    assert (await store.facts.read("team", view=ALL_FACTS)).epoch


async def test_deleted_turns_rank_no_facts_in_another_process(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory()
    other = open_memory()
    await memory.aput_messages(
        [user("I live in Cusco."), assistant("Noted."), user("Is it warm there?")]
    )
    await memory.aget()
    (turn,) = memory.facts_block.last_question.context
    assert "Cusco" in turn
    rows = await other.sql_store.readers.find("chat")
    await other.sql_store.delete_message("chat", rows[0].id)
    await memory.aget()
    assert "Cusco" not in str(memory.facts_block.last_question.context)
    await other.areset()
    await memory.aput(user("Is it warm there?"))
    await memory.aget()
    assert memory.facts_block.last_question.context == []


async def test_a_reason_goes_with_the_fact_that_has_replaced_another(
    store: MemoryStore,
) -> None:
    await tell(on(store, "bob"), "I live in Bobville1.")
    await tell(on(store, "ann"), "I live in Annville1.")
    book = FactBook(store, "team")
    newer, older = await book.alist(state="all")
    await book.arestore(older.id)
    await book.aretire(older.id, "Ann lives in Annville1", replaced_by=newer.id)
    await store.forget_user("ann", vacuum=False)
    assert await contents(store, "team") == ["Lives in Bobville1"]
    assert "Annville" not in await stored(store)


async def test_a_fact_that_only_ends_a_fact_of_the_person_goes_with_it(
    store: MemoryStore,
) -> None:
    """It repeats the words of the other one. The end of another fact stays."""
    await tell(on(store, "ann"), "I live in Annville1.")
    (fact,) = (await store.facts.read("team")).facts
    other = f"Bob says: {fact.content}"
    for content in (fact.content, other):
        ends = Fact(content=f"No longer true: {content}", said_as=ONLY_ENDS)
        await store.facts.write("team", [ends])
    await store.forget_user("ann", vacuum=False)
    assert await contents(store, "team") == [f"No longer true: {other}"]


async def test_a_fact_of_another_user_stays_though_its_session_was_deleted_and_begun_anew(
    store: MemoryStore,
) -> None:
    """The name of the session is then the person's, but not what was said there before."""
    await tell(on(store, "bob"), "I live in Bobville1.")
    await store.forget("chat")
    await tell(on(store, "ann"), "I live in Annville1.")
    assert len(await contents(store, "team")) == 2
    await store.forget_user("ann", vacuum=False)
    assert await contents(store, "team") == ["Lives in Bobville1"]


async def test_a_person_is_found_by_the_facts_when_the_messages_are_gone(
    store: MemoryStore,
) -> None:
    """Retention, a reset, and the deletion of the session leave the team's facts; they go with the person."""
    for i, session in enumerate(("kept", "reset", "gone")):
        for who in ("ann", "bob"):
            await tell(
                on(store, who, session), f"I live in {who.capitalize()}ville{i}."
            )
    await on(store, "ann", "reset").areset()
    await store.forget("gone")
    await store.aretain(messages=1, vacuum=False)
    assert len(await contents(store, "team")) == 6
    await store.forget_user("ann", vacuum=False)
    assert await contents(store, "team") == [f"Lives in Bobville{i}" for i in range(3)]
    assert "Annville" not in await stored(store)


async def test_a_copy_of_a_fact_goes_with_the_person(store: MemoryStore) -> None:
    """An import later, when the person is deleted, is no longer a copy."""
    ann = on(store, "ann")
    await tell(ann, "I live in Annville1.")
    exported = await ann.facts.aexport()
    await FactBook(store, "archive").aimport(exported)
    # Another program may leave out where a fact comes from.
    facts = [without_origin(fact) for fact in await ann.facts.alist()]
    await store.facts.write("other archive", facts)
    # A program may number the facts of each user.
    await store.facts.write("bob", [Fact(id=facts[0].id, content="Likes tea")])
    await store.forget_user("ann", vacuum=False)
    assert await contents(store, "bob") == ["Likes tea"]
    assert await contents(store, "archive") == []
    assert await contents(store, "other archive") == []
    await FactBook(store, "anna").aimport(exported)
    await store.forget_user("ann", vacuum=False)
    assert await contents(store, "anna") == ["Lives in Annville1"]


async def test_what_repeats_a_fact_goes_with_the_person_after_the_fact_was_edited(
    store: MemoryStore,
) -> None:
    """A copy has its quote, and a pending end its content. Both name its id."""
    await tell(on(store, "ann"), "I live in Annville1.")
    (fact,) = (await store.facts.read("team")).facts
    assert fact.quote == "I live in Annville1."
    await store.facts.write("archive", [without_origin(fact)])
    ends: dict[str, Any] = {fact.id: {"retired_by": "change"}}
    ending = Fact(
        content=f"No longer true: {fact.content}",
        pending=True,
        said_as=ONLY_ENDS,
        ends_facts=ends,
    )
    # It replaces a fact of Ann, and says nothing of her.
    other = Fact(content="Lives in Bobville1", pending=True, ends_facts=ends)
    await store.facts.write("team", [ending, other])
    await FactBook(store, "team").aupdate(fact.id, content="Lives elsewhere")
    await store.forget_user("ann", vacuum=False)
    assert await contents(store, "team") == ["Lives in Bobville1"]
    assert await contents(store, "archive") == []


async def test_a_copy_of_a_fact_that_cannot_be_read_goes_with_the_person(
    store: MemoryStore,
) -> None:
    """Nothing says whether the copy has other words."""
    ann = on(store, "ann")
    await tell(ann, "I live in Annville1.")
    facts = [without_origin(fact) for fact in await ann.facts.alist()]
    await store.facts.write("archive", facts)
    damage = "UPDATE {facts} SET data = :data WHERE namespace = :namespace"
    await store.database.run(lambda tx: tx.execute(damage, data=[], namespace="ann"))
    await store.forget_user("ann", vacuum=False)
    assert await contents(store, "archive") == []


async def test_retention_reaches_the_facts_of_every_reader(store: MemoryStore) -> None:
    await tell(on(store, "ann"), "I live in Annville1.", "I live in Annville2.")
    await store.aretain(messages=1, vacuum=False)
    text = await stored(store)
    assert text.count("Lives in Annville1") == text.count("Lives in Annville2") > 2
    assert "I live in Annville" not in text.replace(
        "The user said: I live in Annville", ""
    )


async def test_what_is_learned_while_a_person_is_deleted_is_not_stored(
    store: MemoryStore,
) -> None:
    """By whichever reader."""
    ann, bob = on(store, "ann"), on(store, "bob", extract_facts=False)
    await bob.aput_messages([user("I live in Bobville1."), assistant("Noted.")])
    await ann.aput_messages([user("I live in Annville1."), assistant("Noted.")])
    blocks = [
        block for block in ann.memory_blocks if isinstance(block, RelevantFactsBlock)
    ]
    work = [block.aflush("chat") for block in blocks]
    await asyncio.gather(
        *work,
        store.forget_user("ann", vacuum=False),
        *[block.aflush("chat") for block in blocks],
    )
    assert "Annville" not in await stored(store)


async def test_what_a_tool_remembers_while_a_person_is_deleted_is_not_stored(
    store: MemoryStore,
) -> None:
    """Nor where nothing was known before, so that no other fact tells of the deletion."""
    ann = on(store, "ann", extract_facts=False)
    await ann.aput_messages([user("I live in Annville1."), assistant("Noted.")])
    seen = await store.facts.read("ann")
    row = (await store.readers.find("chat", ["active"]))[0]
    fact = Fact(content="Lives in Annville1", session_id="chat", message_ids=(row.id,))
    await store.forget_user("ann", vacuum=False)
    assert not await store.facts.write("ann", [fact], seen)
    assert "Annville" not in await stored(store)


async def test_a_source_ends_where_another_user_speaks(store: MemoryStore) -> None:
    """Whoever reads: the facts of the user, or those of a team; the answers to others are left out, too."""
    ann, bob = on(store, "ann"), on(store, "bob")
    await ann.aput(user("I live in Annville1."))
    await bob.aput_messages(
        [user("I live in Bobville1."), assistant("Bob lives there.")]
    )
    await ann.aput_messages(
        [user("I live in Annville2."), assistant("Ann lives there.")]
    )
    for memory in (ann, bob):
        await memory.aflush()
    for namespace in ("bob", "team"):
        found = (await store.facts.read(namespace)).facts
        bobs = next(fact for fact in found if fact.content == "Lives in Bobville1")
        assert bobs.source == "I live in Bobville1.\nBob lives there."


async def test_the_text_around_a_fact_goes_if_it_is_of_a_person_who_was_deleted(
    store: MemoryStore,
) -> None:
    """As a database of before may hold it."""
    ann, bob = (
        on(store, "ann", extract_facts=False),
        on(store, "bob", extract_facts=False),
    )
    await ann.aput(user("I live in Annville1."))
    await bob.aput_messages([user("I like tea."), assistant("Fine.")])
    row = next(
        row
        for row in await store.readers.find("chat", ["active"])
        if row.user_id == "bob"
    )
    place: dict[str, Any] = {
        "quote": "I like tea",
        "session_id": "chat",
        "message_ids": (row.id,),
    }
    mixed = Fact(
        id="1", content="Likes tea", source="I live in Annville1.\nI like tea.", **place
    )
    clean = Fact(id="2", content="Likes his tea", source="I like tea.\nFine.", **place)
    await store.facts.write("bob", [mixed, clean])
    await store.forget_user("ann", vacuum=False)
    facts = {fact.id: fact for fact in (await store.facts.read("bob")).facts}
    assert (facts["1"].quote, facts["1"].source) == ("I like tea", "")
    assert facts["2"] == clean.model_copy(update={"namespace": "bob"})


async def test_messages_that_another_user_sets_anew_stay_those_of_their_speaker(
    store: MemoryStore,
) -> None:
    ann, bob = on(store, "ann"), on(store, "bob")
    await tell(bob, "I live in Bobville1.")
    await tell(ann, "I live in Annville1.")
    await bob.aset((await bob.aget_all())[2:])
    await store.forget_user("ann", vacuum=False)
    assert "Annville" not in await stored(store)


# ---- all of it at random ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
async def test_no_word_of_a_person_is_left_anywhere(
    database_uri: str, tmp_path: Path, open_store: OpenStore, seed: int
) -> None:
    """In shared sessions with two team blocks, after random turns, edits, deletions, branches and copies."""
    store = open_store(database_uri)
    random = Random(seed)  # noqa: S311 - no secret is made of it
    for number in range(14):
        await step(store, random, number)
    before = await stored(store)
    leaver = random.choice([name for name in USERS if word_of(name) in before])
    await store.forget_user(leaver)
    assert word_of(leaver) not in await stored(store)
    assert words_in(tmp_path, [word_of(leaver).lower()]) == set()


def word_of(user_id: str) -> str:
    """Return the beginning of each word that only this user says."""
    return f"{user_id.capitalize()}ville"
