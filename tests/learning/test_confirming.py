"""What confirms a fact that is known: that the user says it again, and no question."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from llama_index_memory_ext.fact import Fact
from llama_index_memory_ext.learning.reply import ExtractionReply
from llama_index_memory_ext.learning.validation import ValidatedReply, validate_reply
from llama_index_memory_ext.text.messages import (
    Utterance,
)
from tests.words import rows

NOW = datetime(2026, 11, 20, tzinfo=timezone.utc)
SAID_AGAIN = [tuple(row) for row in rows("said again", "confirming.txt")]


def confirmed_by(text: str, content: str, *, as_new: bool = False) -> ValidatedReply:
    """What is stored when a model says that this text confirms this fact: by its number, or as a new one."""
    known = Fact(content=content, confidence=0.8)
    new = {"content": content, "quote": text, "confidence": 0.9}
    again = {"number": 1, "quote": text}
    reply = {"new_facts": [new]} if as_new else {"confirmed": [again]}
    lines = [
        Utterance(1, "user", text),
        Utterance(2, "assistant", f"I know: {content}"),
    ]
    return validate_reply(
        ExtractionReply.model_validate(reply), lines, [known], now=NOW
    )


@pytest.mark.parametrize("as_new", [False, True])
@pytest.mark.parametrize(("content", "question", "statement"), SAID_AGAIN)
def test_a_question_confirms_nothing_and_a_statement_does(
    content: str, question: str, statement: str, *, as_new: bool
) -> None:
    """With and without its question mark, alone and before thanks."""
    bare = question.rstrip(" ?;\u061f\uff1f")
    for text in (question, bare, f"{question} OK!", f"Hm. {bare}"):
        assert confirmed_by(text, content, as_new=as_new).confirmed == (), text
    for text in (statement, f"{question} {statement} {statement}"):
        outcome = confirmed_by(text, content, as_new=as_new and text == statement)
        if as_new and outcome.accepted:
            # In a language without a stemmer a form may count as another word.
            assert [fact.content for fact in outcome.accepted] == [statement]
        else:
            (fact,) = outcome.confirmed
            assert fact.confidence > 0.8


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Did I say I am allergic to walnuts?", "asked"),
        ("I bought walnuts. Did I say I am allergic to walnuts?", "asked"),
        ("If I were allergic to walnuts, what would I eat", "asked"),
        ("I wonder if I am allergic to walnuts", "asked"),
        ("Hello there.", "not_the_users_words"),
    ],
)
def test_why_a_fact_is_not_confirmed(text: str, reason: str) -> None:
    outcome = confirmed_by(text, "Is allergic to walnuts")
    assert (outcome.confirmed, outcome.rejections) == ((), {reason: 1})


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
    outcome = confirmed_by(text, content)
    assert (outcome.confirmed, outcome.rejections) == ((), {"denied": 1})


def test_a_number_without_a_quote_confirms_nothing() -> None:
    """Small models report "confirmed": [1] in nearly every reply."""
    reply = ExtractionReply.model_validate({"confirmed": [1]})
    lines = [Utterance(1, "user", "I like tea.")]
    known = [Fact(content="Likes tea")]
    outcome = validate_reply(reply, lines, known, now=NOW)
    assert (outcome.confirmed, outcome.rejections) == ((), {"no_quote": 1})
