"""What is forgotten, by the tool and by replies of a model, of sixty requests that were written before the rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llama_index_memory_ext import CondensedMemory, MemoryToolSpec
from llama_index_memory_ext.agents.tools import asks_to_forget
from llama_index_memory_ext.text.turns import Utterance
from tests.conversation import assistant, calling, result, user
from tests.learning.learning import as_report
from tests.memories import OpenMemory
from tests.openai_server import call
from tests.scripted_models import StartModel

CASES: list[dict[str, Any]] = json.loads(
    Path("benchmarks/forgetting.json").read_text(encoding="utf-8")
)
EDIT = "order to edit"


async def say(memory: CondensedMemory, turn: dict[str, Any]) -> list[str]:
    """A turn as an agent stores it: the question, each call of the tool with its answer, and what the agent says."""
    await memory.aput(user(turn["user"]))
    answers = []
    for i, arguments in enumerate(turn.get("forget", [])):
        answers.append(
            await MemoryToolSpec(memory).aforget(arguments["facts"], arguments["quote"])
        )
        await memory.aput_messages(
            [calling((f"c{i}", "forget", arguments)), result(f"c{i}", answers[-1])]
        )
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
    return [
        fact.content for fact in await memory.facts.alist(state="all") if fact.retired
    ]


@pytest.mark.parametrize(("half", "most"), [("dev", 0), ("check", 2)])
async def test_of_sixty_requests_hardly_any_is_taken_for_another(
    open_memory: OpenMemory, start_model: StartModel, half: str, most: int
) -> None:
    """No order to edit something ends a fact. The rules were chosen for the first half alone."""
    cases = [case for case in CASES if case["half"] == half]
    replies = iter([case["reply"] for case in cases if "reply" in case])
    llm, server = start_model(
        lambda messages, tools: call(("c", "report_facts", as_report(next(replies))))
    )
    wrong = []
    for i, case in enumerate(cases):
        extraction: dict[str, Any] = {"llm": llm} if "reply" in case else {}
        found = await retired_of(
            case, open_memory(f"chat-{i}", user_id=f"user-{i}", **extraction)
        )
        if sorted(found) != sorted(case["retired"]):
            wrong.append((case["kind"], case["turns"][0]["user"], found))
    assert not [one for one in wrong if one[0] == EDIT], wrong
    assert len(wrong) <= most, wrong
    assert (len(CASES), server.refusals) == (60, [])
    assert len(server.requests) == sum("reply" in case for case in cases)


EVERYTHING: dict[str, Any] = {
    "facts": ["Lives in Rome", "Is allergic to nuts"],
    "quote": "Forget everything about me.",
}
ORDER: dict[str, Any] = {
    "user": EVERYTHING["quote"],
    "forget": [EVERYTHING],
    "assistant": "Really all?",
}


@pytest.fixture
async def memory(open_memory: OpenMemory) -> CondensedMemory:
    """A memory that knows two facts."""
    opened = open_memory(user_id="ann", extract_facts=False)
    for content in EVERYTHING["facts"]:
        await opened.facts.aadd(content)
    return opened


async def known(memory: CondensedMemory) -> list[str]:
    return sorted(fact.content for fact in await memory.facts.alist())


async def test_everything_goes_after_it_was_listed_and_the_user_has_said_yes(
    memory: CondensedMemory,
) -> None:
    """In a later message: not in that of the order, however often the model calls. It can be restored."""
    for answer in await say(memory, {**ORDER, "forget": [EVERYTHING, EVERYTHING]}):
        assert answer.count("Not forgotten: [") == 2
        assert (
            "Lives in Rome: show the user all that would go, and ask. Call this again when their next"
            in answer
        )
    assert await known(memory) == ["Is allergic to nuts", "Lives in Rome"]
    (answer,) = await say(
        memory,
        {
            "user": "Yes, I'm sure.",
            "forget": [{**EVERYTHING, "quote": "Yes, I'm sure."}],
        },
    )
    assert answer.count("(it can be restored)") == 2
    assert await known(memory) == []
    for fact in await memory.facts.alist(state="all"):
        await memory.facts.arestore(fact.id)
    assert await known(memory) == ["Is allergic to nuts", "Lives in Rome"]


@pytest.mark.parametrize(
    "answer",
    [
        "No, wait.",
        "Yes?",
        "Yes, but keep my allergy.",
        "What is 2+2?",
        "Yes, all except where I live",
    ],
)
async def test_what_is_no_yes_forgets_nothing(
    memory: CondensedMemory, answer: str
) -> None:
    await say(memory, ORDER)
    for quote in (EVERYTHING["quote"], answer):
        await say(memory, {"user": answer, "forget": [{**EVERYTHING, "quote": quote}]})
    assert await known(memory) == ["Is allergic to nuts", "Lives in Rome"]


async def test_what_was_not_listed_does_not_go_with_everything(
    memory: CondensedMemory,
) -> None:
    """Nor does anything where the user says yes to something else."""
    await say(memory, ORDER)
    # Half of its words were listed.
    await memory.facts.aadd("Has a piano in Rome")
    facts = [*EVERYTHING["facts"], "Has a piano in Rome"]
    await say(
        memory,
        {
            "user": "Yes.",
            "forget": [{"facts": facts, "quote": "Yes."}],
            "assistant": "Done. Tea?",
        },
    )
    assert await known(memory) == ["Has a piano in Rome"]
    await say(memory, {"user": "Yes.", "forget": [{"facts": facts, "quote": "Yes."}]})
    assert await known(memory) == ["Has a piano in Rome"]


@pytest.mark.parametrize(
    ("said", "content", "is_asked"),
    [
        ("Forget that I don't drink.", "Does not drink", True),
        ("Vergiss, dass ich keinen Kaffee trinke.", "Trinkt keinen Kaffee", True),
        ("忘掉我不喝酒。", "不喝酒", True),
        ("Vergiss nicht, dass ich Kaffee trinke.", "Trinkt Kaffee", False),
        ("Vergiss meine Katze nicht!", "Hat eine Katze", False),
        ("不要忘记我喝茶。", "喝茶", False),
        ("别把我的猫忘了。", "养猫", False),
        ("我忘了买花生。", "对花生过敏", False),
        ("コーヒーを買うのを忘れてしまいました。", "コーヒーが好き", False),
        ("I want you to stop remembering my cat.", "Has a cat", True),
        ("Ne retiens pas que j'ai un chat.", "A un chat", True),
        ("Merk dir bitte nicht, dass ich Tee trinke.", "Trinkt Tee", True),
        ("Lösche, was du über meine Katze weißt.", "Hat eine Katze", True),
        ("Esqueça que gosto de chá.", "Gosta de chá", True),
        ("Забудь, что я люблю чай.", "Любит чай", True),
        ("Пожалуйста, не забудь, что я люблю чай.", "Любит чай", False),
        ("Vergeet niet dat ik van thee hou.", "Houdt van thee", False),
        ("Borra de tu memoria que tengo un gato.", "Tiene un gato", True),
        ("别记住我喝茶。", "喝茶", True),
        ("删除你知道的关于我喝茶的事。", "喝茶", True),
        ("不要删除你知道的关于我喝茶的事。", "喝茶", False),
        ("お茶が好きなことは覚えないでください。", "お茶が好き", True),
        ("Remove the fact that I smoke from my letter.", "Smokes", False),
        ("Forget everything except my allergy.", "Has an allergy", False),
        ("Delete everything you know about my cat.", "Has a cat", True),
    ],
)
def test_an_order_to_forget_is_told_from_others(
    said: str, content: str, *, is_asked: bool
) -> None:
    orders = asks_to_forget(said, [Utterance(1, "user", said)], [], [content])
    assert orders == ([is_asked], False)


async def test_a_request_before_the_last_lines_is_no_request_any_more(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory(user_id="ann")
    fact = await memory.facts.aadd("Likes tea")
    await memory.aput(user("Please forget that I like tea."))
    for i in range(3):
        await memory.aput_messages([assistant("Fine."), user(f"What is {i} plus 1?")])
    answer = await MemoryToolSpec(memory).aforget([fact.id], "forget that I like tea")
    assert answer.startswith("Not forgotten: ")
    assert await memory.facts.alist() == [fact]
    await memory.aput(user("Please forget that I like tea."))
    answer = await MemoryToolSpec(memory).aforget([fact.id], "forget that I like tea")
    assert answer.startswith("Forgotten: ")
