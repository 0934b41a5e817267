"""What Anthropic's API is sent, and what its prompt cache finds, over LlamaIndex's own Anthropic class."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import (
    CacheControl,
    CachePoint,
    ChatMessage,
    ImageBlock,
    TextBlock,
    ToolCallBlock,
)

from benchmarks.prompt_caches import Blocks
from tests.anthropic_server import AnthropicServer, serve
from tests.memories import OpenMemory
from tests.openai_server import Message, Model, call, say
from tests.record.test_limits import PIXEL

if TYPE_CHECKING:
    from llama_index.llms.anthropic import Anthropic

StartClaude = Callable[..., "tuple[Anthropic, AnthropicServer]"]

MARK = CachePoint(cache_control=CacheControl(type="ephemeral"))
# Enough for a first entry of the cache, which begins at 1,024 tokens.
LONG = "The quick brown fox jumps over the lazy dog. " * 130


@pytest.fixture
async def start_claude() -> AsyncIterator[StartClaude]:
    """Starts an Anthropic server around a model, and gives LlamaIndex's own class for it."""
    # A thousand modules, which other tests do not need.
    from llama_index.llms.anthropic import Anthropic  # noqa: PLC0415

    async with AsyncExitStack() as stack:

        def start(
            answering: Model, **settings: Any
        ) -> tuple[Anthropic, AnthropicServer]:
            server = stack.enter_context(serve(answering))
            usual: dict[str, Any] = {
                "model": "claude-sonnet-4-5",
                "api_key": "sk-test-key",
                "max_retries": 0,
            }
            llm = Anthropic(base_url=server.base_url, **{**usual, **settings})
            stack.push_async_callback(llm._aclient.close)
            stack.callback(llm._client.close)
            return llm, server

        yield start


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def talker(messages: list[Message], tools: list[str]) -> Message:
    """Asks for a product where one is asked for, and answers everything else at length."""
    last = messages[-1]["content"][-1]
    if last["type"] == "tool_result":
        return say(f"It is {last['content'][0]['text']}.")
    if last["text"].endswith("3 * 4?"):
        return call(("toolu_1", "multiply", {"a": 3, "b": 4}), content="Let me see.")
    return say(f"{LONG[:800]} That is all about {last['text']}")


def questions(number: int) -> list[str]:
    return [
        f"And number {i}?" if i % 3 else f"{i}. What is 3 * 4?" for i in range(number)
    ]


@pytest.mark.parametrize("restarted", [True, False])
async def test_each_turn_finds_the_record_of_the_turn_before_in_the_cache(
    start_claude: StartClaude, open_memory: OpenMemory, restarted: bool
) -> None:
    """But for the turn after a cut; also when each turn is served by another process."""
    llm, server = start_claude(talker)
    options = {
        "cache_points": True,
        "condensed_token_limit": 2_000,
        "recall_token_limit": 0,
    }
    memory = open_memory(**options)
    agent = FunctionAgent(llm=llm, tools=[multiply], streaming=False)
    asked, cuts = [], 0
    for question in questions(15):
        asked.append(len(server.usages))
        await agent.run(
            question, memory=open_memory(**options) if restarted else memory
        )
    assert server.refusals == []
    assert len(server.usages) > len(asked)
    firsts = [server.usages[i] for i in asked]
    for before, now in pairwise(firsts):
        # Nothing of the record that was written is paid twice. After a turn with tools the question is written, too.
        if before.prompt < 1_100:
            continue
        if now.found == 0:
            assert now.prompt < before.prompt
            cuts += 1
        else:
            assert 0 <= before.found + before.written - now.found < 100
    assert cuts == 1
    for i, first in enumerate(server.usages[:-1]):
        if i in asked and i + 1 not in asked:
            # The request with a tool's result.
            assert server.usages[i + 1].found == first.found + first.written
    # What is not in the cache of a turn's beginning: the closing tags, the question, and less than a block.
    assert all(
        usage.prompt - usage.found - usage.written < 100
        for usage in firsts
        if usage.prompt > 1_100
    )


async def test_what_a_cut_leaves_is_kept_by_a_cache_that_begins_at_4096_tokens(
    start_claude: StartClaude, open_memory: OpenMemory
) -> None:
    llm, server = start_claude(talker, model="claude-opus-4-5")
    server.cache = Blocks(from_=4_096)
    memory = open_memory(
        cache_points=True,
        condensed_token_limit=8_000,
        keep_ratio=0.7,
        llm=llm,
        extract_facts=False,
    )
    for i in range(60):
        await memory.aput(ChatMessage(f"{LONG[:2_000]} {i}"))
        await memory.aput((await llm.achat(await memory.aget())).message)
    prompts = [usage.prompt for usage in server.usages]
    cuts = [
        i for i, (before, now) in enumerate(pairwise(prompts), start=1) if now < before
    ]
    assert len(cuts) >= 2
    # What is written after a cut is found in the next turn.
    assert all(server.usages[i].written > 4_096 for i in cuts)
    assert [i for i in range(cuts[0], 60) if server.usages[i].found < 4_096] == cuts


async def test_blank_texts_beside_pictures_are_left_out(
    start_claude: StartClaude, open_memory: OpenMemory
) -> None:
    """In the turn that goes on and in the next, of users, of assistants that call tools, and of tools' results."""
    llm, server = start_claude(lambda messages, tools: say("A dot."))
    memory, picture = open_memory(), ImageBlock(image=PIXEL)
    blank = [TextBlock(text=" \n"), picture, TextBlock(text="")]
    call_block = ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs={})
    for i in range(3):
        await memory.aput(
            ChatMessage(
                role="user", blocks=[*blank, TextBlock(text="What?")][: 3 + i % 2]
            )
        )
        await memory.aput(
            ChatMessage(role="assistant", blocks=[TextBlock(text="\n\n"), call_block])
        )
        await memory.aput(
            ChatMessage(
                role="tool", blocks=blank, additional_kwargs={"tool_call_id": "c1"}
            )
        )
        asked = await memory.aget()
        assert all(
            block.text.strip()
            for message in asked
            for block in message.blocks
            if isinstance(block, TextBlock)
        )
        await memory.aput((await llm.achat(asked)).message)
    assert server.refusals == []
    assert len(server.requests) == 3
    assert len((await memory.aget_all())[0].blocks) == 3


async def test_a_tool_loop_finds_the_question_and_with_a_mark_of_the_server_the_results(
    start_claude: StartClaude, open_memory: OpenMemory
) -> None:
    """From the second turn with tools on, the first request of a turn writes its question."""

    def walker(messages: list[Message], tools: list[str]) -> Message:
        results = [
            part for part in messages[-1]["content"] if part["type"] == "tool_result"
        ]
        seen = len(messages) // 2
        return (
            say("Bath.")
            if seen == 3
            else call((f"toolu_{seen}", "look", {"place": seen + len(results)}))
        )

    def look(place: int) -> str:
        """Look at a place."""
        return f"{place} " * 400

    for asked_for in ({}, {"cache_control": {"type": "ephemeral"}}):
        llm, server = start_claude(walker, additional_kwargs=asked_for)
        memory = open_memory(
            f"chat {len(asked_for)}", cache_points=True, condensed_token_limit=12_000
        )
        for i in range(3):
            await FunctionAgent(llm=llm, tools=[look], streaming=False).run(
                f"{i}: {LONG}", memory=memory
            )
        assert server.refusals == []
        turn = server.usages[-4:]
        for before, now in pairwise(turn):
            assert now.found == (before.prompt if asked_for else turn[0].prompt)
        assert turn[0].found > 1_024
