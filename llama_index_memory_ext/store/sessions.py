"""Lists the sessions of a store, and whose they are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from llama_index_memory_ext.store.tables import names_owner, owner_in

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.schema import Tables

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


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


async def read_sessions(connection: AsyncConnection, tables: Tables) -> list[SessionInfo]:
    """All sessions that have messages, that which was written to last first."""
    rows, cursors = tables.rows, tables.cursors
    first, last = func.min(rows.c.timestamp), func.max(rows.c.timestamp)
    sessions = select(rows.c.key, func.count(), first, last).group_by(rows.c.key).order_by(last.desc(), rows.c.key)
    found = (await connection.execute(sessions)).all()
    users: dict[str, set[str]] = {}
    for key, reader in await connection.execute(
        select(cursors.c.key, cursors.c.reader).where(names_owner(cursors.c.reader))
    ):
        user_id = owner_in(reader)
        if user_id is not None:
            users.setdefault(key, set()).add(user_id)
    return [
        SessionInfo(key, messages, tuple(sorted(users.get(key, ()))), _time(oldest), _time(newest))
        for key, messages, oldest, newest in found
    ]


def _time(nanoseconds: int | None) -> datetime | None:
    # A row that another program has written may hold anything.
    if not nanoseconds or nanoseconds < 0:
        return None
    return _EPOCH + timedelta(microseconds=nanoseconds // 1_000)
