"""The history of facts: which time a question asks about, and which facts held then."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING

from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.words import phrases
from llama_index_memory_ext.words.dates import (
    Day,
    Period,
    dates_in,
    period_of,
    relative_periods,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from llama_index_memory_ext.fact import Fact, RetiredBy


# Of a longer question, characters at each end: between them is pasted text.
_END = 1_000
# "And in 2023?" asks about the past without a verb.
_FEW_WORDS = 3


def period_asked(question: str, today: date) -> Period | None:
    """Return the time that a question about the user's past asks for.

    A year, a month or a day, in English, German, Chinese or Japanese, is that time;
    "before", "used to" or "did I" alone stand for all time until today. Return None for
    other questions: about the world ("the World Cup of 2018"), about
    the conversation itself, and about the future.

    >>> period_asked("Where did I live in 2023?", date(2026, 11, 20))
    Period(start=datetime.date(2023, 1, 1), end=datetime.date(2023, 12, 31))
    >>> period_asked("Where do I live?", date(2026, 11, 20))
    """
    if len(question) > 2 * _END:
        question = f"{question[:_END]}\n{question[-_END:]}"
    normal = unicodedata.normalize("NFKC", question.replace("\u2019", "'"))
    is_short = len(normal.split()) <= _FEW_WORDS
    periods = []
    for part in phrases("past", "sentence_end").split(normal):
        period = _past_period(part.strip(" ?!."), today, is_short=is_short)
        if period:
            periods.append(period)
    return _spanned(periods)


def _past_period(sentence: str, today: date, *, is_short: bool) -> Period | None:
    """Return the time that a sentence asks for, if it is in the user's past."""
    plain = sentence.casefold()
    asks_past = _asks_past(plain)
    periods = [
        *relative_periods(plain, today),
        *_periods_in(sentence, today, asks_past=asks_past or is_short),
    ]
    period = _spanned(periods)
    if asks_past:
        period = period or Period(date.min, today)
        return period if period.start <= today else None
    if period is None or period.end >= today or _has("talk", plain):
        return None
    if is_short or _has("own", plain):
        return period
    return None


def _asks_past(sentence: str) -> bool:
    """Return whether the words of a sentence ask about the past, at any time that it names."""
    if _has("own_past", sentence):
        return True
    is_past = _has("was", sentence) or (
        _has("was_or_plan", sentence) and not _has("plan", sentence)
    )
    return is_past and not _has("talk", sentence)


def _has(section: str, text: str) -> bool:
    return phrases("past", section).search(text) is not None


def _spanned(periods: Sequence[Period]) -> Period | None:
    """Return the time from the first day of all periods to the last one; None for none."""
    if periods:
        first = min(period.start for period in periods)
        return Period(first, max(period.end for period in periods))
    return None


def _periods_in(sentence: str, today: date, *, asks_past: bool) -> Iterator[Period]:
    """Yield the times that a sentence names, as "before 2020".

    A date without a year counts only in a sentence that asks about the past.
    """
    for match in dates_in(sentence):
        ahead = sentence[: match.start].casefold()
        written = sentence[match.start : match.end]
        behind = sentence[match.end :]
        for day in match.readings:
            period = period_of(day, today)
            if period and _is_time(day, written, ahead, asks_past=asks_past):
                yield _bounded(period, ahead, behind, today)


def _is_time(day: Day, written: str, ahead: str, *, asks_past: bool) -> bool:
    """Return whether a date in a question names a time.

    A number alone is a year if a word before it says so.
    """
    if day.month is None:
        is_year = asks_past or any(
            _has(section, ahead) for section in ("before", "since", "year")
        )
        return written.endswith("年") or (written.isdigit() and is_year)
    if day.year is not None:
        return True
    return asks_past and bool(day.day or "月" in written or _has("month", ahead))


def _bounded(period: Period, ahead: str, behind: str, today: date) -> Period:
    """Return the time that the words around a date mean, as "before" and "since"."""
    before = phrases("past", "before").search(ahead)
    if before and before["until"]:
        return Period(date.min, period.end)
    if before or behind.startswith(("前", "之前", "以前")):
        return Period(date.min, period.start - timedelta(days=1))
    if _has("since", ahead):
        return period._replace(end=max(period.end, today))
    return period


def why_retired(text: str) -> RetiredBy:
    """Return why a fact ended, from the user's words and the reason of a model.

    >>> why_retired("I moved to Rome"), why_retired("I never lived in Oslo"), why_retired("Forget where I live")
    ('change', 'correction', 'request')
    """
    straight = text.replace("\u2019", "'")
    if phrases("past", "forget").search(straight):
        return "request"
    if phrases("past", "never_true").search(straight):
        return "correction"
    return "change"


def past_facts(facts: Mapping[str, Fact], now: datetime) -> Iterator[Fact]:
    """Yield the facts that were true before, by id.

    A fact is left out if the user wants a successor of it forgotten.
    """
    for fact in facts.values():
        if fact.state(now) == "past":
            ids = _reached(fact.id, lambda fact_id: _successors(facts.get(fact_id)))
            is_forgotten = any(
                facts[fact_id].retired_by == "request"
                for fact_id in ids
                if fact_id in facts
            )
            if not is_forgotten:
                yield fact


def true_in(fact: Fact, period: Period) -> bool:
    """Return whether a past fact was true on a day of a period.

    A fact without a known beginning was true at all times before its end.
    """
    end = fact.ends or date.max
    start = fact.began
    if start > end:
        # The fact became known after its end.
        start = date.min
    return start <= period.end and end >= period.start


def history_of(facts: Iterable[Fact], fact_id: str, namespace: str) -> list[Fact]:
    """Return a fact with its predecessors and its successors, oldest first.

    Replacements that were undone count, too. Raises a FactError for an unknown id.
    """
    by_id = {fact.id: fact for fact in facts}
    if fact_id not in by_id:
        raise FactError(
            f"There is no fact {fact_id!r} of {namespace!r} among {len(by_id)}. List them first."
        )
    replaced = defaultdict[str, list[str]](list)
    for fact in by_id.values():
        for successor in _successors(fact):
            replaced[successor].append(fact.id)
    before = _reached(fact_id, lambda linked_id: replaced[linked_id])
    after = _reached(fact_id, lambda linked_id: _successors(by_id.get(linked_id)))
    chain = dict.fromkeys([*reversed(before), fact_id, *after])
    history = [by_id[linked_id] for linked_id in chain if linked_id in by_id]
    return sorted(history, key=lambda fact: fact.created_at)


def _reached(start: str, links: Callable[[str], Iterable[str]]) -> list[str]:
    """Return the ids that are reached from an id, link by link, nearest first."""
    ids = [start]
    for fact_id in ids:
        for linked_id in links(fact_id):
            if linked_id not in ids:
                ids.append(linked_id)
    return ids[1:]


def _successors(fact: Fact | None) -> list[str]:
    """Return the ids of the facts that have replaced a fact, also of undone replacements."""
    if fact is None:
        return []
    ids = [past.replaced_by for past in fact.past_retirements]
    return list(filter(None, (*ids, fact.replaced_by)))
