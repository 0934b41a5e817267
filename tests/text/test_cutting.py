"""Where the record, short-term memory and texts are cut."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.base.llms.types import ChatMessage

from llama_index_memory_ext import TokenCounter
from llama_index_memory_ext.text.limits import Limits, excerpt, plan_cut, share_out
from llama_index_memory_ext.text.tokens import as_counter
from llama_index_memory_ext.text.turns import count_leaving

COUNTER = TokenCounter()
ROLES = {"u": "user", "a": "assistant", "t": "tool"}
KINDS = st.lists(st.tuples(st.sampled_from("uaat"), st.integers(1, 30)), max_size=25)


class Message(NamedTuple):
    role: str
    tokens: int


def cut(kinds: str, counts: list[int], **limits: Any) -> int:
    """The first message that is kept. u: a user's message, a: an assistant's, t: a tool's result."""
    messages = [
        Message(ROLES[kind], count) for kind, count in zip(kinds, counts, strict=True)
    ]
    return plan_cut(messages, Limits(**{"tokens": 100, "keep_ratio": 0.75, **limits}))


@pytest.mark.parametrize(
    ("kinds", "counts", "limits", "first"),
    [
        ("uaua", [25, 25, 25, 25], {}, 0),
        ("", [], {}, 0),
        # Down to the share that is kept.
        ("uauaua", [20] * 6, {}, 4),
        ("uauaua", [17] * 6, {}, 2),
        # In front of a turn, unless that costs too much: a long turn is cut within itself.
        ("uaaaaau", [11] + [15] * 6, {}, 2),
        ("uauaaau", [40, 10, 20, 15, 15, 15, 5], {}, 2),
        # No result is parted from its call.
        ("uattua", [60, 20, 20, 20, 10, 10], {}, 4),
        ("uattt", [60, 30, 20, 20, 20], {}, 1),
        # The newest message stays though it is over what is kept.
        ("ua", [90, 90], {}, 1),
        ("uauaua", [1] * 6, {"max_messages": 6, "keep_messages": 2}, 0),
        ("uauauau", [1] * 7, {"max_messages": 6, "keep_messages": 2}, 6),
        ("uauauaua", [1] * 8, {"max_messages": 6, "keep_messages": 2}, 6),
    ],
)
def test_a_cut_goes_down_to_what_is_kept(
    kinds: str, counts: list[int], limits: dict[str, int], first: int
) -> None:
    assert cut(kinds, counts, **limits) == first


@given(kinds=KINDS, limit=st.integers(0, 100))
def test_a_flush_takes_whole_turns_and_never_the_newest(
    kinds: list[tuple[str, int]], limit: int
) -> None:
    """And no more of them than it must."""
    names = "".join(kind for kind, _ in kinds)
    tokens = [count for _, count in kinds]
    messages = [
        ChatMessage(str(count), role="user" if kind == "u" else "assistant")
        for kind, count in kinds
    ]
    flushed = count_leaving(messages, limit, lambda message: int(message.content or ""))
    if sum(tokens) <= limit or "u" not in names:
        assert flushed == 0
        return
    assert names[flushed] == "u"
    assert sum(tokens[flushed:]) <= limit or flushed == names.rindex("u")
    before = names[:flushed].rfind("u")
    assert before < 0 or sum(tokens[before:]) > limit


@given(tokens=st.lists(st.integers(0, 100), max_size=8), limit=st.integers(-5, 300))
def test_shares_keep_to_the_common_limit(tokens: list[int], limit: int) -> None:
    shares = share_out(tokens, limit)
    assert sum(shares) <= max(limit, 0)
    assert all(
        0 <= share <= wanted for share, wanted in zip(shares, tokens, strict=True)
    )
    if sum(tokens) <= limit:
        assert shares == tokens


# ---- the part of a text that has the words of a question -----------------------------------------------

DULL = " ".join(f"Sentence {i} is about nothing much." for i in range(300))
LONG = f"{DULL} The order number is 4711. {DULL}"


def terms_of(text: str) -> list[str]:
    """Words, and each Chinese character."""
    return re.findall(r"[a-z0-9_]+|[^\W\da-z_]", text.lower())


def asked(text: str, question: str, limit: int = 60) -> str:
    return excerpt(text, limit, COUNTER, set(terms_of(question)), terms_of)


def test_the_sentences_with_the_words_of_the_question_are_shown() -> None:
    """Wherever they stand; marks say where the text goes on."""
    shown = asked(LONG, "What was my order number?")
    assert "The order number is 4711." in shown
    assert shown.startswith("... ")
    assert shown.endswith(". ...")
    assert asked(f"The order number is 4711. {DULL}", "order").startswith(
        "The order number is 4711."
    )
    assert asked(f"{DULL} The order number is 4711.", "order").endswith(
        "The order number is 4711."
    )


def test_lines_and_chinese_sentences_are_parts_too() -> None:
    code = "\n".join(f"def function_{i}(): pass" for i in range(200))
    assert "def function_77(): pass" in asked(code, "what does function_77 do? 77")
    chinese = (
        "这句话没有意思。" * 300 + "护照在蓝色的抽屉里。" + "这句话没有意思。" * 300
    )
    assert "护照在蓝色的抽屉里。" in asked(chinese, "护照在哪里?")


def test_without_a_word_in_common_the_first_sentences_are_shown() -> None:
    shown = asked(LONG, "sunshine")
    assert shown.startswith("Sentence 0 is about nothing much. Sentence 1 ")
    assert shown.endswith(". ...")
    assert asked(LONG, "") == shown


@pytest.mark.parametrize("limit", range(12, 40))
def test_a_sentence_above_the_limit_is_cut_between_its_words(limit: int) -> None:
    """Much of the limit has words."""
    sentence = f"I am sure that {'hills and ' * 20}rivers are far from here"
    for question in ("rivers", "sunshine"):
        shown = asked(sentence, question, limit)
        words = shown.strip(". ").split()
        assert shown != sentence
        assert f" {' '.join(words)} " in f" {sentence} "
        assert ("rivers" in words) == (question == "rivers")
        assert len(words) >= limit // 3


@given(
    parts=st.lists(
        st.sampled_from(
            ["tea. ", "milk\n", "coffee ", "x" * 900, "日本。", " ", "a\n\n"]
        ),
        max_size=40,
    ),
    limit=st.integers(-3, 120),
    question=st.sampled_from(["tea", "milk coffee", "日本", "", "nothing"]),
    per_character=st.booleans(),
)
def test_it_never_exceeds_the_limit(
    parts: list[str], limit: int, question: str, per_character: bool
) -> None:
    counter = (
        as_counter(lambda text: [0, *map(ord, text)]) if per_character else COUNTER
    )
    shown = excerpt("".join(parts), limit, counter, set(terms_of(question)), terms_of)
    assert not shown or counter.count(shown) <= limit
