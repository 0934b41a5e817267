"""Dates: reads the days and periods that a text names or asks for, and writes days in one way for the index."""

from __future__ import annotations

import re
import unicodedata
from calendar import monthrange
from datetime import date, timedelta
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.words import (
    ends_of,
    has_phrase,
    pattern,
    phrases,
    word_lists,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


MONTHS = str.split(
    "January February March April May June July August September October November December"
)
WEEKDAYS = str.split("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
# "The 20s" are 2020, and "the 30s" 1930.
_LAST_DECADE = 20
_DECADE_ENDS = ("s", "er", "代")
# The days of a day, a week, a month and a year, in the order of the section "units".
_WEEK_DAYS = 7
_MONTH_DAYS = 30
_UNIT_DAYS = (1, _WEEK_DAYS, _MONTH_DAYS, 365)
# The month stands beside a number or behind "in", or has a capital inside a sentence.
_VERB_MAY = r"(?<!\d )(?<!\b(?:in|of) )(?<!\blast )(?<!\bsince )(?:\bmay\b|(?<![\w,][ -])\bMay\b)(?!,? \d)"


class Day(NamedTuple):
    """A date or a part of it; an unknown part is None."""

    year: int | None = None
    month: int | None = None
    day: int | None = None


class DateMention(NamedTuple):
    """A part of a text that names a date, with all its readings: 1/2 has two."""

    readings: tuple[Day, ...]
    start: int
    end: int


class Period(NamedTuple):
    """A time from a first day to a last day, both included."""

    start: date
    end: date


class EnglishDays(NamedTuple):
    """A text whose days are written in English, and the terms of its days, such as "may8"."""

    text: str
    terms: list[str]


class _Names(NamedTuple):
    """A pattern of the names of months, and the number of the month of each name."""

    pattern: re.Pattern[str]
    months: dict[str, int]


# Cached, because each sentence of a text is compared with the same source, and many
# lines of an index have the same day.
@lru_cache(maxsize=256)
def dates_in(text: str) -> tuple[DateMention, ...]:
    """Return the dates that a text names in digits, and in words of English and German.

    No two dates overlap.

    >>> [mention.readings for mention in dates_in("On 8 May, not on 2026-05-09")]
    [(Day(year=None, month=5, day=8),), (Day(year=2026, month=5, day=9),)]
    """
    patterns = [
        phrases("calendar", "numeric"),
        phrases("calendar", "chinese"),
        phrases("calendar", "pair"),
        _names().pattern,
        phrases("calendar", "year"),
        phrases("calendar", "decade"),
    ]
    mentions: list[DateMention] = []
    # A list of spans would take the square of the number of dates.
    is_read = bytearray(len(text))
    for date_pattern in patterns:
        for match in date_pattern.finditer(text):
            start, end = match.span()
            readings = _readings(match)
            if readings and not any(is_read[start:end]):
                is_read[start:end] = bytes([1]) * (end - start)
                mentions.append(DateMention(readings, start, end))
    return tuple(sorted(mentions, key=lambda mention: mention.start))


def _readings(match: re.Match[str]) -> tuple[Day, ...]:
    """Return the days that a match can mean; none for a day that no month has, unless its month is named."""
    parts = match.groupdict()
    if parts.get("decade"):
        decade = int(parts["decade"])
        return (Day((1900 if decade > _LAST_DECADE else 2000) + decade),)
    year = _number(parts, "y")
    day = _number(parts, "d")
    if parts.get("name"):
        return _named_readings(parts["name"], year, day)
    if "a" not in parts:
        readings = [Day(year, _number(parts, "m"), day)]
    else:
        first = int(parts["a"])
        second = int(parts["b"])
        readings = [Day(year, second, first)]
        # With dots the day is first.
        if parts["mark"] != "." and first != second:
            readings.append(Day(year, first, second))
    return tuple(reading for reading in readings if _exists(reading))


def _number(parts: dict[str, str], name: str) -> int | None:
    """Return the number in the group "d", "d2" or "d3" for the name "d"; None if all are empty."""
    for key in (name, f"{name}2", f"{name}3"):
        if parts.get(key):
            return int(parts[key])
    return None


def _named_readings(name: str, year: int | None, day: int | None) -> tuple[Day, ...]:
    # The verb "may" has no capital, and no number beside it.
    if name[0].islower() and not (day or year):
        return ()
    return (Day(year, _names().months[name.lower()], day),)


def _exists(day: Day) -> bool:
    # An unknown year may be a leap year.
    period = period_of(day._replace(year=day.year or 2000))
    return period is not None and day.month != 0


@cache
def _names() -> _Names:
    """Return the names of months in English and German."""
    months: dict[str, int] = {}
    for month, names in enumerate(word_lists("calendar")["months"], 1):
        months.update(dict.fromkeys(names, month))
    either = "|".join(sorted(map(re.escape, months), key=len, reverse=True))
    name_pattern = re.compile(
        rf"(?:(?<![\d.:])(?P<d>[0-3]?\d)(?:st|nd|rd|th|\.)? (?:of )?)?\b(?P<name>(?i:{either}))\b\.?"
        rf"(?: (?P<d2>[0-3]?\d)(?:st|nd|rd|th)?\b(?![.:]?\d))?(?:,? (?:of )?(?P<y>(?:19|20)\d\d)\b)?"
    )
    return _Names(name_pattern, months)


def period_of(day: Day, today: date | None = None) -> Period | None:
    """Return the period of a day, a month or a year; None if there is no such day.

    Without a year, the last such day until ``today`` counts; None without ``today``.

    >>> period_of(Day(2024, 2))
    Period(start=datetime.date(2024, 2, 1), end=datetime.date(2024, 2, 29))
    """
    year = day.year or _last_year_of(day, today)
    if year is None:
        return None
    try:
        start = date(year, day.month or 1, day.day or 1)
    except ValueError:
        return None
    if day.day:
        return Period(start, start)
    last_month = day.month or len(MONTHS)
    return Period(start, date(year, last_month, monthrange(year, last_month)[1]))


def _last_year_of(day: Day, today: date | None) -> int | None:
    if not (today and day.month):
        return None
    is_ahead = (day.month, day.day or 0) > (today.month, today.day)
    return today.year - is_ahead


def relative_periods(text: str, today: date) -> Iterator[Period]:
    """Yield the periods that a text in lower case names from today: two years ago, last month, yesterday.

    >>> next(relative_periods("what did we use last year?", date(2026, 11, 20))).start
    datetime.date(2025, 1, 1)
    """
    yield from _distant_periods(text, today)
    yield from _last_periods(text, today)


def _distant_periods(text: str, today: date) -> Iterator[Period]:
    """Yield the periods of so many days, weeks, months or years ago."""
    for match in phrases("calendar", "ago").finditer(text):
        number, unit = filter(None, match.groups())
        count = int(number) if number.isdecimal() else line_of(number, "numbers")
        if count in range(1, 100):
            days = _UNIT_DAYS[line_of(unit, "units") - 1]
            middle = today - timedelta(days=count * days)
            half = timedelta(days=days // 2)
            yield Period(middle - half, middle + half)


def _last_periods(text: str, today: date) -> Iterator[Period]:
    """Yield the day, week, month or year before today's, such as yesterday and last year."""
    for match in phrases("calendar", "last").finditer(text):
        parts = match.groupdict()
        unit = parts["unit"] or (match.lastgroup or "day").partition("_")[0]
        count = 2 if parts.get("year_before") else 1
        days = _UNIT_DAYS[line_of(unit, "units") - 1]
        if days > _WEEK_DAYS:
            day = Day(today.year - count)
            if days == _MONTH_DAYS:
                months = 12 * today.year + today.month - 1 - count
                day = Day(months // 12, months % 12 + 1)
            yield from filter(None, [period_of(day)])
        else:
            first = today - timedelta(days=count * days)
            if days == _WEEK_DAYS:
                first -= timedelta(days=today.weekday())
            yield Period(first, first + timedelta(days=days - 1))


def line_of(word: str, section: str) -> int:
    """Return the number of the line of a section of ``calendar.txt`` that has a word; 0 for none."""
    for number, words in enumerate(word_lists("calendar")[section], 1):
        if word in words:
            return number
    return 0


# "And in 2023?" asks about the past without a verb.
_FEW_WORDS = 3
_has = partial(has_phrase, "past")


def period_asked(question: str, today: date) -> Period | None:
    """Return the period that a question about the user's past asks for; None for any other question.

    A year, a month or a day, in English, German, Chinese or Japanese, is that period.
    "before", "used to" or "did I" alone stand for all time until today. Other questions
    are about the world ("the World Cup of 2018"), about the conversation itself, or
    about the future.

    >>> period_asked("Where did I live in 2023?", date(2026, 11, 20))
    Period(start=datetime.date(2023, 1, 1), end=datetime.date(2023, 12, 31))
    >>> period_asked("Where do I live?", date(2026, 11, 20))
    """
    ends = ends_of(question)
    normal = unicodedata.normalize("NFKC", ends.replace("\u2019", "'"))
    is_short = len(normal.split()) <= _FEW_WORDS
    for part in phrases("past", "sentence_end").split(normal):
        period = _past_period(part.strip(" ?!."), today, is_short=is_short)
        if period:
            return period
    return None


def _past_period(sentence: str, today: date, *, is_short: bool) -> Period | None:
    """Return the period that a sentence asks for, if it is in the user's past; else None."""
    plain = sentence.casefold()
    asks_past = _asks_past(plain)
    if not (asks_past or _is_own(plain, is_short=is_short)):
        return None
    named = _periods_in(sentence, today, asks_past=asks_past or is_short)
    periods = [*relative_periods(plain, today), *named]
    if not periods:
        return Period(date.min, today) if asks_past else None
    last = max(period.end for period in periods)
    period = Period(min(periods).start, last)
    is_past = period.start <= today if asks_past else last < today
    return period if is_past else None


def _is_own(sentence: str, *, is_short: bool) -> bool:
    """Return whether a sentence asks about the user, not about the conversation."""
    return (is_short or _has("own", sentence)) and not _has("talk", sentence)


def _asks_past(sentence: str) -> bool:
    """Return whether the words of a sentence ask about the past, even without a date."""
    if _has("own_past", sentence):
        return True
    is_past = _has("was", sentence) or (
        _has("was_or_plan", sentence) and not _has("plan", sentence)
    )
    return is_past and not _has("talk", sentence)


def _periods_in(sentence: str, today: date, *, asks_past: bool) -> Iterator[Period]:
    """Yield the periods that a sentence names, such as "before 2020".

    In a sentence that does not ask about the past, a date without a year may be ahead,
    and a number alone is a year only if a word before it says so.
    """
    for match in dates_in(sentence):
        ahead = sentence[: match.start].casefold()
        written = sentence[match.start : match.end]
        if written.isdigit() and not (asks_past or _has("year", ahead)):
            continue
        behind = sentence[match.end :]
        for day in match.readings:
            period = _period_written(day, written, today if asks_past else None)
            if period:
                yield _bounded(period, ahead, behind, today)


def _period_written(day: Day, written: str, today: date | None) -> Period | None:
    """Return the period of a date in a sentence; of a decade, "the 90s", its ten years."""
    period = period_of(day, today)
    if period and day.month is None and written.endswith(_DECADE_ENDS):
        return period._replace(end=date(period.end.year + 9, 12, 31))
    return period


def _bounded(period: Period, ahead: str, behind: str, today: date) -> Period:
    """Return the period of a date as the words around it change it: "before 2020", "since 2020"."""
    before = phrases("past", "before").search(ahead)
    if before and before["until"]:
        return Period(date.min, period.end)
    if before or behind.startswith(("前", "之前", "以前")):
        return Period(date.min, period.start - timedelta(days=1))
    if _has("since", ahead):
        return period._replace(end=max(period.end, today))
    return period


def with_english_days(text: str) -> EnglishDays:
    """Return a text in which days and months are written in one way, and the terms of its days; for the index.

    A day with two readings is written in both. The verb "may" is left out.

    >>> with_english_days("It may rain on 08.05.2026")
    EnglishDays(text='It  rain on  8 May 2026 ', terms=['may8'])
    """
    text = pattern(_VERB_MAY).sub("", text)
    # Most texts have no digit, and no date to rewrite.
    if not re.search(r"\d", text):
        return EnglishDays(text, [])
    parts = list[str]()
    terms = list[str]()
    end = 0
    for mention in dates_in(text):
        days = _days_to_write(mention, text)
        if days:
            written = ", ".join(map(_in_english, days))
            parts += [text[end : mention.start], f" {written} "]
            terms += [
                f"{_month_of(day)[:3].lower()}{day.day}" for day in days if day.day
            ]
            end = mention.end
    return EnglishDays("".join([*parts, text[end:]]), terms)


def _days_to_write(mention: DateMention, text: str) -> list[Day]:
    """Return the readings with a month; none for 1/2, which may be a half."""
    days = [day for day in mention.readings if day.month]
    has_letter = any(map(str.isalpha, text[mention.start : mention.end]))
    if days and (days[0].year or has_letter):
        return days
    return []


def _month_of(day: Day) -> str:
    return MONTHS[(day.month or 1) - 1]


def _in_english(day: Day) -> str:
    return f"{day.day or ''} {_month_of(day)} {day.year or ''}".strip()


def date_words(day: date) -> str:
    """Return a day as people write it, "8 May, 2023", so that a query finds it by day, month or year."""
    return f"{day.day} {MONTHS[day.month - 1]}, {day.year}"
