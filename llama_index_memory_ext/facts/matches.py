"""Finds the words that a fact has in common with a question, and where it has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.search.languages import languages_of, words_in
from llama_index_memory_ext.search.tokenization import date_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llama_index_memory_ext.fact import Fact

OWN, DATE, SOURCE = "own words", "date", "source"
EARLIER = "earlier turn"


class Match(NamedTuple):
    """A word as it is asked for, and where the fact has it: in its "own words", its "date" or its "source" alone.

    ``earlier`` says that the question does not have the word, but a turn before it.
    """

    word: str
    where: str
    earlier: bool = False

    @property
    def place(self) -> str:
        """Where the word stands, such as "source, earlier turn"; "" in the own words of the fact, for the question."""
        return ", ".join([*([self.where] if self.where != OWN else []), *([EARLIER] if self.earlier else [])])


def matches_of(fact: Fact, asked: Sequence[str], among: tuple[str, ...] | None = None) -> tuple[Match, ...]:
    """Returns the words of a question and of the turns before it that a fact has, in their order, each once.

    Words are compared by their stems in the language of the question, of ``among`` if that is not None.
    """
    texts = {OWN: fact.content, DATE: date_words(fact.began), SOURCE: fact.source or ""}
    found: dict[str, Match] = {}
    for place, question in enumerate(asked):
        codes = languages_of(question, among) or languages_of(f"{fact.content}\n{fact.source or ''}", among)
        known = {where: {word.term for word in words_in(text, codes)} for where, text in texts.items()}
        for match in _matches(question, codes, known, earlier=place > 0):
            found.setdefault(match.word, match)
    return tuple(found.values())


def _matches(question: str, codes: Sequence[str], known: dict[str, set[str]], *, earlier: bool) -> Iterator[Match]:
    for word in words_in(question, codes):
        where = next((where for where, terms in known.items() if word.term in terms), None)
        if where is not None:
            yield Match(word.written, where, earlier)
