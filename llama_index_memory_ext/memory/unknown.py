"""Tells whether the user asks about themselves, and the memory has no word of the question."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import (
    ChatMessage,
    ContentBlock,
    MessageRole,
    TextBlock,
)

from llama_index_memory_ext.checks.clauses import clauses_in
from llama_index_memory_ext.memory.template import UNKNOWN
from llama_index_memory_ext.text.entries import body_of
from llama_index_memory_ext.words import pattern
from llama_index_memory_ext.words.asking import asks
from llama_index_memory_ext.words.tokens import keywords, overlaps, related_terms

if TYPE_CHECKING:
    from collections.abc import Sequence


def add_line(content: list[ContentBlock], turn: Sequence[ChatMessage]) -> None:
    """End the content of the memory with the line ``UNKNOWN`` if the question of the turn needs it.

    Words of the user in the turn count as known. Results of tools do not count, so
    that the line stays in all rounds.
    """
    users_texts = [
        body_of(message) for message in turn if message.role == MessageRole.USER
    ]
    if not users_texts:
        return
    *before, question = users_texts
    texts = [block.text for block in content if isinstance(block, TextBlock)]
    # The tags around facts and messages have words, too.
    text = pattern(r"<[^<>]*>").sub(" ", "\n".join([*texts, *before]))
    if is_unknown(question, text):
        content.append(TextBlock(text=UNKNOWN))


def is_unknown(question: str, text: str) -> bool:
    """Return whether a question of a speaker about themselves has no word, nor a related one, in a text.

    >>> is_unknown("Where do I live?", "Likes tea"), is_unknown("Where do I live?", "Lives in Oslo")
    (True, False)
    """
    words = keywords(question)
    is_own = any(clause.person == "user" for clause in clauses_in([question]))
    if not (words and is_own and asks(question)):
        return False
    related = frozenset(chain(words, *map(related_terms, words)))
    return not overlaps(related, keywords(text))
