"""Reads numbers: digits with thousands and decimals, Chinese characters, words, and times of the day."""

from __future__ import annotations

import re
import unicodedata
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# No number that anybody says is longer.
CJK_NUMBER = re.compile("[\u3007零一二两兩三四五六七八九十百千万萬亿億\u58f1\u5f10\u53c2]{1,20}")
_CJK_DIGITS = {"两": 2, "兩": 2, "\u3007": 0} | {character: i for i, character in enumerate("零一二三四五六七八九")}
_CJK_UNITS = {"十": 10, "百": 100, "千": 1_000}
_CJK_GROUPS = {"万": 10_000, "萬": 10_000, "亿": 10**8, "億": 10**8}
CLOCK = re.compile(
    r"(?<![\d:])(?P<hour>[01]?\d|2[0-4])(?:[:.](?P<minute>[0-5]\d))?\s?(?P<half>[ap])\.?m\b\.?"
    r"|(?<![\d:])(?P<hour2>[01]?\d|2[0-4]):(?P<minute2>[0-5]\d)(?!\d)",
    re.IGNORECASE,
)
# Hours to add to the hour that follows, or to the one that is said: "half past six", "halb sieben".
_SPOKEN = {"half past": 0.5, "quarter past": 0.25, "quarter to": -0.25, "halb": -0.5, "viertel nach": 0.25}
_SPOKEN |= {"viertel vor": -0.25, "dreiviertel": -0.25}
_SPOKEN_CLOCK = re.compile(rf"(?i)\b({'|'.join(_SPOKEN)}) ([^\W\d_]+|1?\d)\b")
_NOON, _THOUSANDS, _MOST_DIGITS = 12, 3, 30
_SPELT = (*range(2, 1_000), *range(1_000, 20_000, 1_000), *range(20_000, 100_001, 10_000), 200_000, 500_000, 10**6)
_MOST_ORDINAL, _MOST_HALVED = 31, 100
# Their words cannot be told apart without a dictionary; Chinese characters are read by themselves.
_UNSPACED = frozenset({"ja", "ko", "th", "zh"})
# Ordinals are inflected: der vierte, im vierten; el tercero, la tercera.
_ORDINAL_ENDINGS = {"e": ("en", "er", "es", "em"), "o": ("a",)}


def digits_of(text: str) -> str:
    """The text with its numbers in Chinese characters and in other digits as ASCII digits.

    >>> digits_of("三周后")
    '3周后'
    """
    return CJK_NUMBER.sub(lambda match: f"{cjk_value(match.group()):.0f}", ascii_digits(text))


def ascii_digits(text: str) -> str:
    """The text in the normal form NFKC, with the digits of all scripts as ASCII digits."""
    return "".join(str(unicodedata.digit(character, character)) for character in unicodedata.normalize("NFKC", text))


def clock_times(text: str, names: Mapping[str, float]) -> Iterator[tuple[str, set[float]]]:
    """Times of the day as they are written, in hours; those of an afternoon are also had as of 12."""
    yield from map(_clock_time, CLOCK.finditer(text))
    for match in _SPOKEN_CLOCK.finditer(text):
        said = match[2].lower()
        spoken = float(said) if said.isdigit() else names.get(said, 1.0 if said in ("one", "eins") else 0.0)
        if 0 < spoken <= _NOON:
            time = spoken + _SPOKEN[match[1].lower()]
            yield match.group(), {time, time + _NOON}


def _clock_time(match: re.Match[str]) -> tuple[str, set[float]]:
    hour, minute = int(match["hour"] or match["hour2"]), int(match["minute"] or match["minute2"] or 0)
    is_afternoon = (match["half"] or "").lower() == "p" and hour < _NOON
    hours = {hour, hour + _NOON} if is_afternoon else {hour}
    return match.group(), {hour + minute / 60 for hour in hours}


def readings(number: str) -> list[float]:
    """What a number can mean: 1.200,50 and 1,200.50 are the same, and 1.200 is either 1.2 or 1200."""
    plain = re.sub(r"['\u2019\u00a0 _]", "", number)[:_MOST_DIGITS]
    marks = re.findall(r"[.,]", plain)
    if not marks:
        return [float(plain)]
    whole, last = re.sub(r"[.,]", "", plain[: plain.rindex(marks[-1])]), plain[plain.rindex(marks[-1]) + 1 :]
    as_decimal, as_thousands = float(f"{whole}.{last}"), float(f"{whole}{last}")
    if len(set(marks)) > 1 or len(last) != _THOUSANDS:
        return [as_decimal]
    return [as_thousands] if len(marks) > 1 else [as_thousands, as_decimal]


def cjk_value(characters: str) -> float:
    """The value of a number in Chinese characters: 三百五十 is 350, 两万 is 20000, and 二〇二三 is 2023."""
    if not any(character in _CJK_UNITS or character in _CJK_GROUPS for character in characters):
        return float("".join(str(_CJK_DIGITS.get(character, 0)) for character in characters))
    total = group = digit = 0
    for character in characters:
        if character in _CJK_GROUPS:
            total, group, digit = (total + group + digit or 1) * _CJK_GROUPS[character], 0, 0
        elif character in _CJK_UNITS:
            group, digit = group + (digit or 1) * _CJK_UNITS[character], 0
        else:
            digit = _CJK_DIGITS.get(character, 0)
    return float(total + group + digit)


@lru_cache(maxsize=8)
def names_of_numbers(language: str) -> dict[str, float]:
    """The values of the numbers that a language spells, without "and"; {} for one that is not known."""
    # Imported here, because it is needed in the background alone.
    from num2words import CONVERTER_CLASSES, num2words  # type: ignore[import-untyped]

    names: dict[str, float] = {}
    for number in _SPELT if language in CONVERTER_CLASSES and language not in _UNSPACED else ():
        for form in ("cardinal", "ordinal") if number <= _MOST_ORDINAL else ("cardinal",):
            # Some languages lack a form, and fail in ways of their own.
            with suppress(Exception):
                name = _plain(num2words(number, lang=language, to=form))
                names.setdefault(name, float(number))
                for ending in _ORDINAL_ENDINGS.get(name[-1:], ()) if form == "ordinal" else ():
                    names.setdefault(name[:-1] + ending, float(number))
    return names | _more_in_english(names) if language == "en" else names


def _plain(name: str) -> str:
    return " ".join(word for word in re.findall(r"[^\W\d_]+", name.casefold()) if word != "and")


def _more_in_english(names: Mapping[str, float]) -> dict[str, float]:
    """A hundred, half a million, two and a half, two and a half million."""
    ones = {name.removeprefix("one "): value for name, value in names.items() if name.startswith("one ")}
    ones = {name: value for name, value in ones.items() if " " not in name}
    more = ones | {f"a {name}": value for name, value in ones.items()}
    more |= {f"half a {name}": value / 2 for name, value in ones.items()}
    for name, value in names.items():
        if value < _MOST_HALVED:
            more[f"{name} a half"] = value + 0.5
            more |= {f"{name} a half {one}": (value + 0.5) * times for one, times in ones.items()}
    return more
