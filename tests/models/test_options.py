"""Whether a server takes a limit of tokens, found out by asking."""

from __future__ import annotations

from functools import partial
from typing import Any

import openai
import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.llms import MockLLM
from llama_index.llms.openai import OpenAI

from llama_index_memory_ext.models.ask import ask_with, token_bound
from tests.openai_server import OpenAIServer, fail, say
from tests.scripted_models import StartClient

PERSON = [ChatMessage("Hello")]


async def ask(llm: Any, responses: list[ChatResponse] | None = None) -> str | None:
    chat = partial(llm.achat, PERSON)
    responses = [] if responses is None else responses
    return (await ask_with(llm, chat, 99, responses)).message.content


def bounds(server: OpenAIServer) -> list[int | None]:
    return [body.get("max_tokens") for body in server.bodies]


@pytest.mark.parametrize(
    "complaint",
    [
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        "Extra inputs are not permitted",
    ],
)
async def test_a_server_that_refuses_a_bound_is_asked_without_from_then_on(
    start_client: StartClient, complaint: str
) -> None:
    llm, server = start_client(OpenAI, lambda messages, tools: say("Hi."))
    server.complain = lambda body: complaint if "max_tokens" in body else None
    assert [await ask(llm), await ask(llm)] == ["Hi.", "Hi."]
    assert bounds(server) == [None, None]
    assert len(server.refusals) == 1


async def test_a_bound_that_leaves_no_room_is_left_out_of_one_request(
    start_client: StartClient,
) -> None:
    llm, server = start_client(OpenAI, lambda messages, tools: say("Hi."))
    full = "This model's maximum context length is 8192 tokens. However, you requested 99 max_tokens."
    refusals = iter([full])
    server.complain = lambda body: next(refusals, None)
    assert [await ask(llm), await ask(llm)] == ["Hi.", "Hi."]
    assert bounds(server) == [None, 99]


@pytest.mark.parametrize(
    ("status", "text", "requests"),
    [
        (400, "Your prompt is too long.", 1),
        (400, "No.", 2),
        (429, "max_tokens", 1),
        (500, "max_tokens", 1),
    ],
)
async def test_what_is_refused_for_something_else_is_raised(
    start_client: StartClient, status: int, text: str, requests: int
) -> None:
    """A refusal without a reason may be that of the bound, until the server has taken it once."""
    answers = [fail(status, text)] * requests
    llm, server = start_client(
        OpenAI, lambda messages, tools: answers.pop() if answers else say("Hi.")
    )
    with pytest.raises(openai.APIStatusError):
        await ask(llm)
    assert len(server.bodies) == requests
    assert await ask(llm) == "Hi."
    answers.append(fail(400, "No."))
    with pytest.raises(openai.BadRequestError):
        await ask(llm)
    assert bounds(server)[requests:] == [99, 99]


@pytest.mark.parametrize(
    "thought", [{"reasoning_content": "Let me see."}, {"content": "<think>Let me see."}]
)
async def test_a_model_that_thinks_is_not_bounded(
    start_client: StartClient, thought: dict[str, str]
) -> None:
    """Its thoughts would count; both answers are paid for."""

    def model(messages: Any, tools: Any) -> Any:
        if bounds(server)[-1]:
            return {**say(""), **thought, "finish_reason": "length"}
        return say("Hi.")

    llm, server = start_client(OpenAI, model)
    responses: list[ChatResponse] = []
    assert [await ask(llm, responses), await ask(llm, responses)] == ["Hi.", "Hi."]
    assert bounds(server) == [99, None, None]
    assert len(responses) == 3


OWN_BOUND = {"max_completion_tokens": 20}


@pytest.mark.parametrize(
    "llm",
    [
        OpenAI(model="gpt-4o-mini", max_tokens=20),
        OpenAI(model="gpt-4o-mini", additional_kwargs=OWN_BOUND),
        OpenAI(model="o3-mini"),
        OpenAI(model="gpt-5-mini"),
        MockLLM(),
    ],
)
def test_only_models_that_are_known_to_take_a_bound_and_have_none_get_one(
    llm: Any,
) -> None:
    assert token_bound(llm, 99) == {}
    assert token_bound(OpenAI(model="gpt-4o-mini"), 99) == {"max_tokens": 99}
