"""What a memory tells of itself on LlamaIndex's dispatcher."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.dispatcher import instrument_tags
from llama_index_instrumentation.event_handlers import BaseEventHandler
from llama_index_instrumentation.span_handlers import BaseSpanHandler, SimpleSpanHandler
from pydantic import Field

from llama_index_memory_ext.blocks import LogBlock
from llama_index_memory_ext.events import (
    ExtractionFailedEvent,
    FactsExtractedEvent,
    FactsInjectedEvent,
    HistoryCondensedEvent,
    JobFailedEvent,
    MemoryEvent,
    MessagesRecalledEvent,
    SummaryFailedEvent,
    send,
)
from llama_index_memory_ext.models.ask import Usage
from tests.conversation import assistant, of_today, record, user
from tests.facts.test_agents import knowing
from tests.learning.learning import fact_of, learner
from tests.memories import OpenMemory
from tests.openai_server import Message, call, fail, say
from tests.scripted_models import StartModel

OURS = "llama_index_memory_ext"
E = TypeVar("E", bound=MemoryEvent)


class Listener(BaseEventHandler):
    events: list[Any] = Field(default_factory=list)
    facts_extracted: asyncio.Event = Field(default_factory=asyncio.Event)
    clumsy: bool = False

    def handle(self, event: Any, **_: Any) -> None:
        if self.clumsy:
            raise RuntimeError(event)
        self.events.append(event)
        if isinstance(event, FactsExtractedEvent):
            self.facts_extracted.set()

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]


@contextmanager
def attached(
    handler: BaseEventHandler | BaseSpanHandler[Any], name: str = OURS
) -> Iterator[None]:
    dispatcher = get_dispatcher(name)
    is_of_events = isinstance(handler, BaseEventHandler)
    handlers: list[Any] = (
        dispatcher.event_handlers if is_of_events else dispatcher.span_handlers
    )
    handlers.append(handler)
    try:
        yield
    finally:
        handlers.remove(handler)


@pytest.fixture
def heard() -> Iterator[Listener]:
    listener = Listener()
    with attached(listener):
        yield listener


def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


class Learner:
    """Adds in two rounds if it is asked to, sums up in a few words, and else is the learner.

    Its ``answers``, the last one first, come before where facts are asked for.
    """

    def __init__(self, *answers: Message) -> None:
        self.answers = [*answers]

    def __call__(self, messages: list[Message], tools: list[str]) -> Message:
        if tools == ["report_facts"]:
            return self.answers.pop() if self.answers else learner(messages, tools)
        if "running summary" in str(messages[0]["content"]):
            return say(f"The user talked: {record(messages[-1]['content'])[0][1]}")
        rounds = sum(message["role"] == "tool" for message in messages)
        asked = str(
            [message["content"] for message in messages if message["role"] == "user"][
                -1
            ]
        )
        if rounds < 2 and "Add" in asked.rpartition("\n")[2]:
            return call((f"call_{rounds}", "add", {"a": 1, "b": rounds}))
        return say("Fine.")


def test_a_program_can_make_events_of_what_it_stored() -> None:
    """Later fields have defaults, so that JSON of earlier versions is read."""
    of_facts: dict[str, Any] = {"session_id": "chat", "user_id": "ann", "seconds": 0.5}
    extracted = FactsExtractedEvent(
        **of_facts, messages=1, new=[], confirmed=[], retired=[], rejections={}
    )
    assert (extracted.agent_id, extracted.pending) == (None, [])
    injected = FactsInjectedEvent(
        **of_facts, fact_ids=[], known=0, tokens=0, token_limit=9
    )
    assert (injected.profile_fact_ids, injected.profile_tokens) == ([], 0)


async def test_the_facts_of_the_event_are_those_of_the_prompt(
    open_memory: OpenMemory, start_model: StartModel, heard: Listener
) -> None:
    """In their order; a turn with two rounds of tools asks for them four times."""
    llm, server = start_model(Learner())
    memory = open_memory(user_id="ann", extract_facts=False)
    for content in ("Likes tea", "Adds numbers all day", "Lives in Paris"):
        await memory.facts.aadd(content, confidence=0.9)
    retired = await memory.facts.aadd("Adds numbers at night", confidence=0.9)
    await memory.facts.aretire(retired.id)
    await FunctionAgent(llm=llm, tools=[add]).run("Add numbers for me.", memory=memory)
    content_of = {fact.id: fact.content for fact in await memory.facts.alist()}
    events = heard.of(FactsInjectedEvent)
    assert len(events) == 4
    prompt = server.requests[0][-1]["content"]
    assert "<fact " in prompt
    for event in events:
        assert [content_of[one] for one in event.fact_ids] == re.findall(
            r"<fact [^>]*>(.*?)</fact>", prompt
        )
        assert event.session_id == "chat"
        assert event.user_id == "ann"
        assert event.known == 3
        assert event.token_limit == 2_000
        assert event.tokens == memory.tokenizer_fn.count(
            "".join(re.findall(r"<fact .*\n", prompt))
        )
        assert event.seconds > 0
    assert heard.events == events


async def test_an_extraction_tells_what_became_of_which_fact(
    open_memory: OpenMemory, start_model: StartModel, heard: Listener
) -> None:
    model = Learner()
    llm, _ = start_model(model)
    async with open_memory(user_id="ann", llm=llm) as memory:
        await memory.aput_messages(
            [user("I like tea. I use Docker."), assistant("Fine.")]
        )
        await memory.aflush()
        over = {
            "number": 2,
            "reason": "It is over.",
            "quote": "I do not use Docker any more",
        }
        known = [
            fact_of("Likes tea", "I like tea"),
            fact_of("Uses Podman", "I use Podman"),
            over,
        ]
        for entries in ([fact_of("Lives in Paris", "I live in Paris")], known):
            model.answers.append(knowing(*entries)([], ["report_facts"]))
        await memory.aput_messages(
            [
                user("I like tea. I do not use Docker any more. I use Podman."),
                assistant("Ok."),
            ]
        )
        # Else both would be read at once if the first has not been read yet.
        await memory.aflush()
        await memory.aput_messages([user("Take a guess where I live.")])
        await memory.aflush()
        facts = {
            fact.content: fact.id for fact in await memory.facts.alist(state="all")
        }
        rejections = memory.facts_block.rejections
    events = heard.of(FactsExtractedEvent)
    changes = [(set(event.new), event.confirmed, event.retired) for event in events]
    tea, docker, podman = facts["Likes tea"], facts["Uses Docker"], facts["Uses Podman"]
    assert changes == [
        ({tea, docker}, [], []),
        ({podman}, [tea], [docker]),
        (set(), [], []),
    ]
    assert [event.messages for event in events] == [2, 2, 1]
    assert [event.rejections for event in events] == [
        {},
        {"duplicate": 1},
        {"quote_not_found": 1},
    ]
    assert rejections == {"duplicate": 1, "quote_not_found": 1}
    assert all(event.seconds > 0 and event.user_id == "ann" for event in events)
    assert [(event.prompt_tokens, event.completion_tokens) for event in events] == [
        (1, 1)
    ] * 3


async def test_an_extraction_tells_a_handler_what_was_not_stored_and_why(
    open_memory: OpenMemory, start_model: StartModel, heard: Listener
) -> None:
    """The statements are for the user's own page: no dump and no ``repr`` has them, and a secret is not even there."""
    entries = [
        fact_of("Lives in Paris", "I live in Paris"),
        fact_of("Wants\u202e a cat", "I like tea"),
        fact_of("Has the password hunter2", "I like tea"),
        fact_of("Says " + "tea " * 200, "I like tea"),
        fact_of("Likes rain", "I like rain"),
        {"number": 7, "reason": "It is over.", "quote": "I like tea"},
    ]
    llm, _ = start_model(Learner(knowing(*entries)([], ["report_facts"])))
    async with open_memory(user_id="ann", llm=llm) as memory:
        await memory.facts.aadd("Likes rain")
        said = "Guess where I live. I like tea. I like rain."
        await memory.aput_messages([user(said), assistant("Fine.")])
        await memory.aflush()
    (event,) = heard.of(FactsExtractedEvent)
    reasons = {
        rejection.content: rejection.detail
        for rejection in event.not_stored
        if rejection.content
    }
    assert reasons == {
        "Lives in Paris": "Its quote is not in the conversation.",
        "Wants a cat": "It has invisible characters.",
    }
    others = [entry.reason for entry in event.not_stored if not entry.content]
    assert sorted(others) == ["duplicate", "secret", "too_long", "unknown_fact"]
    assert sum(event.rejections.values()) == len(event.not_stored)
    for text in (
        repr(event),
        str(event),
        str(event.not_stored),
        str(event.model_dump()),
        str(event.dict()),
        str(dict(event)),
        str(vars(event)),
        event.model_dump_json(),
        json.dumps(event.model_dump(mode="json")),
    ):
        assert not re.search("Paris|a cat|hunter2", text)


@pytest.mark.parametrize("summarize", [False, True])
async def test_a_cut_tells_how_much_has_left_and_a_summary_what_it_is_of(
    open_memory: OpenMemory, start_model: StartModel, heard: Listener, summarize: bool
) -> None:
    llm, _ = start_model(Learner())
    memory = open_memory(
        llm=llm,
        extract_facts=False,
        max_messages=6,
        keep_messages=2,
        summarize=summarize,
    )
    for i in range(5):
        await memory.aput_messages([user(f"question {i}"), assistant(f"answer {i}")])
        await memory.aget()
    await memory.condensed_block.aflush("chat")
    (event,) = heard.of(HistoryCondensedEvent)
    assert event.session_id == "chat"
    assert event.messages == 6
    assert event.position == 6
    assert event.summarised == summarize
    # The day stands above eight messages, and above the two that are left.
    day = memory.tokenizer_fn.count(of_today())
    assert summarize or event.tokens_before - day == 4 * (event.tokens_after - day)
    assert (event.summary_tokens > 0, event.prompt_tokens, event.completion_tokens) == (
        summarize,
        *[int(summarize)] * 2,
    )
    size = await memory.condensed_block.ameasure("chat")
    assert (
        event.summary_tokens
        == size.summary_tokens
        < event.tokens_after
        == size.record_tokens
    )
    assert event.seconds >= 0
    assert (await memory.astats()).usage == (
        {"summary": Usage(1, 1, 1)} if summarize else {}
    )


async def test_a_failure_is_told_with_its_number_and_its_pause(
    open_memory: OpenMemory,
    start_model: StartModel,
    heard: Listener,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then what has succeeded: nothing is lost, and counting begins anew."""
    monkeypatch.setattr(LogBlock, "retry_seconds", 0.01)
    model = Learner(*[fail(500, "I like secrets")] * 2)
    llm, _ = start_model(model)
    memory = open_memory(user_id="ann", llm=llm, extract_every_turns=1)
    await memory.aput_messages([user("I like tea."), assistant("Fine."), user("And?")])
    await asyncio.wait_for(heard.facts_extracted.wait(), 30)
    await memory.facts_block.await_jobs("chat")
    assert memory.facts_block.failures_of("chat") == {}
    failed = heard.of(ExtractionFailedEvent)
    assert [(one.failures, one.error, one.retry_seconds) for one in failed] == [
        (1, "InternalServerError", 0.01),
        (2, "InternalServerError", 0.02),
    ]
    assert [type(event) for event in heard.events] == [
        *[ExtractionFailedEvent] * 2,
        FactsExtractedEvent,
    ]
    model.answers += [fail(500, "I like secrets")] * 2
    await memory.aflush()
    again = heard.of(ExtractionFailedEvent)[2:]
    assert [(one.failures, one.retry_seconds) for one in again] == [
        (1, 0.01),
        (2, None),
    ]


async def test_a_summary_that_fails_is_told(
    open_memory: OpenMemory, start_model: StartModel, heard: Listener
) -> None:
    llm, _ = start_model(lambda messages, tools: say(""))
    memory = open_memory(
        llm=llm, extract_facts=False, max_messages=2, keep_messages=1, summarize=True
    )
    await memory.aput_messages(
        [
            user("One?"),
            assistant("One."),
            user("Two?"),
            assistant("Two."),
            user("Three?"),
        ]
    )
    await memory.condensed_block.await_jobs("chat")
    await memory.condensed_block.aflush("chat")
    events = heard.of(JobFailedEvent)
    assert {type(event) for event in events} == {SummaryFailedEvent}
    assert [(event.error, event.failures, event.retry_seconds) for event in events] == [
        ("SummaryReplyError", 1, 2.0),
        ("SummaryReplyError", 2, None),
    ]


async def test_a_handler_that_raises_costs_no_turn_and_no_fact(
    open_memory: OpenMemory, start_model: StartModel, heard: Listener
) -> None:
    """Nor do the others hear less."""
    llm, _ = start_model(Learner())
    agent = FunctionAgent(llm=llm)
    with attached(Listener(clumsy=True)), attached(Listener(clumsy=True), "root"):
        async with open_memory(
            user_id="ann", llm=llm, max_messages=1, keep_messages=1
        ) as memory:
            await agent.run("I like tea.", memory=memory)
            await memory.aflush()
            assert str(await agent.run("What do I like?", memory=memory)) == "Fine."
            assert [fact.content for fact in await memory.facts.alist()] == [
                "Likes tea"
            ]
    kinds = {FactsExtractedEvent, FactsInjectedEvent, HistoryCondensedEvent}
    assert kinds <= {type(event) for event in heard.events}


def test_an_event_that_cannot_be_sent_is_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with instrument_tags(5):  # type: ignore[arg-type]
        send(
            SummaryFailedEvent(
                session_id="chat", error="KeyError", failures=1, retry_seconds=None
            )
        )
    assert [one.getMessage() for one in caplog.records] == [
        "SummaryFailedEvent was not sent (AttributeError)."
    ]


async def test_nothing_that_was_said_is_in_an_event(
    open_memory: OpenMemory,
    start_model: StartModel,
    heard: Listener,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nor a key, nor what a provider has put into its error. Whatever is told can be written as JSON."""
    words = [
        "Zwetschge",
        "Docker",
        "Podman",
        "hunter2",
        "sk-test-key",
        "Fine",
        "talked",
    ]
    llm, _ = start_model(Learner(fail(500, "Zwetschge hunter2")))
    agent = FunctionAgent(llm=llm, tools=[add])
    options: dict[str, Any] = {
        "max_messages": 2,
        "keep_messages": 1,
        "summarize": True,
        "recall_token_limit": 200,
    }
    async with open_memory(user_id="ann", llm=llm, **options) as memory:
        turns = (
            "I like Zwetschge.",
            "I use Docker with hunter2.",
            "Add Zwetschge.",
            "I do not use Docker any more.",
        )
        for said in turns:
            await agent.run(said, memory=memory)
            await memory.aflush()
        told = [
            str(await memory.astats()),
            (await memory.astats()).model_dump_json(),
            repr(await memory.astats()),
        ]
    kinds = {
        ExtractionFailedEvent,
        FactsExtractedEvent,
        FactsInjectedEvent,
        HistoryCondensedEvent,
    }
    assert {type(event) for event in heard.events} == kinds | {MessagesRecalledEvent}
    # Older workflows have the second name for it.
    assert {key for event in heard.events for key in event.tags} <= {
        "llamaindex.run_id",
        "run_id",
    }
    for event in heard.events:
        told += [
            event.model_dump_json(),
            json.dumps(event.model_dump(mode="json")),
            repr(event),
        ]
        assert (
            event.model_dump()["class_name"]
            == type(event).__name__
            == event.class_name()
        )
    told.append(caplog.text)
    assert [(word, text) for word in words for text in told if word in text] == []


async def test_work_beside_the_conversation_is_a_span_of_its_own(
    open_memory: OpenMemory, start_model: StartModel, heard: Listener
) -> None:
    """The turn's own may have ended by then, and handlers attach events and calls only to spans that are open."""
    llm, _ = start_model(Learner())
    spans = SimpleSpanHandler()
    with attached(spans, "root"), instrument_tags({"request": "r-1"}):
        async with open_memory(llm=llm) as memory:
            await FunctionAgent(llm=llm).run("I like tea.", memory=memory)
    (event,) = heard.of(FactsExtractedEvent)
    assert event.tags["request"] == "r-1"
    own = next(one for one in spans.completed_spans if one.id_ == event.span_id)
    assert own.id_.startswith("memory facts-")
    assert own.parent_id is None
    inner = [
        one.id_.split("-")[0]
        for one in spans.completed_spans
        if one.parent_id == own.id_
    ]
    assert "OpenAI.achat" in inner
    assert spans.open_spans == {}
