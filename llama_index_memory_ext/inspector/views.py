"""The contents of the inspector's pages, report and prompt preview, read from a store; nothing is written."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import groupby
from operator import attrgetter
from time import time_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import ChatMessage, TextBlock

from llama_index_memory_ext.fact import (
    ALL,
    AgentView,
    Fact,
    PastRetirement,
    SetAside,
    history_of,
    utc_now,
)
from llama_index_memory_ext.inspector.pages import NotFoundError, Pages
from llama_index_memory_ext.learning.extractor import progress_of
from llama_index_memory_ext.memory.condensed_memory import CondensedMemory
from llama_index_memory_ext.store.cache import StoreCache
from llama_index_memory_ext.store.facts import NOTHING_READ, FactChanges, Facts
from llama_index_memory_ext.store.tables import (
    ACTIVE,
    ARCHIVED,
    LAST_ID,
    LogRow,
    Readers,
    ReadPosition,
    Snapshot,
    display_name,
    namespace_of_session,
)
from llama_index_memory_ext.text.messages import body_of, in_zone, storable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from llama_index_memory_ext.facts.ranking import (
        ExplainedFact,
        Explanation,
        RankedFact,
    )
    from llama_index_memory_ext.record.window import Window
    from llama_index_memory_ext.store import MemoryStore, SessionInfo
    from llama_index_memory_ext.text.tokens import TokenCounter

PAGE_ROWS = 50
# No page has this number: the last page is the nearest.
_LAST_PAGE = 10**9
# The newest messages of a report; a browser needs too long for more.
MOST_MESSAGES = 2_000
# The most facts outside the prompt that a preview explains.
_MOST_EXPLAINED = 1_000

# The kind of the part that begins with this line.
_KINDS = {
    "<condensed_memory>": "record",
    "<relevant_facts>": "facts",
    "</memory>": "question",
}
_PROFILE_START = "<memory>\n<user_profile>\n"
# Without a profile, the part of the record begins with the line "<memory>".
_PART_START = re.compile(rf"^(?=(?:{'|'.join(_KINDS)})$)(?<!^<memory>\n)", re.MULTILINE)

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
        wanted = default
        if number.isdecimal() and len(number) < len(str(_LAST_PAGE)):
            wanted = int(number)
        nearest = min(max(wanted, 1), last)
        return cls(nearest, last, total, skipped=(nearest - 1) * PAGE_ROWS)

    def cut(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return the rows of the whole list that are on this page."""
        return rows[self.skipped : self.skipped + PAGE_ROWS]


@dataclass
class Views:
    """The contents of each page, from its query; ``limits`` are the settings of the memory, its agent too.

    A session page keeps its indexes for the next page of the same session and user.
    """

    store: MemoryStore
    limits: Mapping[str, Any]
    _previewer: PromptPreviewer | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def drop_deleted(self) -> None:
        """Drop the kept indexes if messages or facts of their session and user were deleted since."""
        if self._previewer:
            subject = self._previewer.subject
            if subject != await read_subject(
                self.store, subject.session_id, subject.user
            ):
                self._previewer = None

    async def sessions(self, query: Mapping[str, str]) -> Context:
        """Return the sessions whose name or users contain the text ``q``, the last used first."""
        part = query.get("q", "")
        user = query.get("user")
        sessions = [
            info
            for info in await self.store.sessions(user)
            if _is_in(part, info.session_id, *info.user_ids)
        ]
        page = ListPage.of(query.get("page", ""), len(sessions))
        page_sessions = page.cut(sessions)
        return {
            "sessions": page_sessions,
            "page": page,
            "namespaces": await read_namespaces(self.store, page_sessions),
            "q": part,
            "user": user,
        }

    async def users(self, query: Mapping[str, str]) -> Context:
        """Return the users by name, each with its sessions and facts and its last message."""
        facts = await self.store.facts.count_by_user()
        sessions: dict[str, list[SessionInfo]] = {name: [] for name in facts}
        infos = await self.store.sessions()
        namespaces = await read_namespaces(self.store, infos)
        for info in infos:
            for name in namespaces[info.session_id]:
                sessions.setdefault(name, []).append(info)
        part = query.get("q", "")
        names = [name for name in sessions if _is_in(part, display_name(name))]
        names.sort(key=display_name)
        page = ListPage.of(query.get("page", ""), len(names))
        rows = []
        for name in page.cut(names):
            of_user = sessions[name]
            rows.append((name, len(of_user), facts.get(name, 0), of_user[:1]))
        return {"users": rows, "page": page, "q": part}

    async def session(self, query: Mapping[str, str]) -> Context:
        """Return a session, and the prompt that the model would get for the question ``q``."""
        session = await self._session(query)
        question = query.get("q", "")
        async with self._lock:
            # Messages or facts may have been deleted while the page waited.
            subject = await read_subject(self.store, session["id"], session["user"])
            previewer = self._previewer
            # A failure may leave an index half done.
            self._previewer = None
            if previewer is None or previewer.subject != subject:
                previewer = PromptPreviewer(self.store, subject, self.limits)
            preview = await previewer.prompt(question)
            self._previewer = previewer
        learning = await self._learning(session["id"], preview)
        return {**session, **learning, "preview": preview, "q": question}

    async def messages(self, query: Mapping[str, str]) -> Context:
        """Return the messages of a session, oldest first, by default of the last page."""
        session = await self._session(query)
        total = session["info"].messages
        page = ListPage.of(query.get("page", ""), total, default=_LAST_PAGE)
        rows = await self.store.readers.find(
            session["id"], limit=PAGE_ROWS, offset=page.skipped
        )
        return {**session, "page": page, "messages": rows}

    async def facts(self, query: Mapping[str, str]) -> Context:
        """Return the facts of a user, the newest first; with ``state``, only the facts in this state."""
        user = query.get("user", "")
        state = query.get("state", "")
        part = query.get("q", "")
        facts = await read_facts(self.store, user, self.limits)
        matching_facts = []
        for entry in facts:
            text = f"{entry.fact.content} {entry.fact.category}"
            if state in ("", entry.state) and _is_in(part, text):
                matching_facts.append(entry)
        matching_facts.sort(key=lambda entry: entry.fact.created_at, reverse=True)
        page = ListPage.of(query.get("page", ""), len(matching_facts))
        memory = memory_on(self.store, "", self.limits)
        facts_block = memory.facts_block.belong_to(user)
        return {
            "unread": await facts_block.count_unread(""),
            "user": user,
            "state": state,
            "q": part,
            "states": Counter(entry.state for entry in facts),
            "sessions": len(await self.store.sessions(user)),
            "facts": page.cut(matching_facts),
            "page": page,
        }

    async def fact(self, query: Mapping[str, str]) -> Context:
        """Return a fact with the facts before and after it, and with the messages that it was learned from."""
        user = query.get("user", "")
        fact_id = query.get("fact", "")
        entries = {
            entry.fact.id: entry
            for entry in await read_facts(self.store, user, self.limits)
        }
        if fact_id not in entries:
            raise NotFoundError
        fact, state = entries[fact_id]
        all_facts = [entry.fact for entry in entries.values()]
        history = history_of(all_facts, fact_id, user)
        messages = []
        if fact.session_id:
            messages = await self.store.readers.rows(fact.session_id, fact.message_ids)
        return {
            "user": user,
            "fact": fact,
            "state": state,
            "messages": messages,
            "history": [entries[past.id] for past in history],
            "timeline": timeline_of(fact),
        }

    async def _session(self, query: Mapping[str, str]) -> Context:
        session_id = query.get("id", "")
        infos = await self.store.sessions(session_ids=[session_id])
        if not infos:
            raise NotFoundError(
                f"There is no session {session_id!r}. `sessions list` shows the sessions."
            )
        namespaces = await read_namespaces(self.store, infos)
        # Without any user, the session itself owns its facts.
        users = namespaces[session_id] or (namespace_of_session(session_id),)
        user = query.get("user", "")
        if user not in users:
            user = users[0]
        return {"id": session_id, "info": infos[0], "users": users, "user": user}

    async def _learning(self, session_id: str, preview: PromptPreview) -> Context:
        """Return the numbers of facts that hold, and the progress and the calls of each reader for facts."""
        facts_block = preview.memory.facts_block
        current_facts = [
            fact for fact, state in preview.all_facts if state == "present"
        ]
        readers = self.store.readers
        unread = {}
        set_aside: list[SetAside] = []
        days = []
        rejected: list[tuple[str | int, ...]] = []
        for reader in await readers.names(session_id):
            if not reader.startswith(f"{facts_block.name} "):
                continue
            _, state = await readers.state(session_id, reader)
            progress = progress_of(state)
            # The reader is shown with the user's name instead of the namespace.
            block, of, namespace = reader.partition(" of ")
            name = f"{block}{of}{display_name(namespace)}"
            unread[name] = await readers.count_messages(session_id, reader=reader)
            set_aside += progress.set_aside
            days += [(day, *counts) for day, counts in progress.days.items()]
            rejected += map(tuple, progress.rejected)
        return {
            "active": await readers.count_messages(session_id, status=ACTIVE),
            "current_facts": len(current_facts),
            "agent_facts": sum(
                facts_block.view.sees(fact.agent_id) for fact in current_facts
            ),
            "unread": unread,
            "set_aside": set_aside,
            "days": sorted(days),
            "rejected": sorted(rejected),
        }


def _is_in(part: str, *texts: str) -> bool:
    """Return whether one of the texts contains the part, in upper or lower case."""
    return any(part.casefold() in text.casefold() for text in texts)


async def read_namespaces(
    store: MemoryStore, infos: Sequence[SessionInfo]
) -> dict[str, tuple[str, ...]]:
    """Return the users of each session; for an anonymous session its namespace, () if only the host wrote to it."""
    namespaces = {info.session_id: info.user_ids for info in infos}
    for namespace in await store.owners.anonymous_namespaces([*namespaces]):
        namespaces[display_name(namespace)] = (namespace,)
    return namespaces


def timeline_of(fact: Fact) -> list[tuple[datetime, str]]:
    """Return the times and the events of a fact's life, oldest first."""
    learned = "learned"
    if fact.quote:
        learned = f"learned: {fact.quote}"
    events = [(fact.created_at, learned)]
    events += [(change.at, change.what) for change in fact.past_changes]
    for past in fact.past_retirements:
        events.append((past.retired_at, _retirement(past)))
        events.append((past.restored_at, "restored"))
    if fact.retired_at:
        events.append((fact.retired_at, _retirement(fact)))
    if fact.words_deleted_at:
        events.append((fact.words_deleted_at, "its words were deleted"))
    return sorted(events)


_ENDINGS = {
    None: "retired",
    "change": "no longer true",
    "correction": "never true",
    "request": "forgotten for the user",
    "hand": "removed by hand",
    "limit": "retired",
    "rejected": "rejected",
}
# The reasons that ``FactBook`` gives; they say no more than the ending.
_OWN_REASONS = (None, "retired by hand", "rejected by hand")


def _retirement(retired: Fact | PastRetirement) -> str:
    """Return how a fact has ended, and why."""
    ending = _ENDINGS[retired.retired_by]
    if retired.retired_reason in _OWN_REASONS:
        return ending
    return f"{ending}: {retired.retired_reason}"


async def report(
    store: MemoryStore, session_id: str, question: str, limits: Mapping[str, Any]
) -> str:
    """Return a session as a single page of HTML; raise a NotFoundError if there is no such session."""
    session = await Views(store, limits).session({"id": session_id, "q": question})
    skipped = max(session["info"].messages - MOST_MESSAGES, 0)
    messages = await store.readers.find(session_id, offset=skipped)
    contents = {fact.id: fact.content for fact, _ in session["preview"].all_facts}
    zone = limits.get("time_zone", timezone.utc)
    return Pages(store.address, zone=zone).render(
        "whole", **session, contents=contents, messages=messages, made_at=utc_now()
    )


class Part(NamedTuple):
    """A part of the prompt.

    ``kind``: "profile", "record", "facts", "question", or "turn" for a further message
    of the turn.
    ``role``: the role of the message.
    ``text``, ``tokens``: the text, and its tokens.
    """

    kind: str
    role: str
    text: str
    tokens: int


class FactWithState(NamedTuple):
    """A fact, and its state now."""

    fact: Fact
    state: str


@dataclass(frozen=True)
class PromptPreview:
    """The prompt that the model would get for a question.

    ``question``: the question, "" before the first.
    ``window``: the record before the question.
    ``left``: the number of messages that had left the record before the question.
    ``explanation``: why each fact is in the prompt, or not.
    ``facts``: the explained facts; facts of the prompt come first, in its order.
    ``runs``: the parts in the order of the prompt, grouped by kind and role.
    ``tokens``: tokens by kind, in the order of the prompt.
    ``all_facts``: all facts of the user.
    ``memory``: the memory with the limits.
    """

    question: str
    window: Window | None
    left: int
    explanation: Explanation
    facts: list[ExplainedFact]
    runs: list[list[Part]]
    tokens: Counter[str]
    all_facts: list[FactWithState]
    memory: CondensedMemory


def memory_on(
    store: MemoryStore, session_id: str, limits: Mapping[str, Any]
) -> CondensedMemory:
    """Return a memory that asks no model; raise a LimitError for limits that do not fit together."""
    options: Any = {"extract_facts": False, **limits}
    memory = CondensedMemory.from_defaults("preview", chat_store=store, **options)
    # The host may have stored an id that ``from_defaults`` does not accept.
    memory.session_id = session_id
    return memory


async def read_facts(
    store: MemoryStore, user: str, limits: Mapping[str, Any]
) -> list[FactWithState]:
    """Return all facts of a user with their states now; the time zone of the limits tells today."""
    now = in_zone(utc_now(), limits.get("time_zone"))
    facts = (await store.facts.read(user, view=ALL)).facts
    return [FactWithState(fact, fact.state(now)) for fact in facts]


class PreviewReaders(Readers):
    """Reads a session as if a question were put; a cursor moves in this object, and not in the store.

    ``question``: the row of the question. It ends the turn before it, which is then in
    the log of each snapshot.
    """

    def __init__(self, database: Any) -> None:
        super().__init__(database)
        self.question: LogRow | None = None
        self._positions: dict[str, int] = {}

    async def read_snapshot(self, key: str, reader: str, *request: Any) -> Snapshot:
        """Return the state of the session with the question. The session is open to the inspector."""
        snapshot = await super().read_snapshot(key, reader, *request)
        position = self._positions.get(reader, snapshot.position)
        snapshot = snapshot._replace(position=position, is_closed=False)
        if self.question:
            log = snapshot.log + snapshot.active
            snapshot = snapshot._replace(active=(self.question,), log=log)
        return snapshot

    async def move(self, key: str, reader: str, *, new: int, **_: Any) -> bool:
        """Move a cursor in this object; True."""
        self._positions[reader] = new
        return True


class PreviewFacts(Facts):
    """Reads the facts of a user, and remembers the facts of all agents.

    ``by_id``: all facts that were read and not deleted since, by their ids.
    """

    def __init__(self, database: Any, readers: Readers) -> None:
        super().__init__(database, readers)
        self.by_id: dict[str, Fact] = {}

    async def read(
        self,
        namespace: str,
        seen: FactChanges = NOTHING_READ,
        *,
        view: AgentView = ALL,
    ) -> FactChanges:
        """Return the facts of a view that changed since ``seen``, as ``Facts``."""
        changes = await super().read(namespace, seen, view=ALL)
        if not changes.fresh:
            self.by_id = {}
        self.by_id |= {fact.id: fact for fact in changes.facts}
        visible = [fact for fact in changes.facts if view.sees(fact.agent_id)]
        return changes._replace(facts=visible)


class Subject(NamedTuple):
    """A session and a user, with their epochs, which change when messages or facts are deleted."""

    session_id: str
    user: str
    epoch: int
    facts_epoch: int


async def read_subject(store: MemoryStore, session_id: str, user: str) -> Subject:
    """Return a session and a user with their epochs now."""
    page = await store.readers.page(session_id, "", ReadPosition(), limit=1, watch=user)
    return Subject(session_id, user, page.epoch, page.facts.epoch)


class PromptPreviewer:
    """Makes the prompts of a session for a user, and keeps the indexes of one prompt for the next."""

    def __init__(
        self, store: MemoryStore, subject: Subject, limits: Mapping[str, Any]
    ) -> None:
        self.subject = subject
        self._store = store
        self._facts = PreviewFacts(store.database, store.readers)
        # A preview stores nothing, so it must not share the cache of memories that do.
        parts = {"facts": self._facts, "cache": StoreCache()}
        copy = store.model_copy(update=parts)
        self._memory = memory_on(copy, subject.session_id, limits)
        self._memory.facts_block.belong_to(subject.user)

    async def prompt(self, question: str) -> PromptPreview:
        """Return the prompt for this question of the user; for the last question, if ``question`` is ""."""
        memory = self._memory
        # A new object for each prompt: other processes may have moved the cursors since.
        readers = PreviewReaders(self._store.database)
        memory.sql_store.readers = readers
        # Reading the record makes older messages leave it.
        prompt = await memory.aget()
        # The jobs index all older messages, and take the time of the next page for it.
        await self._store.jobs.stop()
        window = memory.condensed_block.window(memory.session_id)
        left = await readers.count_messages(
            memory.session_id,
            status=ARCHIVED,
            last=window.seen.position if window else 0,
        )
        if question:
            data = storable(ChatMessage(question))
            readers.question = LogRow(LAST_ID, "user", data, time_ns(), ACTIVE)
            prompt = await self._ask()
        parts: list[Part] = []
        for message in prompt:
            parts += _parts(message, memory.tokenizer_fn)
        tokens = Counter[str]()
        for part in parts:
            tokens[part.kind] += part.tokens
        facts_block = memory.facts_block
        now = facts_block.now()
        latest = facts_block.last_question
        # After the prompt, so that the explanation knows the record in it.
        explanation = await facts_block.aexplain(
            latest.text, context=latest.context, most=_MOST_EXPLAINED
        )
        return PromptPreview(
            question=latest.text,
            window=window,
            left=left,
            explanation=explanation,
            facts=_sort_as_in_prompt(explanation.facts, memory.last_used().facts),
            runs=[list(run) for _, run in groupby(parts, attrgetter("kind", "role"))],
            tokens=tokens,
            all_facts=[
                FactWithState(fact, fact.state(now))
                for fact in self._facts.by_id.values()
            ],
            memory=memory,
        )

    async def _ask(self) -> list[ChatMessage]:
        """Return the prompt for the question.

        The turn before the question may still change, so the index has the turn for this
        prompt alone.
        """
        memory = self._memory
        index = memory.condensed_block.index(memory.session_id)
        if index is None:
            prompt = await memory.aget()
            # The first prompt from which messages have left begins the index.
            index = memory.condensed_block.index(memory.session_id)
            if index is None:
                return prompt
        turn = await self._store.readers.find(memory.session_id, [ACTIVE])
        with index.extended(turn):
            prompt = await memory.aget()
            await self._store.jobs.stop()
        return prompt


def _sort_as_in_prompt(
    facts: Iterable[ExplainedFact], used_facts: Iterable[RankedFact]
) -> list[ExplainedFact]:
    """Return the facts of the prompt first, in its order, and then the further facts."""
    places = {used.fact.id: i for i, used in enumerate(used_facts)}
    return sorted(facts, key=lambda entry: places.get(entry.fact.id, len(places)))


def _parts(message: ChatMessage, counter: TokenCounter) -> Iterator[Part]:
    """Yield the parts of a message: of the memory's message several, of any other message a single one."""
    role = message.role.value
    texts = [block.text for block in message.blocks if isinstance(block, TextBlock)]
    if not texts or not texts[0].startswith("<memory>\n"):
        kind = "question" if role == "user" else "turn"
        text = body_of(message)
        yield Part(kind, role, text, counter.count(text))
        return
    kind = "profile" if texts[0].startswith(_PROFILE_START) else "record"
    for block_text in texts:
        for text in filter(None, _PART_START.split(block_text)):
            # The question is last; a line of it may look like the start of a part.
            if kind != "question":
                kind = _KINDS.get(text.partition("\n")[0], kind)
            yield Part(kind, role, text, counter.count(text))
