"""Keeps the facts of each user, in the order in which they changed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, delete, func, select, update

from llama_index_memory_ext.fact import Fact, normalised, retire
from llama_index_memory_ext.store.database import shielded
from llama_index_memory_ext.store.schema import upsert

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.database import Database
    from llama_index_memory_ext.store.readers import Readers, Unread


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
    """The facts of a store, within the transactions of its database."""

    def __init__(self, database: Database, readers: Readers) -> None:
        self._database, self._readers, self._tables = database, readers, database.tables
        facts, self._users = self._tables.facts, self._tables.users
        of_user = self._users.c.namespace == bindparam("ns")
        self._state = select(self._users.c.epoch, self._users.c.change).where(of_user)
        columns = select(facts.c.change, facts.c.data).where(facts.c.namespace == bindparam("ns"))
        self._changed = columns.where(facts.c.change > bindparam("seen")).order_by(facts.c.change)
        self._one = columns.where(facts.c.id == bindparam("fact"))
        put = upsert(facts, database.backend)
        self._put = put.on_conflict_do_update(
            index_elements=["namespace", "id"], set_={"change": put.excluded.change, "data": put.excluded.data}
        )

    @shielded
    async def read(self, namespace: str, seen: FactChanges = NOTHING_READ) -> FactChanges:
        """What has changed since ``seen``; all facts if some were deleted meanwhile."""
        async with self._database.reading() as connection:
            epoch, last = await self._epoch_and_change(connection, namespace)
            fresh = epoch == seen.epoch
            if fresh and last == seen.change:
                return FactChanges(epoch, last, fresh=True, facts=[])
            found = await connection.execute(self._changed, {"ns": namespace, "seen": seen.change if fresh else 0})
            rows = found.all()
        change = max([last, *(row.change for row in rows)])
        return FactChanges(epoch, change, fresh, [Fact.model_validate(row.data) for row in rows])

    @shielded
    async def write(self, namespace: str, facts: Sequence[Fact], seen: FactChanges | None = None) -> bool:
        """Store facts; one with a known id replaces that.

        With ``seen``, what others have stored since is kept. False if facts were deleted since: nothing is stored then.
        """
        async with self._database.writing(users=[namespace]) as connection:
            if seen is not None and not await self._is_same(connection, namespace, seen):
                await connection.rollback()
                return False
            await self._put_all(connection, namespace, facts, seen)
        return True

    @shielded
    async def change(self, namespace: str, fact_id: str, changed: Callable[[Fact], Fact]) -> Fact | None:
        """Change one fact as it is stored now; None, and nothing is written, if there is none with this id."""
        async with self._database.writing(users=[namespace]) as connection:
            row = (await connection.execute(self._one, {"ns": namespace, "fact": fact_id})).first()
            if row is None:
                await connection.rollback()
                return None
            fact = changed(Fact.model_validate(row.data))
            await self._put_all(connection, namespace, [fact])
        return fact

    @shielded
    async def write_extracted(
        self, namespace: str, facts: Sequence[Fact], seen: FactChanges, *, session_id: str, reader: str, unread: Unread
    ) -> bool:
        """Store what was extracted from unread rows and move the reader's cursor past them, both or neither.

        What others have stored since ``seen`` is kept: it is neither doubled nor undone. False if the cursor was moved,
        or messages or facts were deleted meanwhile: nothing is stored then, and what was deleted stays deleted.
        """
        readers = self._readers
        async with self._database.writing(sessions=[session_id], users=[namespace]) as connection:
            epoch, old, new = unread.epoch, unread.position, unread.rows[-1].id
            moved = await self._is_same(connection, namespace, seen) and await readers.move_within(
                connection, session_id, reader, epoch=epoch, old=old, new=new
            )
            if moved:
                await self._put_all(connection, namespace, facts, seen)
            else:
                await connection.rollback()
        return moved

    @shielded
    async def delete(self, namespace: str, ids: Sequence[str] | None = None) -> int:
        """Delete facts and their embeddings for good, None: all of the namespace; returns the number of facts."""
        async with self._database.writing(users=[namespace]) as connection:
            counts = []
            for table in (self._tables.facts, self._tables.embeddings):
                query = delete(table).where(table.c.namespace == namespace)
                query = query if ids is None else query.where(table.c.id.in_(ids))
                counts.append((await connection.execute(query)).rowcount)
            of_user = self._users.c.namespace == namespace
            await connection.execute(update(self._users).where(of_user).values(epoch=time.time_ns()))
        return int(counts[0])

    @shielded
    async def count(self, namespace: str) -> int:
        """The number of facts, retired ones too."""
        query = select(func.count()).where(self._tables.facts.c.namespace == namespace)
        async with self._database.reading() as connection:
            count: int = (await connection.execute(query)).scalar_one()
        return count

    async def _epoch_and_change(self, connection: AsyncConnection, namespace: str) -> tuple[int, int]:
        row = (await connection.execute(self._state, {"ns": namespace})).first()
        return (0, 0) if row is None else (row.epoch, row.change)

    async def _is_same(self, connection: AsyncConnection, namespace: str, seen: FactChanges) -> bool:
        """Whether no facts were deleted since ``seen``."""
        return seen.epoch in (0, (await self._epoch_and_change(connection, namespace))[0])

    async def _put_all(
        self, connection: AsyncConnection, namespace: str, facts: Sequence[Fact], seen: FactChanges | None = None
    ) -> None:
        if seen is not None:
            found = await connection.execute(self._changed, {"ns": namespace, "seen": seen.change})
            facts = _merged([Fact.model_validate(row.data) for row in found], facts)
        if facts:
            _, last = await self._epoch_and_change(connection, namespace)
            rows = [_row(fact, namespace, last + i) for i, fact in enumerate(facts, 1)]
            await connection.execute(self._put, rows)
            of_user = self._users.c.namespace == namespace
            await connection.execute(update(self._users).where(of_user).values(change=last + len(rows)))


def _merged(newer: Sequence[Fact], extracted: Sequence[Fact]) -> list[Fact]:
    """The extracted facts that are stored where others have changed or added facts meanwhile."""
    now = {fact.id: fact for fact in newer}
    contents = {normalised(fact.content): fact.id for fact in newer if not fact.retired}
    same = {fact.id: contents.get(normalised(fact.content), fact.id) for fact in extracted}
    kept = []
    for fact in extracted:
        replaced_by = same.get(fact.replaced_by, fact.replaced_by) if fact.replaced_by else None
        if fact.id not in now:
            if same[fact.id] == fact.id:
                kept.append(fact.model_copy(update={"replaced_by": replaced_by}))
        elif fact.retired and not (now[fact.id].retired or now[fact.id].pinned):
            # The user's own words have ended it, whatever was made of it meanwhile.
            kept.append(retire(now[fact.id], fact.retired_reason or "", fact.updated_at, replaced_by))
    return kept


def _row(fact: Fact, namespace: str, change: int) -> dict[str, Any]:
    stored = fact.model_copy(update={"namespace": namespace}).model_dump(mode="json")
    return {"id": fact.id, "namespace": namespace, "change": change, "data": stored}
