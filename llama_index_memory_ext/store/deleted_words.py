"""Takes the words of deleted messages and users from the facts of all namespaces."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.fact import ONLY_ENDS, Fact, utc_now, without_reasons
from llama_index_memory_ext.store.fact_rows import (
    delete_with_vectors,
    parse_facts,
    put_facts,
    select_facts,
)
from llama_index_memory_ext.store.readers import text_of_session

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from llama_index_memory_ext.store.transaction import Transaction


class DeletedUser(NamedTuple):
    """A user whose data is deleted.

    ``namespaces``: the namespaces that are deleted. ``sessions``: the user's sessions,
    each with the users who stay there.
    """

    namespaces: Collection[str]
    sessions: Mapping[str, Collection[str]]

    def owns_words_of(
        self, namespace: str, session_id: str | None, said_by: str | None
    ) -> bool:
        """Return whether a fact of another namespace is deleted, because the user said it or may have said it.

        A fact of an unknown speaker is deleted, unless a user who stays owns it.
        """
        users = self.sessions.get(session_id or "")
        is_unknown = (
            users is not None and said_by not in users and namespace not in users
        )
        return is_unknown or said_by in self.namespaces

    def is_team(self, namespace: str) -> bool:
        """Return whether no user who stays owns a namespace, so that it may hold the words of any user."""
        return not any(namespace in users for users in self.sessions.values())


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


def lose_words(tx: Transaction, session_id: str, remaining: set[int]) -> int:
    """Take the words of deleted messages from facts; return the number of changed facts.

    The text around a quote may hold words of the messages beside it. A fact without a
    ``remaining`` row has no session.
    """
    text = text_of_session(tx, session_id)
    changed: dict[str, list[Fact]] = {}
    result = tx.execute(_SELECT_FACTS_OF_SESSION, session_id=session_id)
    for row in result.all():
        for fact in parse_facts(tx, row.namespace, [row]).values():
            remaining_fact = without_deleted_source(fact, text)
            if not remaining.issuperset(fact.message_ids):
                remaining_fact = without_words(fact, session_id, remaining)
            if remaining_fact != fact:
                changed.setdefault(row.namespace, []).append(remaining_fact)
    tx.lock((), changed)
    for namespace, facts in changed.items():
        put_facts(tx, namespace, facts)
    return sum(map(len, changed.values()))


def forget_words(
    tx: Transaction,
    own: Collection[str],
    sessions: Mapping[str, Collection[str]],
    read_by: Collection[str],
) -> Counter[str]:
    """Delete the facts that other namespaces have learned from the words of a user; return their numbers by kind.

    ``own``: the namespaces that are deleted. ``sessions``: the user's sessions,
    each with the users who stay there. ``read_by``: the namespaces that have read
    these sessions; the user's words may have ended their facts.
    """
    user = DeletedUser(own, sessions)
    # A copy, as by an import, has the same id, but may not name its session or
    # speaker.
    contents: dict[str, str | None] = {}
    for row in tx.execute(_SELECT_SAID, own=list(own)):
        data = tx.read(row.data, f"Fact {row.id!r}")
        contents[row.id] = data.get("content") if data else None
    reached = tx.scalars(
        _SELECT_REACHED,
        own=list(own),
        sessions=list(sessions),
        copies=list(contents),
        read_by=list(read_by),
    )
    namespaces = set(reached).difference(own)
    tx.lock((), {*own, *namespaces})
    texts = {}
    if namespaces:
        for key in sessions:
            texts[key] = text_of_session(tx, key)
    counts: Counter[str] = Counter()
    for namespace in namespaces:
        counts.update(_forget_words_in(tx, namespace, user, contents, texts))
    return counts


def _forget_words_in(
    tx: Transaction,
    namespace: str,
    user: DeletedUser,
    contents: Mapping[str, str | None],
    texts: Mapping[str, str],
) -> Counter[str]:
    """Delete the facts of a user's words from one namespace; return their numbers by kind.

    ``contents``: the facts of these words, by their ids; None for a fact that
    cannot be decrypted. ``texts``: the text that remains in each session of the
    user.
    """
    rows = select_facts(tx, namespace)
    stored = parse_facts(tx, namespace, rows)
    deleted = set()
    for row in rows:
        has_copy = is_copy(row.id, stored, contents)
        if has_copy or user.owns_words_of(namespace, row.session_id, row.said_by):
            deleted.add(row.id)
    deleted |= only_ending(stored, deleted)
    changed = []
    is_team = user.is_team(namespace)
    for row in rows:
        if row.id in stored and row.id not in deleted:
            fact = without_reasons(stored[row.id], deleted, is_team=is_team)
            fact = without_deleted_source(fact, texts.get(row.session_id))
            if fact != stored[row.id]:
                changed.append(fact)
    put_facts(tx, namespace, changed)
    if deleted:
        return delete_with_vectors(tx, namespace, deleted)
    return Counter()


def is_copy(
    fact_id: str, facts: Mapping[str, Fact], contents: Mapping[str, str | None]
) -> bool:
    """Return whether a fact has the id and the content of a fact of ``contents``.

    A content that cannot be read counts as the same.
    """
    if fact_id not in facts:
        return fact_id in contents
    return contents.get(fact_id, "") in (None, facts[fact_id].content)


def without_words(fact: Fact, session_id: str, remaining: Collection[int]) -> Fact:
    """Return a fact with its remaining messages, and without the words around its quote."""
    ids = tuple(row_id for row_id in fact.message_ids if row_id in remaining)
    return fact.model_copy(
        update={
            "quote": fact.quote if ids == fact.message_ids else "",
            "source": "",
            "words_deleted_at": utc_now(),
            "message_ids": ids,
            "session_id": session_id if ids else None,
        }
    )


def without_deleted_source(fact: Fact, text: str | None) -> Fact:
    """Return a fact without its ``source`` if that has a line that the text of its session has not; None: no text."""
    lines = fact.source.splitlines()
    if text is None or all(line in text for line in lines):
        return fact
    return fact.model_copy(update={"source": "", "words_deleted_at": utc_now()})


def only_ending(facts: Mapping[str, Fact], deleted: Collection[str]) -> set[str]:
    """Return the facts that only end one of the deleted facts: each repeats the content of the fact that it ends."""
    contents = tuple(
        fact.content for fact_id, fact in facts.items() if fact_id in deleted
    )
    ending = set()
    for fact in facts.values():
        if fact.said_as == ONLY_ENDS and fact.content.endswith(contents):
            ending.add(fact.id)
    return ending
