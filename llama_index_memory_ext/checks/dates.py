"""Dates of a statement: in the source, or derived from the day of the conversation."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.checks.numbers import digits_of, quantities
from llama_index_memory_ext.words import (
    language_of,
    pattern,
    phrases,
    script_of,
    word_lists,
)
from llama_index_memory_ext.words.dates import DateMention, Day, dates_in, period_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


_WORD = r"[^\W_]+"
# A source is searched for relative dates in this many words, or characters of a script
# without spaces, and in pieces of at most these lengths.
_MOST_READ = 100
_MOST_WORDS = 4
_MOST_CHARACTERS = 5
# Numbers of years that may be an age or a duration.
_YEARS = frozenset(range(1, 121))


def missing_dates(statement: str, source: str, said_on: date) -> list[str]:
    """Return the dates of a statement that neither stand in the source nor follow from it.

    ``said_on`` is the day of the conversation.

    >>> missing_dates("Has an exam on 2025-12-11, a Friday", "My exam is in three weeks", date(2025, 11, 20))
    ['Friday']
    """
    missing: Sequence[DateMention] = _read(statement)
    # The days are derived only if there is a date that is not in the source.
    for days in (_days_in(source), _derived_days(statement, source, said_on)):
        if missing:
            missing = _without_evidence(missing, days, said_on)
    return [statement[entry.start : entry.end].strip(" ,.") for entry in missing]


def _days_in(text: str) -> Iterator[Day]:
    for entry in _read(text):
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
    for entry in reversed(_read(text)):
        text = f"{text[: entry.start]} {text[entry.end :]}"
    return text


def _read(text: str) -> tuple[DateMention, ...]:
    return dates_in(text, language_of(text) or "en")


def _derived_days(statement: str, source: str, said_on: date) -> Iterator[Day]:
    """Yield the days that follow from a source, by kind of expression."""
    code = language_of(source) or language_of(f"{statement} {source}") or "en"
    yield from _from_years(source, code, said_on)
    yield from _from_days_of_month(source, said_on)
    for match in phrases("calendar", "year_end").finditer(source):
        yield Day(int(match["y"] or match["y2"]), 12, 31)
    yield from _from_feasts(source, said_on)
    for text in _relative(source):
        for day, period in _parsed(text, code, said_on):
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
    words = set(pattern(_WORD).findall(folded))
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
        entry.readings[0].weekday is not None for entry in _read(text)
    ):
        dates.append(day + timedelta(weeks=1))
    return [Day(date.year, date.month, date.day, date.weekday()) for date in dates]


def _relative(source: str) -> Iterator[str]:
    """Yield the parts of a source that may be relative dates."""
    plain = digits_of(source)
    if script_of(source) == "cjk":
        for start in range(min(len(plain), _MOST_READ)):
            for length in range(2, _MOST_CHARACTERS + 1):
                yield plain[start : start + length]
        return
    words = pattern(_WORD).findall(plain)[:_MOST_READ]
    for start in range(len(words)):
        for length in range(1, _MOST_WORDS + 1):
            text = " ".join(words[start : start + length])
            if not text.isdigit():
                yield text


@lru_cache(maxsize=4_096)
def _parsed(text: str, code: str, said_on: date) -> list[tuple[date, str]]:
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
    base = datetime(said_on.year, said_on.month, said_on.day)  # noqa: DTZ001 - a day without a time
    settings = {"RELATIVE_BASE": base, "RETURN_AS_TIMEZONE_AWARE": False}
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
