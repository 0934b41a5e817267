"""Writes the messages of each session, and moves them from short-term memory into the log."""

from __future__ import annotations

import time
from itertools import takewhile
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from sqlalchemy import func, insert, select, update

from llama_index_memory_ext.errors import MessageError
from llama_index_memory_ext.store.calls import UnchangedError, writes_session
from llama_index_memory_ext.store.deletions import Deletions
from llama_index_memory_ext.store.message_ids import MessageIds
from llama_index_memory_ext.store.schema import ACTIVE, ARCHIVED
from llama_index_memory_ext.text.identity import SPEAKER_KEY, is_same, message_id_of
from llama_index_memory_ext.text.messages import as_taken, cleaned, is_printed, storable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from llama_index_memory_ext.store.database import Database
    from llama_index_memory_ext.store.readers import Readers
    from llama_index_memory_ext.store.rows import LogRow, Opening
    from llama_index_memory_ext.store.users import Users

    # Says of messages, oldest first, how many of the oldest go into the log; None: none.
    Plan = Callable[[Sequence[ChatMessage]], int] | None

_PAGE_ROWS = 500


class Log:
    """Writes the rows of the chat table; those of a session are written and archived in the order of their ids."""

    def __init__(self, database: Database, readers: Readers, users: Users) -> None:
        self.database, self._readers, self._users, self._tables = database, readers, users, database.tables
        self._deletions, self._ids = Deletions(database), MessageIds(database, readers)

    @writes_session
    async def append(
        self,
        conn: AsyncConnection,
        key: str,
        messages: Sequence[ChatMessage],
        plan_flush: Plan,
        *,
        replace: bool = False,
        opening: Opening | None = None,
        readers: Sequence[str] = (),
    ) -> list[ChatMessage]:
        """Write messages after the active ones, and move what leaves short-term memory into the log.

        ``plan_flush`` is given the active messages and then the new ones, oldest first. It returns how many of the
        oldest go into the log; without it, none. With ``replace`` these are all messages of the session then: the
        first ones that it has already keep their rows, with ids and times, and the rest is deleted.
        Of messages with the same ``message_id``, only the first one is written.
        The session is that of the user who is ``opening`` it from now on, and has the ``readers``; see
        ``Users.claim_within``, which may refuse it.
        Returns copies of the messages that went into the log, oldest first; those that were there are not among them.
        """
        active: list[LogRow] = []
        if not replace:
            messages = await self._ids.unknown_within(conn, key, messages)
            active = await self._readers.find_within(conn, key, [ACTIVE]) if plan_flush else []
            if not (messages or active):
                raise UnchangedError(result=[])
        user_id = await self._claim(conn, key, messages, opening, readers)
        if replace:
            return await self._replace(conn, key, messages, plan_flush, user_id)
        taken = as_taken([*(row.message for row in active), *messages])
        flushed_count = plan_flush(taken) if plan_flush else 0
        await self._archive(conn, key, active[:flushed_count])
        new = await self._insert(conn, key, messages, user_id, archived=flushed_count - len(active))
        return [*(row.as_put for row in active[:flushed_count]), *new]

    async def _claim(
        self,
        conn: AsyncConnection,
        key: str,
        messages: Sequence[ChatMessage],
        opening: Opening | None,
        readers: Sequence[str],
    ) -> str | None:
        """Make the session the user's who opens it; returns that user where the session is of several, else None."""
        if opening is None:
            return None
        claimed = self._users.claim_within(conn, key, opening, _speakers_in(messages, opening), readers)
        return opening.user_id if await claimed else None

    async def _replace(
        self, conn: AsyncConnection, key: str, messages: Sequence[ChatMessage], plan_flush: Plan, user_id: str | None
    ) -> list[ChatMessage]:
        """Replace the messages of a session, as ``append``."""
        kept, rows = await self._unchanged(conn, key, messages), self._tables.rows
        await self._deletions.delete_within(conn, key, rows.c.id > (kept[-1].id if kept else 0))
        new = await self._ids.unknown_within(conn, key, messages[len(kept) :])
        flushed = plan_flush(as_taken([*messages[: len(kept)], *new])) if plan_flush else 0
        await self._archive(conn, key, kept[:flushed])
        await self._activate(conn, key, kept[flushed:])
        written = await self._insert(conn, key, new, user_id, archived=flushed - len(kept))
        return [*(row.as_put for row in kept[:flushed] if row.is_active), *written]

    async def _unchanged(self, conn: AsyncConnection, key: str, messages: Sequence[ChatMessage]) -> list[LogRow]:
        """The oldest rows of a session, as far as they hold these messages."""
        same: list[LogRow] = []
        while True:
            last = same[-1].id if same else 0
            page = await self._readers.find_within(conn, key, [ARCHIVED, ACTIVE], last, limit=_PAGE_ROWS)
            given = messages[len(same) : len(same) + len(page)]
            pairs = zip(page, given, strict=False)
            same += [row for row, _ in takewhile(lambda pair: is_same(pair[0].data, storable(pair[1])), pairs)]
            if not page or same[-1:] != page[-1:]:
                return same

    @writes_session
    async def delete_row(self, conn: AsyncConnection, key: str, row_id: int) -> ChatMessage | None:
        """Delete one message and return it; None if the session has no such row."""
        found = await self._readers.rows_within(conn, key, [row_id])
        if not found:
            raise UnchangedError
        await self._deletions.delete_within(conn, key, self._tables.rows.c.id == row_id)
        return found[0].as_put

    @writes_session
    async def delete(self, conn: AsyncConnection, key: str, status: str | None = None) -> None:
        """Delete the messages of a session; None: of any status."""
        these = [self._tables.rows.c.status == status] if status else []
        await self._deletions.delete_within(conn, key, *these)

    @writes_session
    async def take_oldest(self, conn: AsyncConnection, key: str, count: int, *, archive: bool) -> list[ChatMessage]:
        """Archive the oldest active messages of a session, or delete them, and return them."""
        oldest = await self._readers.find_within(conn, key, [ACTIVE], limit=count)
        if oldest and archive:
            await self._archive(conn, key, oldest)
        elif oldest:
            rows = self._tables.rows
            await self._deletions.delete_within(conn, key, rows.c.status == ACTIVE, rows.c.id <= oldest[-1].id)
        return [row.as_put for row in oldest]

    async def _archive(self, conn: AsyncConnection, key: str, oldest: Sequence[LogRow]) -> None:
        """Move these rows into the log, and those before them."""
        if any(row.is_active for row in oldest):
            rows = self._tables.rows
            these = (rows.c.key == key, rows.c.status == ACTIVE, rows.c.id <= oldest[-1].id)
            await conn.execute(update(rows).where(*these).values(status=ARCHIVED))

    async def _activate(self, conn: AsyncConnection, key: str, newest: Sequence[LogRow]) -> None:
        """Move these rows, which are the last ones, out of the log."""
        if any(not row.is_active for row in newest):
            rows = self._tables.rows
            these = (rows.c.key == key, rows.c.status == ARCHIVED, rows.c.id >= newest[0].id)
            await conn.execute(update(rows).where(*these).values(status=ACTIVE))

    async def _taken(self, conn: AsyncConnection, key: str, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """What messages are taken for behind those of the session."""
        before: list[ChatMessage] = []
        if messages and is_printed(messages[0]):
            rows = self._tables.rows
            last = (await conn.execute(select(func.max(rows.c.id)).where(rows.c.key == key))).scalar()
            before = [row.message for row in await self._readers.rows_within(conn, key, [last or 0])]
        return as_taken([*before, *messages])[len(before) :]

    async def _insert(
        self, conn: AsyncConnection, key: str, messages: Sequence[ChatMessage], user_id: str | None, *, archived: int
    ) -> list[ChatMessage]:
        """Write messages, the first ones into the log, with what they are taken for as roles; returns copies of those.

        With a ``user_id``, that of whoever has said it, by default this one, is written beside each of a user's.
        """
        now, taken = time.time_ns(), await self._taken(conn, key, messages)
        rows = [
            {
                "key": key,
                "timestamp": now + i,
                "role": taken[i].role.value,
                "status": ARCHIVED if i < archived else ACTIVE,
                "data": storable(message),
                "user_id": user_id and _speaker_of(taken[i], user_id),
            }
            for i, message in enumerate(messages)
        ]
        if rows:
            await conn.execute(insert(self._tables.rows), rows)
            await self._ids.add_within(conn, key, rows)
        return [ChatMessage.model_validate(row["data"]) for row in rows if row["status"] == ARCHIVED]

    @writes_session
    async def add(self, conn: AsyncConnection, key: str, messages: Sequence[ChatMessage], *, archive: bool) -> None:
        """Write messages, to the active ones or into the log."""
        new = await self._ids.unknown_within(conn, key, messages)
        await self._insert(conn, key, new, None, archived=len(new) if archive else 0)


def _speaker_of(message: ChatMessage, user_id: str) -> str | None:
    """Returns who has said a message: whom it names, or else the user; None for one that is not a user's."""
    is_users = message.role == MessageRole.USER
    return (message_id_of(cleaned(message.additional_kwargs), SPEAKER_KEY) or user_id) if is_users else None


def _speakers_in(messages: Iterable[ChatMessage], opening: Opening) -> set[str]:
    """Returns the users whom messages name, but for the one who is opening their session.

    Without a user no message names one. A MessageError if another is named in a session that is not shared.
    """
    user_id = opening.user_id
    if user_id is None:
        return set()
    others = {_speaker_of(message, user_id) for message in messages} - {user_id, None}
    if others and not opening.shared:
        raise MessageError(
            f"Expected additional_kwargs[{SPEAKER_KEY!r}] of a message to be the user_id of the memory; saw another "
            "one, whose words would become facts of that user. Open the session with shared=True."
        )
    return {one for one in others if one}
