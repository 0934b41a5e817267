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
    from llama_index_memory_ext.checks.evidence import Source
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
    statement = statements_of(candidate.content)
    around = excerpt(place.text, place.span.start)
    words = f"{question} {around}"
    names = f"{source.conversation_text}\n{source.facts_text}"
    is_no = bool(question) and denies(place.text)
    if (
        statement
        and not is_no
        and not says_more(statement, words, names, source.said_on)
    ):
        return candidate._replace(content=statement)
    if question:
        answer = f'Asked "{question}", the user said "{place.text.strip()}".'
        return candidate._replace(content=answer)
    sentences = sentences_at(place.text, place.span)
    stating = list(filter(states_something, sentences))
    sentence = closest_sentence(candidate.content, stating or sentences)
    if len(tokens_in(sentence)) > _MOST_WORDS:
        sentence = place.quote[:MAX_FACT]
    # The whole sentence is the quote of the fact.
    start = place.text.index(sentence)
    span = place.span._replace(start=start, end=start + len(sentence))
    place = replace(place, span=span)
    return candidate._replace(content=sentence, place=place, is_users_words=True)
