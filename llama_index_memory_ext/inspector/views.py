"""Reads from a store what a page shows. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index_memory_ext.fact import utc_now
from llama_index_memory_ext.facts.block import RelevantFactsBlock
from llama_index_memory_ext.facts.history import history_of
from llama_index_memory_ext.inspector.prompt import Limits, show
from llama_index_memory_ext.memory.stats import read_stats
from llama_index_memory_ext.record.block import CondensedMemoryBlock
from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED
from llama_index_memory_ext.text.messages import body_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from llama_index_memory_ext.memory.stats import MemoryStats
    from llama_index_memory_ext.store import MemoryStore, SessionInfo
    from llama_index_memory_ext.store.rows import LogRow

PAGE_ROWS = 50
# More than there can be.
_LAST_PAGE = 10**9

Context = dict[str, Any]


class NotFoundError(Exception):
    """There is nothing of this name in the database."""


class Page(NamedTuple):
    """A page of a list: its number, from 1, how many there are, and how long the whole list is."""

    number: int
    last: int
    total: int

    @property
    def skipped(self) -> int:
        """How many rows come before it."""
        return (self.number - 1) * PAGE_ROWS


def page_of(asked: str, total: int, *, otherwise: int = 1) -> Page:
    """Returns the page that is asked for, or else the one ``otherwise``, or the nearest that there is.

    >>> page_of("7", 120), page_of("x", 0)
    (Page(number=3, last=3, total=120), Page(number=1, last=1, total=0))
    """
    last = max(1, -(-total // PAGE_ROWS))
    number = int(asked) if asked.isdecimal() and len(asked) < len(str(_LAST_PAGE)) else otherwise
    return Page(min(max(number, 1), last), last, total)


@dataclass(frozen=True, slots=True)
class Message:
    """A message as its page shows it; ``body`` has its texts and its calls of tools."""

    row_id: int
    role: str
    body: str
    said_at: datetime | None
    is_active: bool


@dataclass(frozen=True, slots=True)
class Views:
    """What each page shows, from its query; ``limits`` are those of the memory that is looked at."""

    store: MemoryStore
    limits: Limits

    async def sessions(self, query: Mapping[str, str]) -> Context:
        """The sessions, the one that was used last first, as far as their name or a user's holds the text ``q``."""
        wanted, user = query.get("q", "").casefold(), query.get("user")
        found = [info for info in await self.store.sessions(user) if _matches(info, wanted)]
        page = page_of(query.get("page", ""), len(found))
        return {"sessions": found[page.skipped :][:PAGE_ROWS], "page": page, "q": query.get("q", ""), "user": user}

    async def users(self, query: Mapping[str, str]) -> Context:
        """The users by name: how many sessions and facts each has, and when the last message was written."""
        wanted, infos = query.get("q", "").casefold(), await self.store.sessions()
        facts = await self.store.users.facts_of_each()
        sessions: dict[str, list[SessionInfo]] = {name: [] for name in facts}
        for info in infos:
            for name in info.user_ids:
                sessions.setdefault(name, []).append(info)
        names = sorted(name for name in sessions if wanted in name.casefold())
        page = page_of(query.get("page", ""), len(names))
        shown = names[page.skipped :][:PAGE_ROWS]
        rows = [(name, len(sessions[name]), facts.get(name, 0), sessions[name][:1]) for name in shown]
        return {"users": rows, "page": page, "q": query.get("q", "")}

    async def session(self, query: Mapping[str, str]) -> Context:
        """What there is of a session, and what the model would be shown for the question ``q``."""
        found = await self._session(query)
        shown = await show(self.store, found["id"], found["user"], query.get("q", ""), self.limits)
        return {**found, "shown": shown, "q": query.get("q", "")}

    async def messages(self, query: Mapping[str, str]) -> Context:
        """The messages of a session, oldest first, by default those of the last page."""
        found = await self._session(query)
        page = page_of(query.get("page", ""), found["info"].messages, otherwise=_LAST_PAGE)
        return {**found, "page": page, "messages": await self.read_messages(found["id"], page.skipped, PAGE_ROWS)}

    async def read_messages(self, session_id: str, skipped: int, most: int) -> list[Message]:
        """The messages of a session from a place on, oldest first."""
        rows = await self.store.readers.find(session_id, [ARCHIVED, ACTIVE], limit=most, offset=skipped)
        return [_message(row) for row in rows]

    async def facts(self, query: Mapping[str, str]) -> Context:
        """The facts of a user, the newest first; with ``state``, only those that are in it."""
        user, state = query.get("user", ""), query.get("state", "")
        facts, now = (await self.store.facts.read(user)).facts, utc_now()
        facts.sort(key=lambda fact: fact.created_at, reverse=True)
        states: dict[str, int] = {}
        for fact in facts:
            states[fact.state(now)] = states.get(fact.state(now), 0) + 1
        wanted = query.get("q", "").casefold()
        in_state = [fact for fact in facts if state in ("", fact.state(now))]
        chosen = [fact for fact in in_state if wanted in f"{fact.content} {fact.category}".casefold()]
        page = page_of(query.get("page", ""), len(chosen))
        shown = [(fact, fact.state(now)) for fact in chosen[page.skipped :][:PAGE_ROWS]]
        lists = {"facts": shown, "states": states, "sessions": len(await self.store.sessions(user))}
        return {**lists, "user": user, "state": state, "page": page, "q": query.get("q", "")}

    async def fact(self, query: Mapping[str, str]) -> Context:
        """A fact with what it has replaced and what has replaced it, and the messages in which it was said."""
        user, fact_id = query.get("user", ""), query.get("fact", "")
        facts, now = (await self.store.facts.read(user)).facts, utc_now()
        fact = next((one for one in facts if one.id == fact_id), None)
        if fact is None:
            raise NotFoundError
        history = [(one, one.state(now)) for one in history_of(facts, fact_id, user)]
        rows = await self.store.readers.rows(fact.session_id, fact.message_ids) if fact.session_id else []
        said = {"messages": [_message(row) for row in rows], "session": fact.session_id}
        return {**said, "user": user, "fact": fact, "state": fact.state(now), "history": history}

    async def _session(self, query: Mapping[str, str]) -> Context:
        session_id = query.get("id", "")
        infos = await self.store.sessions(session_ids=[session_id])
        if not infos:
            raise NotFoundError
        # Whoever has not said whose a session is has facts of its own.
        users = infos[0].user_ids or (session_id,)
        user = query.get("user") if query.get("user") in users else users[0]
        stats = await self._stats(session_id, str(user))
        return {"id": session_id, "info": infos[0], "users": users, "user": user, "stats": stats}

    async def _stats(self, session_id: str, user: str) -> MemoryStats:
        options = self.limits.given
        record = CondensedMemoryBlock(store=self.store, token_limit=options.get("condensed_token_limit", 50_000))
        # Not checked: any that is stored may be looked at.
        facts = RelevantFactsBlock(store=self.store).model_copy(update={"user_id": user})
        return await read_stats(self.store, record, facts, session_id)


def _matches(info: SessionInfo, wanted: str) -> bool:
    return any(wanted in name.casefold() for name in (info.session_id, *info.user_ids))


def _message(row: LogRow) -> Message:
    return Message(row.id, row.role, body_of(row.message), row.said_at, row.is_active)
