"""Deletes old turns, and the sessions and facts of users, from all tables and files."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.fact import ONLY_ENDS, Fact, utc_now
from llama_index_memory_ext.store.facts import (
    delete_with_vectors,
    parse_facts,
    put_facts,
    select_facts,
)
from llama_index_memory_ext.store.message_rows import delete_rows
from llama_index_memory_ext.store.owners import readers_of_facts
from llama_index_memory_ext.store.readers import find_rows, sessions_of_user
from llama_index_memory_ext.store.schema import TABLES
from llama_index_memory_ext.store.tables import (
    ACTIVE,
    LAST_ID,
    PROFILE_READER,
    WITHOUT_USER,
    vectors_namespace,
)
from llama_index_memory_ext.text.turns import ends_with_answer, spoken
from llama_index_memory_ext.words import visible

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from llama_index_memory_ext.store.transaction import Transaction

logger = logging.getLogger(__name__)

# The characters of a line that other messages may hold by chance.
_SHORT_LINE = 80

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


_SELECT_FACTS_OF_SESSION = """
SELECT namespace, id, data FROM {facts} WHERE session_id = :session_id ORDER BY namespace
"""
# The facts of the namespaces ``own``, and the facts of any namespace that were learned
# from their users' words.
_SELECT_SAID = """
SELECT id, data FROM {facts} WHERE said_by {in_own} OR namespace {in_own}
"""
# The namespaces that may hold the words of these users. For one query with OR, SQLite may
# read the facts of all users.
_SELECT_REACHED = """
SELECT namespace FROM {facts} WHERE said_by {in_own}
UNION SELECT namespace FROM {facts} WHERE session_id {in_sessions}
UNION SELECT namespace FROM {facts} WHERE id {in_copies}
UNION SELECT namespace FROM {facts} WHERE namespace {in_read_by}
"""


class Remaining(NamedTuple):
    """What remains of a session: the ids of its rows, and the lines of its messages, each between line breaks."""

    ids: set[int]
    text: str


class DeletedUser(NamedTuple):
    """A user whose data is deleted.

    ``namespaces``: the namespaces whose facts are all deleted.
    ``sessions``: the user's sessions, each with the users who stay there.
    ``contents``: the contents of the facts of the user's words, by the id of the fact;
    None for a content that cannot be decrypted.
    """

    namespaces: set[str]
    sessions: dict[str, set[str]]
    contents: dict[str, str | None]

    def owns_words_of(self, namespace: str, row: Any, fact: Fact | None) -> bool:
        """Return whether a fact of another namespace is of the user's words, and is deleted with them.

        It is deleted if the user said it, or if it copies a fact of the user's words. A
        fact of an unknown speaker counts as the user's unless a user who stays owns it.
        ``row`` is the row of the ``fact``, which is None if it cannot be read.
        """
        users = self.sessions.get(row.session_id or "")
        is_unknown = users is not None and users.isdisjoint({row.said_by, namespace})
        is_copy = row.id in self.contents
        if is_copy and fact is not None:
            is_copy = self.contents[row.id] in (None, fact.content)
        return is_copy or is_unknown or row.said_by in self.namespaces


class Forgotten(NamedTuple):
    """The result of deleting a user.

    ``sessions``: the user's sessions, and the sessions that the caller named.
    ``namespaces``: the namespaces whose facts are deleted or may have lost words.
    ``counts``: the number of deleted rows by kind.
    """

    sessions: set[str]
    namespaces: set[str]
    counts: dict[str, int]


# ---- old turns ----


def retain_messages(
    tx: Transaction, key: str, since: int, most: int, *, unread: bool
) -> dict[str, int]:
    """Delete turns of a session that have a message from before ``since``, or beyond the ``most`` newest messages.

    The current turn stays until it is answered and too old. Without ``unread``,
    messages stay that a reader of facts has not read. Return the numbers of deleted
    messages, of facts that lost words, and of messages that stay because they are
    unread.
    """
    last = LAST_ID if unread else _read_by_all(tx, key)
    ids: list[int] = []
    unread_rows = 0
    active = find_rows(tx, key, [ACTIVE])
    is_answered = ends_with_answer([row.message for row in active])
    turns = _read_turns(tx, key)
    for turn in _due_turns(turns, since, most, is_answered=is_answered):
        if turn[-1].id <= last:
            ids.extend(row.id for row in turn)
        else:
            unread_rows += len(turn)
    if not ids:
        tx.rollback()
        return {"unread": unread_rows}
    delete_rows(tx, key, ids)
    changed = lose_words(tx, key)
    return {"messages": len(ids), "facts": changed, "unread": unread_rows}


def _read_by_all(tx: Transaction, key: str) -> int:
    """Return the last row that all readers of facts have read; ``LAST_ID`` without such a reader."""
    names = readers_of_facts(tx, key)
    readers = [name for name in names if not name.startswith(PROFILE_READER)]
    result = tx.execute(_SELECT_READ, key=key, names=readers, last_id=LAST_ID)
    return int(result.scalar_one())


# ---- sessions and users ----


def forget_session(tx: Transaction, key: str) -> Counter[str]:
    """Delete a session; return the number of deleted rows by kind."""
    return _delete(tx, [key], ())


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
    user = DeletedUser({user_id}, {key: set() for key in sessions}, {})
    for owner in tx.execute(_SELECT_OWNERS, names=list(sessions)):
        if owner.kind == WITHOUT_USER:
            # A session without a user has facts in a separate namespace.
            user.namespaces.add(owner.user_id)
        elif owner.user_id != user_id:
            user.sessions[owner.key].add(owner.user_id)
    counts: Counter[str] = Counter()
    shared = {key for key, users in user.sessions.items() if users}
    for key in shared:
        # The readers that extract the user's facts.
        readers = readers_of_facts(tx, key, user_id)
        deleted = tx.execute(_DELETE_READERS, key=key, names=readers)
        counts["cursors"] += deleted.rowcount
        if key in owned:
            counts.update(_delete_turns(tx, key, user_id))
        else:
            # The caller has named the session, but the user does not own it.
            del user.sessions[key]
    counts.update(forget_words(tx, user, read_by))
    counts.update(_delete(tx, sessions - shared, user.namespaces))
    kinds = ("messages", "cursors", "facts", "embeddings")
    return Forgotten(
        sessions,
        user.namespaces | read_by,
        {kind: counts[kind] for kind in kinds},
    )


def _delete_turns(tx: Transaction, key: str, user_id: str) -> dict[str, int]:
    """Delete the turns of an owner in a session of several users; return the number of deleted rows by kind."""
    owners = tx.execute(_DELETE_OWNER, key=key, user_id=user_id).rowcount
    ids: list[int] = []
    for turn in _read_turns(tx, key):
        is_question = turn[0].role == MessageRole.USER.value
        # The words of an unknown speaker count as the user's.
        if is_question and turn[0].user_id in (None, "", user_id):
            ids.extend(row.id for row in turn)
    messages = delete_rows(tx, key, ids) if ids else 0
    return {"cursors": owners, "messages": messages}


def _delete(
    tx: Transaction, keys: Collection[str], namespaces: Collection[str]
) -> Counter[str]:
    """Delete whole sessions and namespaces; return the number of deleted rows by kind."""
    names = {
        "keys": list(keys),
        "namespaces": list(namespaces),
        "vectors": [*namespaces, *map(vectors_namespace, keys)],
    }
    counts: Counter[str] = Counter()
    for kind, statement in _DELETIONS:
        counts[kind] += tx.execute(statement, **names).rowcount
    return counts


def _namespaces_that_read(tx: Transaction, keys: Collection[str]) -> set[str]:
    """Return the namespaces whose readers of facts have read one of these sessions."""
    namespaces = set()
    for reader in tx.scalars(_SELECT_READERS, names=list(keys)):
        # The namespace follows " of ", and may itself hold these characters.
        parts = reader.split(" of ")
        for i in range(1, len(parts)):
            namespaces.add(" of ".join(parts[i:]))
    return namespaces


def _read_turns(tx: Transaction, key: str) -> list[list[Any]]:
    """Return the rows of each turn of a session; a turn begins with a message of a user, if there is one."""
    turns: list[list[Any]] = []
    for row in tx.execute(_SELECT_TURNS, key=key):
        if not turns or row.role == MessageRole.USER.value:
            turns.append([])
        turns[-1].append(row)
    return turns


def _due_turns(
    turns: Sequence[Sequence[Any]], since: int, most: int, *, is_answered: bool
) -> list[Sequence[Any]]:
    """Return the past turns with a row from before ``since``, or with a row before the ``most`` newest ones.

    A younger turn stays, although old messages were imported behind it. The current
    turn has active rows. If it ``is_answered``, it counts as past when all of it is
    from before ``since``.
    """
    due = []
    remaining = sum(map(len, turns))
    for turn in turns:
        is_current = any(row.status == ACTIVE for row in turn)
        if is_current and not (is_answered and turn[-1].timestamp < since):
            break
        if remaining > most or any(row.timestamp < since for row in turn):
            due.append(turn)
        remaining -= len(turn)
    return due


# ---- words in facts ----


def lose_words(tx: Transaction, session_id: str) -> int:
    """Take the words of deleted messages from facts of a session; return the number of changed facts."""
    rows = tx.execute(_SELECT_FACTS_OF_SESSION, session_id=session_id).all()
    if not rows:
        return 0
    remaining = _read_remaining(tx, session_id)
    changed: dict[str, list[Fact]] = {}
    for row in rows:
        for fact in parse_facts(tx, row.namespace, [row]).values():
            remaining_fact = without_words(fact, remaining)
            if remaining_fact != fact:
                changed.setdefault(row.namespace, []).append(remaining_fact)
    tx.lock((), changed)
    for namespace, facts in changed.items():
        put_facts(tx, namespace, facts)
    return sum(map(len, changed.values()))


def forget_words(
    tx: Transaction, user: DeletedUser, read_by: Collection[str]
) -> Counter[str]:
    """Delete the facts that other namespaces have learned from the words of a user; return their numbers by kind.

    ``read_by``: the namespaces that have read the user's sessions; the user's words
    may have ended their facts.
    """
    # A copy, as by an import, has the same id, but may not name its session or
    # speaker.
    for row in tx.execute(_SELECT_SAID, own=list(user.namespaces)):
        data = tx.read(row.data, f"Fact {row.id!r}")
        user.contents[row.id] = data.get("content") if data else None
    reached = tx.scalars(
        _SELECT_REACHED,
        own=list(user.namespaces),
        sessions=list(user.sessions),
        copies=list(user.contents),
        read_by=list(read_by),
    )
    namespaces = set(reached) - user.namespaces
    tx.lock((), user.namespaces | namespaces)
    remaining = {}
    for key, users in user.sessions.items():
        # Of a session without other users, nothing remains.
        if users and namespaces:
            remaining[key] = _read_remaining(tx, key)
    counts: Counter[str] = Counter()
    for namespace in namespaces:
        counts.update(_forget_words_in(tx, namespace, user, remaining))
    return counts


def _forget_words_in(
    tx: Transaction,
    namespace: str,
    user: DeletedUser,
    remaining: Mapping[str, Remaining],
) -> Counter[str]:
    """Delete the facts of a user's words from one namespace; return their numbers by kind."""
    rows = select_facts(tx, namespace)
    stored = parse_facts(tx, namespace, rows)
    deleted = set()
    for row in rows:
        if user.owns_words_of(namespace, row, stored.get(row.id)):
            deleted.add(row.id)
    deleted |= only_ending(stored, deleted)
    changed = []
    for row in rows:
        if row.id in stored and row.id not in deleted:
            fact = stored[row.id]
            if row.session_id in remaining:
                fact = without_words(fact, remaining[row.session_id])
            if fact.replaced_by in deleted:
                # The reason may quote the user.
                fact = fact.model_copy(update={"retired_reason": None})
            if fact != stored[row.id]:
                changed.append(fact)
    put_facts(tx, namespace, changed)
    return delete_with_vectors(tx, namespace, deleted)


def _read_remaining(tx: Transaction, key: str) -> Remaining:
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


def only_ending(facts: Mapping[str, Fact], deleted: Collection[str]) -> set[str]:
    """Return the facts that only end one of the deleted facts: each repeats the content of the fact that it ends."""
    contents = tuple(facts[fact_id].content for fact_id in deleted if fact_id in facts)
    ending = set()
    for fact in facts.values():
        if fact.said_as == ONLY_ENDS and fact.content.endswith(contents):
            ending.add(fact.id)
    return ending


# ---- files ----


def vacuum(tx: Transaction) -> bool:
    """Rewrite the files of a database; False, and a warning in the log, if deleted words may remain."""
    # It runs outside of a transaction.
    tx.rollback()
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
    tx.rollback()
    tx.connection.execution_options(isolation_level="AUTOCOMMIT")
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
