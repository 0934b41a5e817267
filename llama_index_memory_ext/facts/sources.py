"""Retires the facts of a user whose messages were deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_memory_ext.fact import retire, utc_now
from llama_index_memory_ext.grounding.quotes import find_quote
from llama_index_memory_ext.text.messages import spoken
from llama_index_memory_ext.text.visible import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.facts.cache import FactCache
    from llama_index_memory_ext.store import MemoryStore
    from llama_index_memory_ext.store.rows import LogRow

_REASON = "its message was deleted"
_PAGE_ROWS = 500


async def retire_deleted(cache: FactCache, namespace: str, session_id: str) -> bool:
    """Retire the facts that the user has stated in messages of a session that are gone.

    A fact stays if it is pinned, if it was restored after that, or if its quote stands in a message that is left.
    Returns False if facts were deleted at the same time: nothing is stored then.
    """
    known = await cache.read(namespace)
    facts = [fact for fact in known.facts.values() if fact.session_id == session_id and _may_go(fact)]
    facts = await _unsaid(cache.store, session_id, await _without_row(cache.store, session_id, facts))
    if not facts:
        return True
    now = utc_now()
    gone = [retire(fact, _REASON, max(now, fact.updated_at), by="hand") for fact in facts]
    is_stored = await cache.store.facts.write(namespace, gone, known.changes, view=cache.view)
    await cache.refresh(namespace)
    return is_stored


async def _without_row(store: MemoryStore, session_id: str, facts: Sequence[Fact]) -> list[Fact]:
    """The facts none of whose rows says them any more: a database may give a deleted row's id to another message."""
    ids = {one for fact in facts for one in fact.message_ids}
    texts = {row.id: _text_of(row) for row in await store.readers.rows(session_id, sorted(ids))} if ids else {}
    return [fact for fact in facts if not any(_states(texts.get(one, ""), fact) for one in fact.message_ids)]


async def _unsaid(store: MemoryStore, session_id: str, facts: Iterable[Fact]) -> list[Fact]:
    """The facts whose quotes stand in no message of a session."""
    left, last = list(facts), 0
    while left:
        page = await store.readers.unread(session_id, "", with_active=True, after=last, limit=_PAGE_ROWS)
        if not page.rows:
            break
        said, last = "\n".join(map(_text_of, page.rows)), page.rows[-1].id
        left = [fact for fact in left if fact.quote not in said]
    return left


def _may_go(fact: Fact) -> bool:
    was_restored = any(one.retired_reason == _REASON for one in fact.past_retirements)
    return bool(fact.message_ids and fact.quote) and not (fact.retired or fact.pinned or was_restored)


def _states(text: str, fact: Fact) -> bool:
    """Whether a message is the one of a fact, whose quote may have been cut out of a clipped text."""
    return fact.quote in text or find_quote(fact.quote, text) is not None


def _text_of(row: LogRow) -> str:
    """What the user says in a row; "" if it is not the user's."""
    return visible(spoken(row.message)) if row.role == "user" else ""
