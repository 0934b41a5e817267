"""Which messages are shown word for word, how much of each, and what a cut leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import TokenCounter
from llama_index_memory_ext.record.window import Window
from llama_index_memory_ext.store.rows import ReadPosition
from llama_index_memory_ext.text.entries import Entry, entry_of
from llama_index_memory_ext.text.limits import limits_of_messages
from llama_index_memory_ext.text.messages import tool_call_groups
from llama_index_memory_ext.text.tokens import as_counter

COUNTER = TokenCounter()
# Each word is a token, and so is each tag: an entry has three tokens more than words.
WORDS = as_counter(lambda text: text.replace("<", " <").replace(">", "> ").split())
ROLES = {"u": "user", "a": "assistant", "t": "tool", "s": "system"}


def entries(notation: str, counter: TokenCounter = WORDS) -> list[Entry]:
    """An entry for each part: "u5 a t9" is a user's message of five words, an assistant's of one, a result of nine."""
    return [
        entry
        for i, part in enumerate(notation.split(), start=1)
        if (entry := entry_of(i, message(part, i), counter)) is not None
    ]


def message(part: str, row_id: int) -> ChatMessage:
    return ChatMessage(
        role=ROLES[part[0]],
        content=" ".join(f"w{row_id}.{place}" for place in range(int(part[1:] or 1))),
    )


def limits(
    tokens: int = 10_000, *, counter: TokenCounter = WORDS, **options: Any
) -> Window:
    return Window(
        ReadPosition(),
        replace(
            limits_of_messages(
                options.get("max_messages"),
                options.get("keep_messages"),
                options.get("keep_ratio", 0.75),
                include_system=False,
            ),
            tokens=tokens,
        ),
        counter,
    )


@pytest.mark.parametrize(
    ("notation", "options", "tokens"),
    [
        ("u5 a5", {"tokens": 40}, [8, 8]),
        ("u500 a5", {"tokens": 100}, [50, 8]),
        ("u500 a5", {"tokens": 100, "keep_ratio": 0.45}, [30, 8]),
        # A message has room for a few words, however little a cut leaves.
        ("u500 a500", {"tokens": 100, "keep_ratio": 0.1}, [25, 25]),
        ("u500", {"tokens": 20}, [20]),
        # A call and its results have one share together; the short ones are shown whole.
        ("a5 t500 t500", {"tokens": 100}, [8, 21, 21]),
        # What has no room even for its tags is not shown, and neither is anything of its unit.
        ("a t t t t t t t t t t u", {"tokens": 40}, [4]),
    ],
)
def test_a_message_over_its_share_is_clipped(
    notation: str, options: dict[str, Any], tokens: list[int]
) -> None:
    shown = limits(**options).within_shares(entries(notation))
    assert len(shown) == len(tokens)
    for entry, most in zip(shown, tokens, strict=True):
        assert most * 0.7 <= entry.tokens <= most


def test_a_cut_removes_the_first_group_where_all_have_room() -> None:
    """As after results were made short: without a cut, no other process would know of it."""
    window = replace(limits(), entries=tuple(entries("u5 a5 t5 u5")))
    shorter = window.after_cut()
    assert shorter.entries == window.entries[1:]
    newest = replace(window, entries=window.entries[1:3])
    assert newest.after_cut().entries == newest.entries


def test_the_heading_above_the_first_message_is_no_part_of_it() -> None:
    first, second = entries("u5 u5")
    days = [replace(first, day="2026-11-19"), replace(second, day="2026-11-20")]
    window = replace(limits(), entries=limits().extended_by(days, with_days=True))
    assert window.entries[1].tokens > second.tokens
    assert window.without_oldest(1).entries == (days[1],)


notations = st.lists(
    st.tuples(st.sampled_from("uatats"), st.integers(1, 60)), max_size=15
).map(lambda parts: " ".join(f"{letter}{words}" for letter, words in parts))
any_limits = st.builds(
    lambda most, keep, **options: limits(
        max_messages=most, keep_messages=keep and most and min(keep, most), **options
    ),
    most=st.none() | st.integers(1, 10),
    keep=st.none() | st.integers(1, 10),
    tokens=st.integers(60, 300),
    counter=st.sampled_from([WORDS, COUNTER]),
    keep_ratio=st.floats(0.3, 1),
)


@given(rules=any_limits, notation=notations)
def test_shares_keep_every_unit_within_what_a_cut_leaves(
    rules: Window, notation: str
) -> None:
    """And no message is lost where its tags have room."""
    given_entries = entries(notation, rules.counter)
    shown = rules.within_shares(given_entries)
    for unit in tool_call_groups(shown):
        assert sum(entry.tokens for entry in unit) <= int(
            rules.limits.tokens * rules.limits.keep_ratio
        )
    rows = {entry.row_id for entry in shown}
    for unit in tool_call_groups(given_entries):
        ids = {entry.row_id for entry in unit}
        assert ids <= rows or not ids & rows
        if len(unit) == 1:
            assert ids <= rows
    assert rules.within_shares(shown) == shown


@given(rules=any_limits, notation=notations, low=st.booleans())
def test_a_cut_keeps_the_newest_within_the_limits_and_parts_no_unit(
    rules: Window, notation: str, low: bool
) -> None:
    before = tuple(rules.within_shares(entries(notation, rules.counter)))
    most = rules.limits.kept if low else rules.limits
    kept = replace(rules, entries=before).within_limits(most).entries
    assert bool(kept) == bool(before)
    assert before[len(before) - len(kept) :] == kept
    assert sum(entry.tokens for entry in kept) <= rules.limits.tokens
    only_unit = len(tool_call_groups(kept)) == 1
    assert not replace(rules, entries=kept).is_over or only_unit
    if kept and kept != before:
        assert not kept[0].is_result
    assert replace(rules, entries=kept).within_limits(most).entries == kept


@given(rules=any_limits, notation=notations)
def test_what_waits_for_a_summary_leaves_nothing_out_that_has_room(
    rules: Window, notation: str
) -> None:
    before = tuple(rules.within_shares(entries(notation, rules.counter)))
    kept = replace(rules, entries=before).until_summary().entries
    assert not replace(rules, entries=kept).is_over or len(tool_call_groups(kept)) == 1
    units = tool_call_groups(before)
    gone = units[: len(units) - len(tool_call_groups(kept))]
    if gone and not any(entry.role == "user" for entry in before):
        assert replace(rules, entries=(*gone[-1], *kept)).is_over
