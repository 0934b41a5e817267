"""Deletes rows of a session with what was made of them, and moves the cursors of its readers back to what is left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sqlalchemy import String, cast, delete, func, or_, select, update

from llama_index_memory_ext.store.database import Locked
from llama_index_memory_ext.store.readers import ROWS
from llama_index_memory_ext.store.schema import vectors_namespace
from llama_index_memory_ext.text.tool_calls import RESULT_ROLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.database import Database
    from llama_index_memory_ext.store.schema import Statement
    from llama_index_memory_ext.text.tool_calls import Json


class Deletions:
    """Deletes rows of a store, in transactions that have locked their session."""

    def __init__(self, database: Database) -> None:
        self._tables = database.tables

    async def delete_within(self, conn: AsyncConnection, key: str, *conditions: Statement) -> int:
        """Delete the rows of a session of which the conditions hold, and tell its readers by a new epoch.

        Returns their number.

        A cursor moves back to the last row at or before it that is left, so that no row that comes later, which may
        have the id of a deleted one, stands behind it. ``Readers.move`` says what becomes of its state.
        """
        rows, ids = self._tables.rows, self._tables.message_ids
        these = (rows.c.key == key, *conditions)
        first, count = (await conn.execute(select(func.min(rows.c.id)).where(*these))).scalar(), 0
        if first is not None:
            await self._delete_vectors(conn, key, first, these)
            await conn.execute(delete(ids).where(ids.c.key == key, ids.c.row_id.in_(select(rows.c.id).where(*these))))
            count = (await conn.execute(delete(rows).where(*these))).rowcount
            await self._move_cursors(conn, key, first)
        await self.renew_within(conn, key)
        return count

    async def renew_within(self, conn: AsyncConnection, key: str) -> None:
        """Let all who know a session read it anew: another epoch tells them."""
        sessions = self._tables.sessions
        await conn.execute(update(sessions).where(sessions.c.key == key).values(epoch=time.time_ns()))
        Locked.begin_again(conn, key)

    async def _delete_vectors(self, conn: AsyncConnection, key: str, first: int, these: Sequence[Statement]) -> None:
        """Delete the vectors of rows, the ``first`` of them and all others.

        A result has been embedded together with its call, which comes before it.
        """
        rows, vectors = self._tables.rows, self._tables.embeddings
        calls = select(rows.c.id).where(rows.c.key == key, rows.c.id <= first, rows.c.role.not_in(RESULT_ROLES))
        call = (await conn.execute(calls.order_by(rows.c.id.desc()).limit(1))).scalar()
        gone = or_(vectors.c.id == str(call), vectors.c.id.in_(select(cast(rows.c.id, String)).where(*these)))
        await conn.execute(delete(vectors).where(vectors.c.namespace == vectors_namespace(key), gone))

    async def _move_cursors(self, conn: AsyncConnection, key: str, first: int) -> None:
        cursors = self._tables.cursors
        behind = select(cursors.c.reader, cursors.c.position, cursors.c.state).where(
            cursors.c.key == key, cursors.c.position >= first
        )
        for reader, old, state in (await conn.execute(behind)).all():
            position, left = 0, None
            if state is None or ROWS in state:
                _, position = await self._ends(conn, key, 0, old)
                left = state and await self._left_of(conn, key, state, position)
            here = (cursors.c.key == key, cursors.c.reader == reader)
            await conn.execute(update(cursors).where(*here).values(position=position, state=left))

    async def _left_of(self, conn: AsyncConnection, key: str, state: dict[str, Json], position: int) -> Json:
        """The state with what it says of rows that are left; None if nothing is left to say."""
        entries: list[Sequence[Json]] = []
        for first, last, *more in state[ROWS]:
            span = await self._ends(conn, key, first, last)
            entries += [[*span, *more]] if span[0] else []
        return {**state, ROWS: entries} if position or entries else None

    async def _ends(self, conn: AsyncConnection, key: str, first: int, last: int) -> tuple[int, int]:
        """The first and the last row of a session between these two, which belong to it; 0, 0 if there is none."""
        rows = self._tables.rows
        ids = select(rows.c.id).where(rows.c.key == key, rows.c.id >= first, rows.c.id <= last).limit(1)
        low = (await conn.execute(ids.order_by(rows.c.id))).scalar()
        high = (await conn.execute(ids.order_by(rows.c.id.desc()))).scalar()
        return low or 0, high or 0
