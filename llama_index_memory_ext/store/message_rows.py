"""The rows of messages: stores and archives them, with their message ids."""

from __future__ import annotations

import logging
import time
from json import dumps
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import ChatMessage, MessageRole

from llama_index_memory_ext.errors import MessageError
from llama_index_memory_ext.store.readers import rows_by_message_id
from llama_index_memory_ext.store.rows import LogRow, messages_of
from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED, Row
from llama_index_memory_ext.text.messages import (
    ID_KEY,
    Json,
    MovedMessage,
    clean,
    is_same,
    message_id_of,
    speaker_of,
    storable,
)
from llama_index_memory_ext.text.turns import is_code_output, with_code_results

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.store.transaction import Transaction


logger = logging.getLogger(__name__)

# ``id + 0`` keeps PostgreSQL from the index of ``id``: to find the last ``id`` of a session,
# it may walk through the rows of all sessions.
_SELECT_LAST_ROW = """
SELECT key, id, role, data, timestamp, status, user_id FROM {rows}
WHERE key = :key AND id = (SELECT MAX(id + 0) FROM {rows} WHERE key = :key)
"""
_INSERT_ROW = """
INSERT INTO {rows} (key, timestamp, role, status, data, user_id)
VALUES (:key, :timestamp, :role, :status, :data, :user_id)
"""
_ARCHIVE_ROWS = """
UPDATE {rows} SET status = 'archived' WHERE key = :key AND status = 'active' AND id <= :last
"""
_ACTIVATE_ROWS = """
UPDATE {rows} SET status = 'active' WHERE key = :key AND status = 'archived' AND id >= :first
"""
_SELECT_LAST_IDS = """
SELECT id FROM {rows} WHERE key = :key ORDER BY id + 0 DESC LIMIT :limit
"""
_PUT_MESSAGE_ID = """
INSERT INTO {message_ids} (key, message_id, row_id) VALUES (:key, :message_id, :row_id)
ON CONFLICT (key, message_id) DO UPDATE SET row_id = excluded.row_id
"""


def set_statuses(
    tx: Transaction, key: str, stored: Sequence[LogRow], *, archived: int
) -> list[ChatMessage]:
    """Put the first ``archived`` rows into the log, and make the later rows active.

    Return the messages that were not in the log before.
    """
    flushed = [row for row in stored[:archived] if row.is_active]
    if flushed:
        tx.execute(_ARCHIVE_ROWS, key=key, last=flushed[-1].id)
    reactivated = [row for row in stored[archived:] if not row.is_active]
    if reactivated:
        tx.execute(_ACTIVATE_ROWS, key=key, first=reactivated[0].id)
    return messages_of(flushed)


def insert_messages(
    tx: Transaction,
    key: str,
    messages: Sequence[ChatMessage],
    user_id: str | None = None,
    *,
    archived: int,
    replaced: Sequence[LogRow],
) -> list[ChatMessage]:
    """Write messages, the first ``archived`` of them into the log, and return copies of the archived messages.

    If ``archived`` is 0 or less, all messages are active. ``user_id`` is the default
    speaker of the user's messages in a session of several users. For a message with
    the words of a ``replaced`` row, the default is the speaker of that row.
    """
    if not messages:
        return []
    now = time.time_ns()
    roles = _roles_of(tx, key, messages)
    speakers = {_words_of(row.data): row.user_id for row in replaced if row.user_id}
    rows = []
    for i, message in enumerate(messages):
        data = storable(message)
        default = speakers.get(_words_of(data), user_id)
        rows.append(
            {
                "key": key,
                "timestamp": _time_of(message, now + i),
                "role": roles[i].role.value,
                "status": ARCHIVED if i < archived else ACTIVE,
                "data": data,
                "user_id": _speaker_or(default, roles[i]),
            }
        )
    tx.execute(_INSERT_ROW, rows)
    _store_message_ids(tx, key, rows)
    flushed = [row["data"] for row in rows if row["status"] == ARCHIVED]
    return [ChatMessage.model_validate(data) for data in flushed]


def _roles_of(
    tx: Transaction, key: str, messages: Sequence[ChatMessage]
) -> Sequence[ChatMessage]:
    """Return the messages with the roles of ``with_code_results``, which may depend on the message before them."""
    before = []
    if is_code_output(messages[0]):
        last_rows = tx.rows(_SELECT_LAST_ROW, key=key)
        before = [LogRow.from_query(tx, row).message for row in last_rows]
    return with_code_results([*before, *messages])[len(before) :]


def _store_message_ids(tx: Transaction, key: str, rows: Sequence[Row]) -> None:
    """Store the ids that programs have given the messages of new rows."""
    message_ids = [
        message_id_of(row["data"].get("additional_kwargs") or {}) for row in rows
    ]
    if not any(message_ids):
        return
    row_ids = tx.scalars(_SELECT_LAST_IDS, key=key, limit=len(rows))
    new_ids = []
    for row_id, message_id in zip(row_ids, reversed(message_ids), strict=True):
        if message_id:
            new_ids.append({"key": key, "message_id": message_id, "row_id": row_id})
    tx.execute(_PUT_MESSAGE_ID, new_ids)


def new_messages(
    tx: Transaction,
    key: str,
    messages: Sequence[ChatMessage],
    *,
    strict: bool = False,
) -> Sequence[ChatMessage]:
    """Return the messages without an id, or with an id that neither the session nor an earlier message has.

    A message with the id and the words of a stored message is left out. With other
    words, it is left out with a warning, or an error if ``strict``.

    Raises:
        MessageError: An id is neither a text of at most 255 characters nor a
            number; if ``strict``, also an id of a message with other words.
    """
    ids = [
        message_id_of({ID_KEY: clean(message.additional_kwargs.get(ID_KEY))})
        for message in messages
    ]
    if not any(ids):
        return messages
    rows = rows_by_message_id(tx, key, list(filter(None, ids)))
    stored = {message_id: row.data for message_id, row in rows.items()}
    new = []
    for i, message in enumerate(messages):
        message_id = ids[i]
        if message_id is None:
            new.append(message)
        elif message_id not in stored:
            new.append(message)
            stored[message_id] = storable(message)
        elif is_same(stored[message_id], storable(message)):
            continue
        elif strict:
            raise MessageError(
                f"messages[{i}]: Expected a new message_id; an earlier message of the session has the same "
                "message_id and other words. Nothing was stored. Give one of them another message_id."
            )
        else:
            logger.warning(
                "A message of session %r was not stored: the first one with the same message_id, which has other "
                "words, stays. Put new words with a new message_id.",
                key,
            )
    return new


def _time_of(message: ChatMessage, now: int) -> int:
    """Return the time of storing in nanoseconds: ``now``, or the earlier time of a moved message."""
    if isinstance(message, MovedMessage):
        return min(now, round(message.stored_at.timestamp() * 1e6) * 1_000)
    return now


def _words_of(data: Json) -> str:
    """Return a stored message without its ids and times, as a text that can be compared."""
    return dumps([data.get("role"), data.get("blocks")], sort_keys=True)


def _speaker_or(default: str | None, message: ChatMessage) -> str | None:
    """Return the speaker of a user's message: the user that it names, or else the default.

    None without a default, or for a message of another role.
    """
    if default is None or message.role != MessageRole.USER:
        return None
    return speaker_of(message) or default
