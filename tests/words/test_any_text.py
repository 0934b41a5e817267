"""No text is too strange for what reads words, and none too long."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.checks.clauses import unsaid_reason
from llama_index_memory_ext.checks.comparison import has_new_name, numbers_in, says_more
from llama_index_memory_ext.checks.quotes import Span, find_quote
from llama_index_memory_ext.checks.secrets import holds_secret
from llama_index_memory_ext.words import (
    comparable,
    is_translation,
    language_of,
    script_of,
)
from llama_index_memory_ext.words.dates import dates_in
from llama_index_memory_ext.words.tokens import keywords, shared, shares_word

LENGTH = 50_000
# In seconds of this process, far above what a linear search needs.
MOST_SECONDS = 5.0
PARTS = [
    "I have lived in Oslo with Bob and 3 cats since May. ", "a", "1", "1 ", "Ab ", "1,", "我在北京有三只猫", "三百",
    "a-", "'a ", "May ", "1/2/",
    "http://a:", "aA1", "password for a ", "DE89 ", "passport number ", "Ausweis", "code of the door, ", "Türcode",
    "login=a", " ", "\n",
    "?", "wenn ich ",
]  # fmt: skip
LONG = {repr(part): (part * LENGTH)[:LENGTH] for part in PARTS}
LONG |= {
    "words": " ".join(f"w{i}y" for i in range(7_500)),
    "names": " ".join(f"N{i}e" for i in range(7_500)),
}
READERS: dict[str, Callable[[str], object]] = {
    "dates": dates_in,
    "language": language_of,
    "translation": lambda text: is_translation(text, "Ich wohne in Köln"),
    "names of a source": lambda text: has_new_name("Lives in Paris with Roberta", text),
    "names of a statement": lambda text: has_new_name(text, "I live"),
    "shared name": lambda text: shares_word("Lives in Paris", text),
    "numbers": numbers_in,
    "quote in a text": lambda text: find_quote(
        "I lived in Oslo with bobby and three kittens today", text
    ),
    "quote": lambda text: find_quote(text, "I lived in Oslo"),
    "quote in itself": lambda text: find_quote(text[:2_000] + " x", text),
    "many words in a text": lambda text: find_quote(
        " ".join(f"w{i}x" for i in range(390)), text
    ),
    "words of a statement": lambda text: says_more(
        "Has lived in Oslo with Bob and three cats", text[:2_000], ""
    ),
    "statement of words": lambda text: says_more(
        text[:500], "I have lived in Oslo with Bob", ""
    ),
    "secret": holds_secret,
    "words": lambda text: shared(
        keywords("Likes 3 Katzenallergien in Bergen"), keywords(text)
    ),
    "said": lambda text: unsaid_reason(
        "Has 3 cats in Oslo", text, Span(0, min(len(text), 50), 1.0)
    ),
    "statement": lambda text: unsaid_reason(text, "I live in Oslo", Span(0, 14, 1.0)),
}


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("reader", READERS)
def test_a_long_text_takes_no_longer(reader: str, kind: str) -> None:
    READERS[reader]("A short text")
    start = time.process_time()
    READERS[reader](LONG[kind])
    assert time.process_time() - start < MOST_SECONDS


@given(st.text(), st.text())
def test_no_text_is_too_strange(one: str, other: str) -> None:
    assert isinstance(dates_in(one), tuple)
    assert isinstance(has_new_name(one, other), bool)
    assert isinstance(numbers_in(one), frozenset)
    assert isinstance(says_more(one, other, ""), bool)
    assert script_of(one) in {"latin", "cjk", "other", ""}
    assert is_translation(one, one) is False
    answers = {is_translation(one, other), shares_word(one, other), holds_secret(one)}
    assert answers <= {True, False}
    span = find_quote(one, other)
    assert span is None or 0 <= span.start < span.end <= len(other)
    # An entity may stand for the "&" of another one.
    assert "&" in one or comparable(comparable(one)) == comparable(one)
    assert keywords(one) == shared(keywords(one), keywords(one))


@given(st.text(), st.text(min_size=1), st.integers(0, 20), st.integers(1, 20))
def test_a_reason_is_one_of_those_that_are_known(
    statement: str, text: str, start: int, length: int
) -> None:
    start = min(start, len(text) - 1)
    span = Span(start, min(start + length, len(text)), 1.0)
    reasons = {"", "asked", "supposed", "quoted"}
    assert unsaid_reason(statement, text, span) in reasons
