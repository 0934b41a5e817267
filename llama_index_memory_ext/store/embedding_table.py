"""Keeps the embedding of each fact, so that no model is asked for one twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, LargeBinary, MetaData, String, Table, bindparam, delete, select

from llama_index_memory_ext.background.locks import uninterrupted
from llama_index_memory_ext.store.tables import FACTS, upsert_into

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.memory_store import MemoryStore

# Databases take a limited number of parameters in one statement.
_IDS_AT_ONCE = 500


def define_embeddings(table_name: str, metadata: MetaData) -> Table:
    """The vector that a model gave for the content of a fact, and a digest of that content."""
    return Table(
        f"{table_name}_embeddings",
        metadata,
        Column("namespace", String, primary_key=True),
        Column("id", String, primary_key=True),
        Column("model", String, primary_key=True),
        Column("digest", String, nullable=False),
        Column("vector", LargeBinary, nullable=False),
    )


@dataclass(frozen=True, slots=True)
class KeptVectors:
    """The vectors of one model for the facts of one namespace: pairs of a content's digest and bytes, by fact id."""

    table: EmbeddingTable
    namespace: str
    model: str

    @property
    def door(self) -> tuple[str, ...]:
        """What all who embed these facts in this process have in common."""
        return (*self.table.store.identity, self.namespace, self.model)

    async def read(self, ids: Sequence[str]) -> dict[str, tuple[str, bytes]]:
        """Those of these facts' vectors that are kept."""
        return await self.table.read(self.namespace, self.model, ids)

    async def write(self, vectors: Mapping[str, tuple[str, bytes]]) -> None:
        """Keep vectors; one of a fact that was deleted meanwhile is passed over."""
        await self.table.write(self.namespace, self.model, vectors)


class EmbeddingTable:
    """The embeddings of a ``MemoryStore``, on its engine and within its transactions."""

    def __init__(self, store: MemoryStore, table: Table, facts: Table, backend: str) -> None:
        self.store = store
        self._table = table
        ids: Any = bindparam("ids", expanding=True)
        self._known = select(facts.c.id).where(facts.c.namespace == bindparam("ns"), facts.c.id.in_(ids))
        self._read = select(table.c.id, table.c.digest, table.c.vector).where(
            table.c.namespace == bindparam("ns"), table.c.model == bindparam("by"), table.c.id.in_(ids)
        )
        upsert: Any = upsert_into(table, backend)
        # Two processes that embed the same content store the same; only one knows of a content that changed.
        self._put = upsert.on_conflict_do_update(
            index_elements=[table.c.namespace, table.c.id, table.c.model],
            set_={"digest": upsert.excluded.digest, "vector": upsert.excluded.vector},
        )

    def of(self, namespace: str, model: str) -> KeptVectors:
        """The vectors of one model for the facts of one namespace."""
        return KeptVectors(self, namespace, model)

    @uninterrupted
    async def read(self, namespace: str, model: str, ids: Sequence[str]) -> dict[str, tuple[str, bytes]]:
        """The digest and the vector of each of these facts that has one."""
        found: dict[str, tuple[str, bytes]] = {}
        async with self.store.reading() as connection:
            for page in _pages(ids):
                rows = await connection.execute(self._read, {"ns": namespace, "by": model, "ids": page})
                found.update((row.id, (row.digest, row.vector)) for row in rows)
        return found

    @uninterrupted
    async def write(self, namespace: str, model: str, vectors: Mapping[str, tuple[str, bytes]]) -> None:
        """Keep vectors; one of a fact that was deleted meanwhile is passed over."""
        # The lock is that of the facts, so that no vector outlives a user who is being forgotten.
        async with self.store.writing(namespace, FACTS) as connection:
            rows = []
            for page in _pages(list(vectors)):
                known = await connection.execute(self._known, {"ns": namespace, "ids": page})
                rows += [_row(namespace, model, fact_id, *vectors[fact_id]) for fact_id in known.scalars()]
            if rows:
                await connection.execute(self._put, rows)
            else:
                # A user who was forgotten meanwhile must not be known again by the lock.
                await connection.rollback()

    async def delete(self, connection: AsyncConnection, namespace: str, ids: Sequence[str] | None) -> None:
        """Delete the vectors of facts within the transaction that deletes these; None: all of the namespace."""
        query = delete(self._table).where(self._table.c.namespace == namespace)
        if ids is not None:
            query = query.where(self._table.c.id.in_(ids))
        await connection.execute(query)


def _pages(ids: Sequence[str]) -> list[Sequence[str]]:
    return [ids[i : i + _IDS_AT_ONCE] for i in range(0, len(ids), _IDS_AT_ONCE)]


def _row(namespace: str, model: str, fact_id: str, digest: str, vector: bytes) -> dict[str, Any]:
    return {"namespace": namespace, "id": fact_id, "model": model, "digest": digest, "vector": vector}
