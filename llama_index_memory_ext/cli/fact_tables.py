"""Prints facts, and why they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.cli.plain import one_line
from llama_index_memory_ext.cli.screen import console, say, show_json, show_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.facts.explanation import ExplainedFact, Explanation
    from llama_index_memory_ext.facts.ranking import RankedFact

_MATCHED = 5
_WIDE = 90
_NARROW = 60
_LISTED = ("id", "fact", "category", "sure", "since")
_EXPLAINED = ("shown", "score", "alike", "sure", "tokens", "id", "fact")


def as_json(fact: Fact) -> dict[str, Any]:
    """All fields of a fact as JSON has them."""
    return fact.model_dump(mode="json")


def show_facts(facts: Sequence[Fact], namespace: str, *, stderr: bool = False) -> None:
    """A table of facts in the order given; of retired ones it says why."""
    if not facts:
        say(f"No facts of {namespace}.", stderr=stderr)
        return
    short = _short(facts)
    rows = [
        (short[fact.id], _content(fact), fact.category, f"{fact.confidence:.2f}", f"{fact.updated_at:%Y-%m-%d}")
        for fact in facts
    ]
    # Half a date would be a wrong one.
    kept = [i for i, name in enumerate(_LISTED) if name != "category" or console(stderr=stderr).width >= _NARROW]
    show_table([_LISTED[i] for i in kept], [[row[i] for i in kept] for row in rows], stderr=stderr)


def show_found(found: Sequence[RankedFact], namespace: str) -> None:
    """A table of facts with their scores."""
    if not found:
        say(f"No fact of {namespace} has a word in common with that.")
        return
    short = _short([entry.fact for entry in found])
    rows = [
        (f"{entry.score:.2f}", short[entry.fact.id], _content(entry.fact), ", ".join(entry.matched[:_MATCHED]))
        for entry in found
    ]
    show_table(("score", "id", "fact", "matched"), rows)


def show_explanation(explanation: Explanation, namespace: str, *, as_json_: bool = False) -> None:
    """A table that says of each fact whether it is shown, and why."""
    if as_json_:
        show_json(
            {
                "tokens": explanation.tokens,
                "token_limit": explanation.limit,
                "facts": [_explained_as_json(entry) for entry in explanation.facts],
            }
        )
        return
    if not explanation.facts:
        say(f"No facts of {namespace}.")
        return
    short = _short([entry.fact for entry in explanation.facts])
    rows = [_explained_row(entry, short[entry.fact.id]) for entry in explanation.facts]
    # Where there is no room for it, what the score is made of is left out.
    left_out = () if console().width >= _WIDE else ("alike", "sure")
    kept = [i for i, name in enumerate(_EXPLAINED) if name not in left_out]
    show_table([_EXPLAINED[i] for i in kept], [[row[i] for i in kept] for row in rows])
    say(f"{explanation.tokens} of {explanation.limit} tokens")


def show_changed(what: str, fact: Fact, *, as_json_: bool) -> None:
    """What was done to a fact."""
    if as_json_:
        show_json(as_json(fact))
    else:
        say(f"{what} {fact.id}: {one_line(fact.content)}")


def _content(fact: Fact) -> str:
    content = one_line(fact.content)
    pinned = "(pinned) " if fact.pinned else ""
    return f"{pinned}{content}" + (f" (retired: {one_line(fact.retired_reason or '')})" if fact.retired else "")


def _short(facts: Sequence[Fact]) -> dict[str, str]:
    from llama_index_memory_ext.cli.ids import short_ids

    return short_ids(fact.id for fact in facts)


def _explained_row(entry: ExplainedFact, short_id: str) -> tuple[str, ...]:
    numbers = (f"{entry.score:.2f}", f"{entry.similarity:.2f}", f"{entry.confidence:.2f}", str(entry.tokens))
    matched = f" (matched: {', '.join(entry.matched[:_MATCHED])})" if entry.matched else ""
    shown = f"{'yes' if entry.injected else 'no'}: {entry.why}"
    return (shown, *numbers, short_id, _content(entry.fact) + matched)


def _explained_as_json(entry: ExplainedFact) -> dict[str, Any]:
    return {
        **as_json(entry.fact),
        "shown": entry.injected,
        "why": entry.why,
        "score": entry.score,
        "similarity": entry.similarity,
        "matched": list(entry.matched),
        "tokens": entry.tokens,
    }
