"""The mark of an encrypted database, and rows that are encrypted anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_memory_ext.errors import EncryptionError
from llama_index_memory_ext.store.encryption import MARK

if TYPE_CHECKING:
    from llama_index_memory_ext.store.tables import Row
    from llama_index_memory_ext.store.transaction import Transaction

_SET_MARK = "UPDATE {schema} SET encryption = :mark"
# The sessions and the users whose rows are encrypted, each with the namespace of the
# vectors.
SELECT_PLACES = """
SELECT key, NULL AS namespace, 'messages of ' || key AS vectors FROM {rows}
UNION SELECT key, NULL, 'messages of ' || key FROM {cursors}
UNION SELECT NULL, namespace, namespace FROM {facts}
"""
# Waits until all writes that have begun end; see ``Database.run``.
_AWAIT_WRITERS = "LOCK TABLE {sessions}, {users} IN SHARE MODE"
# Queries for the rows of a place, each with the statement that stores these rows anew.
_REWRITES = (
    (
        "SELECT key, id AS row_id, data FROM {rows} WHERE key = :key",
        "UPDATE {rows} SET data = :data WHERE key = :key AND id = :row_id",
    ),
    (
        "SELECT key, reader, state FROM {cursors} WHERE key = :key",
        "UPDATE {cursors} SET state = :state WHERE key = :key AND reader = :reader",
    ),
    (
        "SELECT namespace, id, data FROM {facts} WHERE namespace = :namespace",
        "UPDATE {facts} SET data = :data WHERE namespace = :namespace AND id = :id",
    ),
    (
        "SELECT namespace, id, model, digest, vector FROM {embeddings} WHERE namespace = :vectors",
        """
        UPDATE {embeddings} SET digest = :digest, vector = :vector
        WHERE namespace = :namespace AND id = :id AND model = :model
        """,
    ),
)


def mark(tx: Transaction) -> None:
    """Mark a database as encrypted with the newest key of the store, if the store has one."""
    is_marked = tx.check_key()
    cipher = tx.tables.cipher
    if not cipher.is_set:
        return
    if not is_marked and tx.connection.dialect.name == "postgresql":
        # A write of a store without a key must not come after the rows were encrypted.
        tx.execute(_AWAIT_WRITERS)
    tx.execute(_SET_MARK, mark=cipher.encrypt_digest(MARK))


def encrypt_within(tx: Transaction, place: Row) -> int:
    """Encrypt the rows of a ``place``, a session or a user of ``SELECT_PLACES``, with the newest key.

    Return the number of rows that cannot be read, which stay as they are.
    """
    tx.lock({place["key"]} - {None}, {place["namespace"]} - {None})
    count = 0
    damaged = 0
    for query, update in _REWRITES:
        rows = []
        for row in tx.execute(query, **place).mappings().all():
            count += 1
            errors = [
                value for value in row.values() if isinstance(value, EncryptionError)
            ]
            if not errors:
                rows.append(dict(row))
                continue
            damaged += 1
            names = row.keys() - tx.tables.encrypted_columns.keys()
            identity = {name: row[name] for name in sorted(names)}
            tx.read(errors[0], f"The row {identity}")
        if rows:
            tx.execute(update, rows)
    if not count:
        # The session or the user was deleted meanwhile.
        tx.rollback()
    return damaged
