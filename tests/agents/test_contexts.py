"""A run that waits for a human goes on in another process, with its memory."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import pickletools
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import MockLLM
from llama_index.core.workflow import (
    Context,
    JsonPickleSerializer,
    JsonSerializer,
    StartEvent,
    StopEvent,
    Workflow,
    step,
)

from llama_index_memory_ext import CondensedMemory, StoreError, restore_context
from tests.conversation import BEFORE_QUESTION, assistant, record, user
from tests.forked import run_forked
from tests.memories import OpenMemory
from tests.openai_server import Message, call, say, serve
from tests.scripted_models import StartModel

# The host says that JSON has no place for a memory.
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings(
        "ignore:Skipping serialization of known unserializable key"
    ),
]

COMMON = """
import asyncio, contextlib, json, sys, warnings
from llama_index.core.agent.workflow import FunctionAgent, ToolCall
from llama_index.core.llms import ChatMessage
from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent
from llama_index.core.workflow import JsonPickleSerializer, JsonSerializer
from llama_index.llms.openai import OpenAI
from llama_index_memory_ext import CondensedMemory, restore_context

warnings.filterwarnings("ignore", message="Skipping serialization of known unserializable key")
uri, api_base, serializer = sys.argv[1:]
# What a run that waits in a tool needs, and none of our own.
allowed = lambda: JsonSerializer(allowed_types=[ToolCall, ChatMessage])
serializer = {"json": JsonSerializer, "allowed": allowed, "pickle": JsonPickleSerializer}[serializer]()

async def delete(ctx: Context, name: str) -> str:
    "Delete a file."
    question = InputRequiredEvent(prefix=f"Delete {name}?")
    answer = await ctx.wait_for_event(HumanResponseEvent, waiter_id=name, waiter_event=question)
    return "deleted" if answer.response == "yes" else "kept"

def new_agent():
    llm = OpenAI(model="gpt-4o-mini", api_key="sk-test", api_base=api_base, max_retries=0)
    return FunctionAgent(llm=llm, tools=[delete], streaming=False)

def new_memory():
    return CondensedMemory.from_defaults("chat", async_database_uri=uri, extract_facts=False)
"""
ASKS = (
    COMMON
    + """
async def main():
    agent, memory = new_agent(), new_memory()
    async with memory:
        await agent.run("My name is Ann.", memory=memory)
        handler = agent.run("Delete a.txt", memory=memory)
        async for event in handler.stream_events():
            if isinstance(event, InputRequiredEvent):
                break
        data = handler.ctx.to_dict(serializer=serializer)
        await handler.cancel_run()
        with contextlib.suppress(Exception):
            await handler
    print(json.dumps(data))

asyncio.run(main())
"""
)
GOES_ON = (
    COMMON
    + """
async def main():
    agent, memory = new_agent(), new_memory()
    async with memory:
        ctx = await restore_context(agent, json.load(sys.stdin), memory, serializer=serializer)
        handler = agent.run(ctx=ctx)
        handler.ctx.send_event(HumanResponseEvent(response="yes"))
        print(await handler)
        print(await agent.run("Thank you.", ctx=handler.ctx))
        assert await handler.ctx.store.get("memory") is memory

asyncio.run(main())
"""
)

PACKAGE = "llama_index_memory_ext"


def model(messages: list[Message], tools: list[str]) -> Message:
    if messages[-1]["role"] == "tool":
        return say(f"It is {messages[-1]['content']}.")
    if messages[-1]["content"].endswith("Delete a.txt"):
        return call(("c1", "delete", {"name": "a.txt"}))
    return say("Fine.")


def in_a_process(code: str, *arguments: str, given: str = "") -> str:
    done = run_forked(code, *arguments, typed=given)
    assert done.returncode == 0, done.stderr
    return done.stdout


# Older versions of the host resolve every type.
NARROW = (
    ["allowed"]
    if "allowed_types" in inspect.signature(JsonSerializer).parameters
    else []
)


@pytest.mark.parametrize("serializer", ["json", "pickle", *NARROW])
async def test_a_human_answers_in_another_process_and_the_run_goes_on(
    database_uri: str, serializer: str
) -> None:
    """The model is sent what it would have been sent without the break, and each message is kept once."""
    with serve(model) as server:
        data = in_a_process(ASKS, database_uri, server.api_base, serializer)
        assert len(server.requests) == 2
        answers = in_a_process(
            GOES_ON, database_uri, server.api_base, serializer, given=data
        )
        assert answers == "It is deleted.\nFine.\n"
        asked, answered, thanked = server.requests[1:]
        assert answered[:1] == asked
        assert asked[0]["content"].endswith(f"{BEFORE_QUESTION}Delete a.txt")
        roles = [message["role"] for message in answered]
        assert roles == ["user", "assistant", "tool"]
        bodies = [body for _, body in record(thanked[0]["content"])]
        assert bodies == [
            "My name is Ann.",
            "Fine.",
            "Delete a.txt",
            '[tool call c1] delete({"name": "a.txt"})',
            "deleted",
            "It is deleted.",
        ]
        assert server.refusals == []


async def test_a_context_of_a_finished_run_goes_on_with_the_memory(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    """Also when it is kept and restored once more; what it is restored from is not changed."""
    llm, server = start_model(model)
    agent, memory = FunctionAgent(llm=llm), open_memory()
    context = Context(agent)
    await agent.run("My name is Ann.", memory=memory, ctx=context)
    for turn in (1, 2):
        data = context.to_dict()
        before = copy.deepcopy(data)
        context = await restore_context(agent, json.loads(json.dumps(data)), memory)
        await agent.run("Who am I?", ctx=context)
        assert data == before
        assert len(record(server.requests[-1][0]["content"])) == 2 * turn


class Echo(Workflow):
    """A workflow without a conversation."""

    @step
    async def echo(self, _: StartEvent) -> StopEvent:
        return StopEvent()


async def test_a_memory_without_the_conversation_is_refused(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    llm, _ = start_model(model)
    agent, context = FunctionAgent(llm=llm), Context(FunctionAgent(llm=llm))
    await agent.run("My name is Ann.", memory=open_memory(), ctx=context)
    data: dict[str, Any] = context.to_dict()
    for other in (open_memory("another"), open_memory(async_database_uri=None)):
        with pytest.raises(
            StoreError, match=r"holds no message of session '(another|chat)'"
        ) as error:
            await restore_context(agent, data, other)
        assert "Ann" not in str(error.value)
    # The context of another workflow has no conversation.
    workflow = Echo()
    run = workflow.run()
    await run
    await restore_context(workflow, run.ctx.to_dict(), open_memory("new"))
    with pytest.raises(
        TypeError, match="restore_context asks a CondensedMemory; this is a str"
    ):
        await restore_context(agent, data, "chat")  # type: ignore[arg-type]


# ---- what a pickle keeps ---------------------------------------------------------------------------------


async def test_a_memory_in_memory_cannot_be_pickled() -> None:
    """The copy would be empty. It can be copied in its process, where both have one store."""
    memory = CondensedMemory.from_defaults("chat", extract_facts=False)
    for way in (pickle.dumps, JsonPickleSerializer().serialize):
        with pytest.raises(
            StoreError, match="its database is in memory, and the copy would be empty"
        ):
            way(memory)
    await memory.aput(user("Hello."))
    assert (
        len(await copy.copy(memory).aget_all())
        == len(await copy.deepcopy(memory).aget_all())
        == 1
    )
    await memory.aclose()


async def test_a_pickle_keeps_session_and_settings_but_no_model(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory(
        user_id="ann", llm=MockLLM(), condensed_token_limit=1_000, max_messages=7
    )
    await memory.aput_messages([user("Hello."), assistant("Hello Ann.")])
    serializer = JsonPickleSerializer()
    twin = serializer.deserialize(serializer.serialize(memory))
    async with twin:
        assert (twin.session_id, twin.facts_block.user_id) == ("chat", "ann")
        limits = (twin.condensed_block.token_limit, twin.condensed_block.max_messages)
        assert limits == (1_000, 7)
        models = [block.llm for block in (twin.condensed_block, twin.facts_block)]
        assert models == [None, None]
        assert await twin.aget_all() == await memory.aget_all()
        twin.facts_block.extract_facts = False


async def test_a_pickle_names_only_modules_that_stay_where_they_are(
    open_memory: OpenMemory,
) -> None:
    """Contexts are kept while programs get newer versions: moving one of these modules makes them unreadable."""
    async with open_memory(user_id="ann", agent_id="travel") as memory:
        named = {
            name
            for _, name, _ in pickletools.genops(pickle.dumps(memory))
            if isinstance(name, str)
        }
    modules = {
        name.removeprefix(f"{PACKAGE}.")
        for name in named
        if name.startswith(f"{PACKAGE}.")
    }
    assert modules <= {
        "background.recent",
        "fact",
        "blocks.facts",
        "memory.condensed_memory",
        "memory.template",
        "blocks.record",
        "search.tfidf",
        "store",
        "text.tokens",
    }
