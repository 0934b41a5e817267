"""A selection of facts, by conditions on their fields."""

from __future__ import annotations

from contextlib import suppress
from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    WrapValidator,
)

from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.fact import Fact, FactState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _day(value: Any, check: Callable[[Any], datetime]) -> date:
    """Return a day, or the day of an ISO date; check any other value."""
    day = value
    if isinstance(value, str):
        with suppress(ValueError):
            day = date.fromisoformat(value)
    return day if type(day) is date else check(value)


DayOrMoment = Annotated[
    AwareDatetime, WrapValidator(_day), PlainSerializer(lambda value: value)
]


def beside(moment: date, limit: date) -> date:
    """Return a moment in the form of a limit: the day of a datetime if the limit is a day."""
    if isinstance(moment, datetime) and not isinstance(limit, datetime):
        return moment.date()
    return moment


class FactFilter(BaseModel):
    """A selection of facts, by all of the conditions that are set, a page at a time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    since: DayOrMoment | None = Field(
        default=None, description="Known since this day or datetime, or later."
    )
    until: DayOrMoment | None = Field(
        default=None, description="Known since this day or datetime, or earlier."
    )
    category: str | None = Field(default=None, description="Of this kind.")
    tags: tuple[str, ...] = Field(default=(), description="With all of these tags.")
    agent_id: str | None = Field(default=None, description="This agent's own.")
    state: FactState | Literal["all"] | None = Field(
        default=None, description='In this state; "all": in any.'
    )
    limit: int | None = Field(default=None, ge=1, description="Most facts.")
    after: str | None = Field(
        default=None,
        description="The id of the last fact that was seen: those behind it.",
    )

    def takes(self, fact: Fact, now: datetime) -> bool:
        """Return whether a fact is selected."""
        at = fact.created_at
        if self.since and beside(at, self.since) < self.since:
            return False
        if self.until and beside(at, self.until) > self.until:
            return False
        return (
            self.category in (None, fact.category)
            and self.agent_id in (None, fact.agent_id)
            and self.state in (None, "all", fact.state(now))
            and set(self.tags) <= set(fact.tags)
        )

    def start(self, facts: Sequence[Fact]) -> int:
        """Return where the page begins: behind the fact ``after``.

        Raises:
            FactError: That fact is not among the facts.
        """
        if self.after is None:
            return 0
        ids = [fact.id for fact in facts]
        if self.after not in ids:
            raise FactError(
                f"Expected after to be the id of one of {len(ids)} facts; got {self.after!r}. "
                "Begin again without after."
            )
        return ids.index(self.after) + 1
