"""Which words two statements share."""

from __future__ import annotations

import pytest

from llama_index_memory_ext.words import are_forms, relations_in, word_lists
from llama_index_memory_ext.words.tokens import keywords, shared
from tests.words import rows


def share_keywords(one: str, other: str) -> bool:
    return bool(shared(keywords(one), keywords(other)))


def test_words_are_shared_in_any_form_but_the_common_ones() -> None:
    said = "I would rather be testing with pytest, 我住在北京"
    assert share_keywords(said, "Prefers pytest")
    assert share_keywords(said, "Tests a lot")
    assert share_keywords(said, "住北京")
    assert not share_keywords(said, "Has a dog with the others")
    assert not share_keywords(said, "")


@pytest.mark.parametrize(("said", "same", "other"), rows("words"))
def test_words_of_any_script_with_any_ending_are_shared(
    said: str, same: str, other: str
) -> None:
    assert share_keywords(said, same)
    assert not share_keywords(said, other)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("wohne", "wohnt", True),
        ("nuss", "nussallergie", True),
        ("cat", "cats", False),
        ("paris", "prague", False),
    ],
)
def test_forms_share_a_beginning_a_part_or_all_but_a_slip(
    one: str, other: str, expected: bool
) -> None:
    assert are_forms(one, other) is expected


def test_each_relation_is_read_in_any_case() -> None:
    """Words of the data are compared with texts without capitals, in which ss stands for ß."""
    for names in word_lists("relations")[""]:
        for name in names:
            assert names[0] in relations_in(name.replace("_", " ").capitalize())
    assert relations_in("Meine GROSSMUTTER") == relations_in("Meine Großmutter")
