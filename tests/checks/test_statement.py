"""Whether the words around a quote say a statement, or only ask, suppose or quote it."""

from __future__ import annotations

import pytest

from llama_index_memory_ext.checks.clauses import (
    denies,
    tells_own_change,
    unsaid_reason,
)
from llama_index_memory_ext.checks.quotes import find_quote
from tests.words import rows


def reason(statement: str, text: str, quote: str = "") -> str:
    span = find_quote(quote or text, text)
    assert span is not None
    return unsaid_reason(statement, text, span)


@pytest.mark.parametrize(("statement", "text", "expected"), rows("unsaid"))
def test_what_is_asked_or_supposed_is_not_said(
    statement: str, text: str, expected: str
) -> None:
    assert reason(statement, text) == expected


@pytest.mark.parametrize(("statement", "text"), rows("said"))
def test_what_is_said_is_said(statement: str, text: str) -> None:
    assert reason(statement, text) == ""


def test_a_quotation_is_somebody_elses() -> None:
    assert reason("Loves jazz", "He said: 'I love jazz'.", "I love jazz") == "quoted"
    assert (
        reason("Hates Mondays", "> I hate Mondays\nHe wrote that.", "I hate Mondays")
        == "quoted"
    )


@pytest.mark.parametrize("text", ["dont", "Ich mag keinen Fisch", "いいえ"])
def test_a_denial_is_a_form_or_a_word_of_any_language(text: str) -> None:
    assert denies(text)


@pytest.mark.parametrize("text", [text for (text,) in rows("own changes")])
def test_the_user_tells_a_change_in_any_language(text: str) -> None:
    assert tells_own_change(text)


@pytest.mark.parametrize("text", [text for (text,) in rows("no own changes")])
def test_a_trip_and_the_change_of_another_person_are_none(text: str) -> None:
    assert not tells_own_change(text)
