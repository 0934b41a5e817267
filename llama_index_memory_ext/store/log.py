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
    Row,
    SessionAccess,
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
    from collections.abc import Callable, Collection, Sequence

    from llama_index_memory_ext.store.cursors import Readers
    from llama_index_memory_ext.store.deletion import Deletion
    from llama_index_memory_ext.store.owners import Owners
    from llama_index_memory_ext.text.tool_calls import Json

    # Takes messages, oldest first, and returns how many of the oldest go into the log;
    # None: none.
    Plan = Callable[[Sequence[ChatMessage]], int] | None

logger = logging.getLogger(__name__)


class Log:
    """Writes the rows of the chat table. The rows of a session are written and archived in the order of their ids."""

    def __init__(
        self, database: Database, readers: Readers, owners: Owners, deletion: Deletion
    ) -> None:
        self.database = database
        self._readers = readers
        self._owners = owners
        self._deletion = deletion
        rows = database.tables.rows
        ids = database.tables.message_ids
        session: Statement = bindparam("session")
        self._rows = rows
        self._select_last = (
            select(*rows.c["id", "role", "data"])
            .where(rows.c.key == session)
            .order_by(rows.c.id.desc())
            .limit(1)
        )
        self._put_ids = upsert(ids, database.backend, "row_id")
        self._select_by_message_id = select(ids.c.message_id, rows.c.data).where(
            ids.c.key == session,
            rows.c.key == session,
            rows.c.id == ids.c.row_id,
            one_of(ids.c.message_id, database.backend),
        )
        timestamp: Statement = rows.c.timestamp
        self._select_written = (
            select(rows.c.timestamp, rows.c.id)
            .where(
                rows.c.key == session,
                timestamp.between(bindparam("first"), bindparam("last")),
            )
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
        access: SessionAccess | None = None,
        readers: Sequence[str] = (),
    ) -> list[ChatMessage]:
        """Write messages after the active messages, and move messages from short-term memory into the log.

        Return copies of the messages that newly went into the log, oldest first.

        Args:
            conn: A connection in a transaction that has locked the session.
            key: The session.
            messages: The new messages. Of messages with the same ``message_id``, only
                the first is written.
            plan_flush: Takes the active messages and then the new ones, oldest first,
                and returns how many of the oldest go into the log; None: none.
            replace: Whether the session then has no other messages. Its first messages
                that are the same keep their rows, with ids and times. All later rows
                are deleted.
            access: The user who becomes an owner of the session.
                ``Owners.claim_within`` may refuse it.
            readers: The readers that are registered for the session.
        """
        speakers = _speakers_in(messages, access)
        stored: list[LogRow] = []
        replaced: list[LogRow] = []
        if not replace:
            if plan_flush:
                stored = self._readers.find_within(conn, key, [ACTIVE])
            messages = self.unknown_within(conn, key, messages)
            if not (messages or stored):
                conn.rollback()
                return []
        user_id = self._claim(conn, key, access, speakers, readers)
        if replace:
            rows = self._readers.find_within(conn, key, [ARCHIVED, ACTIVE])
            same = _count_same(rows, messages)
            stored = rows[:same]
            replaced = rows[same:]
            last_id = stored[-1].id if stored else 0
            self._deletion.delete_within(conn, key, self._rows.c.id > last_id)
            messages = self.unknown_within(conn, key, messages[same:])
        count = 0
        if plan_flush:
            before = [row.message for row in stored]
            count = plan_flush(as_taken([*before, *messages]))
        flushed = self._set_statuses(conn, key, stored, archived=count)
        new = self.insert_within(
            conn,
            key,
            messages,
            user_id,
            archived=count - len(stored),
            replaced=replaced,
        )
        return [*flushed, *new]

    def _claim(
        self,
        conn: Connection,
        key: str,
        access: SessionAccess | None,
        speakers: Collection[str],
        readers: Sequence[str],
    ) -> str | None:
        """Make the user an owner of the session; return the user if the session has several, else None."""
        if access is None:
            return None
        has_several = self._owners.claim_within(conn, key, access, speakers, readers)
        return access.user_id if has_several else None

    def _set_statuses(
        self, conn: Connection, key: str, stored: Sequence[LogRow], *, archived: int
    ) -> list[ChatMessage]:
        """Put the first ``archived`` rows into the log, and make the later rows active.

        Return the messages that were not in the log before.
        """
        flushed = [row for row in stored[:archived] if row.is_active]
        if flushed:
            self.archive_within(conn, key, flushed[-1].id)
        reactivated = [row for row in stored[archived:] if not row.is_active]
        if reactivated:
            rows = self._rows
            statement = update(rows).where(
                rows.c.key == key,
                rows.c.status == ARCHIVED,
                rows.c.id >= reactivated[0].id,
            )
            conn.execute(statement.values(status=ACTIVE))
        return [row.as_put for row in flushed]

    def archive_within(self, conn: Connection, key: str, last_id: int) -> None:
        """Move the active rows up to the row ``last_id`` into the log."""
        rows = self._rows
        statement = update(rows).where(
            rows.c.key == key, rows.c.status == ACTIVE, rows.c.id <= last_id
        )
        conn.execute(statement.values(status=ARCHIVED))

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
        """Write messages, the first ``archived`` of them into the log, and return copies of these.

        ``user_id`` is the default speaker of the user's messages in a session of
        several users. A message with the words of a ``replaced`` row keeps the speaker
        of that row.
        """
        if not messages:
            return []
        now = time.time_ns()
        roles = self._roles_of(conn, key, messages)
        speakers: dict[str, str] = {}
        for row in replaced:
            if user_id and row.user_id is not None:
                speakers[_words_of(row.data)] = row.user_id
        rows: list[Row] = []
        for i, message in enumerate(messages):
            data = storable(message)
            speaker = user_id
            if speakers:
                speaker = speakers.get(_words_of(data), user_id)
            rows.append(
                {
                    "key": key,
                    "timestamp": now + i,
                    "role": roles[i].role.value,
                    "status": ARCHIVED if i < archived else ACTIVE,
                    "data": data,
                    "user_id": _speaker_of(roles[i], speaker),
                }
            )
        conn.execute(insert(self._rows), rows)
        self._store_message_ids(conn, key, rows)
        flushed = rows[: max(archived, 0)]
        return [ChatMessage.model_validate(row["data"]) for row in flushed]

    def _roles_of(
        self, conn: Connection, key: str, messages: Sequence[ChatMessage]
    ) -> Sequence[ChatMessage]:
        """Return the messages with the roles of ``as_taken``, which may depend on the message before them."""
        if not is_printed(messages[0]):
            return as_taken(messages)
        row = conn.execute(self._select_last, {"session": key}).first()
        if row is None:
            return as_taken(messages)
        last = LogRow(row.id, row.role, row.data).message
        return as_taken([last, *messages])[1:]

    def _store_message_ids(
        self, conn: Connection, key: str, rows: Sequence[Row]
    ) -> None:
        """Store the ids that programs have given the messages of new rows."""
        message_ids: dict[int, str] = {}
        for row in rows:
            message_id = message_id_of(row["data"].get("additional_kwargs") or {})
            if message_id:
                message_ids[row["timestamp"]] = message_id
        if not message_ids:
            return
        first = rows[0]["timestamp"]
        last = rows[-1]["timestamp"]
        # A clock may give an earlier row the same time; the newest row counts.
        row_ids: dict[int, int] = {}
        parameters = {"session": key, "first": first, "last": last}
        for written in conn.execute(self._select_written, parameters):
            row_ids[written.timestamp] = written.id
        new_ids = [
            {"key": key, "message_id": message_id, "row_id": row_ids[timestamp]}
            for timestamp, message_id in message_ids.items()
        ]
        conn.execute(self._put_ids, new_ids)

    def unknown_within(
        self, conn: Connection, key: str, messages: Sequence[ChatMessage]
    ) -> Sequence[ChatMessage]:
        """Return the messages whose id neither the session nor an earlier message has.

        Raises:
            MessageError: An id is neither a text of at most 255 characters nor a
                number.
        """
        ids = [
            message_id_of({ID_KEY: cleaned(message.additional_kwargs.get(ID_KEY))})
            for message in messages
        ]
        if not any(ids):
            return messages
        stored = self._messages_by_id(conn, key, list(filter(None, ids)))
        new: list[ChatMessage] = []
        for message_id, message in zip(ids, messages, strict=True):
            if message_id is None:
                new.append(message)
            elif message_id not in stored:
                new.append(message)
                stored[message_id] = storable(message)
            elif not is_same(stored[message_id], storable(message)):
                logger.warning(
                    "A message of session %r was not stored: the first one with the same message_id, which has other "
                    "words, stays. Put new words with a new message_id.",
                    key,
                )
        return new

    def _messages_by_id(
        self, conn: Connection, key: str, ids: Sequence[str]
    ) -> dict[str, Json]:
        """Return the stored messages that have these ids."""
        messages: dict[str, Json] = {}
        parameters = {"session": key, "names": ids}
        for row in conn.execute(self._select_by_message_id, parameters):
            stored_id = message_id_of(row.data.get("additional_kwargs") or {})
            # The plain host may have deleted or replaced the message meanwhile.
            if row.message_id == stored_id:
                messages[row.message_id] = row.data
        return messages


def _count_same(rows: Sequence[LogRow], messages: Sequence[ChatMessage]) -> int:
    """Return how many messages at the beginning are the same as the stored ones."""
    count = 0
    for row, message in zip(rows, messages, strict=False):
        if not is_same(row.data, storable(message)):
            break
        count += 1
    return count


def _words_of(data: Json) -> str:
    """Return a stored message without its ids and times, as a text that can be compared."""
    return dumps([data.get("role"), data.get("blocks")], sort_keys=True)


def _speaker_of(message: ChatMessage, user_id: str | None) -> str | None:
    """Return the user whom a message names, or else the given user; None for a message that is not a user's."""
    if user_id is None or message.role != MessageRole.USER:
        return None
    return message_id_of(cleaned(message.additional_kwargs), SPEAKER_KEY) or user_id


def _speakers_in(
    messages: Sequence[ChatMessage], access: SessionAccess | None
) -> set[str]:
    """Return the users whom messages name, except the user who opens the session.

    Without a user, no message names one. A MessageError if a message names another user
    in a session that is not shared.
    """
    if access is None or access.user_id is None:
        return set()
    user_id = access.user_id
    speakers = {_speaker_of(message, user_id) for message in messages}
    speakers -= {user_id, None}
    if speakers and not access.shared:
        raise MessageError(
            f"Expected additional_kwargs[{SPEAKER_KEY!r}] of a message to be the user_id of the memory; saw another "
            "one, whose words would become facts of that user. Open the session with shared=True."
        )
    return {speaker for speaker in speakers if speaker}
