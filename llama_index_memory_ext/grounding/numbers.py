"""Finds the numbers of a text, in digits or in words, and what they count."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.grounding.language import language_of
from llama_index_memory_ext.grounding.numerals import (
    CJK_NUMBER,
    CLOCK,
    ascii_digits,
    cjk_value,
    clock_times,
    names_of_numbers,
    readings,
)
from llama_index_memory_ext.grounding.words import are_forms
from llama_index_memory_ext.search.tokenization import STOP_WORDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

# A number in digits (with thousands and decimals), what stands before it, and a letter that multiplies it.
_DIGITS = re.compile(
    r"(?P<sign>[$\u20ac\u00a3\u00a5]\s?)?(?<![a-zA-Z\d_.])"
    r"(?P<number>\d+(?:[.,'\u2019\u00a0 _]\d{3}(?!\d))*(?:[.,]\d+)?)"
    r"(?P<times>\s?(?:k|thousand|m|mio|million|bn|billion|tausend|millionen)\b|[百千万亿萬億]{1,4})?",
    re.IGNORECASE,
)
_TIMES = {"k": 1e3, "m": 1e6, "bn": 1e9, "th": 1e3, "ta": 1e3, "mi": 1e6, "bi": 1e9}
_WORD = re.compile(r"[^\W\d_]+")
_GLUED = re.compile(r"(?<=[a-z])(?=\d)", re.IGNORECASE)
_FOLLOWING = re.compile(r"[\s-]?(?:of (?:my|our|the) )?([^\W\d_]{1,50}|[%°\u20ac$\u00a3]\w?)")
_HALF_HOURS = ("点半", "點半", "時半")
# What English has besides the numbers that a library spells. Only a source is read with them.
_MORE = {"twice": 2.0, "thrice": 3.0, "couple": 2.0, "both": 2.0, "dozen": 12.0, "half": 0.5, "quarter": 0.25}
# In words: quatre-cent-quatre-vingt-dix-sept.
_LONGEST_SPELT = 8
# The spellings of each unit. Those with four letters or more, or in another script, may have any ending.
_UNITS = {
    "km": "km kilomet kilómet kilomèt 公里 千米 キロメ",
    "mi": "mi mile miles meile milla 英里 マイル",
    "m": "m meter metre metro mètre 米",
    "ft": "ft feet foot 英尺",
    "in": "inch zoll 英寸 インチ",
    "cm": "cm centim zentim 厘米 センチ",
    "mm": "mm millim 毫米",
    "kg": "kg kilo kilos kilogram 公斤 千克 キロ",
    "g": "g gram 克",
    "mg": "mg milligram 毫克",
    "lb": "lb lbs pounds libras 磅 ポンド",
    "oz": "oz ounce",
    "l": "l liter litre litro 升 リットル",
    "ml": "ml millilit 毫升",
    "gal": "gal gallon",
    "%": "% percent prozent porcent pourcent パーセント",
    "USD": "$ usd dollar dólar bucks 美元 ドル",
    "EUR": "\u20ac eur euro 欧元 ユーロ",
    "GBP": "\u00a3 gbp quid 英镑",
    "CNY": "\u00a5 cny rmb jpy yen yuan 元 块 円 日元 人民币",
    "C": "°c celsius",
    "F": "°f fahrenheit",
    "second": "seconds sekunde segundos secondes 秒",
    "minute": "min minute minuto 分",
    "hour": "h hr hrs hour stunde hora heure 小时 時間",
    "day": "day days tag tage tagen día dias jours 天 日",
    "week": "week woche semana semaine 周 週",
    "month": "month monat mes meses mois 个月 ヶ月 か月",
    "year": "yr yrs year jahr año ans années 岁 歳 年",
}
_SHORTEST_PREFIX, _CJK = 4, re.compile("[\u3040-\u9fff]")
_EXACT = {name: unit for unit, names in _UNITS.items() for name in names.split()}
_PREFIX = {name: unit for name, unit in _EXACT.items() if len(name) >= _SHORTEST_PREFIX or _CJK.match(name)}


class Quantity(NamedTuple):
    """A number, by all that it can mean, with the word that follows, and the unit that this names, or ""."""

    written: str
    values: frozenset[float]
    word: str = ""
    unit: str = ""


def missing_numbers(statement: str, source: str, *, also: Collection[float] = ()) -> list[str]:
    """The numbers of a statement that the source does not have, or that count something else there.

    Numbers may be in digits or in words on either side; those in ``also`` follow from the source.

    >>> missing_numbers("Has 3 cats and 5 dogs, runs 10 miles", "I have three cats. I run 10 km")
    ['5', '10 miles']
    """
    said = quantities(source, language_of(source), with_more=True)
    missing = []
    for one in quantities(statement, language_of(statement)):
        same = [other for other in said if one.values & other.values]
        # One is often not said: "a cat".
        if not same and one.values.isdisjoint({1.0, *also}):
            missing.append(one.written)
        elif same and _counts_something_else(one, same, said):
            missing.append(f"{one.written} {one.word or one.unit}")
    return missing


def has_numbers(text: str) -> bool:
    """Whether a text has a number other than one, in digits or in words."""
    return any(1 not in one.values for one in quantities(text, language_of(text)))


@lru_cache(maxsize=64)
def quantities(text: str, language: str | None, *, with_more: bool = False) -> tuple[Quantity, ...]:
    """The numbers of a text in digits, in Chinese characters, and in the words of a language and of English.

    One is left out in words, where it is also an article. ``with_more`` adds words such as "twice" and "half".
    """
    plain = ascii_digits(text)
    names = names_of_numbers(language or "en")
    found = [Quantity(written, frozenset(values)) for written, values in clock_times(plain, names)]
    # "2.5 million" and 30万 are one number each.
    without_digits = _DIGITS.sub(" ", plain)
    # "python3.12" has the number 3.12; of a statement that is a name.
    without_times = _GLUED.sub(" ", CLOCK.sub(" ", plain)) if with_more else CLOCK.sub(" ", plain)
    found += [*_in_digits(without_times), *_in_characters(without_digits)]
    for code in {language or "en", "en"}:
        names = names_of_numbers(code)
        found += _in_words(without_digits, names | _MORE if with_more else names)
    return tuple(found)


def _in_digits(text: str) -> Iterator[Quantity]:
    for match in _DIGITS.finditer(text):
        times = (match["times"] or "").strip().lower()
        factor = cjk_value(times) if CJK_NUMBER.fullmatch(times) else _TIMES.get(times, _TIMES.get(times[:2], 1.0))
        values = {round(number * factor, 6) + _half_after(text, match.end()) for number in readings(match["number"])}
        yield _quantity(match["number"], values, text, match.end(), sign=match["sign"] or "")


def _in_characters(text: str) -> Iterator[Quantity]:
    for match in CJK_NUMBER.finditer(text):
        value = cjk_value(match.group()) + _half_after(text, match.end())
        yield _quantity(match.group(), {value}, text, match.end())


def _half_after(text: str, place: int) -> float:
    """What 半 adds to an hour: 六点半."""
    return 0.5 if text.startswith(_HALF_HOURS, place) else 0.0


def _in_words(text: str, names: Mapping[str, float]) -> Iterator[Quantity]:
    """The numbers in words, the longest that can be read at each place."""
    words = [match for match in _WORD.finditer(text.lower()) if match.group() != "and"]
    i = 0
    while i < len(words):
        length = next(
            (n for n in range(min(_LONGEST_SPELT, len(words) - i), 0, -1) if _joined(words[i : i + n]) in names), 0
        )
        if length:
            written = _joined(words[i : i + length])
            yield _quantity(written, {names[written]}, text, words[i + length - 1].end())
        i += max(length, 1)


def _joined(words: Sequence[re.Match[str]]) -> str:
    return " ".join(word.group().casefold() for word in words)


def _quantity(written: str, values: Iterable[float], text: str, end: int, sign: str = "") -> Quantity:
    following = _FOLLOWING.match(text, end)
    word = following.group(1).casefold() if following else ""
    word = "" if word in STOP_WORDS else word
    unit = _EXACT.get(sign.strip()) or _unit(word)
    if unit == "%":
        values = {part for value in values for part in (value, value / 100)}
    return Quantity(written, frozenset(values), word, unit)


def _unit(word: str) -> str:
    """The unit that a word names, in one spelling; "" if it is none."""
    return _EXACT.get(word) or next((unit for name, unit in _PREFIX.items() if word.startswith(name)), "")


def _counts_something_else(one: Quantity, same: Sequence[Quantity], said: Sequence[Quantity]) -> bool:
    """Whether the number was said of another unit, or another number was said of what it counts."""
    if one.unit:
        return _has_another_unit(one, same, said)
    if not one.word or any(_is_one_word(one.word, other.word) for other in same):
        return False
    return any(_is_one_word(one.word, other.word) for other in said if not one.values & other.values)


def _has_another_unit(one: Quantity, same: Sequence[Quantity], said: Sequence[Quantity]) -> bool:
    """Whether the number was said of another unit, or of none where another number has this unit."""
    units = {other.unit for other in same}
    if one.unit in units:
        return False
    return units != {""} or any(other.unit == one.unit for other in said)


def _is_one_word(one: str, other: str) -> bool:
    return one == other or are_forms(one, other)
