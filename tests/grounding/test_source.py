"""When a statement is based on a text."""

# ruff: noqa: RUF001 - punctuation and letters that look alike are what some of these tests are about

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.grounding.source import SourceText, comparable, find_quote, keywords

SAID = (
    "I live in new york with Anna, our three kids and twenty-five fish. At work I use Next.js, Python 3.11 and R&D "
    "budgets of 1,000 dollars. My German is rusty. 我在北京有两只猫，用Rust写代码。Я из Москвы."
)


def source(text: str = SAID) -> SourceText:
    return SourceText(text, date(2025, 11, 20))


@pytest.mark.parametrize(
    "statement",
    [
        "Has 3 children",
        "Has 25 fish",
        "Uses Python 3.11",
        "Uses Python 3",
        "Has 1000 dollars",
        "Has 1,000 dollars",
        "有2只猫",
        "有２只猫",
        "Has ٣ children",
        "Has no number",
    ],
)
def test_numbers_that_were_said_stand(statement: str) -> None:
    assert source().missing_numbers(statement) == []


@pytest.mark.parametrize(
    ("statement", "invented"),
    [
        ("Has 4 children", ["4"]),
        ("Uses Python 3.12", ["3.12"]),
        ("Uses Python 11.3", ["11.3"]),
        ("Has 100 dollars", ["100"]),
        ("有7只猫", ["7"]),
        ("Born on 3 May 1980", ["1980"]),
        ("出生于1999年8月17日", ["1999", "8", "17"]),
    ],
)
def test_invented_numbers_are_found(statement: str, invented: list[str]) -> None:
    assert source().missing_numbers(statement) == invented


@pytest.mark.parametrize(
    "statement",
    [
        "Flies on 2025-11-28",
        "Flies on Friday, 28 November 2025",
        "Flies on November 28th, 2025",
        "Flies in March 2026",
        "Moved in 2024",
        "Flies on Nov 28",
        "2025年11月28日飞",
        "11月28日飞",
        "Flies on 2026/01/05",
    ],
)
def test_a_date_near_the_conversation_may_be_worked_out(statement: str) -> None:
    assert source().missing_numbers(statement) == []
    assert source().missing_names(statement) == []


@pytest.mark.parametrize("statement", ["Flies on 2029-11-28", "Moved in 2011", "Flies on 31 February 2026", "2031年飞"])
def test_a_date_far_away_or_impossible_must_have_been_said(statement: str) -> None:
    assert source().missing_numbers(statement) != []


@pytest.mark.parametrize(
    "statement",
    [
        "Lives in New York",
        "Knows Anna's taste",
        "Uses Next.js",
        "Builds Next.js-based sites",
        "Learns German",
        "Knows Germans",
        "Works in R&D",
        "Likes it on Monday",
        "Anna is a friend",
        "用Rust写代码",
        "Живёт в Москве",
        "Sings. Dances",
        "Knows what I'd say",
    ],
)
def test_names_that_were_said_stand(statement: str) -> None:
    assert source().missing_names(statement) == []


@pytest.mark.parametrize(
    ("statement", "invented"),
    [
        ("Lives in New York with Bob", ["Bob"]),
        ("PostgreSQL is used", ["PostgreSQL"]),
        ("Works for ACME in Boston", ["ACME", "Boston"]),
        ("在Google工作", ["Google"]),
        ("Живёт в Париже", ["Париже"]),
    ],
)
def test_invented_names_are_found(statement: str, invented: list[str]) -> None:
    assert source().missing_names(statement) == invented


def share_keywords(one: str, other: str) -> bool:
    return not keywords(one).isdisjoint(keywords(other))


def test_words_are_shared_in_any_form_but_the_common_ones() -> None:
    said = "I would rather be testing with pytest, 我住在北京"
    assert share_keywords(said, "Prefers pytest")
    assert share_keywords(said, "Tests a lot")
    assert share_keywords(said, "住北京")
    assert not share_keywords(said, "Would rather not") or share_keywords(said, "rather")
    assert not share_keywords(said, "Has a dog with the others")
    assert not share_keywords(said, "")


@pytest.mark.parametrize(
    ("said", "same", "other"),
    [
        ("גרה בברלין, בעיר", "עברה מברלין וגרה בעיר", "רופאה"),
        ("أعمل في برلين، شكرا", "تعمل في برلين", "طبيبة أطفال"),
        ("मैं बर्लिन में रहता हूँ।", "बर्लिन में काम", "डॉक्टर नहीं"),
        ("ฉันอยู่ที่เบอร์ลิน", "อยู่เบอร์ลิน", "หมอ"),
        ("ვცხოვრობ ბერლინში", "ბერლინი", "ექიმი"),
    ],
)
def test_words_of_other_scripts_are_words_too(said: str, same: str, other: str) -> None:
    assert share_keywords(said, same)
    assert not share_keywords(said, other)


@pytest.mark.parametrize(
    "quote",
    [
        "I live in New York",
        "i  LIVE\nin new york",
        "“our three kids”",
        "I live … with Anna",
        "... three kids ...",
        "My German is rusty.",
        "我在北京有两只猫",
        "两只猫",
        "Ｒｕｓｔ",
        "R&amp;D budgets",
    ],
)
def test_a_quote_is_found_word_for_word(quote: str) -> None:
    assert find_quote(quote, comparable(SAID)) >= 0


@pytest.mark.parametrize(
    "quote",
    [
        "",
        " ",
        "...",
        "I",
        "ana",
        "Ann",
        "live in York",
        "with Anna … I live",
        "I hate New York",
        "我在上海",
        "猫 … 北京",
    ],
)
def test_what_was_not_said_so_is_not_found(quote: str) -> None:
    assert find_quote(quote, comparable(SAID)) == -1


@given(st.text(), st.text(), st.integers(0, 30), st.integers(2, 30))
def test_whatever_is_cut_out_at_white_space_is_found(before: str, text: str, start: int, length: int) -> None:
    words = comparable(f"{before} {text}").split(" ")
    quote = " ".join(words[start : start + length])
    if "..." not in quote and len(quote.strip(" \t\"'.,;:!?、，。！？")) > 1:
        assert find_quote(quote, " ".join(words)) >= 0


@given(st.text(), st.text())
def test_no_text_is_too_strange(said: str, statement: str) -> None:
    here = source(said)
    assert isinstance(here.missing_numbers(statement), list)
    assert isinstance(here.missing_names(statement), list)
    assert isinstance(keywords(statement), frozenset)
