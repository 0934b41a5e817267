"""A selection of facts, by conditions on their fields."""

from __future__ import annotations

from datetime import date, datetime
from typing import TYPE_CHECKING, Literal, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.fact import Fact, FactState
from llama_index_memory_ext.settings import optional

if TYPE_CHECKING:
    from collections.abc import Sequence


DayOrMoment: TypeAlias = AwareDatetime | date


def moment_for(moment: date, limit: date) -> date:
    """Return a moment in the form of a limit: the day of a datetime if the limit is a day."""
    if isinstance(moment, datetime) and not isinstance(limit, datetime):
        return moment.date()
    return moment


class FactFilter(BaseModel):
    """A selection of facts, by all of the conditions that are set, a page at a time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    since: DayOrMoment | None = optional("Known since this day or datetime, or later.")
    until: DayOrMoment | None = optional(
        "Known since this day or datetime, or earlier."
    )
    category: str | None = optional("Of this kind.")
    tags: tuple[str, ...] = Field(default=(), description="With all of these tags.")
    agent_id: str | None = optional("This agent's own.")
    state: FactState | Literal["all"] | None = optional('In this state; "all": in any.')
    limit: int | None = Field(
        default=None, ge=1, description="Maximum number of facts."
    )
    after: str | None = optional("The id of the last fact of the previous page.")

    def takes(self, fact: Fact, now: datetime) -> bool:
        """Return whether a fact is selected."""
        at = fact.created_at
        if self.since and moment_for(at, self.since) < self.since:
            return False
        if self.until and moment_for(at, self.until) > self.until:
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
