"""What confirms a fact that is known: that the user says it again, and no question."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from llama_index_memory_ext.fact import Fact
from llama_index_memory_ext.learning.reply import NewFact
from llama_index_memory_ext.learning.validation import ValidatedReply, validate_reply
from llama_index_memory_ext.text.turns import Utterance
from tests.words import rows

NOW = datetime(2026, 11, 20, tzinfo=timezone.utc)
SAID_AGAIN = [tuple(row) for row in rows("said again", "confirming.txt")]


def confirmed_by(text: str, content: str) -> ValidatedReply:
    """What is stored when a model reports a known fact with this text as its quote."""
    known = Fact(content=content, confidence=0.8)
    new = {"content": content, "quote": text, "confidence": 0.9}
    reply = [NewFact.model_validate(new)]
    lines = [
        Utterance(1, "user", text),
        Utterance(2, "assistant", f"I know: {content}"),
    ]
    return validate_reply(reply, lines, [known], now=NOW)


@pytest.mark.parametrize(("content", "question", "statement"), SAID_AGAIN)
def test_a_question_confirms_nothing_and_a_statement_does(
    content: str, question: str, statement: str
) -> None:
    """With and without its question mark, alone and before thanks."""
    bare = question.rstrip(" ?;\u061f\uff1f")
    for text in (question, bare, f"{question} OK!", f"Hm. {bare}"):
        assert confirmed_by(text, content).confirmed == (), text
    outcome = confirmed_by(statement, content)
    if outcome.accepted:
        # In a language without a stemmer a form may count as another word.
        assert [fact.content for fact in outcome.accepted] == [statement]
    else:
        (fact,) = outcome.confirmed
        assert fact.confidence > 0.8


@pytest.mark.parametrize(
    "text",
    [
        "Did I say I am allergic to walnuts?",
        "I bought walnuts. Did I say I am allergic to walnuts?",
        "If I were allergic to walnuts, what would I eat",
        "I wonder if I am allergic to walnuts",
        "Hello there.",
    ],
)
def test_what_does_not_say_a_fact_does_not_confirm_it(text: str) -> None:
    assert confirmed_by(text, "Is allergic to walnuts").confirmed == ()


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("I quit the gym.", "Goes to the gym three times a week"),
        ("I don't eat fish any more.", "Eats fish"),
        ("Ich esse kein Fleisch.", "Isst Fleisch"),
        ("Ya no trabajo en el banco, ahora soy profesor.", "Trabaja en el banco"),
    ],
)
def test_words_that_contradict_a_fact_do_not_confirm_it(
    text: str, content: str
) -> None:
    assert confirmed_by(text, content).confirmed == ()
