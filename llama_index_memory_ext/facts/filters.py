"""Chooses facts by day, kind, tag, agent and state, a page at a time."""

from __future__ import annotations

from datetime import date, datetime, time, timezone
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.fact import FactState, Utc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.fact import Fact


def _moment(value: Any, at: time) -> Any:
    """Returns a day, also as a text, as the first or the last moment of it in UTC, and all else as it is."""
    try:
        day = date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return datetime.combine(day, at, timezone.utc) if type(day) is date else value


Since = Annotated[Utc, BeforeValidator(partial(_moment, at=time.min))]
Until = Annotated[Utc, BeforeValidator(partial(_moment, at=time.max))]


class FactFilter(BaseModel):
    """Which facts are wanted: those for which all is so that is named, a page at a time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    since: Since | None = Field(default=None, description="Known since this day or datetime, or later.")
    until: Until | None = Field(default=None, description="Known since this day or datetime, or earlier.")
    category: str | None = Field(default=None, description="Of this kind.")
    tags: tuple[str, ...] = Field(default=(), description="With all of these tags.")
    agent_id: str | None = Field(default=None, description="This agent's own.")
    state: FactState | Literal["all"] | None = Field(default=None, description='In this state; "all": in any.')
    limit: int | None = Field(default=None, ge=1, description="Most facts.")
    after: str | None = Field(default=None, description="The id of the last fact that was seen: those behind it.")

    def takes(self, fact: Fact, now: datetime) -> bool:
        """Returns whether a fact is wanted."""
        known = fact.created_at
        is_then = (self.since or known) <= known <= (self.until or known)
        is_so = self.category in (None, fact.category) and self.agent_id in (None, fact.agent_id)
        return is_then and is_so and self.state in (None, "all", fact.state(now)) and set(self.tags) <= set(fact.tags)

    def start(self, facts: Sequence[Fact]) -> int:
        """Returns where the page begins: behind the fact that was seen last; a FactError if that is not there."""
        if self.after is None:
            return 0
        ids = [fact.id for fact in facts]
        if self.after not in ids:
            raise FactError(f"There is no fact {self.after!r} among {len(ids)}, behind which to go on. Begin anew.")
        return ids.index(self.after) + 1
