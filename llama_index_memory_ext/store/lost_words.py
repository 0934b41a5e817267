"""A fact without the words of deleted messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.fact import Fact, utc_now
from llama_index_memory_ext.store.readers import find_rows
from llama_index_memory_ext.text.turns import spoken
from llama_index_memory_ext.words import visible

if TYPE_CHECKING:
    from llama_index_memory_ext.store.transaction import Transaction

# The characters of a line that other messages may hold by chance.
_SHORT_LINE = 80


class Remaining(NamedTuple):
    """What remains of a session: the ids of its rows, and the lines of its messages, each between line breaks."""

    ids: set[int]
    text: str


def read_remaining(tx: Transaction, key: str) -> Remaining:
    """Return what remains of a session; a line is as the ``source`` of a fact holds it."""
    rows = find_rows(tx, key)
    texts = [visible(spoken(row.message)) for row in rows]
    return Remaining({row.id for row in rows}, "\n".join(["", *texts, ""]))


def without_words(fact: Fact, remaining: Remaining) -> Fact:
    """Return a fact without deleted words: its quote, if one of its messages was deleted, and the text around it.

    That text may hold words of the messages beside it. A fact without a remaining
    message has no session.
    """
    ids = tuple(row_id for row_id in fact.message_ids if row_id in remaining.ids)
    lines = fact.source.splitlines()
    # A long line may be a part of a message. A short line, such as "No", is a part of many
    # words.
    parts = [line if len(line) > _SHORT_LINE else f"\n{line}\n" for line in lines]
    is_same = ids == fact.message_ids
    if is_same and all(part in remaining.text for part in parts):
        return fact
    return fact.model_copy(
        update={
            "quote": fact.quote if is_same else "",
            "source": "",
            "words_deleted_at": utc_now(),
            "message_ids": ids,
            "session_id": fact.session_id if ids else None,
        }
    )
