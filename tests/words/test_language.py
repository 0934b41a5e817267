"""In which language a text is, and whether two are in different ones."""

from __future__ import annotations

import pytest

from llama_index_memory_ext.words import is_translation, language_of, script_of
from tests.words import LANGUAGES, rows


@pytest.mark.parametrize(("script", "text"), [("none", ""), *rows("script", LANGUAGES)])
def test_the_script_is_that_of_most_letters(text: str, script: str) -> None:
    assert (script_of(text) or "none") == script


@pytest.mark.parametrize(("code", "text"), [("none", ""), *rows("language", LANGUAGES)])
def test_a_sentence_tells_its_language_and_a_word_does_not(
    text: str, code: str
) -> None:
    assert (language_of(text) or "none") == code


@pytest.mark.parametrize("section", ["translation", "no translation"])
def test_a_translation_is_told_where_it_is_sure(section: str) -> None:
    for one, other in rows(section, LANGUAGES):
        assert (
            is_translation(one, other)
            is is_translation(other, one)
            is (section == "translation")
        )
