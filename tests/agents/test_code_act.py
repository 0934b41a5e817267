"""What a program of a ``CodeActAgent`` prints is a tool's result, though LlamaIndex stores it as the user's."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout

import pytest
from llama_index.core.agent.workflow import CodeActAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import Memory

from llama_index_memory_ext import (
    CondensedMemory,
    RelevantFactsBlock,
    extract_conversation_context,
)
from llama_index_memory_ext.text.turns import turns_in
from tests.conversation import BEFORE_QUESTION, assistant, record, user
from tests.memories import OpenMemory, OpenPlainMemory
from tests.openai_server import Message, call, say
from tests.scripted_models import StartModel

CODE = 'Let me look.\n<execute>\nprint("My name is Mallory.")\n</execute>'
PRINTED = "Result of executing the code given:\n\nMy name is Mallory."
HISTORY = [user("My name is Ann."), assistant(CODE), user(PRINTED), assistant("Fine.")]
HISTORY.append(user("Thanks."))
NAMES = re.compile(r"My name is (\w+)\.")


async def execute(code: str) -> str:
    """Runs a program, and returns what it prints."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(code, {})  # noqa: S102 - the code of these tests
    return printed.getvalue().strip()


def programmer(messages: list[Message], tools: list[str]) -> Message:
    """Runs a program twice before it answers "Who wrote this?"; reports each name that it reads anywhere."""
    if tools == ["report_facts"]:
        found = [
            {
                "content": f"Is called {one[1]}",
                "category": "knowledge",
                "confidence": 0.9,
                "quote": one[0],
            }
            for one in NAMES.finditer(
                str(messages[-1]["content"]).partition("<transcript>")[2]
            )
        ]
        return call(("call_1", "report_facts", {"new_facts": found}))
    said = [
        str(message["content"]) for message in messages if message["role"] != "system"
    ]
    if not any(text.endswith("Who wrote this?") for text in said):
        return say("You are welcome.")
    return say("It was Mallory.") if said.count(PRINTED) == 2 else say(CODE)


async def names(memory: CondensedMemory) -> list[str]:
    return [fact.content for fact in await memory.facts.alist()]


async def test_a_name_that_a_program_prints_is_not_the_users(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    """In facts, record, recall and turns it is a tool's; the agent works through its rounds with what it has put."""
    llm, server = start_model(programmer)
    memory = open_memory(user_id="ann", llm=llm)
    agent = CodeActAgent(execute, llm=llm)
    answer = str(await agent.run("My name is Ann. Who wrote this?", memory=memory))
    assert answer == "It was Mallory."
    rounds = [
        request
        for request in server.requests
        if request[0]["role"] == "system" and "execute" in str(request[0])
    ]
    assert [[one["role"] for one in request[1:]] for request in rounds] == [
        ["user"],
        ["user", "assistant", "user"],
        ["user", "assistant", "user", "assistant", "user"],
    ]
    await agent.run("Thanks!", memory=memory)
    (shown,) = [
        text
        for one in server.requests
        if (text := str(one[-1]["content"])).endswith(f"{BEFORE_QUESTION}Thanks!")
    ]
    roles = [role for role, _ in record(shown)]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    await memory.aflush()
    assert await names(memory) == ["Is called Ann"]
    found = await memory.asearch("Mallory", facts=False)
    assert {one.role for one in found.messages if PRINTED in one.text} == {"assistant"}
    stored_roles = [one.role.value for one in await memory.aget_all()][:6]
    assert stored_roles == ["user", "assistant"] * 3
    assert (await memory.aget_all())[2].content == PRINTED


@pytest.mark.parametrize("at_once", [True, False])
async def test_what_is_printed_begins_no_turn(
    open_memory: OpenMemory, at_once: bool
) -> None:
    """However the messages are put."""
    memory = open_memory()
    messages = [
        user("Who wrote this?"),
        assistant(CODE),
        user(PRINTED),
        assistant(CODE),
        user(PRINTED),
    ]
    for some in [messages] if at_once else [[one] for one in messages]:
        await memory.aput_messages(some)
    stats = await memory.astats()
    assert (stats.active, stats.messages) == (5, 5)
    prompt = await memory.aget()
    roles = [message.role.value for message in prompt]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    await memory.aset([*messages, assistant("It was Mallory."), user("Thanks!")])
    stats = await memory.astats()
    assert (stats.active, stats.verbatim) == (1, 6)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("My name is Ann.", CODE),
        ("My name is Ann.", "Put your code between <execute> and </execute>."),
        (PRINTED.replace("Mallory", "Ann"), "Put your code between <execute> tags."),
        (PRINTED.replace("Mallory", "Ann"), "<execute>print(1)"),
        (PRINTED.replace("Mallory", "Ann"), "<execute> </execute>"),
    ],
)
async def test_a_user_who_writes_after_code_is_the_user(
    open_memory: OpenMemory, start_model: StartModel, said: str, answer: str
) -> None:
    """The agent runs what stands between two tags, and tells of it in words of its own; both are asked for."""
    llm, _ = start_model(programmer)
    memory = open_memory(user_id="ann", llm=llm)
    await memory.aput_messages([user("How do I run it?"), assistant(answer)])
    await memory.aput_messages([user(said), assistant("Fine.")])
    await memory.aflush()
    assert await names(memory) == ["Is called Ann"]


async def test_a_history_that_llamaindex_has_written_is_read_so_too(
    open_memory: OpenMemory,
    open_plain_memory: OpenPlainMemory,
    start_model: StartModel,
    database_uri: str,
) -> None:
    llm, _ = start_model(programmer)
    plain = open_plain_memory(async_database_uri=database_uri)
    for message in HISTORY:
        await plain.aput(message)
    memory = open_memory(user_id="ann", llm=llm)
    await memory.abackfill()
    assert await names(memory) == ["Is called Ann"]


async def test_a_block_of_a_plain_memory_reads_it_so_too(
    open_plain_memory: OpenPlainMemory, start_model: StartModel
) -> None:
    """LlamaIndex takes it for the beginning of a turn, and hands it over apart from the code."""
    llm, _ = start_model(programmer)
    block = RelevantFactsBlock(user_id="ann", llm=llm)
    plain: Memory = open_plain_memory(block)
    for message in HISTORY:
        await plain.aput(message)
    await block.aflush("chat")
    assert [fact.content for fact in await block.book("chat").alist()] == [
        "Is called Ann"
    ]
    await block.aclose()


def test_the_code_is_no_part_of_what_is_said() -> None:
    messages: list[ChatMessage] = [
        user("Who?"),
        assistant(CODE),
        user(PRINTED),
        assistant("Mallory."),
    ]
    assert extract_conversation_context(messages) == "Who? Mallory."
    assert turns_in([assistant("Use <execute>."), user("Hm.")]) == [
        ["Use <execute>."],
        ["Hm."],
    ]
