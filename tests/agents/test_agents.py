"""What the model is sent when real agents and a real chat engine run on the memory."""

from __future__ import annotations

import json

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent

from tests.conversation import BEFORE_QUESTION, assistant, record, user
from tests.memories import OpenMemory
from tests.openai_server import Message, call, say
from tests.scripted_models import StartModel


def multiply(a: float, b: float) -> float:
    """Multiply two numbers."""
    return a * b


def divide(a: float, b: float) -> float:
    """Divide two numbers."""
    return a / b


def calculator(messages: list[Message], tools: list[str]) -> Message:
    """Works out (3214 * 322) / 2 in two calls, and answers everything else with the number of messages."""
    question = [message for message in messages if message["role"] == "user"][-1][
        "content"
    ]
    results = [message["content"] for message in messages if message["role"] == "tool"]
    if not question.endswith("(3214 * 322) / 2?"):
        return say(f"I was sent {len(messages)} messages.")
    if not results:
        return call(("call_1", "multiply", {"a": 3214, "b": 322}))
    if len(results) == 1:
        return call(("call_2", "divide", {"a": float(results[0]), "b": 2}))
    return say(f"It is {results[-1]}.")


async def test_a_function_agent_sends_the_system_prompt_and_one_user_message(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    """Within a turn the calls and results follow in the order in which the API asks for them."""
    llm, server = start_model(calculator)
    memory = open_memory()
    agent = FunctionAgent(
        llm=llm, tools=[multiply, divide], system_prompt="You calculate."
    )
    answer = await agent.run("What is (3214 * 322) / 2?", memory=memory)
    assert str(answer) == "It is 517454.0."
    roles = [m["role"] for m in server.requests[-1]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]

    answer = await agent.run("How did you go about answering that?", memory=memory)
    assert str(answer) == "I was sent 2 messages."
    system, question = server.requests[-1]
    sent = (system["role"], system["content"], question["role"])
    assert sent == ("system", "You calculate.", "user")
    text = question["content"]
    assert text.startswith("<memory>\n<condensed_memory>\n")
    assert text.endswith(
        f"</condensed_memory>\n{BEFORE_QUESTION}How did you go about answering that?"
    )
    shown = record(text)
    roles = [role for role, _ in shown]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert text.count('multiply({"a": 3214, "b": 322})') == 1
    assert text.count("divide(") == 1
    assert [body for role, body in shown if role == "tool"] == ["1034908", "517454.0"]
    assert server.refusals == []


async def test_a_react_agent_keeps_its_reasoning_in_the_record(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    """A ReAct agent's calls are part of its text."""

    def react(messages: list[Message], tools: list[str]) -> Message:
        last = messages[-1]["content"].split("</memory>")[-1]
        if "Observation: 6" in last:
            return say("Thought: I know it.\nAnswer: It is 6.")
        if last.endswith("What is 2 * 3?"):
            return say(
                'Thought: I need a tool.\nAction: multiply\nAction Input: {"a": 2, "b": 3}'
            )
        return say("Thought: No tool needed.\nAnswer: You are welcome.")

    llm, server = start_model(react)
    memory = open_memory()
    agent = ReActAgent(llm=llm, tools=[multiply])
    assert str(await agent.run("What is 2 * 3?", memory=memory)) == "It is 6."
    assert str(await agent.run("Thanks!", memory=memory)) == "You are welcome."
    system, question = server.requests[-1]
    assert (system["role"], question["role"]) == ("system", "user")
    assert question["content"].count("Action: multiply") == 1
    assert question["content"].endswith(f"{BEFORE_QUESTION}Thanks!")
    assert server.refusals == []


async def test_a_workflow_hands_over_between_agents_in_one_turn(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    """The hand-over's call and result stand behind the question, and are in the record of the next turn."""

    def model(messages: list[Message], tools: list[str]) -> Message:
        question = [message for message in messages if message["role"] == "user"][-1][
            "content"
        ]
        if (
            "handoff" in tools
            and messages[-1]["role"] == "user"
            and question.endswith("2 * 3?")
        ):
            return call(
                (
                    "call_1",
                    "handoff",
                    {"to_agent": "maths", "reason": "It is a calculation."},
                )
            )
        if (
            "multiply" in tools
            and len([m for m in messages if m["role"] == "tool"]) == 1
        ):
            return call(("call_2", "multiply", {"a": 2, "b": 3}))
        return say("It is 6." if question.endswith("2 * 3?") else "You are welcome.")

    llm, server = start_model(model)
    memory = open_memory()
    front = FunctionAgent(
        name="front", description="Answers.", llm=llm, can_handoff_to=["maths"]
    )
    maths = FunctionAgent(
        name="maths", description="Calculates.", llm=llm, tools=[multiply]
    )
    workflow = AgentWorkflow(agents=[front, maths], root_agent="front")
    assert str(await workflow.run("What is 2 * 3?", memory=memory)) == "It is 6."
    roles = [m["role"] for m in server.requests[-1]]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"]
    await workflow.run("Thanks!", memory=memory)
    (prompt,) = server.requests[-1]
    assert (
        prompt["content"].count("handoff(") == prompt["content"].count("multiply(") == 1
    )
    assert server.refusals == []


async def test_a_given_chat_history_replaces_the_conversation(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    """Its older turns come as a record, its last question as the question."""
    llm, server = start_model(calculator)
    memory = open_memory()
    agent = FunctionAgent(llm=llm, tools=[multiply])
    await agent.run("Forget this.", memory=memory)
    history = [user("My name is Logan."), assistant("Hello Logan.")]
    await agent.run("What is my name?", chat_history=history, memory=memory)
    (prompt,) = server.requests[-1]
    entries = record(prompt["content"])
    assert entries == [("user", "My name is Logan."), ("assistant", "Hello Logan.")]
    await agent.run(chat_history=[*history, user("What is my name?")], memory=memory)
    (prompt,) = server.requests[-1]
    entries = record(prompt["content"])
    assert entries == [("user", "My name is Logan."), ("assistant", "Hello Logan.")]
    assert prompt["content"].endswith(f"{BEFORE_QUESTION}What is my name?")


async def test_a_failing_model_costs_no_message(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    """A question whose answer failed is in the record of the next turn."""
    answers = iter([None, say("Here I am.")])

    def model(messages: list[Message], tools: list[str]) -> Message:
        answer = next(answers)
        if answer is None:
            raise ConnectionAbortedError
        return answer

    llm, server = start_model(model)
    memory = open_memory()
    agent = FunctionAgent(llm=llm, tools=[multiply])
    with pytest.raises(Exception, match=r".+"):
        await agent.run("Are you there?", memory=memory)
    await agent.run("And now?", memory=memory)
    (prompt,) = server.requests[-1]
    assert record(prompt["content"]) == [("user", "Are you there?")]
    assert json.dumps(server.refusals) == "[]"


async def test_a_run_that_is_stopped_early_leaves_no_open_call(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    """The server refuses a call without its result."""

    def never_done(messages: list[Message], tools: list[str]) -> Message:
        number = str(len(messages))
        return (
            call((f"call_{number}", "multiply", {"a": 3214, "b": 322}))
            if tools
            else say("I stop here.")
        )

    llm, server = start_model(never_done)
    memory = open_memory()
    agent = FunctionAgent(llm=llm, tools=[multiply], early_stopping_method="generate")
    for question in ("Multiply for ever.", "And now?"):
        answer = str(await agent.run(question, memory=memory, max_iterations=2))
        assert answer == "I stop here."
    contents = [message.content for message in await memory.aget_all()][::2]
    assert contents == ["Multiply for ever.", "And now?"]
    assert server.refusals == []
