"""Says which facts were true before, when, and what has taken their place."""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING

from llama_index_memory_ext.errors import FactError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from llama_index_memory_ext.fact import Fact, RetiredBy
    from llama_index_memory_ext.facts.period import Period

# The user wants it gone: then it is nothing to be told about the past.
_FORGET = re.compile(
    r"(?i)\b(?:forget|(?:delete|erase|remove) (?:that|this|it|what|all|everything|from|the (?:fact|note)s?)|"
    r"(?:do not|don'?t|stop) (?:remember|stor|keep|mention)\w*|vergiss|vergessen|lösch(?:e|en)?)\b"
    r"|忘[记記掉了]|[删刪]除|别[再]?(?:记|提)|忘れ[てろ]|消[しせ]|削除"
)
# It was never true, other than what has changed.
_NEVER_TRUE = re.compile(
    r"(?i)\bnever (?:was|were|did|had|has|have|lived|worked|said|been|true)\b|\bi(?:'ve| have)? never\b"
    r"|\b(?:mistaken?|mistakenly|misheard|misunderst\w+|misspelled|mistyped|typo|incorrect|wrong)\b"
    r"|\b(?:ich|war|habe?|hatte) (?:\w+ )?(?:nie|niemals)\b|\b(?:falsch|irrtum|missverständnis|vertippt)\b"
    r"|从[来來]没|從來沒|[说說记記][错錯]|不[对對]|[误誤][会會解]|間違|誤解|一度も"
)


def why_retired(text: str) -> RetiredBy:
    """By what a fact was ended, from the user's words and the reason that a model gives.

    >>> why_retired("I moved to Rome"), why_retired("I never lived in Oslo"), why_retired("Forget where I live")
    ('change', 'correction', 'request')
    """
    straight = text.replace("\u2019", "'")
    if _FORGET.search(straight):
        return "request"
    return "correction" if _NEVER_TRUE.search(straight) else "change"


def past_facts(facts: Mapping[str, Fact], now: datetime) -> Iterator[Fact]:
    """The facts that were true before, by id: without those whose successor the user wants forgotten."""
    for fact in facts.values():
        if fact.state(now) == "past" and all(one.retired_by != "request" for one in _after(fact, facts)):
            yield fact


def true_in(fact: Fact, period: Period) -> bool:
    """Whether a past fact was true on a day of a period. One whose beginning is not known was true ever before."""
    end = fact.ends or date.max
    # It became known only later.
    start = fact.began if fact.began <= end else date.min
    return start <= period.end and end >= period.start


def is_later(fact: Fact, period: Period) -> bool:
    """Whether a fact that holds is known to be true only since after a period."""
    return fact.valid_from is not None and fact.valid_from > period.end


def history_of(facts: Iterable[Fact], fact_id: str, namespace: str) -> list[Fact]:
    """The fact with all that it has replaced and all that has replaced it, oldest first; a FactError for no such fact.

    A replacement that was undone counts, too.
    """
    known = {fact.id: fact for fact in facts}
    if fact_id not in known:
        raise FactError(f"There is no fact {fact_id!r} of {namespace!r} among {len(known)}. List them first.")
    fact = known[fact_id]
    chain = [*reversed(_before(fact, known)), fact, *_after(fact, known)]
    return sorted({one.id: one for one in chain}.values(), key=lambda one: one.created_at)


def _after(fact: Fact, facts: Mapping[str, Fact]) -> list[Fact]:
    """What has replaced a fact, and what has replaced that, nearest first."""
    return _reached(fact, lambda one: [facts[other] for other in _successors(one) if other in facts])


def _before(fact: Fact, facts: Mapping[str, Fact]) -> list[Fact]:
    """What a fact has replaced, and what that has replaced, nearest first."""
    replaced: dict[str, list[Fact]] = {}
    for one in facts.values():
        for successor in _successors(one):
            replaced.setdefault(successor, []).append(one)
    return _reached(fact, lambda one: replaced.get(one.id, ()))


def _reached(fact: Fact, next_of: Callable[[Fact], Iterable[Fact]]) -> list[Fact]:
    """The facts that are reached from one, step by step, nearest first."""
    found, left = {fact.id: fact}, [fact]
    while left:
        new = [one for one in next_of(left.pop(0)) if one.id not in found]
        found.update((one.id, one) for one in new)
        left += new
    return list(found.values())[1:]


def _successors(fact: Fact) -> Sequence[str]:
    """The ids of what has replaced a fact, also of what did so once."""
    undone = [one.replaced_by for one in fact.past_retirements]
    return [one for one in (*undone, fact.replaced_by) if one]
