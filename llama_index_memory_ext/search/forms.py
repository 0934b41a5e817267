"""Finds the terms of an index that the words of a query mean, in the language of the query."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from llama_index_memory_ext.search.languages import (
    checked_languages,
    function_terms,
    is_function_word,
    languages_in,
    languages_of,
)
from llama_index_memory_ext.search.stems import stem
from llama_index_memory_ext.search.tokenization import indexed_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from llama_index_memory_ext.search.tokenization import Word

# The terms that one word of a query means.
Group: TypeAlias = tuple[str, ...]
# By how much the documents must have grown before their languages are told anew.
_GROWTH = 1.25
# Behind it are the scripts whose terms are pairs of characters.
_FIRST_UNSPACED = "\u2e80"


class WordForms:
    """The written words of each term. Whoever calls it keeps other threads away."""

    def __init__(self) -> None:
        self._written: dict[str, set[str]] = {}
        # Of each language that was asked for, the terms by the stems of their words.
        self._by_stem: dict[str, dict[str, set[str]]] = {}

    def add(self, terms: Mapping[str, str]) -> None:
        """Adds written words with their terms."""
        for written, term in terms.items():
            known = self._written.setdefault(term, set())
            if written in known or not written.isalpha() or written >= _FIRST_UNSPACED:
                continue
            known.add(written)
            for code, by_stem in self._by_stem.items():
                by_stem.setdefault(stem(written, code), set()).add(term)

    def remove(self, term: str) -> None:
        """Removes the words of a term."""
        for written in self._written.pop(term, ()):
            for code, by_stem in self._by_stem.items():
                key = stem(written, code)
                by_stem[key].discard(term)
                if not by_stem[key]:
                    del by_stem[key]

    def prepare(self, codes: Iterable[str]) -> None:
        """Stems all words in these languages, which takes a while for many words."""
        for code in codes:
            if code not in self._by_stem:
                by_stem = self._by_stem[code] = {}
                for term, words in self._written.items():
                    for written in words:
                        by_stem.setdefault(stem(written, code), set()).add(term)

    def terms(self, word: Word, codes: Iterable[str]) -> tuple[str, ...]:
        """Returns the terms of all words that are forms of a word in any of these languages, its own one included."""
        self.prepare(codes)
        found = {word.term}.union(*(self._by_stem[code].get(stem(word.written, code), ()) for code in codes))
        return tuple(sorted(found))


class Wording:
    """The languages of the documents of an index, and those of its queries. Whoever calls it keeps other threads away.

    Args:
        languages: In which languages queries may be; None: in any. A ValueError for a code without a stemmer.
    """

    def __init__(self, languages: Sequence[str] | None = None) -> None:
        self._among = checked_languages(languages)
        self._forms = WordForms()
        self._told: tuple[str, ...] = self._among or ()
        self._told_of = 0

    def learn(self, written: Mapping[str, str], frequency: Callable[[str], int], total: int) -> None:
        """Adds written words with their terms; ``frequency`` says how many of ``total`` documents have a term.

        What a question in one of their languages needs is made now, because documents are added in the background.
        """
        self._forms.add(written)
        if total >= _GROWTH * self._told_of:
            self._told_of = total
            if self._among is None:
                self._told = languages_in(frequency, total)
            self._forms.prepare(without_english(self._told))

    def forget(self, term: str) -> None:
        """Removes a term that no document has any more."""
        self._forms.remove(term)

    def groups(self, query: str) -> tuple[Counter[Group], AbstractSet[str]]:
        """Returns how often a query has each group of terms, and the terms of function words of its language."""
        codes = languages_of(query, self._among) or self._told
        others = without_english(codes)
        if not others:
            return Counter((word.term,) for word in indexed_words(query)), frozenset()
        words = (word for word in indexed_words(query) if not is_function_word(word.written, others))
        return Counter(self._forms.terms(word, others) for word in words), function_terms(others)


def without_english(codes: Sequence[str]) -> tuple[str, ...]:
    """Returns the languages whose stems are not those of the index."""
    return tuple(code for code in codes if code != "en")
