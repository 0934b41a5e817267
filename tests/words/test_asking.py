"""Which texts ask for something, and which only tell something."""

from __future__ import annotations

import pytest

from llama_index_memory_ext.words.asking import asks, is_statement
from tests.words import rows


@pytest.mark.parametrize("row", rows("statements", "asking.txt"))
def test_a_statement_asks_for_nothing(row: list[str]) -> None:
    (text,) = row
    assert is_statement(text)
    assert not asks(text)


@pytest.mark.parametrize("row", rows("requests", "asking.txt"))
def test_a_request_is_no_statement_in_any_language(row: list[str]) -> None:
    """Nor is a text that goes on with something, or one in a language that is not read."""
    (text,) = row
    assert not is_statement(text)


@pytest.mark.parametrize("row", rows("asked", "asking.txt"))
def test_a_question_needs_no_question_mark(row: list[str]) -> None:
    (text,) = row
    assert asks(text)
    assert not is_statement(text)


@pytest.mark.parametrize("text", ["", "?", "Thanks!", "\U0001f600", "Ok"])
def test_a_text_of_too_few_words_is_no_statement(text: str) -> None:
    assert not is_statement(text)
