"""Lists the sessions of a store, and whose they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import func, or_, select

from llama_index_memory_ext.store.tables import keys_of, names_owner, owner_in
from llama_index_memory_ext.store.timestamps import written_at

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.schema import Tables


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What is known of a session without reading its messages.

    ``messages`` counts all of them, active ones and the log. ``user_ids`` are those that have talked in it, sorted: the
    session's own id where a memory had no ``user_id``, and none where only a plain ``Memory`` has written. ``first_at``
    and ``last_at`` are when its oldest and its newest message were written, in UTC; None if the row does not say.
    """

    session_id: str
    messages: int
    user_ids: tuple[str, ...]
    first_at: datetime | None
    last_at: datetime | None


async def read_sessions(
    connection: AsyncConnection, tables: Tables, user_id: str | None, session_ids: Collection[str]
) -> list[SessionInfo]:
    """The sessions that have messages, that which was written to last first: all, or a user's and those of the ids."""
    rows, cursors = tables.rows, tables.cursors
    first, last = func.min(rows.c.timestamp), func.max(rows.c.timestamp)
    sessions = select(rows.c.key, func.count(), first, last).group_by(rows.c.key).order_by(last.desc(), rows.c.key)
    owners = select(cursors.c.key, cursors.c.reader).where(names_owner(cursors.c.reader))
    if user_id is not None or session_ids:
        chosen = [session_ids] if user_id is None else [session_ids, keys_of(cursors, user_id)]
        sessions = sessions.where(or_(*(rows.c.key.in_(keys) for keys in chosen)))
        owners = owners.where(or_(*(cursors.c.key.in_(keys) for keys in chosen)))
    users: dict[str, set[str]] = {}
    for key, reader in await connection.execute(owners):
        owner = owner_in(reader)
        if owner is not None:
            users.setdefault(key, set()).add(owner)
    return [
        SessionInfo(key, messages, tuple(sorted(users.get(key, ()))), written_at(oldest), written_at(newest))
        for key, messages, oldest, newest in await connection.execute(sessions)
    ]
