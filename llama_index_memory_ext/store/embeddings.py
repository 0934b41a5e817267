"""Keeps the embedding of each fact, so that no model is asked for one twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, select

from llama_index_memory_ext.store.database import shielded
from llama_index_memory_ext.store.schema import upsert

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_memory_ext.store.database import Database

# Databases take a limited number of parameters in one statement.
_IDS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class KeptVectors:
    """The vectors of one model for the facts of one user: pairs of a content's digest and bytes, by fact id."""

    embeddings: Embeddings
    namespace: str
    model: str

    @property
    def identity(self) -> tuple[str, ...]:
        """Equal for all that keep the vectors of these facts in this process."""
        return (*self.embeddings.identity, self.namespace, self.model)

    async def read(self, ids: Sequence[str]) -> dict[str, tuple[str, bytes]]:
        """The vectors of these facts that are kept."""
        return await self.embeddings.read(self.namespace, self.model, ids)

    async def write(self, vectors: Mapping[str, tuple[str, bytes]]) -> None:
        """Keep vectors; those of facts that were deleted meanwhile are passed over."""
        await self.embeddings.write(self.namespace, self.model, vectors)


class Embeddings:
    """The embeddings of a store, within the transactions of its database."""

    def __init__(self, database: Database) -> None:
        self._database, self.identity = database, database.identity
        facts, table = database.tables.facts, database.tables.embeddings
        ids: Any = bindparam("ids", expanding=True)
        self._known = select(facts.c.id).where(facts.c.namespace == bindparam("ns"), facts.c.id.in_(ids))
        self._read = select(table.c.id, table.c.digest, table.c.vector).where(
            table.c.namespace == bindparam("ns"), table.c.model == bindparam("by"), table.c.id.in_(ids)
        )
        put = upsert(table, database.backend)
        # Two processes that embed the same content store the same; only one knows of a content that changed.
        self._put = put.on_conflict_do_update(
            index_elements=["namespace", "id", "model"],
            set_={"digest": put.excluded.digest, "vector": put.excluded.vector},
        )

    def of(self, namespace: str, model: str) -> KeptVectors:
        """The vectors of one model for the facts of one user."""
        return KeptVectors(self, namespace, model)

    @shielded
    async def read(self, namespace: str, model: str, ids: Sequence[str]) -> dict[str, tuple[str, bytes]]:
        """The digest and the vector of each of these facts that has one."""
        found: dict[str, tuple[str, bytes]] = {}
        async with self._database.reading() as connection:
            for page in _pages(ids):
                rows = await connection.execute(self._read, {"ns": namespace, "by": model, "ids": page})
                found.update((row.id, (row.digest, row.vector)) for row in rows)
        return found

    @shielded
    async def write(self, namespace: str, model: str, vectors: Mapping[str, tuple[str, bytes]]) -> None:
        """Keep vectors; those of facts that were deleted meanwhile are passed over."""
        # The lock is that of the facts, so that no vector outlives a user who is being forgotten.
        async with self._database.writing(users=[namespace]) as connection:
            rows = []
            for page in _pages(list(vectors)):
                known = await connection.execute(self._known, {"ns": namespace, "ids": page})
                rows += [_row(namespace, model, fact_id, *vectors[fact_id]) for fact_id in known.scalars()]
            if rows:
                await connection.execute(self._put, rows)
            else:
                await connection.rollback()


def _pages(ids: Sequence[str]) -> list[Sequence[str]]:
    return [ids[i : i + _IDS_AT_ONCE] for i in range(0, len(ids), _IDS_AT_ONCE)]


def _row(namespace: str, model: str, fact_id: str, digest: str, vector: bytes) -> dict[str, Any]:
    return {"namespace": namespace, "id": fact_id, "model": model, "digest": digest, "vector": vector}
