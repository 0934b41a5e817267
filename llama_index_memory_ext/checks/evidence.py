"""Finds the evidence of a fact in a conversation: the place of its quote, its words and its days."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.checks.dates import ages_in, missing_dates
from llama_index_memory_ext.checks.quotes import Span, find_quote, tokens_in
from llama_index_memory_ext.text.messages import Utterance, escape_tags
from llama_index_memory_ext.words import comparable, is_translation, language_of
from llama_index_memory_ext.words.dates import Period, dates_in, period_of
from llama_index_memory_ext.words.tokens import keywords, shared

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from llama_index_memory_ext.fact import Fact


# In characters.
_MAX_EXCERPT = 2_000
_MAX_TRANSLATED = 300
# The most that a quote can be longer than its message: pronouns, entities and omitted
# words take some characters.
_STRETCH = 1.5
_SLACK = 100
# A content of fewer words is no copy of a sentence.
_SHORTEST_COPY = 3
# The most of the user's keywords in a copy of the assistant's words.
_MOST_OF_BOTH = 0.5
# The longest answer to a question, in words, or in characters of a script without
# spaces.
_LONGEST_ANSWER = 6
_QUESTION_MARK = re.compile("[?\uff1f]|か。?\\s*$")


@dataclass(frozen=True, slots=True)
class QuoteMatch:
    """The place of a quote: a line of the user's, its text and a part of it.

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


# The place of a quote that is in no line of the user's.
NOWHERE = QuoteMatch(0, "", Span(0, 0, 0.0))


class Surroundings(NamedTuple):
    """The lines that repeat a quote, and the text of these lines and their neighbours."""

    lines: list[int]
    text: str


def question_before(lines: Sequence[Utterance], i: int) -> str:
    """Return the question of the assistant that the line ``i`` answers in a few words.

    Return "" if it answers none.
    """
    if not i or lines[i - 1].is_users or not lines[i].is_users:
        return ""
    question = lines[i - 1].text
    is_short = len(tokens_in(lines[i].text)) <= _LONGEST_ANSWER
    if is_short and _QUESTION_MARK.search(question):
        return question
    return ""


@dataclass(frozen=True)
class Source:
    """The conversation that the facts of a reply are checked against.

    Attributes:
        lines: The messages that facts may quote.
        context: The messages right before the lines.
        tool_text: The texts of tools and pages.
        said_on: The day of the conversation.
        known_facts: Facts that names may come from.
    """

    lines: Sequence[Utterance]
    context: Sequence[Utterance]
    tool_text: str
    said_on: date
    known_facts: Sequence[Fact]

    @cached_property
    def said(self) -> str:
        """The text of the context and the lines, without tools and pages.

        The assistant's lines belong to it: a user may agree to its names and numbers.
        """
        return "\n".join(line.text for line in self.conversation)

    @cached_property
    def conversation(self) -> list[Utterance]:
        """The context and the lines."""
        return [*self.context, *self.lines]

    @cached_property
    def keywords(self) -> frozenset[str]:
        """The keywords of the context and the lines."""
        return frozenset().union(*(keywords(line.text) for line in self.conversation))

    @cached_property
    def users_keywords(self) -> frozenset[str]:
        """The keywords of the user's lines."""
        return keywords("\n".join(line.text for line in self.lines if line.is_users))

    @cached_property
    def ages(self) -> set[float]:
        """The numbers of years since the years that the conversation names."""
        return ages_in(self.said, self.said_on)

    @cached_property
    def known_text(self) -> str:
        """The facts that names may come from, a line each."""
        return "\n".join(fact.content for fact in self.known_facts)

    def find(self, quote: str) -> QuoteMatch | None:
        """Return the best place of a quote in the user's lines, the last of equal ones.

        A quote that no line has may translate a line. Return None if it does not.
        """
        users_lines = [i for i, line in enumerate(self.lines) if line.is_users]
        longest = max((len(self.lines[i].text) for i in users_lines), default=0)
        if len(quote) > min(_MAX_EXCERPT, _STRETCH * longest + _SLACK):
            return None
        best: QuoteMatch | None = None
        for i in users_lines:
            text = self.lines[i].text
            span = find_quote(quote, text)
            if span and (best is None or span.share >= best.span.share):
                best = QuoteMatch(i, text, span)
        return best or self._find_original(quote, users_lines)

    def _find_original(
        self, quote: str, users_lines: Sequence[int]
    ) -> QuoteMatch | None:
        """Return the line that a quote translates, with most keywords in common.

        Small models also report the assistant's words and the tags of the request.
        """
        texts = [self.lines[i].text for i in users_lines]
        originals = [
            i for i in users_lines if is_translation(quote, self.lines[i].text)
        ]
        language = language_of(quote)
        # A model quotes a user who also writes in this language in it.
        may_be_exact = language is not None and language in map(language_of, texts)
        if may_be_exact or not originals or escape_tags(quote) != quote:
            return None
        if any(find_quote(quote, line.text) for line in self.others_lines):
            return None
        words = keywords(quote)
        best = max(
            originals, key=lambda i: (len(words & keywords(self.lines[i].text)), i)
        )
        text = self.lines[best].text
        span = Span(0, min(len(text), _MAX_TRANSLATED), 1.0)
        return QuoteMatch(best, text, span, is_translated=True)

    @cached_property
    def others_lines(self) -> list[Utterance]:
        """The lines that are not the user's."""
        return [line for line in self.conversation if not line.is_users]

    def find_copy(self, content: str) -> QuoteMatch | None:
        """Return the place of a content that copies the user's words; None if it is none."""
        if len(tokens_in(content)) < _SHORTEST_COPY:
            return None
        place = self.find(content)
        copy = comparable(content).rstrip(".!")
        if place is None or copy not in comparable(place.text):
            return None
        return place

    def is_the_assistants(self, content: str) -> bool:
        """Return whether a content copies the assistant's words, and not mostly the user's."""
        if len(tokens_in(content)) < _SHORTEST_COPY:
            return False
        copy = comparable(content).rstrip(".!")
        is_copy = any(copy in comparable(line.text) for line in self.others_lines)
        telling = keywords(content)
        own = shared(telling, self.users_keywords)
        return is_copy and len(own) <= _MOST_OF_BOTH * len(telling)

    def question(self, place: QuoteMatch) -> str:
        """Return the question that the line of a place answers in a few words.

        Return "" if it answers none.
        """
        return question_before(self.conversation, len(self.context) + place.line)

    def said_period(self, written: str) -> Period | None:
        """Return the time of a written day, month or year; None if it was not said and does not follow from that."""
        dates = dates_in(written)
        if len(dates) != 1:
            return None
        period = period_of(dates[0].readings[0])
        if period is None or missing_dates(written, self.said, self.said_on):
            return None
        return period

    def around(self, place: QuoteMatch) -> Surroundings:
        """Return the user's lines that repeat a quote, and the text around it.

        The text of a long line is cut to the part near the quote. Turns of other users,
        with their answers, are left out.
        """
        speaker = self.lines[place.line].speaker
        own = [i for i, line in enumerate(self.lines) if line.speaker == speaker]
        positions = {}
        for i in own:
            line = self.lines[i]
            if line.is_users and place.quote in line.text:
                positions[i] = line.text.index(place.quote)
        nearby = range(min(positions) - 1, max(positions) + 2)
        excerpts = [
            excerpt(self.lines[i].text, positions.get(i, 0)) for i in own if i in nearby
        ]
        return Surroundings(list(positions), "\n".join(excerpts))


def excerpt(text: str, position: int, longest: int = _MAX_EXCERPT) -> str:
    """Return at most ``longest`` characters of a text around a position."""
    start = max(0, min(position - longest // 2, len(text) - longest))
    return text[start : start + longest]
