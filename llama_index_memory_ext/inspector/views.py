"""Reads from a store what a page shows. Nothing is written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.errors import MemoryExtError
from llama_index_memory_ext.fact import utc_now
from llama_index_memory_ext.facts.block import RelevantFactsBlock
from llama_index_memory_ext.facts.history import history_of
from llama_index_memory_ext.inspector.prompt import show
from llama_index_memory_ext.memory.stats import read_stats
from llama_index_memory_ext.record.block import CondensedMemoryBlock
from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.store import MemoryStore, SessionInfo
    from llama_index_memory_ext.store.tables import LogRow

PAGE_ROWS = 50
# More than there can be.
_LAST_PAGE = 10**9

Context = dict[str, Any]


class NotFoundError(MemoryExtError):
    """There is nothing of this name in the database."""


def page_of(asked: str, total: int, *, otherwise: int = 1) -> dict[str, int]:
    """Returns the page of a list that is asked for, or else the one ``otherwise``, or the nearest that there is.

    Its number, from 1, how many pages there are, how long the whole list is, and how many rows come before the page.

    >>> page_of("7", 120)
    {'number': 3, 'last': 3, 'total': 120, 'skipped': 100}
    """
    last = max(1, -(-total // PAGE_ROWS))
    number = int(asked) if asked.isdecimal() and len(asked) < len(str(_LAST_PAGE)) else otherwise
    number = min(max(number, 1), last)
    return {"number": number, "last": last, "total": total, "skipped": (number - 1) * PAGE_ROWS}


@dataclass(frozen=True, slots=True)
class Views:
    """What each page shows, from its query; ``limits`` are those of the memory that is looked at."""

    store: MemoryStore
    limits: Mapping[str, int]

    async def sessions(self, query: Mapping[str, str]) -> Context:
        """Returns the sessions whose name, or a user's, holds the text ``q``; the one that was used last is first."""
        wanted, user = query.get("q", "").casefold(), query.get("user")
        found = [
            info
            for info in await self.store.sessions(user)
            if any(wanted in name.casefold() for name in (info.session_id, *info.user_ids))
        ]
        page = page_of(query.get("page", ""), len(found))
        return {"sessions": found[page["skipped"] :][:PAGE_ROWS], "page": page, "q": query.get("q", ""), "user": user}

    async def users(self, query: Mapping[str, str]) -> Context:
        """Returns the users by name: how many sessions and facts each has, and the last message."""
        facts = await self.store.users.facts_of_each()
        sessions: dict[str, list[SessionInfo]] = {name: [] for name in facts}
        for info in await self.store.sessions():
            for name in info.user_ids:
                sessions.setdefault(name, []).append(info)
        names = sorted(name for name in sessions if query.get("q", "").casefold() in name.casefold())
        page = page_of(query.get("page", ""), len(names))
        shown = names[page["skipped"] :][:PAGE_ROWS]
        rows = [(name, len(sessions[name]), facts.get(name, 0), sessions[name][:1]) for name in shown]
        return {"users": rows, "page": page, "q": query.get("q", "")}

    async def session(self, query: Mapping[str, str]) -> Context:
        """Returns what there is of a session, and what the model would be shown for the question ``q``."""
        found = await self._session(query)
        shown = await show(self.store, found["id"], found["user"], query.get("q", ""), self.limits)
        return {**found, "shown": shown, "q": query.get("q", "")}

    async def messages(self, query: Mapping[str, str]) -> Context:
        """Returns the messages of a session, oldest first, by default those of the last page."""
        found = await self._session(query)
        page = page_of(query.get("page", ""), found["info"].messages, otherwise=_LAST_PAGE)
        return {**found, "page": page, "messages": await self.read_messages(found["id"], page["skipped"], PAGE_ROWS)}

    async def read_messages(self, session_id: str, skipped: int, most: int) -> Sequence[LogRow]:
        """Returns the messages of a session from a place on, oldest first."""
        return await self.store.readers.find(session_id, [ARCHIVED, ACTIVE], limit=most, offset=skipped)

    async def facts(self, query: Mapping[str, str]) -> Context:
        """Returns the facts of a user, the newest first; with ``state``, only those that are in it."""
        user, state, wanted = (query.get(name, "") for name in ("user", "state", "q"))
        facts = await self.facts_of(user)
        chosen = [
            (fact, one)
            for fact, one in sorted(facts, key=lambda pair: pair[0].created_at, reverse=True)
            if state in ("", one) and wanted.casefold() in f"{fact.content} {fact.category}".casefold()
        ]
        page, sessions = page_of(query.get("page", ""), len(chosen)), len(await self.store.sessions(user))
        lists = {
            "facts": chosen[page["skipped"] :][:PAGE_ROWS],
            "states": Counter(one for _, one in facts),
            "sessions": sessions,
        }
        return {**lists, "user": user, "state": state, "page": page, "q": wanted}

    async def facts_of(self, user: str) -> list[tuple[Fact, str]]:
        """Returns all facts of a user with their states."""
        now = utc_now()
        return [(fact, fact.state(now)) for fact in (await self.store.facts.read(user)).facts]

    async def fact(self, query: Mapping[str, str]) -> Context:
        """Returns a fact with what it has replaced and what has replaced it, and the messages in which it was said."""
        user, fact_id = query.get("user", ""), query.get("fact", "")
        facts = {fact.id: (fact, state) for fact, state in await self.facts_of(user)}
        if fact_id not in facts:
            raise NotFoundError
        fact, state = facts[fact_id]
        history = [facts[one.id] for one in history_of((one for one, _ in facts.values()), fact_id, user)]
        rows = await self.store.readers.rows(fact.session_id, fact.message_ids) if fact.session_id else []
        said = {"messages": rows, "session": fact.session_id}
        return {**said, "user": user, "fact": fact, "state": state, "history": history}

    async def _session(self, query: Mapping[str, str]) -> Context:
        session_id = query.get("id", "")
        infos = await self.store.sessions(session_ids=[session_id])
        if not infos:
            raise NotFoundError(f"There is no session {session_id!r}. `sessions list` shows those that there are.")
        # A session without a user has facts of its own.
        users = infos[0].user_ids or (session_id,)
        user = query.get("user") if query.get("user") in users else users[0]
        limit = self.limits.get("condensed_token_limit", 50_000)
        record = CondensedMemoryBlock(store=self.store, token_limit=limit)
        # Not checked: any that is stored may be looked at.
        facts = RelevantFactsBlock(store=self.store).model_copy(update={"user_id": user})
        stats = await read_stats(self.store, record, facts, session_id)
        return {"id": session_id, "info": infos[0], "users": users, "user": user, "stats": stats}
