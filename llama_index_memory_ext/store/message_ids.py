"""Knows the ids that programs have given the messages of a session, so that none is stored twice."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, select

from llama_index_memory_ext.store.schema import one_of, upsert
from llama_index_memory_ext.text.identity import ID_KEY, is_same, message_id_of
from llama_index_memory_ext.text.messages import cleaned, storable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from llama_index.core.base.llms.types import ChatMessage
    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.database import Database
    from llama_index_memory_ext.store.readers import LogRow, Readers
    from llama_index_memory_ext.store.schema import Row, Statement

logger = logging.getLogger(__name__)

_PAGE_ROWS = 500


class MessageIds:
    """The message ids of a store, in transactions that have locked their session."""

    def __init__(self, database: Database, readers: Readers) -> None:
        self._readers = readers
        ids, rows = database.tables.message_ids, database.tables.rows
        session: Statement = bindparam("session")
        self._known = select(ids.c.row_id).where(ids.c.key == session, one_of(ids.c.message_id, database.backend))
        last = select(rows.c.id, rows.c.timestamp).where(rows.c.key == session).order_by(rows.c.id.desc())
        self._last, self._put = last.limit(bindparam("most")), upsert(ids, database.backend, "row_id")

    async def unknown_within(
        self, conn: AsyncConnection, key: str, messages: Sequence[ChatMessage]
    ) -> Sequence[ChatMessage]:
        """The messages without those whose id the session, or one before them, has; a MessageError for a wrong id."""
        named = [message_id_of({ID_KEY: cleaned(message.additional_kwargs.get(ID_KEY))}) for message in messages]
        if not any(named):
            return messages
        known = {name: row.data for name, row in (await self._rows(conn, key, list(filter(None, named)))).items()}
        new = []
        for name, message in zip(named, messages, strict=True):
            first = known.get(name) if name else None
            if first is None:
                new.append(message)
                known |= {name: storable(message)} if name else {}
            elif not is_same(first, storable(message)):
                logger.warning(
                    "A message of session %r was not stored: the first one with the same message_id, which has other "
                    "words, stays. Put what is new with an id of its own.",
                    key,
                )
        return new

    async def add_within(self, conn: AsyncConnection, key: str, rows: Sequence[Row]) -> None:
        """Note the ids of rows that were written just now."""
        named = {row["timestamp"]: message_id_of(row["data"].get("additional_kwargs") or {}) for row in rows}
        written = {timestamp: name for timestamp, name in named.items() if name}
        if written:
            ids = await self._ids_of_last(conn, key, written, len(rows))
            put = [{"key": key, "message_id": name, "row_id": ids[time]} for time, name in written.items()]
            await conn.execute(self._put, put)

    async def _ids_of_last(self, conn: AsyncConnection, key: str, times: Collection[int], count: int) -> dict[int, int]:
        """The ids of the rows with these times, which are the last ones but for what the plain host has added."""
        found: dict[int, int] = {}
        while not found.keys() >= set(times):
            last = (await conn.execute(self._last, {"session": key, "most": count})).all()
            # A clock may give two rows the same time; the newest counts.
            found = {row.timestamp: row.id for row in reversed(last)}
            count *= 2
        return found

    async def _rows(self, conn: AsyncConnection, key: str, names: Sequence[str]) -> dict[str, LogRow]:
        """The rows with these ids. One that the plain host has deleted, or written since under its number, is none."""
        found: dict[str, LogRow] = {}
        for start in range(0, len(names), _PAGE_ROWS):
            page = names[start : start + _PAGE_ROWS]
            ids = (await conn.execute(self._known, {"session": key, "names": page})).scalars().all()
            for row in await self._readers.rows_within(conn, key, ids) if ids else ():
                name = _stored_id(row)
                if name is not None and name in page:
                    found[name] = row
        return found


def _stored_id(row: LogRow) -> str | None:
    kwargs = row.data.get("additional_kwargs") if isinstance(row.data, dict) else None
    return message_id_of(kwargs) if isinstance(kwargs, dict) else None
