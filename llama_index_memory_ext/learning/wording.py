"""Chooses the words in which a new fact is stored: the model's statement, or the user's own sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from llama_index_memory_ext.checks.clauses import (
    denies,
    sentences_at,
    statements_of,
    states_something,
)
from llama_index_memory_ext.checks.comparison import closest_sentence, says_more
from llama_index_memory_ext.checks.evidence import excerpt
from llama_index_memory_ext.fact import MAX_FACT
from llama_index_memory_ext.words import tokens_in

if TYPE_CHECKING:
    from llama_index_memory_ext.checks.evidence import QuoteMatch, Source
    from llama_index_memory_ext.learning.rejections import Candidate


# The most words of a sentence that is stored, about 60 tokens.
_MOST_WORDS = 45


def choose_wording(candidate: Candidate, source: Source) -> Candidate:
    """Return a new fact without its questions, or in the user's words if it says more than the user did.

    The user's words are the sentence of the quote that is closest to the fact. A short
    answer is stored together with its question.
    """
    place = candidate.place
    question = source.question(place)
    statement = statements_of(candidate.new.content)
    around = excerpt(place.text, place.span.start)
    words = f"{question} {around}"
    names = f"{source.conversation_text}\n{source.facts_text}"
    is_no = bool(question) and denies(place.text)
    if (
        statement
        and not is_no
        and not says_more(statement, words, names, source.said_on)
    ):
        return _with_content(candidate, statement)
    if question:
        answer = f'Asked "{question}", the user said "{place.text.strip()}".'
        return _with_content(candidate, answer)
    sentences = sentences_at(place.text, place.span)
    stating = list(filter(states_something, sentences))
    sentence = closest_sentence(candidate.new.content, stating or sentences)
    if len(tokens_in(sentence)) > _MOST_WORDS:
        sentence = place.quote[:MAX_FACT]
    in_users_words = candidate._replace(is_users_words=True)
    return _with_content(in_users_words, sentence)


def stored_place(candidate: Candidate) -> QuoteMatch:
    """Return the place of the quote to store: the user's whole sentence if it is the fact."""
    place = candidate.place
    if not candidate.is_users_words:
        return place
    sentence = candidate.new.content
    start = place.text.index(sentence)
    span = place.span._replace(start=start, end=start + len(sentence))
    return replace(place, span=span)


def _with_content(candidate: Candidate, content: str) -> Candidate:
    return candidate._replace(new=candidate.new.model_copy(update={"content": content}))
