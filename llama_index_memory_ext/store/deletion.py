"""Deletes old turns, and the sessions and facts of users, from all tables and files."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.store.deleted_words import forget_words, lose_words
from llama_index_memory_ext.store.log import delete_rows
from llama_index_memory_ext.store.owners import readers_of_facts
from llama_index_memory_ext.store.readers import sessions_of_user
from llama_index_memory_ext.store.schema import TABLES
from llama_index_memory_ext.store.tables import (
    ACTIVE,
    LAST_ID,
    PROFILE_READER,
    WITHOUT_USER,
    vectors_namespace,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from llama_index_memory_ext.store.transaction import Transaction

logger = logging.getLogger(__name__)

_SELECT_TURNS = """
SELECT id, role, timestamp, status, user_id FROM {rows} WHERE key = :key ORDER BY id
"""
# The sessions that retention locks. An unknown time is 0.
SELECT_DUE = """
SELECT key FROM {rows} GROUP BY key HAVING MIN(timestamp) BETWEEN 1 AND :last OR COUNT(*) > :limit
"""
_SELECT_READ = """
SELECT COALESCE(MIN(position), :last_id) AS position FROM {cursors} WHERE key = :key AND reader {in_names}
"""
_SELECT_READERS = "SELECT reader FROM {cursors} WHERE key {in_names}"
_SELECT_OWNERS = "SELECT key, user_id, kind FROM {owners} WHERE key {in_names}"
_DELETE_OWNER = "DELETE FROM {owners} WHERE key = :key AND user_id = :user_id"
_DELETE_READERS = "DELETE FROM {cursors} WHERE key = :key AND reader {in_names}"
# Statements with the kinds of the rows that they delete.
_DELETIONS = (
    ("messages", "DELETE FROM {rows} WHERE key {in_keys}"),
    ("cursors", "DELETE FROM {cursors} WHERE key {in_keys}"),
    ("cursors", "DELETE FROM {owners} WHERE key {in_keys}"),
    ("message ids", "DELETE FROM {message_ids} WHERE key {in_keys}"),
    ("sessions", "DELETE FROM {sessions} WHERE key {in_keys}"),
    ("facts", "DELETE FROM {facts} WHERE namespace {in_namespaces}"),
    ("users", "DELETE FROM {users} WHERE namespace {in_namespaces}"),
    ("embeddings", "DELETE FROM {embeddings} WHERE namespace {in_vectors}"),
)
# A server skips a table that the user may not vacuum. It says so in a notice, which
# drivers do not hand on.
_MAY_VACUUM = """
SELECT pg_has_role(relowner, 'USAGE') OR (
    SELECT pg_has_role(datdba, 'USAGE') FROM pg_database WHERE datname = current_database()
)
FROM pg_class WHERE oid = to_regclass(:name)
"""


class Forgotten(NamedTuple):
    """A deleted user: the user's sessions, the namespaces whose facts lost words, and the deleted rows by kind."""

    sessions: set[str]
    namespaces: set[str]
    counts: dict[str, int]


# ---- old turns ----


def retain_messages(
    tx: Transaction, key: str, since: int, most: int, *, unread: bool
) -> dict[str, int]:
    """Delete turns of a session that have a message from before ``since``, or beyond the ``most`` newest messages.

    The current turn stays. Without ``unread``, messages stay that a reader of facts
    has not read. Return the numbers of deleted messages, of facts that lost words,
    and of messages that stay because they are unread.
    """
    rows = tx.execute(_SELECT_TURNS, key=key).all()
    last = LAST_ID if unread else _read_by_all(tx, key)
    ids: list[int] = []
    unread_rows = 0
    for turn in _due_turns(_past_turns(rows), since, len(rows) - most):
        if turn[-1].id <= last:
            ids.extend(row.id for row in turn)
        else:
            unread_rows += len(turn)
    if not ids:
        tx.rollback()
        return {"unread": unread_rows}
    remaining = {row.id for row in rows}.difference(ids)
    delete_rows(tx, key, ids)
    changed = lose_words(tx, key, remaining)
    return {"messages": len(ids), "facts": changed, "unread": unread_rows}


def _read_by_all(tx: Transaction, key: str) -> int:
    """Return the last row that all readers of facts have read; ``LAST_ID`` without such a reader."""
    names = readers_of_facts(tx, key)
    readers = [name for name in names if not name.startswith(PROFILE_READER)]
    last_read: int = tx.execute(
        _SELECT_READ, key=key, names=readers, last_id=LAST_ID
    ).scalar_one()
    return last_read


# ---- sessions and users ----


def forget_session(tx: Transaction, key: str) -> dict[str, int]:
    """Delete a session; return the number of deleted rows by kind."""
    return _delete(tx, [key], (), Counter())


def forget_user(
    tx: Transaction, user_id: str, session_ids: Collection[str]
) -> Forgotten:
    """Delete the facts of a user, the user's sessions and the ``session_ids``.

    If a session has other owners, only the turns of the user are deleted, and the
    facts that others learned from them.
    """
    owned = sessions_of_user(tx, user_id)
    sessions = {*session_ids, *owned}
    tx.lock(sessions, ())
    read_by = _namespaces_that_read(tx, sessions)
    # A session without a user has facts in a separate namespace.
    namespaces = {user_id}
    staying: dict[str, set[str]] = {key: set() for key in sessions}
    for owner in tx.execute(_SELECT_OWNERS, names=list(sessions)):
        if owner.kind == WITHOUT_USER:
            namespaces.add(owner.user_id)
        elif owner.user_id != user_id:
            staying[owner.key].add(owner.user_id)
    counts: Counter[str] = Counter()
    keys = set(sessions)
    for key in [key for key, users in staying.items() if users]:
        keys.remove(key)
        # The readers that extract the user's facts.
        readers = readers_of_facts(tx, key, user_id)
        deleted = tx.execute(_DELETE_READERS, key=key, names=readers)
        counts["cursors"] += deleted.rowcount
        if key in owned:
            counts.update(_delete_turns(tx, key, user_id))
        else:
            # The caller has named the session, but the user does not own it.
            del staying[key]
    counts.update(forget_words(tx, namespaces, staying, read_by))
    return Forgotten(
        sessions,
        namespaces | read_by,
        _delete(tx, keys, namespaces, counts),
    )


def _delete_turns(tx: Transaction, key: str, user_id: str) -> dict[str, int]:
    """Delete the turns of an owner in a session of several users; return the number of deleted rows by kind."""
    owners = tx.execute(_DELETE_OWNER, key=key, user_id=user_id).rowcount
    rows = tx.execute(_SELECT_TURNS, key=key).all()
    ids = _ids_of_turns(rows, user_id)
    messages = delete_rows(tx, key, ids) if ids else 0
    return {"cursors": owners, "messages": messages}


def _delete(
    tx: Transaction,
    keys: Collection[str],
    namespaces: Collection[str],
    counts: Counter[str],
) -> dict[str, int]:
    """Delete whole sessions and namespaces; return the ``counts`` of all deleted rows by kind."""
    names = {
        "keys": list(keys),
        "namespaces": list(namespaces),
        "vectors": [*namespaces, *map(vectors_namespace, keys)],
    }
    for kind, statement in _DELETIONS:
        counts[kind] += tx.execute(statement, **names).rowcount
    return {
        kind: counts[kind] for kind in ("messages", "cursors", "facts", "embeddings")
    }


def _namespaces_that_read(tx: Transaction, keys: Collection[str]) -> set[str]:
    """Return the namespaces whose readers of facts have read one of these sessions."""
    namespaces = set()
    for reader in tx.scalars(_SELECT_READERS, names=list(keys)):
        # The namespace follows " of ", and may itself hold these characters.
        _, _, namespace = reader.partition(" of ")
        while namespace:
            namespaces.add(namespace)
            _, _, namespace = namespace.partition(" of ")
    return namespaces


def _ids_of_turns(rows: Sequence[Any], user_id: str) -> list[int]:
    """Return the ids of the rows of the turns, with their answers, that a user or an unknown speaker began."""
    ids = []
    is_users = False
    for row in rows:
        if row.role == MessageRole.USER.value:
            is_users = (row.user_id or user_id) == user_id
        if is_users:
            ids.append(row.id)
    return ids


def _past_turns(rows: Sequence[Any]) -> list[list[Any]]:
    """Return the rows of each turn before the current one, which has active rows."""
    turns: list[list[Any]] = []
    for row in rows:
        if not turns or row.role == MessageRole.USER.value:
            turns.append([])
        turns[-1].append(row)
        if row.status == ACTIVE:
            return turns[:-1]
    return turns


def _due_turns(
    turns: Sequence[Sequence[Any]], since: int, surplus: int
) -> list[Sequence[Any]]:
    """Return the turns that have a row from before ``since``, or begin in the first ``surplus`` rows.

    A younger turn stays, although old messages were imported behind it.
    """
    due = []
    count = 0
    for turn in turns:
        if count < surplus or any(row.timestamp < since for row in turn):
            due.append(turn)
        count += len(turn)
    return due


# ---- files ----


def vacuum(tx: Transaction) -> bool:
    """Rewrite the files of a database; False, and a warning in the log, if deleted words may remain."""
    if tx.connection.dialect.name == "sqlite":
        return _vacuum_file(tx)
    return _vacuum_on_server(tx)


def _vacuum_file(tx: Transaction) -> bool:
    tx.execute("VACUUM")
    is_busy = tx.execute("PRAGMA wal_checkpoint(TRUNCATE)").scalar()
    if is_busy:
        logger.warning(
            "The write-ahead log of the database could not be emptied, because another connection is reading: "
            "deleted words may be in it until `await store.vacuum()` is called once more, or the last connection is "
            "closed."
        )
    return not is_busy


def _vacuum_on_server(tx: Transaction) -> bool:
    names = sorted(tx.tables.names[table] for table in TABLES)
    forbidden = [
        name for name in names if not tx.execute(_MAY_VACUUM, name=name).scalar()
    ]
    tx.execute("SET statement_timeout = 0")
    try:
        tx.connection.exec_driver_sql(f"VACUUM {', '.join(names)}")
    finally:
        # No other call may get a connection with this setting.
        tx.connection.invalidate()
    if forbidden:
        logger.warning(
            "This database user may not vacuum %s: deleted words stay in the files of the server until the owner of "
            "the tables or autovacuum vacuums them.",
            ", ".join(forbidden),
        )
    return not forbidden
