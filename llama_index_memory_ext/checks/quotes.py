"""Finds the part of a text that a quote means, even if the quote is not exact."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from html import unescape
from typing import NamedTuple

from llama_index_memory_ext.background.locks import import_lock
from llama_index_memory_ext.words import UNSPACED, pattern

_LETTER = rf"[^\W_{UNSPACED}]"
# A place that is not between two letters of a word.
_WORD_END = f"(?:(?<!{_LETTER})|(?!{_LETTER}))"
_APOSTROPHES = frozenset("'\u2019`\u00b4")
_ENDS = tuple(".!?\u2026\u3002\uff01\uff1f\"'\u201d\u2019)")
# A letter with its accents, or a syllable of Hangul, in their decomposed form.
_CLUSTER = "(?s).[\u0300-\u036f\u1160-\u11ff]*"
# Vowel marks of Arabic, points of Hebrew and soft hyphens, which writers leave out.
_OPTIONAL = "[\u00ad\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670]"
_ELLIPSIS = r"\.{3}|\u2026"
# The least likeness of a quote that is not exact, in percent, and the fewest and the most
# characters of such a quote.
_LEAST_LIKENESS = 80
_SHORTEST_INEXACT = 18
_LONGEST_INEXACT = 1_000


class Span(NamedTuple):
    """A part of a text, from ``start`` to before ``end``, and its likeness to a quote, 0..1."""

    start: int
    end: int
    likeness: float

    def of(self, text: str) -> str:
        """Return the part of the text."""
        return text[self.start : self.end]


class _Folded(NamedTuple):
    """A text in the form for comparison: lower case, with a space for each run of marks.

    ``starts`` and ``ends``: where each of its characters begins and ends in the text.
    """

    text: str
    starts: list[int]
    ends: list[int]

    def cuts_word(self, position: int) -> bool:
        """Return whether a position is between two letters of a word."""
        return pattern(_WORD_END).match(self.text, position) is None


def find_quote(quote: str, text: str) -> Span | None:
    """Return the part of a text that a quote means; None if it is nowhere.

    Case, punctuation, accents that are written apart, and marks that writers leave out
    do not matter. A quote of 18 to 1,000 characters may have slips and another person of
    pronouns. "..." stands for any words.

    >>> text = "Well, I don't live in Oslo any more - I moved to Rome in May!"
    >>> find_quote("they dont live in Oslo", text).of(text)
    "I don't live in Oslo"
    >>> find_quote("I live in Paris", text) is None
    True
    """
    plain = quote.strip()
    if unicodedata.category(plain[:1] or " ") == "So":
        # A symbol without words, such as a thumbs-up, is an answer.
        start = text.find(plain)
        return Span(start, start + len(plain), 1.0) if start >= 0 else None
    spans = _find_parts(plain, _folded(text))
    if not spans:
        return None
    end = spans[-1].end
    # The mark at the end of a sentence belongs to the words.
    end += text.startswith(_ENDS, end) and plain.endswith(_ENDS)
    return Span(spans[0].start, end, min(span.likeness for span in spans))


def _find_parts(quote: str, text: _Folded) -> list[Span]:
    """Return the places of the parts of a quote, in their order; [] if a part is missing."""
    spans: list[Span] = []
    for part in pattern(_ELLIPSIS).split(unescape(quote)):
        wanted = _folded(part).text.strip()
        if wanted:
            span = _find_part(wanted, text)
            if span is None or (spans and span.start < spans[-1].start):
                return []
            spans.append(span)
    return spans


@lru_cache(maxsize=64)
def _folded(text: str) -> _Folded:
    """Return a text in the form for comparison. "+" and "#" stay, as in "C++" and "C#"."""
    folded = ""
    starts: list[int] = []
    ends: list[int] = []
    for match in pattern(_CLUSTER).finditer(text):
        plain = unicodedata.normalize("NFKC", match.group()).casefold()
        plain = pattern(_OPTIONAL).sub("", plain)
        if not plain or plain in _APOSTROPHES:
            continue
        if unicodedata.category(plain[0])[0] in "CPSZ" and plain not in "+#":
            if folded.endswith(" "):
                continue
            plain = " "
        folded += plain
        starts += [match.start()] * len(plain)
        ends += [match.end()] * len(plain)
    return _Folded(folded, starts, ends)


def _find_part(wanted: str, text: _Folded) -> Span | None:
    """Return the first place of a folded quote in a text, or else the place that is most like it; None for neither."""
    words = re.search(f"{_WORD_END}{re.escape(wanted)}{_WORD_END}", text.text)
    if words:
        return Span(text.starts[words.start()], text.ends[words.end() - 1], 1.0)
    longest = min(len(text.text) * 100 // _LEAST_LIKENESS, _LONGEST_INEXACT)
    if _SHORTEST_INEXACT <= len(wanted) <= longest:
        return _find_nearly(wanted, text)
    return None


_loading = import_lock()


def _find_nearly(wanted: str, text: _Folded) -> Span | None:
    """Return the place that is most like a folded quote, in whole words; None if its likeness is too low."""
    # Imported at first use, because a prompt does not need it.
    with _loading:
        from rapidfuzz.distance import Indel
        from rapidfuzz.fuzz import partial_ratio_alignment

    place = partial_ratio_alignment(wanted, text.text, score_cutoff=_LEAST_LIKENESS)
    if place is None:
        return None
    window = text.text[place.dest_start : place.dest_end]
    steps = list(Indel.opcodes(wanted, window))
    equal = [step for step in steps if step.tag == "equal"]
    start = place.dest_start
    # If the quote begins with words that the text does not have, such as "they" for "I",
    # the text's words in their place belong to the quote.
    if all(step.tag != "delete" for step in steps[:2]):
        start += equal[0].dest_start
    end = place.dest_start + equal[-1].dest_end
    while text.text[start] == " ":
        start += 1
    while text.cuts_word(start):
        start -= 1
    while text.cuts_word(end):
        end += 1
    return Span(text.starts[start], text.ends[end - 1], place.score / 100)
