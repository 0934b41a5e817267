"""Scores an order of facts or messages: how much of a question's evidence is within a budget of tokens, best first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

BUDGETS = (250, 500, 1_000, 2_000, 4_000)

Item = dict[str, Any]


class Recall(NamedTuple):
    """The share of a question's evidence, in %, averaged over the questions: within each budget, and their mean."""

    by_budget: tuple[float, ...]
    mean: float


def found_within(
    order: Iterable[str],
    tokens: Mapping[str, int],
    sources: Mapping[str, Iterable[str]],
) -> list[set[str]]:
    """What the items bring that fit each budget; one that does not fit is passed over.

    Args:
        order: The ids of the items, best first.
        tokens: The tokens of each item.
        sources: What each item brings.

    Returns:
        A set for each of ``BUDGETS``.
    """
    ids, found = list(order), []
    for budget in BUDGETS:
        left, brought = budget, set[str]()
        for one in ids:
            if tokens[one] <= left:
                left -= tokens[one]
                brought.update(sources[one])
        found.append(brought)
    return found


def recall_of(shares: Sequence[Sequence[float]]) -> Recall:
    """Averages the shares (0..1) of the questions, each a share for each of ``BUDGETS``, to a tenth of a per cent."""
    means = [sum(by) / len(shares) for by in zip(*shares, strict=True)]
    return Recall(
        tuple(round(100 * mean, 1) for mean in means),
        round(100 * sum(means) / len(means), 1),
    )


def shares_of(evidence: Sequence[str], found: Iterable[set[str]]) -> list[float]:
    """The share (0..1) of the evidence that was found within each budget."""
    wanted = set(evidence)
    return [len(wanted & one) / len(wanted) for one in found]
