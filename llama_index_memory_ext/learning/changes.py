"""The facts that a validated reply changes: whose they are, which wait for a person, and which exceed the limit."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import replace
from typing import TYPE_CHECKING

from llama_index_memory_ext.events import Rejection
from llama_index_memory_ext.fact import (
    ENDING,
    NO_LONGER_TRUE,
    ONLY_ENDS,
    Fact,
    duplicate_key,
    retire,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from llama_index_memory_ext.facts.user_facts import UserFacts
    from llama_index_memory_ext.learning.validation import ValidatedReply


_ALREADY_DECIDED = Rejection("duplicate", "It is pending, or was rejected.")


def with_agent(valid: ValidatedReply, agent_id: str | None) -> ValidatedReply:
    """Return the reply with the agent of each new fact.

    A new fact is the agent's own. A fact that replaces a shared fact is shared.
    """
    shared_ids = {fact.replaced_by for fact in valid.retired if fact.agent_id is None}
    accepted = []
    for fact in valid.accepted:
        owner = None if fact.id in shared_ids else agent_id
        accepted.append(fact.model_copy(update={"agent_id": owner}))
    return replace(valid, accepted=tuple(accepted))


def changed_facts(
    valid: ValidatedReply, user_facts: UserFacts, max_facts: int | None, now: datetime
) -> list[Fact]:
    """Return all facts that a validated reply changes.

    Over ``max_facts`` the least confident of the agent's own facts are retired.
    """
    changed = {
        fact.id: fact for fact in (*valid.accepted, *valid.confirmed, *valid.retired)
    }
    if max_facts is not None:
        facts = {**user_facts.facts, **changed}.values()
        present = [fact for fact in facts if fact.state(now) == "present"]
        present.sort(key=lambda fact: (fact.pinned, fact.confidence, fact.updated_at))
        # The limit of one agent retires no shared facts.
        agent_id = user_facts.view.own
        own = [fact for fact in present if fact.agent_id == agent_id]
        for fact in own[: max(len(present) - max_facts, 0)]:
            changed[fact.id] = retire(fact, "over max_facts", now, by="limit")
    return list(changed.values())


def pending_reply(valid: ValidatedReply, user_facts: UserFacts) -> ValidatedReply:
    """Return a validated reply whose new facts, and the facts that they end, wait for a person.

    A fact that ends without a replacement waits as a pending fact that says so. A fact
    that the user wants forgotten does not wait, nor does a pending fact without a
    replacement. A new fact that is pending already, or was rejected, is left out.
    """
    new = {
        fact.id: fact.model_copy(update={"pending": True}) for fact in valid.accepted
    }
    pending = ChainMap(new, {fact.id: fact for fact in user_facts.pending})
    ended_now = []
    for ending in valid.retired:
        old = user_facts.facts[ending.id]
        if _ends_at_once(ending, old):
            ended_now.append(ending)
        else:
            replacement = pending.get(ending.replaced_by or "")
            fact = _with_ending(replacement, ending, old)
            new[fact.id] = fact
    decided = (*user_facts.pending, *user_facts.rejected)
    accepted = [fact for fact in new.values() if not _is_repeated(fact, decided)]
    repeated = len(new) - len(accepted)
    return replace(
        valid,
        accepted=tuple(accepted),
        confirmed=tuple(fact for fact in valid.confirmed if fact.id not in new),
        retired=tuple(ended_now),
        rejected=(*valid.rejected, *[_ALREADY_DECIDED] * repeated),
    )


def _ends_at_once(ending: Fact, old: Fact) -> bool:
    """Return whether a fact ends without approval."""
    return ending.retired_by == "request" or (old.pending and not ending.replaced_by)


def _with_ending(replacement: Fact | None, ending: Fact, old: Fact) -> Fact:
    """Return a pending fact whose approval ends an old fact, and the facts that the old fact was to end.

    It is the replacement, or else a fact that says that the old fact is no longer true.
    """
    pending = replacement or Fact(
        content=NO_LONGER_TRUE.format(old.content),
        pending=True,
        category=old.category,
        agent_id=old.agent_id,
        said_as=ONLY_ENDS,
    )
    ends_facts = {
        **pending.ends_facts,
        ending.id: ending.model_dump(mode="json", include={*ENDING}),
        **old.ends_facts,
    }
    return pending.model_copy(update={"ends_facts": ends_facts})


def _is_repeated(new: Fact, decided: Iterable[Fact]) -> bool:
    """Return whether a pending or rejected fact says the same as a new fact."""
    content = duplicate_key(new.content)
    return any(
        duplicate_key(fact.content) == content and fact.id != new.id for fact in decided
    )
