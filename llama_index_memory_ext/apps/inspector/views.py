"""The contents of the inspector's pages, read from a store; nothing is written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext import (
    FactBook,
    FactError,
    body_of,
    display_name,
    preview_prompt,
)
from llama_index_memory_ext.apps.inspector.pages import NotFoundError

if TYPE_CHECKING:
    from collections import defaultdict
    from collections.abc import Mapping, Sequence
    from datetime import tzinfo

    from llama_index_memory_ext import MemoryStore

PAGE_ROWS = 50
# No page has this number: the last page is the nearest.
_LAST_PAGE = 10**9
_FACT_FILTERS = ("state", "category", "tag", "day")
# The values that a template shows, by name.
Context = dict[str, Any]


@dataclass(frozen=True)
class ListPage:
    """A page of a list.

    ``number``: from 1.
    ``last``: the number of the last page.
    ``total``: the rows of the whole list.
    ``skipped``: the rows before this page.
    """

    number: int
    last: int
    total: int
    skipped: int

    @classmethod
    def of(cls, number: str, total: int, *, default: int = 1) -> ListPage:
        """Return the page with this number, or the nearest; ``default`` replaces a text that is no number.

        >>> ListPage.of("7", 120)
        ListPage(number=3, last=3, total=120, skipped=100)
        """
        last = max(1, -(-total // PAGE_ROWS))
        # Python refuses to read very long numbers.
        wanted = int(number[:9]) if number.isdecimal() else default
        nearest = min(max(wanted, 1), last)
        return cls(nearest, last, total, skipped=(nearest - 1) * PAGE_ROWS)

    def cut(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return the rows of the whole list that are on this page."""
        return rows[self.skipped : self.skipped + PAGE_ROWS]


@dataclass
class Views:
    """The contents of each page, from its query; ``limits`` are the settings of the memory, its agent too.

    A query has "" for each name that the address leaves out.
    """

    store: MemoryStore
    limits: Mapping[str, Any]

    @property
    def zone(self) -> tzinfo:
        """The time zone of the memory's settings; UTC without one."""
        zone: tzinfo = self.limits.get("time_zone", timezone.utc)
        return zone

    async def sessions(self, query: defaultdict[str, str]) -> Context:
        """Return the sessions whose name or users contain the text ``q``, most recent first."""
        part = query["q"]
        user = query.get("user")
        sessions = [
            info
            for info in await self.store.sessions(user)
            if _is_in(part, info.session_id, *info.user_ids)
        ]
        page = ListPage.of(query["page"], len(sessions))
        return {"sessions": page.cut(sessions), "page": page, "q": part, "user": user}

    async def users(self, query: defaultdict[str, str]) -> Context:
        """Return the users by name, each with its sessions and facts."""
        facts = await self.store.count_facts()
        sessions = Counter[str]()
        for info in await self.store.sessions():
            sessions.update(info.namespaces)
        part = query["q"]
        names = [
            name for name in {**facts, **sessions} if _is_in(part, display_name(name))
        ]
        names.sort(key=display_name)
        page = ListPage.of(query["page"], len(names))
        rows = [(name, sessions[name], facts.get(name, 0)) for name in page.cut(names)]
        return {"users": rows, "page": page, "q": part}

    async def session(self, query: defaultdict[str, str]) -> Context:
        """Return a session, and the prompt that the model would get for the question ``q``."""
        session = await self._session(query)
        question = query["q"]
        preview = await preview_prompt(
            self.store, session["id"], session["user"], self.limits, question
        )
        return {**session, "preview": preview, "stats": preview.stats, "q": question}

    async def messages(self, query: defaultdict[str, str]) -> Context:
        """Return the messages of a session, oldest first; the last page by default; ``q`` searches them."""
        session = await self._session(query)
        number = query["page"]
        part = query["q"]
        if part:
            stored_rows = await self.store.rows(session["id"])
            matching_rows = [
                row for row in stored_rows if _is_in(part, body_of(row.message))
            ]
            page = ListPage.of(number, len(matching_rows), default=_LAST_PAGE)
            rows = page.cut(matching_rows)
        else:
            total = session["info"].messages
            page = ListPage.of(number, total, default=_LAST_PAGE)
            rows = await self.store.rows(
                session["id"], limit=PAGE_ROWS, offset=page.skipped
            )
        return {**session, "page": page, "messages": rows, "q": part}

    async def facts(self, query: defaultdict[str, str]) -> Context:
        """Return the facts of a user, the newest first; state, category, tag and day leave out other facts."""
        user = query["user"]
        part = query["q"]
        chosen = {name: query[name] for name in _FACT_FILTERS if query.get(name)}
        stored = await FactBook(self.store, user, scope="all").alist(state="all")
        now = datetime.now(self.zone)
        counts = {name: Counter[str]() for name in _FACT_FILTERS}
        matching_facts = []
        for fact in stored:
            values: dict[str, Sequence[str]] = {
                "state": [fact.state(now)],
                "category": [fact.category],
                "tag": fact.tags,
                "day": [f"{fact.created_at.astimezone(self.zone):%Y-%m-%d}"],
            }
            for name in _FACT_FILTERS:
                counts[name].update(values[name])
            is_chosen = all(value in values[name] for name, value in chosen.items())
            if is_chosen and _is_in(part, f"{fact.content} {fact.category}"):
                matching_facts.append(fact)
        page = ListPage.of(query["page"], len(matching_facts))
        return {
            "user": user,
            "chosen": chosen,
            "q": part,
            "total": len(stored),
            "counts": counts,
            "sessions": len(await self.store.sessions(user)),
            "facts": page.cut(matching_facts),
            "page": page,
        }

    async def fact(self, query: defaultdict[str, str]) -> Context:
        """Return a fact with the facts before and after it, and with the messages that it was learned from."""
        user = query["user"]
        fact_id = query["fact"]
        book = FactBook(self.store, user, scope="all")
        try:
            history = await book.ahistory(fact_id)
        except FactError:
            raise NotFoundError from None
        fact = next(fact for fact in history if fact.id == fact_id)
        messages = []
        if fact.session_id:
            messages = await self.store.rows(fact.session_id, ids=fact.message_ids)
        return {
            "user": user,
            "fact": fact,
            "messages": messages,
            "history": history,
        }

    async def _session(self, query: defaultdict[str, str]) -> Context:
        session_id = query["id"]
        infos = await self.store.sessions(session_ids=[session_id])
        if not infos:
            raise NotFoundError
        # Without any user, the session itself owns its facts.
        users = infos[0].namespaces or (infos[0].own_namespace,)
        user = query["user"]
        if user not in users:
            user = users[0]
        ends = await self.store.rows(session_id, limit=1)
        ends += await self.store.rows(session_id, offset=infos[0].messages - 1)
        return {
            "id": session_id,
            "info": infos[0],
            "users": users,
            "user": user,
            "times": [row.said_at(self.zone) for row in ends] or [None],
        }


def _is_in(part: str, *texts: str) -> bool:
    """Return whether one of the texts contains the part, in upper or lower case."""
    return any(part.casefold() in text.casefold() for text in texts)
