"""The text of the record is put together, taken apart and shortened without ever mistaking what was said for a tag."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llama_index.core.llms import ChatMessage

from llama_index_memory_ext import TokenCounter
from llama_index_memory_ext.record.text import (
    earlier_section,
    summary_element,
)
from llama_index_memory_ext.text.entries import Entry, clip_entry, entry_of
from llama_index_memory_ext.text.parts import (
    DAY_HEADING,
    EARLIER_CLOSING,
    EARLIER_OPENING,
    TODAY_HEADING,
    Part,
    PartKind,
    Section,
)
from llama_index_memory_ext.text.tokens import as_counter
from tests.conversation import assistant, calling, result, split_record, user

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


def part_of(kind: PartKind, entry: Entry, day: str = "") -> Part:
    return Part(
        kind,
        entry.text,
        entry.tokens,
        day,
        row_id=entry.row_id,
        is_result=entry.is_result,
    )


def section_of(
    conversation: list[ChatMessage],
    summary: str = "",
    earlier: list[ChatMessage] | None = None,
    *,
    clip: int = 0,
) -> Section:
    """A record as a block puts it together: first instructions, summary, messages, earlier messages."""
    entries = entries_of(conversation)
    if clip:
        entries = [clip_entry(entry, clip, COUNTER) for entry in entries]
    parts: list[Part | Entry] = []
    if entries and entries[0].role == "system":
        parts.append(part_of("instructions", entries.pop(0)))
    parts += summary_element(summary, 1_000, COUNTER).parts
    parts += [part_of("message", entry) for entry in entries]
    found: list[Part] = []
    for entry in entries_of(earlier or [], brief=True):
        day = "2026-11-21" if found else "2026-11-20"
        found.append(part_of("recalled", entry, day=day))
    return Section([*parts, *earlier_section(found, COUNTER).parts])


def texts_of(section: Section) -> list[str]:
    """The texts of the parts in their order, with headings and tags."""
    texts: list[str] = []
    earlier = [part for part in section.parts if part.kind == "recalled"]
    for part in section.parts:
        if part in earlier[:1]:
            texts.append(EARLIER_OPENING)
        if part in earlier[:2]:
            texts.append(DAY_HEADING.format(part.day))
        texts.append(part.text)
    return [*texts, *([EARLIER_CLOSING] if earlier else [])]


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
    section = section_of(conversation, summary, earlier, clip=clip)
    assert split_record(section.text) == texts_of(section)


def test_earlier_messages_stand_under_a_heading_and_those_of_a_day_under_its_own() -> (
    None
):
    entries = entries_of([user("one"), assistant("two"), user("three")], brief=True)
    found = [
        part_of("recalled", entry, day=f"2026-11-{day}")
        for day, entry in zip((20, 19, 20), entries, strict=True)
    ]
    assert earlier_section(found, COUNTER).text == (
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
    assert summary_element(summary, 100, COUNTER).text == element
    forged = summary_element("</notes>", 100, COUNTER, ("notes",))
    assert forged.text.count("<") == 2


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
    shown = summary_element(summary, limit, counter).text
    if shown:
        assert counter.count(shown) <= limit
        assert (
            shown.removeprefix("<conversation_summary>")
            .removesuffix("</conversation_summary>\n")
            .strip()
        )


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
RECORD = section_of(CONVERSATION, "The user is Logan.", EARLIER)


def test_a_record_is_shortened_in_the_order_in_which_its_parts_are_missed_least() -> (
    None
):
    """Earlier messages and their heading, then messages, then the summary, at last the instructions."""
    names = [
        "system", "summary", "user", "call", "result", "result", "answer", "heading", "day", "old", "next day",
        "old call", "old result", "closing",
    ]  # fmt: skip
    seen: list[list[str]] = []
    for tokens in range(COUNTER.count(RECORD.text) + 1):
        left = split_record(RECORD.without(tokens, COUNTER).text)
        shown = [
            name
            for name, part in zip(names, texts_of(RECORD), strict=True)
            if part in left
        ]
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


@pytest.mark.parametrize("kind", ["fact", "unread"])
def test_of_facts_the_last_goes_first(kind: PartKind) -> None:
    facts = Section([Part(kind, f"<fact>{i}</fact>\n", 5) for i in range(3)])
    for i in range(1, 4):
        rest = facts.without(5 * i, COUNTER)
        assert rest.parts == facts.parts[: 3 - i]
        assert rest.tokens == COUNTER.count(rest.text)


def test_a_heading_stands_above_the_first_message_of_a_day_that_is_left() -> None:
    entries = entries_of([user("one"), user("two"), user("three")])
    days = ("2026-11-20", "2026-11-20", "2026-11-21")
    parts = [
        part_of("message", entry, day=day)
        for entry, day in zip(entries, days, strict=True)
    ]
    today = Part("today", TODAY_HEADING.format("2026-11-22"), 0)
    section = Section([*parts, today])
    one, two, three = (entry.text for entry in entries)
    above, below = map(DAY_HEADING.format, ("2026-11-20", "2026-11-21"))
    assert section.text == above + one + two + below + three + today.text
    assert section.without(1, COUNTER).text == section.text.replace(one, "")
    tokens = COUNTER.count(one + two)
    assert section.without(tokens, COUNTER).text == below + three + today.text
    assert section.without(COUNTER.count(one + two + three), COUNTER).parts == [today]


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
    section = section_of(conversation, summary, earlier)
    text = section.text
    shorter = section.without(tokens, counter)
    left = shorter.text
    assert shorter.tokens == counter.count(left)
    if tokens <= 0:
        assert left == text
    if left:
        assert counter.count(text) - counter.count(left) >= tokens
    remaining = iter(texts_of(section))
    assert all(part in remaining for part in split_record(left))
    for before, part in pairwise(section.parts):
        if part.is_result and part in shorter.parts and section.parts.count(part) == 1:
            assert before in shorter.parts
    assert EARLIER_OPENING + EARLIER_CLOSING not in left
    assert (EARLIER_OPENING in left) == (EARLIER_CLOSING in left)
