"""Checks the dates of a statement: said as they are, or worked out from the day of the conversation."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.language import pattern, phrases, word_lists
from llama_index_memory_ext.language.dates import Day, Found, dates_in, period_of
from llama_index_memory_ext.language.detection import language_of, script_of
from llama_index_memory_ext.language.numbers import digits_of, quantities

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


_WORD = r"[^\W_]+"
# Of a source so many words, or characters of a script without spaces, are read for relative dates of these lengths.
_MOST_READ = 100
_MOST_WORDS = 4
_MOST_CHARACTERS = 5
# So many years ago is somebody's age, or how long something has lasted.
_YEARS = frozenset(range(1, 121))


def missing_dates(statement: str, source: str, said_on: date) -> list[str]:
    """Return the dates of a statement that the source does not have, and that do not follow from it on ``said_on``.

    >>> missing_dates("Has an exam on 2025-12-11, a Friday", "My exam is in three weeks", date(2025, 11, 20))
    ['Friday']
    """

    def other_than(said: Iterable[Day], dates: Iterable[Found]) -> list[Found]:
        """Return the dates that are none of those that were said."""
        days = set(said)
        return [
            one
            for one in dates
            if not any(
                _fits(named, day, said_on) for named in one.readings for day in days
            )
        ]

    unsaid: Sequence[Found] = _read(statement)
    if unsaid:
        unsaid = other_than(
            (day for found in _read(source) for day in found.readings), unsaid
        )
    if unsaid:
        unsaid = other_than(_worked_out(statement, source, said_on), unsaid)
    return [statement[found.start : found.end].strip(" ,.") for found in unsaid]


def without_dates(text: str) -> str:
    """Return the text with a space for each date, also for a year, a month or a weekday alone.

    >>> without_dates("Has 3 exams in May 2026")
    'Has 3 exams in  '
    """
    parts = []
    end = 0
    for found in _read(text):
        parts += [text[end : found.start], " "]
        end = found.end
    return "".join([*parts, text[end:]])


def _read(text: str) -> tuple[Found, ...]:
    return dates_in(text, language_of(text) or "en")


def _worked_out(statement: str, source: str, said_on: date) -> Iterator[Day]:
    """Yield the dates that follow from relative ones, "in three weeks", and from numbers of years, "for five years"."""
    code = language_of(source) or language_of(f"{statement} {source}") or "en"
    months = {
        day.month for found in _read(source) for day in found.readings if day.month
    }
    for value in {
        value
        for one in quantities(source, code, with_more=True)
        for value in one.values & _YEARS
    }:
        year = said_on.year - int(value)
        yield Day(year)
        yield Day(year, said_on.month)
        # Who turns 40 in May was born 40 years before that, which may be next year.
        yield from (Day(year + i, month) for month in months for i in (0, 1))
    for match in phrases("calendar", "day_of_month").finditer(source):
        for shift in (-1, 0, 1):
            in_year, before = divmod(said_on.year * 12 + said_on.month - 1 + shift, 12)
            yield Day(in_year, before + 1, int(match["d"] or match["d2"]))
    for match in phrases("calendar", "year_end").finditer(source):
        yield Day(int(match["y"] or match["y2"]), 12, 31)
    # The days of the feasts that it names, of the year before, this year and the next.
    folded = source.casefold().replace("new year", "newyear").replace("'s", "")
    words = set(pattern(_WORD).findall(folded))
    for feast_month, feast_day, *names in word_lists("calendar")["feasts"]:
        if any(
            name in words or (not name.isascii() and name in folded) for name in names
        ):
            yield from (
                Day(said_on.year + i, int(feast_month), int(feast_day))
                for i in (-1, 0, 1)
            )
    for text in _relative(source):
        for day, period in _parsed(text, code, said_on):
            yield from _meant(text, code, day, period)


def _meant(text: str, code: str, day: date, period: str) -> list[Day]:
    """Return what a relative date names: a year, a month, all of "next week", of "next Friday" the one after, too."""
    if period == "year":
        return [Day(day.year)]
    if period == "month":
        return [Day(day.year, day.month)]
    days = [day]
    if period == "week" and not quantities(text, code):
        monday = day - timedelta(days=day.weekday())
        days = [monday + timedelta(days=i) for i in range(7)]
    elif " " in text and any(
        found.readings[0].weekday is not None for found in _read(text)
    ):
        days = [day, day + timedelta(weeks=1)]
    return [Day(one.year, one.month, one.day, one.weekday()) for one in days]


def _relative(source: str) -> Iterator[str]:
    """Yield the parts of a source that may be relative dates."""
    plain = digits_of(source)
    if script_of(source) == "cjk":
        starts = range(min(len(plain), _MOST_READ))
        yield from (
            plain[i : i + length]
            for i in starts
            for length in range(2, _MOST_CHARACTERS + 1)
        )
        return
    words = pattern(_WORD).findall(plain)[:_MOST_READ]
    for i in range(len(words)):
        for length in range(1, _MOST_WORDS + 1):
            text = " ".join(words[i : i + length])
            if not text.isdigit():
                yield text


@lru_cache(maxsize=4_096)
def _parsed(text: str, code: str, said_on: date) -> list[tuple[date, str]]:
    """Return the day that a relative date means, if it is one, with its precision: day, week, month or year."""
    found = (parser.get_date_data(text) for parser in _parsers(code, said_on))
    return [
        (one.date_obj.date(), one.period) for one in found if one.date_obj is not None
    ]


@lru_cache(maxsize=8)
def _parsers(code: str, said_on: date) -> list[Any]:
    # Imported here, because it is needed in the background alone.
    from dateparser.data.languages_info import language_order  # type: ignore[import-untyped]
    from dateparser.date import DateDataParser  # type: ignore[import-untyped]

    codes = [one for one in dict.fromkeys((code, "en")) if one in language_order]
    base = datetime(said_on.year, said_on.month, said_on.day)  # noqa: DTZ001 - a day without a time
    settings = {"RELATIVE_BASE": base, "RETURN_AS_TIMEZONE_AWARE": False}
    return [
        DateDataParser(
            languages=codes, settings={**settings, "PREFER_DATES_FROM": side}
        )
        for side in ("past", "future")
    ]


def _fits(named: Day, said: Day, said_on: date) -> bool:
    """Return whether a date follows from one that was said; without its year that is in the year before or after."""
    if said.day and said.weekday is None and (period := period_of(said)):
        said = said._replace(weekday=period.start.weekday())
    if (
        said.year is None
        and named.year is not None
        and abs(named.year - said_on.year) <= 1
    ):
        said = said._replace(year=named.year)
    return all(
        one is None or one == other for one, other in zip(named, said, strict=True)
    )


def ages_in(source: str, said_on: date) -> set[float]:
    """Return how many years ago the years of a source are: who was born in 1990 is 34 or 35 in 2025."""
    years = {day.year for found in _read(source) for day in found.readings if day.year}
    return {float(said_on.year - year - i) for year in years for i in (0, 1)}
