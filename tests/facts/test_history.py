"""What was true before: found by a question about the past, shown as past, and never as if it held."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import date, datetime, timedelta, timezone
from typing import Any, Protocol

import pytest
from llama_index.core import MockEmbedding
from llama_index.core.schema import MetadataMode

from llama_index_memory_ext import (
    Fact,
    FactError,
    MemoryRetriever,
    MemoryToolSpec,
    RelevantFactsBlock,
)
from llama_index_memory_ext.fact import retire
from llama_index_memory_ext.facts.lines import fact_line
from llama_index_memory_ext.learning.reply import NewFact
from llama_index_memory_ext.text.turns import Utterance
from tests.conversation import assistant, user
from tests.learning.learning import Learns, learner
from tests.memories import OpenMemory
from tests.openai_server import Message, call
from tests.scripted_models import StartModel

NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
OSLO = Fact(
    id="oslo",
    content="Lives in Oslo",
    created_at=datetime(2023, 5, 1, tzinfo=timezone.utc),
)
BERGEN = Fact(
    id="bergen",
    content="Lives in Bergen",
    created_at=datetime(2025, 11, 20, tzinfo=timezone.utc),
)
MOVED = retire(OSLO, "moved", BERGEN.created_at, BERGEN.id, by="change")
OSLO_LINE = '<fact date="2023-05-01" until="2025-11-20">Lives in Oslo</fact>\n'
BERGEN_LINE = '<fact date="2025-11-20">Lives in Bergen</fact>\n'


class OpenBlock(Protocol):
    async def __call__(self, *facts: Fact, **options: Any) -> RelevantFactsBlock:
        """A block that knows these facts."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    """The time of the blocks is the last of these."""
    times = [NOW]
    for name in ("user_facts", "book"):
        monkeypatch.setattr(
            f"llama_index_memory_ext.facts.{name}.now_in", lambda zone=None: times[-1]
        )
    return times


@pytest.fixture
async def open_block(clock: list[datetime]) -> AsyncIterator[OpenBlock]:
    async with AsyncExitStack() as stack:

        async def block_of(*facts: Fact, **options: Any) -> RelevantFactsBlock:
            block = RelevantFactsBlock(**{"extract_facts": False, **options})
            stack.push_async_callback(block.aclose)
            for fact in facts:
                await block.book().aadd(fact)
            return block

        yield block_of


async def shown(block: RelevantFactsBlock, question: str) -> str:
    return await block.aget([user(question)])


@pytest.mark.parametrize(
    ("question", "lines"),
    [
        ("Where did I live before?", {OSLO_LINE, BERGEN_LINE}),
        ("Where did I live two years ago?", {OSLO_LINE, BERGEN_LINE}),
        ("Wo habe ich früher gewohnt?", {OSLO_LINE, BERGEN_LINE}),
        ("前はどこに住んでいましたか", {OSLO_LINE, BERGEN_LINE}),
        ("Where do I live?", {BERGEN_LINE}),
        ("Where did I live in 2020?", {BERGEN_LINE}),
    ],
)
async def test_a_question_about_the_past_alone_is_shown_what_was_true_as_past(
    open_block: OpenBlock, question: str, lines: set[str]
) -> None:
    block = await open_block(MOVED, BERGEN)
    assert set((await shown(block, question)).splitlines(keepends=True)) == lines


@pytest.mark.parametrize(
    "gone",
    [
        retire(OSLO, "retired by hand", NOW, by="hand"),
        retire(OSLO, "over max_facts", NOW, by="limit"),
        retire(OSLO, "The user asked to forget it.", NOW, by="request"),
        retire(MOVED, "The user asked to forget it.", NOW, by="request"),
        retire(OSLO, "never true", NOW, "bergen", by="correction"),
        Fact(
            content="Lives in Oslo",
            retired_at=NOW,
            retired_reason="of an earlier version",
        ),
        MOVED.model_copy(update={"expires_at": NOW}),
    ],
)
async def test_what_was_forgotten_or_never_true_does_not_come_back(
    open_block: OpenBlock, gone: Fact
) -> None:
    block = await open_block(gone, BERGEN)
    assert "Oslo" not in await shown(block, "Where did I live before?")
    assert not [
        entry
        for entry in await block.asearch("Where did I live before, in Oslo?")
        if entry.past
    ]


async def test_what_came_before_a_forgotten_fact_stays_forgotten_with_it(
    open_block: OpenBlock,
) -> None:
    block = await open_block(
        MOVED, retire(BERGEN, "The user asked to forget it.", NOW, by="request")
    )
    assert await shown(block, "Where did I live before?") == ""


async def test_a_fact_of_an_earlier_version_is_past_if_another_has_replaced_it(
    open_block: OpenBlock,
) -> None:
    block = await open_block()
    line = '{"id": "a", "content": "Lives in Oslo", "retired_at": "2026-01-01T00:00:00Z", "replaced_by": "b"}'
    assert await block.book().aimport('{"version": 1}\n' + line) == 1
    (fact,) = await block.book().alist(state="all")
    assert (fact.retired_by, fact.state(NOW)) == (None, "past")
    assert "Oslo" in await shown(block, "Where did I live before?")
    assert await shown(block, "Where do I live?") == ""


async def test_after_its_last_day_a_fact_is_past(
    open_block: OpenBlock, clock: list[datetime]
) -> None:
    block = await open_block(
        Fact(
            content="Works at Globex",
            valid_from=date(2019, 3, 1),
            valid_until=date(2026, 11, 20),
        ),
        Fact(content="Worked at Initech", valid_until=date(2018, 1, 31)),
        Fact(content="Works from home", valid_from=date(2022, 1, 1)),
    )
    assert "Globex" in await shown(block, "Where do I work?")
    clock.append(NOW + timedelta(days=1))
    assert re.findall(r">(.*)<", await shown(block, "Where do I work?")) == [
        "Works from home"
    ]
    lines = await shown(block, "Where did I work in 2020?")
    assert (
        lines == '<fact date="2019-03-01" until="2026-11-20">Works at Globex</fact>\n'
    )
    assert '<fact until="2018-01-31">Worked at Initech</fact>' in await shown(
        block, "Where did I work in 2017?"
    )


async def test_an_expired_fact_is_gone_without_a_change(
    open_block: OpenBlock, clock: list[datetime]
) -> None:
    """Neither the cached text nor the ranker holds it."""
    block = await open_block(BERGEN)
    fact = await block.book().aadd("Is on holiday in Rome", ttl=timedelta(hours=1))
    assert "Rome" in await shown(block, "Where?")
    clock.append(NOW + timedelta(hours=1))
    assert await shown(block, "Where?") == BERGEN_LINE
    assert await block.asearch("Rome") == []
    assert [one.fact.id for one in (await block.aexplain("Rome")).facts] == ["bergen"]
    assert [one.id for one in await block.book().alist()] == ["bergen"]
    assert fact.id in [one.id for one in await block.book().alist(state="all")]


async def test_the_model_that_extracts_knows_no_expired_fact_and_none_counts(
    open_block: OpenBlock, start_model: StartModel
) -> None:
    llm, server = start_model(learner)
    block = await open_block(llm=llm, max_facts=1, extract_facts=True)
    await block.book("chat").aadd("Is in Zagreb", expires_at=NOW - timedelta(days=999))
    await block.aput([user("I like tea."), assistant("Fine.")], session_id="chat")
    await block.aflush("chat")
    assert "Zagreb" not in str(server.requests)
    facts = await block.book("chat").alist(state="all")
    assert sorted((fact.content, fact.retired) for fact in facts) == [
        ("Is in Zagreb", False),
        ("Likes tea", False),
    ]


async def test_past_facts_are_explained_and_found(open_memory: OpenMemory) -> None:
    memory = open_memory("chat", user_id="ann")
    await memory.facts.aimport(
        "".join(fact.model_dump_json() + "\n" for fact in (MOVED, BERGEN))
    )
    explanation = await memory.facts_block.aexplain("Where did I live before?")
    assert {one.fact.id: (one.injected, one.why) for one in explanation.facts}[
        "oslo"
    ] == (True, "was true before")
    found = await MemoryRetriever(memory).aretrieve("Did I live in Oslo before?")
    assert found[0].node.metadata["until"] == "2025-11-20"
    assert "until: 2025-11-20" in found[0].node.get_content(MetadataMode.LLM)
    assert await MemoryRetriever(memory).aretrieve("Oslo") == []
    answer = await MemoryToolSpec(memory).asearch_memory("Did I live in Oslo before?")
    assert (
        '<fact id="oslo" date="2023-05-01" until="2025-11-20" category="knowledge">Lives in Oslo</fact>'
        in answer
    )


async def test_a_past_fact_can_be_forgotten(open_memory: OpenMemory) -> None:
    memory = open_memory("chat", user_id="ann")
    await memory.facts.aimport(
        MOVED.model_dump_json() + "\n" + BERGEN.model_dump_json()
    )
    await memory.aput(user("Please forget that I lived in Oslo."))
    answer = await MemoryToolSpec(memory).aforget(
        ["Lives in Oslo"], "forget that I lived in Oslo"
    )
    assert answer == "Forgotten: [oslo] Lives in Oslo (it can be restored)"
    assert [
        one.fact.id
        for one in (await memory.facts_block.aexplain("Where did I live before?")).facts
    ] == ["bergen"]


async def test_a_wish_to_forget_does_not_store_a_deleted_fact_again(
    open_memory: OpenMemory,
) -> None:
    """It was deleted after it was shown to the agent."""
    memory = open_memory("chat", user_id="ann")
    tea = await memory.facts.aadd("Likes tea")
    await memory.facts.aforget(tea.id)
    wish = "Forget that I like tea"
    await memory.facts_block.extractor("chat").apply(
        [NewFact(content="", quote=wish, ends=1)],
        [Utterance(1, "user", wish)],
        [tea],
        is_request=True,
    )
    assert await memory.facts.alist(state="all") == []


async def test_embeddings_rank_past_facts_too(open_block: OpenBlock) -> None:
    """A vector that is kept is not computed again."""
    block = await open_block(MOVED, BERGEN, embed_model=MockEmbedding(embed_dim=8))
    assert await shown(block, "Where do I live?") == BERGEN_LINE
    assert OSLO_LINE in await shown(block, "Where did I live before?")


async def test_an_extraction_tells_a_change_from_a_correction_and_a_wish_to_forget(
    learns: Learns,
) -> None:
    said = {
        "Oslo": "I moved away from Oslo",
        "Rome": "I never lived in Rome",
        "Bonn": "forget about Bonn",
    }

    def model(messages: list[Message], tools: list[str]) -> Message:
        numbers = re.findall(r"(\d+)\. Lived in (\w+)", messages[-1]["content"])
        gone = [{"quote": said[town], "ends": int(number)} for number, town in numbers]
        return call(("c", "report_facts", {"facts": gone}))

    memory = learns(model)[0]
    for town in said:
        await memory.facts.aadd(f"Lived in {town}")
    await memory.aput_messages([user(". ".join(said.values())), assistant("Fine.")])
    await memory.aflush()
    assert {
        fact.content: fact.retired_by for fact in await memory.facts.alist(state="all")
    } == {
        "Lived in Oslo": "change",
        "Lived in Rome": "correction",
        "Lived in Bonn": "request",
    }
    past = [
        entry.fact.content
        for entry in await memory.facts_block.asearch("Where had I lived before?")
        if entry.past
    ]
    assert past == ["Lived in Oslo"]


async def test_a_history_is_what_was_replaced_and_what_replaced_it(
    open_block: OpenBlock,
) -> None:
    rome = Fact(id="rome", content="Lives in Rome", created_at=NOW)
    block = await open_block(
        Fact(content="Likes tea"),
        rome,
        MOVED,
        retire(BERGEN, "moved", NOW, "rome", by="change"),
    )
    book = block.book()
    for fact_id in ("oslo", "bergen", "rome"):
        assert [fact.id for fact in await book.ahistory(fact_id)] == [
            "oslo",
            "bergen",
            "rome",
        ]
    await book.arestore("oslo")
    (oslo,) = await book.ahistory("oslo")
    assert oslo.retired is False
    assert oslo.replaced_by is None
    assert oslo.valid_until is None
    assert oslo.state(NOW) == "present"
    assert [fact.id for fact in await book.ahistory("rome")] == ["bergen", "rome"]
    assert fact_line(oslo) == '<fact date="2023-05-01">Lives in Oslo</fact>\n'
    with pytest.raises(FactError, match="no fact 'nobody'"):
        await book.ahistory("nobody")
    copy = await open_block()
    await copy.book().aimport(await book.aexport())
    assert await copy.book().alist(state="all") == await book.alist(state="all")


async def test_replacements_in_a_circle_have_a_history(open_block: OpenBlock) -> None:
    block = await open_block(
        MOVED, retire(BERGEN, "moved back", NOW, "oslo", by="change")
    )
    assert [fact.id for fact in await block.book().ahistory("oslo")] == [
        "oslo",
        "bergen",
    ]
    assert "Oslo" in await shown(block, "Where did I live before?")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"ttl": timedelta()}, "above 0"),
        ({"ttl": 30}, "a timedelta"),
        ({"ttl": timedelta.max}, "at most 365,000 days"),
        ({"ttl": timedelta(1), "expires_at": NOW}, "without expires_at"),
        ({"category": "opinion"}, "'allergy', 'diet'; got 'opinion'"),
        (
            {"confidence": 7},
            "confidence must be less than or equal to 1; got 7. It is: ",
        ),
        ({"confidence": "sure"}, "confidence must be a valid number"),
        ({"pined": True}, "no argument 'pined'. Did you mean 'pinned'?"),
        (
            {"created_at": NOW.replace(tzinfo=None)},
            "created_at must have timezone info; got a datetime.",
        ),
        ({"quote": 7}, "quote must be a valid string; got 7."),
    ],
)
async def test_a_wrong_ttl_or_field_is_refused(
    open_block: OpenBlock, fields: dict[str, Any], says: str
) -> None:
    book = (await open_block(categories=["allergy", "diet"])).book()
    fact = await book.aadd("Eats no nuts", category="allergy")
    with pytest.raises(FactError, match=re.escape(says)):
        await book.aadd("Likes tea", **fields)
    with pytest.raises(FactError, match=re.escape(says)):
        await book.aupdate(fact.id, **fields)
    assert await book.alist() == [fact]


async def test_a_change_keeps_the_fact_and_its_owner(open_block: OpenBlock) -> None:
    """With another id a second fact would be stored, or another agent's fact replaced."""
    book = (await open_block()).book()
    fact = await book.aadd("Likes tea")
    with pytest.raises(FactError, match=r"keeps the id and the namespace .* got id\."):
        await book.aupdate(fact.id, content="Likes milk", id="other")
    with pytest.raises(FactError, match=r"got namespace\. Add a new fact"):
        await book.aupdate(fact.id, namespace="bob")
    assert await book.alist() == [fact]


async def test_what_is_no_fact_and_what_is_no_id_is_refused(
    open_block: OpenBlock,
) -> None:
    book = (await open_block()).book()
    fact = await book.aadd("Likes tea")
    anything: Any
    for anything in (None, 7, ["Likes tea"], {"content": "Likes tea"}):
        with pytest.raises(
            FactError, match="Expected a Fact, or its content as a str; got "
        ):
            await book.aadd(anything)
    takes_an_id: list[Callable[[Any], Awaitable[object]]] = [
        book.aforget,
        book.aapprove,
        book.areject,
        book.aretire,
        book.arestore,
        book.ahistory,
        lambda wrong: book.aupdate(wrong, content="Likes milk"),
        lambda wrong: book.aretire(fact.id, replaced_by=wrong),
    ]
    for anything in (fact, [fact.id], 7):
        for call_with in takes_an_id:
            with pytest.raises(
                FactError,
                match=r"Expected ids of facts as separate str arguments; got a",
            ):
                await call_with(anything)
    with pytest.raises(
        FactError, match="content: expected text with a visible character"
    ):
        await book.aadd(" ")
    assert await book.alist() == [fact]


async def test_a_ttl_counts_from_now_and_an_expired_fact_can_be_restored(
    open_block: OpenBlock, clock: list[datetime]
) -> None:
    book = (await open_block()).book()
    fact = await book.aadd(
        Fact(content="Is in Rome", created_at=NOW - timedelta(days=99)),
        ttl=timedelta(days=30),
    )
    assert fact.expires_at == NOW + timedelta(days=30)
    assert (
        await book.aupdate(fact.id, ttl=timedelta(days=1))
    ).expires_at == NOW + timedelta(days=1)
    clock.append(NOW + timedelta(days=1))
    assert await book.alist() == []
    assert (await book.arestore(fact.id)).expires_at is None
    assert len(await book.alist()) == 1
