"""The user's words in other sessions from which no facts were extracted yet, as a prompt shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_memory_ext.record.index import MessageIndex
from llama_index_memory_ext.store.rows import day_of, times_of
from llama_index_memory_ext.text.entries import escape_tags
from llama_index_memory_ext.text.parts import Part, Section, counted_section
from llama_index_memory_ext.text.tokens import take_fitting
from llama_index_memory_ext.text.turns import spoken

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import tzinfo

    from llama_index_memory_ext.store.rows import LogRow
    from llama_index_memory_ext.text.tokens import TokenCounter

# A message may have this part of the limit.
_MESSAGE_SHARE = 0.5


def show_unread(
    rows: Sequence[LogRow],
    question: str,
    limit: int,
    counter: TokenCounter,
    *,
    languages: tuple[str, ...] | None,
    zone: tzinfo | None,
) -> Section:
    """Return messages of a user within ``limit`` tokens, oldest first, a line for each; empty for none.

    The messages that match the question are chosen first, and then the newest messages.
    A long message is clipped.

    Args:
        rows: The messages, oldest first.
        question: The question.
        limit: The most tokens.
        counter: Counts the tokens.
        languages: The languages of questions; None for any.
        zone: Tells the days; None: as ``times_of``.
    """
    rows = [row for row in rows if spoken(row.message)]
    index = MessageIndex(0, counter, languages=languages, time_zone=zone)
    index.add(rows)
    matching = [match.message.row_ids[0] for match in index.ranked(question)]
    newest_first = [row.id for row in reversed(rows)]
    best_first = dict.fromkeys([*matching, *newest_first])
    lines = {}
    for row, said_at in zip(rows, times_of(rows, zone), strict=True):
        text = " ".join(spoken(row.message).split())
        words = escape_tags(counter.clip(text, int(limit * _MESSAGE_SHARE)))
        day = day_of(said_at)
        date = f' date="{day}"' if day else ""
        line = f'<fact{date}>The user, in another chat: "{words}"</fact>\n'
        lines[row.id] = Part("unread", line, counter.count(line), row_id=row.id)
    chosen = take_fitting(best_first, lambda row_id: lines[row_id].tokens, limit)
    return counted_section([lines[row_id] for row_id in sorted(chosen)], counter)
