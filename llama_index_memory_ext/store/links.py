"""Stores imported facts, each linked to the messages of its session that have its quote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_memory_ext.store.facts import (
    PAGE_FACTS,
    parse_facts,
    put_facts,
    select_facts,
    write_facts,
)
from llama_index_memory_ext.store.readers import find_rows, has_session
from llama_index_memory_ext.text.turns import spoken
from llama_index_memory_ext.words import visible

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from llama_index_memory_ext.agent_view import AgentView
    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.store.database import Database
    from llama_index_memory_ext.store.transaction import Transaction

_SELECT_OWNERS = "SELECT user_id FROM {owners} WHERE key = :session_id"


def _link_facts(tx: Transaction, namespace: str, facts: Collection[Fact]) -> list[Fact]:
    """Return the facts, each with the ids of the rows that have its quote; () if no row has it."""
    sessions = {fact.session_id or "" for fact in facts if fact.quote}
    texts = {key: _texts_in(tx, namespace, key) for key in sessions}
    linked = []
    for fact in facts:
        rows: tuple[int, ...] = ()
        if fact.quote:
            rows = _rows_of(fact, texts[fact.session_id or ""])
        linked.append(fact.model_copy(update={"message_ids": rows}))
    return linked


def _texts_in(tx: Transaction, namespace: str, session_id: str) -> dict[int, str]:
    """Return the texts of a session from which a namespace may have facts, by their rows.

    For an owner, they are the owner's messages. For another namespace, such as a team,
    they are the messages with a named speaker. {} for another user's session of the same
    name.
    """
    users = tx.scalars(_SELECT_OWNERS, session_id=session_id)
    speakers: set[str | None] = {*users}
    if namespace in users:
        # In a session of one user, no row names its speaker.
        speakers = {None, namespace}
    texts = {}
    for row in find_rows(tx, session_id):
        if row.role == "user" and row.user_id in speakers:
            texts[row.id] = visible(spoken(row.message))
    return texts


def _rows_of(fact: Fact, texts: Mapping[int, str]) -> tuple[int, ...]:
    """Return the rows whose texts have the quote of a fact.

    A text must also have a line of the fact's ``source`` in which the quote begins, if
    there is such a line.
    """
    start = fact.quote.partition("\n")[0]
    lines = [line for line in fact.source.splitlines() if start in line]
    rows = []
    for row_id, text in texts.items():
        if fact.quote in text and any(line in text for line in lines or [start]):
            rows.append(row_id)
    return tuple(rows)


def import_facts(
    tx: Transaction, namespace: str, facts: Sequence[Fact], view: AgentView
) -> None:
    """Write facts as ``write_facts`` does, each with the rows of its session that have its quote.

    The row ids of another database mean nothing here, so quotes find the messages.
    """
    sessions = {fact.session_id or "" for fact in facts}
    tx.lock([key for key in sessions if has_session(tx, key)], [namespace])
    write_facts(tx, namespace, _link_facts(tx, namespace, facts), view=view)


def link_session(tx: Transaction, session_id: str) -> None:
    """Link the facts of a session that were imported before its messages."""
    owners = tx.scalars(_SELECT_OWNERS, session_id=session_id)
    if not owners:
        tx.rollback()
        return
    tx.lock((), owners)
    for namespace in owners:
        facts = parse_facts(tx, select_facts(tx, namespace)).values()
        unlinked = [
            fact
            for fact in facts
            if fact.session_id == session_id and not fact.message_ids
        ]
        linked = _link_facts(tx, namespace, unlinked)
        put_facts(tx, namespace, [fact for fact in linked if fact.message_ids])


async def store_imported(
    database: Database, namespace: str, facts: Sequence[Fact], view: AgentView
) -> None:
    """Store imported facts in one transaction, which may take the time of a call for each ``PAGE_FACTS`` facts."""
    seconds = database.seconds * (len(facts) // PAGE_FACTS + 1)
    await database.run(import_facts, namespace, facts, view, seconds=seconds)
