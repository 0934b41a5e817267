"""The text of the record is put together, taken apart and shortened without ever mistaking what was said for a tag."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import TokenCounter
from llama_index_memory_ext.record.text import (
    DAY_HEADING,
    EARLIER_CLOSING,
    EARLIER_OPENING,
    earlier_element,
    is_result,
    split_record,
    summary_element,
    truncated,
)
from llama_index_memory_ext.text.entries import Entry, clip_entry, entry_of, escape_tags
from llama_index_memory_ext.text.tokens import as_counter
from tests.conversation import assistant, calling, result, user

COUNTER = TokenCounter()
# One token for each character, and one for each text: the counts of parts are more than that of the whole.
PER_CHARACTER = as_counter(lambda text: [0, *map(ord, text)])
TAG_PARTS = (
    '<message role="user">', '<message role="tool">', "<message user>", "<message tool>", "<message date>2026-11-20\n",
    "</message>\n", "<conversation_summary>",
    "</conversation_summary>\n", EARLIER_OPENING, EARLIER_CLOSING, "<earlier_messages-2>", "</earlier_messages.x>\n",
    "<earlier_messages", "<message_", "<condensed_memory>\n", "\n", "\r", "\u2028", "&lt;", "<", ">", '"', " ", "word ",
    "\u65e5\u672c\u8a9e", "\U0001f469\u200d\U0001f52c", "\u0130",
)  # fmt: skip

hostile_texts = st.lists(
    st.sampled_from(TAG_PARTS) | st.text(max_size=5), max_size=8
).map("".join)
roles = st.sampled_from(
    ["user", "assistant", "tool", "function", "system", "developer", "model", "chatbot"]
)
messages = st.builds(
    ChatMessage,
    role=roles,
    content=hostile_texts,
    additional_kwargs=st.dictionaries(
        st.sampled_from(["tool_call_id", "name", "mood"]), hostile_texts, max_size=2
    ),
)
conversations = st.lists(messages, max_size=6)


def entries_of(conversation: list[ChatMessage], *, brief: bool = False) -> list[Entry]:
    entries = (
        entry_of(i, message, COUNTER, brief=brief)
        for i, message in enumerate(conversation)
    )
    return [entry for entry in entries if entry is not None]


def parts_of(
    conversation: list[ChatMessage],
    summary: str = "",
    earlier: list[ChatMessage] | None = None,
    *,
    clip: int = 0,
) -> list[str]:
    """The lines of a record as a block puts them together: first instructions, summary, messages, earlier messages."""
    entries = entries_of(conversation)
    if clip:
        entries = [clip_entry(entry, clip, COUNTER) for entry in entries]
    shown = [entry.text for entry in entries]
    at = 1 if entries and entries[0].role == "system" else 0
    element = summary_element(summary, 1_000, COUNTER)
    found = [entry.text for entry in entries_of(earlier or [], brief=True)]
    days = [
        DAY_HEADING.format("2026-11-20"),
        *found[:1],
        *([DAY_HEADING.format("2026-11-21")] if found[1:] else []),
        *found[1:],
    ]
    below = [EARLIER_OPENING, *days, EARLIER_CLOSING] if found else []
    return [*shown[:at], *([element] if element else []), *shown[at:], *below]


@given(
    conversation=conversations,
    summary=hostile_texts,
    earlier=conversations,
    clip=st.just(0) | st.integers(10, 60),
)
@example(conversation=[user("\n<earlier_messages-2>")], summary="", earlier=[], clip=0)
@example(
    conversation=[user("a\n</earlier_messages.x>\nb")], summary="", earlier=[], clip=0
)
@example(
    conversation=[],
    summary="\n<earlier_messages",
    earlier=[user("\n<earlier_messages")],
    clip=0,
)
def test_a_record_is_taken_apart_exactly_as_it_was_put_together(
    conversation: list[ChatMessage], summary: str, earlier: list[ChatMessage], clip: int
) -> None:
    """Whatever is said in it, and wherever it was clipped."""
    parts = parts_of(conversation, summary, earlier, clip=clip)
    assert split_record("".join(parts)) == parts


def test_earlier_messages_stand_under_a_heading_and_those_of_a_day_under_its_own() -> (
    None
):
    entries = entries_of([user("one"), assistant("two"), user("three")], brief=True)
    found = [
        (f"2026-11-{day}", [entry])
        for day, entry in zip((20, 19, 20), entries, strict=True)
    ]
    assert earlier_element(found, COUNTER) == (
        f"{EARLIER_OPENING}<message date>2026-11-19\n<message assistant>two\n"
        f"<message date>2026-11-20\n<message user>one\n<message user>three\n{EARLIER_CLOSING}"
    )


@pytest.mark.parametrize(
    ("summary", "element"),
    [
        (
            "  I am Logan.\n",
            "<conversation_summary>I am Logan.</conversation_summary>\n",
        ),
        ("", ""),
        (" \n\t", ""),
    ],
)
def test_a_summary_stands_in_an_element_of_its_own(summary: str, element: str) -> None:
    assert summary_element(summary, 100, COUNTER) == element


@given(
    summary=hostile_texts
    | st.builds(lambda text, times: text * times, hostile_texts, st.integers(1, 60)),
    limit=st.integers(-5, 60),
    counter=st.sampled_from([COUNTER, PER_CHARACTER]),
)
@example(summary="\U0001f469\u200d\U0001f52c", limit=8, counter=COUNTER)
@example(summary="\U00013000", limit=10, counter=COUNTER)
def test_a_summary_is_within_its_limit_or_not_shown(
    summary: str, limit: int, counter: TokenCounter
) -> None:
    """And there is never an element with nothing in it."""
    shown = summary_element(summary, limit, counter)
    if shown:
        assert counter.count(shown) <= limit
        assert (
            shown.removeprefix("<conversation_summary>")
            .removesuffix("</conversation_summary>\n")
            .strip()
        )


@given(summary=hostile_texts)
def test_no_summary_can_open_or_close_an_element(summary: str) -> None:
    shown = summary_element(f"a{summary}z", 1_000, COUNTER, ("notes",))
    assert (
        shown
        == f"<conversation_summary>{escape_tags(f'a{summary}z')}</conversation_summary>\n"
    )
    assert summary_element("</notes>", 1_000, COUNTER, ("notes",)).count("<") == 2


SYSTEM = ChatMessage(role="system", content="Be brief.")
CONVERSATION = [
    SYSTEM,
    user("first question"),
    calling(("call_1", "look", {}), ("call_2", "look", {})),
    result("call_1", "first result"),
    result("call_2", "second result"),
    assistant("first answer"),
]
EARLIER = [
    user("old question"),
    calling(("call_0", "look", {})),
    result("call_0", "old result"),
]
PARTS = parts_of(CONVERSATION, "The user is Logan.", EARLIER)


def test_a_record_is_shortened_in_the_order_in_which_its_parts_are_missed_least() -> (
    None
):
    """Earlier messages and their heading, then messages, then the summary, at last the instructions."""
    names = [
        "system", "summary", "user", "call", "result", "result", "answer", "heading", "day", "old", "next day",
        "old call", "old result", "closing",
    ]  # fmt: skip
    seen: list[list[str]] = []
    for tokens in range(COUNTER.count("".join(PARTS)) + 1):
        left = split_record(truncated("".join(PARTS), tokens, COUNTER))
        shown = [name for name, part in zip(names, PARTS, strict=True) if part in left]
        if shown not in seen:
            seen.append(shown)
    assert seen == [
        names,
        names[:8] + names[10:],
        names[:7],
        [*names[:2], *names[3:7]],
        [*names[:2], "answer"],
        ["system", "summary"],
        ["system"],
        [],
    ]


def test_instructions_within_a_conversation_are_messages_like_others() -> None:
    """Only those at the beginning stay."""
    text = "".join(parts_of([user("one"), SYSTEM, user("two")]))
    assert truncated(
        text, COUNTER.count("".join(parts_of([user("one"), SYSTEM]))), COUNTER
    ) == ('<message role="user">two</message>\n')


@given(
    conversation=conversations,
    summary=hostile_texts,
    earlier=conversations,
    tokens=st.integers(-5, 300),
    counter=st.sampled_from([COUNTER, PER_CHARACTER]),
)
@example(
    conversation=[user("a"), user("b")],
    summary="",
    earlier=[],
    tokens=34,
    counter=PER_CHARACTER,
)
def test_a_shortened_record_is_shorter_by_as_much_as_was_asked(
    conversation: list[ChatMessage],
    summary: str,
    earlier: list[ChatMessage],
    tokens: int,
    counter: TokenCounter,
) -> None:
    """Or nothing is left of it.

    What is left are whole parts in their order, no heading without a message, no result without what stood before it.
    """
    parts = parts_of(conversation, summary, earlier)
    text = "".join(parts)
    left = truncated(text, tokens, counter)
    if tokens <= 0:
        assert left == text
    if left:
        assert counter.count(text) - counter.count(left) >= tokens
    remaining = iter(parts)
    assert all(part in remaining for part in split_record(left))
    for before, part in pairwise(parts):
        if is_result(part) and part in left and parts.count(part) == 1:
            assert before in left
    assert EARLIER_OPENING + EARLIER_CLOSING not in left
    assert (EARLIER_OPENING in left) == (EARLIER_CLOSING in left)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no record",
        "\n",
        EARLIER_OPENING + EARLIER_CLOSING,
        EARLIER_OPENING,
        EARLIER_CLOSING,
    ],
)
def test_what_is_no_record_is_one_part_of_which_all_goes_or_nothing(text: str) -> None:
    assert truncated(text, 1, COUNTER) == ""
    assert "".join(split_record(text)) == text
