"""Finds the numbers of a text, in digits or in words, and what they count."""

from __future__ import annotations

import re
import unicodedata
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.grounding.language import language_of
from llama_index_memory_ext.grounding.words import are_forms
from llama_index_memory_ext.search.tokenization import STOP_WORDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

# A number in digits (with thousands and decimals), what stands before it, and a letter that multiplies it.
_DIGITS = re.compile(
    r"(?P<sign>[$\u20ac\u00a3\u00a5]\s?)?(?<![a-zA-Z\d_.])"
    r"(?P<number>\d+(?:[.,'\u2019\u00a0 _]\d{3}(?!\d))*(?:[.,]\d+)?)"
    r"(?P<times>\s?(?:k|thousand|m|mio|million|bn|billion|tausend|millionen)\b|[百千万亿萬億]+)?",
    re.IGNORECASE,
)
_TIMES = {"k": 1e3, "m": 1e6, "bn": 1e9, "th": 1e3, "ta": 1e3, "mi": 1e6, "bi": 1e9}
_CLOCK = re.compile(
    r"(?<![\d:])(?P<hour>[01]?\d|2[0-4])(?:[:.](?P<minute>[0-5]\d))?\s?(?P<half>[ap])\.?m\b\.?"
    r"|(?<![\d:])(?P<hour2>[01]?\d|2[0-4]):(?P<minute2>[0-5]\d)(?!\d)",
    re.IGNORECASE,
)
_CJK_NUMBER = re.compile("[\u3007零一二两兩三四五六七八九十百千万萬亿億\u58f1\u5f10\u53c2]+")
_CJK_DIGITS = {"两": 2, "兩": 2, "\u3007": 0} | {character: i for i, character in enumerate("零一二三四五六七八九")}
_CJK_UNITS = {"十": 10, "百": 100, "千": 1_000}
_CJK_GROUPS = {"万": 10_000, "萬": 10_000, "亿": 10**8, "億": 10**8}
_WORD = re.compile(r"[^\W\d_]+")
# What English has besides the numbers that a library spells. Only a source is read with them.
_MORE = {"twice": 2.0, "couple": 2.0, "both": 2.0, "dozen": 12.0, "half": 0.5, "quarter": 0.25}
_SPELT = (*range(2, 1_000), *range(1_000, 20_000, 1_000), *range(20_000, 100_001, 10_000), 200_000, 500_000, 10**6)
# Their words cannot be told apart without a dictionary; Chinese characters are read by themselves.
_UNSPACED = frozenset({"ja", "ko", "th", "zh"})
_LONGEST_SPELT, _MOST_ORDINAL, _MOST_HALVED = 5, 31, 100
_NOON, _THOUSANDS = 12, 3
# The spellings of each unit. Those with four letters or more, or in another script, may have any ending.
_UNITS = {
    "km": "km kilomet 公里 千米 キロメ",
    "mi": "mi mile miles meile 英里 マイル",
    "m": "m meter metre 米",
    "ft": "ft feet foot",
    "cm": "cm centim zentim 厘米 センチ",
    "kg": "kg kilo kilos kilogram 公斤 千克 キロ",
    "g": "g gram 克",
    "lb": "lb lbs pounds 磅",
    "%": "% percent prozent パーセント",
    "USD": "$ usd dollar bucks 美元 ドル",
    "EUR": "\u20ac eur euro 欧元 ユーロ",
    "GBP": "\u00a3 gbp quid 英镑",
    "CNY": "\u00a5 cny rmb jpy yen yuan 元 块 円 日元 人民币",
    "C": "°c celsius",
    "F": "°f fahrenheit",
    "second": "seconds sekunde 秒",
    "minute": "min minute 分",
    "hour": "h hr hrs hour stunde 小时 時間",
    "day": "day days tage tagen 天 日",
    "week": "week woche 周 週",
    "month": "month monat 个月 ヶ月 か月",
    "year": "yr yrs year jahr 岁 歳 年",
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
    plain = _ascii_digits(text)
    found = [*_clock_times(plain), *_in_digits(_CLOCK.sub(" ", plain)), *_in_characters(plain)]
    for code in {language or "en", "en"}:
        names = _names_of_numbers(code)
        found += _in_words(plain, names | _MORE if with_more else names)
    return tuple(found)


def digits_of(text: str) -> str:
    """The text with its numbers in Chinese characters and in other digits as ASCII digits.

    >>> digits_of("三周后")
    '3周后'
    """
    return _CJK_NUMBER.sub(lambda match: f"{_cjk_value(match.group()):.0f}", _ascii_digits(text))


def _ascii_digits(text: str) -> str:
    return "".join(str(unicodedata.digit(character, character)) for character in unicodedata.normalize("NFKC", text))


def _clock_times(text: str) -> Iterator[Quantity]:
    """Times of the day in hours; those of an afternoon are also had as of 12."""
    for match in _CLOCK.finditer(text):
        hour, minute = int(match["hour"] or match["hour2"]), int(match["minute"] or match["minute2"] or 0)
        is_afternoon = (match["half"] or "").lower() == "p" and hour < _NOON
        hours = {hour, hour + _NOON} if is_afternoon else {hour}
        yield Quantity(match.group(), frozenset(hour + minute / 60 for hour in hours))


def _in_digits(text: str) -> Iterator[Quantity]:
    for match in _DIGITS.finditer(text):
        times = (match["times"] or "").strip().lower()
        factor = _cjk_value(times) if _CJK_NUMBER.fullmatch(times) else _TIMES.get(times, _TIMES.get(times[:2], 1.0))
        values = {round(number * factor, 6) for number in _readings(match["number"])}
        yield _quantity(match["number"], values, text[match.end() :], sign=match["sign"] or "")


def _readings(number: str) -> list[float]:
    """What a number can mean: 1.200,50 and 1,200.50 are the same, and 1.200 is either 1.2 or 1200."""
    plain = re.sub(r"['\u2019\u00a0 _]", "", number)
    marks = re.findall(r"[.,]", plain)
    if not marks:
        return [float(plain)]
    whole, last = re.sub(r"[.,]", "", plain[: plain.rindex(marks[-1])]), plain[plain.rindex(marks[-1]) + 1 :]
    as_decimal, as_thousands = float(f"{whole}.{last}"), float(f"{whole}{last}")
    if len(set(marks)) > 1 or len(last) != _THOUSANDS:
        return [as_decimal]
    return [as_thousands] if len(marks) > 1 else [as_thousands, as_decimal]


def _in_characters(text: str) -> Iterator[Quantity]:
    for match in _CJK_NUMBER.finditer(text):
        half = 0.5 if text[match.end() : match.end() + 2] in {"点半", "時半"} else 0.0
        value = _cjk_value(match.group()) + half
        yield _quantity(match.group(), {value}, text[match.end() :])


def _cjk_value(characters: str) -> float:
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
            yield _quantity(written, {names[written]}, text[words[i + length - 1].end() :])
        i += max(length, 1)


def _joined(words: Sequence[re.Match[str]]) -> str:
    return " ".join(word.group() for word in words)


@lru_cache(maxsize=8)
def _names_of_numbers(language: str) -> dict[str, float]:
    """The values of the numbers that a language spells; {} for one that is not known."""
    # Imported here, because it is needed in the background alone.
    from num2words import CONVERTER_CLASSES, num2words  # type: ignore[import-untyped]

    names: dict[str, float] = {}
    for number in _SPELT if language in CONVERTER_CLASSES and language not in _UNSPACED else ():
        for form in ("cardinal", "ordinal") if number <= _MOST_ORDINAL else ("cardinal",):
            # Some languages lack a form, and fail in ways of their own.
            with suppress(Exception):
                words = re.findall(r"[^\W\d_]+", num2words(number, lang=language, to=form).casefold())
                names.setdefault(" ".join(word for word in words if word != "and"), float(number))
    if language == "en":
        ones = {name.removeprefix("one "): value for name, value in names.items() if name.startswith("one ")}
        names |= {f"a {name}": value for name, value in ones.items()} | ones
        names |= {f"half a {name}": value / 2 for name, value in ones.items()}
        names |= {f"{name} a half": value + 0.5 for name, value in names.items() if value < _MOST_HALVED}
    return names


def _quantity(written: str, values: Iterable[float], rest: str, sign: str = "") -> Quantity:
    following = re.match(r"[\s-]?(?:of (?:my|our|the) )?([^\W\d_]+|[%°\u20ac$\u00a3]\w?)", rest)
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
        units = {other.unit for other in same}
        if one.unit in units:
            return False
        return units != {""} or any(other.unit == one.unit for other in said)
    if not one.word or any(_is_one_word(one.word, other.word) for other in same):
        return False
    return any(_is_one_word(one.word, other.word) for other in said if not one.values & other.values)


def _is_one_word(one: str, other: str) -> bool:
    return one == other or are_forms(one, other)
