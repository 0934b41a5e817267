"""A question with "I" asks for the user's messages, and a question with "you" for the assistant's."""

from __future__ import annotations

import pytest

from llama_index_memory_ext.words import word_lists
from llama_index_memory_ext.words.pronouns import speaker_asked_for
from llama_index_memory_ext.words.tokens import LANGUAGES, languages_of
from tests.words import cases

QUESTIONS = [
    (speaker, question)
    for speaker, questions in cases("pronouns.txt").items()
    for question in questions
]


@pytest.mark.parametrize(("speaker", "question"), [("anyone", ""), *QUESTIONS])
def test_a_question_asks_for_the_messages_of_the_speaker_whom_its_pronouns_name(
    speaker: str, question: str
) -> None:
    """With both persons or neither it asks for all messages."""
    asked_for = speaker_asked_for(question, languages_of(question))
    assert (asked_for or "anyone") == speaker


@pytest.mark.parametrize("code", LANGUAGES)
def test_each_language_has_pronouns_of_both_persons(code: str) -> None:
    """A word of one list is in no other list of the language."""
    first, second = word_lists("pronouns")[code]
    assert first
    assert second
    assert set(first).isdisjoint(second)
