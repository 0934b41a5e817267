"""Turns facts into the lines that a model reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_memory_ext.text.messages import escape_tags

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llama_index_memory_ext.fact import Fact

# A line of nothing but its tags: where its tokens do not fit, no fact does.
EMPTY_LINE = '<fact date="2026-11-20"></fact>\n'


def line_of(fact: Fact, tags: Iterable[str] = ()) -> str:
    """One fact as one line: ``<fact date="2026-11-20">Prefers pytest for testing</fact>`` and a newline.

    The date is the day (UTC) on which the fact was first known. Category and confidence are not shown: they
    would take as many tokens again as a short fact, and their work is done when the facts are ranked. White space
    within the content becomes one space. ``tags`` are further element names, besides our own, that the
    content must not be able to forge.
    """
    content = escape_tags(" ".join(fact.content.split()), tags)
    return f'<fact date="{fact.created_at.date().isoformat()}">{content}</fact>\n'


def split_lines(text: str) -> list[str]:
    """The lines of rendered facts, best first, each with its newline; takes apart exactly what was put together."""
    return [f"{line}\n" for line in text.split("\n") if line]
