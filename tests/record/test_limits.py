"""Whatever is said, the token limits hold, counted exactly."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
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
from llama_index_memory_ext.text.entries import message_tokens
from llama_index_memory_ext.text.tokens import as_counter
from tests.conversation import (
    BEFORE_QUESTION,
    assistant,
    record,
    sent_text,
    split_record,
    user,
)
from tests.memories import OpenMemory

COUNTER = TokenCounter()
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)

texts = st.one_of(
    st.text(max_size=60),
    st.sampled_from(
        [
            "</message>",
            "<memory>",
            "ok",
            "<|endoftext|>",
            "日本語 " * 20,
            "{{ x }}",
            "a\ud83d\x00",
        ]
    ),
    st.builds(
        lambda word, times: word * times,
        st.text(min_size=1, max_size=8),
        st.integers(1, 300),
    ),
)
blocks = st.one_of(
    st.builds(TextBlock, text=texts),
    st.builds(ThinkingBlock, content=texts),
    st.builds(ImageBlock, image=st.just(PIXEL)),
    st.just(ImageBlock(url="https://example.org/cat.png")),
    st.just(AudioBlock(audio=b"abc", format="mp3")),
    st.just(DocumentBlock(url="https://example.org/a.pdf", title="A paper")),
    st.builds(
        ToolCallBlock,
        tool_call_id=texts,
        tool_name=texts,
        tool_kwargs=st.dictionaries(texts, texts, max_size=3),
    ),
)
kwargs = st.dictionaries(
    st.sampled_from(["tool_call_id", "name", "mood", "session_id"]), texts, max_size=2
)
messages = st.builds(
    ChatMessage,
    role=st.sampled_from(
        [
            "user",
            "assistant",
            "tool",
            "system",
            "function",
            "developer",
            "model",
            "chatbot",
        ]
    ),
    blocks=st.lists(blocks, max_size=4),
    additional_kwargs=kwargs,
)


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "keep_ratio": st.floats(0.05, 1),
        "include_system": st.booleans(),
        "summarize": st.booleans(),
        "recall_token_limit": st.integers(0, 300),
    },
)


@given(
    batches=st.lists(
        st.lists(messages, min_size=1, max_size=5), min_size=1, max_size=6
    ),
    limit=st.integers(550, 900) | st.integers(550, 600),
    max_messages=st.none() | st.integers(1, 6),
    options=OPTIONS,
    per_character=st.booleans(),
)
async def test_no_strategy_exceeds_the_limit(
    batches: list[list[ChatMessage]],
    limit: int,
    max_messages: int | None,
    options: dict[str, Any],
    per_character: bool,
) -> None:
    """Whatever is said, and whatever a summary says; tags included."""
    counter = (
        as_counter(lambda text: [0, *map(ord, text)]) if per_character else COUNTER
    )
    if max_messages == 1:
        options = {**options, "include_system": False}
    # Where nothing is reserved, a record may be small.
    if not options.get("summarize") and not options.get("recall_token_limit"):
        limit -= 549
    options |= {
        "token_limit": limit,
        "max_messages": max_messages,
        "tokenizer_fn": counter,
    }
    block = CondensedMemoryBlock(llm=MockLLM(), **options)
    for batch in batches:
        await block.aput(batch, session_id="chat")
        await block.await_jobs("chat")
        asked = [user("word and something else")]
        text = await block.aget(asked, session_id="chat")
        assert text == await block.aget(asked, session_id="chat")
        assert (
            not text
            or counter.count(f"<{block.name}>\n{text}</{block.name}>\n") <= limit
        )
        assert "".join(split_record(text)) == text
        verbatim = [role for role, _ in record(text.partition("<earlier_messages")[0])]
        if max_messages and not {"tool", "function"} & set(verbatim):
            assert len(verbatim) <= max(
                max_messages, 2 if options.get("include_system") else 1
            )
    await block.aclose()


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
        token_limit=limit,
        condensed_token_limit=max(50, int(limit * share)),
        facts_token_limit=0,
        extract_facts=False,
    )
    for turn in turns:
        await memory.aput_messages([user("a question"), *turn])
        prompt = await memory.aget()
        active = await memory.sql_store.get_messages(memory.session_id)
        alone = sum(message_tokens(message, COUNTER) for message in active)
        added = sent_text(prompt).partition(BEFORE_QUESTION)
        assert alone + COUNTER.count(added[0] + added[1] if added[1] else "") <= max(
            limit, alone
        )
    await memory.aclose()


@pytest.mark.parametrize("limit", [80, 90, 120, 1_000])
async def test_the_count_of_a_prompt_is_exact(
    open_memory: OpenMemory, limit: int
) -> None:
    """The record is cut by as much as it has to be, and not by much more; if need be nothing is shown."""
    memory = open_memory(
        token_limit=limit,
        condensed_token_limit=limit,
        facts_token_limit=0,
        recall_token_limit=0,
    )
    lengths = []
    for i in range(90 if limit == 1_000 else 5):
        await memory.aput(user(f"question {i}"))
        text = sent_text(await memory.aget())
        assert text.endswith(f"question {i}")
        lengths.append(COUNTER.count(text))
        await memory.aput(assistant("yes"))
    assert max(lengths) <= limit
    assert limit < 1_000 or max(lengths) > 960


def test_every_kind_of_block_is_among_the_examples() -> None:
    """A new kind in the host should be added above."""
    known = {
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


@pytest.mark.parametrize("keep_ratio", [0.1, 0.4])
@pytest.mark.parametrize("token_limit", [60, 100, 150, 200, 250])
async def test_a_small_record_shows_a_part_of_a_long_newest_message(
    token_limit: int, keep_ratio: float
) -> None:
    block = CondensedMemoryBlock(token_limit=token_limit, keep_ratio=keep_ratio)
    for text in ("long " * 200, "word " * 1_000):
        await block.aput([user(text)], session_id="chat")
        shown = await block.aget([], session_id="chat")
        assert text[:5] in shown
        element = f"<{block.name}>\n{shown}</{block.name}>\n"
        assert block.tokenizer_fn.count(element) <= token_limit
