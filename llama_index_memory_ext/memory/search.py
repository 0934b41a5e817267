"""The result of a search in the facts of a user and the messages of a session, and the checks of what is searched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_index_memory_ext.facts.lines import days_of
from llama_index_memory_ext.facts.ranking import IN_PROFILE, RankedFact
from llama_index_memory_ext.settings import check_count

if TYPE_CHECKING:
    from llama_index_memory_ext.record.recall import FoundMessage


@dataclass(frozen=True, slots=True)
class MemorySearchResult:
    """Facts and messages that match a question; ``print`` shows a line for each.

    A search returns the best entries first, ``last_used`` the order of the prompt.
    ``facts``: each has a ``fact``, a ``score``, 0..1 as in the ranking, and a ``place``:
    "profile" before the record, "question" after it, "" in a search.
    ``messages``: each has a ``role``, a ``day``, a ``text`` of at most 500 tokens, a
    ``similarity`` (1 for the best message), its ``row_ids``, and the ``message_id`` of
    the program.
    """

    facts: tuple[RankedFact, ...] = ()
    messages: tuple[FoundMessage, ...] = ()

    def __repr__(self) -> str:
        # A log may show it, so it has no words of users.
        return f"{type(self).__name__}({len(self.facts)} facts, {len(self.messages)} messages)"

    def __str__(self) -> str:
        lines = []
        for entry in self.facts:
            kind = "profile" if entry.place == IN_PROFILE else "fact"
            labels = [kind, *days_of(entry.fact).values()]
            lines.append(_line(entry.score, labels, entry.fact.content))
        for message in self.messages:
            labels = [message.role, message.day]
            lines.append(_line(message.similarity, labels, message.text))
        return "\n".join(lines) or "Nothing found."


def _line(score: float, labels: list[str], text: str) -> str:
    return f"{score:.2f}  {', '.join(filter(None, labels))}: {' '.join(text.split())}"


def check_search(similarity_top_k: int, *, facts: bool, messages: bool) -> None:
    """Raise a ValueError if nothing is searched, or ``similarity_top_k`` is not a whole number of at least 1."""
    if not (facts or messages):
        raise ValueError(
            "facts=False and messages=False leave nothing to look for; set one of them to True."
        )
    check_count("similarity_top_k", similarity_top_k)


def check_memory(memory: object, caller: str) -> None:
    """Raise a TypeError for anything but a ``CondensedMemory``."""
    # The class stands above this file; only its memories have this attribute.
    if not hasattr(memory, "facts_block"):
        raise TypeError(
            f"{caller} asks a CondensedMemory; this is a {type(memory).__name__}. "
            "Build one with CondensedMemory.from_defaults(...)."
        )
