"""The ways to keep the record short that the condensed block offers, from the messages to what is shown."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import CondensedMemory, CondensedMemoryBlock, TokenCounter
from tests.conversation import assistant, calling, record, result, sent_text, user
from tests.memories import OpenMemory

COUNTER = TokenCounter()
LONG = " ".join(f"w{i}" for i in range(400))


def system(text: str) -> ChatMessage:
    return ChatMessage(role="system", content=text)


async def shown(block: CondensedMemoryBlock, *messages: ChatMessage, session_id: str = "chat") -> list[tuple[str, str]]:
    if messages:
        await block.aput(list(messages), session_id=session_id)
    text = await block.aget([], session_id=session_id)
    assert COUNTER.count(f"<condensed_memory>\n{text}</condensed_memory>\n") <= block.token_limit
    return record(text)


async def test_the_last_messages_are_kept() -> None:
    """At each turn, where the low mark is the high one."""
    block = CondensedMemoryBlock(max_messages=4, keep_messages=4)
    lengths = [len(await shown(block, user(f"question {i}"), assistant(f"answer {i}"))) for i in range(6)]
    assert lengths == [2, 4, 4, 4, 4, 4]
    assert [text for _, text in await shown(block)] == ["question 4", "answer 4", "question 5", "answer 5"]
    await block.aclose()


async def test_a_ratio_of_one_cuts_each_turn() -> None:
    """And keeps as much as fits, instead of leaving room for the turns to come."""
    block = CondensedMemoryBlock(token_limit=400, keep_ratio=1.0)
    for i in range(40):
        await shown(block, user(f"question {i}"), assistant(f"answer {i}"))
        tokens = COUNTER.count(await block.aget([], session_id="chat"))
        assert i < 16 or 360 <= tokens <= 400
    await block.aclose()


async def test_the_first_instructions_stay_for_good() -> None:
    """In front of everything; others leave like all messages."""
    block = CondensedMemoryBlock(token_limit=200, include_system=True)
    await shown(block)
    await shown(block, system("Be kind."), user("hello"), system("Be brief."))
    for i in range(30):
        entries = await shown(block, user(f"question {i}"), assistant("yes"))
        assert entries[0] == ("system", "Be kind.")
        assert ("system", "Be kind.") not in entries[1:]
    assert ("system", "Be brief.") not in entries
    assert await shown(block, user("Hello."), session_id="other") == [("user", "Hello.")]
    await block.aclose()


async def test_instructions_over_the_limit_are_clipped_and_leave_room() -> None:
    block = CondensedMemoryBlock(token_limit=200, include_system=True)
    entries = await shown(block, system(LONG), user("the newest question"))
    assert entries[0][0] == "system"
    assert "tokens left out" in entries[0][1]
    assert entries[1:] == [("user", "the newest question")]
    await block.aclose()


async def test_instructions_count_as_a_message() -> None:
    block = CondensedMemoryBlock(max_messages=3, keep_messages=3, include_system=True)
    entries = await shown(block, system("Be kind."), *(user(f"question {i}") for i in range(9)))
    assert [text for _, text in entries] == ["Be kind.", "question 7", "question 8"]
    await block.aclose()


async def test_the_preset_hands_the_settings_on(open_memory: OpenMemory) -> None:
    memory = open_memory(max_messages=4, keep_messages=2, recall_token_limit=500)
    for i in range(5):
        await memory.aput_messages([user(f"question {i}"), assistant(f"answer {i}")])
    await memory.aput(user("What was question 1?"))
    text = sent_text(await memory.aget())
    verbatim, _, earlier = text.partition("<earlier_messages")
    assert [said for _, said in record(verbatim)] == ["question 4", "answer 4"]
    assert "question 1" in earlier


def test_a_setting_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"no argument 'max_message'\. Did you mean 'max_messages'\?"):
        CondensedMemory.from_defaults(max_message=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_message": 3}, "no argument 'max_message'"),
        ({"start_on": "user"}, "no argument 'start_on'"),
        ({"keep_messages": 3}, "keep_messages=3 needs a max_messages"),
        ({"recall_token_limit": -1}, "recall_token_limit"),
        ({"summary_token_limit": 0}, "summary_token_limit"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CondensedMemoryBlock(**options)


async def test_a_block_with_all_settings_can_be_copied_and_pickled() -> None:
    block = CondensedMemoryBlock(token_limit=900, include_system=True, summarize=True, recall_token_limit=300)
    await shown(block, user("one"), assistant("two"))
    assert await shown(copy.deepcopy(block)) == [("user", "one"), ("assistant", "two")]
    twin = pickle.loads(pickle.dumps(block))
    assert (twin.recall_token_limit, twin.summarize, await shown(twin)) == (300, True, [])
    await block.aclose()
    await twin.aclose()


kinds = st.lists(st.sampled_from(["u", "U", "a", "A", "c"]), min_size=1, max_size=14)


@settings(max_examples=80)
@given(kinds=kinds, keep_ratio=st.sampled_from([0.5, 0.75, 1.0]), batch=st.integers(1, 4))
async def test_no_result_is_parted_from_its_call_and_the_newest_is_there(
    kinds: list[str], keep_ratio: float, batch: int
) -> None:
    """U and A are long; c is a call, its result, and the answer."""
    block = CondensedMemoryBlock(token_limit=260, keep_ratio=keep_ratio)
    said: list[list[ChatMessage]] = []
    for i, kind in enumerate(kinds):
        text = f"message {i}" + (f" {LONG[:600]} end {i}" if kind in "UA" else "")
        if kind == "c":
            said.append([calling((f"c{i}", "read", {"i": i})), result(f"c{i}", LONG[:500]), assistant(f"answer {i}")])
        else:
            said.append([user(text) if kind in "uU" else assistant(text)])
    for start in range(0, len(said), batch):
        entries = await shown(block, *(message for unit in said[start : start + batch] for message in unit))
        roles = [role for role, _ in entries]
        assert roles[0] != "tool"
        assert entries[-1][1].split()[-1] == str(min(start + batch, len(said)) - 1)
    await block.aclose()
