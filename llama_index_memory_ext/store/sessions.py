"""The sessions of a store, with their sizes, users and times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_index_memory_ext.store.readers import sessions_of_user
from llama_index_memory_ext.store.rows import written_at
from llama_index_memory_ext.store.tables import display_name, namespace_of_session

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from llama_index_memory_ext.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """The size, the users and the times of a session, read without its messages.

    ``messages``: the number of all messages, active ones and the log.
    ``user_ids``: the users who have written to it, sorted. It is the session's id if a
    memory had no ``user_id``, and empty if only a plain ``Memory`` has written.
    ``first_at``, ``last_at``: the times (UTC) of writing of the oldest and the newest
    message; None if unknown.
    ``namespaces``: the owners of its facts, in the order of ``user_ids``, for a
    ``FactBook``.
    """

    session_id: str
    messages: int
    user_ids: tuple[str, ...]
    first_at: datetime | None
    last_at: datetime | None
    namespaces: tuple[str, ...] = ()

    @property
    def own_namespace(self) -> str:
        """The namespace of its facts if it has no user. No ``user_id`` is equal to it."""
        return namespace_of_session(self.session_id)


_SELECT_KEYS = "SELECT DISTINCT key FROM {rows}"
_SELECT_SESSIONS = """
SELECT key, COUNT(*) AS messages, MIN(timestamp) AS first_written, MAX(timestamp) AS last_written
FROM {rows} WHERE key {in_keys} GROUP BY key ORDER BY last_written DESC, key
"""
_SELECT_OWNERS = "SELECT key, user_id FROM {owners} WHERE key {in_keys}"


def read_keys(tx: Transaction) -> list[str]:
    """Return the sessions that have messages."""
    return tx.scalars(_SELECT_KEYS)


def read_sessions(
    tx: Transaction, user_id: str | None, session_ids: Collection[str]
) -> list[SessionInfo]:
    """As ``MemoryStore.sessions``."""
    keys = [*session_ids, *sessions_of_user(tx, user_id or "")]
    if user_id is None and not session_ids:
        keys = read_keys(tx)
    owners: dict[str, list[str]] = {}
    for owner in tx.rows(_SELECT_OWNERS, keys=keys):
        owners.setdefault(owner.key, []).append(owner.user_id)
    infos = []
    for session in tx.rows(_SELECT_SESSIONS, keys=keys):
        namespaces = sorted(owners.get(session.key, ()), key=display_name)
        infos.append(
            SessionInfo(
                session_id=session.key,
                messages=session.messages,
                user_ids=tuple(map(display_name, namespaces)),
                first_at=written_at(session.first_written),
                last_at=written_at(session.last_written),
                namespaces=tuple(namespaces),
            )
        )
    return infos
