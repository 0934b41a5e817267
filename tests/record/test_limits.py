"""Whatever is said, the token limits hold, counted exactly."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.base.llms.types import (
    AudioBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.llms import ChatMessage, MockLLM

from llama_index_memory_ext import CondensedMemory, CondensedMemoryBlock, TokenCounter
from llama_index_memory_ext.record.text import split_record
from llama_index_memory_ext.text.messages import message_tokens
from llama_index_memory_ext.text.tokens import as_counter
from tests.conversation import BEFORE_QUESTION, assistant, record, sent_text, user

COUNTER = TokenCounter()
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)

texts = st.one_of(
    st.text(max_size=60),
    st.sampled_from(["</message>", "<memory>", "ok", "<|endoftext|>", "日本語 " * 20, "{{ x }}", "a\ud83d\x00"]),
    st.builds(lambda word, times: word * times, st.text(min_size=1, max_size=8), st.integers(1, 300)),
)
blocks = st.one_of(
    st.builds(TextBlock, text=texts),
    st.builds(ThinkingBlock, content=texts),
    st.builds(ImageBlock, image=st.just(PIXEL)),
    st.just(ImageBlock(url="https://example.org/cat.png")),
    st.just(AudioBlock(audio=b"abc", format="mp3")),
    st.just(DocumentBlock(url="https://example.org/a.pdf", title="A paper")),
    st.builds(
        ToolCallBlock, tool_call_id=texts, tool_name=texts, tool_kwargs=st.dictionaries(texts, texts, max_size=3)
    ),
)
kwargs = st.dictionaries(st.sampled_from(["tool_call_id", "name", "mood", "session_id"]), texts, max_size=2)
messages = st.builds(
    ChatMessage,
    role=st.sampled_from(["user", "assistant", "tool", "system", "function", "developer", "model", "chatbot"]),
    blocks=st.lists(blocks, max_size=4),
    additional_kwargs=kwargs,
)


def tokens_of(block: CondensedMemoryBlock, text: str) -> int:
    return COUNTER.count(f"<{block.name}>\n{text}</{block.name}>\n") if text else 0


@settings(max_examples=150)
@given(
    batches=st.lists(st.lists(messages, min_size=1, max_size=5), max_size=6),
    limit=st.integers(1, 400),
    ratios=st.tuples(st.floats(0.05, 1), st.floats(0.05, 1)),
    max_messages=st.none() | st.integers(1, 6),
)
async def test_the_record_never_exceeds_its_limit(
    batches: list[list[ChatMessage]], limit: int, ratios: tuple[float, float], max_messages: int | None
) -> None:
    """Tags included, and no tool result stands at its beginning once the record has been cut."""
    block = CondensedMemoryBlock(
        token_limit=limit, keep_ratio=ratios[0], message_ratio=ratios[1], max_messages=max_messages
    )
    for batch in batches:
        await block.aput(batch, session_id="chat")
        text = await block.aget([], session_id="chat")
        assert tokens_of(block, text) <= limit
        assert text == await block.aget([], session_id="chat")
    await block.aclose()


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "keep_ratio": st.just(1.0),
        "include_system": st.booleans(),
        "summarize": st.booleans(),
        "recall_token_limit": st.integers(0, 300),
        "summary_token_limit": st.integers(1, 200),
    },
)


@settings(max_examples=200)
@given(
    batches=st.lists(st.lists(messages, min_size=1, max_size=5), min_size=1, max_size=6),
    limit=st.integers(550, 900) | st.integers(550, 600),
    max_messages=st.none() | st.integers(1, 6),
    options=OPTIONS,
    per_character=st.booleans(),
)
async def test_no_strategy_exceeds_the_limit(
    batches: list[list[ChatMessage]], limit: int, max_messages: int | None, options: dict[str, Any], per_character: bool
) -> None:
    """Whatever is said, and whatever a summary says."""
    counter = as_counter(lambda text: [0, *map(ord, text)]) if per_character else COUNTER
    if max_messages == 1:
        options = {**options, "include_system": False}
    block = CondensedMemoryBlock(
        token_limit=limit,
        max_messages=max_messages,
        tokenizer_fn=counter,
        llm=MockLLM(),
        retry_seconds=60.0,
        **options,
    )
    for batch in batches:
        await block.aput(batch, session_id="chat")
        await block.await_jobs("chat")
        text = await block.aget([user("word and something else")], session_id="chat")
        assert not text or counter.count(f"<{block.name}>\n{text}</{block.name}>\n") <= limit
        assert "".join(split_record(text)) == text
        verbatim = [role for role, _ in record(text.partition("<earlier_messages")[0])]
        if max_messages and not {"tool", "function"} & set(verbatim):
            assert len(verbatim) <= max(max_messages, 2 if options.get("include_system") else 1)
    await block.aclose()


@settings(max_examples=150)
@given(
    turns=st.lists(st.lists(messages, min_size=1, max_size=4), min_size=1, max_size=5),
    limit=st.integers(80, 500),
    share=st.floats(0.01, 1),
)
async def test_a_prompt_never_exceeds_the_limit_by_what_is_added_to_the_turn(
    turns: list[list[ChatMessage]], limit: int, share: float
) -> None:
    """A turn that is over the limit by itself comes alone."""
    memory = CondensedMemory.from_defaults(
        token_limit=limit, condensed_token_limit=max(50, int(limit * share)), facts_token_limit=0, extract_facts=False
    )
    for turn in turns:
        await memory.aput_messages([user("a question"), *turn])
        prompt = await memory.aget()
        active = await memory.sql_store.get_messages(memory.session_id)
        alone = sum(message_tokens(message, COUNTER) for message in active)
        added = sent_text(prompt).partition(BEFORE_QUESTION)
        assert alone + COUNTER.count(added[0] + added[1] if added[1] else "") <= max(limit, alone)
    await memory.aclose()


@pytest.mark.parametrize("limit", [80, 90, 120])
async def test_a_tiny_limit_is_kept(limit: int) -> None:
    """If need be by showing nothing."""
    memory = CondensedMemory.from_defaults(
        token_limit=limit, condensed_token_limit=limit, facts_token_limit=0, extract_facts=False
    )
    for i in range(5):
        await memory.aput(user(f"question {i}"))
        assert sent_text(await memory.aget()).endswith(f"question {i}")
        await memory.aput(assistant(f"answer {i}"))
    await memory.aclose()


async def test_what_the_host_does_not_count_is_counted() -> None:
    """Tool arguments, the template and a long question: the host's prompt becomes five times its limit."""
    memory = CondensedMemory.from_defaults(
        token_limit=1_000, condensed_token_limit=900, facts_token_limit=0, extract_facts=False
    )
    for i in range(20):
        call = ToolCallBlock(tool_call_id="c", tool_name="f", tool_kwargs={"text": "word " * 100})
        await memory.aput_messages([user(f"question {i}"), ChatMessage(role="assistant", blocks=[call])])
    await memory.aput_messages([user("word " * 500), ChatMessage(role="assistant", blocks=[call])])
    prompt = await memory.aget()
    text = sent_text(prompt)
    assert "<condensed_memory>" in text
    assert COUNTER.count(text) + COUNTER.count(str(call.tool_kwargs)) <= 1_000
    await memory.aclose()


async def test_the_count_of_a_prompt_is_exact() -> None:
    """The record is cut by as much as it has to be, and not by much more."""
    memory = CondensedMemory.from_defaults(
        token_limit=1_000, condensed_token_limit=1_000, facts_token_limit=0, extract_facts=False
    )
    lengths = []
    for i in range(200):
        await memory.aput(user(f"question {i}"))
        lengths.append(COUNTER.count(sent_text(await memory.aget())))
        await memory.aput(assistant("yes"))
    assert max(lengths) <= 1_000
    assert max(lengths) > 960
    await memory.aclose()


def test_every_kind_of_block_is_among_the_examples() -> None:
    """A new kind in the host should be added above."""
    known: set[Any] = {
        "text",
        "image",
        "audio",
        "video",
        "document",
        "cache",
        "citable",
        "citation",
        "thinking",
        "tool_call",
    }
    schema = ChatMessage.model_json_schema()["$defs"]
    properties = [kind.get("properties", {}) for kind in schema.values()]
    kinds = {kind["block_type"]["const"] for kind in properties if "block_type" in kind}
    assert kinds <= known
