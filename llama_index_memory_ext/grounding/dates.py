"""Checks the dates of a statement: said as they are, or worked out from the day of the conversation."""

from __future__ import annotations

import re
from calendar import IllegalMonthError, day_name, month_name, monthrange
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index_memory_ext.grounding.language import language_of, script_of
from llama_index_memory_ext.grounding.numbers import quantities
from llama_index_memory_ext.grounding.numerals import digits_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

_DAY, _ORDINAL = r"(?<!\d)(?P<d>[0-3]?\d)", r"(?:st|nd|rd|th|\.)?"
_YEAR_DIGITS = r"(?P<y>(?:19|20)\d\d)"
_NUMERIC = re.compile(
    rf"(?<![\d.]){_YEAR_DIGITS}[-/.年]\s?(?P<m>1[0-2]|0?[1-9])(?!\d)(?:[-/.月]\s?(?P<d>[0-3]?\d))?[月日号]?"
)
_CHINESE = re.compile(r"(?<!\d)(?P<m>1[0-2]|0?[1-9])\s?月(?:\s?(?P<d>[0-3]?\d)[日号號])?")
# In either order of day and month.
_PAIR = r"(?<![\d/.])(?P<a>[0-3]?\d){mark}(?P<b>[0-3]?\d){end}(?P<y>(?:(?:20|19)?\d\d)?)(?![\d/])"
_SLASHED, _DOTTED = (re.compile(_PAIR.format(mark=mark, end=end)) for mark, end in (("/", "/?"), (r"\.", r"\.")))
_YEAR = re.compile(
    rf"(?<![\d$\u20ac\u00a3.,:/-]){_YEAR_DIGITS}(?:(?P<s>s\b|er\b|年代)|年)?(?!\d|[,:.]\d|\s?[%$\u20ac\u00a3]|-\d)"
)
_DECADE = re.compile(r"(?<![\d.,])['\u2019]?(?P<decade>[1-9]0)(?:['\u2019]?s\b|er\b|年代)")
_WORD = re.compile(r"[^\W_]+")
# English and German write months and weekdays with a capital, which tells "May" from "may".
_CAPITALISED = frozenset({"en", "de"})
_SHORTEST_NAME = 3
# Of a source so many words, or characters of a script without spaces, are read for relative dates of these lengths.
_MOST_READ, _MOST_WORDS, _MOST_CHARACTERS = 100, 4, 5
_DAYS, _MONTHS, _MONTH_DAYS = range(7), range(1, 13), range(1, 32)
# So many years ago is somebody's age, or how long something has lasted.
_YEARS = frozenset(range(1, 121))
_CENTURY, _LAST_DECADE = 100, 20


class Day(NamedTuple):
    """A date or a part of one; what is not known is None. Weekdays count from Monday, 0."""

    year: int | None = None
    month: int | None = None
    day: int | None = None
    weekday: int | None = None


class _Found(NamedTuple):
    readings: tuple[Day, ...]
    start: int
    end: int


def missing_dates(statement: str, source: str, said_on: date) -> list[str]:
    """The dates of a statement that the source does not have, and that do not follow from it on ``said_on``.

    >>> missing_dates("Has an exam on 2025-12-11, a Friday", "My exam is in three weeks", date(2025, 11, 20))
    ['Friday']
    """
    named = _dates_in(statement)
    said = {day for found in _dates_in(source) for day in found.readings}
    unsaid = [found for found in named if not _is_any(found, said, said_on)]
    if unsaid:
        said = {*_worked_out(statement, source, said_on)}
        unsaid = [found for found in unsaid if not _is_any(found, said, said_on)]
    return [statement[found.start : found.end].strip(" ,.") for found in unsaid]


def without_dates(text: str) -> str:
    """The text with a space for each date, also for a year, a month or a weekday alone.

    >>> without_dates("Has 3 exams in May 2026")
    'Has 3 exams in  '
    """
    parts, end = [], 0
    for found in sorted(_dates_in(text), key=lambda found: found.start):
        parts += [text[end : found.start], " "]
        end = found.end
    return "".join([*parts, text[end:]])


def period_of(written: str) -> tuple[date, date] | None:
    """The first and the last day of a day, a month or a year as in ISO 8601; None for anything else.

    >>> period_of("2024-02")
    (datetime.date(2024, 2, 1), datetime.date(2024, 2, 29))
    """
    match = re.fullmatch(r"(\d{4})(?:-(\d\d?)(?:-(\d\d?))?)?", written.strip())
    if match is None:
        return None
    year, month, day = map(_number, match.groups())
    try:
        first = date(year or 0, month or 1, day or 1)
        last = date(first.year, month or 12, day or monthrange(first.year, month or 12)[1])
    except (ValueError, IllegalMonthError):
        return None
    return first, last


@lru_cache(maxsize=64)
def _dates_in(text: str) -> tuple[_Found, ...]:
    """The dates that a text names, no two of them in one place."""
    kept: list[_Found] = []
    taken = bytearray(len(text))
    code = language_of(text) or "en"
    for pattern in (_NUMERIC, _CHINESE, _named(code), _SLASHED, _DOTTED, _YEAR, _DECADE):
        for match in pattern.finditer(text):
            start, end = match.span()
            readings = tuple(_read(match, _names(code)))
            if readings and not any(taken[start:end]):
                taken[start:end] = bytes([1]) * (end - start)
                kept.append(_Found(readings, start, end))
    return tuple(kept)


def _read(match: re.Match[str], names: Mapping[str, tuple[str, int]]) -> Iterable[Day]:
    """What a match can mean; nothing for a day that no month has."""
    parts = match.groupdict()
    if "a" in parts:
        return _in_either_order(parts)
    if parts.get("decade") or parts.get("s"):
        return [_decade(parts)]
    if "name" in parts:
        return [_named_day(parts, names)]
    return [Day(*(_number(parts.get(name)) for name in ("y", "m", "d")))]


def _number(digits: str | None) -> int | None:
    return int(digits) if digits else None


def _in_either_order(parts: Mapping[str, str]) -> Iterator[Day]:
    """The days of which each number can be the month: 12/05 is in May or in December."""
    year = _number(parts["y"])
    year = year + 2000 if year is not None and year < _CENTURY else year
    one, other = int(parts["a"]), int(parts["b"])
    for month, day in {(one, other), (other, one)}:
        if month in _MONTHS and day in _MONTH_DAYS:
            yield Day(year, month, day)


def _decade(parts: Mapping[str, str]) -> Day:
    """The first year of a decade, with its century (the 1990s) or without (the 90s)."""
    if year := _number(parts.get("y")):
        return Day(year)
    decade = int(parts["decade"])
    return Day((1900 if decade > _LAST_DECADE else 2000) + decade)


def _named_day(parts: Mapping[str, str], names: Mapping[str, tuple[str, int]]) -> Day:
    """The month, with its day and its year, or the weekday that a name means."""
    kind, number = names[parts["name"].lower()]
    if kind == "weekday":
        return Day(weekday=number)
    return Day(_number(parts["y"]), number, _number(parts["d"] or parts["d2"]))


@lru_cache(maxsize=16)
def _names(code: str) -> Mapping[str, tuple[str, int]]:
    """The names of the months and weekdays in a language and in English, in lower case, with their numbers."""
    # Imported here, because it is needed in the background alone.
    from dateparser.languages.loader import default_loader  # type: ignore[import-untyped]

    kinds = (("month", [*month_name][1:], 1), ("weekday", [*day_name], 0))
    found = {}
    for language in dict.fromkeys(("en", code)):
        try:
            info = default_loader.get_locale(language).info
        except ValueError:
            continue
        for kind, english, first in kinds:
            for i, name in enumerate(english, first):
                spellings = (spelling.lower() for spelling in info.get(name.lower(), ()))
                found.update({one: (kind, i) for one in spellings if sum(map(str.isalpha, one)) >= _SHORTEST_NAME})
    return found


@lru_cache(maxsize=16)
def _named(code: str) -> re.Pattern[str]:
    names = "|".join(sorted(map(re.escape, _names(code)), key=len, reverse=True))
    capital = "(?=[^a-z\u00e0-\u00ff])" if code in _CAPITALISED else ""
    return re.compile(
        rf"(?:{_DAY}{_ORDINAL} (?:of )?)?\b{capital}(?P<name>(?i:{names}))\b\.?"
        rf"(?: (?P<d2>[0-3]?\d)(?:st|nd|rd|th)?\b(?![.:]?\d))?(?:,? (?P<y>(?:19|20)\d\d)\b)?"
    )


def _worked_out(statement: str, source: str, said_on: date) -> Iterator[Day]:
    """The dates that follow from relative ones, "in three weeks", and from numbers of years, "for five years"."""
    code = language_of(source) or language_of(f"{statement} {source}") or "en"
    yield from _years_ago(source, code, said_on)
    for text in _relative(source):
        for day, period in _parsed(text, code, said_on):
            yield from _meant(text, code, day, period)


def _years_ago(source: str, code: str, said_on: date) -> Iterator[Day]:
    """The years, also with a month, that are as long ago as a number of a source says."""
    months = {day.month for found in _dates_in(source) for day in found.readings if day.month}
    for value in {value for one in quantities(source, code, with_more=True) for value in one.values & _YEARS}:
        year = said_on.year - int(value)
        yield Day(year)
        yield Day(year, said_on.month)
        # Who turns 40 in May was born 40 years before that, which may be next year.
        yield from (Day(year + i, month) for month in months for i in (0, 1))


def _meant(text: str, code: str, day: date, period: str) -> list[Day]:
    """What a relative date names: a year, a month, or days."""
    if period == "year":
        return [Day(day.year)]
    if period == "month":
        return [Day(day.year, day.month)]
    return [Day(one.year, one.month, one.day, one.weekday()) for one in _days_of(text, code, day, period)]


def _days_of(text: str, code: str, day: date, period: str) -> list[date]:
    """The days that a relative date may mean: all of "next week", and of "next Friday" the one a week later, too."""
    if period == "week" and not quantities(text, code):
        monday = day - timedelta(days=day.weekday())
        return [monday + timedelta(days=i) for i in _DAYS]
    has_weekday = any(found.readings[0].weekday is not None for found in _dates_in(text))
    return [day, day + timedelta(weeks=1)] if has_weekday and " " in text else [day]


def _relative(source: str) -> Iterator[str]:
    """The parts of a source that may be relative dates."""
    plain = digits_of(source)
    if script_of(source) == "cjk":
        starts = range(min(len(plain), _MOST_READ))
        yield from (plain[i : i + length] for i in starts for length in range(2, _MOST_CHARACTERS + 1))
        return
    words = _WORD.findall(plain)[:_MOST_READ]
    for i in range(len(words)):
        for length in range(1, _MOST_WORDS + 1):
            text = " ".join(words[i : i + length])
            if not text.isdigit():
                yield text


@lru_cache(maxsize=4_096)
def _parsed(text: str, code: str, said_on: date) -> list[tuple[date, str]]:
    """The day that a relative date means, if it is one, with its precision: day, week, month or year."""
    found = (parser.get_date_data(text) for parser in _parsers(code, said_on))
    return [(one.date_obj.date(), one.period) for one in found if one.date_obj is not None]


@lru_cache(maxsize=8)
def _parsers(code: str, said_on: date) -> list[Any]:
    # Imported here, because it is needed in the background alone.
    from dateparser.data.languages_info import language_order  # type: ignore[import-untyped]
    from dateparser.date import DateDataParser  # type: ignore[import-untyped]

    codes = [one for one in dict.fromkeys((code, "en")) if one in language_order]
    base = datetime(said_on.year, said_on.month, said_on.day)  # noqa: DTZ001 - a day without a time
    settings = {"RELATIVE_BASE": base, "RETURN_AS_TIMEZONE_AWARE": False}
    return [
        DateDataParser(languages=codes, settings={**settings, "PREFER_DATES_FROM": side}) for side in ("past", "future")
    ]


def _is_any(found: _Found, said: Collection[Day], said_on: date) -> bool:
    return any(_fits(reading, day, said_on) for reading in found.readings for day in said)


def _fits(named: Day, said: Day, said_on: date) -> bool:
    """Whether a date follows from one that was said; without its year that is in the year before or after."""
    if said.day and said.weekday is None and said.year and said.month:
        said = said._replace(weekday=_weekday(said))
    if said.year is None and named.year is not None and abs(named.year - said_on.year) <= 1:
        said = said._replace(year=named.year)
    return all(one is None or one == other for one, other in zip(named, said, strict=True))


def _weekday(day: Day) -> int | None:
    try:
        return date(day.year or 1, day.month or 1, day.day or 1).weekday()
    except ValueError:
        return None


def ages_in(source: str, said_on: date) -> set[float]:
    """How many years ago the years of a source are: who was born in 1990 is 34 or 35 in 2025."""
    years = {day.year for found in _dates_in(source) for day in found.readings if day.year}
    return {float(said_on.year - year - i) for year in years for i in (0, 1)}
