"""Says what a reader of the log is given."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.bridge.pydantic import ValidationError

from llama_index_memory_ext.store.timestamps import written_at
from llama_index_memory_ext.text.messages import storable
from llama_index_memory_ext.text.tool_calls import RESULT_ROLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogRow:
    """One message of the log, parsed when it is asked for. ``id`` grows in the order of writing.

    ``timestamp`` is when it was written, in nanoseconds since 1970; 0 where nobody asked for it.
    """

    id: int
    role: str
    data: Any
    timestamp: int = 0

    @property
    def written_at(self) -> datetime | None:
        """When it was written (UTC); None where that is unknown."""
        return written_at(self.timestamp)

    @property
    def is_result(self) -> bool:
        """Whether it is a tool's result."""
        return self.role in RESULT_ROLES

    @property
    def characters(self) -> int:
        """About how long its text is."""
        blocks = self.data.get("blocks") if isinstance(self.data, dict) else None
        return sum(len(block.get("text") or "") for block in blocks or () if isinstance(block, dict))

    @property
    def message(self) -> ChatMessage:
        """The message; a stand-in if this version of the host cannot read it."""
        return message_of(self)


@dataclass(frozen=True, slots=True)
class LogPage:
    """What a reader is given: its cursor, and a page of the log behind it, oldest row first.

    ``position`` is the last row that the reader has left behind, 0 at the beginning. ``epoch`` changes
    whenever rows were deleted. ``fresh`` is false, and the page empty, if that has happened since ``Seen``:
    what was remembered of the session is void then. ``more`` is true if there are older rows before the page.
    ``facts`` is the epoch and the last change of the facts that were watched.
    """

    position: int
    epoch: int
    fresh: bool
    more: bool
    rows: list[LogRow]
    facts: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Unread:
    """The oldest rows that a reader has not left behind, and where its cursor stands."""

    position: int
    epoch: int
    rows: list[LogRow]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader remembers of a session: the epoch, its cursor, and the last row that it was given."""

    epoch: int = 0
    position: int = 0
    last_id: int = 0


def page_of(found: Sequence[Any], seen: Seen, limit: int) -> LogPage:
    """The page that was found, newest row first, without the row that was seen last."""
    epoch, position = found[0].epoch, found[0].position
    facts = (found[0].facts_epoch, found[0].facts_change) if "facts_epoch" in found[0]._fields else None
    rows = [row for row in found if row.id not in (None, seen.last_id)]
    witnessed = len(rows) > limit or found[-1].id == seen.last_id or seen.last_id <= position
    if seen.last_id and (epoch != seen.epoch or not witnessed):
        return LogPage(position, epoch, fresh=False, more=False, rows=[], facts=facts)
    shown = [LogRow(row.id, row.role, row.data) for row in reversed(rows[:limit])]
    return LogPage(position, epoch, fresh=True, more=len(rows) > limit, rows=shown, facts=facts)


def new_row(key: str, message: ChatMessage) -> dict[str, Any]:
    """A row for a message; when it was written and its status are still to be told."""
    return {"key": key, "role": message.role.value, "data": storable(message)}


def message_of(row: Any) -> ChatMessage:
    """The message of a row; a stand-in if this version of the host cannot read it."""
    try:
        return ChatMessage.model_validate(row.data)
    except ValidationError:
        # One row that this version of the host cannot read must not make a whole session unreadable.
        logger.warning("A stored %s message cannot be read by this version of LlamaIndex.", row.role)
        return ChatMessage(role=row.role, content="[unreadable message]")
