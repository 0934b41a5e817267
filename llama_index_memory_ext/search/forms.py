"""Finds the terms of an index that the words of a query mean, in the language of the query."""

from __future__ import annotations

from collections import Counter
from itertools import chain
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
# By how much the documents must have grown before what their languages need is made.
_GROWTH = 1.25
# Behind it are the scripts whose terms are pairs of characters.
_FIRST_UNSPACED = "\u2e80"


class WordForms:
    """The written words of documents, by their stems. Whoever calls it keeps other threads away."""

    def __init__(self) -> None:
        # The words of each document, and in how many documents each word is.
        self._words: dict[str, tuple[Word, ...]] = {}
        self._documents: Counter[Word] = Counter()
        # Of each language that was asked for, the words by their stems.
        self._by_stem: dict[str, dict[str, set[Word]]] = {}

    def add(self, document_id: str, words: Iterable[Word]) -> None:
        """Adds the words of a document that is not known."""
        self._words[document_id] = tuple(
            {one for one in words if one.written.isalpha() and one.written < _FIRST_UNSPACED}
        )
        for word in self._words[document_id]:
            self._documents[word] += 1
            if self._documents[word] == 1:
                for code, by_stem in self._by_stem.items():
                    by_stem.setdefault(stem(word.written, code), set()).add(word)

    def remove(self, document_id: str) -> None:
        """Removes a document."""
        for word in self._words.pop(document_id):
            self._documents[word] -= 1
            if not self._documents[word]:
                del self._documents[word]
                for code, by_stem in self._by_stem.items():
                    key = stem(word.written, code)
                    by_stem[key].remove(word)
                    if not by_stem[key]:
                        del by_stem[key]

    def prepare(self, codes: Iterable[str]) -> None:
        """Stems all words in these languages, which takes a while for many words."""
        for code in codes:
            if code not in self._by_stem:
                by_stem = self._by_stem[code] = {}
                for word in self._documents:
                    by_stem.setdefault(stem(word.written, code), set()).add(word)

    def terms(self, word: Word, codes: Iterable[str]) -> tuple[str, ...]:
        """Returns the terms of all words that are forms of a word in any of these languages, its own one included."""
        self.prepare(codes)
        forms = (self._by_stem[code].get(stem(word.written, code), ()) for code in codes)
        return tuple(sorted({word.term, *(form.term for form in chain.from_iterable(forms))}))


class Wording:
    """The languages of the documents of an index, and those of its queries. Whoever calls it keeps other threads away.

    Args:
        languages: In which languages queries may be; None: in any. A ValueError for a code without a stemmer.
    """

    def __init__(self, languages: Sequence[str] | None = None) -> None:
        self._among = checked_languages(languages)
        self._forms = WordForms()
        self._told_of = 0

    def learn(self, words: Mapping[str, Iterable[Word]], frequency: Callable[[str], int], total: int) -> None:
        """Adds the words of documents by id; ``frequency`` says how many of ``total`` documents have a term.

        What a question in one of their languages needs is made now, because documents are added in the background.
        """
        for document_id, written in words.items():
            self._forms.add(document_id, written)
        if total >= _GROWTH * self._told_of:
            self._told_of = total
            self._forms.prepare(without_english(self._among or languages_in(frequency, total)))

    def forget(self, document_id: str) -> None:
        """Removes a document."""
        self._forms.remove(document_id)

    def groups(
        self, query: str, frequency: Callable[[str], int], total: int
    ) -> tuple[Counter[Group], AbstractSet[str]]:
        """Returns how often a query has each group of terms, and the terms of function words of its language.

        Where nothing in the query tells that, it is in the languages of the documents; see ``learn``.
        """
        others = without_english(languages_of(query, self._among) or languages_in(frequency, total))
        if not others:
            return Counter((word.term,) for word in indexed_words(query)), frozenset()
        words = (word for word in indexed_words(query) if not is_function_word(word.written, others))
        return Counter(self._forms.terms(word, others) for word in words), function_terms(others)


def without_english(codes: Sequence[str]) -> tuple[str, ...]:
    """Returns the languages whose stems are not those of the index."""
    return tuple(code for code in codes if code != "en")
