"""Deletes sessions, and users with their facts and words, from all tables."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.fact import NO_LONGER_TRUE, ONLY_ENDS, Fact
from llama_index_memory_ext.store.facts import (
    delete_with_vectors,
    parse_facts,
    put_facts,
    select_facts,
)
from llama_index_memory_ext.store.owners import readers_of_facts
from llama_index_memory_ext.store.readers import read_turns, sessions_of_user
from llama_index_memory_ext.store.row_deletion import delete_rows, lose_words
from llama_index_memory_ext.store.tables import WITHOUT_USER, vectors_namespace

if TYPE_CHECKING:
    from collections.abc import Collection

    from llama_index_memory_ext.store.transaction import Transaction

_SELECT_IDS = "SELECT id FROM {rows} WHERE key = :key"
_SELECT_READERS = "SELECT reader FROM {cursors} WHERE key {in_names}"
_SELECT_OWNERS = "SELECT key, user_id, kind FROM {owners} WHERE key {in_names}"
_DELETE_OWNER = "DELETE FROM {owners} WHERE key = :key AND user_id = :user_id"
_DELETE_READERS = "DELETE FROM {cursors} WHERE key = :key AND reader {in_names}"
# Statements with the kinds of the rows that they delete. Owners count as cursors.
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
# The facts of the namespaces ``own``, and the facts of any namespace that were learned
# from their users' words.
_SELECT_SAID = """
SELECT id, data FROM {facts} WHERE said_by {in_own} OR namespace {in_own}
"""
# The namespaces that may hold the words of these users. ``UNION``: for a condition with
# OR, SQLite may read the facts of all users.
_SELECT_REACHED = """
SELECT namespace FROM {facts} WHERE said_by {in_own}
UNION SELECT namespace FROM {facts} WHERE session_id {in_sessions}
UNION SELECT namespace FROM {facts} WHERE id {in_copies}
UNION SELECT namespace FROM {facts} WHERE namespace {in_read_by}
"""


class DeletedUser(NamedTuple):
    """A user whose data is deleted.

    ``namespaces``: the namespaces whose facts are all deleted.
    ``sessions``: the user's sessions, each with the users who stay there.
    ``texts``: the content and the quote of each fact of the user's words, by the id of
    the fact; empty if they cannot be decrypted.
    """

    namespaces: set[str]
    sessions: dict[str, set[str]]
    texts: dict[str, set[Any]]

    def owns_words_of(self, namespace: str, row: Any, fact: Fact | None) -> bool:
        """Return whether a fact of another namespace is of the user's words, and is deleted with them.

        It is deleted if the user said it, or if it copies or only ends a fact of the user's
        words. A fact from a session of the user also counts as the user's, unless it names
        another speaker, or a user who stays there owns it. ``row`` is the row of the
        ``fact``, which is None if it cannot be read.
        """
        users = self.sessions.get(row.session_id or "")
        is_unknown = users is not None and not (row.said_by or namespace in users)
        texts = self.texts.get(row.id)
        is_copy = texts is not None
        if fact:
            if texts:
                is_copy = not texts.isdisjoint((fact.content, fact.quote))
            # A pending end names the fact, whose content may have been edited since.
            if fact.said_as == ONLY_ENDS and self.texts.keys() & fact.ends_facts:
                return True
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


def forget_user(
    tx: Transaction, user_id: str, session_ids: Collection[str]
) -> Forgotten:
    """Delete the facts of a user, the user's sessions and the ``session_ids``.

    If a session has other owners, only the turns of the user are deleted, and the
    facts that others learned from them. Of a session in ``session_ids`` that only other
    users own, nothing is deleted.
    """
    owned = sessions_of_user(tx, user_id)
    sessions = {*session_ids, *owned}
    tx.lock(sessions, ())
    read_by = _namespaces_that_read(tx, sessions)
    user = DeletedUser({user_id}, {key: set() for key in sessions}, {})
    for owner in tx.rows(_SELECT_OWNERS, names=list(sessions)):
        if owner.kind == WITHOUT_USER:
            # A session without a user has facts in a separate namespace.
            user.namespaces.add(owner.user_id)
        elif owner.user_id != user_id:
            user.sessions[owner.key].add(owner.user_id)
    shared = {key for key, users in user.sessions.items() if users}
    for key in shared.difference(owned):
        # The caller has named the session, but the user does not own it.
        del user.sessions[key]
    counts = forget_facts(tx, user, read_by)
    for key in shared:
        counts.update(_leave_session(tx, key, user_id, is_owned=key in owned))
    counts.update(delete_sessions(tx, sessions - shared, user.namespaces))
    return Forgotten(
        sessions,
        user.namespaces | read_by,
        {kind: counts[kind] for kind in ("messages", "cursors", "facts", "embeddings")},
    )


def _leave_session(
    tx: Transaction, key: str, user_id: str, *, is_owned: bool
) -> Counter[str]:
    """Delete a user's readers from a session of others, and an owner with their turns; return deleted rows by kind."""
    # The readers that extract the user's facts.
    readers = readers_of_facts(tx, key, user_id)
    cursors = tx.execute(_DELETE_READERS, key=key, names=readers).rowcount
    ids: list[int] = []
    if is_owned:
        cursors += tx.execute(_DELETE_OWNER, key=key, user_id=user_id).rowcount
        for turn in read_turns(tx, key):
            is_question = turn[0].role == MessageRole.USER.value
            # The words of an unknown speaker count as the user's.
            if is_question and turn[0].user_id in (None, "", user_id):
                ids.extend(row.id for row in turn)
        delete_rows(tx, key, ids)
    return Counter(cursors=cursors, messages=len(ids))


def forget_session(tx: Transaction, key: str) -> dict[str, int]:
    """Delete a session; its facts stay, and lose its words. Return the numbers of deleted messages and cursors."""
    lose_words(tx, key, tx.scalars(_SELECT_IDS, key=key))
    counts = delete_sessions(tx, [key])
    return {kind: counts[kind] for kind in ("messages", "cursors")}


def delete_sessions(
    tx: Transaction, keys: Collection[str], namespaces: Collection[str] = ()
) -> Counter[str]:
    """Delete whole sessions and namespaces; return the number of deleted rows by kind."""
    names = {
        "keys": list(keys),
        "namespaces": list(namespaces),
        "vectors": [*namespaces, *map(vectors_namespace, keys)],
    }
    counts = Counter[str]()
    for kind, statement in _DELETIONS:
        counts[kind] += tx.execute(statement, **names).rowcount
    return counts


def _namespaces_that_read(tx: Transaction, keys: Collection[str]) -> set[str]:
    """Return the namespaces for which a reader of these sessions may extract facts."""
    namespaces = set()
    for reader in tx.scalars(_SELECT_READERS, names=list(keys)):
        # The namespace follows " of ", and may itself hold these characters: each text
        # behind them counts.
        parts = reader.split(" of ")
        for i in range(1, len(parts)):
            namespaces.add(" of ".join(parts[i:]))
    return namespaces


def forget_facts(
    tx: Transaction, user: DeletedUser, read_by: Collection[str]
) -> Counter[str]:
    """Delete the facts that other namespaces have learned from the words of a user; return their numbers by kind.

    ``user.texts`` is filled.

    ``read_by``: the namespaces that have read the user's sessions; the user's words
    may have ended their facts.
    """
    # A copy, as by an import, has the same id, but may not name its session or
    # speaker.
    for row in tx.rows(_SELECT_SAID, own=list(user.namespaces)):
        data = tx.read(row.data, f"Fact {row.id!r}") or {}
        user.texts[row.id] = {data.get("content"), data.get("quote")} - {"", None}
    reached = tx.scalars(
        _SELECT_REACHED,
        own=list(user.namespaces),
        sessions=list(user.sessions),
        copies=list(user.texts),
        read_by=list(read_by),
    )
    namespaces = set(reached) - user.namespaces
    tx.lock((), user.namespaces | namespaces)
    counts = Counter[str]()
    for namespace in namespaces:
        counts.update(_forget_facts_in(tx, namespace, user))
    return counts


def _forget_facts_in(
    tx: Transaction, namespace: str, user: DeletedUser
) -> Counter[str]:
    """Delete the facts of a user's words from one namespace; return the numbers of deleted rows by kind."""
    rows = select_facts(tx, namespace)
    stored = parse_facts(tx, rows)
    deleted = {
        row.id for row in rows if user.owns_words_of(namespace, row, stored.get(row.id))
    }
    # A fact that only ends one of them repeats its content.
    contents = {
        NO_LONGER_TRUE.format(fact.content)
        for fact in stored.values()
        if fact.id in deleted
    }
    deleted |= {fact.id for fact in stored.values() if fact.content in contents}
    changed = [
        # The reason may quote the user.
        fact.model_copy(update={"retired_reason": None})
        for fact in stored.values()
        if fact.replaced_by in deleted
    ]
    put_facts(tx, namespace, changed)
    return delete_with_vectors(tx, namespace, deleted)
