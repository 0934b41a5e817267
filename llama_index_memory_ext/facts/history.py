"""Finds the time in the past that a question is about."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING

from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.language import phrases
from llama_index_memory_ext.language.dates import (
    Period,
    dates_in,
    period_of,
    relative_periods,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from llama_index_memory_ext.fact import Fact, RetiredBy


# Characters at each end of a long text, which is a question with something pasted.
_END = 1_000
# "And in 2023?"
_FEW_WORDS = 3
# The words that tell whether a sentence asks about the past.
_SECTIONS = ("own_past", "was", "was_or_plan", "plan", "talk", "own")


def period_asked(question: str, today: date) -> Period | None:
    """Return the time that a question about the user's past asks for; None if it asks for no past.

    A year, a month or a day, in English, German, Chinese or Japanese, is that time;
    "before", "used to" or "did I" alone stand for all time until today. A time of
    somebody else's ("the World Cup of 2018"), what was said in the conversation, and
    what is still to come are no past of the user's.

    >>> period_asked("Where did I live in 2023?", date(2026, 11, 20))
    Period(start=datetime.date(2023, 1, 1), end=datetime.date(2023, 12, 31))
    >>> period_asked("Where do I live?", date(2026, 11, 20))
    """
    if len(question) <= 2 * _END:
        text = question
    else:
        text = f"{question[:_END]}\n{question[-_END:]}"
    normal = unicodedata.normalize("NFKC", text.translate({0x2019: "'"}))
    is_short = len(normal.split()) <= _FEW_WORDS
    periods = []
    for part in phrases("past", "sentence_end").split(normal):
        sentence = part.strip(" ?!.")
        plain = sentence.casefold()
        has = {name: bool(phrases("past", name).search(plain)) for name in _SECTIONS}
        # The words ask about the past, whatever time they name.
        is_was = has["was"] or (has["was_or_plan"] and not has["plan"])
        marked = has["own_past"] or (is_was and not has["talk"])
        times = [
            *relative_periods(plain, today),
            *_times_in(sentence, today, marked=marked or is_short),
        ]
        period = _spanned(times) or (Period(date.min, today) if marked else None)
        if period is None:
            continue
        is_named = period.end < today and not has["talk"] and (is_short or has["own"])
        if period.start <= today if marked else is_named:
            periods.append(period)
    return _spanned(periods)


def _spanned(periods: Sequence[Period]) -> Period | None:
    """Return the time from the first day of all periods to the last one; None for none."""
    if periods:
        return Period(
            min(one.start for one in periods), max(one.end for one in periods)
        )
    return None


def _times_in(sentence: str, today: date, *, marked: bool) -> Iterator[Period]:
    """Yield the times that a sentence names, as "before 2020"; without a mark of the past, with their year only."""
    for found in dates_in(sentence):
        written = sentence[found.start : found.end]
        ahead = sentence[: found.start].casefold()
        behind = sentence[found.end :]
        has = {
            name: phrases("past", name).search(ahead)
            for name in ("before", "since", "year", "month")
        }
        before = has["before"]
        for day in found.readings:
            if day.month is None:
                # A number alone is a year if a word before it says so.
                is_told = marked or bool(before or has["since"] or has["year"])
                is_time = written.endswith("年") or (written.isdigit() and is_told)
            else:
                is_time = day.year is not None or (
                    marked and bool(day.day or "月" in written or has["month"])
                )
            named = period_of(day, today)
            if named is None or not is_time:
                continue
            if before and before["until"]:
                yield Period(date.min, named.end)
            elif before or behind.startswith(("前", "之前", "以前")):
                yield Period(date.min, named.start - timedelta(days=1))
            else:
                yield (
                    named._replace(end=max(named.end, today)) if has["since"] else named
                )


def why_retired(text: str) -> RetiredBy:
    """Return by what a fact was ended, from the user's words and the reason that a model gives.

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
    """Yield the facts that were true before, by id: without those whose successor the user wants forgotten."""
    for fact in facts.values():
        if fact.state(now) == "past":
            after = _reached(
                fact.id, lambda one: _successors(facts[one]) if one in facts else ()
            )
            if all(facts[one].retired_by != "request" for one in after if one in facts):
                yield fact


def true_in(fact: Fact, period: Period) -> bool:
    """Return whether a past fact was true on a day of a period; without a known beginning it was true ever before."""
    end = fact.ends or date.max
    # It became known only later.
    if fact.began <= end:
        start = fact.began
    else:
        start = date.min
    return start <= period.end and end >= period.start


def history_of(facts: Iterable[Fact], fact_id: str, namespace: str) -> list[Fact]:
    """Return the fact with all that it has replaced and all that has replaced it, oldest first.

    A replacement that was undone counts, too. Raises a FactError if there is no such
    fact.
    """
    known = {fact.id: fact for fact in facts}
    if fact_id not in known:
        raise FactError(
            f"There is no fact {fact_id!r} of {namespace!r} among {len(known)}. List them first."
        )
    replaced = defaultdict[str, list[str]](list)
    for fact in known.values():
        for successor in _successors(fact):
            replaced[successor].append(fact.id)
    before = _reached(fact_id, lambda one: replaced[one])
    after = _reached(
        fact_id, lambda one: _successors(known[one]) if one in known else ()
    )
    chain = dict.fromkeys([*reversed(before), fact_id, *after])
    return sorted(
        (known[one] for one in chain if one in known), key=lambda one: one.created_at
    )


def _reached(start: str, links: Callable[[str], Iterable[str]]) -> list[str]:
    """Return the ids that are reached from one, link by link, nearest first."""
    found = [start]
    for one in found:
        found += [other for other in dict.fromkeys(links(one)) if other not in found]
    return found[1:]


def _successors(fact: Fact) -> list[str]:
    """Return the ids of what has replaced a fact, also of what did so once."""
    return [
        one
        for one in (
            *(past.replaced_by for past in fact.past_retirements),
            fact.replaced_by,
        )
        if one
    ]
