"""The facts of each user: reads, writes and deletes them, and keeps the number of each change."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.bridge.pydantic import ValidationError

from llama_index_memory_ext.agent_view import ALL_FACTS, SHARED_FACTS, AgentView
from llama_index_memory_ext.errors import EncryptionError, FactError
from llama_index_memory_ext.fact import Fact, duplicate_key, mark_edited, retire
from llama_index_memory_ext.store.rows import FactsVersion
from llama_index_memory_ext.store.tables import display_name
from llama_index_memory_ext.store.transaction import StorePart, Transaction, door

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    Changed = Callable[[Mapping[str, Fact]], Sequence[Fact]]


class FactChanges(NamedTuple):
    """The facts of a namespace, retired ones too, that changed since a reader's last read, oldest change first.

    ``change``: the number of the last change. ``epoch``: changes with every deletion.
    ``fresh``: false if facts were deleted since the last read; then ``facts`` are all
    facts of the namespace.
    """

    epoch: int
    change: int
    fresh: bool
    facts: list[Fact]


NOTHING_READ = FactChanges(epoch=0, change=0, fresh=True, facts=[])


# One statement writes at most so many facts: a server ends a transaction that sends
# nothing for a while.
PAGE_FACTS = 500


_SELECT_VERSION = """
SELECT COALESCE(MAX(epoch), 0) AS epoch, COALESCE(MAX(change), 0) AS change FROM {users}
WHERE namespace = :namespace
"""
_SELECT_FACTS = """
SELECT namespace, id, agent_id, change, data, session_id, said_by FROM {facts}
WHERE namespace = :namespace AND change > :seen
ORDER BY change
"""
_SELECT_FACTS_BY_ID = """
SELECT namespace, id, agent_id, change, data, session_id, said_by FROM {facts}
WHERE namespace = :namespace AND id {in_ids}
ORDER BY change
"""
# The speaker is read from the message; in a session of one user, it is that user. An
# update keeps the speaker of the words that the fact was learned from. It also keeps their
# session, unless the fact now names messages of another session.
_PUT_FACT = """
INSERT INTO {facts} AS facts (namespace, id, change, agent_id, session_id, data, said_by)
VALUES (:namespace, :id, :change, :agent_id, :session_id, :data, (
    SELECT COALESCE(user_id, (SELECT MIN(user_id) FROM {owners} WHERE key = :session_id))
    FROM {rows} WHERE key = :session_id AND id = :row_id
))
ON CONFLICT (namespace, id)
DO UPDATE SET change = excluded.change, agent_id = excluded.agent_id, data = excluded.data,
    session_id = COALESCE(excluded.session_id, facts.session_id),
    said_by = COALESCE(facts.said_by, excluded.said_by)
"""
_HAS_ROW = "SELECT EXISTS (SELECT 1 FROM {rows} WHERE key = :key AND id {in_row_ids})"
_SET_CHANGE = "UPDATE {users} SET change = :change WHERE namespace = :namespace"
_SET_EPOCH = "UPDATE {users} SET epoch = :epoch WHERE namespace = :namespace"
_DELETE_FACTS = "DELETE FROM {facts} WHERE namespace = :namespace AND id {in_ids}"
_DELETE_VECTORS = (
    "DELETE FROM {embeddings} WHERE namespace = :namespace AND id {in_ids}"
)
_COUNT_FACTS = "SELECT namespace, COUNT(*) AS facts FROM {facts} GROUP BY namespace"
_RENAME_SPEAKER = "UPDATE {facts} SET said_by = :new WHERE said_by = :old"


# ---- rows ----


def delete_with_vectors(
    tx: Transaction, namespace: str, ids: Collection[str]
) -> Counter[str]:
    """Delete facts with their embeddings; return the numbers of both."""
    if not ids:
        return Counter()
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
        rows = tx.rows(_SELECT_FACTS, namespace=namespace, seen=seen)
    else:
        rows = tx.rows(_SELECT_FACTS_BY_ID, namespace=namespace, ids=list(ids))
    return [row for row in rows if view.sees(row.agent_id or None)]


def read_version(tx: Transaction, namespace: str) -> FactsVersion:
    """Return the version of the facts of a namespace; 0 and 0 before the first fact."""
    return FactsVersion(*tx.execute(_SELECT_VERSION, namespace=namespace).one())


def put_facts(
    tx: Transaction,
    namespace: str,
    facts: Sequence[Fact],
    stored: Mapping[str, Fact] = {},
) -> None:
    """Store facts, each with the number of its change, in place of the ``stored`` facts with their ids."""
    if not facts:
        return
    change = read_version(tx, namespace).change
    for start in range(0, len(facts), PAGE_FACTS):
        rows = []
        for fact in facts[start : start + PAGE_FACTS]:
            change += 1
            of_namespace = fact.model_copy(update={"namespace": namespace})
            rows.append(
                {
                    "namespace": namespace,
                    "id": fact.id,
                    "change": change,
                    "agent_id": fact.agent_id or "",
                    # An imported fact may name a session that is another user's here.
                    "session_id": fact.session_id if fact.message_ids else None,
                    "row_id": next(iter(fact.message_ids), None),
                    "data": of_namespace.model_dump(mode="json"),
                }
            )
        tx.execute(_PUT_FACT, rows)
    tx.execute(_SET_CHANGE, namespace=namespace, change=change)
    if any(stored.get(fact.id, fact).agent_id != fact.agent_id for fact in facts):
        # The earlier agent's readers must lose the fact, as if it were deleted.
        _renew(tx, namespace)


def parse_facts(tx: Transaction, rows: Sequence[Any]) -> dict[str, Fact]:
    """Return the facts of the rows that can be read, by their ids."""
    facts = {}
    for row in rows:
        name = f"Fact {row.id!r} of {display_name(row.namespace)!r}"
        data = tx.read(row.data, name)
        if data is None:
            continue
        try:
            facts[row.id] = Fact.model_validate(data)
        except ValidationError as error:
            tx.read(EncryptionError(f"{error.error_count()} wrong fields."), name)
    return facts


# ---- facts ----


def read_facts(
    tx: Transaction,
    namespace: str,
    seen: FactChanges = NOTHING_READ,
    *,
    view: AgentView = SHARED_FACTS,
) -> FactChanges:
    """Return the facts that changed since ``seen``.

    If facts were deleted meanwhile, or given to another agent, return all facts.
    """
    version = read_version(tx, namespace)
    fresh = version.epoch == seen.epoch
    if fresh and version.change == seen.change:
        return FactChanges(*version, fresh=True, facts=[])
    last_seen = seen.change if fresh else 0
    rows = select_facts(tx, namespace, view, seen=last_seen)
    change = max([version.change, *(row.change for row in rows)])
    facts = list(parse_facts(tx, rows).values())
    return FactChanges(version.epoch, change, fresh, facts)


def write_facts(
    tx: Transaction,
    namespace: str,
    facts: Sequence[Fact],
    seen: FactChanges | None = None,
    *,
    view: AgentView = SHARED_FACTS,
) -> bool:
    """Store facts; a fact with a stored id replaces the stored one.

    With ``seen``, keep changes that were stored since. Return False and store nothing if
    facts were deleted since, or if the user had no facts and the quoted messages were
    deleted.

    Raises:
        FactError: The stored fact belongs to another agent.
    """
    if seen is not None:
        # A user without facts has no epoch, so a deletion of the messages changes none.
        if seen.epoch == 0 and not _are_said(tx, facts):
            tx.rollback()
            return False
        return add_facts(tx, namespace, facts, seen, view)
    rows = select_facts(tx, namespace, ids=[fact.id for fact in facts])
    hidden = sum(not view.sees(row.agent_id or None) for row in rows)
    if hidden:
        raise FactError(
            f"{hidden} of {len(facts)} facts have the ids of facts that belong to another agent of this user. "
            "Store them with a memory of that agent, or without their ids. Nothing was stored."
        )
    stored = parse_facts(tx, rows)
    edited = [mark_edited(fact, stored.get(fact.id, fact)) for fact in facts]
    put_facts(tx, namespace, edited, stored)
    return True


def _are_said(tx: Transaction, facts: Sequence[Fact]) -> bool:
    """Return whether each fact that names its messages still has one of them."""
    for fact in facts:
        ids = list(fact.message_ids)
        if ids and not tx.scalar(_HAS_ROW, key=fact.session_id, row_ids=ids):
            return False
    return True


def change_facts(
    tx: Transaction,
    namespace: str,
    changed: Changed,
    ids: Sequence[str] | None = None,
    *,
    view: AgentView = SHARED_FACTS,
) -> Sequence[Fact]:
    """Change facts as they are stored now, in one transaction, and return the changed facts.

    ``changed`` is called with the stored facts that have these ``ids``, by their
    ids; None: all facts. If it raises an error, nothing is written.
    """
    stored = parse_facts(tx, select_facts(tx, namespace, view, ids=ids))
    facts = changed(stored)
    put_facts(tx, namespace, facts, stored)
    return facts


def delete_facts(
    tx: Transaction,
    namespace: str,
    ids: Sequence[str] | None = None,
    *,
    view: AgentView = SHARED_FACTS,
) -> int:
    """Delete facts and their embeddings for good, and return the number of facts; None: all facts of the view."""
    rows = select_facts(tx, namespace, view, ids=ids)
    return delete_with_vectors(tx, namespace, [row.id for row in rows])["facts"]


def move_facts(tx: Transaction, old: str, new: str) -> None:
    """Move the facts of one namespace to another, which keeps its own facts of the same words."""
    facts = parse_facts(tx, select_facts(tx, old))
    if facts:
        tx.lock((), (old, new))
        add_facts(tx, new, list(facts.values()), NOTHING_READ, SHARED_FACTS)
        delete_with_vectors(tx, old, facts)
    tx.execute(_RENAME_SPEAKER, old=old, new=new)


def count_facts(tx: Transaction) -> dict[str, int]:
    """Return how many facts each user has, retired ones too; users without a fact are left out."""
    return {row.namespace: row.facts for row in tx.rows(_COUNT_FACTS)}


def add_facts(
    tx: Transaction,
    namespace: str,
    facts: Sequence[Fact],
    seen: FactChanges,
    view: AgentView,
) -> bool:
    """Store facts; changes that were stored since ``seen`` are neither repeated nor undone.

    False, and the transaction is rolled back, if facts were deleted since.
    """
    epoch = read_version(tx, namespace).epoch
    if seen.epoch not in (0, epoch):
        tx.rollback()
        return False
    rows = select_facts(tx, namespace, view, seen=seen.change)
    newer = parse_facts(tx, rows)
    put_facts(tx, namespace, merge_facts(facts, newer))
    return True


def merge_facts(facts: Sequence[Fact], newer: Mapping[str, Fact]) -> list[Fact]:
    """Return the extracted facts to store beside the ``newer`` facts, stored since the extraction began.

    A fact with the content of a newer fact is not stored again.
    """
    ids_by_content = {
        duplicate_key(fact.content): fact.id
        for fact in newer.values()
        if not fact.retired
    }
    stored_ids = {
        fact.id: ids_by_content.get(duplicate_key(fact.content), fact.id)
        for fact in facts
    }
    merged = []
    for fact in facts:
        stored = newer.get(fact.id)
        replaced_by = stored_ids.get(fact.replaced_by or "", fact.replaced_by)
        if stored is None:
            if stored_ids[fact.id] == fact.id:
                merged.append(fact.model_copy(update={"replaced_by": replaced_by}))
        elif retires(fact, stored):
            merged.append(
                retire(
                    stored,
                    fact.retired_reason or "",
                    fact.updated_at,
                    replaced_by,
                    by=fact.retired_by,
                )
            )
    return merged


def retires(fact: Fact, stored: Fact) -> bool:
    """Return whether an extracted fact retires its stored version; the user's own request always does."""
    if stored.pinned or not fact.retired:
        return False
    return not stored.retired or fact.retired_by == "request"


class Facts(StorePart):
    """The facts of a store. A ``view`` selects agents; facts of another agent are neither read nor changed."""

    read = door(read_facts)
    change = door(change_facts, "users")
    write = door(write_facts, "users")
    delete = door(delete_facts, "users")
    count_by_user = door(count_facts)
