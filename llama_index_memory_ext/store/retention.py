"""Deletes old turns of sessions, and their words in facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.store.owners import readers_of_facts
from llama_index_memory_ext.store.readers import find_rows, read_turns
from llama_index_memory_ext.store.row_deletion import delete_rows
from llama_index_memory_ext.store.tables import ACTIVE, LAST_ID
from llama_index_memory_ext.text.turns import ends_with_answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.store.transaction import Transaction

# The sessions that may have turns to delete: retention locks no other session. An
# unknown time is 0.
SELECT_DUE = """
SELECT key FROM {rows} GROUP BY key HAVING MIN(NULLIF(timestamp, 0)) < :last OR COUNT(*) > :limit
"""
# The last row that all readers of facts have read; ``last_id`` without such a reader. The
# cursor of a profile, "profile BLOCK of USER", is left out: it stores a choice, and reads
# no messages. A block may have the name "profile", too.
_SELECT_READ = """
SELECT COALESCE(MIN(position), :last_id) FROM {cursors}
WHERE key = :key AND reader {in_names}
  AND (reader NOT LIKE 'profile %' OR reader LIKE 'profile of %' OR reader LIKE 'profile by %')
"""


def retain_messages(
    tx: Transaction, key: str, since: int, most: int, *, unread: bool
) -> dict[str, int]:
    """Delete turns of a session that have a message from before ``since``, or beyond the ``most`` newest messages.

    ``since`` is in nanoseconds since 1970. The current turn stays until it is answered
    and too old. Without ``unread``, turns stay that a reader of facts has not read.

    Return the number of deleted ``"messages"``, of ``"facts"`` that lost words, and of
    messages that stay because they are ``"unread"``. If no message is deleted, only the
    last number is returned.
    """
    last = LAST_ID
    if not unread:
        readers = readers_of_facts(tx, key)
        last = tx.scalar(_SELECT_READ, key=key, names=readers, last_id=LAST_ID)
    ids: list[int] = []
    unread_rows = 0
    active = find_rows(tx, key, [ACTIVE])
    is_answered = ends_with_answer([row.message for row in active])
    turns = read_turns(tx, key)
    for turn in _due_turns(turns, since, most, is_answered=is_answered):
        if turn[-1].id <= last:
            ids.extend(row.id for row in turn)
        else:
            unread_rows += len(turn)
    if not ids:
        tx.rollback()
        return {"unread": unread_rows}
    return {
        "messages": len(ids),
        "facts": delete_rows(tx, key, ids),
        "unread": unread_rows,
    }


def _due_turns(
    turns: Sequence[Sequence[Any]], since: int, most: int, *, is_answered: bool
) -> list[Sequence[Any]]:
    """Return the past turns with a row from before ``since``, or with a row before the ``most`` newest ones.

    A younger turn stays, even if older messages were imported after it. The current
    turn has active rows. It counts as past if it ``is_answered`` and its last row is
    from before ``since``.
    """
    due = []
    remaining = sum(map(len, turns))
    for turn in turns:
        is_current = any(row.status == ACTIVE for row in turn)
        if is_current and not (is_answered and 0 < turn[-1].timestamp < since):
            break
        if remaining > most or any(0 < row.timestamp < since for row in turn):
            due.append(turn)
        remaining -= len(turn)
    return due
