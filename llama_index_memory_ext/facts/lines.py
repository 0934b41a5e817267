"""The line of a fact in a prompt: its words and days, and why it stands first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_memory_ext.text.entries import escape_tags
from llama_index_memory_ext.text.parts import Part
from llama_index_memory_ext.words import phrases

if TYPE_CHECKING:
    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.text.tokens import TokenCounter


def why_first(fact: Fact) -> str:
    """Return why a fact comes before facts that match better: "pinned", "correction" or "".

    A retired fact never comes first.
    """
    if fact.retired:
        return ""
    if fact.pinned:
        return "pinned"
    if fact.category == "correction":
        return "correction"
    return ""


def days_of(fact: Fact) -> dict[str, str]:
    """Return the first day of a fact as ``date`` and its last day as ``until``, by the offsets of its times.

    Unknown days are left out.

    Without a stated day, the first day is the day of creation. A fact that became known
    after its end has no first day.
    """
    days = {}
    if fact.ends is None or fact.began <= fact.ends:
        days["date"] = fact.began.isoformat()
    if fact.ends is not None:
        days["until"] = fact.ends.isoformat()
    return days


def fact_line(fact: Fact) -> str:
    """Return a fact as one line: ``<fact date="2026-11-20">Prefers pytest for testing</fact>`` and a newline.

    The last day follows the first: ``<fact date="2023-05-01" until="2025-11-20">``. A
    plan is marked: ``<fact date="2026-11-20" planned="yes">``. Category and confidence
    are left out: they would double the tokens of a short fact. A sentence of the user's
    is given as the user's words.
    """
    content = escape_tags(" ".join(fact.content.split()))
    is_spoken = phrases("people", "first_person").search(fact.content) is not None
    if fact.is_users_words or is_spoken:
        content = f'The user: "{content}"'
    attributes = days_of(fact)
    if fact.said_as == "planned":
        attributes["planned"] = "yes"
    text = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f"<fact{text}>{content}</fact>\n"


def counted_line(fact: Fact, counter: TokenCounter) -> Part:
    """Return the line of a fact as a part of the prompt."""
    line = fact_line(fact)
    return Part("fact", line, counter.count(line))
