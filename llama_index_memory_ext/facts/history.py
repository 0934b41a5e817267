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
            successors = _linked(fact, facts, _successor)
            if not any(later.retired_by == "request" for later in successors):
                yield fact


def history_of(facts: Iterable[Fact], fact_id: str) -> list[Fact]:
    """Return a fact with its predecessors and its successors, oldest first; [] for an unknown id."""
    by_id = {fact.id: fact for fact in facts}
    if fact_id not in by_id:
        return []
    replaced = defaultdict[str, list[str]](list)
    for fact in by_id.values():
        for successor in _successor(fact):
            replaced[successor].append(fact.id)
    fact = by_id[fact_id]
    before = _linked(fact, by_id, lambda later: replaced[later.id])
    after = _linked(fact, by_id, _successor)
    chain = dict.fromkeys([*reversed(before), fact, *after])
    return sorted(chain, key=lambda fact: fact.created_at)


def _linked(
    fact: Fact, facts: Mapping[str, Fact], links: Callable[[Fact], Iterable[str]]
) -> list[Fact]:
    """Return the facts that are reached from a fact, link by link, nearest first."""
    chain = [fact]
    for linked in chain:
        for name in links(linked):
            if name in facts and facts[name] not in chain:
                chain.append(facts[name])
    return chain[1:]


def _successor(fact: Fact) -> list[str]:
    """Return the id of the fact that has replaced a fact; [] for none."""
    return [fact.replaced_by] if fact.replaced_by else []
