"""The numbers and dates of a statement: in its source, or derived from the day of the conversation."""

from __future__ import annotations

import re
import unicodedata
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from functools import cache, lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index_memory_ext.words import (
    STOP_WORDS,
    are_forms,
    language_of,
    pattern,
    phrases,
    script_of,
    word_lists,
)
from llama_index_memory_ext.words.dates import DateMention, Day, dates_in, period_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence


# ---- numbers, in digits or in words, and the units that they count ----

_TEN = 10
# Four digits are a group in Chinese: 万 is 10,000.
_GROUP = 10_000
# It is no name of a number, because it is also an article.
_ONE = {"one": 1.0, "eins": 1.0}
_NOON = 12
_THOUSANDS_DIGITS = 3
_MOST_DIGITS = 30
# The numbers whose names are read in every language that num2words spells.
_SPELT_NUMBERS = (
    *range(2, 1_000),
    *range(1_000, 20_000, 1_000),
    *range(20_000, 100_001, 10_000),
    200_000,
    500_000,
    10**6,
)
_MOST_ORDINAL = 31
_MOST_HALVED = 100
# The words of these languages cannot be told apart without a dictionary. Chinese
# characters are read by ``cjk_value``.
_UNSPACED = frozenset({"ja", "ko", "th", "zh"})
# Ordinals are inflected: der vierte, im vierten; el tercero, la tercera.
_ORDINAL_ENDINGS = {"e": ("en", "er", "es", "em"), "o": ("a",)}


def digits_of(text: str) -> str:
    """Return the text with all its numbers in ASCII digits, Chinese numbers included.

    >>> digits_of("三周后")
    '3周后'
    """
    return phrases("numbers", "chinese").sub(
        lambda match: f"{cjk_value(match.group()):.0f}", ascii_digits(text)
    )


def ascii_digits(text: str) -> str:
    """Return the text in the normal form NFKC, with the digits of all scripts as ASCII."""
    return "".join(
        str(unicodedata.digit(character, character))
        for character in unicodedata.normalize("NFKC", text)
    )


def readings(number: str) -> list[float]:
    """Return the possible values of a number in digits.

    1.200,50 and 1,200.50 are the same number. 1.200 is either 1.2 or 1200.
    """
    plain = re.sub(r"['\u2019\u00a0 _]", "", number)[:_MOST_DIGITS]
    *groups, last_digits = re.split(r"[.,]", plain)
    if not groups:
        return [float(plain)]
    whole = "".join(groups)
    as_decimal = float(f"{whole}.{last_digits}")
    as_thousands = float(f"{whole}{last_digits}")
    has_both_marks = "." in plain and "," in plain
    if has_both_marks or len(last_digits) != _THOUSANDS_DIGITS:
        return [as_decimal]
    if len(groups) > 1:
        return [as_thousands]
    return [as_thousands, as_decimal]


def cjk_value(characters: str) -> float:
    """Return the value of a number in Chinese characters.

    三百五十 is 350, 两万 is 20000, and 二〇二三 is 2023.
    """
    # Unicode gives the value of each character but 两.
    values = [unicodedata.numeric(character, 2.0) for character in characters]
    if max(values) < _TEN:
        return float("".join(f"{value:.0f}" for value in values))
    total = 0.0
    group = 0.0
    digit = 0.0
    for value in values:
        if value < _TEN:
            digit = value
        elif value < _GROUP:
            group += (digit or 1) * value
            digit = 0
        else:
            total = (total + group + digit or 1) * value
            group = 0
            digit = 0
    return total + group + digit


@lru_cache(maxsize=8)
def names_of_numbers(language: str) -> dict[str, float]:
    """Return the values of the number words of a language, without "and".

    {} for a language that num2words does not spell.
    """
    # Imported at first use, because only background jobs need it.
    from num2words import CONVERTER_CLASSES  # type: ignore[import-untyped]

    names: dict[str, float] = {}
    if language in CONVERTER_CLASSES and language not in _UNSPACED:
        for number in _SPELT_NUMBERS:
            for name in _names_of_number(number, language):
                names.setdefault(name, float(number))
    if language == "en":
        names |= _more_in_english(names)
    return names


def _names_of_number(number: int, language: str) -> Iterator[str]:
    """Yield the cardinal of a number and, up to 31, its ordinal in all inflections."""
    from num2words import num2words

    forms = ["cardinal"]
    if number <= _MOST_ORDINAL:
        forms.append("ordinal")
    for form in forms:
        # Some languages lack a form, and raise errors of many kinds.
        with suppress(Exception):
            spelt = num2words(number, lang=language, to=form).casefold()
            words = re.findall(_WORD, spelt)
            name = " ".join(word for word in words if word != "and")
            yield name
            if form == "ordinal":
                for ending in _ORDINAL_ENDINGS.get(name[-1:], ()):
                    yield name[:-1] + ending


def _more_in_english(names: Mapping[str, float]) -> dict[str, float]:
    """Return names such as "a hundred", "half a million", "two and a half", "thirties"."""
    halved = {
        f"{name} a half": value + 0.5
        for name, value in names.items()
        if value < _MOST_HALVED
    }
    more = dict(halved)
    # The thirties, of a life or of a century.
    for name, value in names.items():
        if value in _TENS:
            more[f"{name.removesuffix('y')}ies"] = value
    for power, factor in (("hundred", 100.0), ("thousand", 1e3), ("million", 1e6)):
        more[power] = factor
        more[f"a {power}"] = factor
        more[f"half a {power}"] = factor / 2
        for name, value in halved.items():
            more[f"{name} {power}"] = value * factor
    return more


_TENS = range(20, 100, 10)
# In words: quatre-cent-quatre-vingt-dix-sept.
_LONGEST_SPELT = 8
_WORD = r"[^\W\d_]+"
_SHORTEST_PREFIX = 4
_CJK = "[\u3040-\u9fff]"


@cache
def _values_of(section: str) -> dict[str, float]:
    """Return the value of each name in a section of ``numbers.txt``."""
    values = {}
    for value, *names in word_lists("numbers")[section]:
        for name in names:
            values[name.replace("_", " ")] = float(value)
    return values


class Quantity(NamedTuple):
    """A number of a text.

    ``written``: as the text has it. ``values``: its possible values. ``word``: the word
    behind it, or "". ``unit``: the unit that sign or word names, or "".
    """

    written: str
    values: frozenset[float]
    word: str = ""
    unit: str = ""


def missing_numbers(
    statement: str, source: str, *, derived: Collection[float] = ()
) -> list[str]:
    """Return the numbers of a statement that the source lacks or uses for something else.

    Numbers may be in digits or in words on either side. ``derived`` are numbers that
    follow from the source.

    >>> missing_numbers("Has 3 cats and 5 dogs, runs 10 miles", "I have three cats. I run 10 km")
    ['5', '10 miles']
    """
    stated = quantities(statement, language_of(statement))
    evidence: Sequence[Quantity] = ()
    if stated:
        evidence = quantities(source, language_of(source), with_more=True)
    missing = []
    for quantity in stated:
        equal = [entry for entry in evidence if quantity.values & entry.values]
        # "One" is often not said: "a cat".
        if not equal and quantity.values.isdisjoint({1.0, *derived}):
            missing.append(quantity.written)
        elif equal and _counts_something_else(quantity, equal, evidence):
            missing.append(f"{quantity.written} {quantity.word or quantity.unit}")
    return missing


def _counts_something_else(
    quantity: Quantity, equal: Sequence[Quantity], evidence: Sequence[Quantity]
) -> bool:
    """Return whether the source contradicts the unit or the counted word of a quantity.

    ``equal`` has the entries of the evidence that have an equal value.
    """
    if quantity.unit:
        units = {entry.unit for entry in equal}
        is_used = any(entry.unit == quantity.unit for entry in evidence)
        return quantity.unit not in units and (units != {""} or is_used)

    def counts_it(entry: Quantity) -> bool:
        return are_forms(quantity.word, entry.word)

    is_same = not quantity.word or any(map(counts_it, equal))
    return not is_same and any(map(counts_it, evidence))


def has_numbers(text: str) -> bool:
    """Return whether a text has a number other than one, in digits or in words."""
    return any(1 not in entry.values for entry in quantities(text, language_of(text)))


@lru_cache(maxsize=64)
def quantities(
    text: str, language: str | None, *, with_more: bool = False
) -> tuple[Quantity, ...]:
    """Return the numbers of a text: times, digits, Chinese characters, then words.

    Number words are read in ``language`` and in English. The word "one" is left out,
    because it is also an article. ``with_more`` adds words such as "twice" and "half".
    """
    plain = ascii_digits(text)
    names = names_of_numbers(language or "en")
    entries = [*_clock_times(plain, names)]
    without_times = phrases("numbers", "clock").sub(" ", plain)
    if with_more:
        # In a source "python3.12" has the number 3.12; in a statement it is a name.
        without_times = re.sub(r"(?i)(?<=[a-z])(?=\d)", " ", without_times)
    entries += _in_digits(without_times)
    # "2.5 million" and 30万 are one number each, so digits are removed first.
    without_digits = phrases("numbers", "digits").sub(" ", plain)
    for match in phrases("numbers", "chinese").finditer(without_digits):
        value = cjk_value(match.group())
        entries.append(_quantity(match.group(), [value], without_digits, match.end()))
    for code in {language or "en", "en"}:
        values = names_of_numbers(code)
        if with_more:
            values = values | _values_of("more_words")
        entries += _in_words(without_digits, values)
    return tuple(entries)


def _clock_times(text: str, names: Mapping[str, float]) -> Iterator[Quantity]:
    """Yield the times of the day in a text; ``names`` are the values of number words.

    A time that may be in the afternoon has two values: 3 and 15.
    """
    for match in phrases("numbers", "clock").finditer(text):
        hour = int(match["hour"]) + int(match["minute"] or 0) / 60
        hours = {hour}
        if match["half"] in ("p", "P") and hour < _NOON:
            hours.add(hour + _NOON)
        yield Quantity(match.group(), frozenset(hours))
    for match in phrases("numbers", "spoken_clock").finditer(text):
        word = match[2].lower()
        values = {**_ONE, **names}
        spoken_hour = float(word) if word.isdigit() else values.get(word, 0.0)
        if 0 < spoken_hour <= _NOON:
            hour = spoken_hour + _values_of("hours")[match[1].lower()]
            yield Quantity(match.group(), frozenset({hour, hour + _NOON}))


def _in_digits(text: str) -> Iterator[Quantity]:
    """Yield the numbers in digits, multiplied by the suffix behind them: 3k, 30万."""
    for match in phrases("numbers", "digits").finditer(text):
        multiplier = (match["times"] or "").strip().lower()
        if phrases("numbers", "chinese").fullmatch(multiplier):
            factor = cjk_value(multiplier)
        else:
            factors = _values_of("factors")
            factor = factors.get(multiplier, factors.get(multiplier[:2], 1.0))
        values = [round(number * factor, 6) for number in readings(match["number"])]
        sign = match["sign"] or ""
        yield _quantity(match["number"], values, text, match.end(), sign)


def _in_words(text: str, values: Mapping[str, float]) -> Iterator[Quantity]:
    """Yield the numbers in words, the longest that can be read at each place."""
    candidates = pattern(_WORD).finditer(text.lower())
    matches = [match for match in candidates if match.group() != "and"]
    words = [match.group().casefold() for match in matches]
    start = 0
    while start < len(words):
        end = min(start + _LONGEST_SPELT, len(words))
        while end > start and " ".join(words[start:end]) not in values:
            end -= 1
        if end > start:
            written = " ".join(words[start:end])
            yield _quantity(written, [values[written]], text, matches[end - 1].end())
        start = max(end, start + 1)


def _quantity(
    written: str, values: Sequence[float], text: str, end: int, sign: str = ""
) -> Quantity:
    """Return a number that ends at ``end``, with the word and the unit behind it."""
    possible = list(values)
    # Half past an hour: 六点半.
    if text.startswith(("点半", "點半", "時半"), end):
        possible = [value + 0.5 for value in possible]
    following = phrases("numbers", "following").match(text, end)
    word = following.group(1).casefold() if following else ""
    if word in STOP_WORDS:
        word = ""
    unit = _unit_of(sign.strip()) or _unit_of(word)
    if unit == "%":
        possible += [value / 100 for value in possible]
    return Quantity(written, frozenset(possible), word, unit)


@lru_cache(maxsize=1_000)
def _unit_of(word: str) -> str:
    """Return the unit that a word names, in one spelling; "" if it names none."""
    units = {}
    for unit, *names in word_lists("units")[""]:
        units.update(dict.fromkeys(names, unit))
    if word in units:
        return units[word]
    for name, unit in units.items():
        is_prefix = len(name) >= _SHORTEST_PREFIX or pattern(_CJK).match(name)
        if is_prefix and word.startswith(name):
            return unit
    return ""


# ---- dates ----

_WORD_OR_NUMBER = r"[^\W_]+"
# A source is searched for relative dates in this many words, or characters of a script
# without spaces, and in pieces of at most these lengths.
_MOST_READ = 100
_MOST_WORD_OR_NUMBERS = 4
_MOST_CHARACTERS = 5
# Numbers of years that may be an age or a duration.
_YEARS = frozenset(range(1, 121))


def missing_dates(statement: str, source: str, said_on: date) -> list[str]:
    """Return the dates of a statement that neither stand in the source nor follow from it.

    ``said_on`` is the day of the conversation.

    >>> missing_dates("Has an exam on 2025-12-11, a Friday", "My exam is in three weeks", date(2025, 11, 20))
    ['Friday']
    """
    missing: Sequence[DateMention] = _mentions_in(statement)
    # The days are derived only if there is a date that is not in the source.
    for days in (_days_in(source), _derived_days(statement, source, said_on)):
        if missing:
            missing = _without_evidence(missing, days, said_on)
    return [statement[entry.start : entry.end].strip(" ,.") for entry in missing]


def _days_in(text: str) -> Iterator[Day]:
    for entry in _mentions_in(text):
        yield from entry.readings


def _without_evidence(
    dates: Iterable[DateMention], evidence: Iterable[Day], said_on: date
) -> list[DateMention]:
    """Return the dates of which no reading fits a day of the evidence."""
    days = set(evidence)
    missing = []
    for entry in dates:
        pairs = product(entry.readings, days)
        if not any(_fits(stated, day, said_on) for stated, day in pairs):
            missing.append(entry)
    return missing


def without_dates(text: str) -> str:
    """Return the text with a space for each date, also for a year, a month or a weekday alone.

    >>> without_dates("Has 3 exams in May 2026")
    'Has 3 exams in  '
    """
    for entry in reversed(_mentions_in(text)):
        text = f"{text[: entry.start]} {text[entry.end :]}"
    return text


def _mentions_in(text: str) -> tuple[DateMention, ...]:
    return dates_in(text, language_of(text) or "en")


def _derived_days(statement: str, source: str, said_on: date) -> Iterator[Day]:
    """Yield the days that follow from a source, by kind of expression."""
    code = language_of(source) or language_of(f"{statement} {source}") or "en"
    yield from _from_years(source, code, said_on)
    yield from _from_days_of_month(source, said_on)
    for match in phrases("calendar", "year_end").finditer(source):
        yield Day(int(match["y"] or match["y2"]), 12, 31)
    yield from _from_feasts(source, said_on)
    for text in _relative_parts(source):
        for day, period in _parse_relative(text, code, said_on):
            yield from _days_meant(text, code, day, period)


def _from_years(source: str, code: str, said_on: date) -> Iterator[Day]:
    """Yield the years and months that a number of years leads to: "for five years"."""
    months = {day.month for day in _days_in(source) if day.month}
    numbers = set[float]()
    for quantity in quantities(source, code, with_more=True):
        numbers |= quantity.values & _YEARS
    for number in numbers:
        year = said_on.year - int(number)
        yield Day(year)
        yield Day(year, said_on.month)
        # A user who turns 40 in May was born 40 years before that May, which may be
        # next year's.
        for month in months:
            yield Day(year, month)
            yield Day(year + 1, month)


def _from_days_of_month(source: str, said_on: date) -> Iterator[Day]:
    """Yield "on the 3rd" in the month before, this month and the next."""
    this_month = said_on.year * 12 + said_on.month - 1
    for match in phrases("calendar", "day_of_month").finditer(source):
        for shift in (-1, 0, 1):
            year, month = divmod(this_month + shift, 12)
            yield Day(year, month + 1, int(match["d"] or match["d2"]))


def _from_feasts(source: str, said_on: date) -> Iterator[Day]:
    """Yield the feasts that a source names, in the year before, this year and the next."""
    folded = source.casefold().replace("new year", "newyear").replace("'s", "")
    words = set(pattern(_WORD_OR_NUMBER).findall(folded))
    for month, day, *names in word_lists("calendar")["feasts"]:
        # Names in scripts without spaces may stand inside a longer word.
        unspaced = [name for name in names if not name.isascii() and name in folded]
        if unspaced or not words.isdisjoint(names):
            for shift in (-1, 0, 1):
                yield Day(said_on.year + shift, int(month), int(day))


def _days_meant(text: str, code: str, day: date, period: str) -> list[Day]:
    """Return the days that a relative date may mean.

    A year and a month are one entry each. "Next week" means each of its days, and "next
    Friday" that Friday or the Friday after it.
    """
    if period == "year":
        return [Day(day.year)]
    if period == "month":
        return [Day(day.year, day.month)]
    dates = [day]
    if period == "week" and not quantities(text, code):
        monday = day - timedelta(days=day.weekday())
        dates = [monday + timedelta(days=shift) for shift in range(7)]
    elif " " in text and any(
        entry.readings[0].weekday is not None for entry in _mentions_in(text)
    ):
        dates.append(day + timedelta(weeks=1))
    return [Day(date.year, date.month, date.day, date.weekday()) for date in dates]


def _relative_parts(source: str) -> Iterator[str]:
    """Yield the parts of a source that may be relative dates."""
    plain = digits_of(source)
    if script_of(source) == "cjk":
        for start in range(min(len(plain), _MOST_READ)):
            for length in range(2, _MOST_CHARACTERS + 1):
                yield plain[start : start + length]
        return
    words = pattern(_WORD_OR_NUMBER).findall(plain)[:_MOST_READ]
    for start in range(len(words)):
        for length in range(1, _MOST_WORD_OR_NUMBERS + 1):
            text = " ".join(words[start : start + length])
            if not text.isdigit():
                yield text


@lru_cache(maxsize=4_096)
def _parse_relative(text: str, code: str, said_on: date) -> list[tuple[date, str]]:
    """Return the days that a relative date may mean, each with its precision.

    The precision is "day", "week", "month" or "year". [] for a text that is no date.
    """
    days = []
    for parser in _parsers(code, said_on):
        data = parser.get_date_data(text)
        if data.date_obj is not None:
            days.append((data.date_obj.date(), data.period))
    return days


@lru_cache(maxsize=8)
def _parsers(code: str, said_on: date) -> list[Any]:
    # Imported at first use, because only background jobs need it.
    from dateparser.data.languages_info import language_order  # type: ignore[import-untyped]
    from dateparser.date import DateDataParser  # type: ignore[import-untyped]

    codes = [name for name in dict.fromkeys((code, "en")) if name in language_order]
    midnight = datetime.combine(said_on, time())
    settings = {"RELATIVE_BASE": midnight, "RETURN_AS_TIMEZONE_AWARE": False}
    return [
        DateDataParser(
            languages=codes, settings={**settings, "PREFER_DATES_FROM": side}
        )
        for side in ("past", "future")
    ]


def _fits(stated: Day, evidence: Day, said_on: date) -> bool:
    """Return whether each stated part of a date agrees with a day of the evidence.

    A day without a year may be in the year before ``said_on``, the same or the next.
    """
    if evidence.day and evidence.weekday is None:
        period = period_of(evidence)
        if period:
            evidence = evidence._replace(weekday=period.start.weekday())
    year = stated.year
    if evidence.year is None and year is not None and abs(year - said_on.year) <= 1:
        evidence = evidence._replace(year=year)
    parts = zip(stated, evidence, strict=True)
    return all(part is None or part == evidence_part for part, evidence_part in parts)


def ages_in(source: str, said_on: date) -> set[float]:
    """Return the ages to which the years of a source lead.

    A user who was born in 1990 is 34 or 35 in 2025.
    """
    ages = set()
    for day in _days_in(source):
        if day.year:
            age = float(said_on.year - day.year)
            ages |= {age, age - 1}
    return ages
