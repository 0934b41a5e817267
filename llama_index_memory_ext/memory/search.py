"""Searches what a memory knows: the facts of its user, and the messages of its session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_index_memory_ext.facts.book import check_top_k
from llama_index_memory_ext.facts.ranking import days_of

if TYPE_CHECKING:
    from llama_index_memory_ext.facts.ranking import RankedFact
    from llama_index_memory_ext.record.recall import FoundMessage


@dataclass(frozen=True, slots=True)
class MemorySearchResult:
    """What was found for a question: ``print`` shows a line for each; both are empty if nothing was.

    A search has the best first, ``last_used`` the order of the prompt. ``facts`` have a
    ``fact`` and a ``score``, 0..1 as in the ranking; ``messages`` a ``role``, a
    ``day``, a ``text`` of at most 500 tokens, a ``similarity``, 1 for the best one,
    their ``row_ids``, and the ``message_id`` that the program has given them.
    """

    facts: tuple[RankedFact, ...] = ()
    messages: tuple[FoundMessage, ...] = ()

    def __repr__(self) -> str:
        # What users have said is no part of it: a log may show it.
        return f"{type(self).__name__}({len(self.facts)} facts, {len(self.messages)} messages)"

    def __str__(self) -> str:
        found = [
            (entry.score, ["fact", *days_of(entry.fact).values()], entry.fact.content)
            for entry in self.facts
        ]
        found += [
            (one.similarity, [one.role, one.day], one.text) for one in self.messages
        ]
        lines = (
            f"{score:.2f}  {', '.join(filter(None, what))}: {' '.join(text.split())}"
            for score, what, text in found
        )
        return "\n".join(lines) or "Nothing found."


def check_search(similarity_top_k: int, *, facts: bool, messages: bool) -> None:
    """Raise a ValueError if there is nothing to look for, or ``similarity_top_k`` is less than 1."""
    if not (facts or messages):
        raise ValueError(
            "facts=False and messages=False leave nothing to look for; set one of them to True."
        )
    check_top_k(similarity_top_k)


def check_memory(memory: object, who: str) -> None:
    """Raise a TypeError for anything but a ``CondensedMemory``."""
    # The class stands above this file; no other memory has such a block.
    if not hasattr(memory, "facts_block"):
        raise TypeError(
            f"{who} asks a CondensedMemory; this is a {type(memory).__name__}. "
            "Build one with CondensedMemory.from_defaults(...)."
        )
