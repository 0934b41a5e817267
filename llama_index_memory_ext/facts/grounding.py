"""Tells whether a statement stands on the words it is said to come from."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property, lru_cache
from html import unescape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Letters of scripts that have capitals, and spaces between words.
_LETTER = "A-Za-z\u00aa-\u024f\u0370-\u052f\u0531-\u0587\u1e00-\u1fff"
_WORD = re.compile(rf"[{_LETTER}](?:[{_LETTER}0-9'+#.&-]*[{_LETTER}0-9+#])?")
# Scripts without spaces between words, and such as are read in syllables: Chinese, Japanese, Korean, Thai, Khmer, ...
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]{2,}")
# Words of all other scripts, with their marks and without their punctuation: Hebrew, Arabic, Hindi, Georgian, ...
_OTHER_WORD = re.compile(
    "(?:(?![\u05be\u05c0\u05c3\u060c\u061b\u061f\u06d4\u0964\u0965\\d])"
    "[\u0250-\u02af\u0590-\u0dff\u10a0-\u10ff\u1200-\u177f\u1800-\u1dff\ua000-\uabff]){3,}"
)
_STRAIGHT = str.maketrans("\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d\u300e\u300f", '\'\'\'"""""""""')
_CJK_STOPS = "\u3002\uff01\uff1f"
_EDGE_MARKS = " \t\"'.,;:!?\u3001\uff0c" + _CJK_STOPS
_SHORTEST_QUOTE = 2

_NUMBER = re.compile(r"\d+(?:\.\d+)*")
# ruff: noqa: SIM905 - lists of words are easier to read as one text
_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = {word: 10 * i for i, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)}
_OTHER_NUMBERS = {"first": 1, "second": 2, "third": 3, "twice": 2, "dozen": 12, "hundred": 100, "thousand": 1000}
_VALUES = {word: i for i, word in enumerate(_UNITS)} | _TENS | _OTHER_NUMBERS
_CJK_DIGITS = {"两": 2, "兩": 2} | {character: i for i, character in enumerate("零一二三四五六七八九")}
_CJK_NUMBER = re.compile("([一二三四五六七八九]?)十([一二三四五六七八九]?)|([零一二两兩三四五六七八九])")

_MONTHS = "january february march april may june july august september october november december".split()
_WEEKDAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
_CALENDAR = frozenset([*_MONTHS, *_WEEKDAYS])
_MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS).replace("may(?:)?", "may")
_DATES = (
    re.compile(r"(?<!\d)(?P<y>\d{4})([-/.])(?P<m>\d{1,2})(?:\2(?P<d>\d{1,2}))?(?!\d)"),
    re.compile(
        rf"\b(?:(?P<d>\d{{1,2}})(?:st|nd|rd|th|\.)? (?:of )?)(?P<m>{_MONTH})\b(?:,? (?P<y>\d{{4}})\b)?", re.IGNORECASE
    ),
    re.compile(
        rf"\b(?P<m>{_MONTH})\b(?: (?P<d>\d{{1,2}})(?:st|nd|rd|th)?\b(?!\.?\d))?(?:,? (?P<y>\d{{4}})\b)?", re.IGNORECASE
    ),
    re.compile(r"(?:(?P<y>\d{4})年)?(?P<m>\d{1,2})月(?:(?P<d>\d{1,2})[日号])?"),
    re.compile(
        r"(?P<y>(?<!\d)\d{4})年|\b(?:in|since|until|by|from|during|before|after) (?P<y2>\d{4})\b", re.IGNORECASE
    ),
)
# Too common to tell one statement from another.
_COMMON = frozenset(
    "about also and any are been but can did does for from get got had has have her him his how its just like more "
    "most much not now our out she some that the their them then there they this very was were what when which who "
    "will with would you your".split()
)


@dataclass(frozen=True)
class Evidence:
    """The words that statements may stand on; dates between the two days may be worked out from them."""

    text: str
    first_day: date
    last_day: date

    def unsaid_numbers(self, statement: str) -> list[str]:
        """The numbers in a statement that were not said, in digits or (English, Chinese) in words; [] if all were."""
        numbers = _NUMBER.findall(_in_digits(self._without_dates(statement)))
        return [
            number
            for number in numbers
            if number not in self._numbers_in_words
            and not re.search(rf"(?<!\d){re.escape(number)}(?!\d)", self._digits)
        ]

    def unsaid_names(self, statement: str) -> list[str]:
        """The words with a capital inside a sentence that were not said; [] if all were.

        A sentence's first word counts only if it has a capital after its first letter. Months and
        weekdays never count, nor do scripts without capitals.
        """
        return [name for name in _names(self._without_dates(statement)) if not self._said(name)]

    def shares_words(self, statement: str) -> bool:
        """Whether any word of a statement that is not too common, or two neighbours without spaces, were said."""
        return not telling_words(statement).isdisjoint(self._telling_words)

    def share_said(self, statement: str) -> float:
        """0..1, which share of the words of a statement that are not too common were said; 1 if it has none."""
        words = telling_words(statement)
        return len(words & self._telling_words) / len(words) if words else 1.0

    @cached_property
    def _digits(self) -> str:
        return _in_digits(self.text)

    @cached_property
    def _numbers_in_words(self) -> frozenset[str]:
        return frozenset(map(str, _numbers_in_words(comparable(self.text))))

    @cached_property
    def _words(self) -> frozenset[str]:
        words = _WORD.findall(comparable(self.text))
        return frozenset([*words, *(part for word in words for part in re.split(r"[^\w+#]+", word))])

    @cached_property
    def _telling_words(self) -> frozenset[str]:
        return telling_words(self.text)

    def _said(self, name: str) -> bool:
        folded = comparable(name).removesuffix("'s").rstrip("'")
        return folded in self._words or any(_inflected(folded, word) for word in self._words)

    def _without_dates(self, statement: str) -> str:
        text = unicodedata.normalize("NFKC", statement)
        for pattern in _DATES:
            text = pattern.sub(self._blank_date, text)
        return text

    def _blank_date(self, match: re.Match[str]) -> str:
        parts = match.groupdict()
        year, month, day = parts.get("y") or parts.get("y2"), parts.get("m"), parts.get("d")
        number = None if month is None else int(month) if month.isdigit() else _month_number(month)
        wanted = (int(year) if year else None, number, int(day) if day else None)
        fits = any(
            all(want in (None, have) for want, have in zip(wanted, (one.year, one.month, one.day), strict=True))
            for one in _days(self.first_day, self.last_day)
        )
        return " " if fits else match.group()


def comparable(text: str) -> str:
    """The text as quotes are compared: entities, width, case, quotation marks and white space made alike.

    >>> comparable("It\u2019s  &lt;b> \uff34ea")
    "it's <b> tea"
    """
    folded = unicodedata.normalize("NFKC", unescape(text)).casefold()
    return " ".join(folded.translate(_STRAIGHT).split())


def find_quote(quote: str, text: str) -> int:
    """Where a comparable text holds a quote, word for word, or -1.

    What the quote leaves out by "..." may be anything; an empty quote and a single character are nowhere.

    >>> find_quote("I \u2026 tea.", comparable("Well, I prefer tea, thanks"))
    6
    >>> find_quote("art", comparable("What a party"))
    -1
    """
    parts = [part.strip(_EDGE_MARKS) for part in comparable(quote).split("...")]
    parts = [part for part in parts if part]
    if len("".join(parts)) < _SHORTEST_QUOTE:
        return -1
    first, position = -1, 0
    for part in parts:
        match = _whole(part).search(text, position)
        if match is None:
            return -1
        first, position = match.start() if first < 0 else first, match.end()
    return first


def telling_words(text: str) -> frozenset[str]:
    """The beginnings of the words that tell one statement from another; of scripts without spaces all neighbours."""
    folded = comparable(text)
    words = {word[:4] for word in _WORD.findall(folded) if len(word) > 2 and word not in _COMMON}  # noqa: PLR2004
    others = {word[:4] for word in _OTHER_WORD.findall(folded)}
    pairs = {run[i : i + 2] for run in _UNSPACED.findall(folded) for i in range(len(run) - 1)}
    return frozenset(words | others | pairs | set(_NUMBER.findall(folded)))


@lru_cache(maxsize=256)
def _whole(part: str) -> re.Pattern[str]:
    """Finds a text that begins and ends where words do; scripts without spaces may go on at once."""
    letter = f"[{_LETTER}0-9]"
    before = f"(?<!{letter})" if re.match(letter, part) else ""
    after = f"(?!{letter})" if re.search(f"{letter}$", part) else ""
    return re.compile(f"{before}{re.escape(part)}{after}")


def _names(text: str) -> Iterator[str]:
    for match in _WORD.finditer(text.translate(_STRAIGHT)):
        starts_sentence = not text[: match.start()].rstrip(" \t\"'([").strip() or bool(
            re.search(rf"[.!?:;\n{_CJK_STOPS}]\s*[\"'(\[]*$", text[: match.start()])
        )
        for i, part in enumerate(_parts_of(match.group())):
            capitals = part[1:] if starts_sentence and i == 0 else part
            if capitals != capitals.lower() and not _is_no_name(part):
                yield part


def _parts_of(word: str) -> list[str]:
    """A compound by its parts: Berlin-based, R&D; dots stay, for they are part of names (Next.js)."""
    return [part for part in re.split(r"[-&]", word) if part]


def _is_no_name(word: str) -> bool:
    folded = word.lower()
    return folded in _CALENDAR or folded == "i" or folded.startswith("i'")


def _inflected(name: str, word: str) -> bool:
    """Whether two words differ only by an ending: German and Germans, Москве and Москвы."""
    shared = next(
        (i for i, (one, other) in enumerate(zip(name, word, strict=False)) if one != other), min(len(name), len(word))
    )
    shorter, longer = sorted((len(name), len(word)))
    if name.isascii() and word.isascii():
        return shared == shorter > 2 and longer - shorter <= 2  # noqa: PLR2004 - Anns, Boxes; Ed is not Eddy
    return shared > 2 and longer - shared <= 2  # noqa: PLR2004


def _in_digits(text: str) -> str:
    """The text with ASCII digits, a dot as decimal point and no thousands separators."""
    plain = "".join(str(unicodedata.digit(character, character)) for character in unicodedata.normalize("NFKC", text))
    return re.sub(r"(?<=\d),(?=\d)", ".", re.sub(r"(?<=\d)[,_'\u2019 ](?=\d{3}(?!\d))", "", plain))


def _numbers_in_words(folded: str) -> Iterator[int]:
    words = re.findall(r"[a-z]+", folded)
    for i, word in enumerate(words):
        if word in _VALUES:
            yield _VALUES[word]
        unit = _VALUES.get(words[i + 1], 0) if i + 1 < len(words) else 0
        if word in _TENS and 0 < unit < 10:  # noqa: PLR2004 - twenty-one to ninety-nine
            yield _TENS[word] + unit
    for tens, units, digit in _CJK_NUMBER.findall(folded):
        yield _CJK_DIGITS[digit] if digit else 10 * _CJK_DIGITS.get(tens, 1) + _CJK_DIGITS.get(units, 0)


def _month_number(name: str) -> int:
    return next(i for i, month in enumerate(_MONTHS, 1) if month.startswith(name.lower()[:3]))


def _days(first: date, last: date) -> Iterator[date]:
    return (first + timedelta(days=i) for i in range((last - first).days + 1))
