"""The facts before and after a fact, in chains of replacements."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from llama_index_memory_ext.fact import Fact


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


def history_of(facts: Iterable[Fact], fact_id: str) -> list[Fact]:
    """Return a fact with its predecessors and its successors, oldest first; [] for an unknown id.

    Replacements that were undone count, too.
    """
    by_id = {fact.id: fact for fact in facts}
    if fact_id not in by_id:
        return []
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
