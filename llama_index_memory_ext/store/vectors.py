"""The embeddings of facts and messages that a store keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.store.readers import is_current
from llama_index_memory_ext.store.tables import vectors_namespace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_memory_ext.store.database import Database
    from llama_index_memory_ext.store.transaction import Transaction


_SELECT_FACT_IDS = "SELECT id FROM {facts} WHERE namespace = :namespace AND id {in_ids}"
_SELECT_VECTORS = """
SELECT id, digest, vector FROM {embeddings}
WHERE namespace = :namespace AND model = :model AND id {in_ids}
"""
_PUT_VECTOR = """
INSERT INTO {embeddings} (namespace, id, model, digest, vector)
VALUES (:namespace, :id, :model, :digest, :vector)
ON CONFLICT (namespace, id, model) DO UPDATE SET digest = excluded.digest, vector = excluded.vector
"""


@dataclass(frozen=True, slots=True)
class KeptVectors:
    """The vectors of one model for the facts of one user, or for the messages of a session in an epoch.

    A vector is a pair: the digest of the text, and the bytes. Its id is the id of the
    fact, or of the first row of the message.

    ``owner``: the user of the facts, or the session of the messages.
    ``epoch``: None for facts.
    """

    database: Database
    owner: str
    model: str
    epoch: int | None = None

    @property
    def namespace(self) -> str:
        """The namespace of the vectors in the table."""
        return self.owner if self.epoch is None else vectors_namespace(self.owner)

    @property
    def identity(self) -> tuple[str, ...]:
        """Equal for all objects of this process that store these vectors."""
        return (*self.database.identity, self.namespace, self.model)

    async def read(self, ids: Sequence[str]) -> dict[str, tuple[str, bytes]]:
        """Return the digest and the vector of each of these facts or messages that has a vector."""
        return await self.database.run(self._read, ids, writes=False)

    def _read(
        self, tx: Transaction, ids: Sequence[str]
    ) -> dict[str, tuple[str, bytes]]:
        rows = tx.rows(
            _SELECT_VECTORS, namespace=self.namespace, model=self.model, ids=list(ids)
        )
        vectors = {}
        for row in rows:
            vector = tx.read(row.vector, f"The vector of {row.id!r}")
            digest = tx.read(row.digest, f"The digest of {row.id!r}")
            if None not in (vector, digest):
                vectors[row.id] = (digest, vector)
        return vectors

    async def write(self, vectors: Mapping[str, tuple[str, bytes]]) -> bool:
        """Store vectors, except vectors of facts that were deleted meanwhile.

        False if messages were deleted since the epoch, because later messages may have
        got their ids. A store that only reads stores none.
        """
        # A read-only store, whose connections begin with a statement, stores no vectors.
        if self.database.set_up:
            return True
        # The transaction locks the facts or the messages, so that no vector outlives
        # them.
        kind = "users" if self.epoch is None else "sessions"
        locks: Any = {kind: [self.owner]}
        return await self.database.run(self._write, vectors, **locks)

    def _write(self, tx: Transaction, vectors: Mapping[str, tuple[str, bytes]]) -> bool:
        ids = list(vectors)
        is_stored = True
        if self.epoch is None:
            ids = tx.scalars(_SELECT_FACT_IDS, namespace=self.namespace, ids=ids)
        else:
            is_stored = is_current(tx, self.owner, self.epoch)
        if not (ids and is_stored):
            tx.rollback()
            return is_stored
        rows = []
        for vector_id in ids:
            digest, vector = vectors[vector_id]
            rows.append(
                {
                    "namespace": self.namespace,
                    "id": vector_id,
                    "model": self.model,
                    "digest": digest,
                    "vector": vector,
                }
            )
        # Two processes that embed the same content store the same vector.
        tx.execute(_PUT_VECTOR, rows)
        return True
