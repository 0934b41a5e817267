"""The rows of a session's log, in pages and snapshots."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.bridge.pydantic import ValidationError

from llama_index_memory_ext.store.tables import (
    ACTIVE,
    ARCHIVED,
    OWN,
    SHARED,
    WITHOUT_USER,
    namespace_of_session,
)
from llama_index_memory_ext.text.messages import (
    RESULT_ROLES,
    SPEAKER_KEY,
    Json,
    MovedMessage,
    in_zone,
    times_in,
    tool_call_groups,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llama_index_memory_ext.store.transaction import Transaction


logger = logging.getLogger(__name__)

ALL_STATUSES = (ARCHIVED, ACTIVE)
# The last second of the year 9999, the last year of a datetime.
_LAST_SECOND = 253_402_300_799


class SessionAccess(NamedTuple):
    """How a memory opens a session.

    ``user_id``: None for a memory without a user.
    ``shared``: whether other users may read and write in the session.
    """

    user_id: str | None = None
    shared: bool = False

    def user_in(self, key: str) -> str:
        """Return the user, or the namespace of a session without a user."""
        if self.user_id is None:
            return namespace_of_session(key)
        return self.user_id

    @property
    def kind(self) -> str:
        """The kind under which this user becomes an owner: own, shared, or without a user."""
        if self.shared:
            return SHARED
        return WITHOUT_USER if self.user_id is None else OWN


class LogRow(NamedTuple):
    """A row of the chat table: a stored message as JSON, which ``message`` parses.

    A row that cannot be read is an empty message.

    ``id``: grows in the order of writing.
    ``role``: the role for readers: "tool" for the output of a ``CodeActAgent``, which was put
    as a user's message.
    ``data``: the message as JSON.
    ``timestamp``: the time of writing, in nanoseconds since 1970; 0 if it is unknown.
    ``status``: whether it is active or in the log (`archived`).
    ``user_id``: the speaker in a session of several users, "" if unknown.
    ``is_damaged``: whether it cannot be read.
    """

    id: int
    role: str
    data: Json
    timestamp: int = 0
    status: str = ARCHIVED
    user_id: str | None = None
    is_damaged: bool = False

    @classmethod
    def from_query(cls, tx: Transaction, row: Any) -> LogRow:
        """Return the row of a query that has selected all columns of the chat table."""
        data = tx.read(row.data, f"Row {row.id} of session {row.key!r}")
        is_damaged = data is None and row.data is not None
        if is_damaged:
            data = {"role": row.role, "blocks": []}
        return cls(
            row.id, row.role, data, row.timestamp, row.status, row.user_id, is_damaged
        )

    @property
    def speaker(self) -> str:
        """The name, or else the id, of the speaker in a session of several users; "" in any other session."""
        if not self.user_id:
            return ""
        kwargs = self.data.get("additional_kwargs") or {}
        return str(kwargs.get("name") or self.user_id)

    def said_at(self, zone: tzinfo | None = None) -> datetime | None:
        """Return the time in its ``additional_kwargs``, if that is not after the time of writing.

        Otherwise the time of writing (UTC); None if neither is known. A day alone is
        in the ``zone``.
        """
        times = times_in(self.data.get("additional_kwargs") or {}, zone)
        said_at = next(iter(times.values()), None)
        written = written_at(self.timestamp)
        if said_at and (written is None or said_at <= written):
            return said_at
        return written

    @property
    def is_active(self) -> bool:
        """Whether it belongs to the current turn, and is not in the log yet."""
        return self.status == ACTIVE

    @property
    def is_result(self) -> bool:
        """Whether it is a tool's result."""
        return self.role in RESULT_ROLES

    @property
    def is_code_output(self) -> bool:
        """Whether it is a tool's result that was put as a user's message, as ``with_code_results`` describes."""
        return self.is_result and self.data.get("role") == MessageRole.USER.value

    @property
    def characters(self) -> int:
        """The approximate length of its text."""
        blocks = self.data.get("blocks") or ()
        return sum(len(block.get("text") or "") for block in blocks)

    @property
    def message(self) -> ChatMessage:
        """The message with the role of the row."""
        message = self.as_put
        if self.is_code_output:
            return message.model_copy(update={"role": MessageRole(self.role)})
        return message

    @property
    def as_put(self) -> ChatMessage:
        """The message as it was put; a placeholder if this version of LlamaIndex cannot read it."""
        try:
            return ChatMessage.model_validate(self.data)
        except ValidationError:
            # An unreadable row must not make its whole session unreadable.
            logger.warning(
                "A stored %s message cannot be read by this version of LlamaIndex.",
                self.role,
            )
            return ChatMessage(role=self.role, content="[unreadable message]")

    @property
    def moved(self) -> ChatMessage:
        """The message as it was put, with its time of writing and its speaker if they are known."""
        message = self.as_put
        if self.user_id:
            message.additional_kwargs.setdefault(SPEAKER_KEY, self.user_id)
        for written in times_in({"date": written_at(self.timestamp)}).values():
            return MovedMessage(**dict(message), stored_at=written)
        return message


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The position of a reader in a session: the epoch, its cursor, and the last row that it has read."""

    epoch: int = 0
    position: int = 0
    last_id: int = 0


NOTHING_SEEN = ReadPosition()


class FactsVersion(NamedTuple):
    """The version of a namespace of facts: ``epoch`` changes with a deletion, ``change`` grows with each change."""

    epoch: int = 0
    change: int = 0


_NO_FACTS = FactsVersion()


@dataclass(frozen=True, slots=True)
class LogPage:
    """Rows for a reader, oldest first.

    ``position``: the reader's cursor; 0 at the beginning.
    ``epoch``: changes when rows are deleted.
    ``fresh``: false, and the page is empty, if rows were deleted since the
    ``ReadPosition``; the reader must then begin again.
    ``more``: whether there are older rows before the page.
    ``registered``: whether the cursor is stored; only ``unread`` and ``cursor`` set it.
    ``facts``: the version of the watched facts.
    ``state``: the state of the cursor; only ``unread`` and ``cursor`` set it.
    """

    position: int
    epoch: int
    rows: list[LogRow]
    fresh: bool = True
    more: bool = False
    registered: bool = False
    facts: FactsVersion = _NO_FACTS
    state: Json = None


class Snapshot(NamedTuple):
    """The state of a session at one moment, read in one query for a prompt.

    ``position``: the cursor of the record.
    ``facts``: the version of the user's facts.
    ``is_empty``: whether the log has no row.
    ``is_closed``: whether another user owns the session, unless both users share it.
    ``active``: the active rows that can be read, oldest first; of a call and its
    results, all or none.
    ``log``: the newest rows of the log, oldest first.
    """

    epoch: int
    position: int
    facts: FactsVersion
    is_empty: bool
    is_closed: bool
    active: tuple[LogRow, ...]
    log: tuple[LogRow, ...]

    def log_behind(self, seen: ReadPosition) -> list[LogRow] | None:
        """Return the rows of the log after the last row that was read, oldest first.

        None if the snapshot does not reach back to that row.
        """
        last_id = seen.last_id
        is_complete = self.is_empty
        if last_id:
            has_last = any(row.id == last_id for row in self.log)
            is_complete = has_last and seen.epoch == self.epoch
        if not is_complete:
            return None
        return [row for row in self.log if row.id > last_id]


def messages_of(rows: Iterable[LogRow]) -> list[ChatMessage]:
    """Return the messages of the rows that can be read, as they were put."""
    return [row.as_put for row in rows if not row.is_damaged]


def readable(rows: Iterable[LogRow]) -> list[LogRow]:
    """Return the rows that can be read, without tool calls of which a part is damaged.

    A provider refuses a call without its results, and results without their call.
    """
    readable = []
    for group in tool_call_groups(rows):
        if not any(row.is_damaged for row in group):
            readable += group
    return readable


def written_at(timestamp: int | None) -> datetime | None:
    """Return the time (UTC) of nanoseconds since 1970; None if it is outside the years of a ``datetime``.

    >>> written_at(1_700_000_000_000_000_000).isoformat(), written_at(0)
    ('2023-11-14T22:13:20+00:00', None)
    """
    if timestamp is None or not 0 < timestamp < _LAST_SECOND * 10**9:
        return None
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(
        microseconds=timestamp // 1_000
    )


def times_of(
    rows: Iterable[LogRow], zone: tzinfo | None = None, offset: tzinfo | None = None
) -> list[datetime | None]:
    """Return when the message of each row was said, in the time zone.

    Without a zone, a time keeps its own offset, and a time in UTC takes the offset of the
    message before it. ``offset`` is for the messages before the first time with an offset.
    """
    times = []
    offset = zone or offset
    for row in rows:
        said_at = row.said_at(zone)
        if said_at and zone is None and said_at.utcoffset():
            offset = said_at.tzinfo
        times.append(said_at and in_zone(said_at, offset))
    return times


def day_of(said_at: datetime | None) -> str:
    """Return the day of a time, as 2026-11-20; "" if the time is unknown."""
    return said_at.date().isoformat() if said_at else ""
