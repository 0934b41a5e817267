"""Keeps the vectors that embedding models gave for facts and for messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import select

from llama_index_memory_ext.store.runner import reads
from llama_index_memory_ext.store.tables import one_of, upsert, vectors_namespace
from llama_index_memory_ext.store.transaction import UnchangedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from llama_index_memory_ext.store.cursors import Readers
    from llama_index_memory_ext.store.runner import Database


@dataclass(frozen=True, slots=True)
class KeptVectors:
    """The vectors of one model for the facts of one user: pairs of a content's digest and bytes, by fact id."""

    database: Database
    namespace: str
    model: str

    @property
    def identity(self) -> tuple[str, ...]:
        """Equal for all that keep the vectors of these facts in this process."""
        return (*self.database.identity, self.namespace, self.model)

    @reads
    def read(self, conn: Connection, ids: Sequence[str]) -> dict[str, tuple[str, bytes]]:
        """The digest and the vector of each of these facts that has one."""
        table, backend = self.database.tables.embeddings, self.database.backend
        these = (table.c.namespace == self.namespace, table.c.model == self.model, one_of(table.c.id, backend))
        query = select(table.c.id, table.c.digest, table.c.vector).where(*these)
        return {row.id: (row.digest, row.vector) for row in conn.execute(query, {"names": ids})}

    async def write(self, vectors: Mapping[str, tuple[str, bytes]]) -> bool:
        """Keep vectors; those of facts that were deleted meanwhile are passed over. True: others may be valid."""
        # The lock is that of the facts, so that no vector outlives a user who is being forgotten.
        return await self.database.run(self._write, vectors, users=[self.namespace])

    def _write(self, conn: Connection, vectors: Mapping[str, tuple[str, bytes]]) -> bool:
        facts = self.database.tables.facts
        these = (facts.c.namespace == self.namespace, one_of(facts.c.id, self.database.backend))
        found = conn.execute(select(facts.c.id).where(*these), {"names": list(vectors)})
        self._put(conn, vectors, found.scalars())
        return True

    def _put(self, conn: Connection, vectors: Mapping[str, tuple[str, bytes]], ids: Iterable[str]) -> None:
        model = {"namespace": self.namespace, "model": self.model}
        rows = [{**model, "id": one, "digest": vectors[one][0], "vector": vectors[one][1]} for one in ids]
        if not rows:
            raise UnchangedError(result=True)
        # Two processes that embed the same content store the same; only one knows of a content that changed.
        put = upsert(self.database.tables.embeddings, self.database.backend, "digest", "vector")
        conn.execute(put, rows)


@dataclass(frozen=True, slots=True)
class MessageVectors(KeptVectors):
    """The same for the messages of a session as they were in an epoch, by the id of the first row of each."""

    session_id: str
    epoch: int
    readers: Readers

    @classmethod
    def of(cls, readers: Readers, session_id: str, epoch: int, model: str) -> MessageVectors:
        """The vectors of a session."""
        return cls(readers.database, vectors_namespace(session_id), model, session_id, epoch, readers)

    async def write(self, vectors: Mapping[str, tuple[str, bytes]]) -> bool:
        """Keep vectors; False if messages were deleted since the epoch: their ids may be those of others by now."""
        # The lock is that of the messages, so that no vector outlives them.
        return await self.database.run(self._write, vectors, sessions=[self.session_id])

    def _write(self, conn: Connection, vectors: Mapping[str, tuple[str, bytes]]) -> bool:
        if not self.readers.is_current_within(conn, self.session_id, self.epoch):
            raise UnchangedError(result=False)
        rows = self.database.tables.rows
        these = (rows.c.key == self.session_id, rows.c.id.in_(map(int, vectors)))
        found = conn.execute(select(rows.c.id).where(*these))
        self._put(conn, vectors, map(str, found.scalars()))
        return True
