"""Deletes the words of deleted messages from a fact."""

from __future__ import annotations

from llama_index_memory_ext.fact import Fact, utc_now

# A line of at most so many characters may stand in other messages by chance.
_SHORT_LINE = 80


def without_words(fact: Fact, deleted: set[int], text: str) -> Fact:
    """Return a fact without the words of deleted messages; the same fact if it has none.

    ``deleted`` are the row ids of the messages. ``text`` has their lines, each between
    line breaks.

    If a message of its quote was deleted, the fact loses the quote and the ``source``.
    The ``source`` also has words of neighbouring messages. If only such a message was
    deleted, the fact keeps the quote. A fact without a remaining message has no session.
    """
    ids = tuple(row_id for row_id in fact.message_ids if row_id not in deleted)
    # A long line may be cut, so it may be a part of a message's line. A short line, such
    # as "No", must be a whole line, because it is also a part of many words.
    lines = filter(None, fact.source.splitlines())
    parts = [line if len(line) > _SHORT_LINE else f"\n{line}\n" for line in lines]
    is_same = ids == fact.message_ids
    if is_same and not any(part in text for part in parts):
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
