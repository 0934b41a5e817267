"""The rows of facts: reads, writes and deletes the facts of a namespace, and keeps its version."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from llama_index.core.bridge.pydantic import ValidationError

from llama_index_memory_ext.agent_view import ALL_FACTS, AgentView
from llama_index_memory_ext.errors import EncryptionError
from llama_index_memory_ext.fact import Fact
from llama_index_memory_ext.store.rows import FactsVersion
from llama_index_memory_ext.store.tables import display_name

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from llama_index_memory_ext.store.transaction import Transaction

# One statement writes at most so many facts: a server ends a transaction that sends
# nothing for a while.
PAGE_FACTS = 500


_SELECT_VERSION = "SELECT epoch, change FROM {users} WHERE namespace = :namespace"
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


def delete_with_vectors(
    tx: Transaction, namespace: str, ids: Collection[str]
) -> Counter[str]:
    """Delete facts with their embeddings; return the numbers of both."""
    deleted = {"namespace": namespace, "ids": list(ids)}
    vectors = tx.execute(_DELETE_VECTORS, **deleted).rowcount
    facts = tx.execute(_DELETE_FACTS, **deleted).rowcount
    _renew(tx, namespace)
    return Counter(facts=facts, embeddings=vectors)


def _renew(tx: Transaction, namespace: str) -> None:
    """Give a namespace a new epoch, so that its readers read all facts again."""
    tx.execute(_SET_EPOCH, namespace=namespace, epoch=time.time_ns())


def select_facts(
    tx: Transaction,
    namespace: str,
    view: AgentView = ALL_FACTS,
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


def read_version(tx: Transaction, namespace: str) -> FactsVersion:
    """Return the version of the facts of a namespace; 0 and 0 before the first fact."""
    row = tx.execute(_SELECT_VERSION, namespace=namespace).first()
    if row is None:
        return FactsVersion(epoch=0, change=0)
    return FactsVersion(row.epoch, row.change)


def put_facts(
    tx: Transaction,
    namespace: str,
    facts: Sequence[Fact],
    *,
    moved: bool = False,
) -> None:
    """Store facts, each with the number of its change; ``moved``: one of them has changed its agent."""
    if not facts:
        return
    change = read_version(tx, namespace).change
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
                    # An imported fact may name a session that is another user's here.
                    "session_id": fact.session_id if fact.message_ids else None,
                    "row_id": next(iter(fact.message_ids), None),
                    "data": stored.model_dump(mode="json"),
                }
            )
        tx.execute(_PUT_FACT, rows)
    tx.execute(_SET_CHANGE, namespace=namespace, change=change)
    if moved:
        # The earlier agent's readers must lose the fact, as if it were deleted.
        _renew(tx, namespace)


def parse_facts(
    tx: Transaction, namespace: str, rows: Sequence[Any]
) -> dict[str, Fact]:
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
