"""The request for facts: the messages that ask a model, with its instructions and the conversation."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import ChatMessage

from llama_index_memory_ext.fact import CATEGORIES, Fact
from llama_index_memory_ext.learning.categories import (
    Categories,
    list_categories,
    read_category,
)
from llama_index_memory_ext.learning.reply import EXAMPLE_QUOTE, TAGS
from llama_index_memory_ext.text.entries import escape_tags
from llama_index_memory_ext.text.turns import OTHER_ROLE, Utterance
from llama_index_memory_ext.words.asking import asks
from llama_index_memory_ext.words.dates import WEEKDAYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date


_INSTRUCTIONS = (files(__package__) / "instructions.txt").read_text("utf-8").strip()
_WHAT_TO_FIND = "what the user states about themselves, their life, people or work"
# The end of a message that a user answers, and a message that may need it, in characters.
_MOST_ANSWERED = 200
_SHORT_ANSWER = 40


def extraction_prompt(
    lines: Sequence[Utterance],
    known_facts: Sequence[Fact],
    *,
    said_on: date,
    categories: Categories = CATEGORIES,
    instructions: str | None = None,
    before: Sequence[Utterance] = (),
    rejected: str = "",
) -> list[ChatMessage]:
    """Return the messages that ask for facts: the same instructions for each batch, and one text to read.

    Args:
        lines: The messages to learn from.
        known_facts: The known facts, which a reply names by their places, from 1.
        said_on: The day of the messages, from which relative dates count.
        categories: The categories of new facts.
        instructions: What to look for, in place of our own words. The rest stays, so
            that the reply can be read.
        before: The messages right before ``lines``.
        rejected: A text about facts that were rejected.
    """
    facts = "".join(
        f"{i}. {on_one_line(fact.content)}\n" for i, fact in enumerate(known_facts, 1)
    )
    text = f"<known_facts>\n{facts}</known_facts>\n" if facts else ""
    day = f"{WEEKDAYS[said_on.weekday()]}, {said_on.isoformat()}"
    text += f"{rejected}The messages are of {day}.\n<transcript>\n{_numbered(lines, before)}</transcript>"
    system = _INSTRUCTIONS.format(
        example_quote=EXAMPLE_QUOTE,
        example_category=read_category(None, categories),
        what_to_find=(instructions or "").strip() or _WHAT_TO_FIND,
        categories=list_categories(categories),
    )
    return [
        ChatMessage(role="system", content=system),
        ChatMessage(role="user", content=text),
    ]


def _numbered(lines: Iterable[Utterance], before: Sequence[Utterance]) -> str:
    """Return the user's messages, a numbered line each.

    The end of the message before stands above a user's message of at most 40 characters,
    and above an answer to a question.
    """
    text = ""
    number = 0
    previous = before[-1] if before else None
    for line in lines:
        message = on_one_line(line.text)
        if line.is_users and message:
            number += 1
            if previous and not previous.is_users:
                answered = on_one_line(sent_part(previous))
                if len(message) <= _SHORT_ANSWER or asks(answered):
                    role = OTHER_ROLE if previous.role == OTHER_ROLE else "assistant"
                    text += f"{role}: {answered}\n"
            text += f"{number}. user: {message}\n"
        previous = line
    return text


def sent_part(line: Utterance) -> str:
    """Return the part of a message that a request may have: the user's whole, and the end of any other."""
    return line.text if line.is_users else line.text[-_MOST_ANSWERED:]


def on_one_line(text: str) -> str:
    """Return a text without line breaks and without our tags."""
    return escape_tags(" ".join(text.split()), TAGS)
