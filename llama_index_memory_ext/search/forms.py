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


class Wording:
    """The words of the documents of an index, and the languages of its queries.

    Whoever calls it keeps other threads away.

    Args:
        languages: In which languages queries may be; None: in any. A ValueError for a code without a stemmer.
    """

    def __init__(self, languages: Sequence[str] | None = None) -> None:
        self._among = checked_languages(languages)
        # The words of each document, and in how many documents each word is.
        self._words: dict[str, tuple[Word, ...]] = {}
        self._documents: Counter[Word] = Counter()
        # Of each language that was asked for, the words by their stems, also those that no document has any more.
        self._by_stem: dict[str, dict[str, set[Word]]] = {}
        self._prepared_of = 0

    def learn(self, words: Mapping[str, Iterable[Word]], frequency: Callable[[str], int], total: int) -> None:
        """Adds the words of documents by id; ``frequency`` says how many of ``total`` documents have a term.

        What a question in one of their languages needs is made now, because documents are added in the background.
        """
        for document_id, found in words.items():
            kept = {one for one in found if one.written.isalpha() and one.written < _FIRST_UNSPACED}
            self._documents.update(kept)
            self._words[document_id] = tuple(kept)
            for code in self._by_stem:
                self._stem(kept, code)
        if total >= _GROWTH * self._prepared_of:
            self._prepared_of = total
            self._prepare(without_english(self._among or languages_in(frequency, total)))

    def forget(self, document_id: str) -> None:
        """Removes the words of a document."""
        self._documents.subtract(self._words.pop(document_id))

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
        return Counter(self._terms(word, others) for word in words), function_terms(others)

    def _terms(self, word: Word, codes: Iterable[str]) -> Group:
        """Returns the terms of all words that are forms of a word in any of these languages, its own one included."""
        self._prepare(codes)
        forms = chain.from_iterable(self._by_stem[code].get(stem(word.written, code), ()) for code in codes)
        return tuple(sorted({word.term, *(form.term for form in forms if self._documents[form])}))

    def _prepare(self, codes: Iterable[str]) -> None:
        """Stems all words in these languages, which takes a while for many words."""
        for code in codes:
            if code not in self._by_stem:
                self._stem(self._documents, code)

    def _stem(self, words: Iterable[Word], code: str) -> None:
        by_stem = self._by_stem.setdefault(code, {})
        for word in words:
            by_stem.setdefault(stem(word.written, code), set()).add(word)


def without_english(codes: Sequence[str]) -> tuple[str, ...]:
    """Returns the languages whose stems are not those of the index."""
    return tuple(code for code in codes if code != "en")
