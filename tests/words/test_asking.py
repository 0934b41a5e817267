"""Which texts ask for something, and which only tell something."""

from __future__ import annotations

import pytest

from llama_index_memory_ext.words import phrases
from llama_index_memory_ext.words.asking import asking_share, asks, is_statement
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


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("I have been to the lake with my sister.", 0, 0),
        ("Where do I live?", 1, 1),
        ("Book the cabin that we had.", 1, 1),
        ("I have been to the lake with my sister. Where was it?", 0.2, 0.3),
        ("Ich war mit meiner Schwester am See. Wo war das noch?", 0.2, 0.4),
        ("My flight is late again. Book the same hotel.", 0.4, 1),
        ("Dziękuję bardzo, było wspaniale", 1, 1),
    ],
)
def test_the_sentences_that_ask_have_a_share_of_the_text(
    text: str, least: float, most: float
) -> None:
    assert least <= asking_share(text) <= most


def test_a_text_that_goes_on_with_something_asks_with_a_half() -> None:
    text = "The generator works now, so we can resume the paused plan."
    assert asking_share(text) == 0.5


@pytest.mark.parametrize("section", ["orders", "requests", "changed"])
def test_the_words_to_find_are_in_the_letters_of_casefold(section: str) -> None:
    r"""Texts are compared in these letters: a list with "weiß" never found "Ich weiß nicht mehr"."""
    pattern = phrases("asking", section, folded=True).pattern.replace(r"\W", "")
    assert pattern == pattern.casefold()


@pytest.mark.parametrize("text", ["", "?", "Thanks!", "\U0001f600", "Ok"])
def test_a_text_of_too_few_words_is_no_statement(text: str) -> None:
    assert not is_statement(text)
