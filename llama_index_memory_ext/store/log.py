"""Writes the messages of each session, and moves them from short-term memory into the log."""

from __future__ import annotations

import logging
import time
from json import dumps
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from sqlalchemy import Connection, bindparam, insert, select, update

from llama_index_memory_ext.errors import MessageError
from llama_index_memory_ext.store.runner import Database, writes_session
from llama_index_memory_ext.store.tables import (
    ACTIVE,
    ARCHIVED,
    LogRow,
    Opening,
    Row,
    Statement,
    one_of,
    upsert,
)
from llama_index_memory_ext.text.messages import (
    ID_KEY,
    SPEAKER_KEY,
    as_taken,
    cleaned,
    is_printed,
    is_same,
    message_id_of,
    storable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index_memory_ext.store.cursors import Readers
    from llama_index_memory_ext.store.sessions import Users
    from llama_index_memory_ext.text.tool_calls import Json

    # Says of messages, oldest first, how many of the oldest go into the log; None:
    # none.
    Plan = Callable[[Sequence[ChatMessage]], int] | None

logger = logging.getLogger(__name__)


class Log:
    """Writes the rows of the chat table; those of a session are written and archived in the order of their ids."""

    def __init__(self, database: Database, readers: Readers, users: Users) -> None:
        self.database = database
        self._readers = readers
        self._users = users
        rows = database.tables.rows
        ids = database.tables.message_ids
        session: Statement = bindparam("session")
        self._rows = rows
        last = (
            select(rows.c.id, rows.c.role, rows.c.data)
            .where(rows.c.key == session)
            .order_by(rows.c.id.desc())
        )
        self._last = last.limit(1)
        self._put_ids = upsert(ids, database.backend, "row_id")
        known = select(ids.c.message_id, rows.c.data).where(
            ids.c.key == session, rows.c.key == session
        )
        self._known = known.where(
            rows.c.id == ids.c.row_id, one_of(ids.c.message_id, database.backend)
        )
        written: Statement = rows.c.timestamp.between(
            bindparam("first"), bindparam("last")
        )
        self._written = (
            select(rows.c.timestamp, rows.c.id)
            .where(rows.c.key == session, written)
            .order_by(rows.c.id)
        )

    @writes_session
    def append(
        self,
        conn: Connection,
        key: str,
        messages: Sequence[ChatMessage],
        plan_flush: Plan,
        *,
        replace: bool = False,
        opening: Opening | None = None,
        readers: Sequence[str] = (),
    ) -> list[ChatMessage]:
        """Write messages after the active ones, and move what leaves short-term memory into the log.

        ``plan_flush`` is given the active messages and then the new ones, oldest first.
        It returns how many of the oldest go into the log; without it, none. With
        ``replace`` these are all messages of the session then: the first ones that it
        has already keep their rows, with ids and times, and the rest is deleted. Of
        messages with the same ``message_id``, only the first one is written. The
        session is that of the user who is ``opening`` it from now on, and has the
        ``readers``; see ``Users.claim_within``, which may refuse it. Returns copies of
        the messages that went into the log, oldest first; those that were there are not
        among them.
        """
        speakers = _speakers_in(messages, opening)
        rows = self._rows
        before = list[LogRow]()
        replaced: list[LogRow] = []
        if not replace:
            if plan_flush:
                before = self._readers.find_within(conn, key, [ACTIVE])
            else:
                before = []
            messages = self.unknown_within(conn, key, messages)
            if not (messages or before):
                conn.rollback()
                return []
        is_shared = opening is not None and self._users.claim_within(
            conn, key, opening, speakers, readers
        )
        if replace:
            found = self._readers.find_within(conn, key, [ARCHIVED, ACTIVE])
            for row, message in zip(found, messages, strict=False):
                if not is_same(row.data, storable(message)):
                    break
                before.append(row)
            replaced = found[len(before) :]
            self._users.delete_within(
                conn, key, rows.c.id > (before[-1].id if before else 0)
            )
            messages = self.unknown_within(conn, key, messages[len(before) :])
        if plan_flush:
            count = plan_flush(as_taken([*(row.message for row in before), *messages]))
        else:
            count = 0
        flushed = [row for row in before[:count] if row.is_active]
        back = [row for row in before[count:] if not row.is_active]
        if flushed:
            self.archive_within(conn, key, flushed[-1].id)
        if back:
            these = (
                rows.c.key == key,
                rows.c.status == ARCHIVED,
                rows.c.id >= back[0].id,
            )
            conn.execute(update(rows).where(*these).values(status=ACTIVE))
        if opening and is_shared:
            user_id = opening.user_id
        else:
            user_id = None
        new = self.insert_within(
            conn,
            key,
            messages,
            user_id,
            archived=count - len(before),
            replaced=replaced,
        )
        return [*(row.as_put for row in flushed), *new]

    def archive_within(self, conn: Connection, key: str, last_id: int) -> None:
        """Move the active rows up to this one into the log."""
        rows = self._rows
        these = (rows.c.key == key, rows.c.status == ACTIVE, rows.c.id <= last_id)
        conn.execute(update(rows).where(*these).values(status=ARCHIVED))

    def insert_within(
        self,
        conn: Connection,
        key: str,
        messages: Sequence[ChatMessage],
        user_id: str | None = None,
        *,
        archived: int,
        replaced: Sequence[LogRow] = (),
    ) -> list[ChatMessage]:
        """Write messages, the first ones into the log, with what they are taken for as roles; returns copies of those.

        With a ``user_id``, the speaker, by default this user, is written beside each
        message of a user. A message with the words of a ``replaced`` row keeps the
        speaker of that row.
        """
        if not messages:
            return []
        now = time.time_ns()
        before = list[ChatMessage]()
        if is_printed(messages[0]):
            before = [
                LogRow(*row).message
                for row in conn.execute(self._last, {"session": key})
            ]
        taken = as_taken([*before, *messages])[len(before) :]
        said_by = {
            _words_of(row.data): row.user_id
            for row in replaced
            if row.user_id is not None
        }
        rows: list[Row] = []
        for i, message in enumerate(messages):
            data = storable(message)
            speaker = user_id
            if said_by and user_id:
                speaker = said_by.get(_words_of(data), user_id)
            rows.append(
                {
                    "key": key,
                    "timestamp": now + i,
                    "role": taken[i].role.value,
                    "status": ARCHIVED if i < archived else ACTIVE,
                    "data": data,
                    "user_id": None
                    if speaker is None
                    else _speaker_of(taken[i], speaker),
                }
            )
        conn.execute(insert(self._rows), rows)
        named = {
            row["timestamp"]: message_id_of(row["data"].get("additional_kwargs") or {})
            for row in rows
        }
        if any(named.values()):
            # A clock may give two rows the same time; the newest counts.
            span = {
                "session": key,
                "first": rows[0]["timestamp"],
                "last": rows[-1]["timestamp"],
            }
            row_ids = {
                row.timestamp: row.id for row in conn.execute(self._written, span)
            }
            put = [
                {"key": key, "message_id": name, "row_id": row_ids[at]}
                for at, name in named.items()
                if name
            ]
            conn.execute(self._put_ids, put)
        return [
            ChatMessage.model_validate(row["data"]) for row in rows[: max(archived, 0)]
        ]

    def unknown_within(
        self, conn: Connection, key: str, messages: Sequence[ChatMessage]
    ) -> Sequence[ChatMessage]:
        """Return the messages without those whose id the session, or one before them, has; a MessageError for a wrong id."""
        names = [
            message_id_of({ID_KEY: cleaned(message.additional_kwargs.get(ID_KEY))})
            for message in messages
        ]
        if not any(names):
            return messages
        stored = conn.execute(
            self._known, {"session": key, "names": [*filter(None, names)]}
        )
        # The plain host may have deleted or replaced it since.
        known = {
            row[0]: row[1]
            for row in stored
            if message_id_of(row[1].get("additional_kwargs") or {}) == row[0]
        }
        new: list[ChatMessage] = []
        for name, message in zip(names, messages, strict=True):
            if name is None or name not in known:
                new.append(message)
                known |= {name: storable(message)} if name else {}
            elif not is_same(known[name], storable(message)):
                logger.warning(
                    "A message of session %r was not stored: the first one with the same message_id, which has other "
                    "words, stays. Put what is new with an id of its own.",
                    key,
                )
        return new


def _words_of(data: Json) -> str:
    """Return what a stored message consists of but for its ids and times, as a text that can be compared."""
    return dumps([data.get("role"), data.get("blocks")], sort_keys=True)


def _speaker_of(message: ChatMessage, user_id: str) -> str | None:
    """Return who has said a message: whom it names, or else the user; None for one that is not a user's."""
    is_users = message.role == MessageRole.USER
    if is_users:
        return message_id_of(cleaned(message.additional_kwargs), SPEAKER_KEY) or user_id
    return None


def _speakers_in(messages: Sequence[ChatMessage], opening: Opening | None) -> set[str]:
    """Return the users whom messages name, but for the one who is opening their session.

    Without a user no message names one. A MessageError if another is named in a session
    that is not shared.
    """
    if opening is None or opening.user_id is None:
        return set()
    user_id = opening.user_id
    others = {
        one
        for message in messages
        if (one := _speaker_of(message, user_id)) not in (user_id, None)
    }
    if others and not opening.shared:
        raise MessageError(
            f"Expected additional_kwargs[{SPEAKER_KEY!r}] of a message to be the user_id of the memory; saw another "
            "one, whose words would become facts of that user. Open the session with shared=True."
        )
    return {one for one in others if one}
