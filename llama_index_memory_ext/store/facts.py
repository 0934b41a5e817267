"""Keeps the facts of each user in the order in which they changed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, delete, select, update

from llama_index_memory_ext.agent_view import SHARED
from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.fact import Fact, normalised, retire
from llama_index_memory_ext.store.runner import reads, writes_user
from llama_index_memory_ext.store.tables import one_of, upsert
from llama_index_memory_ext.store.transaction import UnchangedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection

    from llama_index_memory_ext.agent_view import AgentView
    from llama_index_memory_ext.store.cursors import Readers
    from llama_index_memory_ext.store.rows import LogPage
    from llama_index_memory_ext.store.runner import Database
    from llama_index_memory_ext.store.tables import Statement
    from llama_index_memory_ext.text.tool_calls import Json


@dataclass(frozen=True, slots=True)
class FactChanges:
    """The facts of a namespace, retired ones too, that have changed since a reader's last look, oldest change first.

    ``change`` is the number of the last change. ``fresh`` is false if facts were deleted since; then ``facts`` are all
    that there are. ``epoch`` changes with every deletion.
    """

    epoch: int
    change: int
    fresh: bool
    facts: list[Fact]


NOTHING_READ = FactChanges(epoch=0, change=0, fresh=True, facts=[])


class Facts:
    """The facts of a store. A ``view`` says those of which agents are meant; a fact of another agent is not there."""

    def __init__(self, database: Database, readers: Readers) -> None:
        self.database, self._readers, self._tables = database, readers, database.tables
        facts, users = self._tables.facts, self._tables.users
        of_user = users.c.namespace == bindparam("ns")
        self._state = select(users.c.epoch, users.c.change).where(of_user)
        self._set = update(users).where(of_user)
        columns = select(facts.c.change, facts.c.data).where(facts.c.namespace == bindparam("ns"))
        self._changed = columns.where(facts.c.change > bindparam("seen")).order_by(facts.c.change)
        self._one = columns.where(facts.c.id == bindparam("fact"))
        self._agents = select(facts.c.id, facts.c.agent_id).where(facts.c.namespace == bindparam("ns"))
        self._agents = self._agents.where(one_of(facts.c.id, database.backend))
        self._put = upsert(facts, database.backend, "change", "agent_id", "data")

    @reads
    def read(
        self, conn: Connection, namespace: str, seen: FactChanges = NOTHING_READ, *, view: AgentView = SHARED
    ) -> FactChanges:
        """What has changed since ``seen``; all facts if some were deleted, or given to another agent, meanwhile."""
        epoch, last = self._epoch_and_change(conn, namespace)
        fresh = epoch == seen.epoch
        if fresh and last == seen.change:
            return FactChanges(epoch, last, fresh=True, facts=[])
        seen_change = {"ns": namespace, "seen": seen.change if fresh else 0}
        rows = conn.execute(self._in_view(self._changed, view), seen_change).all()
        change = max([last, *(row.change for row in rows)])
        return FactChanges(epoch, change, fresh, [Fact.model_validate(row.data) for row in rows])

    @writes_user
    def write(
        self,
        conn: Connection,
        namespace: str,
        facts: Sequence[Fact],
        seen: FactChanges | None = None,
        *,
        view: AgentView = SHARED,
    ) -> bool:
        """Store facts; one with a known id replaces that. A FactError if that is another agent's.

        With ``seen``, what others have stored since is kept. False if facts were deleted since: nothing is stored then.
        """
        moved = seen is None and self._will_move(conn, namespace, facts, view)
        self._put_all(conn, namespace, facts, seen, view, moved=moved)
        return True

    def move_within(self, conn: Connection, old: str, new: str) -> None:
        """Make the facts of one namespace those of another, which keeps what it has of the same words."""
        facts, embeddings = self._tables.facts, self._tables.embeddings
        found = conn.execute(self._changed, {"ns": old, "seen": 0}).all()
        if found:
            self.database.lock(conn, (), (old, new))
            self._put_all(conn, new, [Fact.model_validate(row.data) for row in found], NOTHING_READ)
            for table in (embeddings, facts):
                conn.execute(delete(table).where(table.c.namespace == old))
            conn.execute(self._set, {"ns": old, "epoch": time.time_ns()})

    @writes_user
    def change(
        self,
        conn: Connection,
        namespace: str,
        fact_id: str,
        changed: Callable[[Fact], Fact],
        *,
        view: AgentView = SHARED,
    ) -> Fact | None:
        """Change one fact as it is stored now; None, and nothing is written, if there is none with this id."""
        row = conn.execute(self._in_view(self._one, view), {"ns": namespace, "fact": fact_id}).first()
        if row is None:
            raise UnchangedError
        old = Fact.model_validate(row.data)
        fact = changed(old)
        self._put_all(conn, namespace, [fact], moved=fact.agent_id != old.agent_id)
        return fact

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

        The cursor never goes back. What others have stored since ``seen`` is neither doubled nor undone. False, and
        nothing is stored, if the cursor was moved, or messages or facts were deleted meanwhile.
        """
        old, new = unread.position, max(unread.position, unread.rows[-1].id)

        def write(conn: Connection) -> bool:
            self._put_all(conn, namespace, facts, seen, view)
            epoch = unread.epoch
            return self._readers.move_within(conn, session_id, reader, epoch=epoch, old=old, new=new, state=state)

        return await self.database.run(write, sessions=[session_id], users=[namespace])

    @writes_user
    def delete(
        self, conn: Connection, namespace: str, ids: Sequence[str] | None = None, *, view: AgentView = SHARED
    ) -> int:
        """Delete facts and their embeddings for good, None: all of the view; returns the number of facts."""
        facts, count = self._tables.facts, 0
        seen = self._in_view(select(facts.c.id).where(facts.c.namespace == namespace), view)
        # An embedding says not whose its fact is, and goes before it.
        for table in (self._tables.embeddings, facts):
            query = delete(table).where(table.c.namespace == namespace, table.c.id.in_(seen))
            if ids is not None:
                query = query.where(table.c.id.in_(ids))
            count = conn.execute(query).rowcount
        conn.execute(self._set, {"ns": namespace, "epoch": time.time_ns()})
        return count

    def _in_view(self, query: Statement, view: AgentView) -> Statement:
        return query if view.names is None else query.where(self._tables.facts.c.agent_id.in_(view.names))

    def _will_move(self, conn: Connection, namespace: str, facts: Sequence[Fact], view: AgentView) -> bool:
        """Whether one of these facts is another agent's now; a FactError if that agent's are not in the view."""
        found = conn.execute(self._agents, {"ns": namespace, "names": [fact.id for fact in facts]})
        agents = {row.id: row.agent_id or None for row in found}
        hidden = sum(not view.sees(agent) for agent in agents.values())
        if hidden:
            raise FactError(
                f"{hidden} of {len(facts)} facts have the ids of facts that belong to another agent of this user. "
                "Store them with a memory of that agent, or without their ids. Nothing was stored."
            )
        return any(agents.get(fact.id, fact.agent_id) != fact.agent_id for fact in facts)

    def _epoch_and_change(self, conn: Connection, namespace: str) -> tuple[int, int]:
        row = conn.execute(self._state, {"ns": namespace}).first()
        return (0, 0) if row is None else (row.epoch, row.change)

    def _put_all(
        self,
        conn: Connection,
        namespace: str,
        facts: Sequence[Fact],
        seen: FactChanges | None = None,
        view: AgentView = SHARED,
        *,
        moved: bool = False,
    ) -> None:
        epoch, last = self._epoch_and_change(conn, namespace)
        if seen is not None:
            if seen.epoch not in (0, epoch):
                raise UnchangedError(result=False)
            found = conn.execute(self._in_view(self._changed, view), {"ns": namespace, "seen": seen.change})
            facts = _merged([Fact.model_validate(row.data) for row in found], facts)
        if facts:
            stored = [fact.model_copy(update={"namespace": namespace}).model_dump(mode="json") for fact in facts]
            rows = [
                {
                    "namespace": namespace,
                    "id": fact.id,
                    "change": last + i,
                    "agent_id": fact.agent_id or "",
                    "data": data,
                }
                for i, (fact, data) in enumerate(zip(facts, stored, strict=True), 1)
            ]
            conn.execute(self._put, rows)
            # Whoever saw a fact that has moved must read all of them again, as where one was deleted.
            begun_again = {"epoch": time.time_ns()} if moved else {}
            conn.execute(self._set, {"ns": namespace, "change": last + len(rows), **begun_again})


def _merged(newer: Sequence[Fact], extracted: Sequence[Fact]) -> list[Fact]:
    """The extracted facts that are stored where others have changed or added facts meanwhile."""
    now = {fact.id: fact for fact in newer}
    contents = {normalised(fact.content): fact.id for fact in newer if not fact.retired}
    same = {fact.id: contents.get(normalised(fact.content), fact.id) for fact in extracted}
    merged = (_onto(fact, now.get(fact.id), same) for fact in extracted)
    return [fact for fact in merged if fact is not None]


def _onto(fact: Fact, stored: Fact | None, same: Mapping[str, str]) -> Fact | None:
    """An extracted fact as it is stored where others have stored it meanwhile, or ``same`` facts; None: not at all."""
    replaced_by = same.get(fact.replaced_by or "", fact.replaced_by)
    if stored is None:
        return fact.model_copy(update={"replaced_by": replaced_by}) if same[fact.id] == fact.id else None
    is_new = not stored.retired or fact.retired_by == "request"
    if fact.retired and is_new and not stored.pinned:
        # The user's own words have ended it, whatever was made of it meanwhile.
        return retire(stored, fact.retired_reason or "", fact.updated_at, replaced_by, by=fact.retired_by)
    return None
