"""Keeps the facts of each user in the order in which they changed."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.bridge.pydantic import ValidationError

from llama_index_memory_ext.agent_view import SHARED, AgentView
from llama_index_memory_ext.errors import EncryptionError, FactError
from llama_index_memory_ext.fact import Fact, without_reasons
from llama_index_memory_ext.store.changes import (
    is_copy,
    marked,
    merged,
    only_ending,
    rows_of,
    without_deleted_source,
    without_words,
)
from llama_index_memory_ext.store.rows import FactsVersion, LogPage
from llama_index_memory_ext.store.tables import display_name
from llama_index_memory_ext.store.transaction import Transaction, reads, writes_user
from llama_index_memory_ext.text.turns import spoken
from llama_index_memory_ext.words import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from llama_index_memory_ext.store.database import Database
    from llama_index_memory_ext.store.readers import Readers
    from llama_index_memory_ext.text.messages import Json

    Changed = Callable[[Mapping[str, Fact]], Sequence[Fact]]


ALL_AGENTS = AgentView(agents=None)
# One statement writes at most so many facts: a server ends a transaction that sends
# nothing for a while.
PAGE_FACTS = 500


class FactChanges(NamedTuple):
    """The facts of a namespace, retired ones too, that changed since a reader's last read, oldest change first.

    ``change``: the number of the last change. ``epoch``: changes with every deletion.
    ``fresh``: false if facts were deleted since the last read; then ``facts`` are all
    facts of the namespace.
    """

    epoch: int
    change: int
    fresh: bool
    facts: list[Fact]


NOTHING_READ = FactChanges(epoch=0, change=0, fresh=True, facts=[])


class Leaving(NamedTuple):
    """A user who is deleted.

    ``namespaces``: the namespaces that are deleted. ``sessions``: the user's sessions,
    each with the users who stay there.
    """

    namespaces: Collection[str]
    sessions: Mapping[str, Collection[str]]

    def takes(
        self, namespace: str, session_id: str | None, said_by: str | None
    ) -> bool:
        """Return whether a fact of another namespace is deleted, because the user said it or may have said it.

        If its speaker is unknown, it is deleted, unless its namespace is of a user who
        stays.
        """
        users = self.sessions.get(session_id or "")
        is_unknown = (
            users is not None and said_by not in users and namespace not in users
        )
        return is_unknown or said_by in self.namespaces

    def is_team(self, namespace: str) -> bool:
        """Return whether a namespace is of no user who stays, so that it may hold the words of any user."""
        return not any(namespace in users for users in self.sessions.values())


_SELECT_VERSION = "SELECT epoch, change FROM {users} WHERE namespace = :namespace"
_COUNT_FACTS = "SELECT namespace, COUNT(*) AS facts FROM {facts} GROUP BY namespace"
_SELECT_FACTS = """
SELECT id, agent_id, change, data, session_id, said_by FROM {facts}
WHERE namespace = :namespace AND change > :seen
ORDER BY change
"""
_SELECT_FACTS_BY_ID = """
SELECT id, agent_id, change, data, session_id, said_by FROM {facts}
WHERE namespace = :namespace AND id {in_ids}
ORDER BY change
"""
_SELECT_OWNERS_OF_SESSION = "SELECT user_id FROM {owners} WHERE key = :session_id"
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
# The speaker is read from the message; in a session of one user, it is that user. An
# update keeps the session and the speaker of the words that the fact was learned from.
_PUT_FACT = """
INSERT INTO {facts} AS facts (namespace, id, change, agent_id, session_id, data, said_by)
VALUES (:namespace, :id, :change, :agent_id, :session_id, :data, (
    SELECT COALESCE(user_id, (SELECT MIN(user_id) FROM {owners} WHERE key = :session_id))
    FROM {rows} WHERE key = :session_id AND id = :row_id
))
ON CONFLICT (namespace, id)
DO UPDATE SET change = excluded.change, agent_id = excluded.agent_id, data = excluded.data,
    session_id = COALESCE(facts.session_id, excluded.session_id),
    said_by = COALESCE(facts.said_by, excluded.said_by)
"""
_SET_CHANGE = "UPDATE {users} SET change = :change WHERE namespace = :namespace"
_SET_EPOCH = "UPDATE {users} SET epoch = :epoch WHERE namespace = :namespace"
_DELETE_FACTS = "DELETE FROM {facts} WHERE namespace = :namespace AND id {in_ids}"
_DELETE_VECTORS = (
    "DELETE FROM {embeddings} WHERE namespace = :namespace AND id {in_ids}"
)
_RENAME_SPEAKER = "UPDATE {facts} SET said_by = :new WHERE said_by = :old"


class Facts:
    """The facts of a store. A ``view`` selects agents; facts of another agent are neither read nor changed."""

    def __init__(self, database: Database, readers: Readers) -> None:
        self.database = database
        self._readers = readers

    @reads
    def read(
        self,
        tx: Transaction,
        namespace: str,
        seen: FactChanges = NOTHING_READ,
        *,
        view: AgentView = SHARED,
    ) -> FactChanges:
        """Return the facts that changed since ``seen``.

        If facts were deleted meanwhile, or given to another agent, return all facts.
        """
        version = self._version_of(tx, namespace)
        fresh = version.epoch == seen.epoch
        if fresh and version.change == seen.change:
            return FactChanges(*version, fresh=True, facts=[])
        last_seen = seen.change if fresh else 0
        rows = self._select(tx, namespace, view, seen=last_seen)
        change = max([version.change, *(row.change for row in rows)])
        facts = list(_parsed(tx, namespace, rows).values())
        return FactChanges(version.epoch, change, fresh, facts)

    async def write(
        self,
        namespace: str,
        facts: Sequence[Fact],
        seen: FactChanges | None = None,
        *,
        view: AgentView = SHARED,
    ) -> bool:
        """Store facts in one transaction; a fact with a stored id replaces the stored one.

        With ``seen``, changes that were stored since stay. False, and nothing is
        stored, if facts were deleted since. Each page of ``PAGE_FACTS`` has the time of
        one call.

        Raises:
            FactError: The stored fact belongs to another agent.
        """
        return await self.database.run(
            self._write,
            namespace,
            facts,
            seen,
            view,
            users=[namespace],
            seconds=self._seconds_for(facts),
        )

    def _seconds_for(self, facts: Sequence[Fact]) -> float:
        return self.database.seconds * max(math.ceil(len(facts) / PAGE_FACTS), 1)

    def _write(
        self,
        tx: Transaction,
        namespace: str,
        facts: Sequence[Fact],
        seen: FactChanges | None,
        view: AgentView,
    ) -> bool:
        if seen is not None:
            # Before the first fact there is no epoch that changes when its messages are
            # deleted.
            if seen.epoch == 0 and not self._are_said(tx, facts):
                tx.rollback()
                return False
            return self._merge(tx, namespace, facts, seen, view)
        rows = self._select(tx, namespace, ids=[fact.id for fact in facts])
        facts = marked(facts, _parsed(tx, namespace, rows))
        agents = {row.id: row.agent_id or None for row in rows}
        hidden = sum(not view.sees(agent) for agent in agents.values())
        if hidden:
            raise FactError(
                f"{hidden} of {len(facts)} facts have the ids of facts that belong to another agent of this user. "
                "Store them with a memory of that agent, or without their ids. Nothing was stored."
            )
        moved = any(
            agents.get(fact.id, fact.agent_id) != fact.agent_id for fact in facts
        )
        self._put_all(tx, namespace, facts, moved=moved)
        return True

    def _are_said(self, tx: Transaction, facts: Sequence[Fact]) -> bool:
        """Return whether each fact that names its messages still has one of them."""
        for fact in facts:
            ids = fact.message_ids
            if ids and not self._readers.rows_within(tx, fact.session_id or "", ids):
                return False
        return True

    @writes_user
    def change(
        self,
        tx: Transaction,
        namespace: str,
        changed: Changed,
        ids: Sequence[str] | None = None,
        *,
        view: AgentView = SHARED,
    ) -> Sequence[Fact]:
        """Change facts as they are stored now, in one transaction, and return the changed facts.

        ``changed`` is called with the stored facts that have these ``ids``, by their
        ids; None: all facts. If it raises an error, nothing is written.
        """
        stored = _parsed(tx, namespace, self._select(tx, namespace, view, ids=ids))
        facts = changed(stored)
        moved = any(
            stored.get(fact.id, fact).agent_id != fact.agent_id for fact in facts
        )
        self._put_all(tx, namespace, facts, moved=moved)
        return facts

    async def write_extracted(
        self,
        namespace: str,
        facts: Sequence[Fact],
        seen: FactChanges,
        *,
        session_id: str,
        reader: str,
        unread: LogPage,
        state: Json = None,
        view: AgentView = SHARED,
    ) -> bool:
        """Store the facts of rows, and move the reader's cursor past these rows, with its state: all or nothing.

        The cursor never goes back. Changes that were stored since ``seen`` are neither
        repeated nor undone. False, and nothing is stored, if the cursor was moved, or
        messages or facts were deleted meanwhile.
        """
        new = max(unread.position, unread.rows[-1].id)

        def write(tx: Transaction) -> bool:
            if not self._merge(tx, namespace, facts, seen, view):
                return False
            return self._readers.move_within(
                tx,
                session_id,
                reader,
                epoch=unread.epoch,
                old=unread.position,
                new=new,
                state=state,
            )

        return await self.database.run(write, sessions=[session_id], users=[namespace])

    @writes_user
    def delete(
        self,
        tx: Transaction,
        namespace: str,
        ids: Sequence[str] | None = None,
        *,
        view: AgentView = SHARED,
    ) -> int:
        """Delete facts and their embeddings for good, and return the number of facts; None: all facts of the view."""
        rows = self._select(tx, namespace, view, ids=ids)
        return self._delete(tx, namespace, [row.id for row in rows])["facts"]

    def move_within(self, tx: Transaction, old: str, new: str) -> None:
        """Move the facts of one namespace to another, which keeps its own facts of the same words."""
        facts = _parsed(tx, old, self._select(tx, old))
        if facts:
            tx.lock((), (old, new))
            self._merge(tx, new, list(facts.values()), NOTHING_READ, SHARED)
            self._delete(tx, old, facts)
        tx.execute(_RENAME_SPEAKER, old=old, new=new)

    @reads
    def count_by_user(self, tx: Transaction) -> dict[str, int]:
        """Return how many facts each user has, retired ones too; users without a fact are left out."""
        result = tx.execute(_COUNT_FACTS)
        return {row.namespace: row.facts for row in result}

    # ---- imported facts ----

    async def import_facts(
        self, namespace: str, facts: Sequence[Fact], view: AgentView
    ) -> None:
        """As ``write``; each fact gets the rows of its session that have its quote.

        A row id is of one database only, so the words find the messages.
        """
        keys = {fact.session_id or "" for fact in facts}
        sessions = [key for key in keys if await self._readers.has_session(key)]

        def write(tx: Transaction) -> None:
            linked = self._linked(tx, namespace, facts)
            self._write(tx, namespace, linked, None, view)

        await self.database.run(
            write,
            sessions=sessions,
            users=[namespace],
            seconds=self._seconds_for(facts),
        )

    async def link_session(self, session_id: str) -> None:
        """Give the facts that were imported before their session its rows."""
        for namespace in await self._owners_of(session_id):
            await self.database.run(
                self._link,
                namespace,
                session_id,
                sessions=[session_id],
                users=[namespace],
            )

    @reads
    def _owners_of(self, tx: Transaction, session_id: str) -> list[str]:
        return tx.scalars(_SELECT_OWNERS_OF_SESSION, session_id=session_id)

    def _link(self, tx: Transaction, namespace: str, session_id: str) -> None:
        facts = _parsed(tx, namespace, self._select(tx, namespace)).values()
        of_session = [fact for fact in facts if fact.session_id == session_id]
        unlinked = [fact for fact in of_session if not fact.message_ids]
        linked = self._linked(tx, namespace, unlinked)
        self._put_all(tx, namespace, [fact for fact in linked if fact.message_ids])

    def _linked(
        self, tx: Transaction, namespace: str, facts: Iterable[Fact]
    ) -> list[Fact]:
        """Return the facts with the rows that state them; without rows if none does."""
        texts: dict[str, dict[int, str]] = {}
        linked = []
        for fact in facts:
            rows: tuple[int, ...] = ()
            session_id = fact.session_id
            if session_id and fact.quote:
                if session_id not in texts:
                    texts[session_id] = self._texts_in(tx, namespace, session_id)
                rows = rows_of(fact, texts[session_id])
            linked.append(fact.model_copy(update={"message_ids": rows}))
        return linked

    def _texts_in(
        self, tx: Transaction, namespace: str, session_id: str
    ) -> dict[int, str]:
        """Return the texts of a session from which a namespace may have facts, by their rows.

        {} for a session of another user alone: only its name is the same.
        """
        users = tx.scalars(_SELECT_OWNERS_OF_SESSION, session_id=session_id)
        speakers: set[str | None] = {*users}
        if namespace in users:
            # In a session of one user, no row names its speaker.
            speakers = {None, namespace}
        texts = {}
        for row in self._readers.find_within(tx, session_id):
            if row.role == "user" and row.user_id in speakers:
                texts[row.id] = visible(spoken(row.message))
        return texts

    # ---- deleted words ----

    def lose_words_within(
        self,
        tx: Transaction,
        session_id: str,
        remaining: set[int],
        neighbors: set[int],
    ) -> int:
        """Take the words of deleted messages from facts; return the number of changed facts.

        The text around a quote may hold the messages beside it. So a fact of the
        ``neighbors`` of deleted rows loses that text, too. A fact without a remaining
        row has no session.
        """
        changed: dict[str, list[Fact]] = {}
        result = tx.execute(_SELECT_FACTS_OF_SESSION, session_id=session_id)
        for row in result.all():
            facts = changed.setdefault(row.namespace, [])
            fact = _parsed(tx, row.namespace, [row]).get(row.id)
            if fact is None or not fact.message_ids:
                continue
            ids = fact.message_ids
            lost_message = not remaining.issuperset(ids)
            between = range(min(ids), max(ids) + 1)
            if lost_message or not neighbors.isdisjoint(between):
                facts.append(without_words(fact, session_id, remaining))
        tx.lock((), changed)
        for namespace, facts in changed.items():
            self._put_all(tx, namespace, facts)
        return sum(map(len, changed.values()))

    def forget_words_within(
        self,
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
        leaving = Leaving(own, sessions)
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
        lines = {}
        if namespaces:
            for key in sessions:
                lines[key] = self._readers.lines_within(tx, key)
        counts: Counter[str] = Counter()
        for namespace in namespaces:
            counts.update(
                self._forget_words_in(tx, namespace, leaving, contents, lines)
            )
        return counts

    def _forget_words_in(
        self,
        tx: Transaction,
        namespace: str,
        leaving: Leaving,
        contents: Mapping[str, str | None],
        lines: Mapping[str, Collection[str]],
    ) -> Counter[str]:
        """Delete the facts of a user's words from one namespace; return their numbers by kind.

        ``contents``: the facts of these words, by their ids; None for a fact that
        cannot be decrypted. ``lines``: the lines that remain in each session of the
        user.
        """
        rows = self._select(tx, namespace)
        stored = _parsed(tx, namespace, rows)
        deleted = set()
        for row in rows:
            has_copy = is_copy(row.id, stored, contents)
            if has_copy or leaving.takes(namespace, row.session_id, row.said_by):
                deleted.add(row.id)
        deleted |= only_ending(stored, deleted)
        changed = []
        is_team = leaving.is_team(namespace)
        for row in rows:
            if row.id in stored and row.id not in deleted:
                fact = without_reasons(stored[row.id], deleted, is_team=is_team)
                fact = without_deleted_source(fact, lines.get(row.session_id))
                if fact != stored[row.id]:
                    changed.append(fact)
        self._put_all(tx, namespace, changed)
        if deleted:
            return self._delete(tx, namespace, deleted)
        return Counter()

    def _delete(
        self, tx: Transaction, namespace: str, ids: Collection[str]
    ) -> Counter[str]:
        """Delete facts with their embeddings; return the numbers of both."""
        deleted = {"namespace": namespace, "ids": list(ids)}
        vectors = tx.execute(_DELETE_VECTORS, **deleted).rowcount
        facts = tx.execute(_DELETE_FACTS, **deleted).rowcount
        self._renew(tx, namespace)
        return Counter(facts=facts, embeddings=vectors)

    def _renew(self, tx: Transaction, namespace: str) -> None:
        """Give a namespace a new epoch, so that its readers read all facts again."""
        tx.execute(_SET_EPOCH, namespace=namespace, epoch=time.time_ns())

    def _select(
        self,
        tx: Transaction,
        namespace: str,
        view: AgentView = ALL_AGENTS,
        *,
        seen: int = 0,
        ids: Collection[str] | None = None,
    ) -> list[Any]:
        """Return the rows of the facts that changed since ``seen``, or of the facts with these ``ids``."""
        if ids is None:
            result = tx.execute(_SELECT_FACTS, namespace=namespace, seen=seen)
        else:
            result = tx.execute(_SELECT_FACTS_BY_ID, namespace=namespace, ids=list(ids))
        return [row for row in result if view.sees(row.agent_id or None)]

    def _version_of(self, tx: Transaction, namespace: str) -> FactsVersion:
        """Return the version of the facts of a namespace; 0 and 0 before the first fact."""
        row = tx.execute(_SELECT_VERSION, namespace=namespace).first()
        if row is None:
            return FactsVersion(epoch=0, change=0)
        return FactsVersion(row.epoch, row.change)

    def _merge(
        self,
        tx: Transaction,
        namespace: str,
        facts: Sequence[Fact],
        seen: FactChanges,
        view: AgentView,
    ) -> bool:
        """Store extracted facts beside the facts that were stored meanwhile; False if facts were deleted."""
        epoch = self._version_of(tx, namespace).epoch
        if seen.epoch not in (0, epoch):
            tx.rollback()
            return False
        rows = self._select(tx, namespace, view, seen=seen.change)
        newer = _parsed(tx, namespace, rows)
        self._put_all(tx, namespace, merged(facts, newer))
        return True

    def _put_all(
        self,
        tx: Transaction,
        namespace: str,
        facts: Sequence[Fact],
        *,
        moved: bool = False,
    ) -> None:
        """Store facts, each with the number of its change; ``moved``: one of them has changed its agent."""
        if not facts:
            return
        change = self._version_of(tx, namespace).change
        for start in range(0, len(facts), PAGE_FACTS):
            rows = []
            for fact in facts[start : start + PAGE_FACTS]:
                change += 1
                stored = fact.model_copy(update={"namespace": namespace})
                rows.append(
                    {
                        "namespace": namespace,
                        "id": fact.id,
                        "change": change,
                        "agent_id": fact.agent_id or "",
                        # A session that only the name of an imported fact is, may be
                        # the session of another user.
                        "session_id": fact.session_id if fact.message_ids else None,
                        "row_id": next(iter(fact.message_ids), None),
                        "data": stored.model_dump(mode="json"),
                    }
                )
            tx.execute(_PUT_FACT, rows)
        tx.execute(_SET_CHANGE, namespace=namespace, change=change)
        if moved:
            # The earlier agent's readers must lose the fact, as if it were deleted.
            self._renew(tx, namespace)


def _parsed(tx: Transaction, namespace: str, rows: Sequence[Any]) -> dict[str, Fact]:
    """Return the facts of the rows that can be read, by their ids."""
    facts = {}
    for row in rows:
        name = f"Fact {row.id!r} of {display_name(namespace)!r}"
        data = tx.read(row.data, name)
        if data is None:
            continue
        try:
            facts[row.id] = Fact.model_validate(data)
        except ValidationError as error:
            tx.read(EncryptionError(f"{error.error_count()} wrong fields."), name)
    return facts
