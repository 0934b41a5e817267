"""Keeps the facts of each namespace, in the order in which they changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import JSON, BigInteger, Column, Index, MetaData, String, Table, bindparam, delete, func, select

from llama_index_memory_ext.background.locks import uninterrupted
from llama_index_memory_ext.fact import Fact, normalised, retire
from llama_index_memory_ext.store.tables import FACTS, upsert_into

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.embedding_table import EmbeddingTable
    from llama_index_memory_ext.store.log_rows import Unread
    from llama_index_memory_ext.store.memory_store import MemoryStore


@dataclass(frozen=True, slots=True)
class FactChanges:
    """The facts of a namespace, retired ones too, that changed after a reader has seen it, oldest change first.

    ``change`` numbers the last change. ``fresh`` is false if facts were deleted since, and ``facts`` are all
    there are then. ``epoch`` changes with every deletion.
    """

    epoch: int
    change: int
    fresh: bool
    facts: list[Fact]


NOTHING_READ = FactChanges(epoch=0, change=0, fresh=True, facts=[])


def define_facts(table_name: str, metadata: MetaData) -> Table:
    """A fact as JSON, with what it is found by: its namespace and the number of its last change there."""
    facts = Table(
        f"{table_name}_facts",
        metadata,
        # An id alone is not enough: what one user imports must not replace another's fact.
        Column("namespace", String, primary_key=True),
        Column("id", String, primary_key=True),
        Column("change", BigInteger, nullable=False),
        Column("data", JSON, nullable=False),
    )
    Index(f"ix_{table_name}_facts_change", facts.c.namespace, facts.c.change)
    return facts


class FactTable:
    """The facts of a ``MemoryStore``, on its engine and within its transactions."""

    def __init__(self, store: MemoryStore, table: Table, embeddings: EmbeddingTable, backend: str) -> None:
        self._store = store
        self._table = table
        self._embeddings = embeddings
        self._changed = (
            select(table.c.change, table.c.data)
            .where(table.c.namespace == bindparam("ns"), table.c.change > bindparam("seen"))
            .order_by(table.c.change)
        )
        self._one = select(table.c.data).where(table.c.namespace == bindparam("ns"), table.c.id == bindparam("fact"))
        upsert: Any = upsert_into(table, backend)
        self._put = upsert.on_conflict_do_update(
            index_elements=[table.c.namespace, table.c.id],
            set_={"change": upsert.excluded.change, "data": upsert.excluded.data},
        )

    @uninterrupted
    async def read(self, namespace: str, seen: FactChanges = NOTHING_READ) -> FactChanges:
        """What has changed since ``seen``; everything if facts were deleted meanwhile."""
        async with self._store.reading() as connection:
            epoch, last = await self._store.position_of(connection, namespace, FACTS)
            fresh = epoch == seen.epoch
            if fresh and last == seen.change:
                return FactChanges(epoch, last, fresh=True, facts=[])
            found = await connection.execute(self._changed, {"ns": namespace, "seen": seen.change if fresh else 0})
            rows = found.all()
        change = max([last, *(row.change for row in rows)])
        return FactChanges(epoch, change, fresh, [Fact.model_validate(row.data) for row in rows])

    @uninterrupted
    async def write(self, namespace: str, facts: Sequence[Fact], seen: FactChanges | None = None) -> bool:
        """Store facts; one with a known id replaces that.

        With ``seen``, what others have stored since stands. False if facts were deleted since: nothing is stored then.
        """
        async with self._store.writing(namespace, FACTS) as connection:
            if seen is not None and seen.epoch:
                epoch, _ = await self._store.position_of(connection, namespace, FACTS)
                if epoch != seen.epoch:
                    # A user who was forgotten meanwhile must not be known again by the lock.
                    await connection.rollback()
                    return False
            await self._put_all(connection, namespace, facts, seen)
        return True

    @uninterrupted
    async def change(self, namespace: str, fact_id: str, changed: Callable[[Fact], Fact]) -> Fact | None:
        """Change one fact as it is at this moment; None if there is none with this id, and nothing is written then."""
        async with self._store.writing(namespace, FACTS) as connection:
            row = (await connection.execute(self._one, {"ns": namespace, "fact": fact_id})).first()
            if row is None:
                # A user who was forgotten must not be known again by the lock.
                await connection.rollback()
                return None
            fact = changed(Fact.model_validate(row.data))
            await self._put_all(connection, namespace, [fact])
        return fact

    @uninterrupted
    async def write_extracted(
        self, namespace: str, facts: Sequence[Fact], seen: FactChanges, *, session_id: str, reader: str, unread: Unread
    ) -> bool:
        """Store what was made of unread rows and move the reader behind them, both or neither.

        What others have stored since ``seen`` stands: it is neither doubled nor undone. False if the cursor has moved,
        the log was reset or facts were deleted meanwhile: nothing is stored then, and what was deleted stays so.
        """
        store, last = self._store, unread.rows[-1].id
        async with store.writing(session_id) as connection:
            may_move = await store.may_move(connection, session_id, reader, epoch=unread.epoch, old=unread.position)
            if may_move:
                # Always the session first and the namespace second: two workers cannot wait for each other.
                await store.lock(connection, (namespace, FACTS))
                epoch, _ = await store.position_of(connection, namespace, FACTS)
                may_move = seen.epoch in (0, epoch)
            if not may_move:
                # A session that was forgotten meanwhile must not be known again by its lock.
                await connection.rollback()
                return False
            await store.move(connection, session_id, reader, epoch=unread.epoch, position=last)
            await self._put_all(connection, namespace, facts, seen)
        return True

    async def _put_all(
        self, connection: AsyncConnection, namespace: str, facts: Sequence[Fact], seen: FactChanges | None = None
    ) -> None:
        if seen is not None:
            facts = _beside(await self._changed_since(connection, namespace, seen.change), facts)
        if facts:
            epoch, last = await self._store.position_of(connection, namespace, FACTS)
            rows = [_row(fact, namespace, last + i) for i, fact in enumerate(facts, start=1)]
            await connection.execute(self._put, rows)
            await self._store.move(connection, namespace, FACTS, epoch=epoch, position=last + len(rows))

    async def _changed_since(self, connection: AsyncConnection, namespace: str, change: int) -> list[Fact]:
        """The facts that came to be, or changed, after a change."""
        rows = await connection.execute(self._changed, {"ns": namespace, "seen": change})
        return [Fact.model_validate(row.data) for row in rows]

    @uninterrupted
    async def delete(self, namespace: str, ids: Sequence[str] | None = None) -> int:
        """Delete facts and their embeddings for good, by default all of the namespace; returns how many facts."""
        query = delete(self._table).where(self._table.c.namespace == namespace)
        if ids is not None:
            query = query.where(self._table.c.id.in_(ids))
        async with self._store.writing(namespace, FACTS) as connection:
            deleted: int = (await connection.execute(query)).rowcount
            await self._embeddings.delete(connection, namespace, ids)
            await self._store.start_epoch(connection, namespace, FACTS)
        return deleted

    @uninterrupted
    async def count(self, namespace: str) -> int:
        """How many facts there are, retired ones too."""
        query = select(func.count()).select_from(self._table).where(self._table.c.namespace == namespace)
        async with self._store.reading() as connection:
            counted: int = (await connection.execute(query)).scalar_one()
        return counted


def _beside(newer: Sequence[Fact], extracted: Sequence[Fact]) -> list[Fact]:
    """What of extracted facts is stored where others have changed or added facts meanwhile."""
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
