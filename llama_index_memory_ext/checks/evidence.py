"""Finds the evidence of a fact in a conversation: the place of its quote, its words and its days."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from difflib import Match, SequenceMatcher, get_close_matches
from functools import cached_property, lru_cache
from html import unescape
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.checks.figures import ages_in, missing_dates
from llama_index_memory_ext.text.messages import Utterance, escape_tags
from llama_index_memory_ext.words import (
    STOP_CHARACTERS,
    STOP_WORDS,
    comparable,
    is_translation,
    language_of,
    pattern,
    words_of_section,
)
from llama_index_memory_ext.words.dates import Period, dates_in, period_of
from llama_index_memory_ext.words.tokens import keywords, shared

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from llama_index_memory_ext.fact import Fact


# ---- the part of a text that a quote means, even if the quote is not exact ----

# A word with its apostrophes, or one character of a script without spaces.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
TOKEN = rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+(?:['\u2019`\u00b4][^\W_{_UNSPACED}]+)*[+#]*"
_APOSTROPHES = str.maketrans("", "", "'\u2019`\u00b4")
_ENDS = tuple(".!?\u2026\u3002\uff01\uff1f\"'\u201d\u2019)")
# A model that reports on a person changes these pronouns.
_PERSON_WORDS = words_of_section("clauses", "persons")
_PERSON = "\x00person"
# The weights of tokens: a character of a script without spaces is about half a word.
_WEIGHT = 1.0
_STOP_WEIGHT = 0.4
_CHARACTER_WEIGHT = 0.5
# The least share of a quote that must be found in its order, and the least likeness of a
# word with a slip.
_LEAST_SHARE = 0.75
_LEAST_LIKENESS = 0.8
# A shorter word may not be misspelt.
_SHORTEST_MENDED = 4
_LONGEST_MENDED = 40
# The most characters that a slip adds or leaves out.
_MOST_SLIPS = 2
# The most words of a quote that are mended, and the most words of the text to compare
# each with.
_MOST_MENDED = 10
_MOST_LIKELY = 500
# The passage may be longer than the quote by this factor and this number of tokens.
_STRETCH = 1.5
_SLACK = 6
_MOST_TOKENS = 400
# A quote whose middle was left out has two runs of this length, which are nearly the
# whole quote.
_MOST_RUNS = 2
_SHORTEST_RUN = 3
_LEAST_SHARE_OF_RUNS = 0.9


def tokens_in(text: str) -> list[str]:
    """Return the words of a text with their apostrophes, and each character of a script without spaces.

    >>> tokens_in("Don't! 不要")
    ["Don't", '不', '要']
    """
    return pattern(TOKEN).findall(text)


class Span(NamedTuple):
    """A part of a text, from ``start`` to before ``end``, and the share of the quote in it, 0..1."""

    start: int
    end: int
    share: float

    def of(self, text: str) -> str:
        """Return the part of the text."""
        return text[self.start : self.end]


class _Token(NamedTuple):
    """A word in the form for comparison, its place in the text, and its weight in a quote."""

    key: str
    start: int
    end: int
    weight: float


def find_quote(quote: str, text: str) -> Span | None:
    """Return the part of a text that a quote means; None if it is nowhere.

    Three quarters of the quote must be found in their order, and close together. Case,
    punctuation, typography, the person of pronouns and slips in a word do not matter.
    "..." stands for any words. A single stop word must be nearly the whole text.

    >>> text = "Well, I don't live in Oslo any more - I moved to Rome in May!"
    >>> find_quote("they dont live in Oslo", text).of(text)
    "I don't live in Oslo"
    >>> find_quote("I live in Paris", text) is None
    True
    """
    wanted = _tokens(unescape(quote))
    tokens = _tokens(text)
    plain = quote.strip()
    if not wanted or len(wanted) > _MOST_TOKENS:
        return None
    start = text.find(plain)
    end = start + len(plain)
    cut_words = [
        token
        for token in tokens
        if token.start < start < token.end or token.start < end < token.end
    ]
    if start >= 0 and not cut_words and _is_telling(wanted, tokens):
        return Span(start, end, 1.0)
    return _find_nearly(plain, text, wanted, tokens)


def _find_nearly(
    quote: str, text: str, wanted: Sequence[_Token], tokens: Sequence[_Token]
) -> Span | None:
    """Return the part of a text with most words of a quote in their order."""
    keys = _mend_slips([token.key for token in wanted], {token.key for token in tokens})
    window = tokens
    if not pattern(r"\.{3}|\u2026").search(quote):
        window = _densest_passage(tokens, keys)
    runs = _runs(keys, window)
    share = _share_of(runs, wanted, tokens)
    if share < _LEAST_SHARE:
        if len(window) == len(tokens):
            return None
        # The beginning and the end of the quote may stand further apart.
        long_runs = [run for run in _runs(keys, tokens) if run.size >= _SHORTEST_RUN]
        runs = long_runs[:_MOST_RUNS]
        window = tokens
        share = _share_of(runs, wanted, tokens)
        if share < _LEAST_SHARE_OF_RUNS:
            return None
    start = window[runs[0].b].start
    end = window[runs[-1].b + runs[-1].size - 1].end
    # The mark at the end of a sentence belongs to the words.
    end += text.startswith(_ENDS, end) and quote.endswith(_ENDS)
    return Span(start, end, share)


def _runs(keys: Sequence[str], tokens: Sequence[_Token]) -> list[Match]:
    """Return the runs of keys that tokens have in the same order."""
    *runs, _ = SequenceMatcher(
        None, keys, [token.key for token in tokens], autojunk=False
    ).get_matching_blocks()
    return runs


def _share_of(
    runs: Sequence[Match], wanted: Sequence[_Token], tokens: Sequence[_Token]
) -> float:
    """Return the share of a quote in these runs of its words; 0 if they tell nothing."""
    matched: list[_Token] = []
    for run in runs:
        matched += wanted[run.a : run.a + run.size]
    if not _is_telling(matched, tokens):
        return 0.0
    weight = sum(token.weight for token in matched)
    return weight / sum(token.weight for token in wanted)


@lru_cache(maxsize=64)
def _tokens(text: str) -> tuple[_Token, ...]:
    tokens = []
    for match in pattern(TOKEN).finditer(text):
        key = (
            unicodedata.normalize("NFKC", match.group())
            .casefold()
            .translate(_APOSTROPHES)
        )
        if key in _PERSON_WORDS:
            key = _PERSON
        if re.match(f"[{_UNSPACED}]", key):
            if key in STOP_CHARACTERS:
                weight = _STOP_WEIGHT / 2
            else:
                weight = _CHARACTER_WEIGHT
        elif key == _PERSON or key in STOP_WORDS:
            weight = _STOP_WEIGHT
        else:
            weight = _WEIGHT
        tokens.append(_Token(key, *match.span(), weight))
    return tuple(tokens)


def _is_telling(wanted: Sequence[_Token], tokens: Sequence[_Token]) -> bool:
    """Return whether a quote has several words, a word that is no stop word, or nearly all words of a short text."""
    if len(wanted) > 1 or len(tokens) <= len(wanted) + 1:
        return True
    return any(
        token.weight >= _CHARACTER_WEIGHT and len(token.key) > 1 for token in wanted
    )


def _mend_slips(keys: Sequence[str], text_keys: set[str]) -> list[str]:
    """Return the keys of a quote, and for a key with a slip the key that the text has."""
    unknown = [key for key in keys if key not in text_keys and _may_be_misspelt(key)]
    # A quote with more unknown words is of another text.
    if len(unknown) > max(_MOST_MENDED, len(keys) / 2):
        return list(keys)
    words = list(filter(_may_be_misspelt, text_keys))
    mended = {}
    for key in unknown[:_MOST_MENDED]:
        near = [
            word
            for word in words
            if word[0] == key[0] and abs(len(word) - len(key)) <= _MOST_SLIPS
        ]
        likely = get_close_matches(key, near[:_MOST_LIKELY], 1, _LEAST_LIKENESS)
        mended[key] = next(iter(likely), key)
    return [mended.get(key, key) for key in keys]


def _may_be_misspelt(key: str) -> bool:
    return _SHORTEST_MENDED <= len(key) <= _LONGEST_MENDED and not key.isdigit()


def _densest_passage(
    tokens: Sequence[_Token], quote_keys: Sequence[str]
) -> Sequence[_Token]:
    """Return the passage with most of the keys, a little longer than the quote."""
    length = int(len(quote_keys) * _STRETCH) + _SLACK
    keys = set(quote_keys)
    # The weight of the keys before each token.
    before = [0.0, *accumulate(token.weight * (token.key in keys) for token in tokens)]
    starts = range(max(len(tokens) - length, 0) + 1)
    # Weights are rounded, so that the first of equal passages counts.
    weights = [round(before[i : i + length + 1][-1] - before[i], 6) for i in starts]
    start = weights.index(max(weights))
    return tokens[start : start + length]


# ---- the conversation that facts are checked against ----

# In characters.
_MAX_EXCERPT = 2_000
_MAX_TRANSLATED = 300
# The most that a quote can be longer than its message: pronouns, entities and omitted
# words take some characters.
_QUOTE_STRETCH = 1.5
_QUOTE_SLACK = 100
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


class QuotedLines(NamedTuple):
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
    def users_texts(self) -> dict[int, str]:
        """The texts of the user's lines, by their places."""
        return {i: line.text for i, line in enumerate(self.lines) if line.is_users}

    @cached_property
    def users_keywords(self) -> frozenset[str]:
        """The keywords of the user's lines."""
        return keywords("\n".join(self.users_texts.values()))

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
        longest = max(map(len, self.users_texts.values()), default=0)
        if len(quote) > min(_MAX_EXCERPT, _QUOTE_STRETCH * longest + _QUOTE_SLACK):
            return None
        best: QuoteMatch | None = None
        for i, text in self.users_texts.items():
            span = find_quote(quote, text)
            if span and (best is None or span.share >= best.span.share):
                best = QuoteMatch(i, text, span)
        return best or self._find_original(quote)

    def _find_original(self, quote: str) -> QuoteMatch | None:
        """Return the line that a quote translates, with most keywords in common.

        Small models also report the assistant's words and the tags of the request.
        """
        texts = self.users_texts
        originals = [i for i, text in texts.items() if is_translation(quote, text)]
        language = language_of(quote)
        # A model quotes a user who also writes in this language in it.
        may_be_exact = language is not None and language in map(
            language_of, texts.values()
        )
        if may_be_exact or not originals or escape_tags(quote) != quote:
            return None
        if any(find_quote(quote, line.text) for line in self.others_lines):
            return None
        words = keywords(quote)
        best = max(originals, key=lambda i: (len(words & keywords(texts[i])), i))
        text = texts[best]
        span = Span(0, min(len(text), _MAX_TRANSLATED), 1.0)
        return QuoteMatch(best, text, span, is_translated=True)

    @cached_property
    def others_lines(self) -> list[Utterance]:
        """The lines that are not the user's."""
        return [line for line in self.conversation if not line.is_users]

    def find_copy(self, content: str) -> QuoteMatch | None:
        """Return the place of a content that copies the user's words; None if it is none."""
        place = self.find(content)
        if place and _is_copy(content, place.text):
            return place
        return None

    def is_the_assistants(self, content: str) -> bool:
        """Return whether a content copies the assistant's words, and not mostly the user's."""
        is_copy = any(_is_copy(content, line.text) for line in self.others_lines)
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

    def around(self, place: QuoteMatch) -> QuotedLines:
        """Return the user's lines that repeat a quote, and the text around it.

        The text of a long line is cut to the part near the quote. Turns of other users,
        with their answers, are left out.
        """
        speaker = self.lines[place.line].speaker
        texts = {
            i: line.text for i, line in enumerate(self.lines) if line.speaker == speaker
        }
        positions = {}
        for i in texts.keys() & self.users_texts.keys():
            if place.quote in texts[i]:
                positions[i] = texts[i].index(place.quote)
        nearby = range(min(positions) - 1, max(positions) + 2)
        excerpts = [
            excerpt(text, positions.get(i, 0))
            for i, text in texts.items()
            if i in nearby
        ]
        return QuotedLines(sorted(positions), "\n".join(excerpts))


def _is_copy(content: str, text: str) -> bool:
    """Return whether a text has the words of a content, which are more than a few, as they are."""
    is_long = len(tokens_in(content)) >= _SHORTEST_COPY
    return is_long and comparable(content).rstrip(".!") in comparable(text)


def excerpt(text: str, position: int, longest: int = _MAX_EXCERPT) -> str:
    """Return at most ``longest`` characters of a text around a position."""
    start = max(0, min(position - longest // 2, len(text) - longest))
    return text[start : start + longest]
