"""Keeps the facts of each user in the order in which they changed, and the vectors of facts and messages."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Connection,
    String,
    bindparam,
    delete,
    or_,
    select,
    update,
)

from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.fact import (
    ONLY_ENDS,
    SHARED,
    AgentView,
    Fact,
    normalised,
    retire,
    utc_now,
    without_reasons,
)
from llama_index_memory_ext.store.runner import Database, reads, writes_user
from llama_index_memory_ext.store.tables import (
    LogPage,
    Row,
    Statement,
    one_of,
    speaker_of,
    upsert,
    vectors_namespace,
)

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Collection, Mapping, Sequence

    from llama_index_memory_ext.store.cursors import Readers
    from llama_index_memory_ext.text.tool_calls import Json

    Changed = Callable[[Mapping[str, Fact]], Sequence[Fact]]


@dataclass(frozen=True, slots=True)
class FactChanges:
    """The facts of a namespace, retired ones too, that have changed since a reader's last look, oldest change first.

    ``change`` is the number of the last change. ``fresh`` is false if facts were
    deleted since; then ``facts`` are all that there are. ``epoch`` changes with every
    deletion.
    """

    epoch: int
    change: int
    fresh: bool
    facts: list[Fact]


# How many facts are written by one statement: a server ends a transaction in which
# nothing comes for a while.
PAGE_FACTS = 500


@dataclass(frozen=True, slots=True)
class Leaving:
    """A user who is deleted: the ``namespaces`` that go, and the user's ``sessions`` with the users who stay there."""

    namespaces: Collection[str]
    sessions: Mapping[str, Collection[str]]

    def takes(
        self, namespace: str, session_id: str | None, said_by: str | None
    ) -> bool:
        """Return whether a fact of another namespace goes: it was said by this user, or may have been.

        Where it is not known who has said it, it goes, but for the facts of a user who
        stays.
        """
        users = self.sessions.get(session_id or "")
        is_unknown = (
            users is not None and said_by not in users and namespace not in users
        )
        return is_unknown or said_by in self.namespaces

    def is_team(self, namespace: str) -> bool:
        """Return whether a namespace is of no user who stays, so that it may hold what anybody has said."""
        return not any(namespace in users for users in self.sessions.values())


NOTHING_READ = FactChanges(epoch=0, change=0, fresh=True, facts=[])


class Facts:
    """The facts of a store. A ``view`` says those of which agents are meant; a fact of another agent is not there."""

    def __init__(self, database: Database, readers: Readers) -> None:
        self.database = database
        self._readers = readers
        self._tables = database.tables
        facts = self._tables.facts
        users = self._tables.users
        of_user = users.c.namespace == bindparam("ns")
        self._user = select(users.c.epoch, users.c.change).where(of_user)
        self._set_user = update(users).where(of_user)
        self._some = select(facts.c.id, facts.c.agent_id, facts.c.change, facts.c.data)
        self._some = self._some.where(facts.c.namespace == bindparam("ns"))
        self._changed = self._some.where(facts.c.change > bindparam("seen")).order_by(
            facts.c.change
        )
        self._known = self._some.where(one_of(facts.c.id, database.backend))
        speaker = speaker_of(
            self._tables,
            bindparam("said_in", type_=String),
            bindparam("row_id", type_=BigInteger),
        )
        put = upsert(facts, database.backend, "change", "agent_id", "data")
        # What a fact becomes later changes nothing about whose words it was learned
        # from.
        self._put = put.values(said_by=speaker)

    @reads
    def read(
        self,
        conn: Connection,
        namespace: str,
        seen: FactChanges = NOTHING_READ,
        *,
        view: AgentView = SHARED,
    ) -> FactChanges:
        """What has changed since ``seen``; all facts if some were deleted, or given to another agent, meanwhile."""
        epoch, last = self._epoch_and_change(conn, namespace)
        fresh = epoch == seen.epoch
        if fresh and last == seen.change:
            return FactChanges(epoch, last, fresh=True, facts=[])
        seen_change = {"ns": namespace, "seen": seen.change if fresh else 0}
        rows = conn.execute(self._in_view(self._changed, view), seen_change).all()
        change = max([last, *(row.change for row in rows)])
        return FactChanges(
            epoch, change, fresh, [Fact.model_validate(row.data) for row in rows]
        )

    async def write(
        self,
        namespace: str,
        facts: Sequence[Fact],
        seen: FactChanges | None = None,
        *,
        view: AgentView = SHARED,
    ) -> bool:
        """Store facts in one transaction; one with a known id replaces that. A FactError if that is another agent's.

        With ``seen``, what others have stored since is kept. False if facts were
        deleted since: nothing is stored then. Each page of ``PAGE_FACTS`` has the time
        of one call.
        """
        seconds = self.database.seconds * max(math.ceil(len(facts) / PAGE_FACTS), 1)
        write = self._write
        return await self.database.run(
            write, namespace, facts, seen, view, users=[namespace], seconds=seconds
        )

    def _write(
        self,
        conn: Connection,
        namespace: str,
        facts: Sequence[Fact],
        seen: FactChanges | None,
        view: AgentView,
    ) -> bool:
        if seen is not None:
            # Before the first fact no epoch tells that its messages were deleted
            # meanwhile.
            if seen.epoch == 0 and not all(self._is_said(conn, fact) for fact in facts):
                conn.rollback()
                return False
            return self._merge(conn, namespace, facts, seen, view)
        found = conn.execute(
            self._known, {"ns": namespace, "names": [fact.id for fact in facts]}
        )
        agents = {row.id: row.agent_id or None for row in found}
        hidden = sum(not view.sees(agent) for agent in agents.values())
        if hidden:
            raise FactError(
                f"{hidden} of {len(facts)} facts have the ids of facts that belong to another agent of this user. "
                "Store them with a memory of that agent, or without their ids. Nothing was stored."
            )
        moved = any(
            agents.get(fact.id, fact.agent_id) != fact.agent_id for fact in facts
        )
        self._put_all(conn, namespace, facts, moved=moved)
        return True

    @writes_user
    def change(
        self,
        conn: Connection,
        namespace: str,
        changed: Changed,
        ids: Sequence[str] | None = None,
        *,
        view: AgentView = SHARED,
    ) -> Sequence[Fact]:
        """Change facts as they are stored now, in one transaction; returns those that ``changed`` makes of them.

        It is given those with the ``ids`` that exist, None: all, by their ids. If it
        raises an error nothing is written.
        """
        query, which = (
            (self._changed, {"seen": 0})
            if ids is None
            else (self._known, {"names": list(ids)})
        )
        rows = conn.execute(self._in_view(query, view), {"ns": namespace, **which})
        known = {row.id: Fact.model_validate(row.data) for row in rows}
        facts = changed(known)
        moved = any(known.get(one.id, one).agent_id != one.agent_id for one in facts)
        self._put_all(conn, namespace, facts, moved=moved)
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
        """Store what was extracted from rows and move the reader's cursor past them, with its state: all or nothing.

        The cursor never goes back. What others have stored since ``seen`` is neither
        doubled nor undone. False, and nothing is stored, if the cursor was moved, or
        messages or facts were deleted meanwhile.
        """
        epoch = unread.epoch
        old = unread.position
        new = max(unread.position, unread.rows[-1].id)

        def write(conn: Connection) -> bool:
            return self._merge(
                conn, namespace, facts, seen, view
            ) and self._readers.move_within(
                conn, session_id, reader, epoch=epoch, old=old, new=new, state=state
            )

        return await self.database.run(write, sessions=[session_id], users=[namespace])

    @writes_user
    def delete(
        self,
        conn: Connection,
        namespace: str,
        ids: Sequence[str] | None = None,
        *,
        view: AgentView = SHARED,
    ) -> int:
        """Delete facts and their embeddings for good, None: all of the view; returns the number of facts."""
        facts = self._tables.facts
        count = 0
        seen = self._in_view(
            select(facts.c.id).where(facts.c.namespace == namespace), view
        )
        # An embedding says not whose its fact is, and goes before it.
        for table in (self._tables.embeddings, facts):
            query = delete(table).where(
                table.c.namespace == namespace, table.c.id.in_(seen)
            )
            if ids is not None:
                query = query.where(table.c.id.in_(ids))
            count = conn.execute(query).rowcount
        conn.execute(self._set_user, {"ns": namespace, "epoch": time.time_ns()})
        return count

    def move_within(self, conn: Connection, old: str, new: str) -> None:
        """Make the facts of one namespace those of another, which keeps what it has of the same words."""
        found = conn.execute(self._changed, {"ns": old, "seen": 0}).all()
        if found:
            self.database.lock(conn, (), (old, new))
            self._merge(
                conn,
                new,
                [Fact.model_validate(row.data) for row in found],
                NOTHING_READ,
                SHARED,
            )
            for table in (self._tables.embeddings, self._tables.facts):
                conn.execute(delete(table).where(table.c.namespace == old))
            conn.execute(self._set_user, {"ns": old, "epoch": time.time_ns()})

    def lose_words_within(
        self, conn: Connection, session_id: str, first_left: int, first_words: int
    ) -> int:
        """Take from facts the words of the messages of a session before this row; returns how many facts have changed.

        The text around a quote may begin with the message before it, so that of the
        first row with words loses it, too. A fact of which no row is left has no
        session.
        """
        facts = self._tables.facts
        count = 0
        learned = facts.c.session_id == session_id
        namespaces = (
            conn.execute(select(facts.c.namespace).where(learned).distinct())
            .scalars()
            .all()
        )
        self.database.lock(conn, (), namespaces)
        for namespace in namespaces:
            found = conn.execute(self._some.where(learned), {"ns": namespace})
            changed = []
            for fact in [Fact.model_validate(row.data) for row in found]:
                ids = fact.message_ids
                if ids and min(ids) <= first_words:
                    left = tuple(one for one in ids if one >= first_left)
                    words = {
                        "quote": fact.quote if left == ids else "",
                        "source": "",
                        "words_deleted_at": utc_now(),
                    }
                    place = {
                        "message_ids": left,
                        "session_id": session_id if left else None,
                    }
                    changed.append(fact.model_copy(update={**words, **place}))
            self._put_all(conn, namespace, changed)
            count += len(changed)
        return count

    def forget_words_within(
        self,
        conn: Connection,
        own: Collection[str],
        sessions: Mapping[str, Collection[str]],
        read_by: Collection[str],
        counts: Counter[str],
    ) -> None:
        """Delete what other namespaces have learned from the words of a user, and count it.

        ``own`` are the namespaces that go, and ``sessions`` the user's, with the users
        who stay there. Facts of those who have read them (``read_by``) may have been
        ended by these words.
        """
        facts = self._tables.facts
        leaving = Leaving(own, sessions)
        learned = or_(
            facts.c.said_by.in_(leaving.namespaces),
            one_of(facts.c.session_id, self.database.backend),
        )
        said = or_(
            facts.c.said_by.in_(leaving.namespaces),
            facts.c.namespace.in_(leaving.namespaces),
        )
        # A copy of such a fact, as by an import, has its id, and may not tell any more
        # where it was learned.
        copied = {
            row.id: row.data["content"]
            for row in conn.execute(select(facts.c.id, facts.c.data).where(said))
        }
        is_copy = facts.c.id.in_(select(facts.c.id).where(said))
        reached = select(facts.c.namespace).where(
            or_(learned, is_copy, facts.c.namespace.in_(read_by))
        )
        others = reached.where(facts.c.namespace.not_in(leaving.namespaces)).distinct()
        namespaces = (
            conn.execute(others, {"names": [*leaving.sessions]}).scalars().all()
        )
        self.database.lock(conn, (), {*leaving.namespaces, *namespaces})
        if namespaces:
            lines = {
                key: self._readers.lines_within(conn, key) for key in leaving.sessions
            }
        else:
            lines = {}
        for namespace in namespaces:
            query = self._some.add_columns(facts.c.session_id, facts.c.said_by)
            rows = conn.execute(query, {"ns": namespace}).all()
            before = {row.id: Fact.model_validate(row.data) for row in rows}
            gone = {
                row.id
                for row in rows
                if leaving.takes(namespace, row.session_id, row.said_by)
            }
            gone |= {
                fact.id
                for fact in before.values()
                if fact.content == copied.get(fact.id)
            }
            contents = tuple(before[one].content for one in gone)
            # What says that another fact is over repeats that fact.
            ends = [fact for fact in before.values() if fact.said_as == ONLY_ENDS]
            gone |= {fact.id for fact in ends if fact.content.endswith(contents)}
            changed = []
            for row in rows:
                fact = without_reasons(
                    before[row.id], gone, is_team=leaving.is_team(namespace)
                )
                if row.session_id in lines and not lines[row.session_id].issuperset(
                    fact.source.splitlines()
                ):
                    fact = fact.model_copy(
                        update={"source": "", "words_deleted_at": utc_now()}
                    )
                if fact is not before[row.id] and row.id not in gone:
                    changed.append(fact)
            self._put_all(conn, namespace, changed)
            if gone:
                self._delete(conn, namespace, gone, counts)

    def _delete(
        self,
        conn: Connection,
        namespace: str,
        ids: Collection[str],
        counts: Counter[str],
    ) -> None:
        """Delete facts with their embeddings, and count both."""
        for kind, table in (
            ("embeddings", self._tables.embeddings),
            ("facts", self._tables.facts),
        ):
            these = (
                table.c.namespace == namespace,
                one_of(table.c.id, self.database.backend),
            )
            counts[kind] += conn.execute(
                delete(table).where(*these), {"names": [*ids]}
            ).rowcount
        conn.execute(self._set_user, {"ns": namespace, "epoch": time.time_ns()})

    def _in_view(self, query: Statement, view: AgentView) -> Statement:
        if view.names is None:
            return query
        return query.where(self._tables.facts.c.agent_id.in_(view.names))

    def _epoch_and_change(self, conn: Connection, namespace: str) -> tuple[int, int]:
        row = conn.execute(self._user, {"ns": namespace}).first()
        if row is None:
            return (0, 0)
        return (row.epoch, row.change)

    def _merge(
        self,
        conn: Connection,
        namespace: str,
        facts: Sequence[Fact],
        seen: FactChanges,
        view: AgentView,
    ) -> bool:
        """Store extracted facts where others have changed or added facts meanwhile; False if facts were deleted."""
        epoch, _ = self._epoch_and_change(conn, namespace)
        if seen.epoch not in (0, epoch):
            conn.rollback()
            return False
        found = conn.execute(
            self._in_view(self._changed, view), {"ns": namespace, "seen": seen.change}
        )
        newer = {row.id: Fact.model_validate(row.data) for row in found}
        contents = {
            normalised(fact.content): fact.id
            for fact in newer.values()
            if not fact.retired
        }
        same = {
            fact.id: contents.get(normalised(fact.content), fact.id) for fact in facts
        }
        merged = []
        for fact in facts:
            stored = newer.get(fact.id)
            replaced_by = same.get(fact.replaced_by or "", fact.replaced_by)
            if stored is None and same[fact.id] == fact.id:
                merged.append(fact.model_copy(update={"replaced_by": replaced_by}))
            elif (
                stored
                and not stored.pinned
                and fact.retired
                and (not stored.retired or fact.retired_by == "request")
            ):
                # The user's own words have ended it, whatever was made of it meanwhile.
                reason = fact.retired_reason or ""
                by = fact.retired_by
                merged.append(
                    retire(stored, reason, fact.updated_at, replaced_by, by=by)
                )
        self._put_all(conn, namespace, merged)
        return True

    def _is_said(self, conn: Connection, fact: Fact) -> bool:
        """Return whether a message in which a fact was said is there, if it was said in any."""
        ids = fact.message_ids
        return not ids or bool(
            self._readers.rows_within(conn, fact.session_id or "", ids)
        )

    def _put_all(
        self,
        conn: Connection,
        namespace: str,
        facts: Sequence[Fact],
        *,
        moved: bool = False,
    ) -> None:
        if not facts:
            return
        _, change = self._epoch_and_change(conn, namespace)
        for start in range(0, len(facts), PAGE_FACTS):
            rows: list[Row] = []
            for fact in facts[start : start + PAGE_FACTS]:
                change += 1
                data = fact.model_copy(update={"namespace": namespace}).model_dump(
                    mode="json"
                )
                rows.append(
                    {
                        "namespace": namespace,
                        "id": fact.id,
                        "change": change,
                        "agent_id": fact.agent_id or "",
                        "session_id": fact.session_id,
                        "said_in": fact.session_id,
                        "row_id": next(iter(fact.message_ids), None),
                        "data": data,
                    }
                )
            conn.execute(self._put, rows)
        # Readers of a fact that has moved must read all of them again, as where one was
        # deleted.
        begun_again = {"epoch": time.time_ns()} if moved else {}
        conn.execute(self._set_user, {"ns": namespace, "change": change, **begun_again})


@dataclass(frozen=True, slots=True)
class KeptVectors:
    """The vectors of one model for the facts of one user: pairs of a content's digest and bytes, by fact id.

    Those for the messages of a session, as they were in an epoch, have the id of the
    first row of each.
    """

    database: Database
    namespace: str
    model: str
    session_id: str | None = None
    epoch: int = 0
    readers: Readers | None = None

    @classmethod
    def of_messages(
        cls, readers: Readers, session_id: str, epoch: int, model: str
    ) -> KeptVectors:
        """Return the vectors of the messages of a session in an epoch."""
        return cls(
            readers.database,
            vectors_namespace(session_id),
            model,
            session_id,
            epoch,
            readers,
        )

    @property
    def identity(self) -> tuple[str, ...]:
        """Equal for all that keep the vectors of these facts in this process."""
        return (*self.database.identity, self.namespace, self.model)

    @property
    def owner(self) -> str:
        """The session whose messages these are, else the user whose facts they are."""
        return self.session_id or self.namespace

    @reads
    def read(
        self, conn: Connection, ids: Sequence[str]
    ) -> dict[str, tuple[str, bytes]]:
        """Return the digest and the vector of each of these facts that has one."""
        table = self.database.tables.embeddings
        backend = self.database.backend
        these = (
            table.c.namespace == self.namespace,
            table.c.model == self.model,
            one_of(table.c.id, backend),
        )
        query = select(table.c.id, table.c.digest, table.c.vector).where(*these)
        return {
            row.id: (row.digest, row.vector)
            for row in conn.execute(query, {"names": ids})
        }

    async def write(self, vectors: Mapping[str, tuple[str, bytes]]) -> bool:
        """Keep vectors; those of facts that were deleted meanwhile are passed over.

        False if messages were deleted since the epoch: their ids may be those of others
        by now.
        """
        # The lock is that of the facts or the messages, so that no vector outlives what
        # it is of.
        if self.readers:
            whose: Any = {"sessions": [self.session_id]}
        else:
            whose = {"users": [self.namespace]}
        tables = self.database.tables
        backend = self.database.backend

        def write(conn: Connection) -> bool:
            kept = dict(vectors)
            if self.readers is None:
                facts = select(tables.facts.c.id).where(
                    tables.facts.c.namespace == self.namespace
                )
                known = facts.where(one_of(tables.facts.c.id, backend))
                kept = {
                    one: vectors[one]
                    for one in conn.execute(known, {"names": list(vectors)}).scalars()
                }
            elif not self.readers.is_current_within(
                conn, self.session_id or "", self.epoch
            ):
                conn.rollback()
                return False
            place = {"namespace": self.namespace, "model": self.model}
            rows = [
                {**place, "id": one, "digest": digest, "vector": vector}
                for one, (digest, vector) in kept.items()
            ]
            if rows:
                # Two processes that embed the same content store the same; only one
                # knows of a content that changed.
                conn.execute(
                    upsert(tables.embeddings, backend, "digest", "vector"), rows
                )
            else:
                conn.rollback()
            return True

        return await self.database.run(write, **whose)
