"""Reads from a store what a page shows, and works out what the model would be shown. Nothing is written."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import ChatMessage, TextBlock

from llama_index_memory_ext.fact import ALL, utc_now
from llama_index_memory_ext.facts.extraction import progress_of
from llama_index_memory_ext.facts.history import history_of
from llama_index_memory_ext.inspector.actions import tidying
from llama_index_memory_ext.inspector.pages import NotFoundError, Pages
from llama_index_memory_ext.memory.condensed_memory import CondensedMemory
from llama_index_memory_ext.store import MemoryStore
from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED, anonymous, name_of
from llama_index_memory_ext.text.messages import as_taken, body_of, question_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.store import SessionInfo
    from llama_index_memory_ext.text.tokens import TokenCounter

PAGE_ROWS = 50
# More than there can be.
_LAST_PAGE = 10**9

Context = dict[str, Any]


def page_of(asked: str, total: int, *, otherwise: int = 1) -> dict[str, int]:
    """Return the page of a list that is asked for, or else the one ``otherwise``, or the nearest that there is.

    Its number, from 1, how many pages there are, how long the whole list is, and how
    many rows come before the page.

    >>> page_of("7", 120)
    {'number': 3, 'last': 3, 'total': 120, 'skipped': 100}
    """
    last = max(1, -(-total // PAGE_ROWS))
    if asked.isdecimal() and len(asked) < len(str(_LAST_PAGE)):
        number = int(asked)
    else:
        number = otherwise
    number = min(max(number, 1), last)
    return {
        "number": number,
        "last": last,
        "total": total,
        "skipped": (number - 1) * PAGE_ROWS,
    }


@dataclass(frozen=True, slots=True)
class Views:
    """What each page shows, from its query; ``limits`` are the settings of the memory looked at, its agent too."""

    store: MemoryStore
    limits: Mapping[str, Any]

    async def sessions(self, query: Mapping[str, str]) -> Context:
        """Return the sessions whose name, or a user's, holds the text ``q``; the one that was used last is first."""
        wanted = query.get("q", "").casefold()
        user = query.get("user")
        found = [
            info
            for info in await self.store.sessions(user)
            if any(
                wanted in name.casefold() for name in (info.session_id, *info.user_ids)
            )
        ]
        page = page_of(query.get("page", ""), len(found))
        shown = found[page["skipped"] :][:PAGE_ROWS]
        namespaces = await namespaces_of(self.store, shown)
        asked = {"q": query.get("q", ""), "user": user}
        return {"sessions": shown, "page": page, "namespaces": namespaces, **asked}

    async def users(self, query: Mapping[str, str]) -> Context:
        """Return the users by name: how many sessions and facts each has, and the last message."""
        facts = await self.store.users.facts_of_each()
        sessions: dict[str, list[SessionInfo]] = {name: [] for name in facts}
        infos = await self.store.sessions()
        namespaces = await namespaces_of(self.store, infos)
        for info in infos:
            for name in namespaces[info.session_id]:
                sessions.setdefault(name, []).append(info)
        wanted = query.get("q", "").casefold()
        names = sorted(
            (name for name in sessions if wanted in name_of(name).casefold()),
            key=name_of,
        )
        page = page_of(query.get("page", ""), len(names))
        shown = names[page["skipped"] :][:PAGE_ROWS]
        rows = [
            (name, len(sessions[name]), facts.get(name, 0), sessions[name][:1])
            for name in shown
        ]
        return {"users": rows, "page": page, "q": query.get("q", "")}

    async def session(self, query: Mapping[str, str]) -> Context:
        """Return what there is of a session, and what the model would be shown for the question ``q``."""
        found = await self._session(query)
        shown = await show(
            self.store, found["id"], found["user"], query.get("q", ""), self.limits
        )
        return {
            **found,
            **await self._numbers(found["id"], shown),
            "shown": shown,
            "q": query.get("q", ""),
        }

    async def messages(self, query: Mapping[str, str]) -> Context:
        """Return the messages of a session, oldest first, by default those of the last page."""
        found = await self._session(query)
        page = page_of(
            query.get("page", ""), found["info"].messages, otherwise=_LAST_PAGE
        )
        rows = await self.store.readers.find(
            found["id"], [ARCHIVED, ACTIVE], limit=PAGE_ROWS, offset=page["skipped"]
        )
        return {**found, "page": page, "messages": rows}

    async def facts(self, query: Mapping[str, str]) -> Context:
        """Return the facts of a user, the newest first; with ``state``, only those that are in it."""
        user, state, wanted = (query.get(name, "") for name in ("user", "state", "q"))
        facts = await facts_of(self.store, user)
        chosen = [
            (fact, one)
            for fact, one in sorted(
                facts, key=lambda pair: pair[0].created_at, reverse=True
            )
            if state in ("", one)
            and wanted.casefold() in f"{fact.content} {fact.category}".casefold()
        ]
        page = page_of(query.get("page", ""), len(chosen))
        asked = {"user": user, "state": state, "q": wanted}
        counts = {
            "states": Counter(one for _, one in facts),
            "sessions": len(await self.store.sessions(user)),
        }
        return {
            **asked,
            **counts,
            "facts": chosen[page["skipped"] :][:PAGE_ROWS],
            "page": page,
        }

    async def fact(self, query: Mapping[str, str]) -> Context:
        """Return a fact with what it has replaced and what has replaced it, and the messages in which it was said."""
        user = query.get("user", "")
        fact_id = query.get("fact", "")
        facts = {
            fact.id: (fact, state) for fact, state in await facts_of(self.store, user)
        }
        if fact_id not in facts:
            raise NotFoundError
        fact, state = facts[fact_id]
        history = [
            facts[one.id]
            for one in history_of((one for one, _ in facts.values()), fact_id, user)
        ]
        if fact.session_id:
            rows = await self.store.readers.rows(fact.session_id, fact.message_ids)
        else:
            rows = []
        shown = {"user": user, "fact": fact, "state": state, "messages": rows}
        return {**shown, "history": history, "timeline": timeline_of(fact)}

    async def tidy(self, query: Mapping[str, str]) -> Context:
        """Return which facts of a user need not be kept, as ``aconsolidate`` would ask a model about them."""
        user = query.get("user", "")
        return {"user": user, "proposals": await tidying(self.store, user)}

    async def _session(self, query: Mapping[str, str]) -> Context:
        session_id = query.get("id", "")
        infos = await self.store.sessions(session_ids=[session_id])
        if not infos:
            raise NotFoundError(
                f"There is no session {session_id!r}. `sessions list` shows those that there are."
            )
        # A session without a user has facts of its own.
        users = (await namespaces_of(self.store, infos))[session_id] or (
            anonymous(session_id),
        )
        asked = query.get("user", "")
        user = asked if asked in users else users[0]
        return {"id": session_id, "info": infos[0], "users": users, "user": user}

    async def _numbers(self, session_id: str, shown: Context) -> Context:
        """Return how many facts there are, and what each reader for facts has not read yet, and has spent."""
        progress = [
            progress_of((await self.store.readers.state(session_id, one))[1])
            for one in shown["readers"]
        ]
        return {
            "known": sum(state == "present" for _, state in shown["known"]),
            "unread": {
                _shown(one): await self.store.users.count(session_id, reader=one)
                for one in shown["readers"]
            },
            "set_aside": [turn for one in progress for turn in one.set_aside],
            "days": sorted(
                (day, *counts) for one in progress for day, counts in one.days.items()
            ),
            "rejected": sorted(
                tuple(line) for one in progress for line in one.rejected
            ),
        }


def _shown(reader: str) -> str:
    """Return the name of a reader with the user as people are shown it."""
    block, of, namespace = reader.partition(" of ")
    return f"{block}{of}{name_of(namespace)}"


async def namespaces_of(
    store: MemoryStore, infos: Sequence[SessionInfo]
) -> dict[str, tuple[str, ...]]:
    """Return by session the users, or the namespace of a session without one; () where only the host has written."""
    found = {info.session_id: info.user_ids for info in infos}
    return found | {
        name_of(one): (one,) for one in await store.users.own_users([*found])
    }


async def facts_of(store: MemoryStore, user: str) -> list[tuple[Fact, str]]:
    """Return all facts of a user with their states."""
    now = utc_now()
    return [
        (fact, fact.state(now))
        for fact in (await store.facts.read(user, view=ALL)).facts
    ]


def timeline_of(fact: Fact) -> list[tuple[datetime, str]]:
    """Return what happened to a fact, and when, oldest first."""
    events = [(fact.created_at, f"learned: {fact.quote}" if fact.quote else "learned")]
    for past in fact.past_retirements:
        events += [
            (past.retired_at, f"retired: {past.retired_reason or 'no reason'}"),
            (past.restored_at, "restored"),
        ]
    if fact.retired_at:
        what = f"retired by {fact.retired_by or 'hand'}: {fact.retired_reason or 'no reason'}"
        events.append((fact.retired_at, what))
    if fact.words_deleted_at:
        events.append((fact.words_deleted_at, "its words were deleted"))
    return sorted(events)


# The newest messages; a browser shows no more at once in a reasonable time.
MOST_MESSAGES = 2_000


async def report(
    store: MemoryStore, session_id: str, question: str, limits: Mapping[str, Any]
) -> str:
    """Return the page as HTML; a NotFoundError if there is no such session."""
    found = await Views(store, limits).session({"id": session_id, "q": question})
    skipped = max(found["info"].messages - MOST_MESSAGES, 0)
    messages = await store.readers.find(session_id, [ARCHIVED, ACTIVE], offset=skipped)
    contents = {fact.id: fact.content for fact, _ in found["shown"]["known"]}
    return Pages(store.address).render(
        "whole", **found, contents=contents, messages=messages, made_at=utc_now()
    )


# A session needs a name in the copy.
_UNNAMED = "(no name)"
_SECTIONS = {"<relevant_facts>": "facts", "</memory>": "question"}
_SECTION = re.compile(rf"^(?=(?:{'|'.join(_SECTIONS)})$)", re.MULTILINE)


class Part(NamedTuple):
    """A part of a prompt: of the record, the facts, the question, or a further message of the turn."""

    kind: str
    role: str
    text: str
    tokens: int


def memory_on(
    store: MemoryStore, session_id: str, user_id: str, limits: Mapping[str, Any]
) -> CondensedMemory:
    """Return a memory that asks no model; a LimitError for limits that do not fit into each other."""
    # Ids that no memory takes may be stored.
    name = session_id.strip() or _UNNAMED
    if user_id == anonymous(session_id):
        user = None
    else:
        user = user_id.strip() or _UNNAMED
    options: Any = {"extract_facts": False, **limits}
    return CondensedMemory.from_defaults(
        name, user_id=user, chat_store=store, **options
    )


async def show(
    store: MemoryStore,
    session_id: str,
    user_id: str,
    question: str,
    limits: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what the model would be shown if the user asked this question now; "": at the last question.

    The ``question``, the ``explanation`` of the facts and the ``summary``; the ``runs``
    of parts of one kind and role, and the ``tokens`` by kind, in the order of the
    prompt; and the ``limits`` that are used. Besides, the ``stats``, all ``known``
    facts of the user with their states, and the names of the ``readers`` for facts.
    """
    blank = memory_on(MemoryStore(), session_id, user_id, limits)
    name = blank.session_id
    record = blank.condensed_block
    facts = blank.facts_block
    position, state = await store.readers.state(session_id, record.name)
    rows = await store.readers.find(session_id, [ARCHIVED, ACTIVE])
    kept = ("id", "role", "data", "timestamp", "status", "user_id")
    known = await facts_of(store, user_id)
    # What a prompt needs of the session and of its user's facts, in a store of its own.
    copy = MemoryStore(
        db_data=[
            {"key": name, **{field: getattr(row, field) for field in kept}}
            for row in rows
        ]
    )
    async with aclosing(copy):
        if position:
            await copy.readers.move(
                name, record.name, epoch=0, old=0, new=position, state=state
            )
        memory = memory_on(copy, session_id, user_id, limits)
        await copy.facts.write(
            memory.facts.namespace, [fact for fact, _ in known], view=ALL
        )
        stats = await memory.astats()
        said = as_taken(await memory.aget_all()) + (
            [ChatMessage(question)] if question else []
        )
        asked, context = question_in(said, [], facts.context_turns)
        explanation = await memory.facts_block.aexplain(asked, context=context)
        if question:
            await memory.aput(ChatMessage(question))
        parts = [
            part
            for message in await memory.aget()
            for part in _parts(message, memory.tokenizer_fn)
        ]
        summary = await memory.condensed_block.asummary(name)
        places = {
            one.fact.id: place for place, one in enumerate(memory.last_used().facts)
        }
        in_order = sorted(
            explanation.facts, key=lambda one: places.get(one.fact.id, len(places))
        )
    tokens = Counter[str]()
    for part in parts:
        tokens[part.kind] += part.tokens
    return {
        "question": asked,
        "explanation": explanation,
        "facts": in_order,
        "summary": summary,
        "runs": [
            list(run) for _, run in groupby(parts, lambda part: (part.kind, part.role))
        ],
        "tokens": tokens,
        "known": known,
        "stats": stats,
        "readers": [
            one
            for one in await store.readers.names(session_id)
            if one.startswith(f"{facts.name} ")
        ],
        "limits": {
            "token_limit": blank.token_limit,
            "condensed_token_limit": record.token_limit,
            "facts_token_limit": facts.token_limit,
            "recall_token_limit": record.recall_limit,
        },
    }


def _parts(message: ChatMessage, tokens: TokenCounter) -> Iterator[Part]:
    """Yield the parts of a message: the record in its blocks, the facts, and the question; another one is one part."""
    role = message.role.value
    blocks = [block.text for block in message.blocks if isinstance(block, TextBlock)]
    if not blocks or not blocks[0].startswith("<memory>\n"):
        text = body_of(message)
        yield Part(
            "question" if role == "user" else "turn", role, text, tokens.count(text)
        )
        return
    kind = "record"
    for text in (
        section for block in blocks for section in _SECTION.split(block) if section
    ):
        if kind != "question":
            kind = _SECTIONS.get(text.partition("\n")[0], kind)
        yield Part(kind, role, text, tokens.count(text))
