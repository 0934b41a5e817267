"""Writes a session as one page that needs nothing else: no server, no network, no script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index_memory_ext.fact import utc_now
from llama_index_memory_ext.inspector.pages import Pages
from llama_index_memory_ext.inspector.views import Views

if TYPE_CHECKING:
    from llama_index_memory_ext.inspector.prompt import Limits
    from llama_index_memory_ext.store import MemoryStore

# The newest messages; a browser shows no more at once in a reasonable time.
MOST_MESSAGES = 2_000


async def report(store: MemoryStore, session_id: str, question: str, limits: Limits) -> str:
    """Returns the page as HTML; a NotFoundError if there is no such session."""
    views = Views(store, limits)
    found = await views.session({"id": session_id, "q": question})
    skipped = max(found["info"].messages - MOST_MESSAGES, 0)
    messages = await views.read_messages(session_id, skipped, MOST_MESSAGES)
    facts, now = (await store.facts.read(found["user"])).facts, utc_now()
    ended = [(fact, fact.state(now)) for fact in facts if fact.state(now) != "present"]
    more = {"ended": ended, "contents": {fact.id: fact.content for fact in facts}, "made_at": now}
    return Pages(store.address).render("whole", **found, **more, messages=messages)
