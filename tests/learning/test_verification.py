"""A second call that checks what the first one has extracted."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

import pytest

from llama_index_memory_ext import Fact
from llama_index_memory_ext.errors import VerificationError
from llama_index_memory_ext.learning.validation import ValidatedReply
from llama_index_memory_ext.learning.verification import (
    Judgement,
    parse_verdict,
    verified,
)
from tests.conversation import assistant, user
from tests.learning.learning import Learns, contents, learner, likes, talk
from tests.memories import OpenMemory
from tests.openai_server import Message, Model, call, fail, say
from tests.scripted_models import StartModel

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def judged(**told: Any) -> Judgement:
    return Judgement.model_validate({"number": 1, "about": "user", "quote": "", **told})


def judging(judge: Any) -> Model:
    """A model that learns, and says of each candidate what ``judge`` says of its text."""

    def model(messages: list[Message], tools: list[str]) -> Message:
        if tools != ["report_verdicts"]:
            return learner(messages, tools)
        stated = messages[-1]["content"].split("<candidates>")[1]
        found = re.findall(r'^(\d+)\. (.*) \(from: "', stated, flags=re.MULTILINE)
        verdicts = [{"number": int(number), **judge(text)} for number, text in found]
        return call(("call_1", "report_verdicts", {"verdicts": verdicts}))

    return model


async def test_a_verdict_rejects_what_was_not_said_so(learns: Learns) -> None:
    """It is shown the words where they stand, and asked only where there is something to verify."""
    memory, server = learns(
        judging(
            lambda text: {
                "said_as": "quoted" if text == "Likes wine" else "stated",
                "about": "user",
            }
        ),
        verify=True,
    )
    await memory.aput_messages(
        [user("My boss always says I like wine. I like tea."), assistant("Fine.")]
    )
    await memory.aput_messages([user("What a day."), assistant("Indeed.")])
    await memory.aflush()
    assert await contents(memory) == ["Likes tea"]
    assert memory.facts_block.rejections == {"not_verified": 1}
    asked = [
        request
        for request in server.requests
        if "<candidates>" in str(request[-1]["content"])
    ]
    assert len(asked) == 1
    assert "My boss always says I like wine." in asked[0][-1]["content"]
    usage = (await memory.astats()).usage
    assert usage["verification"].calls == 1
    assert usage["facts"].calls == len(server.requests) - 1
    assert server.refusals == []


@pytest.mark.parametrize(
    ("failure", "requests"),
    [(fail(400, "no"), 1), (say("Well."), 2), (say('{"verdicts": []}'), 2)],
)
async def test_without_a_verdict_the_facts_are_stored(
    caplog: pytest.LogCaptureFixture, failure: Message, requests: int, learns: Learns
) -> None:
    memory, server = learns(
        lambda messages, tools: (
            failure if tools == ["report_verdicts"] else learner(messages, tools)
        ),
        verify=True,
    )
    await memory.aput_messages(talk("tea"))
    await memory.aflush()
    assert await contents(memory) == ["Likes tea"]
    # It is asked for with the words, and then verified with the words and the quote.
    asked = likes(server.requests)
    assert (asked[0], set(map(tuple, asked[1:]))) == (["tea"], {("tea", "tea")})
    assert len(asked) >= 1 + requests
    assert "1 facts were not verified" in caplog.text


async def test_while_no_verdict_can_be_asked_for_nothing_is_stored(
    open_memory: OpenMemory, start_model: StartModel
) -> None:
    down = True

    def model(messages: list[Message], tools: list[str]) -> Message:
        verdict = judging(lambda text: {"said_as": "stated"})
        return (
            fail(500, "down")
            if down and tools == ["report_verdicts"]
            else verdict(messages, tools)
        )

    memory = open_memory(user_id="ann", llm=start_model(model)[0], verify=True)
    await memory.aput_messages(talk("tea"))
    await memory.facts_block.aflush("chat")
    assert await contents(memory) == []
    down = False
    await memory.aflush()
    assert await contents(memory) == ["Likes tea"]
    assert (await memory.astats()).set_aside == ()


def test_verdicts_are_read_as_models_write_them() -> None:
    text = (
        '<think>{"number": 1}</think>Sure! {"verdicts": [{"number": "1", "said_as": "Stated", "about": null}, 7,'
        '{"number": 2, "said_as": "unsaid", "known": 3, "about": "none"}]}'
    )
    expected = [(1, "stated", "user"), (2, "unsaid", "user")]
    assert [
        (one.number, one.said_as, one.about) for one in parse_verdict([text], 2)
    ] == expected
    with pytest.raises(VerificationError, match="each of 3 candidates; got 2"):
        parse_verdict([text], 3)


def test_what_a_retired_fact_was_replaced_by_is_what_is_left() -> None:
    """A retirement is judged by itself; nothing is retired that the verdict does not confirm."""
    old, older = (
        Fact(content=content, retired_at=NOW)
        for content in ("Lives in Oslo", "Lives in Bern")
    )
    new = Fact(content="Lives in Rome")
    old, older = (
        old.model_copy(update={"replaced_by": new.id}),
        older.model_copy(update={"replaced_by": new.id}),
    )
    valid = ValidatedReply(accepted=(new,), retired=(old, older))
    said = ("unsaid", "denied", "quoted")
    judgements = [
        judged(number=i, said_as=said_as) for i, said_as in enumerate(said, 1)
    ]
    left = verified(valid, judgements, [])
    assert left.accepted == ()
    assert [(fact.content, fact.replaced_by) for fact in left.retired] == [
        ("Lives in Oslo", None)
    ]
    assert left.rejections == {"not_verified": 2}


@pytest.mark.parametrize(
    ("first", "second", "stays"),
    [
        ({"said_as": "stated"}, {"said_as": "confirmed"}, True),
        ({"said_as": "stated"}, {"said_as": "planned"}, False),
        ({"said_as": "planned"}, {"said_as": "planned"}, True),
        ({"about": "user"}, {"said_as": "stated", "about": "other"}, False),
    ],
)
def test_both_readings_must_tell_the_same(
    first: dict[str, Any], second: dict[str, Any], stays: bool
) -> None:
    fact = Fact(content="Lives in Rome", **first)
    left = verified(
        ValidatedReply(accepted=(fact,)),
        [judged(**{"said_as": "stated", **second})],
        [],
    )
    assert bool(left.accepted) is stays


def test_an_unknown_label_is_no_agreement() -> None:
    (judgement,) = parse_verdict(
        ['{"verdicts": [{"number": 1, "said_as": "user"}]}'], 1
    )
    assert judgement.said_as == "unsaid"
    assert not judgement.agrees(Fact(content="Lives in Rome"))


async def test_a_second_reading_that_agrees_to_anything_is_named_once(
    learns: Learns, caplog: pytest.LogCaptureFixture
) -> None:
    memory, _ = learns(judging(lambda text: {"said_as": "stated"}), verify=True)
    for start in range(0, 60, 12):
        await memory.aput_messages(
            talk(*(f"drink{i}" for i in range(start, start + 12)))
        )
        await memory.aflush()
    assert caplog.text.count("it checks nothing") == 1
