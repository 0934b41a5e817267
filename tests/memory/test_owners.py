"""Whose words a session holds: who may open it, who said what, and whose facts and lines are whose."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage

from benchmarks.whose_words import CarelessModel, leaks_in
from llama_index_memory_ext import (
    CondensedMemory,
    MemoryRetriever,
    MemoryStore,
    MemoryToolSpec,
    MessageError,
    RelevantFactsBlock,
    SessionOwnerError,
    SettingError,
)
from llama_index_memory_ext.blocks import LogBlock
from llama_index_memory_ext.store.readers import reader_names
from llama_index_memory_ext.store.rows import SessionAccess
from tests.conversation import assistant, record, sent_text, user
from tests.facts.test_agents import knowing
from tests.learning.learning import contents, fact_of
from tests.memories import OpenPlainMemory, deleted
from tests.scripted_models import StartModel


def on(
    store: MemoryStore, user_id: str | None, session_id: str = "chat", **options: Any
) -> CondensedMemory:
    options.setdefault("llm", CarelessModel())
    return CondensedMemory.from_defaults(
        session_id, user_id=user_id, chat_store=store, **options
    )


async def tell(memory: CondensedMemory, *texts: str, answer: str = "Fine.") -> None:
    for text in texts:
        await memory.aput_messages([user(text), assistant(answer)])
    await memory.aflush()


async def shown(memory: CondensedMemory, question: str = "And now?") -> str:
    return sent_text(await memory.aget(input=ChatMessage(question)))


# ---- a session of one user -----------------------------------------------------------------------------------


async def test_a_session_is_open_to_its_user_alone(store: MemoryStore) -> None:
    """Nothing of it is read, written or deleted by another, and whose it is nobody tells."""
    ann, bob = on(store, "ann"), on(store, "bob")
    await tell(ann, "I live in Rome.")
    tools, retriever = MemoryToolSpec(bob), MemoryRetriever(bob)
    calls = (
        lambda: bob.aput(user("Hello.")),
        lambda: bob.aset([user("Hello.")]),
        bob.aget,
        lambda: bob.aget(input="Where do I live?"),
        bob.aget_all,
        bob.aexport,
        lambda: bob.asearch("Rome"),
        bob.astats,
        bob.areset,
        lambda: retriever.aretrieve("Rome"),
        lambda: tools.asearch_memory("Rome"),
        lambda: tools.aremember("Lives in Rome", "I live in Rome."),
        lambda: on(store, None).aget(),
        lambda: on(store, "bob", shared=True).aget(),
    )
    for call in calls:
        with pytest.raises(
            SessionOwnerError, match="holds words of another user"
        ) as raised:
            await call()
        assert "ann" not in str(raised.value)
    assert await bob.aforget(vacuum=False) == deleted()
    await bob.facts_block.aflush("chat")
    assert (await contents(ann), await contents(bob)) == (["Lives in Rome"], [])
    assert [message.content for message in await ann.aget_all()] == [
        "I live in Rome.",
        "Fine.",
    ]
    # Closing flushes a turn, and this one is not Bob's.
    await ann.aput(user("And now?"))
    await bob.aclose()


async def test_nothing_is_learned_from_a_session_of_another_user(
    store: MemoryStore,
    open_plain_memory: OpenPlainMemory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a plain memory, and by a backfill."""
    monkeypatch.setattr(LogBlock, "retry_seconds", 1_000.0)
    await tell(on(store, "ann"), "I live in Rome.")
    block = RelevantFactsBlock(store=store, user_id="bob", llm=CarelessModel())
    plain = open_plain_memory(block, session_id="chat", chat_store=store)
    await plain.aput_messages(
        [user("I live in Oslo."), assistant("Fine."), user("And?")]
    )
    await block.await_jobs("chat")
    bob = on(store, "bob", "bobs")
    with pytest.raises(SessionOwnerError):
        await bob.abackfill(["chat"])
    assert await contents(bob) == []


async def test_of_two_who_open_an_empty_session_the_first_to_speak_has_it(
    store: MemoryStore,
) -> None:
    ann, bob = on(store, "ann"), on(store, "bob")
    assert await ann.aget() == await bob.aget() == []
    results = await asyncio.gather(
        ann.aput(user("Ann.")), bob.aput(user("Bob.")), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in results) == [
        "NoneType",
        "SessionOwnerError",
    ]


async def test_a_session_without_a_user_is_taken_over_with_its_facts(
    store: MemoryStore,
) -> None:
    """By the first user who puts something there; nothing is extracted twice, and nobody else gets it then."""
    nobody, ann, bob = on(store, None), on(store, "ann"), on(store, "bob")
    await tell(nobody, "I live in Rome.", "I like tea.")
    await tell(on(store, "ann", "other"), "I live in Rome.")
    assert await contents(nobody) == ["Lives in Rome"]
    assert "I live in Rome." in await shown(ann)
    await tell(ann, "I live in Oslo.")
    assert await contents(ann) == ["Lives in Oslo", "Lives in Rome"]
    assert await contents(nobody) == []
    assert (await store.sessions("ann"))[0].user_ids == ("ann",)
    for other in (bob, nobody):
        for call in (other.aget(), other.aput(user("I live in Bonn."))):
            with pytest.raises(SessionOwnerError):
                await call
    assert await ann.aforget(vacuum=False) == deleted(messages=8, cursors=5, facts=2)
    assert await bob.aget() == []


async def test_a_fact_that_was_retired_is_back_with_a_session_that_says_it_again(
    store: MemoryStore,
) -> None:
    ann = on(store, "ann", "other", extract_facts=False)
    await ann.facts.aretire((await ann.facts.aadd("Likes tea")).id)
    nobody = on(store, None, extract_facts=False)
    await nobody.aput(user("I like tea."))
    await nobody.facts.aadd("Likes tea")
    await on(store, "ann", extract_facts=False).aput(user("Hello."))
    assert await contents(ann) == ["Likes tea"]


async def test_what_was_read_before_a_take_over_is_read_again(
    store: MemoryStore,
) -> None:
    """Its facts would be stored for a session without a user, where nobody looks for them."""
    nobody = on(store, None, extract_facts=False)
    await nobody.aput_messages([user("I live in Rome."), assistant("Fine.")])
    reader = nobody.facts_block.reader_of("chat")
    page = await store.readers.unread("chat", reader, with_active=True)
    await on(store, "ann", extract_facts=False).aput(user("I live in Oslo."))
    last = page.rows[-1].id
    assert not await store.readers.move("chat", reader, page, last)


async def test_a_session_is_taken_over_by_a_user_who_has_read_it_before(
    store: MemoryStore,
) -> None:
    """The cursor of that user stays where it is."""
    reader = "profile of ann"
    profile = f"profile of {SessionAccess().user_in('chat')}"
    nobody = SessionAccess()
    await store.log.append(
        "chat", [user("One.")], len, access=nobody, readers=[profile]
    )
    page = await store.readers.unread("chat", reader)
    row_id = page.rows[0].id
    assert await store.readers.move("chat", reader, page, row_id)
    await store.log.append(
        "chat", [user("Two.")], len, access=SessionAccess("ann"), readers=[reader]
    )
    assert (await store.readers.cursor("chat", reader)).position == row_id
    assert await store.log.users_of_session("chat") == ["ann"]


# ---- a session of several ------------------------------------------------------------------------------------


async def test_those_who_share_a_session_read_all_of_it_and_learn_their_own(
    store: MemoryStore,
) -> None:
    ann, bob = on(store, "ann", shared=True), on(store, "bob", shared=True)
    await tell(ann, "I live in Rome.")
    assert '<message role="user">I live in Rome.</message>' in await shown(ann)
    await tell(bob, "I live in Oslo.")
    await tell(ann, "I live in Lima.")
    for memory in (ann, bob):
        text = await shown(memory)
        for line in (
            'name="ann">I live in Rome.',
            'name="bob">I live in Oslo.',
            'name="ann">I live in Lima.',
        ):
            assert f'<message role="user" {line}</message>' in text
        assert [said for role, said in record(text) if role == "assistant"] == [
            "Fine."
        ] * 3
    assert await contents(ann) == ["Lives in Lima", "Lives in Rome"]
    assert await contents(bob) == ["Lives in Oslo"]
    with pytest.raises(SessionOwnerError):
        await on(store, "cem").aget()
    with pytest.raises(SessionOwnerError):
        await on(store, "ann").aget()


async def test_a_message_says_who_has_said_it(store: MemoryStore) -> None:
    """One memory for a whole channel; nothing of it is sent to the provider but the text and the name in the record."""
    channel = on(store, "channel", shared=True)
    for who, name, text in (
        ("ann", "Ann <b>", "I live in Rome."),
        (7, "", "I live in Oslo."),
    ):
        about = {"user_id": who, "name": name}
        await channel.aput_messages(
            [ChatMessage(text, additional_kwargs=about), assistant("Fine.")]
        )
    await channel.aput(
        ChatMessage(
            "Who lives where?", additional_kwargs={"user_id": "ann", "name": "Ann <b>"}
        )
    )
    messages = await channel.aget()
    text = sent_text(messages)
    assert '<message role="user" name="Ann &lt;b&gt;">I live in Rome.</message>' in text
    assert '<message role="user" name="7">I live in Oslo.</message>' in text
    assert all(not message.additional_kwargs for message in messages)
    await channel.aflush()
    assert await contents(channel) == []
    ann = on(store, "ann", shared=True)
    await ann.aflush()
    assert await contents(ann) == ["Lives in Rome"]
    alone = on(store, "cem", "alone")
    with pytest.raises(MessageError, match="shared=True"):
        await alone.aput(ChatMessage("Hi", additional_kwargs={"user_id": "ann"}))
    assert await alone.aget_all() == []
    for wrong in ("", " ann", ["ann"]):
        with pytest.raises(MessageError, match="user_id"):
            await ann.aput(ChatMessage("Hi", additional_kwargs={"user_id": wrong}))


async def test_words_of_a_plain_memory_are_of_the_user_who_shares_the_session(
    store: MemoryStore,
) -> None:
    await store.add_messages("chat", [user("I live in Rome."), assistant("Fine.")])
    bobs = ChatMessage("I live in Oslo.", additional_kwargs={"user_id": "bob"})
    await on(store, "ann", shared=True, extract_facts=False).aput(bobs)
    rows = await store.readers.find("chat")
    assert [row.user_id for row in rows] == ["ann", None, "bob"]


async def test_forgetting_one_of_several_leaves_the_others(store: MemoryStore) -> None:
    """Their turns go with the answers, by whichever call; the others' lines, facts and readers stay."""
    ann, bob = on(store, "ann", shared=True), on(store, "bob", shared=True)
    await tell(ann, "I live in Rome.", answer="Ann lives in Rome.")
    await tell(bob, "I live in Oslo.", answer="Bob lives in Oslo.")
    await tell(ann, "I live in Lima.")
    assert await bob.aforget(vacuum=False) == deleted(messages=2, cursors=2, facts=1)
    assert [one.content for one in await ann.aget_all()] == [
        "I live in Rome.",
        "Ann lives in Rome.",
        "I live in Lima.",
        "Fine.",
    ]
    assert await contents(ann) == ["Lives in Lima", "Lives in Rome"]
    assert await contents(bob) == []
    assert "Oslo" not in await shown(ann)
    await tell(bob, "I live in Bonn.")
    assert await contents(ann) == ["Lives in Lima", "Lives in Rome"]
    assert await contents(bob) == ["Lives in Bonn"]
    await store.forget_user("ann", vacuum=False)
    assert [one.content for one in await bob.aget_all()] == ["I live in Bonn.", "Fine."]
    await store.forget_user("bob", vacuum=False)
    assert await store.sessions() == []


async def test_forgetting_leaves_the_reader_of_a_user_whose_id_ends_alike(
    store: MemoryStore,
) -> None:
    """The name of a reader ends with its user, and ids may hold " of ", too."""
    for user_id in ("bob", "x of bob"):
        await store.log.append(
            "team",
            [user(f"I am {user_id}.")],
            None,
            access=SessionAccess(user_id, shared=True),
            readers=[f"facts of {user_id}"],
        )
    await store.forget_user("bob")
    names = await store.database.run(reader_names, "team", writes=False)
    assert names == ["facts of x of bob"]


async def test_what_another_says_is_no_evidence(
    store: MemoryStore, start_model: StartModel
) -> None:
    """A model that ascribes another's words to the user is not believed, and does not read them."""
    llm, server = start_model(knowing(fact_of("Lives in Oslo", "I live in Oslo.")))
    await on(store, "bob", shared=True, extract_facts=False).aput_messages(
        [user("I live in Oslo."), assistant("Ok.")]
    )
    ann = on(store, "ann", shared=True, llm=llm)
    await tell(ann, "Interesting, and I do not.")
    assert await contents(ann) == []
    prompt = str(server.requests[-1][-1]["content"])
    assert "I live in Oslo" not in prompt


async def test_who_has_not_written_yet_is_no_team(store: MemoryStore) -> None:
    """What others say is then no evidence for an agent's tools, and asks to forget nothing."""
    ann, bob = on(store, "ann", shared=True), on(store, "bob", shared=True)
    await bob.facts.aadd("Lives in Rome")
    await ann.aput_messages(
        [
            user("I live in Oslo."),
            assistant("Fine."),
            user("Forget that I live in Rome."),
        ]
    )
    tools = MemoryToolSpec(bob)
    assert "Not remembered" in await tools.aremember("Lives in Oslo", "I live in Oslo.")
    rome = (await bob.facts.alist())[0]
    assert "Not forgotten" in await tools.aforget(
        [rome.id], "Forget that I live in Rome."
    )
    await bob.facts_block.aflush("chat")
    assert await contents(bob) == ["Lives in Rome"]
    team = RelevantFactsBlock(store=store, user_id="team", llm=CarelessModel())
    lines, _ = await team.extractor("chat").batches.recent()
    assert [line.is_users for line in lines] == [True, False, True]


# ---- a session without a user --------------------------------------------------------------------------------


async def test_a_session_without_a_user_is_no_user_of_its_name(
    store: MemoryStore,
) -> None:
    """Neither sees, changes or deletes what the other has, in the preset and in a plain memory's block."""
    bob, session = on(store, "bob", "bobs"), on(store, None, "bob")
    await tell(bob, "I live in Oslo.")
    await tell(session, "I live in Rome.")
    assert await contents(bob) == ["Lives in Oslo"]
    assert await contents(session) == ["Lives in Rome"]
    for memory, place, other in ((bob, "Oslo", "Rome"), (session, "Rome", "Oslo")):
        said = await shown(memory, "Where do I live?") + str(
            await memory.asearch("Where do I live?")
        )
        said += str(
            [one.text for one in await MemoryRetriever(memory).aretrieve("live")]
        )
        said += (
            str(await memory.facts_block.aexplain("Where do I live?"))
            + await memory.facts.aexport()
        )
        assert place in said
        assert other not in said
    block = RelevantFactsBlock(store=store, llm=CarelessModel())
    assert [fact.content for fact in await block.book("bob").alist()] == [
        "Lives in Rome"
    ]
    assert [one.session_id for one in await store.sessions("bob")] == ["bobs"]
    assert {one.session_id: one.user_ids for one in await store.sessions()} == {
        "bobs": ("bob",),
        "bob": ("bob",),
    }
    assert session.user_id is None
    assert session.facts_block.user_id == "bob"
    assert (await session.astats()).user_id == "bob"
    assert (await store.forget_user("bob", vacuum=False))["messages"] == 2
    assert await contents(session) == ["Lives in Rome"]
    await tell(bob, "I live in Oslo.")
    assert (await session.aforget(vacuum=False))["facts"] == 1
    assert await contents(bob) == ["Lives in Oslo"]


async def test_a_session_without_a_user_is_deleted_by_its_name_among_the_sessions(
    store: MemoryStore,
) -> None:
    await tell(on(store, None, "bob"), "I live in Rome.")
    counts = await store.forget_user("ann", session_ids=["bob"], vacuum=False)
    assert (counts["messages"], counts["facts"]) == (2, 1)
    assert await store.sessions() == []


async def test_no_user_can_have_the_namespace_of_a_session(store: MemoryStore) -> None:
    namespace = on(store, None).facts.namespace
    with pytest.raises(SettingError, match="spaces around"):
        on(store, namespace)


@pytest.mark.parametrize("seed", range(8))
async def test_random_interleavings_show_nobody_the_words_of_another(
    store: MemoryStore, seed: int
) -> None:
    """The benchmark ``whose_words`` runs 200 of them."""
    assert await leaks_in(store, seed) == []
