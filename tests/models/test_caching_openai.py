"""OpenAI's models cache prompts up to the cache points in their messages, whatever way they are asked."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from typing import Any

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
from llama_index.llms.openai import OpenAI, OpenAIResponses
from pydantic import BaseModel

from llama_index_memory_ext import CachingOpenAI, CachingOpenAIResponses
from tests.memories import OpenMemory
from tests.openai_caches import PromptCaches
from tests.openai_server import Message, call, say
from tests.scripted_models import StartClient

POINT = CachePoint(cache_control=CacheControl(type="ephemeral"))
BOTH = pytest.mark.parametrize("kind", [CachingOpenAI, CachingOpenAIResponses])
MARK = {"prompt_cache_breakpoint": {"mode": "explicit"}}
EXPLICIT = {"mode": "explicit"}
PIXEL = b"\x89PNG\r\n\x1a\n" + bytes(16)


@pytest.fixture
def start_client(start_client: StartClient) -> StartClient:
    """For a model that takes marks, if no other is named."""
    return lambda kind, model, /, **settings: start_client(
        kind, model, **{"model": "gpt-5.6-sol", **settings}
    )


class Town(BaseModel):
    """A town."""

    name: str


def asked(turn: int, session_id: str | None = "Ann's session") -> list[ChatMessage]:
    """A record that grows, with points at its end and where it ended before; then a question."""
    blocks: list[Any] = []
    for i in range(turn + 1):
        blocks.append(
            TextBlock(text=f"<turn n='{i}'>{'They talk of towns. ' * 300}</turn>\n")
        )
        blocks += [POINT] * (i >= turn - 1)
    blocks.append(TextBlock(text=f"Question {turn}: which town?"))
    kwargs = {"session_id": session_id} if session_id else {}
    return [ChatMessage(role="user", blocks=blocks, additional_kwargs=kwargs)]


def answer(messages: list[Message], tools: list[str]) -> Message:
    return (
        call(("call_1", tools[0], {"name": "Bath"}))
        if "Town" in tools
        else say('{"name": "Bath"}')
    )


async def said(llm: Any, way: str, messages: list[ChatMessage]) -> str:
    """What a model answers when it is asked by one of the ``WAYS``."""
    structured, _, name = way.rpartition(" ")
    asked = getattr(llm.as_structured_llm(Town) if structured else llm, name)(messages)
    answered = await asked if name.startswith("a") else asked
    if name == "astream_chat":
        answered = [part async for part in answered]
    last = list(answered)[-1] if "stream" in name else answered
    return str(last.message.content)


PLAIN_WAYS = ["chat", "achat", "stream_chat", "astream_chat"]
WAYS = [*PLAIN_WAYS, *(f"structured {name}" for name in PLAIN_WAYS)]
EACH_WAY = pytest.mark.parametrize("way", WAYS)


async def test_a_mark_stands_on_the_part_before_each_cache_point(
    start_client: StartClient,
) -> None:
    messages = [
        ChatMessage(role="system", blocks=[TextBlock(text="Be brief."), POINT]),
        ChatMessage(
            role="user",
            blocks=[
                POINT,
                TextBlock(text="a"),
                TextBlock(text="b"),
                POINT,
                TextBlock(text="c"),
            ],
        ),
        ChatMessage(role="assistant", blocks=[TextBlock(text="Yes."), POINT]),
        ChatMessage(
            role="user",
            blocks=[ImageBlock(image=PIXEL, image_mimetype="image/png"), POINT],
        ),
        ChatMessage(
            role="user", blocks=[POINT, TextBlock(text="d"), TextBlock(text="e")]
        ),
    ]
    llm, server = start_client(CachingOpenAI, answer)
    llm.chat(messages)
    system, first, reply, image, last = server.bodies[-1]["messages"]
    assert system == {
        "role": "developer",
        "content": [{"type": "text", "text": "Be brief.", **MARK}],
    }
    texts = [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b", **MARK},
        {"type": "text", "text": "c"},
    ]
    assert first == {"role": "user", "content": texts}
    assert reply == {"role": "assistant", "content": "Yes."}
    assert image["content"][0].keys() == {
        "type",
        "image_url",
        "prompt_cache_breakpoint",
    }
    assert last == {"role": "user", "content": "de"}
    assert server.bodies[-1]["prompt_cache_options"] == EXPLICIT
    assert "prompt_cache_key" not in server.bodies[-1]

    llm, server = start_client(CachingOpenAIResponses, answer)
    llm.chat(messages)
    system, first, reply, image, last = server.bodies[-1]["input"]
    assert system == {
        "role": "developer",
        "content": [{"type": "input_text", "text": "Be brief.", **MARK}],
    }
    assert [part.get("prompt_cache_breakpoint") for part in first["content"]] == [
        None,
        EXPLICIT,
        None,
    ]
    assert {part["type"] for part in first["content"]} == {"input_text"}
    assert (reply["role"], "prompt_cache" in json.dumps(reply)) == ("assistant", False)
    assert image["content"][0].keys() == {
        "type",
        "image_url",
        "detail",
        "prompt_cache_breakpoint",
    }
    assert last == {"role": "user", "content": "de"}


@BOTH
async def test_a_tool_loop_finds_the_results_that_it_was_sent_before(
    start_client: StartClient, kind: type[Any]
) -> None:
    """The changing end of a prompt is written only where the next prompt goes on from it: in a tool loop."""

    def walker(messages: list[Message], tools: list[str]) -> Message:
        results = sum(message["role"] == "tool" for message in messages)
        return (
            say("Bath.")
            if results == 3
            else call((f"call_{results}", "look", {"place": results}))
        )

    def look(place: int) -> str:
        """Look at a place."""
        return f"{place} " * 400

    llm, server = start_client(kind, walker)
    server.caches = PromptCaches()
    await FunctionAgent(llm=llm, tools=[look], streaming=False).run(asked(2)[0])
    modes = [body.get("prompt_cache_options") for body in server.bodies]
    assert modes == [EXPLICIT, None, None, None]
    for before, usage in zip(server.usages, server.usages[1:], strict=False):
        assert usage.found == before.found + before.written
    assert [usage.found + usage.written == usage.prompt for usage in server.usages] == [
        False,
        True,
        True,
        True,
    ]
    assert server.refusals == []


@BOTH
async def test_the_record_of_an_agents_memory_is_found_in_each_turn_but_after_a_cut(
    start_client: StartClient, open_memory: OpenMemory, kind: type[Any]
) -> None:
    """Also when each turn is served by another process."""
    llm, server = start_client(
        kind,
        lambda messages, tools: say("They talk of towns, and of nothing else. " * 15),
    )
    server.caches = PromptCaches()
    cuts = 0
    for i in range(16):
        memory = open_memory(cache_points=True, condensed_token_limit=2_500)
        await FunctionAgent(llm=llm).run(
            f"Question {i}: which town do they talk of?", memory=memory
        )
    for before, now in pairwise(server.usages):
        if now.prompt < before.prompt:
            cuts += 1
        elif before.prompt > 1_100:
            assert now.found == before.found + before.written
    assert cuts == 1
    keys = {
        body["prompt_cache_key"] for body in server.bodies if "prompt_cache_key" in body
    }
    assert keys == {hashlib.sha256(b"chat").hexdigest()[:32]}


@BOTH
async def test_a_tool_result_may_have_a_mark(
    start_client: StartClient, kind: type[Any]
) -> None:
    called = ChatMessage(
        role="assistant",
        blocks=[ToolCallBlock(tool_call_id="1", tool_name="f", tool_kwargs="{}")],
    )
    result = ChatMessage(
        role="tool",
        blocks=[TextBlock(text="a"), POINT],
        additional_kwargs={"tool_call_id": "1"},
    )
    llm, server = start_client(kind, answer)
    llm.chat([ChatMessage(role="user", content="Look."), called, result])
    (part,) = server.requests[-1][-1]["content"]
    assert (part["text"], part["prompt_cache_breakpoint"]) == ("a", EXPLICIT)


@BOTH
async def test_the_key_is_a_digest_of_the_session_unless_the_user_has_set_one(
    start_client: StartClient, kind: type[Any]
) -> None:
    llm, server = start_client(kind, answer)
    for messages in (asked(0), asked(1), asked(0, "Bob's session"), asked(0, None)):
        llm.chat(messages)
    keys = [body.get("prompt_cache_key") for body in server.bodies]
    assert keys[0] == keys[1] == hashlib.sha256(b"Ann's session").hexdigest()[:32]
    assert keys[2] not in (keys[0], None)
    assert keys[3] is None
    assert "session" not in json.dumps(server.bodies)

    own = {
        "prompt_cache_key": "mine",
        "prompt_cache_options": {"mode": "implicit"},
        "extra_body": {"seed": 1},
    }
    llm, server = start_client(kind, answer, additional_kwargs=own)
    llm.chat(asked(0))
    body = server.bodies[-1]
    assert (body["prompt_cache_key"], body["prompt_cache_options"], body["seed"]) == (
        "mine",
        {"mode": "implicit"},
        1,
    )
    assert "prompt_cache_breakpoint" in json.dumps(body)


@BOTH
@EACH_WAY
async def test_an_older_model_gets_the_key_of_the_session_and_no_marks(
    start_client: StartClient, kind: type[Any], way: str
) -> None:
    """It finds the longest common beginning without them."""
    llm, server = start_client(kind, answer, model="gpt-4o-mini")
    server.older, server.caches = True, PromptCaches()
    for turn in range(2):
        assert "name" in await said(llm, way, asked(turn))
    assert server.refusals == []
    assert {body["prompt_cache_key"] for body in server.bodies} == {
        hashlib.sha256(b"Ann's session").hexdigest()[:32]
    }
    assert "breakpoint" not in json.dumps(server.bodies)
    assert server.usages[-1].found > 1_024


@BOTH
def test_a_model_in_a_traceback_shows_no_key(kind: type[Any]) -> None:
    headers = {"Authorization": "Bearer hidden"}
    llm = kind(model="gpt-5.6-sol", api_key="sk-hidden", default_headers=headers)
    assert "hidden" not in repr(llm)


@pytest.mark.parametrize(
    ("kind", "parent"),
    [(CachingOpenAI, OpenAI), (CachingOpenAIResponses, OpenAIResponses)],
)
async def test_a_request_without_cache_points_is_that_of_the_parent(
    start_client: StartClient, kind: type[Any], parent: type[Any]
) -> None:
    messages = [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(
            role="user",
            blocks=[TextBlock(text="a"), TextBlock(text="b")],
            additional_kwargs={"session_id": "s"},
        ),
    ]
    # Structured answers of Responses are asked for by a call of a tool, which goes the way of all other requests.
    ways = WAYS if kind is CachingOpenAI else PLAIN_WAYS
    sent = []
    for client in (kind, parent):
        llm, server = start_client(
            client, answer, additional_kwargs={"prompt_cache_key": "mine"}
        )
        for way in ways:
            await said(llm, way, messages)
        llm.complete("Hello")
        sent.append(server.bodies)
    assert sent[0] == sent[1]
