"""The conversation that facts are checked against: finds quotes, copied words, and the question of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.checks.clauses import sentences_at
from llama_index_memory_ext.checks.quotes import Span, find_quote
from llama_index_memory_ext.text.entries import escape_tags
from llama_index_memory_ext.words import (
    comparable,
    is_translation,
    language_of,
    phrases,
    sentences_in,
    tokens_in,
)
from llama_index_memory_ext.words.tokens import keywords, shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.text.turns import Utterance


# The most characters of a quote and of a source, and of a line that a quote translates.
_MAX_EXCERPT = 2_000
_MAX_TRANSLATED = 300
# A content of fewer words is no copy of a sentence.
_SHORTEST_COPY = 3
# In a copy of the assistant's words, at most this share of the keywords is the user's,
# too.
_MOST_OF_BOTH = 0.5
# The longest answer to a question, in words, or in characters of a script without
# spaces.
_LONGEST_ANSWER = 6


class QuoteMatch(NamedTuple):
    """The place of a quote in the user's lines.

    ``line``: the place of the line in ``Source.lines``.
    ``text``: the text of the line.
    ``span``: the part of the text that the quote means.
    """

    line: int
    text: str
    span: Span

    @property
    def quote(self) -> str:
        """The user's own words."""
        return self.span.of(self.text)

    @property
    def sentences(self) -> list[str]:
        """The sentences in which the words stand."""
        return sentences_at(self.text, self.span)


# The place of a quote that is in no line of the user's.
NOWHERE = QuoteMatch(0, "", Span(0, 0, 0.0))


@dataclass(frozen=True)
class Source:
    """The conversation that the facts of a reply are checked against.

    Attributes:
        lines: The messages that facts may quote.
        context: The messages right before the lines.
        tool_text: The texts of tools and pages.
        stored_facts: The known facts, and all other present and pending facts; their names
            count as said.
    """

    lines: Sequence[Utterance]
    context: Sequence[Utterance]
    tool_text: str
    stored_facts: Sequence[Fact]

    @cached_property
    def conversation(self) -> list[Utterance]:
        """The context and the lines."""
        return [*self.context, *self.lines]

    @cached_property
    def users_texts(self) -> dict[int, str]:
        """The texts of the user's lines, by their places."""
        return {i: line.text for i, line in enumerate(self.lines) if line.is_users}

    @cached_property
    def users_keywords(self) -> frozenset[str]:
        """The keywords of the user's lines."""
        return keywords("\n".join(self.users_texts.values()))

    @cached_property
    def facts_text(self) -> str:
        """The facts that names may come from, a line each."""
        return "\n".join(fact.content for fact in self.stored_facts)

    def find(self, quote: str) -> QuoteMatch | None:
        """Return the best place of a quote in the user's lines, the last of equal ones.

        A quote that no line has may translate a line. Return None if it does not, or if
        the quote has more than 2,000 characters.
        """
        if len(quote) > _MAX_EXCERPT:
            return None
        best: QuoteMatch | None = None
        for i, text in self.users_texts.items():
            span = find_quote(quote, text)
            if span and (best is None or span.likeness >= best.span.likeness):
                best = QuoteMatch(i, text, span)
        return best or self._find_original(quote)

    def _find_original(self, quote: str) -> QuoteMatch | None:
        """Return the line that a quote translates, with most keywords in common; None if it translates no line.

        Small models also report the assistant's words and the tags of the request. These
        are no translations.
        """
        texts = self.users_texts
        originals = [i for i, text in texts.items() if is_translation(quote, text)]
        language = language_of(quote)
        # If the user writes in the language of the quote, the model had no reason to
        # translate.
        may_be_exact = language is not None and language in map(
            language_of, texts.values()
        )
        if may_be_exact or not originals or escape_tags(quote) != quote:
            return None
        if self.is_said_by_others(quote):
            return None
        words = keywords(quote)
        best = max(originals, key=lambda i: (len(words & keywords(texts[i])), i))
        text = texts[best]
        span = Span(0, min(len(text), _MAX_TRANSLATED), 1.0)
        return QuoteMatch(best, text, span)

    @cached_property
    def others_lines(self) -> list[Utterance]:
        """The lines that are not the user's."""
        return [line for line in self.conversation if not line.is_users]

    def words_at(self, place: QuoteMatch) -> str:
        """Return the words that a statement stands on: the message of its quote, and the question that it answers."""
        return f"{self.question(place)} {excerpt(place.text, place.span.start)}"

    def is_said_by_others(self, quote: str) -> bool:
        """Return whether a quote is in a line that is not the user's."""
        return any(find_quote(quote, line.text) for line in self.others_lines)

    def find_copy(self, content: str) -> QuoteMatch | None:
        """Return the place of the user's words that a content copies; None if it copies none."""
        place = self.find(content)
        if place and _is_copy(content, place.text):
            return place
        return None

    def is_the_assistants(self, content: str) -> bool:
        """Return whether a content copies the words of others, and not mostly the user's."""
        is_copy = any(_is_copy(content, line.text) for line in self.others_lines)
        telling = keywords(content)
        own = shared(telling, self.users_keywords)
        return is_copy and len(own) <= _MOST_OF_BOTH * len(telling)

    def question(self, place: QuoteMatch) -> str:
        """Return the questions of the assistant that the line of a place answers in a few words.

        A yes or a no also answers a statement. Return "" if the line answers nothing.
        """
        before = self.conversation[: len(self.context) + place.line]
        is_short = len(tokens_in(place.text)) <= _LONGEST_ANSWER
        if not before or before[-1].is_users or not is_short:
            return ""
        sentences = list(filter(str.strip, sentences_in(before[-1].text)))
        marks = phrases("clauses", "question")
        questions = [part.strip() for part in sentences if marks.search(part)]
        if not questions and phrases("clauses", "yes_or_no").fullmatch(place.text):
            questions = sentences[-1:]
        return " ".join(questions)

    def quoted_lines(self, place: QuoteMatch) -> list[int]:
        """Return the places of the lines with the words of a quote by the same speaker, in order."""
        speaker = self.lines[place.line].speaker
        return [
            i
            for i, text in self.users_texts.items()
            if place.quote in text and self.lines[i].speaker == speaker
        ]

    def text_around(self, place: QuoteMatch) -> str:
        """Return the lines with a quote, with one line before the first and one after the last.

        A long line is cut to the part near the quote. Turns of other users, with their
        answers, are left out.
        """
        quoted = self.quoted_lines(place)
        excerpts = []
        for line in self.lines[max(quoted[0] - 1, 0) : quoted[-1] + 2]:
            if line.speaker == self.lines[place.line].speaker:
                position = max(line.text.find(place.quote), 0)
                excerpts.append(excerpt(line.text, position))
        return "\n".join(excerpts)


def _is_copy(content: str, text: str) -> bool:
    """Return whether a content of at least three words is in a text, as ``comparable`` reads both."""
    is_long = len(tokens_in(content)) >= _SHORTEST_COPY
    return is_long and comparable(content).rstrip(".!") in comparable(text)


def excerpt(text: str, position: int) -> str:
    """Return at most 2,000 characters of a text around a position."""
    start = max(0, min(position - _MAX_EXCERPT // 2, len(text) - _MAX_EXCERPT))
    return text[start : start + _MAX_EXCERPT]
