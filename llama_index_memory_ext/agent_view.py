"""Says which of a user's facts an agent sees, and whose a new fact is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.refusals import check_id
from llama_index_memory_ext.text.messages import cleaned

# The facts that all agents share, those of one agent alone, or both.
Scope: TypeAlias = Literal["user", "agent", "both"]


@dataclass(frozen=True, slots=True)
class AgentView:
    """Which of a user's facts are seen: those of these ``agents``, None among them for the shared ones.

    ``own`` is the agent of a new fact; None: it is shared. ``agents`` is None for a view of everybody's facts.
    """

    agents: tuple[str | None, ...] | None = (None,)
    own: str | None = None

    @property
    def names(self) -> tuple[str, ...] | None:
        """The agents as the database names them, "" for the shared facts; None for everybody's facts."""
        return None if self.agents is None else tuple(agent or "" for agent in self.agents)

    def sees(self, agent_id: str | None) -> bool:
        """Whether a fact of this agent, None for a shared one, is seen."""
        return self.agents is None or agent_id in self.agents

    def check(self, agent_id: str | None) -> None:
        """Raises a FactError for an agent, None for all of them, whose facts are not seen."""
        if not self.sees(agent_id):
            raise FactError(
                f"Expected {' or '.join(map(_described, self.agents or ()))}; saw {_described(agent_id)}. "
                "Use a memory of that agent, or an agent_id and a scope that see such facts."
            )

    def owner(self, agent_id: str | None) -> str | None:
        """Whose a fact from elsewhere is here: a shared one is the agent's own where no shared ones are seen.

        Raises a FactError for another agent's.
        """
        if agent_id is None and not self.sees(None):
            return self.own
        self.check(agent_id)
        return agent_id


# What one sees who is no agent of a name.
SHARED = AgentView()


def view_of(agent_id: str | None, scope: str | None) -> AgentView:
    """Returns what an agent sees; without a ``scope`` both, or without an ``agent_id`` the shared facts.

    The scope "all" shows everybody's facts. Raises a FactError where a scope lacks its agent, and for an unknown scope;
    a SettingError for an ``agent_id`` that is no id.

    >>> view_of("travel", None), view_of(None, None) == SHARED
    (AgentView(agents=(None, 'travel'), own='travel'), True)
    """
    if agent_id is None and scope in (None, "user"):
        return SHARED
    check_id("agent_id", agent_id)
    if scope == "all":
        return AgentView(None)
    name = cleaned(agent_id)
    views = {"user": SHARED, "agent": AgentView((name,), name), "both": AgentView((None, name), name)}
    view = views.get(scope or "both")
    if view is None:
        raise FactError(f'Expected the scope "user", "agent" or "both"; saw {scope!r}.')
    if name is None:
        raise FactError(
            f'The scope "{scope}" needs to know the agent, and agent_id is None. Name it, agent_id="travel", or leave '
            "out the scope for facts that all agents share."
        )
    return view


def _described(agent_id: str | None) -> str:
    return "a shared fact (agent_id None)" if agent_id is None else f"a fact of agent {agent_id!r}"
