"""No key is among the local variables of our own frames, which some logs show with a traceback."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.settings import Settings
from llama_index.llms.openai import OpenAI

import llama_index_memory_ext
from llama_index_memory_ext import (
    CachingOpenAI,
    CondensedMemory,
    CondensedMemoryBlock,
    FactReplyError,
    LimitError,
    MemoryExtError,
    RelevantFactsBlock,
)
from llama_index_memory_ext.errors import SummaryReplyError
from llama_index_memory_ext.facts.prompt import ask_for_facts
from llama_index_memory_ext.record.summary import ask_for_summary
from llama_index_memory_ext.search.embeddings import EmbeddingRanker
from llama_index_memory_ext.search.tfidf import Document
from llama_index_memory_ext.text.messages import Entry
from llama_index_memory_ext.text.tokens import TokenCounter
from tests.conversation import assistant, user
from tests.memories import OpenMemory
from tests.openai_server import Message, call, fail, say
from tests.scripted_models import StartClient, StartModel

KEY = "sk-test-key"
OURS = str(Path(llama_index_memory_ext.__file__).parent)
NEW_FACT = {"label": "n1", "content": "Lives in Paris", "category": "knowledge", "confidence": 0.9}
NOTHING_NEW = '{"new_facts": [], "confirmed": [], "retired": []}'
REPORT = {"new_facts": [{**NEW_FACT, "quote": "I live in Paris"}], "confirmed": [], "retired": []}


class Stacks:
    """What our frames hold while a model is asked, and how often it is."""

    def __init__(self) -> None:
        self.asked = 0
        self.shown = ""

    def look(self) -> None:
        self.asked += 1
        frame: Any = sys._getframe(1)
        while frame:
            if frame.f_code.co_filename.startswith(OURS):
                self.shown += f"{frame.f_code.co_name} {dict(frame.f_locals)!r}\n"
            frame = frame.f_back


STACKS = Stacks()


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was seen yet, and what a test sets in the settings is taken back."""
    monkeypatch.setattr(sys.modules[__name__], "STACKS", Stacks())
    monkeypatch.setattr(Settings, "_llm", None)


class WatchingOpenAI(OpenAI):
    """Looks at who asks it."""

    async def achat(self, *args: Any, **kwargs: Any) -> Any:
        STACKS.look()
        return await super().achat(*args, **kwargs)

    async def achat_with_tools(self, *args: Any, **kwargs: Any) -> Any:
        STACKS.look()
        return await super().achat_with_tools(*args, **kwargs)


class SlowEmbedding(MockEmbedding):
    """Has no asynchronous methods of its own, and fails."""

    api_key: str = KEY

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        STACKS.look()
        raise RuntimeError("No embedding today.")

    def _get_query_embedding(self, query: str) -> list[float]:
        STACKS.look()
        raise RuntimeError("No embedding today.")


class WatchingEmbedding(SlowEmbedding):
    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._get_text_embeddings(texts)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


def locals_of(error: BaseException) -> str:
    """The local variables of our frames in a traceback, as a log would show them."""
    found = traceback.TracebackException.from_exception(error, capture_locals=True)
    frames = [frame for one in chained(found) for frame in one.stack if frame.filename.startswith(OURS)]
    assert frames
    return "\n".join(f"{frame.name} {frame.locals}" for frame in frames)


def chained(error: traceback.TracebackException | None) -> Iterator[traceback.TracebackException]:
    if error is not None:
        yield error
        yield from chained(error.__cause__)
        yield from chained(error.__context__)


def failing(messages: list[Message], tools: list[str]) -> Message:
    return fail(500, "Not today.")


def verifying(messages: list[Message], tools: list[str]) -> Message:
    """Reports a fact, and fails when it is to verify it."""
    return call(("c", tools[0], REPORT)) if tools == ["report_facts"] else failing(messages, tools)


# ---- while a model is asked ---------------------------------------------------------------------------


@pytest.mark.parametrize("of_settings", [False, True])
@pytest.mark.parametrize(
    ("model", "options"),
    [
        (failing, {}),
        (failing, {"pydantic_program_mode": "llm"}),
        (verifying, {"verify": True}),
        (failing, {"summarize": True, "max_messages": 2}),
    ],
)
async def test_no_frame_that_asks_a_model_holds_its_key(
    open_memory: OpenMemory, start_client: StartClient, model: Any, options: dict[str, Any], of_settings: bool
) -> None:
    """To extract facts, to verify them and to sum up, whether it is ours or that of the settings."""
    mode = {name: options[name] for name in ("pydantic_program_mode",) if name in options}
    llm, _ = start_client(WatchingOpenAI, model, **mode)
    Settings.llm = llm if of_settings else MockLLM()
    given = {} if of_settings else {"llm": llm}
    others = {name: value for name, value in options.items() if name not in mode}
    memory = open_memory(**given, extract_facts=True, **others)
    await memory.aput_messages([user("I live in Paris, and I like tea."), assistant("Noted.")] * 3)
    await memory.aget()
    await memory.aflush()
    assert STACKS.asked >= 1 + len({"verify", "summarize"} & options.keys())
    assert "llm" in STACKS.shown
    assert KEY not in STACKS.shown
    assert KEY not in f"{vars(memory)} {[(vars(one), one.__pydantic_private__) for one in memory.memory_blocks]}"


@pytest.mark.parametrize("kind", [SlowEmbedding, WatchingEmbedding])
async def test_no_frame_that_embeds_holds_the_key_of_the_model(
    open_memory: OpenMemory, kind: type[SlowEmbedding]
) -> None:
    """Facts, messages and questions."""
    model = kind(embed_dim=3)
    memory = open_memory(embed_model=model, recall_token_limit=100, condensed_token_limit=400, max_messages=2)
    await memory.facts.aadd("Likes tea")
    await memory.aput_messages([user("I live in Paris."), assistant("Noted.")] * 3)
    await memory.aput(user("Where do I live?"))
    await memory.aget()
    await memory.condensed_block.asearch("Paris", session_id="chat")
    with pytest.raises(RuntimeError, match="No embedding today") as error:
        await ranker_of(model).embed_documents()
    assert STACKS.asked >= 2
    assert KEY not in STACKS.shown + locals_of(error.value)
    assert KEY not in f"{vars(memory)} {[(vars(one), one.__pydantic_private__) for one in memory.memory_blocks]}"
    assert memory.facts_block.embed_model is model


def ranker_of(model: SlowEmbedding) -> EmbeddingRanker:
    ranker = EmbeddingRanker(model)
    ranker.add([Document("1", "Likes tea")])
    return ranker


# ---- in an error --------------------------------------------------------------------------------------


def test_an_error_about_limits_does_not_show_the_model() -> None:
    llm, embed_model = OpenAI(model="gpt-4", api_key=KEY), SlowEmbedding(embed_dim=3)
    with pytest.raises(LimitError) as error:
        CondensedMemory.from_defaults(llm=llm, embed_model=embed_model, token_limit=60_000)
    assert KEY not in locals_of(error.value)


@pytest.mark.parametrize("make", [CondensedMemoryBlock, RelevantFactsBlock, CondensedMemory.from_defaults])
@pytest.mark.parametrize("mistake", [{"token_limit": "8k"}, {"retry_seconds": 0}, {"embed_model": KEY}])
def test_an_error_about_a_setting_does_not_show_the_model(make: Any, mistake: dict[str, Any]) -> None:
    """Nor a key that was given in its place."""
    options = {"llm": OpenAI(model="gpt-4", api_key=KEY), "embed_model": SlowEmbedding(embed_dim=3), **mistake}
    with pytest.raises(MemoryExtError, match=next(iter(mistake))) as error:
        make(**options)
    assert KEY not in locals_of(error.value) + str(error.value)


async def test_an_error_of_the_model_that_marks_caches_does_not_show_its_key(start_client: StartClient) -> None:
    llm, _ = start_client(CachingOpenAI, failing)
    with pytest.raises(Exception, match="Not today") as error:
        await llm.achat([user("Hello")])
    assert KEY not in locals_of(error.value) + repr(llm)


async def test_an_error_about_a_reply_does_not_show_what_the_model_has_said(start_model: StartModel) -> None:
    """But in the attribute for it, and in a pickle."""
    llm, _ = start_model(lambda messages, tools: say("my secret, repeated"))
    entry = Entry(1, '<message role="user">Hello</message>\n', 9)
    with pytest.raises(FactReplyError) as facts_error:
        await ask_for_facts(llm, [user("Hello"), user("Report")])
    llm, _ = start_model(lambda messages, tools: say("I cannot do that: my secret." * 3_000))
    with pytest.raises(SummaryReplyError) as summary_error:
        await ask_for_summary(llm, "Old and long. " * 30, [entry], token_limit=500, counter=TokenCounter())
    for error in (facts_error.value, summary_error.value):
        assert "my secret" in error.reply
        assert "my secret" in pickle.loads(pickle.dumps(error)).reply
        shown = "".join(traceback.format_exception(error))
        assert "my secret" not in f"{error!r} {error} {error.args} {shown}"


# ---- the fields ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_type", [CondensedMemoryBlock, RelevantFactsBlock])
def test_a_block_gives_back_the_models_that_it_was_given(block_type: Any) -> None:
    """However they were given, and however the block is copied."""
    llm, other, embedding = OpenAI(api_key=KEY), OpenAI(api_key=KEY), SlowEmbedding(embed_dim=3)
    block = block_type(llm=llm, embed_model=embedding)
    assert block.llm is llm
    assert block.chosen_llm().model == llm.model
    assert block.embed_model is embedding
    assert block.model_copy().llm is copy.copy(block).llm is llm
    changed = block.model_copy(update={"llm": other})
    assert changed.llm is other
    assert copy.deepcopy(block).embed_model is not None
    block.llm, block.embed_model = other, None
    assert (block.llm, block.embed_model) == (other, None)
    assert block_type(llm=changed.chosen_llm()).llm is other
    assert pickle.loads(pickle.dumps(block)).llm is None
    assert not {"llm", "embed_model"} & block.model_dump().keys()
    assert KEY not in f"{vars(block)} {vars(changed)} {dict(block)} {block.chosen_llm()!r}"
    assert "OpenAI" in str(vars(block)["llm"])
    with pytest.raises(ValueError, match="llm"):
        block_type(llm="gpt-4o")


async def test_what_a_server_refuses_is_remembered_beyond_the_memory(start_client: StartClient) -> None:
    """A web application makes a memory for each request."""
    llm, server = start_client(OpenAI, lambda messages, tools: say(NOTHING_NEW), pydantic_program_mode="llm")
    server.without_schemas = True
    for session_id in ("one", "two"):
        async with CondensedMemory.from_defaults(session_id, llm=llm) as memory:
            await memory.aput_messages([user("I live in Paris."), assistant("Noted.")])
        del memory
        gc.collect()
    assert (len(server.requests), len(server.refusals)) == (2, 1)
