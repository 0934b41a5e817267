"""The record in blocks that prompt caches find again, the marks at their ends, and which models need them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.base.llms.types import (
    CacheControl,
    CachePoint,
    ChatMessage,
    ContentBlock,
    TextBlock,
)
from llama_index.core.memory import InsertMethod, Memory, StaticMemoryBlock
from llama_index.core.prompts import RichPromptTemplate
from llama_index.core.storage.chat_store.base_db import MessageStatus

from llama_index_memory_ext import (
    CondensedMemory,
    LayoutError,
    MemoryBlocksTemplate,
)
from llama_index_memory_ext.models.ask import (
    needs_cache_points,
    takes_cache_points,
)
from llama_index_memory_ext.record.cache_points import MOST_BLOCKS
from tests.conversation import (
    BEFORE_QUESTION,
    assistant,
    calling,
    result,
    sent_text,
    user,
)
from tests.forked import run_forked
from tests.memories import OpenMemory
from tests.openai_server import say
from tests.scripted_models import StartModel

POINT = CachePoint(cache_control=CacheControl(type="ephemeral"))


def texts(messages: Sequence[ChatMessage]) -> list[str]:
    """The text blocks of the last user message."""
    return [
        block.text
        for block in question(messages).blocks
        if isinstance(block, TextBlock)
    ]


def question(messages: Sequence[ChatMessage]) -> ChatMessage:
    return [message for message in messages if message.role == "user"][-1]


def closed(messages: Sequence[ChatMessage]) -> list[str]:
    """The blocks of the record that are complete: all but the one with the end of the record, and the question."""
    return texts(messages)[:-2]


def marked(messages: Sequence[ChatMessage], place: int = -1) -> list[str]:
    """The beginnings of a message, by default the last user message, that end with a cache point."""
    blocks = messages[place].blocks if place >= 0 else question(messages).blocks
    places = [i for i, block in enumerate(blocks) if isinstance(block, CachePoint)]
    return [joined(blocks[:place]) for place in places]


def joined(blocks: Sequence[ContentBlock]) -> str:
    return "|".join(block.text for block in blocks if isinstance(block, TextBlock))


async def prompts_of(
    memory: Memory, turns: int, start: int = 0
) -> list[list[ChatMessage]]:
    """The prompt of each turn."""
    prompts = []
    for i in range(start, start + turns):
        await memory.aput(
            user(f"This is the question number {i}, with a few more words to it.")
        )
        prompts.append(await memory.aget())
        await memory.aput(assistant(f"And this is answer number {i}."))
    return prompts


@settings(max_examples=30)
@given(
    lengths=st.lists(
        st.tuples(st.integers(1, 60), st.integers(0, 60)), min_size=1, max_size=40
    ),
    limit=st.integers(100, 1_500),
    options=st.sampled_from(
        [{}, {"include_system": True}, {"max_messages": 7}, {"recall_token_limit": 40}]
    ),
)
async def test_blocks_stay_as_they_are_until_a_cut(
    lengths: list[tuple[int, int]], limit: int, options: dict[str, Any]
) -> None:
    """And there are only so many; joined they are the text of the block."""
    settings: dict[str, Any] = {"condensed_token_limit": limit, "extract_facts": False}
    async with CondensedMemory.from_defaults(**settings, **options) as memory:
        before: list[str] = []
        position = 0
        for asked, answered in lengths:
            await memory.aput(user("word " * asked))
            prompt = await memory.aget()
            if len(prompt[-1].blocks) > 1:
                # The last message of the prompt holds the record, too.
                question = user("word " * asked)
                content = await memory.condensed_block.aget(
                    [question], session_id=memory.session_id
                )
                element = f"<memory>\n<condensed_memory>\n{content}</condensed_memory>\n{BEFORE_QUESTION}"
                assert "".join(texts(prompt)[:-1]) == element
                now = closed(prompt)
                assert len(now) <= MOST_BLOCKS
                was_cut = (await memory.astats()).left != position
                assert was_cut or now[: len(before)] == before
                before, position = now, (await memory.astats()).left
            await memory.aput(assistant("word " * answered))


async def test_after_a_summary_every_process_shows_the_same_blocks(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    """And they stay as they are until the next one."""
    llm, _ = start_model(
        lambda messages, tools: say(
            "They have asked questions with a number and an answer."
        )
    )
    options: dict[str, Any] = {
        "condensed_token_limit": 1_000,
        "summarize": True,
        "llm": llm,
        "extract_facts": False,
    }
    options["recall_token_limit"] = 0
    memory = open_memory(cache_points=True, **options)
    prompts = await prompts_of(memory, 24)
    while "<conversation_summary>" not in sent_text(prompts[-1]):
        await memory.aflush()
        prompts += await prompts_of(memory, 1, start=len(prompts))
    await memory.aput(user("And?"))
    there = await open_memory(cache_points=True, **options).aget()
    here = await memory.aget()
    assert (texts(there), marked(there)) == (texts(here), marked(here))
    assert len(marked(there)) == 2
    assert "They have asked" in closed(there)[0]
    assert closed(there)[: len(closed(prompts[-1]))] == closed(prompts[-1])


async def test_a_prompt_that_its_owner_changes_changes_no_other(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory(condensed_token_limit=200, cache_points=True)
    await memory.aput_messages([user("one"), assistant("two"), user("three")])
    prompt = await memory.aget()
    before = texts(prompt)
    for block in question(prompt).blocks:
        if isinstance(block, TextBlock):
            block.text = "changed"
    assert len(before) > 2
    assert texts(await memory.aget()) == before


async def test_the_text_is_the_same_with_cache_points_as_without(
    open_memory: OpenMemory,
) -> None:
    """And the blocks stay when the turn is deleted."""
    memory = open_memory(condensed_token_limit=2_000)
    await memory.facts.aadd("Likes tea")
    (*_, prompt) = await prompts_of(memory, 12)
    await memory.areset(MessageStatus.ACTIVE)
    await memory.aput(user("And?"))
    plain = await memory.aget()
    assert (closed(plain), marked(plain)) == (closed(prompt), [])
    assert texts(plain)[0].count("<user_profile>") == 1
    memory.cache_points = True
    assert sent_text(await memory.aget()) == sent_text(plain)


async def test_each_prompt_marks_where_the_one_before_has_ended(
    open_memory: OpenMemory,
) -> None:
    """The newest mark of a prompt is among those of the next one, with the same blocks before it.

    Also where several turns come between two prompts: OpenAI does not look back from a mark. And also in a prompt
    that is made twice, because the first of both may never be sent.
    """
    memory = open_memory(condensed_token_limit=2_000, cache_points=True)
    prompts = await prompts_of(memory, 30)
    for i in range(5):
        await memory.aput_messages(
            [user(f"Question {i}, that was not sent?"), assistant("An answer.")]
        )
    await memory.aput(user("And?"))
    prompts.append(await memory.aget())
    for before, now in pairwise(prompts[2:]):
        assert marked(before)[-1] in marked(now)
        assert len(marked(now)) <= 2 + (now is prompts[-1])
        assert question(now).additional_kwargs["session_id"] == "chat"
    assert marked(prompts[-2])[-1].endswith("And this is answer number 28.</message>\n")
    assert marked(prompts[-2])[-1] in marked(await memory.aget())


async def test_a_question_that_is_sent_again_ends_with_a_mark(
    open_memory: OpenMemory,
) -> None:
    """As for each tool call of an agent: facts, recalled messages and the question stay the same in all of them."""
    memory = open_memory(condensed_token_limit=2_000, cache_points=True)
    (*_, prompt) = await prompts_of(memory, 5)
    assert not isinstance(question(prompt).blocks[-1], CachePoint)
    await memory.aput(user("Is Zanzibar warm?"))
    first, second = await memory.aget(), await memory.aget()
    assert isinstance(question(second).blocks[-1], CachePoint)
    # The memory knows the question again, and yet a pickle has nothing of it.
    assert b"Is Zanzibar" not in pickle.dumps(memory)
    assert marked(second)[:-1] == marked(first)
    await memory.aput_messages([calling(("1", "look", {})), result("1", "found")])
    third = await memory.aget()
    assert marked(third) == marked(second)
    assert [message.role for message in third] == ["user", "assistant", "tool"]


async def test_after_a_turn_with_tools_a_question_ends_with_a_mark_at_once(
    open_memory: OpenMemory,
) -> None:
    """Also in a process that has not seen that turn. After a turn without tools it does not."""
    options: dict[str, Any] = {"condensed_token_limit": 2_000, "cache_points": True}
    memory = open_memory(**options)
    await prompts_of(memory, 5)
    await memory.aput(user("Is it warm?"))
    await memory.aget()
    await memory.aput_messages(
        [
            calling(("1", "look", {})),
            result("1", "30"),
            assistant("Yes."),
            user("Is it dry?"),
        ]
    )
    for one in (open_memory(**options), memory):
        prompt = await one.aget()
        assert isinstance(question(prompt).blocks[-1], CachePoint)
        # With a mark that the provider sets there are four.
        assert len(marked(prompt)) == 3
    await memory.aput_messages([assistant("No."), user("Is it far?")])
    assert not isinstance(question(await memory.aget()).blocks[-1], CachePoint)


async def test_a_template_of_ones_own_that_extends_ours_is_used(
    open_memory: OpenMemory,
) -> None:
    class Headed(MemoryBlocksTemplate):
        def format_messages(self, llm: Any = None, **kwargs: Any) -> list[ChatMessage]:
            (message,) = super().format_messages(llm, **kwargs)
            return [
                ChatMessage(
                    role="user", blocks=[TextBlock(text="Before:"), *message.blocks]
                )
            ]

    template = Headed()  # type: ignore[call-arg]  # a type checker sees the fields, not the initialiser
    memory = open_memory(
        cache_points=True, condensed_token_limit=2_000, memory_blocks_template=template
    )
    (*_, prompt) = await prompts_of(memory, 3)
    assert texts(prompt)[:2] == ["Before:", closed(prompt)[1]]
    assert len(marked(prompt)) == 2


@pytest.mark.parametrize("own", [1, 2, 3])
async def test_there_are_never_more_than_four_with_those_of_a_further_block(
    open_memory: OpenMemory, own: int
) -> None:
    """The newest of ours stay."""
    rules: list[ContentBlock] = [TextBlock(text="Rules\n"), POINT]
    memory = open_memory(
        condensed_token_limit=2_000,
        cache_points=True,
        memory_blocks=[StaticMemoryBlock(name="rules", static_content=rules * own)],
    )
    prompt = (await prompts_of(memory, 5))[-1]
    marks = marked(prompt)
    assert own < len(marks) <= 4
    assert any(mark.endswith("answer number 3.</message>\n") for mark in marks)


@pytest.mark.parametrize("own", [0, 1, 2, 5])
async def test_there_are_never_more_than_four_with_those_of_the_user(
    open_memory: OpenMemory, own: int
) -> None:
    """All that the user has set stay; a control says how long ours do."""
    control = CacheControl(type="ephemeral", ttl="1h")
    memory = open_memory(condensed_token_limit=2_000, cache_points=control)
    await prompts_of(memory, 5)
    await memory.aput(
        ChatMessage(role="user", blocks=[TextBlock(text="And?"), *[POINT] * own])
    )
    await memory.aget()
    prompt = await memory.aget()
    assert len(marked(prompt)) == max(own, min(own + 2, 4), 3)
    assert question(prompt).blocks[-own:] == [POINT] * own or own == 0
    points = [
        block for block in question(prompt).blocks if isinstance(block, CachePoint)
    ]
    ours = [point.cache_control for point in points if point != POINT]
    assert all(one == control and one is not control for one in ours)
    assert len(ours) == len(points) - own


async def test_instructions_of_the_system_hold_the_blocks_too(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory(
        cache_points=True,
        insert_method=InsertMethod.SYSTEM,
        condensed_token_limit=2_000,
    )
    (*_, before, now) = await prompts_of(memory, 8)
    for prompt in (before, now):
        assert [message.role for message in prompt] == ["system", "user"]
        assert prompt[0].additional_kwargs["session_id"] == "chat"
    assert set(marked(before, 0)) & set(marked(now, 0))


async def test_what_is_empty_has_nothing_to_mark(open_memory: OpenMemory) -> None:
    memory = open_memory(cache_points=True)
    assert await memory.aget() == []
    await memory.aput(ChatMessage(role="user", blocks=[]))
    assert (
        await memory.aget()
        == await memory.aget()
        == [ChatMessage(role="user", blocks=[])]
    )


def test_a_template_that_makes_one_text_is_refused() -> None:
    template = RichPromptTemplate("{{ memory_blocks }}")
    with pytest.raises(
        LayoutError, match="memory_blocks_template is a RichPromptTemplate"
    ):
        CondensedMemory.from_defaults(
            cache_points=True, memory_blocks_template=template
        )


# ---- which models need them ---------------------------------------------------------------------------

GATEWAYS, REGIONS = (
    ["", "openai/", "openrouter/openai/", "ft:"],
    ["", "us.", "us-gov.", "bedrock/eu."],
)
ENDINGS = [
    "",
    "-sol",
    "-mini",
    "-2026-11-13",
    "-20250929-v1:0",
    "@20261113",
    ":acme::x1",
]
OTHERS = """chatgpt-4o gpt-5.5 gpt-5 gpt-4o gpt-35-turbo-16k gpt-oss-120b o3 deepseek-v4 gemini-3 llama3.3:70b
    claude-2.1 claude-instant-1.2 anthropic.claude-v2:1 supernova-pro amazon.nova-sonic my-gpt-6 openai.gpt-6 unknown"""


@pytest.mark.parametrize(
    ("needs", "places", "models"),
    [
        (True, GATEWAYS, "gpt-5.6 gpt-5.10 gpt-6 gpt-34"),
        (
            True,
            GATEWAYS,
            "claude-sonnet-4-5 claude-3-5-haiku claude-4-opus claude-next",
        ),
        (True, REGIONS, "anthropic.claude-sonnet-4-5 anthropic.claude-fable-5"),
        (
            True,
            REGIONS,
            "amazon.nova-micro amazon.nova-lite amazon.nova-pro amazon.nova-premier",
        ),
        (False, [*GATEWAYS, *REGIONS], OTHERS),
    ],
)
def test_every_gpt_claude_and_nova_with_such_a_cache_needs_cache_points_and_no_other_model(
    needs: bool, places: list[str], models: str
) -> None:
    names = ["".join(parts) for parts in product(places, models.split(), ENDINGS)]
    assert [name for name in names if needs_cache_points(name) is not needs] == []
    assert [
        name for name in names if needs_cache_points(name.upper()) is not needs
    ] == []


def test_only_openais_older_models_take_no_cache_points() -> None:
    older = (
        "gpt-5.5 gpt-5 openai/gpt-4o-mini gpt-35-turbo-16k ft:gpt-4.1:acme o3 o4-mini"
    )
    others = "gpt-5.6-sol openai/gpt-5.10 gpt-6-luna gpt-oss-120b my-deployment claude-sonnet-4-5 grok-4.7"
    assert [name for name in older.split() if takes_cache_points(name)] == []
    assert [name for name in others.split() if not takes_cache_points(name)] == []


PROGRAM = """
import logging
from llama_index.core.llms import MockLLM
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.openai import OpenAI
from llama_index_memory_ext import CondensedMemory

logging.basicConfig(format="%(levelname)s %(message)s")
gpts = [OpenAI(model=name, api_key="sk-secret") for name in ("gpt-5.5", "gpt-5.6-sol", "gpt-6-luna")]
claudes = [Anthropic(model=name, api_key="sk-secret") for name in ("claude-sonnet-4-5", "claude-sonnet-99")]
CondensedMemory.from_defaults(llm=gpts[1], cache_points=True)
for llm in [MockLLM(), *gpts, *claudes, *gpts]:
    CondensedMemory.from_defaults(llm=llm)
"""


def test_a_memory_without_cache_points_warns_once_for_each_model(
    tmp_path: Path,
) -> None:
    """Also if the model's class does not know the name."""
    done = run_forked(PROGRAM, folder=tmp_path)
    warnings = done.stderr.splitlines()
    named = ["gpt-5.6-sol", "gpt-6-luna", "claude-sonnet-4-5", "claude-sonnet-99"]
    for name, warning in zip(named, warnings, strict=True):
        assert warning.startswith(f"WARNING The prompt cache of {name} finds")
        assert "CachingOpenAI" in warning
        assert "from_defaults(cache_points=True)" in warning
    assert "sk-secret" not in done.stderr
