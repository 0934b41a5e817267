"""What is forgotten, by the tool and by replies of a model, of sixty requests that were written before the rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llama_index_memory_ext import CondensedMemory, MemoryToolSpec
from tests.conversation import assistant, calling, result, user
from tests.memories import OpenMemory
from tests.models import StartModel
from tests.openai_server import Message, call

CASES: list[dict[str, Any]] = json.loads(Path("benchmarks/forgetting.json").read_text(encoding="utf-8"))
EDIT = "order to edit"


async def say(memory: CondensedMemory, turn: dict[str, Any]) -> list[str]:
    """A turn as an agent stores it: the question, each call of the tool with its answer, and what the agent says."""
    await memory.aput(user(turn["user"]))
    answers = []
    for i, arguments in enumerate(turn.get("forget", [])):
        answers.append(await MemoryToolSpec(memory).aforget(arguments["facts"], arguments["quote"]))
        await memory.aput_messages([calling((f"c{i}", "forget", arguments)), result(f"c{i}", answers[-1])])
    if "assistant" in turn:
        await memory.aput(assistant(turn["assistant"]))
    return answers


async def retired_of(case: dict[str, Any], memory: CondensedMemory) -> list[str]:
    """The facts that are retired after the turns of a case."""
    for content in case["known"]:
        await memory.facts.aadd(content)
    for turn in case["turns"]:
        await say(memory, turn)
    await memory.aflush()
    return [fact.content for fact in await memory.facts.alist(with_retired=True) if fact.retired]


@pytest.mark.parametrize("half", ["dev", "check"])
async def test_of_sixty_requests_hardly_any_is_taken_for_another(
    open_memory: OpenMemory, start_model: StartModel, half: str
) -> None:
    """No order to edit something ends a fact, and one outcome at most of each half is wrong."""
    cases = [case for case in CASES if case["half"] == half]
    replies = iter([case["reply"] for case in cases if "reply" in case])
    llm, server = start_model(lambda messages, tools: call(("c", "report_facts", next(replies))))
    wrong = []
    for i, case in enumerate(cases):
        extraction: dict[str, Any] = {"llm": llm} if "reply" in case else {}
        found = await retired_of(case, open_memory(f"chat-{i}", user_id=f"user-{i}", **extraction))
        if sorted(found) != sorted(case["retired"]):
            wrong.append((case["kind"], case["turns"][0]["user"], found))
    assert not [one for one in wrong if one[0] == EDIT], wrong
    assert len(wrong) <= 1, wrong
    assert (len(CASES), server.refusals) == (60, [])
    assert len(server.requests) == sum("reply" in case for case in cases)
