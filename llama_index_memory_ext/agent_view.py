"""The view of an agent: which facts of a user it sees, and which agent its new facts belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.settings import check_id
from llama_index_memory_ext.text.messages import clean

# The facts that a memory shows. "user": the facts that all agents share. "agent": the
# facts of a single agent.
Scope: TypeAlias = Literal["user", "agent", "both"]


@dataclass(frozen=True, slots=True)
class AgentView:
    """The facts of a user that an agent sees.

    ``agents``: the agents whose facts are seen; a None in the tuple stands for shared
    facts. None in place of the tuple: all facts are seen.
    ``own``: the agent that new facts belong to; None: new facts are shared.
    """

    agents: tuple[str | None, ...] | None = (None,)
    own: str | None = None

    def sees(self, agent_id: str | None) -> bool:
        """Return whether a fact of this agent is seen; None: a shared fact."""
        return self.agents is None or agent_id in self.agents

    def check(self, agent_id: str | None) -> None:
        """Raise a FactError if the facts of an agent are not seen; None: the shared facts."""
        if not self.sees(agent_id):
            raise FactError(
                f"Expected {' or '.join(map(_described, self.agents or ()))}; got {_described(agent_id)}. "
                "Use a memory of that agent, or an agent_id and a scope that see such facts."
            )

    def owner(self, agent_id: str | None) -> str | None:
        """Return the agent that an imported fact belongs to here.

        A shared fact becomes the agent's own where no shared facts are seen.

        Raises:
            FactError: The fact is another agent's.
        """
        if agent_id is None and not self.sees(None):
            return self.own
        self.check(agent_id)
        return agent_id


# The view without an agent: the facts that all agents share.
SHARED_FACTS = AgentView()
# The view of a program that keeps the facts of all agents.
ALL_FACTS = AgentView(None)


def view_of(agent_id: str | None, scope: str | None) -> AgentView:
    """Return the facts that an agent sees.

    Args:
        agent_id: The agent; None: no agent.
        scope: "user", "agent", "both" or "all"; None: "both" for an agent, else "user".

    Raises:
        FactError: The scope is unknown, or needs an agent.
        SettingError: The ``agent_id`` is no id.

    >>> view_of("travel", None), view_of(None, None) == SHARED_FACTS
    (AgentView(agents=(None, 'travel'), own='travel'), True)
    """
    if agent_id is None and scope in (None, "user"):
        return SHARED_FACTS
    check_id("agent_id", agent_id)
    if scope == "all":
        return ALL_FACTS
    name = clean(agent_id)
    views = {
        "user": SHARED_FACTS,
        "agent": AgentView((name,), name),
        "both": AgentView((None, name), name),
    }
    view = views.get(scope or "both")
    if view is None:
        raise FactError(f'Expected the scope "user", "agent" or "both"; got {scope!r}.')
    if name is None:
        raise FactError(
            f'The scope "{scope}" needs to know the agent, and agent_id is None. Name it, agent_id="travel", or leave '
            "out the scope for facts that all agents share."
        )
    return view


def _described(agent_id: str | None) -> str:
    if agent_id is None:
        return "a shared fact (agent_id None)"
    return f"a fact of agent {agent_id!r}"
