"""What is read of a session: rows of its log, pages of them, and a snapshot of all that a prompt needs."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, NamedTuple

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.bridge.pydantic import ValidationError

from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED
from llama_index_memory_ext.text.times import times_in
from llama_index_memory_ext.text.tool_calls import RESULT_ROLES

if TYPE_CHECKING:
    from llama_index_memory_ext.text.tool_calls import Json

logger = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Opening(NamedTuple):
    """Who opens a session: a user, None for a memory without one. ``shared``: other users may read and write there."""

    user_id: str | None = None
    shared: bool = False

    def user_in(self, key: str) -> str:
        """The user: a session that was begun without one is its own."""
        return key if self.user_id is None else self.user_id


@dataclass(frozen=True, slots=True)
class LogRow:
    """One message of a session, parsed when it is asked for. ``id`` grows in the order of writing.

    ``timestamp`` is when it was written, in nanoseconds since 1970; 0 where the query did not ask for it. The default
    ``status`` is that of the log. ``user_id`` says who wrote it in a session of several users, "" if that is unknown.
    """

    id: int
    role: str
    data: Json
    timestamp: int = 0
    status: str = ARCHIVED
    user_id: str | None = None

    @property
    def speaker(self) -> str:
        """The name, or else the id, of the user who said it, in a session of several users; "" in any other."""
        kwargs = self.data.get("additional_kwargs") if self.user_id else None
        return str((kwargs or {}).get("name") or self.user_id or "")

    @property
    def written_at(self) -> datetime | None:
        """When it was written (UTC); None where that is unknown."""
        return written_at(self.timestamp)

    @property
    def told_at(self) -> datetime | None:
        """When it was said (UTC), as its ``additional_kwargs`` tell; None if they do not, or tell a later time."""
        kwargs = self.data.get("additional_kwargs") if isinstance(self.data, dict) else None
        told = next(iter(times_in(kwargs).values()), None) if kwargs and isinstance(kwargs, dict) else None
        written = self.written_at
        return told if told and (written is None or told <= written) else None

    @property
    def said_at(self) -> datetime | None:
        """When it was said (UTC), as far as it tells; else when it was written. None where neither is known."""
        return self.told_at or self.written_at

    @property
    def is_active(self) -> bool:
        """Whether it belongs to the current turn, and is not in the log yet."""
        return self.status == ACTIVE

    @property
    def is_result(self) -> bool:
        """Whether it is a tool's result."""
        return self.role in RESULT_ROLES

    @property
    def is_printed(self) -> bool:
        """Whether it is a tool's result that was put as the user's message, as by ``as_taken``."""
        return self.is_result and isinstance(self.data, dict) and self.data.get("role") == MessageRole.USER.value

    @property
    def characters(self) -> int:
        """About how long its text is."""
        blocks = self.data.get("blocks") if isinstance(self.data, dict) else None
        return sum(len(block.get("text") or "") for block in blocks or () if isinstance(block, dict))

    @property
    def message(self) -> ChatMessage:
        """The message with the role of the row, which is what it is taken for."""
        message = self.as_put
        return message.model_copy(update={"role": MessageRole(self.role)}) if self.is_printed else message

    @property
    def as_put(self) -> ChatMessage:
        """The message as it was put; a placeholder if this version of LlamaIndex cannot read it."""
        try:
            return ChatMessage.model_validate(self.data)
        except ValidationError:
            # One such row must not make a whole session unreadable.
            logger.warning("A stored %s message cannot be read by this version of LlamaIndex.", self.role)
            return ChatMessage(role=self.role, content="[unreadable message]")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader remembers of a session: the epoch, its cursor, and the last row that it was given."""

    epoch: int = 0
    position: int = 0
    last_id: int = 0


@dataclass(frozen=True, slots=True)
class LogPage:
    """Rows for a reader, oldest first.

    ``position`` is the reader's cursor: the last row that it has left behind, 0 at the beginning. ``epoch`` changes
    when rows are deleted. ``fresh`` is false, and the page empty, if that has happened since ``Seen``: what the reader
    remembers of the session is void then. ``more`` is true if there are older rows before the page. ``registered`` is
    true if the cursor is stored. ``facts`` is the epoch and the last change of the facts that were watched. ``unread``
    gives the ``state``, too, that the cursor was moved with.
    """

    position: int
    epoch: int
    rows: list[LogRow]
    fresh: bool = True
    more: bool = False
    registered: bool = False
    facts: tuple[int, int] | None = (0, 0)
    state: Json = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a session holds at one moment, read in one query for a prompt.

    ``active`` are its active rows, and ``log`` the newest rows of its log from a known row on, both oldest first.
    ``position`` is the cursor of the record, and ``facts`` as in ``LogPage`` those of the user.
    ``is_empty``: the log has no row. ``is_closed``: the session holds words of another user.
    """

    epoch: int
    position: int
    facts: tuple[int, int]
    is_empty: bool
    is_closed: bool
    active: tuple[LogRow, ...]
    log: tuple[LogRow, ...]

    def log_behind(self, seen: Seen) -> list[LogRow] | None:
        """Returns the rows of the log behind those that were seen, oldest first; None if that takes a query."""
        last_id = seen.last_id
        is_known = seen.epoch == self.epoch and any(row.id == last_id for row in self.log) if last_id else self.is_empty
        return [row for row in self.log if row.id > last_id] if is_known else None


def written_at(timestamp: int | None) -> datetime | None:
    """When a row was written (UTC), from nanoseconds since 1970; None if that is no time of a clock.

    >>> written_at(1_700_000_000_000_000_000).isoformat(), written_at(0)
    ('2023-11-14T22:13:20+00:00', None)
    """
    if not timestamp or timestamp < 0:
        return None
    try:
        return _EPOCH + timedelta(microseconds=timestamp // 1_000)
    except OverflowError:
        return None
