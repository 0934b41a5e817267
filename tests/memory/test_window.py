"""A session goes on, however small the context window of its model and however much has piled up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.bridge.pydantic import Field
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import BaseMemoryBlock
from llama_index.llms.openai import OpenAI
from openai import BadRequestError
from workflows.errors import WorkflowRuntimeError

from llama_index_memory_ext import CondensedMemory, Fact
from tests.conversation import assistant, calling, result, user
from tests.memories import OpenMemory
from tests.openai_complaints import tokens_in
from tests.openai_server import Message, OpenAIServer, call, say
from tests.scripted_models import StartClient

WINDOW = 8_192
# Some 750 tokens.
PAGE = (
    "The committee read the report about bridges, tunnels and 47 other structures in the valley.\n"
    * 45
)
Start = Callable[..., tuple[OpenAI, OpenAIServer]]


def read_page(number: int) -> str:
    """Read a page of the archive."""
    return f"Page {number}\n{PAGE}"


def reader(messages: list[Message], tools: list[str]) -> Message:
    """Reads two pages for a question about pages, and answers at some length."""
    question = next(
        message["content"]
        for message in reversed(messages)
        if message["role"] == "user"
    )
    results = [message for message in messages if message["role"] == "tool"]
    if "read_page" in tools and question.endswith("pages?") and len(results) < 2:
        return call((f"call_{len(results)}", "read_page", {"number": len(results)}))
    return say(f"I was sent {len(messages)} messages. {PAGE[:1_500]}")


@pytest.fixture
def start(start_client: StartClient) -> Start:
    """Starts a server whose model has a small window: of gpt-4 LlamaIndex knows it."""

    def start_one(model: str = "gpt-4") -> tuple[OpenAI, OpenAIServer]:
        llm, server = start_client(OpenAI, reader, model=model)
        server.context_window = WINDOW
        return llm, server

    return start_one


async def ask(llm: OpenAI, memory: CondensedMemory, question: str) -> str:
    agent = FunctionAgent(
        llm=llm, tools=[read_page], system_prompt="You are an archivist. Be exact."
    )
    return str(await agent.run(question, memory=memory))


def refusal() -> AbstractContextManager[Any]:
    """Expects that the server refuses a request for its length."""
    return pytest.raises(
        (BadRequestError, WorkflowRuntimeError), match="maximum context length"
    )


def question_of(turn: int) -> str:
    if turn % 7 == 3:
        return f"Question {turn}. Compare this with what we had: {PAGE} {PAGE}"
    return (
        f"Question {turn}: what is on the next two pages?"
        if turn % 3 == 0
        else f"Question {turn}: what do I mean?"
    )


@pytest.mark.parametrize(
    ("options", "turns"),
    [
        ({}, 22),
        ({"insert_method": "system", "recall_token_limit": 500}, 9),
        ({"chat_history_token_ratio": 0.5}, 9),
    ],
)
async def test_no_question_is_refused_with_a_model_whose_window_is_known(
    open_memory: OpenMemory, start: Start, options: dict[str, Any], turns: int
) -> None:
    """With long messages, results of tools, and as many facts as are shown. The questions repeat after 21 turns."""
    llm, server = start()
    memory = open_memory(llm=llm, extract_facts=False, min_similarity=0, **options)
    facts = [
        Fact(
            content=f"Knows bridge number {i}, which crosses the river {i} miles above the town"
        )
        for i in range(80)
    ]
    await memory.sql_store.facts.write(memory.facts.namespace, facts)
    for turn in range(turns):
        assert "I was sent" in await ask(llm, memory, question_of(turn))
    assert server.refusals == []
    # The window is used, too.
    assert max(tokens_in(request) for request in server.requests) > WINDOW * 0.6


@pytest.mark.parametrize(
    "smaller",
    [
        {"token_limit": 6_000},
        {
            "context_window": WINDOW,
            "insert_method": "system",
            "include_system": True,
            "summarize": True,
        },
        {"context_window": WINDOW, "chat_history_token_ratio": 0.6},
    ],
)
async def test_a_session_that_has_outgrown_its_window_goes_on_when_it_is_opened_with_that_window(
    open_memory: OpenMemory, start: Start, smaller: dict[str, Any]
) -> None:
    """Unanswered questions have piled up by then, and a message that is longer than the window."""
    llm, server = start("gpt-4o-mini")
    options = {"llm": llm, "extract_facts": False}
    memory = open_memory(include_system=smaller.get("include_system", False), **options)
    await memory.aput_messages([user(f"Long ago {i}. {PAGE}") for i in range(20)])
    await memory.aput_messages(
        [user("The whole archive: " + PAGE * 20), assistant("Thank you.")]
    )
    for turn in range(2):
        with refusal():
            await ask(llm, memory, question_of(turn))
    assert len(server.refusals) == 2
    memory = open_memory(**options, **smaller)
    for turn in range(5):
        assert "I was sent" in await ask(llm, memory, question_of(turn))


async def test_a_turn_that_is_too_long_by_itself_does_not_harm_the_next_one(
    open_memory: OpenMemory, start: Start
) -> None:
    """Be it the question, what a tool has found for it, or a turn without an answer that was put by hand."""
    llm, server = start()
    memory = open_memory(llm=llm, extract_facts=False)
    with refusal():
        await ask(llm, memory, f"What of this? {PAGE * 12}")
    assert "I was sent" in await ask(llm, memory, "And now?")

    def read_page(number: int) -> str:
        """Read the whole archive."""
        return PAGE * 12

    with refusal():
        await FunctionAgent(llm=llm, tools=[read_page]).run(
            "What is on all pages?", memory=memory
        )
    assert "I was sent" in await ask(llm, memory, "And now?")
    await memory.aput_messages(
        [
            user("Read."),
            calling(("a", "read_page", {"number": 1})),
            result("a", PAGE * 15),
        ]
    )
    assert "I was sent" in await ask(llm, memory, "And now?")
    assert len(server.refusals) == 2


async def test_a_chat_engine_says_how_much_its_prefix_has(
    open_memory: OpenMemory, start: Start
) -> None:
    """It is left free, and so nothing is refused."""
    llm, server = start()
    memory = open_memory(llm=llm, extract_facts=False)
    engine = SimpleChatEngine.from_defaults(
        llm=llm, memory=memory, system_prompt=PAGE * 3
    )
    for turn in range(12):
        assert "I was sent" in str(await engine.achat(question_of(turn)))
    assert server.refusals == []


class KeepsAll(BaseMemoryBlock[str]):
    """Shows again whatever has left short-term memory, and cannot be shortened, as LlamaIndex's blocks cannot."""

    texts: list[str] = Field(default_factory=list)

    async def _aget(
        self, messages: list[ChatMessage] | None = None, **block_kwargs: Any
    ) -> str:
        return "\n".join(self.texts)

    async def _aput(self, messages: list[ChatMessage]) -> None:
        self.texts += [message.content or "" for message in messages]


async def test_blocks_of_others_with_a_priority_are_left_out_where_they_do_not_fit(
    open_memory: OpenMemory, start: Start
) -> None:
    """One that finds whole turns again finds the one that has filled the window, too."""
    llm, server = start()
    memory = open_memory(
        llm=llm, extract_facts=False, memory_blocks=[KeepsAll(name="all", priority=1)]
    )
    with refusal():
        await ask(llm, memory, f"What of this? {PAGE * 12}")
    for turn in range(5):
        assert "I was sent" in await ask(llm, memory, question_of(turn))
    assert len(server.refusals) == 1
