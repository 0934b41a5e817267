"""The deletion of messages: their rows, ids and vectors, the cursors after them, and the facts that name them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_memory_ext.errors import EncryptionError
from llama_index_memory_ext.store.facts import parse_facts, put_facts
from llama_index_memory_ext.store.lost_words import without_words
from llama_index_memory_ext.store.readers import (
    find_rows,
    put_cursor,
    renew_session,
    rows_by_id,
)
from llama_index_memory_ext.store.tables import ACTIVE, ROWS, vectors_namespace
from llama_index_memory_ext.text.turns import spoken
from llama_index_memory_ext.words import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.store.rows import LogRow
    from llama_index_memory_ext.store.transaction import Transaction
    from llama_index_memory_ext.text.messages import Json


_SELECT_IDS = (
    "SELECT id FROM {rows} WHERE key = :key AND status IN :statuses ORDER BY id"
)
_DELETE_ROWS = "DELETE FROM {rows} WHERE key = :key AND id {in_row_ids}"
_DELETE_MESSAGE_IDS = (
    "DELETE FROM {message_ids} WHERE key = :key AND row_id {in_row_ids}"
)
_SELECT_CALL = """
SELECT id FROM {rows} WHERE key = :key AND id <= :row_id AND role NOT IN ('tool', 'function')
ORDER BY id + 0 DESC LIMIT 1
"""
_DELETE_VECTORS = (
    "DELETE FROM {embeddings} WHERE namespace = :namespace AND id {in_ids}"
)
# ``remaining``: the last row up to the cursor, after the deletion; 0 if there is none.
_SELECT_CURSORS_BEHIND = """
SELECT reader, state, COALESCE((
    SELECT MAX(id + 0) FROM {rows} WHERE key = :key AND id <= cursors.position
), 0) AS remaining
FROM {cursors} AS cursors WHERE key = :key AND position >= :first
"""
_SELECT_NAMESPACES = "SELECT DISTINCT namespace FROM {facts} WHERE session_id = :session_id ORDER BY namespace"
_SELECT_FACTS = """
SELECT namespace, id, data FROM {facts} WHERE namespace = :namespace AND session_id = :session_id
"""


def delete_rows(tx: Transaction, key: str, ids: Sequence[int]) -> int:
    """Delete the rows with these ids, which are sorted, and return the number of facts that have lost their words.

    A later row may get the id of a deleted row. So a cursor at or after the first
    deleted row moves back; ``move_cursor`` says which cursors begin again. And facts lose
    the ids and the words of the rows. The session gets a new epoch, also without ``ids``,
    so that its readers read it again.
    """
    facts = 0
    if ids:
        facts = lose_words(tx, key, ids)
        _delete_vectors(tx, key, ids)
        tx.execute(_DELETE_MESSAGE_IDS, key=key, row_ids=ids)
        tx.execute(_DELETE_ROWS, key=key, row_ids=ids)
        _move_cursors_back(tx, key, ids)
    renew_session(tx, key)
    return facts


def delete_row(tx: Transaction, key: str, row_id: int) -> LogRow | None:
    """Delete a row of a session and return it; None if the session has no such row."""
    for row in rows_by_id(tx, key, [row_id]):
        delete_rows(tx, key, [row_id])
        return row
    tx.rollback()
    return None


def delete_all(tx: Transaction, key: str, statuses: Sequence[str]) -> None:
    """Delete the rows of a session with these statuses."""
    delete_rows(tx, key, tx.scalars(_SELECT_IDS, key=key, statuses=statuses))


def delete_oldest(tx: Transaction, key: str, count: int) -> list[LogRow]:
    """Delete the oldest active rows, at most ``count``, and return them."""
    oldest = find_rows(tx, key, [ACTIVE], limit=count)
    if oldest:
        delete_rows(tx, key, [row.id for row in oldest])
    return oldest


def _delete_vectors(tx: Transaction, key: str, ids: Sequence[int]) -> None:
    """Delete the vectors of rows; a tool's result shares the vector of its call, which comes before it."""
    calls = tx.scalars(_SELECT_CALL, key=key, row_id=ids[0])
    tx.execute(
        _DELETE_VECTORS,
        namespace=vectors_namespace(key),
        ids=[str(row_id) for row_id in [*calls, *ids]],
    )


def _move_cursors_back(tx: Transaction, key: str, ids: Sequence[int]) -> None:
    """Move the cursors at or behind the first of these deleted rows to rows that remain, or to the beginning."""
    deleted = set(ids)
    for cursor in tx.rows(_SELECT_CURSORS_BEHIND, key=key, first=ids[0]):
        position = 0
        state = cursor.state
        # A reader whose state cannot be read begins again.
        if isinstance(state, EncryptionError):
            state = {}
        if state is None or ROWS in state:
            position = cursor.remaining
        if state:
            state = _without_deleted(state, deleted, position)
        put_cursor(tx, key, cursor.reader, position, state or None)


def _without_deleted(
    state: dict[str, Json], deleted: set[int], position: int
) -> dict[str, Json] | None:
    """Return a reader's state without the entries of deleted rows; None if it says nothing then."""
    entries = [row for row in state.get(ROWS, ()) if deleted.isdisjoint(row[:2])]
    if entries or position:
        return {**state, ROWS: entries}
    return None


# ---- facts ----


def lose_words(tx: Transaction, key: str, ids: Sequence[int]) -> int:
    """Take rows and their words from the facts of a session, and return the number of changed facts.

    The rows are deleted afterwards, because their words are read here.
    """
    namespaces = tx.scalars(_SELECT_NAMESPACES, session_id=key)
    if not namespaces:
        return 0
    # Other processes may change or delete facts between reading and writing.
    tx.lock((), namespaces)
    deleted = set(ids)
    text = _read_lines(tx, key, ids)
    count = 0
    for namespace in namespaces:
        rows = tx.rows(_SELECT_FACTS, namespace=namespace, session_id=key)
        changed = []
        for fact in parse_facts(tx, rows).values():
            remaining = without_words(fact, deleted, text)
            if remaining != fact:
                changed.append(remaining)
        put_facts(tx, namespace, changed)
        count += len(changed)
    return count


def _read_lines(tx: Transaction, key: str, ids: Sequence[int]) -> str:
    """Return the lines of rows in the form of the ``source`` of a fact, each between line breaks."""
    lines = [""]
    for row in rows_by_id(tx, key, ids):
        lines += visible(spoken(row.message)).splitlines()
    return "\n".join([*lines, ""])
