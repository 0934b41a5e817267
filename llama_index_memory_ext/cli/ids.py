"""Finds facts by the beginning of their ids, and shortens ids for the eye."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from llama_index_memory_ext.cli.reasons import TerminalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_index_memory_ext.fact import Fact

_SHORTEST = 8
_NAMED = 5


def fact_of(beginning: str, facts: Sequence[Fact]) -> Fact:
    """The one fact whose id is this, or begins with this.

    Raises:
        TerminalError: There is none, or there are several.
    """
    whole = [fact for fact in facts if fact.id == beginning]
    found = whole or [fact for fact in facts if beginning and fact.id.startswith(beginning)]
    if not found:
        raise TerminalError(f"There is no fact {beginning!r} among {len(facts)}. `facts list --retired` shows all.")
    if len(found) > 1:
        shown = short_ids(fact.id for fact in facts)
        named = ", ".join(sorted(shown[fact.id] for fact in found)[:_NAMED])
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise TerminalError(f"{len(found)} ids begin with {beginning!r}: {named}{more}. Give more of the one you mean.")
    return found[0]


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """For each id a beginning that no other has, of eight characters or more; all of it where another begins with it.

    >>> short_ids(["abcdefgh1", "abcdefgh2", "xyz", "0123456789"])
    {'abcdefgh1': 'abcdefgh1', 'abcdefgh2': 'abcdefgh2', 'xyz': 'xyz', '0123456789': '01234567'}
    """
    given = list(dict.fromkeys(ids))
    in_order = sorted(given)
    needed = dict.fromkeys(in_order, _SHORTEST)
    # Those that share most with an id stand beside it.
    for one, next_ in pairwise(in_order):
        shared = _shared(one, next_) + 1
        needed[one], needed[next_] = max(needed[one], shared), max(needed[next_], shared)
    return {fact_id: fact_id[: needed[fact_id]] for fact_id in given}


def _shared(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
