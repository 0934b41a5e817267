"""Finds in a conversation what a fact stands on: the place of its quote, its words, and when it was so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from llama_index_memory_ext.grounding.dates import ages_in, missing_dates, period_of, without_dates
from llama_index_memory_ext.grounding.language import is_translation, language_of, may_be_english
from llama_index_memory_ext.grounding.names import missing_names, shares_word
from llama_index_memory_ext.grounding.numbers import has_numbers, missing_numbers
from llama_index_memory_ext.grounding.quotes import TOKEN, Span, find_quote
from llama_index_memory_ext.grounding.words import keywords, shared

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import date

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.text.messages import Utterance

# In characters.
_MAX_EXCERPT, _MAX_TRANSLATED = 2_000, 300
# The least share of a fact's keywords that must be the user's where tools and pages have said something, too.
_SHARE_BESIDE_OTHERS = 0.6
# A message of at most so many words, or characters of a script without spaces, can be the answer to a question.
_LONGEST_ANSWER = 6
_QUESTION_MARK = re.compile("[?\uff1f]|か。?\\s*$")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a quote lies: in a line of the user's, its text and a part of it.

    ``is_translated``: the quote is in another language.
    """

    line: int
    text: str
    span: Span
    is_translated: bool = False

    @property
    def quote(self) -> str:
        """The user's own words."""
        return self.span.of(self.text)


def question_before(lines: Sequence[Utterance], i: int) -> str:
    """Returns the question of the assistant that the line ``i`` answers in a few words; "" if it does not."""
    asked = lines[i - 1].text if i and not lines[i - 1].is_users else ""
    is_short = len(TOKEN.findall(lines[i].text)) <= _LONGEST_ANSWER
    return asked if is_short and lines[i].is_users and _QUESTION_MARK.search(asked) else ""


@dataclass(frozen=True)
class Evidence:
    """What was said: the ``lines``, those right before them as ``context``, and what tools and pages (``others``) said.

    ``said_on`` is the day, and ``known`` are facts in which names stand.
    """

    lines: Sequence[Utterance]
    context: Sequence[Utterance]
    others: str
    said_on: date
    known: Sequence[Fact]

    @cached_property
    def said(self) -> str:
        """All of it but for what others said: a user may say yes to a name or a number of the assistant's."""
        return "\n".join(line.text for line in (*self.context, *self.lines))

    @cached_property
    def users_keywords(self) -> frozenset[str]:
        """The keywords of the user's lines."""
        return keywords("\n".join(line.text for line in self.lines if line.is_users))

    @cached_property
    def _known_text(self) -> str:
        return "\n".join(fact.content for fact in self.known)

    def find(self, quote: str) -> Place | None:
        """Returns the place of a quote in the user's lines, of several the best and then the last."""
        users = [(i, line.text) for i, line in enumerate(self.lines) if line.is_users and line.text]
        found = [(span.share, i, Place(i, text, span)) for i, text in users if (span := find_quote(quote, text))]
        if found:
            return max(found, key=lambda one: one[:2])[2]
        return _translated(quote, users)

    def is_in_others_lines(self, quote: str) -> bool:
        """Returns whether somebody else than the user said it."""
        return any(find_quote(quote, line.text) for line in self.lines if not line.is_users)

    def question(self, place: Place) -> str:
        """Returns the question that the line of a place answers in a few words; "" if it does not."""
        return question_before([*self.context, *self.lines], len(self.context) + place.line)

    def says_something_of(self, statement: str, words: str) -> bool:
        """Returns whether words have a telling word, a name, a number or a date of a statement."""
        if shares_word(statement, words):
            return True
        plain = without_dates(statement)
        if plain != statement and not missing_dates(statement, words, self.said_on):
            return True
        return has_numbers(plain) and not missing_numbers(plain, words, also=ages_in(words, self.said_on))

    def unsaid(self, statement: str) -> Iterator[tuple[str, list[str]]]:
        """Yields the dates, the numbers and the names of a statement that nobody said, with the reason to reject it."""
        ages = ages_in(self.said, self.said_on)
        yield "date_not_said", missing_dates(statement, self.said, self.said_on)
        yield "number_not_said", missing_numbers(without_dates(statement), self.said, also=ages)
        yield "name_not_said", missing_names(statement, self.said, self._known_text)

    def is_the_users(self, statement: str, place: Place, share: float) -> bool:
        """Returns whether the user used this share of the keywords of a statement, and others none of the rest.

        Across languages words cannot be compared; then it must be in English, in which models often write.
        """
        words = keywords(statement)
        if not words:
            # Nothing can be compared, so the user must have said exactly this.
            return any(find_quote(statement, line.text) for line in self.lines if line.is_users)
        answered = keywords(self.question(place))
        own = shared(words, self.users_keywords | answered)
        if shared(words - own, keywords(self.others)):
            return False
        if is_translation(statement, place.text):
            return may_be_english(statement)
        least = max(share, _SHARE_BESIDE_OTHERS) if self.others else share
        return len(own) >= least * len(words) and bool(shared(words, keywords(place.quote) | answered))

    def day(self, written: str, side: int) -> date | None:
        """Returns the first (0) or the last (1) day of a day, month or year, if that was said or follows from it."""
        period = period_of(written)
        if period is None or missing_dates(written, self.said, self.said_on):
            return None
        return period[side]

    def lines_with(self, place: Place) -> dict[int, int]:
        """Returns the user's lines that have these very words, with their positions in them."""
        users = (i for i, line in enumerate(self.lines) if line.is_users and place.quote in line.text)
        return {place.line: place.span.start} | {i: self.lines[i].text.index(place.quote) for i in users}

    def source(self, places: dict[int, int]) -> str:
        """Returns the text of lines and of those around them, as much of each as is near its place."""
        nearby = range(max(min(places) - 1, 0), min(max(places) + 2, len(self.lines)))
        return "\n".join(_excerpt(self.lines[i].text, places.get(i, 0)) for i in nearby)


def _translated(quote: str, users: Sequence[tuple[int, str]]) -> Place | None:
    """Returns the user's line in another language that a quote is a translation of."""
    translated = [(i, text) for i, text in users if is_translation(quote, text)]
    # Who also writes in the language of the quote would be quoted in it.
    language = language_of(quote)
    if not translated or (language and any(language_of(text) == language for _, text in users)):
        return None
    i, text = max(translated, key=lambda one: (len(keywords(quote) & keywords(one[1])), one[0]))
    return Place(i, text, Span(0, min(len(text), _MAX_TRANSLATED), 1.0), is_translated=True)


def _excerpt(text: str, place: int) -> str:
    start = max(0, min(place - _MAX_EXCERPT // 2, len(text) - _MAX_EXCERPT))
    return text[start : start + _MAX_EXCERPT]
