"""OpenAI's models cache prompts up to the cache points in their messages, whatever way they are asked."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import (
    CacheControl,
    CachePoint,
    ChatMessage,
    ImageBlock,
    TextBlock,
)
from llama_index.llms.openai import OpenAI, OpenAIResponses
from pydantic import BaseModel

from llama_index_memory_ext import CachingOpenAI, CachingOpenAIResponses
from tests.conversation import calling
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


def text(words: str) -> TextBlock:
    return TextBlock(text=words)


class Town(BaseModel):
    """A town."""

    name: str


def asked(turn: int, session_id: str | None = "Ann's session") -> list[ChatMessage]:
    """A record that grows, with points at its end and where it ended before; then a question."""
    blocks: list[Any] = []
    for i in range(turn + 1):
        blocks.append(text(f"<turn n='{i}'>{'They talk of towns. ' * 300}</turn>\n"))
        blocks += [POINT] * (i >= turn - 1)
    blocks.append(text(f"Question {turn}: which town?"))
    kwargs = {"session_id": session_id} if session_id else {}
    return [ChatMessage(role="user", blocks=blocks, additional_kwargs=kwargs)]


def answer(messages: list[Message], tools: list[str]) -> Message:
    if "Town" in tools:
        return call(("call_1", tools[0], {"name": "Bath"}))
    return say('{"name": "Bath"}')


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


@pytest.mark.parametrize(
    ("kind", "place", "text_type"),
    [
        (CachingOpenAI, "messages", "text"),
        (CachingOpenAIResponses, "input", "input_text"),
    ],
)
async def test_a_mark_stands_on_the_part_before_each_cache_point(
    start_client: StartClient, kind: type[Any], place: str, text_type: str
) -> None:
    a, b, c, d, e, brief, yes = map(
        text, ["a", "b", "c", "d", "e", "Be brief.", "Yes."]
    )
    image = ImageBlock(image=PIXEL, image_mimetype="image/png")
    messages = [
        ChatMessage(role="system", blocks=[brief, POINT]),
        ChatMessage(role="user", blocks=[POINT, a, b, POINT, c]),
        ChatMessage(role="assistant", blocks=[yes, POINT]),
        ChatMessage(role="user", blocks=[image, POINT]),
        ChatMessage(role="user", blocks=[POINT, d, e]),
    ]
    llm, server = start_client(kind, answer)
    llm.chat(messages)
    body = server.bodies[-1]
    system, first, reply, picture, last = body[place]
    (part,) = system["content"]
    assert system["role"] == "developer"
    assert part == {"type": text_type, "text": "Be brief.", **MARK}
    assert first["content"] == [
        {"type": text_type, "text": "a"},
        {"type": text_type, "text": "b", **MARK},
        {"type": text_type, "text": "c"},
    ]
    assert reply["role"] == "assistant"
    assert "prompt_cache" not in json.dumps(reply)
    (part,) = picture["content"]
    assert part.keys() - {"detail"} == {"type", "image_url", *MARK}
    assert last == {"role": "user", "content": "de"}
    assert body["prompt_cache_options"] == EXPLICIT
    assert "prompt_cache_key" not in body


@BOTH
async def test_a_tool_loop_finds_the_results_that_it_was_sent_before(
    start_client: StartClient, kind: type[Any]
) -> None:
    """The changing end of a prompt is written only where the next prompt goes on from it: in a tool loop."""

    def walker(messages: list[Message], tools: list[str]) -> Message:
        results = sum(message["role"] == "tool" for message in messages)
        if results == 3:
            return say("Bath.")
        return call((f"call_{results}", "look", {"place": results}))

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
    cached = [usage.found + usage.written == usage.prompt for usage in server.usages]
    assert cached == [False, True, True, True]
    assert server.refusals == []


@BOTH
async def test_a_tool_result_may_have_a_mark(
    start_client: StartClient, kind: type[Any]
) -> None:
    called = calling(("1", "f", "{}"))
    about = {"tool_call_id": "1"}
    result = ChatMessage(
        role="tool", blocks=[text("a"), POINT], additional_kwargs=about
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
    assert (body["prompt_cache_key"], body["seed"]) == ("mine", 1)
    assert body["prompt_cache_options"] == {"mode": "implicit"}
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
    keys = {body["prompt_cache_key"] for body in server.bodies}
    assert keys == {hashlib.sha256(b"Ann's session").hexdigest()[:32]}
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
            blocks=[text("a"), text("b")], additional_kwargs={"session_id": "s"}
        ),
    ]
    # Structured answers of Responses are asked for by a call of a tool, which goes the way of all other requests.
    ways = WAYS if kind is CachingOpenAI else PLAIN_WAYS
    sent = []
    for client in (kind, parent):
        own = {"prompt_cache_key": "mine"}
        llm, server = start_client(client, answer, additional_kwargs=own)
        for way in ways:
            await said(llm, way, messages)
        llm.complete("Hello")
        sent.append(server.bodies)
    assert sent[0] == sent[1]
