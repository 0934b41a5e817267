"""Which older messages a prompt has: for requests, with a small limit, in other words, and for what has changed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import CondensedMemory, TokenCounter
from tests.conversation import assistant, recalled, sent_text, user
from tests.memories import OpenMemory

FOLDER = Path(__file__).parent
TURNS = 60


class Need(NamedTuple):
    """A message, and the text of the user that needs it."""

    message: str
    text: str


def rows(name: str) -> list[list[str]]:
    """Return the columns of a file of this folder, without its comments."""
    lines = (FOLDER / name).read_text("utf-8").splitlines()
    return [line.split("|") for line in lines if not line.startswith("#")]


def small_talk(first: int, last: int) -> list[ChatMessage]:
    """Return these turns of small talk, of which no two are alike."""
    talk = rows("small_talk.txt")
    messages: list[ChatMessage] = []
    for turn in range(first, last):
        said = talk[turn % len(talk)][0]
        answer = talk[(7 * turn) % len(talk)][1]
        if turn >= len(talk):
            said = f"Today again: {said}"
        messages += [user(said), assistant(answer)]
    return messages


async def put(memory: CondensedMemory, messages: Sequence[ChatMessage]) -> None:
    for message in messages:
        await memory.aput(message)
    await memory.aget(input="What was said first?")
    await memory.condensed_block.await_jobs(memory.session_id)


async def missing(memory: CondensedMemory, needs: Sequence[Need]) -> list[str]:
    """Return the texts whose message is not recalled."""
    texts: list[str] = []
    for need in needs:
        prompt = sent_text(await memory.aget(input=need.text))
        if need.message not in [message for _, message in recalled(prompt)]:
            texts.append(need.text)
    return texts


# ---- requests and complaints ----


@pytest.mark.parametrize("recall_when", ["asked", "always"])
async def test_a_request_or_a_complaint_finds_the_message_that_it_needs(
    open_memory: OpenMemory, recall_when: Literal["asked", "always"]
) -> None:
    """In eight languages, as if each text had all tokens for recall."""
    needs = [Need(message, text) for _, _, message, text in rows("requests.txt")]
    memory = open_memory(
        condensed_token_limit=600, facts_token_limit=0, recall_when=recall_when
    )
    messages: list[ChatMessage] = []
    for need in needs:
        messages += [user(need.message), assistant("I see.")]
    await put(memory, [*messages, *small_talk(0, TURNS)])
    assert len(await missing(memory, needs)) <= len(needs) // 20


# ---- small limits ----


@pytest.mark.parametrize(
    ("limits", "most_missing"),
    [
        ({"token_limit": 1_500}, 0.1),
        ({"condensed_token_limit": 600, "facts_token_limit": 0}, 0.1),
        ({"condensed_token_limit": 400, "facts_token_limit": 0}, 0.2),
    ],
)
async def test_a_small_limit_leaves_room_for_the_message_that_a_question_needs(
    open_memory: OpenMemory, limits: dict[str, Any], most_missing: float
) -> None:
    messages: list[ChatMessage] = []
    needs: list[Need] = []
    for role, text, question in rows("needed_messages.txt"):
        if role == "user":
            messages += [user(text), assistant("I see.")]
        else:
            messages += [user("Do you have an idea?"), assistant(text)]
        if question:
            needs.append(Need(text, question))
    memory = open_memory(**limits)
    await put(memory, [*messages, *small_talk(0, TURNS)])
    assert len(needs) == 30
    assert len(await missing(memory, needs)) <= most_missing * len(needs)


async def test_a_short_message_is_shown_whole_with_a_small_limit(
    open_memory: OpenMemory,
) -> None:
    """A quarter of the tokens for recall would show a part of it."""
    long = "Caroline breeds alpacas, and she wants to sell the wool of all of them at the market in Cusco every Friday."
    memory = open_memory(condensed_token_limit=300, facts_token_limit=0)
    await put(memory, [user(long), assistant("I see."), *small_talk(0, 30)])
    assert await missing(memory, [Need(long, "What does Caroline breed?")]) == []


# ---- what has changed ----


@pytest.mark.parametrize("row", rows("changes.txt"), ids="-".join)
async def test_a_question_about_the_present_finds_what_has_changed(
    open_memory: OpenMemory, row: list[str]
) -> None:
    """The question "Where do I live now?" has no word in common with "We have moved"."""
    _, before, change, question = row
    memory = open_memory(condensed_token_limit=600, facts_token_limit=0)
    await put(
        memory,
        [
            user(before),
            assistant("I see."),
            *small_talk(0, 30),
            user(change),
            assistant("I see."),
            *small_talk(30, TURNS),
        ],
    )
    needs = [Need(before, question), Need(change, question)]
    assert await missing(memory, needs) == []


async def test_what_has_changed_stands_last_among_the_recalled_messages(
    open_memory: OpenMemory,
) -> None:
    """A small model answers with what was said before, if both look alike.

    Each change is a line. A change of today has no day.
    """
    memory = open_memory(condensed_token_limit=600, facts_token_limit=0)
    old = ChatMessage(
        "The dentist has moved to Ghent.",
        additional_kwargs={"timestamp": datetime(2023, 5, 8, tzinfo=timezone.utc)},
    )
    change = "The dentist sees me\n\non Friday instead."
    others = ["I see the dentist on Monday.", "The dentist is a friend of my aunt."]
    messages = [old, assistant("I see.")]
    for said in (others[0], change, others[1]):
        messages += [user(said), assistant("I see.")]
    await put(memory, [*messages, *small_talk(0, TURNS)])
    prompt = sent_text(await memory.aget(input="When do I see the dentist?"))
    recalled_text, _, changes = prompt.partition("What has changed since then:\n")
    assert all(said in recalled_text for said in others)
    assert changes.startswith(
        "- The dentist has moved to Ghent. (2023-05-08)\n"
        "- The dentist sees me on Friday instead.\n</"
    )


async def test_a_change_in_the_record_stands_behind_an_older_change(
    open_memory: OpenMemory,
) -> None:
    """A small model otherwise answers with the older change, which stands nearer to the question."""
    memory = open_memory(condensed_token_limit=1_600, facts_token_limit=0)
    messages = [*small_talk(0, 5), user("We have moved to Ghent."), assistant("Oh.")]
    messages += [*small_talk(5, TURNS), user("We have moved to Braga.")]
    await put(memory, [*messages, assistant("Oh."), *small_talk(TURNS, TURNS + 1)])
    prompt = sent_text(await memory.aget(input="Where do we live?"))
    assert "We have moved to Braga.</message>" in prompt
    changes = prompt.partition("What has changed since then:\n")[2]
    assert changes.startswith(
        "- We have moved to Ghent.\n- We have moved to Braga.\n</"
    )
    texts = [match.text for match in memory.last_used().messages]
    assert texts.count("We have moved to Ghent.") == 1
    assert "We have moved to Braga." not in texts
    # A question that names a time asks for what was said then; changes would take its room.
    prompt = sent_text(await memory.aget(input="Where did we live last month?"))
    assert "<message user>We have moved to Ghent.\n" in prompt
    assert "What has changed" not in prompt


async def test_changes_of_the_record_count_as_recalled(
    open_memory: OpenMemory,
) -> None:
    memory = open_memory(condensed_token_limit=1_600, recall_token_limit=100)
    messages = [user("We have moved to Ghent."), assistant("Oh."), *small_talk(0, 120)]
    for town in ("Braga", "Porto", "Graz", "Bergen", "Malmo", "Turin", "Lyon", "Bath"):
        said = f"We have moved once again, this time to {town}, and with all our cats."
        messages += [user(said), assistant("Oh.")]
    await put(memory, messages)
    question = user("Where have we moved?")
    record = await memory.condensed_block.arecord([question], memory.session_id)
    changes = record.text.partition("What has changed since then:\n")[2]
    assert "this time to Bath, and with all our cats.\n" in changes
    assert "this time to Braga" not in changes
    assert TokenCounter().count(changes) <= 1.4 * 100


async def test_a_long_message_is_no_line_of_what_has_changed(
    open_memory: OpenMemory,
) -> None:
    """A long text may quote what others have written."""
    letter = "We have moved to Ghent.\n" + "The garden is full of old roses.\n" * 20
    memory = open_memory(condensed_token_limit=1_600, facts_token_limit=0)
    await put(memory, [user(letter), assistant("I see."), *small_talk(0, 120)])
    prompt = sent_text(await memory.aget(input="Where have we moved?"))
    assert "What has changed" not in prompt
    assert "<message user>We have moved to Ghent.\n" in prompt


# ---- other words ----


@pytest.mark.parametrize("row", rows("other_words.txt"), ids="-".join)
async def test_a_question_finds_what_the_user_said_in_other_words(
    open_memory: OpenMemory, row: list[str]
) -> None:
    """The question "Where do I live?" has no word in common with "Our flat"."""
    _, message, question = row
    memory = open_memory(condensed_token_limit=600, facts_token_limit=0)
    await put(
        memory,
        [
            *small_talk(0, 30),
            user(message),
            assistant("I see."),
            *small_talk(30, TURNS),
        ],
    )
    assert await missing(memory, [Need(message, question)]) == []
