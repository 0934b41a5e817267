"""An index is that of its documents, whatever came, went and was asked before."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llama_index_memory_ext.search.tfidf import Document, TfidfRanker
from tests.search.operations import QUESTIONS, SENTENCES, WORDS, Index, Operation, count_differences

TEXTS = st.one_of(st.sampled_from(SENTENCES), st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join))
NUMBERS = st.integers(0, 9)
CHANGES = st.builds(Operation, st.lists(TEXTS, max_size=2).map(tuple), NUMBERS, NUMBERS)
ASKED = st.one_of(st.sampled_from(QUESTIONS), TEXTS)
LANGUAGES = st.sampled_from([None, ("de",), ("en", "fr"), ("ru", "fi", "es")])
DOGS = "Has dogs named Pepper and Panda", "Considers a dog in the city"


@given(st.lists(CHANGES | st.builds(Operation, question=ASKED), max_size=30), ASKED, LANGUAGES)
@example([Operation(DOGS, 0, 1), Operation(question="Wo wohne ich?"), Operation((), 0, 1)], "Wo?", None)
@settings(max_examples=50)
def test_an_index_is_as_one_made_anew_whatever_was_added_removed_and_asked(
    operations: list[Operation], question: str, languages: tuple[str, ...] | None
) -> None:
    index = Index(languages)
    for operation in operations:
        index.does(operation)
    assert index.differences(question) == 0


@pytest.mark.parametrize("languages", [None, ("de", "sv")])
def test_so_it_is_in_a_long_life_with_many_documents(languages: tuple[str, ...] | None) -> None:
    """In which gaps are closed, and many documents go at once."""
    assert count_differences(400, languages, seed=7) == 0


@pytest.mark.parametrize("question", ["Wo wohne ich?", "I'm vegan now.", "I'm at Google now.", "Where?"])
def test_documents_with_two_forms_of_a_word_go_whatever_language_was_asked_in(question: str) -> None:
    ranker = TfidfRanker()
    ranker.add([Document("1", DOGS[0]), Document("2", DOGS[1])])
    ranker.similarities(question)
    ranker.remove(["1", "2"])
    ranker.add([Document("3", "Has a dog")])
    assert set(ranker.similarities("Which dogs?")) == {"3"}


def test_a_form_of_a_word_goes_with_its_last_document() -> None:
    """Though other forms of it stay, which the word of the question is no form of."""
    ranker = TfidfRanker(languages=["es"])
    ranker.add([Document("1", "Prefers tea"), Document("2", "Ela prefere chá"), Document("3", "Ele prefere café")])
    assert set(ranker.similarities("¿Qué prefiere?")) == {"1", "2", "3"}
    ranker.remove(["2"])
    assert set(ranker.similarities("¿Qué prefiere?")) == {"1", "3"}
    ranker.remove(["3"])
    assert not ranker.similarities("¿Qué prefiere?")


def test_documents_that_have_gone_do_not_tell_the_language_of_a_question() -> None:
    ranker = TfidfRanker()
    ranker.add([Document("1", "Renoviert alte Häuser")])
    others = [Document(str(i), "Ich wohne nicht bei dem Händler") for i in range(2, 9)]
    ranker.add(others)
    assert ranker.similarities("Haus?")
    ranker.remove([document.id for document in others])
    assert not ranker.similarities("Haus?")
