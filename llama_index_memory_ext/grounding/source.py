"""Checks whether a statement is supported by the text that it comes from."""

from __future__ import annotations

import re
import unicodedata
from datetime import date, timedelta
from html import unescape
from itertools import pairwise
from typing import TYPE_CHECKING

from llama_index_memory_ext.search.tokenization import CHINESE_DIGITS, MONTH_PATTERN, MONTHS, NUMBER_WORDS, WEEKDAYS

if TYPE_CHECKING:
    from collections.abc import Iterator

# The words and stop words of search.tokenization are no substitute: with them, other facts would be accepted.
# Scripts with capitals, and with spaces between words.
_LETTER = "A-Za-z\u00aa-\u024f\u0370-\u052f\u0531-\u0587\u1e00-\u1fff"
_WORD = re.compile(rf"[{_LETTER}](?:[{_LETTER}0-9'+#.&-]*[{_LETTER}0-9+#])?")
# Scripts without spaces between words, or written in syllables: Chinese, Japanese, Korean, Thai, Khmer, ...
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]{2,}")
# Words of all other scripts, with their marks and without their punctuation: Hebrew, Arabic, Hindi, Georgian, ...
_OTHER_WORD = re.compile(
    "(?:(?![\u05be\u05c0\u05c3\u060c\u061b\u061f\u06d4\u0964\u0965\\d])"
    "[\u0250-\u02af\u0590-\u0dff\u10a0-\u10ff\u1200-\u177f\u1800-\u1dff\ua000-\uabff]){3,}"
)
_STRAIGHT = str.maketrans("\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d\u300e\u300f", '\'\'\'"""""""""')
_CJK_STOPS = "\u3002\uff01\uff1f"
_SENTENCE_START = re.compile(rf"(?:^\s*[ \t\"'(\[]*|[.!?:;\n{_CJK_STOPS}]\s*[\"'(\[]*)$")
_EDGE_MARKS = " \t\"'.,;:!?\u3001\uff0c" + _CJK_STOPS
_SHORTEST_QUOTE = 2

_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_CHINESE_NUMBER = re.compile("([一二三四五六七八九]?)十([一二三四五六七八九]?)|([零一二两兩三四五六七八九])")
_DATES = (
    r"(?<!\d)(?P<y>\d{4})([-/.])(?P<m>\d{1,2})(?:\2(?P<d>\d{1,2}))?(?!\d)",
    rf"(?i)\b(?P<d>\d{{1,2}})(?:st|nd|rd|th|\.)? (?:of )?(?P<m>{MONTH_PATTERN})\b(?:,? (?P<y>\d{{4}})\b)?",
    rf"(?i)\b(?P<m>{MONTH_PATTERN})\b(?: (?P<d>\d{{1,2}})(?:st|nd|rd|th)?\b(?!\.?\d))?(?:,? (?P<y>\d{{4}})\b)?",
    r"(?:(?P<y>\d{4})年)?(?P<m>\d{1,2})月(?:(?P<d>\d{1,2})[日号])?",
    r"(?i)(?P<y>(?<!\d)\d{4})年|\b(?:in|since|until|by|from|during|before|after) (?P<y2>\d{4})\b",
)
# How many days before or after the conversation a date may be that was worked out from words such as "next March".
_DATE_RANGE = 366
# Words with a capital that are no names.
_NO_NAME = re.compile("|".join(["i(?:'.*)?", *map(str.lower, MONTHS + WEEKDAYS)]))

_SHORTEST_KEYWORD, _KEYWORD_CHARACTERS = 3, 4
# Too common to tell one statement from another.
_COMMON = """about also and any are been but can did does for from get got had has have her him his how its just like
    more most much not now our out she some that the their them then there they this very was were what when which who
    will with would you your"""
_COMMON_WORDS = frozenset(_COMMON.split())
# Two words with the same stem differ in their last letters only.
_SHORTEST_STEM, _LONGEST_ENDING = 3, 2


class SourceText:
    """A text that has the names and numbers of true statements. Dates within a year of ``day`` need not be in it."""

    def __init__(self, text: str, day: date) -> None:
        folded = comparable(text)
        words = _WORD.findall(folded)
        self._words = frozenset([*words, *(part for word in words for part in re.split(r"[^\w+#]+", word))])
        self._digits = _in_digits(text)
        self._numbers_in_words = frozenset(map(str, _numbers_in_words(folded)))
        days = (day + timedelta(days=i) for i in range(-_DATE_RANGE, _DATE_RANGE + 1))
        # One a line: 2025-11-20.
        self._near_days = "\n".join(map(date.isoformat, days))

    def missing_numbers(self, statement: str) -> list[str]:
        """The numbers of a statement that the text has neither in digits nor (English, Chinese) in words."""
        return [
            number
            for number in _NUMBER.findall(_in_digits(self._without_near_dates(statement)))
            if number not in self._numbers_in_words
            and not re.search(rf"(?<!\d){re.escape(number)}(?!\d)", self._digits)
        ]

    def missing_names(self, statement: str) -> list[str]:
        """The words of a statement with a capital that the text does not have.

        The first word of a sentence counts only if it has a capital after its first letter. Months and weekdays never
        count, nor do scripts without capitals.
        """
        return [name for name in _names(self._without_near_dates(statement)) if not self._has_name(name)]

    def _has_name(self, name: str) -> bool:
        folded = comparable(name).removesuffix("'s").rstrip("'")
        return folded in self._words or any(_have_one_stem(folded, word) for word in self._words)

    def _without_near_dates(self, statement: str) -> str:
        text = unicodedata.normalize("NFKC", statement)
        for pattern in _DATES:
            text = re.sub(pattern, lambda match: " " if self._is_near(match) else match.group(), text)
        return text

    def _is_near(self, match: re.Match[str]) -> bool:
        """Whether a day around the conversation has the year, the month and the day of the match."""
        parts = match.groupdict()
        year, month, day = parts.get("y") or parts.get("y2"), parts.get("m"), parts.get("d")
        if month and not month.isdigit():
            month = next(str(i) for i, name in enumerate(MONTHS, 1) if name.startswith(month[:3].capitalize()))
        widths = ((year, 4), (month, 2), (day, 2))
        form = "-".join(f"{int(part):0{width}}" if part else "." * width for part, width in widths)
        return re.search(form, self._near_days) is not None


def comparable(text: str) -> str:
    """The text with entities, width, case, quotation marks and white space normalized, as quotes are compared.

    >>> comparable("It\u2019s  &lt;b> \uff34ea")
    "it's <b> tea"
    """
    folded = unicodedata.normalize("NFKC", unescape(text)).casefold()
    return " ".join(folded.translate(_STRAIGHT).split())


def find_quote(quote: str, text: str) -> int:
    """The position of a quote in a comparable text, word for word, or -1.

    "..." in the quote stands for any text. An empty quote and a single character are never found.

    >>> find_quote("I \u2026 tea.", comparable("Well, I prefer tea, thanks"))
    6
    >>> find_quote("art", comparable("What a party"))
    -1
    """
    parts = [part for piece in comparable(quote).split("...") if (part := piece.strip(_EDGE_MARKS))]
    if len("".join(parts)) < _SHORTEST_QUOTE:
        return -1
    starts, position = [], 0
    for part in parts:
        match = _whole_words(part).search(text, position)
        if match is None:
            return -1
        starts.append(match.start())
        position = match.end()
    return starts[0]


def keywords(text: str) -> frozenset[str]:
    """The words that tell one statement from another, by their first four letters, and the numbers.

    Scripts without spaces between words give all pairs of neighbouring characters.
    """
    folded = comparable(text)
    words = {word for word in _WORD.findall(folded) if len(word) >= _SHORTEST_KEYWORD} - _COMMON_WORDS
    starts = {word[:_KEYWORD_CHARACTERS] for word in (*words, *_OTHER_WORD.findall(folded))}
    pairs = {first + second for run in _UNSPACED.findall(folded) for first, second in pairwise(run)}
    return frozenset(starts | pairs | set(_NUMBER.findall(folded)))


def _whole_words(part: str) -> re.Pattern[str]:
    """Finds a text that begins and ends where words do; scripts without spaces may go on at once."""
    letter = f"[{_LETTER}0-9]"
    before = f"(?<!{letter})" if re.match(letter, part) else ""
    after = f"(?!{letter})" if re.search(f"{letter}$", part) else ""
    return re.compile(f"{before}{re.escape(part)}{after}")


def _names(text: str) -> Iterator[str]:
    """The words with capitals, compounds in their parts (Berlin-based, R&D); dots belong to names (Next.js)."""
    straight = text.translate(_STRAIGHT)
    for match in _WORD.finditer(straight):
        starts_sentence = _SENTENCE_START.search(straight[: match.start()])
        for i, part in enumerate(filter(None, re.split(r"[-&]", match.group()))):
            capitals = part[1:] if starts_sentence and i == 0 else part
            if capitals != capitals.lower() and not _NO_NAME.fullmatch(part.lower()):
                yield part


def _have_one_stem(name: str, word: str) -> bool:
    """Whether two words differ only by an ending: German and Germans, Москве and Москвы.

    In ASCII one must be the beginning of the other: Anns, Boxes; Ed is not Eddy.
    """
    shorter, longer = sorted((len(name), len(word)))
    shared = next((i for i in range(shorter) if name[i] != word[i]), shorter)
    fits = shared == shorter or not (name.isascii() and word.isascii())
    return fits and shared >= _SHORTEST_STEM and longer - shared <= _LONGEST_ENDING


def _in_digits(text: str) -> str:
    """The text with ASCII digits, a dot as decimal point and no thousands separators."""
    plain = "".join(str(unicodedata.digit(character, character)) for character in unicodedata.normalize("NFKC", text))
    return re.sub(r"(?<=\d),(?=\d)", ".", re.sub(r"(?<=\d)[,_'\u2019 ](?=\d{3}(?!\d))", "", plain))


def _numbers_in_words(folded: str) -> Iterator[int]:
    for word, following in pairwise([*re.findall(r"[a-z]+", folded), ""]):
        if word in NUMBER_WORDS:
            yield NUMBER_WORDS[word]
            if NUMBER_WORDS[word] in range(20, 100, 10) and NUMBER_WORDS.get(following, 0) in range(1, 10):
                yield NUMBER_WORDS[word] + NUMBER_WORDS[following]
    for tens, ones_after, digit in _CHINESE_NUMBER.findall(folded):
        yield CHINESE_DIGITS[digit] if digit else 10 * CHINESE_DIGITS.get(tens, 1) + CHINESE_DIGITS.get(ones_after, 0)
