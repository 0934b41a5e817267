"""Models whose server keeps the conversation: what the memory asks in the background stays out of it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.settings import Settings
from llama_index.llms.openai import OpenAI, OpenAIResponses

from llama_index_memory_ext.models.ask import without_history
from llama_index_memory_ext.models.caching_openai import CachingOpenAIResponses
from tests.learning.learning import contents, learner
from tests.memories import OpenMemory
from tests.openai_server import Message, say
from tests.scripted_models import StartClient

CLASSES = [OpenAIResponses, CachingOpenAIResponses]
WORDS = ("tea", "rain", "jazz", "figs")


def model(messages: list[Message], tools: list[str]) -> Message:
    """Learns what is liked, finds nothing to say of what it has learned, and is brief."""
    if tools in (["report_facts"], []):
        return learner(messages, tools)
    return say("Fine.")


def is_agents(request: list[Message]) -> bool:
    """Whether a request ends with the user's words, as the agent sends them."""
    return str(request[-1]["content"]).startswith(("I like", "<memory>"))


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("kind", CLASSES)
async def test_facts_and_summaries_do_not_move_the_chain_of_an_agent(
    start_client: StartClient, open_memory: OpenMemory, kind: type[Any], streaming: bool
) -> None:
    llm, server = start_client(kind, model, track_previous_responses=True)
    options = {"max_messages": 2, "keep_messages": 1, "token_limit": 4_000}
    memory = open_memory(llm=llm, user_id="ann", summarize=True, **options)
    agent = FunctionAgent(llm=llm, streaming=streaming)
    for word in WORDS:
        assert str(await agent.run(f"I like {word}.", memory=memory)) == "Fine."
        await memory.aflush()
    assert server.refusals == []
    assert llm.track_previous_responses
    agents = [
        name for name, request in enumerate(server.requests, 1) if is_agents(request)
    ]
    previous = [server.bodies[name - 1].get("previous_response_id") for name in agents]
    assert previous == [None, *(f"resp_{name}" for name in agents[:-1])]
    assert llm._previous_response_id == f"resp_{agents[-1]}"
    others = [body for name, body in enumerate(server.bodies, 1) if name not in agents]
    assert len(others) > len(WORDS)
    for body in others:
        assert (body.get("previous_response_id"), body["store"]) == (None, False)
    assert set(server.kept) == {f"resp_{name}" for name in agents}
    assert await contents(memory) == [f"Likes {word}" for word in sorted(WORDS)]


@pytest.mark.parametrize(
    "settings",
    [
        {"track_previous_responses": True},
        {"previous_response_id": "resp_7"},
        {"additional_kwargs": {"previous_response_id": "resp_7", "top_k": 3}},
        {"additional_kwargs": {"conversation": "conv_7", "top_k": 3}},
    ],
)
async def test_a_model_with_history_is_asked_by_a_copy_without(
    start_client: StartClient, settings: dict[str, Any]
) -> None:
    llm: Any
    llm, _ = start_client(OpenAIResponses, model, **settings)
    sent = llm._get_model_kwargs()
    copy: Any = without_history(llm)
    assert id(copy) != id(llm)
    assert id(without_history(copy)) == id(copy)
    asked = copy._get_model_kwargs()
    no_history = {"previous_response_id": None, "conversation": None, "store": False}
    assert {"conversation": None, **asked} == {**sent, **no_history}
    assert llm._get_model_kwargs() == sent


async def test_a_model_that_keeps_nothing_is_asked_itself(
    start_client: StartClient,
) -> None:
    for kind in (OpenAI, *CLASSES):
        llm, _ = start_client(kind, model, additional_kwargs={"top_k": 3})
        assert without_history(llm) is llm


@pytest.mark.parametrize(
    ("place", "name"), [("argument", "gpt-4o"), ("settings", "gpt-4.1")]
)
async def test_a_memory_warns_once_that_the_server_keeps_the_conversation_too(
    start_client: StartClient,
    open_memory: OpenMemory,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    name: str,
) -> None:
    """Once for each name of a model, and no other test gives a memory such a model of these names."""
    llm, _ = start_client(OpenAIResponses, model, track_previous_responses=True)
    plain, _ = start_client(OpenAIResponses, model)
    llm.model = plain.model = name
    monkeypatch.setattr(Settings, "_llm", llm if place == "settings" else None)
    caplog.set_level(logging.WARNING)
    open_memory(llm=plain)
    assert "track_previous" not in caplog.text
    for session_id in ("one", "two"):
        open_memory(session_id, **({"llm": llm} if place == "argument" else {}))
    messages = [record.getMessage() for record in caplog.records]
    (warning,) = [text for text in messages if "track_previous" in text]
    assert f"{name} keeps the conversation, too" in warning
