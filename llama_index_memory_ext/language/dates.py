"""Reads the dates of a text, for checks, for questions about a time, and for the index."""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import date, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.language import phrases, word_lists

if TYPE_CHECKING:
    from collections.abc import Iterator


MONTHS = str.split(
    "January February March April May June July August September October November December"
)
# The English names of the months and their first three letters.
MONTH_PATTERN = "|".join(f"{month}|{month[:3]}" for month in MONTHS)
WEEKDAYS = str.split("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
# English and German write months and weekdays with a capital, which tells "May" from
# "may".
_CAPITALISED = frozenset({"en", "de"})
_SHORTEST_NAME = 3
_LAST_DECADE = 20


class Day(NamedTuple):
    """A date or a part of one; what is not known is None. Weekdays count from Monday, 0."""

    year: int | None = None
    month: int | None = None
    day: int | None = None
    weekday: int | None = None


class Found(NamedTuple):
    """A part of a text that names a date, by all that it can mean."""

    readings: tuple[Day, ...]
    start: int
    end: int


class Period(NamedTuple):
    """A time from one day to another, both included."""

    start: date
    end: date


# Sentence by sentence, a text is compared with the same source; many lines of an index
# have the same day.
@lru_cache(maxsize=256)
def dates_in(text: str, code: str = "en") -> tuple[Found, ...]:
    """Return the dates that a text names in digits, and in words of English, German and the language of a code.

    No two are in one place.

    >>> [found.readings for found in dates_in("On 8 May, not on 2026-05-09")]
    [(Day(year=None, month=5, day=8, weekday=None),), (Day(year=2026, month=5, day=9, weekday=None),)]
    """
    kept: list[Found] = []
    taken = bytearray(len(text))
    kinds = [
        phrases("calendar", kind)
        for kind in ("numeric", "chinese", "pair", "year", "decade")
    ]
    for kind in (*kinds[:3], _names(code)[0], *kinds[3:]):
        for match in kind.finditer(text):
            start, end = match.span()
            readings = _readings(match, code)
            if readings and not any(taken[start:end]):
                taken[start:end] = bytes([1]) * (end - start)
                kept.append(Found(readings, start, end))
    return tuple(sorted(kept, key=lambda found: found.start))


def _readings(match: re.Match[str], code: str) -> tuple[Day, ...]:
    """What a match can mean; nothing for a day that no month has, unless its month is named."""
    parts = match.groupdict()
    year, month, day = (
        next(
            (
                int(parts[key])
                for key in (name, f"{name}2", f"{name}3")
                if parts.get(key)
            ),
            None,
        )
        for name in "ymd"
    )
    if decade := parts.get("decade"):
        return (Day((1900 if int(decade) > _LAST_DECADE else 2000) + int(decade)),)
    if name := parts.get("name"):
        kind, number = _names(code)[1][name.lower()]
        if (
            code in _CAPITALISED
            and name[0].islower()
            and (kind == "weekday" or not (day or year))
        ):
            return ()
        return (Day(weekday=number) if kind == "weekday" else Day(year, number, day),)
    if "a" not in parts:
        if month is None or _exists(year, month, day):
            return (Day(year, month, day),)
        return ()
    one = int(parts["a"])
    other = int(parts["b"])
    # With dots the day is first.
    orders = dict.fromkeys(
        [(other, one), (one, other)] if parts["mark"] != "." else [(other, one)]
    )
    return tuple(Day(year, *order) for order in orders if _exists(year, *order))


def _exists(year: int | None, month: int, day: int | None) -> bool:
    # In a leap year, if it is not known.
    return (
        1 <= month <= len(MONTHS)
        and 1 <= (day or 1) <= monthrange(year or 2000, month)[1]
    )


@lru_cache(maxsize=16)
def _names(code: str) -> tuple[re.Pattern[str], dict[str, tuple[str, int]]]:
    """Return the names of months and weekdays in a language, English and German, as a pattern, and with their numbers."""
    found: dict[str, tuple[str, int]] = {}
    if code not in _CAPITALISED:
        # Imported here, because it is needed in the background alone.
        from dateparser.languages.loader import default_loader  # type: ignore[import-untyped]

        try:
            info = default_loader.get_locale(code).info
        except ValueError:
            info = {}
        for kind, english, first in (("month", MONTHS, 1), ("weekday", WEEKDAYS, 0)):
            for i, name in enumerate(english, first):
                spellings = (
                    spelling.lower() for spelling in info.get(name.lower(), ())
                )
                found.update(
                    {
                        one: (kind, i)
                        for one in spellings
                        if sum(map(str.isalpha, one)) >= _SHORTEST_NAME
                    }
                )
    for kind, first in (("month", 1), ("weekday", 0)):
        for i, names in enumerate(word_lists("calendar")[f"{kind}s"], first):
            found.update(dict.fromkeys(names, (kind, i)))
    either = "|".join(sorted(map(re.escape, found), key=len, reverse=True))
    return re.compile(
        rf"(?:(?<![\d.:])(?P<d>[0-3]?\d)(?:st|nd|rd|th|\.)? (?:of )?)?\b(?P<name>(?i:{either}))\b\.?"
        rf"(?: (?P<d2>[0-3]?\d)(?:st|nd|rd|th)?\b(?![.:]?\d))?(?:,? (?:of )?(?P<y>(?:19|20)\d\d)\b)?"
    ), found


def period_of(day: Day, today: date | None = None) -> Period | None:
    """Return the time of a day, a month or a year; None if there is no such day.

    A day without a year is the last one until ``today``; without that there is none.

    >>> period_of(Day(2024, 2))
    Period(start=datetime.date(2024, 2, 1), end=datetime.date(2024, 2, 29))
    """
    year = day.year
    month = day.month
    if year is None and today and month:
        year = today.year - ((month, day.day or 0) > (today.month, today.day))
    if year is None:
        return None
    try:
        first = date(year, month or 1, day.day or 1)
    except ValueError:
        return None
    last_month = month or len(MONTHS)
    return Period(
        first,
        first if day.day else date(year, last_month, monthrange(year, last_month)[1]),
    )


def relative_periods(text: str, today: date) -> Iterator[Period]:
    """Yield the times of a text in lower case that are told from today: two years ago, last month, yesterday.

    >>> next(relative_periods("what did we use last year?", date(2026, 11, 20))).start
    datetime.date(2025, 1, 1)
    """
    for match in phrases("calendar", "ago").finditer(text):
        number, unit = filter(None, match.groups())
        if number.isdecimal():
            count = int(number)
        else:
            count = _line_of(number, "numbers")
        if count in range(1, 100):
            days = (1, 7, 30, 365)[_line_of(unit, "units") - 1]
            middle = today - timedelta(days=count * days)
            half = timedelta(days=days // 2)
            yield Period(middle - half, middle + half)
    for match in phrases("calendar", "last").finditer(text):
        unit = match["unit"] or (match.lastgroup or "day").partition("_")[0]
        yesterday = today - timedelta(days=1)
        monday = today - timedelta(days=today.weekday() + 7)
        year = today.year - (2 if match["year_before"] else 1)
        month = today.replace(day=1) - timedelta(days=1)
        yield {
            1: Period(yesterday, yesterday),
            2: Period(monday, monday + timedelta(days=6)),
            3: Period(month.replace(day=1), month),
            4: Period(date(year, 1, 1), date(year, 12, 31)),
        }[_line_of(unit, "units")]


def _line_of(word: str, section: str) -> int:
    """Return the number of the line in which a word stands; 0 for none."""
    return next(
        (
            i
            for i, words in enumerate(word_lists("calendar")[section], 1)
            if word in words
        ),
        0,
    )


# How much of a text before a "may" is looked at.
_NEAR = 40


def with_english_days(text: str) -> tuple[str, list[str]]:
    """Return a text in which days and months are written in one way, and the terms of its days; for the index.

    A day that can be read in two ways is written in both. The verb "may" is left out.

    >>> with_english_days("It may rain on 08.05.2026")
    ('It  rain on  8 May 2026 ', ['may8'])
    """
    if "may" in text.lower():
        text = re.sub(
            r"(?i)\bmay\b", lambda may: may.group() if _is_month(may) else "", text
        )
    # Most texts have none.
    if re.search(r"\d", text):
        found_in = dates_in(text)
    else:
        found_in = ()
    parts = list[str]()
    terms = list[str]()
    end = 0
    for found in found_in:
        days = [one for one in found.readings if one.month]
        # 1/2 is rather a half.
        if days and (
            days[0].year or any(map(str.isalpha, text[found.start : found.end]))
        ):
            written = (
                f"{one.day or ''} {MONTHS[(one.month or 1) - 1]} {one.year or ''}".strip()
                for one in days
            )
            parts += [text[end : found.start], f" {', '.join(written)} "]
            terms += [
                f"{MONTHS[(one.month or 1) - 1][:3].lower()}{one.day}"
                for one in days
                if one.day
            ]
            end = found.end
    return "".join([*parts, text[end:]]), terms


def _is_month(may: re.Match[str]) -> bool:
    before = may.string[max(may.start() - _NEAR, 0) : may.start()]
    after = may.string[may.end() : may.end() + _NEAR]
    if re.match(r"(?i)\s(?:be|have|not)\b", after):
        return False
    if phrases("calendar", "before_may").search(before) or phrases(
        "calendar", "after_may"
    ).match(after):
        return not before.endswith("this ") or may.group() == "May"
    # "And May?"
    return (
        may.group() == "May"
        and before[-2:-1].isalnum()
        and after.strip()[:1] in ("", "?", ",", ";")
    )


def date_words(day: date) -> str:
    """Return a day as people write it, "8 May, 2023", so that it is found by its day, its month and its year."""
    return f"{day.day} {MONTHS[day.month - 1]}, {day.year}"
