"""Nothing waits behind a turn from which no facts can be extracted."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext.blocks import LogBlock
from llama_index_memory_ext.errors import (
    Blame,
    FactReplyError,
    StoreError,
    blame_of,
)
from llama_index_memory_ext.fact import SetAside
from llama_index_memory_ext.learning.progress import (
    Progress,
    after_failure,
    progress_of,
)
from tests.conversation import assistant, user
from tests.learning.learning import Learns, contents, likes, poisoned, talk
from tests.memories import OpenMemory
from tests.openai_server import Message, fail, say

TOO_LONG = "This model's maximum context length is 8192 tokens."
FILTERED = {
    "role": "assistant",
    "content": None,
    "refusal": "I cannot help with that.",
    "finish_reason": "stop",
}
BAD: dict[str, Message] = {
    "unreadable": say("I would rather not say {"),
    "refused": FILTERED,
    "filtered": {**say(""), "finish_reason": "content_filter"},
    "too long": fail(400, TOO_LONG),
}


@pytest.fixture(autouse=True)
def _no_retry_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine would retry within a test, and be counted."""
    monkeypatch.setattr(LogBlock, "retry_seconds", 3600.0)


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD.keys())
async def test_a_turn_that_fails_for_good_is_set_aside_and_all_others_are_read(
    open_memory: OpenMemory,
    learns: Learns,
    caplog: pytest.LogCaptureFixture,
    answer: Message,
) -> None:
    """It is found by halves, listed, also by another process, and tried again on purpose."""
    memory, server = learns(poisoned(answer, "wine"))
    words = ["tea", "rain", "snow", "wine", "milk", "hail"]
    messages = talk(*words)
    # The text behind the failed turn is read as whole as the texts before.
    messages[8] = user(f"{'so ' * 500}I like milk. {'so ' * 500}")
    await memory.sql_store.log.append("chat", messages, len)
    await memory.aflush()
    assert await contents(memory) == sorted(
        f"Likes {word}" for word in words if word != "wine"
    )
    asked = likes(server.requests)
    # What cannot be read is asked for twice each time.
    times = 2 if answer is BAD["unreadable"] else 1
    assert [batch for batch in asked if batch == ["wine"]] == [["wine"]] * 3 * times
    assert len(asked) <= 10 * times
    assert "wine" not in caplog.text
    stats = await open_memory(user_id="ann").astats()
    assert [(turn.first, turn.last) for turn in stats.set_aside] == [(7, 8)]
    again = learns()[0]
    assert (await again.abackfill()).set_aside == 1
    extractor = again.facts_block.extractor("chat")
    (turn,) = await extractor.set_aside()
    done = await again.abackfill(failed=True)
    assert (done.messages, done.new, done.set_aside) == (2, 1, 0)
    assert "Likes wine" in await contents(again)
    assert (await again.astats()).set_aside == ()
    # As a process does that has listed the turn before.
    assert (await extractor.extract_again(turn)).usage.calls == 0


@pytest.mark.parametrize(
    "before",
    [
        [assistant("Hello! How can I help?")],
        [
            ChatMessage("I like beer", additional_kwargs={"user_id": "bob"}),
            assistant("Ok."),
        ],
    ],
    ids=["greeting", "another user"],
)
async def test_a_turn_behind_messages_that_are_no_turn_of_the_user_is_set_aside(
    learns: Learns, before: list[ChatMessage]
) -> None:
    """Otherwise no later message of the session would ever be read."""
    memory, _ = learns(poisoned(BAD["unreadable"], "wine"), shared=True)
    await memory.aput_messages([*before, *talk("wine", "tea")])
    # Each try of a model that was never understood ends a flush.
    for _ in range(4):
        await memory.aflush()
    stats = await memory.astats()
    assert (stats.pending, len(stats.set_aside)) == (0, 1)
    assert await contents(memory) == ["Likes tea"]


async def test_three_tries_have_a_pause_between_them_and_survive_a_restart(
    learns: Learns,
) -> None:
    """Each try by another process; the turn behind it has three tries, too."""
    for tries in range(1, 7):
        memory, server = learns(
            poisoned(BAD["unreadable"], "wine"),
            extract_every_turns=1,
        )
        if tries in (1, 4):
            await memory.aput_messages(talk("wine"))
        else:
            await memory.facts_block.anotice("chat")
        await memory.facts_block.await_jobs("chat")
        # By a tool, and in text, which may be all that the server knows.
        assert len(server.requests) == 2
        assert len((await memory.astats()).set_aside) == tries // 3


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
async def test_a_failure_that_no_turn_has_caused_sets_nothing_aside(
    status: int, learns: Learns
) -> None:
    memory, server = learns(lambda messages, tools: fail(status, TOO_LONG))
    await memory.sql_store.log.append("chat", talk("tea", "rain"), len)
    for _ in range(5):
        await memory.facts_block.aflush("chat")
    stats = await memory.astats()
    assert (stats.pending, stats.set_aside) == (4, ())
    assert likes(server.requests) == [["tea", "rain"]] * 5


async def test_a_model_that_refuses_every_request_is_asked_once_at_a_time(
    learns: Learns,
) -> None:
    """Whether it is the turn is not known, so it is tried four times as often before it is set aside."""
    memory, server = learns(
        lambda messages, tools: fail(400, "Your credit balance is too low.")
    )
    await memory.sql_store.log.append("chat", talk("wine"), len)
    for tries in range(1, 13):
        assert (await memory.astats()).set_aside == ()
        server.requests.clear()
        await memory.facts_block.aflush("chat")
        assert {tuple(batch) for batch in likes(server.requests)} == {("wine",)}, tries
    assert [(turn.first, turn.last) for turn in (await memory.astats()).set_aside] == [
        (1, 2)
    ]


@pytest.mark.parametrize("turns", [1, 3, 9])
async def test_a_model_that_is_never_understood_is_asked_for_two_batches_at_a_time(
    turns: int, learns: Learns
) -> None:
    """All turns, and the first one alone; each batch by a tool and in text. No turn is blamed before its third try."""
    memory, server = learns(lambda messages, tools: BAD["unreadable"])
    words = [f"w{i}" for i in range(turns)]
    await memory.aput_messages(talk(*words))
    await memory.aflush()
    batches = [words, words[:1]] if turns > 1 else [words]
    assert likes(server.requests) == [batch for batch in batches for _ in range(2)]
    for tries in (2, 3):
        assert (await memory.astats()).set_aside == ()
        server.requests.clear()
        await memory.aflush()
        assert likes(server.requests)[:2] == [words[:1]] * 2, tries
    assert [turn.first for turn in (await memory.astats()).set_aside] == [1]


async def test_three_turns_with_pauses_cost_four_calls_of_a_model_that_answers_junk(
    learns: Learns,
) -> None:
    memory, server = learns(
        lambda messages, tools: BAD["unreadable"],
        extract_every_turns=1,
    )
    for word in ("tea", "rain", "snow"):
        await memory.aput_messages(talk(word))
        await memory.facts_block.await_jobs("chat")
    await memory.aclose()
    assert len(server.requests) == 4


async def test_an_answer_that_was_cut_off_is_asked_for_by_halves(
    learns: Learns,
) -> None:
    """And of a single turn what is whole is kept."""

    def model(messages: list[Message], tools: list[str]) -> Message:
        said = re.findall(r"I like (\w+)", str(messages[-1]["content"]))
        whole = "".join(
            f'{{"message": 1, "quote": "I like {word}", "fact": "Likes {word}"}}, '
            for word in said[:1]
        )
        return {
            **say(f'[{whole}{{"message": 2, "quote": "I like w'),
            "finish_reason": "length",
        }

    memory, server = learns(model)
    await memory.sql_store.log.append("chat", talk("tea", "rain", "snow"), len)
    await memory.facts_block.aflush("chat")
    assert await contents(memory) == ["Likes rain", "Likes snow", "Likes tea"]
    assert likes(server.requests) == [
        ["tea", "rain", "snow"],
        ["tea"],
        ["rain", "snow"],
        ["rain"],
        ["snow"],
    ]


@given(
    bad=st.sets(st.integers(0, 11), max_size=6),
    turns=st.integers(0, 12),
    blames=st.sampled_from(["turns", "unknown"]),
)
def test_every_turn_is_read_or_set_aside_once_and_in_order(
    bad: set[int], turns: int, blames: Blame
) -> None:
    """By a model that answers something else; after three tries, or twelve if the model may be broken."""
    progress, left, done, requests = Progress(), list(range(turns)), [], 0
    tries = Counter[int]()
    while left:
        batch = left[: progress.most_turns]
        requests += 1
        if not bad & set(batch):
            done += [(turn, "read") for turn in batch]
            left, progress = left[len(batch) :], progress.after_success()
            continue
        if len(batch) == 1:
            tries[batch[0]] += 1
        action, after = after_failure(progress, blames, len(batch))
        progress = progress_of(after.state)
        if action == "set aside":
            (turn,), left = batch, left[1:]
            done.append((turn, "set aside"))
            progress = progress.without(SetAside(turn, turn, "KeyError"))
    assert done == [
        (turn, "set aside" if turn in bad else "read") for turn in range(turns)
    ]
    assert [one.first for one in progress.set_aside] == [
        turn for turn in range(turns) if turn in bad
    ]
    for turn, number in tries.items():
        in_doubt = blames == "unknown" or {turn - 3, turn - 2, turn - 1} <= bad
        assert number == (12 if in_doubt else 3)
    assert requests <= 1 + 2 * turns + 17 * len(bad)


def test_what_is_to_blame_is_seen_in_the_error() -> None:
    class StatusError(Exception):
        def __init__(self, status: int, text: str = "") -> None:
            super().__init__(text)
            self.status_code = status

    class BotoError(Exception):
        response: ClassVar[Any] = {"ResponseMetadata": {"HTTPStatusCode": 503}}

    class APIConnectionError(Exception):
        """Of OpenAI's and Anthropic's clients."""

    blames: list[tuple[Exception, Blame]] = [
        (FactReplyError(""), "turns"),
        (StatusError(400, TOO_LONG), "turns"),
        (StatusError(400, "Unsupported value: 'temperature'"), "unknown"),
        (StatusError(413), "turns"),
        (StatusError(429, TOO_LONG), "model"),
        (BotoError(), "model"),
        (APIConnectionError(), "model"),
        (TimeoutError(), "length"),
        (asyncio.TimeoutError(), "length"),
        (StatusError(504), "length"),
        (StoreError(), "model"),
        (KeyError("x"), "unknown"),
    ]
    assert [blame_of(error) for error, _ in blames] == [blame for _, blame in blames]
