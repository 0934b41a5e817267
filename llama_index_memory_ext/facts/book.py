"""Lists, finds and changes the facts of a user."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta, tzinfo
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from llama_index_memory_ext.agent_view import AgentView, Scope, view_of
from llama_index_memory_ext.background.loop import in_sync
from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.fact import (
    Fact,
    RetiredBy,
    approve,
    duplicate_key,
    edit,
    restore,
    retire,
    utc_now,
)
from llama_index_memory_ext.facts.filters import FactFilter, moment_for
from llama_index_memory_ext.facts.history import history_of
from llama_index_memory_ext.facts.ranking import (
    RankedFact,
    ShowableFacts,
    Weights,
    index_of,
)
from llama_index_memory_ext.settings import (
    build_checked,
    check_count,
    check_text,
    unpacked,
)
from llama_index_memory_ext.store.links import store_imported
from llama_index_memory_ext.store.tables import display_name
from llama_index_memory_ext.text.messages import in_zone, now_in
from llama_index_memory_ext.words import visible

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from llama_index_memory_ext.store import MemoryStore

_LONGEST_TTL = timedelta(days=365_000)
_SCHEMA = "llama_index_memory_ext.fact"
_SCHEMA_VERSION = 1


class FactBook:
    """The facts of one namespace. Each method has a synchronous form without the ``a``: ``list``, ..., ``import_``.

    The methods ignore facts of agents that the book does not see.

    Args:
        store: The store of the facts.
        namespace: The owner of the facts.
        agent_id: The agent that may have separate facts; None: all facts are shared.
        scope: Which facts are seen, as for ``RelevantFactsBlock``; "all": the shared
            facts, and the facts of all agents.
        categories: The categories that a fact may have; None: any.
        search: Finds facts for a question, best first; None: by their words.
        learn: Is called before facts are read, so that they are up to date.
        time_zone: Decides on which day a fact becomes known, changes or ends; None: UTC.

    Raises:
        FactError: The scope needs an ``agent_id``.
    """

    def __init__(
        self,
        store: MemoryStore,
        namespace: str,
        *,
        agent_id: str | None = None,
        scope: Scope | Literal["all"] | None = None,
        categories: Sequence[str] | None = None,
        search: Callable[[str], Awaitable[Sequence[RankedFact]]] | None = None,
        learn: Callable[[], Awaitable[object]] | None = None,
        time_zone: tzinfo | None = None,
    ) -> None:
        self._store = store
        self._learn = learn
        self._time_zone = time_zone
        self._search = search or self._by_words
        self.namespace = namespace
        self._view = view_of(agent_id, scope)
        self.categories = None if categories is None else tuple(categories)

    @unpacked(FactFilter, FactFilter)
    async def alist(self, /, **wanted: Any) -> list[Fact]:
        """Return the facts, newest first; retired, expired and pending facts only by ``state``. [] for none.

        A fact whose ``valid_until`` has passed is listed; its ``fact.state(now)`` is
        "past".

        Args:
            wanted: Each of the following, by name.

        Raises:
            FactError: No fact can match: an unknown category, another agent, an
                unknown id, or ``since`` after ``until``. Or a datetime has no time zone.
        """
        selection = await self._filter(wanted)
        facts = await self._all()
        now = self._now()

        def is_listed(fact: Fact) -> bool:
            if not selection.takes(fact, now):
                return False
            is_hidden = fact.retired or fact.pending or fact.expired(now)
            return selection.state is not None or not is_hidden

        def list_page() -> list[Fact]:
            facts.sort(key=attrgetter("created_at"), reverse=True)
            page = filter(is_listed, facts[selection.start(facts) :])
            return [*islice(page, selection.limit)]

        # Sorting many facts takes long enough to block the event loop.
        return await asyncio.to_thread(list_page)

    @unpacked(FactFilter, FactFilter)
    async def asearch(
        self, /, question: str, *, similarity_top_k: int = 10, **wanted: Any
    ) -> list[RankedFact]:
        """Return the facts that have something in common with a question, best first; [] for none.

        They are ranked as the memory ranks them: with an ``embed_model`` nearly every
        fact has something in common. A question about the past finds past facts, too,
        whose entries say ``past``; a book that was made without a memory finds none of
        them. Pending facts are not found.

        Args:
            question: The text to search for.
            similarity_top_k: Maximum number of entries.
            wanted: Each of the following, by name.

        Raises:
            SettingError: ``question`` is not a str, or ``similarity_top_k`` not a whole
                number of at least 1.
            FactError: As for ``alist``.
        """
        check_text("question", question)
        check_count("similarity_top_k", similarity_top_k)
        selection = await self._filter(wanted)
        now = self._now()
        entries: Sequence[RankedFact] = ()
        if question.strip():
            entries = await self._search(question)

        def select_page() -> list[RankedFact]:
            start = selection.start([entry.fact for entry in entries])
            page = (
                entry for entry in entries[start:] if selection.takes(entry.fact, now)
            )
            return [*islice(page, selection.limit)]

        if wanted:
            entries = await asyncio.to_thread(select_page)
        return [*entries[:similarity_top_k]]

    @unpacked(Fact, Fact)
    async def aadd(
        self, /, fact: Fact | str, *, ttl: timedelta | None = None, **fields: Any
    ) -> Fact:
        """Store a fact, or a text with the fields of ``Fact``; return the stored fact.

        A fact replaces the stored fact with its id. Without an ``id``, it gets a new one.

        The fact is the agent's own if the book's agent keeps facts to itself;
        ``agent_id=None`` shares it with all agents of the user.

        Args:
            fact: The fact, or its content in one sentence.
            ttl: The time from now until it expires.
            fields: Each of the following, by name.

        Raises:
            FactError: The category is unknown to the book, or the book does not see
                facts of the agent. A fact of another agent has the id. A field has an
                invalid value. The ``ttl`` is not a timedelta above 0, or is passed
                with ``expires_at``.
        """
        values = self._checked(ttl, fields)
        names = set(fields)
        if isinstance(fact, str):
            new = Fact(content=fact, **values)
        elif isinstance(fact, Fact):
            new = Fact(**{**fact.model_dump(), **values})
            names |= fact.model_fields_set
        else:
            raise FactError(
                f"Expected a Fact, or its content as a str; got {type(fact).__name__}."
            )
        if "category" in names:
            self._check_category(new.category)
        owner = self._view.own
        if "agent_id" in names:
            owner = self._view.owner(new.agent_id)
        update: dict[str, Any] = {"namespace": self.namespace, "agent_id": owner}
        for name in ("created_at", "updated_at"):
            at = getattr(new, name)
            if not at.utcoffset():
                # A time in UTC does not tell the user's day yet.
                update[name] = in_zone(at, self._time_zone)
        stored = new.model_copy(update=update)
        await self._store.facts.write(self.namespace, [stored], view=self._view)
        return stored

    @unpacked(Fact, Fact, with_defaults=False)
    async def aupdate(
        self, /, fact_id: str, *, ttl: timedelta | None = None, **fields: Any
    ) -> Fact:
        """Change fields of a fact; return the stored fact. ``agent_id=None`` shares it.

        Args:
            fact_id: The id of the fact.
            ttl: The time from now until it expires.
            fields: Each of the following, by name.

        Raises:
            FactError: No fact has this id; no field is passed, or ``id`` or ``namespace``;
                also as for ``aadd``.
        """
        changed = self._checked(ttl, fields)
        if not changed:
            raise FactError(
                'aupdate needs a field to change; got none. Pass it by name, such as content="Likes tea".'
            )
        fixed = changed.keys() & {"id", "namespace"}
        if fixed:
            raise FactError(
                f"aupdate keeps the id and the namespace of a fact; got {' and '.join(sorted(fixed))}. "
                "Add a new fact, and retire this one."
            )
        return await self._change(
            fact_id, lambda fact: edit(fact, self._now(), changed)
        )

    async def aretire(
        self,
        fact_id: str,
        reason: str = "retired by hand",
        replaced_by: str | None = None,
    ) -> Fact:
        """Stop showing a fact. It is kept, for ``arestore``.

        With ``replaced_by``, the id of the fact that is true instead, questions about
        the past still find it.

        Raises:
            FactError: No fact has this id.
        """
        by: RetiredBy = "change" if replaced_by else "hand"
        check_text("reason", reason)
        _check_ids(replaced_by or "")
        return await self._change(
            fact_id, lambda fact: retire(fact, reason, self._now(), replaced_by, by=by)
        )

    async def arestore(self, fact_id: str) -> Fact:
        """Make a fact true again that was retired, has ended or has expired.

        The fact that replaced it stays true, too, until it is retired.

        Raises:
            FactError: No fact has this id.
        """
        return await self._change(fact_id, lambda fact: restore(fact, self._now()))

    async def aapprove(self, *fact_ids: str) -> list[Fact]:
        """Approve pending facts, and end the facts that they correct, in one transaction; return them as stored.

        Raises:
            FactError: An id belongs to no pending fact. Nothing is stored then.
        """
        return await self._decide(fact_ids, approve)

    async def areject(
        self, *fact_ids: str, reason: str = "rejected by hand"
    ) -> list[Fact]:
        """Reject pending facts; return them as stored, retired. The facts that they correct stay true.

        The model reads the rejected facts and the ``reason`` at the next extraction, so
        that it does not report them again.

        Raises:
            FactError: As for ``aapprove``.
        """
        check_text("reason", reason)
        return await self._decide(
            fact_ids, lambda fact, _, now: [retire(fact, reason, now, by="rejected")]
        )

    async def afind(self, content: str) -> Fact | None:
        """Return the fact with the same content, unless it is retired or expired; None if there is none.

        Case, punctuation and spaces make no difference.

        Raises:
            SettingError: ``content`` is not a str.
        """
        check_text("content", content)
        now = utc_now()
        key = duplicate_key(content)
        for fact in await self._all():
            is_over = fact.retired or fact.expired(now)
            if not is_over and duplicate_key(fact.content) == key:
                return fact
        return None

    async def ahistory(self, fact_id: str) -> list[Fact]:
        """Return a fact with the facts before and after it in a chain of replacements, oldest first.

        Expired facts are included. Deleted facts are not, nor replacements that
        ``arestore`` has undone.

        Raises:
            FactError: No fact has this id.
        """
        _check_ids(fact_id)
        history = await asyncio.to_thread(history_of, await self._all(), fact_id)
        if not history:
            raise await self._unknown(fact_id)
        return history

    async def aforget(self, *fact_ids: str) -> int:
        """Delete facts for good, or without ids all facts that the book sees; return their number.

        ``CondensedMemory.aforget`` and ``MemoryStore.forget_user`` delete the facts of
        all agents.
        """
        _check_ids(*fact_ids)
        return await self._store.facts.delete(
            self.namespace, list(fact_ids) or None, view=self._view
        )

    async def aexport(self) -> str:
        """Return all facts, including retired facts, as JSON Lines; the first line names the schema version."""
        facts = await self._all()
        head = json.dumps({"schema": _SCHEMA, "version": _SCHEMA_VERSION})
        return await asyncio.to_thread(
            lambda: "\n".join([head, *(fact.model_dump_json() for fact in facts), ""])
        )

    async def aimport(self, lines: str) -> int:
        """Store the facts of JSON Lines as ``aexport`` writes them; return their number.

        A fact replaces the stored fact with its id. Its ``message_ids`` become the rows
        of its session here that have its quote, at the latest when the session is
        imported. If the book sees no shared facts, shared facts become the agent's own.
        All facts are stored in one transaction, which may take the ``operation_timeout``
        of the store for each 500 facts. The guide "Migrate from another memory" has
        scripts that convert the exports of mem0, LangGraph and Zep.

        Raises:
            FactError: A line is not a fact, or has another agent's fact. Nothing is stored.
            SettingError: ``lines`` is not a str.
        """
        check_text("lines", lines)
        # Reading a long export takes long enough to block the event loop.
        facts = await asyncio.to_thread(_parse, lines, self._view)
        await store_imported(self._store.database, self.namespace, facts, self._view)
        return len(facts)

    def _now(self) -> datetime:
        return now_in(self._time_zone)

    async def _all(self) -> list[Fact]:
        if self._learn is not None:
            await self._learn()
        return (await self._store.facts.read(self.namespace, view=self._view)).facts

    async def _filter(self, wanted: Mapping[str, Any]) -> FactFilter:
        """Return the filter; a FactError if it can select no fact."""
        selection = build_checked(FactFilter, FactFilter, FactError, **wanted)
        since = selection.since
        until = selection.until
        if since and until and moment_for(since, until) > moment_for(until, since):
            raise FactError(
                f"Expected since to be before until; got {since} and {until}. Swap them."
            )
        if selection.agent_id is not None:
            self._view.check(selection.agent_id)
        if selection.category is not None:
            used = {fact.category for fact in await self._all()}
            if selection.category not in used:
                self._check_category(selection.category)
        return selection

    async def _decide(
        self, fact_ids: Sequence[str], decided: Callable[..., Sequence[Fact]]
    ) -> list[Fact]:
        """Store a decision about pending facts, all or none.

        ``decided`` gets each fact, all facts by id, and the time.
        """
        _check_ids(*fact_ids)

        def change(stored: Mapping[str, Fact]) -> list[Fact]:
            now = self._now()
            _check_pending(fact_ids, stored, now)
            facts = dict(stored)
            for fact_id in fact_ids:
                for fact in decided(facts[fact_id], facts, now):
                    facts[fact.id] = fact
            return [fact for fact in facts.values() if fact is not stored[fact.id]]

        facts = await self._store.facts.change(self.namespace, change, view=self._view)
        by_id = {fact.id: fact for fact in facts}
        return [by_id[fact_id] for fact_id in fact_ids]

    async def _by_words(self, question: str) -> list[RankedFact]:
        facts = await self._all()
        now = self._now()

        def find() -> list[RankedFact]:
            present = [fact for fact in facts if fact.state(now) == "present"]
            showable = ShowableFacts(present, index_of(present))
            return showable.score(question, (), Weights()).similar()

        return await asyncio.to_thread(find)

    def _checked(self, ttl: timedelta | None, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields, with ``expires_at`` from the ``ttl``; a FactError for an invalid ttl or category."""
        if isinstance(fields.get("category"), str):
            self._check_category(visible(fields["category"]))
        if "agent_id" in fields:
            self._view.check(fields["agent_id"])
        if ttl is None:
            return fields
        is_usable = isinstance(ttl, timedelta) and timedelta() < ttl <= _LONGEST_TTL
        if not is_usable or fields.get("expires_at") is not None:
            raise FactError(
                f"Expected ttl to be a timedelta above 0, at most {_LONGEST_TTL.days:,} days, without expires_at; "
                f"got {ttl!r}. A fact that is no longer true can be retired."
            )
        return {**fields, "expires_at": self._now() + ttl}

    def _check_category(self, category: str) -> None:
        if self.categories is not None and category not in self.categories:
            raise FactError(
                f"Expected one of the categories {', '.join(map(repr, self.categories))}; got {category!r}. "
                "Choose one of them, or add it to the categories."
            )

    async def _change(self, fact_id: str, changed: Callable[[Fact], Fact]) -> Fact:
        _check_ids(fact_id)
        facts = await self._store.facts.change(
            self.namespace,
            lambda stored: [*map(changed, stored.values())],
            [fact_id],
            view=self._view,
        )
        if not facts:
            raise await self._unknown(fact_id)
        return facts[0]

    async def _unknown(self, fact_id: str) -> FactError:
        return FactError(
            f"{display_name(self.namespace)!r} has no fact {fact_id!r} ({len(await self._all())} facts). "
            "List them first."
        )

    list = in_sync(alist)
    search = in_sync(asearch)
    add = in_sync(aadd)
    update = in_sync(aupdate)
    retire = in_sync(aretire)
    restore = in_sync(arestore)
    approve = in_sync(aapprove)
    reject = in_sync(areject)
    find = in_sync(afind)
    history = in_sync(ahistory)
    forget = in_sync(aforget)
    export = in_sync(aexport)
    import_ = in_sync(aimport)


def _check_ids(*fact_ids: object) -> None:
    for fact_id in fact_ids:
        if not isinstance(fact_id, str):
            raise FactError(
                f"Expected ids of facts as separate str arguments; got a {type(fact_id).__name__}. "
                "Nothing was changed. Pass fact.id of a Fact. Write a star before a list: (*ids)."
            )


def _check_pending(
    fact_ids: Sequence[str], facts: Mapping[str, Fact], now: datetime
) -> None:
    """Raise a FactError if an id belongs to no pending fact."""
    states = {name: fact.state(now) for name, fact in facts.items()}
    pending = [name for name, state in states.items() if state == "pending"]
    for fact_id in fact_ids:
        if fact_id not in pending:
            raise FactError(
                f"Expected ids of pending facts; {fact_id!r} is {states.get(fact_id, 'none')}. "
                f"Pending: {', '.join(pending[:10]) or 'none'}."
            )


def _parse(lines: str, view: AgentView) -> list[Fact]:
    """Return the facts of an export. Where no shared facts are seen, they become the agent's own."""
    facts = []
    # Not splitlines: a text in JSON may have other separators, such as U+2028.
    for number, line in enumerate(filter(str.strip, lines.split("\n")), start=1):
        try:
            values = json.loads(line)
            is_head = number == 1 and isinstance(values, dict) and "version" in values
            if not is_head:
                facts.append(Fact.model_validate(values))
        except (ValueError, RecursionError) as error:
            raise FactError(
                f"Line {number} is not a fact ({type(error).__name__}); expected JSON Lines as aexport writes them. "
                "Import a copy of `export --user` without --user. "
                "Convert an export of mem0, LangGraph or Zep first, by a script of the "
                'guide "Migrate from another memory" (docs/recipes). Nothing was imported.'
            ) from None
        if is_head and values["version"] != _SCHEMA_VERSION:
            raise FactError(
                f"Expected facts of schema version {_SCHEMA_VERSION}; got schema version {values['version']!r}. "
                "Import them with the version of this package that wrote them, or a newer one."
            )
    return [
        fact.model_copy(update={"agent_id": view.owner(fact.agent_id)})
        for fact in facts
    ]
