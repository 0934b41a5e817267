"""A model that learns what users like, and memories that learn from it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from llama_index.core.llms import LLM, ChatMessage
from llama_index.llms.openai import OpenAI

from llama_index_memory_ext import CondensedMemory
from llama_index_memory_ext.fact import CATEGORIES
from llama_index_memory_ext.learning.categories import Categories
from llama_index_memory_ext.learning.reply import NewFact, read_facts
from llama_index_memory_ext.learning.report import ask_for_facts
from tests.conversation import assistant, user
from tests.memories import OpenMemory
from tests.openai_server import Message, Model, OpenAIServer, call, say
from tests.scripted_models import StartClient

Learns = Callable[..., tuple[CondensedMemory, OpenAIServer]]
SAYS = re.compile(r"I (like|use) (\w+)")


def learner(messages: list[Message], tools: list[str]) -> Message:
    """Reports each "I like X" and "I use X" of the transcript, and answers "Fine." to all else."""
    if tools != ["report_facts"]:
        return say("Fine.")
    transcript = messages[-1]["content"].split("<transcript>")[1]
    said = re.findall(r"^(\d+)\. user: (.*)$", transcript, flags=re.MULTILINE)
    found = [
        {
            "message": int(number),
            "quote": match,
            "fact": f"{verb.capitalize()}s {what}",
            "category": "preference",
        }
        for number, text in said
        for match, verb, what in (
            (one[0], one[1], one[2]) for one in SAYS.finditer(text)
        )
    ]
    return call(("call_1", "report_facts", {"facts": found}))


async def ask_model(
    llm: LLM, prompt: Sequence[ChatMessage], categories: Categories = CATEGORIES
) -> list[NewFact]:
    """The entries of a model's reply to a request, of at most 4,000 tokens."""
    return await ask_for_facts(
        llm, prompt, categories=categories, answer_tokens=4_000, responses=[]
    )


def parse_reply(text: str) -> list[NewFact]:
    """The entries in an answer, with our own categories."""
    return read_facts(text, CATEGORIES, by_tool=True)


def as_report(reply: dict[str, Any]) -> dict[str, Any]:
    """The report of new facts and of facts that end: with the new fact that ``replaced_by`` labels, or alone."""
    facts = [dict(fact) for fact in reply.get("new_facts", [])]
    for ended in reply.get("retired", []):
        entry = {"quote": ended["quote"]}
        for i, fact in enumerate(facts, 1):
            if ended.get("replaced_by") == fact.get("label", f"n{i}"):
                entry = fact
        entry["ends"] = ended["number"]
        if entry not in facts:
            facts.append(entry)
    return {"facts": facts}


def fact_of(content: str, quote: str, category: str = "context") -> dict[str, Any]:
    """A new fact as a model reports it."""
    return {
        "content": content,
        "confidence": 0.9,
        "category": category,
        "quote": quote,
    }


def poisoned(answer: Message, *words: str) -> Model:
    """A model that gives this answer whenever one of these is talked about."""

    def model(messages: list[Message], tools: list[str]) -> Message:
        told = str(messages[-1]["content"])
        return (
            answer
            if any(f"I like {word}" in told for word in words)
            else learner(messages, tools)
        )

    return model


def slow(event: threading.Event) -> Model:
    """The learner, which answers when the event is set."""

    def model(messages: list[Message], tools: list[str]) -> Message:
        assert event.wait(60)
        return learner(messages, tools)

    return model


def extractions(requests: list[list[Message]]) -> list[str]:
    """The transcripts of the requests that asked for facts."""
    return [
        request[-1]["content"]
        for request in requests
        if "<transcript>" in str(request[-1]["content"])
    ]


def shown(text: str) -> list[str]:
    return re.findall(r"<fact [^>]*>(.*?)</fact>", text)


async def contents(memory: CondensedMemory) -> list[str]:
    return sorted(fact.content for fact in await memory.facts.alist())


def talk(*words: str) -> list[ChatMessage]:
    """A turn for each word, in which the user likes it."""
    return [
        message
        for word in words
        for message in (user(f"I like {word}."), assistant("Fine."))
    ]


def likes(requests: list[list[Message]]) -> list[list[str]]:
    """The words of each request for facts, in the order of the requests."""
    return [re.findall(r"I like (\w+)", text) for text in extractions(requests)]


@pytest.fixture
def learns(open_memory: OpenMemory, start_client: StartClient) -> Learns:
    """Opens a memory of Ann's that asks a model, by default the learner; returns it, and the model's server."""

    def open_one(
        model: Model = learner,
        session_id: str = "chat",
        client: type[OpenAI] = OpenAI,
        **options: Any,
    ) -> tuple[CondensedMemory, OpenAIServer]:
        llm, server = start_client(client, model)
        return open_memory(
            session_id, **{"user_id": "ann", "llm": llm, **options}
        ), server

    return open_one
