"""Reads the numbers of a text, in digits or in words, and what they count."""

from __future__ import annotations

import re
import unicodedata
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.language import pattern, phrases, word_lists
from llama_index_memory_ext.language.detection import language_of
from llama_index_memory_ext.language.words import STOP_WORDS, are_forms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence


_CJK_DIGITS = {"两": 2, "兩": 2, "\u3007": 0} | {character: i for i, character in enumerate("零一二三四五六七八九")}
_CJK_UNITS = {"十": 10, "百": 100, "千": 1_000}
_CJK_GROUPS = {"万": 10_000, "萬": 10_000, "亿": 10**8, "億": 10**8}
# Hours to add to the hour that follows, or to the one that is said: "half past six", "halb sieben".
_SPOKEN = {"half past": 0.5, "quarter past": 0.25, "quarter to": -0.25, "halb": -0.5, "viertel nach": 0.25}
_SPOKEN |= {"viertel vor": -0.25, "dreiviertel": -0.25}
_NOON, _THOUSANDS, _MOST_DIGITS = 12, 3, 30
_SPELT = (*range(2, 1_000), *range(1_000, 20_000, 1_000), *range(20_000, 100_001, 10_000), 200_000, 500_000, 10**6)
_MOST_ORDINAL, _MOST_HALVED = 31, 100
# Their words cannot be told apart without a dictionary; Chinese characters are read by themselves.
_UNSPACED = frozenset({"ja", "ko", "th", "zh"})
# Ordinals are inflected: der vierte, im vierten; el tercero, la tercera.
_ORDINAL_ENDINGS = {"e": ("en", "er", "es", "em"), "o": ("a",)}


def digits_of(text: str) -> str:
    """Return the text with its numbers in Chinese characters and in other digits as ASCII digits.

    >>> digits_of("三周后")
    '3周后'
    """
    return phrases("numbers", "chinese").sub(lambda match: f"{cjk_value(match.group()):.0f}", ascii_digits(text))


def ascii_digits(text: str) -> str:
    """Return the text in the normal form NFKC, with the digits of all scripts as ASCII digits."""
    return "".join(str(unicodedata.digit(character, character)) for character in unicodedata.normalize("NFKC", text))


def clock_times(text: str, names: Mapping[str, float]) -> Iterator[tuple[str, set[float]]]:
    """Yield times of the day as they are written, in hours; those of an afternoon are also had as of 12."""
    for match in phrases("numbers", "clock").finditer(text):
        time = int(match["hour"]) + int(match["minute"] or 0) / 60
        is_afternoon = match["half"] in ("p", "P") and time < _NOON
        yield match.group(), {time, time + _NOON} if is_afternoon else {time}
    for match in phrases("numbers", "spoken_clock").finditer(text):
        said = match[2].lower()
        spoken = float(said) if said.isdigit() else names.get(said, 1.0 if said in ("one", "eins") else 0.0)
        if 0 < spoken <= _NOON:
            time = spoken + _SPOKEN[match[1].lower()]
            yield match.group(), {time, time + _NOON}


def readings(number: str) -> list[float]:
    """Return what a number can mean: 1.200,50 and 1,200.50 are the same, and 1.200 is either 1.2 or 1200."""
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
    """Return the value of a number in Chinese characters: 三百五十 is 350, 两万 is 20000, and 二〇二三 is 2023."""
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
    """Return the values of the numbers that a language spells, without "and"; {} for one that is not known."""
    # Imported here, because it is needed in the background alone.
    from num2words import CONVERTER_CLASSES, num2words  # type: ignore[import-untyped]

    names: dict[str, float] = {}
    for number in _SPELT if language in CONVERTER_CLASSES and language not in _UNSPACED else ():
        for form in ("cardinal", "ordinal") if number <= _MOST_ORDINAL else ("cardinal",):
            # Some languages lack a form, and fail in ways of their own.
            with suppress(Exception):
                spelt = num2words(number, lang=language, to=form).casefold()
                name = " ".join(word for word in re.findall(_WORD, spelt) if word != "and")
                names.setdefault(name, float(number))
                for ending in _ORDINAL_ENDINGS.get(name[-1:], ()) if form == "ordinal" else ():
                    names.setdefault(name[:-1] + ending, float(number))
    return names | _more_in_english(names) if language == "en" else names


def _more_in_english(names: Mapping[str, float]) -> dict[str, float]:
    """Return the names of a hundred, half a million, two and a half, two and a half million."""
    halved = {f"{name} a half": value + 0.5 for name, value in names.items() if value < _MOST_HALVED}
    more = dict(halved)
    # The thirties, of a life or of a century.
    more |= {f"{name.removesuffix('y')}ies": value for name, value in names.items() if value in _TENS}
    for one, times in (("hundred", 100.0), ("thousand", 1e3), ("million", 1e6)):
        more |= {one: times, f"a {one}": times, f"half a {one}": times / 2}
        more |= {f"{name} {one}": value * times for name, value in halved.items()}
    return more


_TIMES = {"k": 1e3, "m": 1e6, "bn": 1e9, "th": 1e3, "ta": 1e3, "mi": 1e6, "bi": 1e9}
# What English has besides the numbers that a library spells. Only a source is read with them.
_MORE = {"twice": 2.0, "thrice": 3.0, "couple": 2.0, "both": 2.0, "dozen": 12.0, "half": 0.5, "quarter": 0.25}
_MORE |= {"pair": 2.0, "twins": 2.0, "triplets": 3.0, "every other": 2.0, "an hour a half": 1.5}
_TENS = range(20, 100, 10)
# In words: quatre-cent-quatre-vingt-dix-sept.
_LONGEST_SPELT, _WORD = 8, r"[^\W\d_]+"
_SHORTEST_PREFIX, _CJK = 4, "[\u3040-\u9fff]"


class Quantity(NamedTuple):
    """A number, by all that it can mean, with the word that follows, and the unit that this names, or ""."""

    written: str
    values: frozenset[float]
    word: str = ""
    unit: str = ""


def missing_numbers(statement: str, source: str, *, also: Collection[float] = ()) -> list[str]:
    """Return the numbers of a statement that the source does not have, or that count something else there.

    Numbers may be in digits or in words on either side; those in ``also`` follow from the source.

    >>> missing_numbers("Has 3 cats and 5 dogs, runs 10 miles", "I have three cats. I run 10 km")
    ['5', '10 miles']
    """
    named, missing = quantities(statement, language_of(statement)), list[str]()
    said = quantities(source, language_of(source), with_more=True) if named else ()
    for one in named:
        same = [other for other in said if one.values & other.values]
        # One is often not said: "a cat".
        if not same and one.values.isdisjoint({1.0, *also}):
            missing.append(one.written)
        elif same and _counts_something_else(one, same, [other for other in said if other not in same]):
            missing.append(f"{one.written} {one.word or one.unit}")
    return missing


def _counts_something_else(one: Quantity, same: Sequence[Quantity], others: Sequence[Quantity]) -> bool:
    """Return whether the number was said of another unit, or another number was said of what it counts."""
    if one.unit:
        units = {other.unit for other in same}
        return one.unit not in units and (units != {""} or one.unit in {other.unit for other in others})
    if not one.word or any(are_forms(one.word, other.word) for other in same):
        return False
    return any(are_forms(one.word, other.word) for other in others)


def has_numbers(text: str) -> bool:
    """Return whether a text has a number other than one, in digits or in words."""
    return any(1 not in one.values for one in quantities(text, language_of(text)))


@lru_cache(maxsize=64)
def quantities(text: str, language: str | None, *, with_more: bool = False) -> tuple[Quantity, ...]:
    """Return the numbers of a text in digits, in Chinese characters, and in the words of a language and of English.

    One is left out in words, where it is also an article. ``with_more`` adds words such as "twice" and "half".
    """
    plain = ascii_digits(text)
    names = names_of_numbers(language or "en")
    found = [Quantity(written, frozenset(values)) for written, values in clock_times(plain, names)]
    without_times = phrases("numbers", "clock").sub(" ", plain)
    if with_more:
        # "python3.12" has the number 3.12; of a statement that is a name.
        without_times = re.sub(r"(?i)(?<=[a-z])(?=\d)", " ", without_times)
    for match in phrases("numbers", "digits").finditer(without_times):
        times = (match["times"] or "").strip().lower()
        is_chinese = phrases("numbers", "chinese").fullmatch(times)
        factor = cjk_value(times) if is_chinese else _TIMES.get(times, _TIMES.get(times[:2], 1.0))
        values = [round(number * factor, 6) for number in readings(match["number"])]
        found.append(_quantity(match["number"], values, without_times, match.end(), match["sign"] or ""))
    # "2.5 million" and 30万 are one number each.
    without_digits = phrases("numbers", "digits").sub(" ", plain)
    found += (
        _quantity(match.group(), [cjk_value(match.group())], without_digits, match.end())
        for match in phrases("numbers", "chinese").finditer(without_digits)
    )
    for code in {language or "en", "en"}:
        found += _in_words(without_digits, *_read_names(code, with_more=with_more))
    return tuple(found)


@lru_cache(maxsize=16)
def _read_names(language: str, *, with_more: bool) -> tuple[Mapping[str, float], frozenset[str]]:
    """Return the names that are read, and their first words: at most places of a text none begins."""
    names = names_of_numbers(language) | (_MORE if with_more else {})
    return names, frozenset(name.partition(" ")[0] for name in names)


def _in_words(text: str, names: Mapping[str, float], beginnings: frozenset[str]) -> Iterator[Quantity]:
    """Yield the numbers in words, the longest that can be read at each place."""
    found = [match for match in pattern(_WORD).finditer(text.lower()) if match.group() != "and"]
    words, i = [match.group().casefold() for match in found], 0
    while i < len(words):
        most = min(_LONGEST_SPELT, len(words) - i) if words[i] in beginnings else 0
        length = next((one for one in range(most, 0, -1) if " ".join(words[i : i + one]) in names), 0)
        if length:
            written = " ".join(words[i : i + length])
            yield _quantity(written, [names[written]], text, found[i + length - 1].end())
        i += length or 1


def _quantity(written: str, values: Iterable[float], text: str, end: int, sign: str = "") -> Quantity:
    # An hour: 六点半.
    values = [value + 0.5 * text.startswith(("点半", "點半", "時半"), end) for value in values]
    following = phrases("numbers", "following").match(text, end)
    word = following.group(1).casefold() if following else ""
    word = "" if word in STOP_WORDS else word
    unit = _unit(sign.strip()) or _unit(word)
    if unit == "%":
        values += [value / 100 for value in values]
    return Quantity(written, frozenset(values), word, unit)


@lru_cache(maxsize=1_000)
def _unit(word: str) -> str:
    """Return the unit that a word names, in one spelling; "" if it is none."""
    units = {name: unit for unit, *names in word_lists("units")[""] for name in names}
    long = (name for name in units if len(name) >= _SHORTEST_PREFIX or pattern(_CJK).match(name))
    return units.get(word) or next((units[name] for name in long if word.startswith(name)), "")
