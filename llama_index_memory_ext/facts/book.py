"""Lists, finds and changes the facts of a user."""

from __future__ import annotations

import asyncio
import json
from datetime import date, datetime, time, timedelta, timezone
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from llama_index_memory_ext.background.loop import in_sync
from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.fact import (
    Fact,
    FactState,
    Utc,
    approved,
    normalised,
    restored,
    retire,
    utc_now,
    view_of,
)
from llama_index_memory_ext.facts.history import history_of
from llama_index_memory_ext.facts.ranking import RankedFact, rank
from llama_index_memory_ext.language.words import visible
from llama_index_memory_ext.settings import checked, unpacked
from llama_index_memory_ext.store.tables import name_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from llama_index_memory_ext.fact import AgentView, RetiredBy, Scope
    from llama_index_memory_ext.facts.consolidation import Proposal
    from llama_index_memory_ext.store import MemoryStore

_SCHEMA = "llama_index_memory_ext.fact"
_SCHEMA_VERSION = 1
_ENDS = {"valid_until", "expires_at"}


def _moment(value: Any, at: time) -> Any:
    """Return a day, also as a text, as the first or the last moment of it in UTC, and all else as it is."""
    try:
        if isinstance(value, str):
            day = date.fromisoformat(value)
        else:
            day = value
    except ValueError:
        return value
    if type(day) is date:
        return datetime.combine(day, at, timezone.utc)
    return value


Since = Annotated[Utc, BeforeValidator(partial(_moment, at=time.min))]
Until = Annotated[Utc, BeforeValidator(partial(_moment, at=time.max))]


class FactFilter(BaseModel):
    """Which facts are wanted: those for which all is so that is named, a page at a time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    since: Since | None = Field(
        default=None, description="Known since this day or datetime, or later."
    )
    until: Until | None = Field(
        default=None, description="Known since this day or datetime, or earlier."
    )
    category: str | None = Field(default=None, description="Of this kind.")
    tags: tuple[str, ...] = Field(default=(), description="With all of these tags.")
    agent_id: str | None = Field(default=None, description="This agent's own.")
    state: FactState | Literal["all"] | None = Field(
        default=None, description='In this state; "all": in any.'
    )
    limit: int | None = Field(default=None, ge=1, description="Most facts.")
    after: str | None = Field(
        default=None,
        description="The id of the last fact that was seen: those behind it.",
    )

    def takes(self, fact: Fact, now: datetime) -> bool:
        """Return whether a fact is wanted."""
        known = fact.created_at
        is_then = (self.since or known) <= known <= (self.until or known)
        is_so = self.category in (None, fact.category) and self.agent_id in (
            None,
            fact.agent_id,
        )
        return (
            is_then
            and is_so
            and self.state in (None, "all", fact.state(now))
            and set(self.tags) <= set(fact.tags)
        )

    def start(self, facts: Sequence[Fact]) -> int:
        """Return where the page begins: behind the fact that was seen last; a FactError if that is not there."""
        if self.after is None:
            return 0
        ids = [fact.id for fact in facts]
        if self.after not in ids:
            raise FactError(
                f"There is no fact {self.after!r} among {len(ids)}, behind which to go on. Begin anew."
            )
        return ids.index(self.after) + 1


class FactBook:
    """The facts of one namespace. Each method has a synchronous twin without the ``a``: ``list``, ..., ``import_``.

    Facts of agents that the book does not see are not there for any of its methods.

    Args:
        store: Where the facts are kept.
        namespace: Whose facts they are.
        agent_id: The agent that may have facts of its own.
        scope: Which facts are seen, as for ``RelevantFactsBlock``; "all": those of all
            agents, and the shared ones.
        categories: The categories that a fact may be given; None: any.
        search: Finds facts for a question, best first; None: by their words.
        propose: Finds what of facts can be tidied up, within a limit of tokens for each
            request: ``aconsolidate``.

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
        propose: Callable[[Sequence[Fact], int], Awaitable[list[Proposal]]]
        | None = None,
    ) -> None:
        self._store = store
        self._search = search or self._by_words
        self._propose = propose
        self.namespace = namespace
        self._view = view_of(agent_id, scope)
        if categories is None:
            self.categories = None
        else:
            self.categories = tuple(categories)

    @unpacked(FactFilter, FactFilter)
    async def alist(
        self,
        /,
        *,
        with_retired: bool = False,
        with_expired: bool = False,
        **wanted: Any,
    ) -> list[Fact]:
        """Return the facts, on request with the retired and with the expired ones, newest first; [] if there are none.

        A fact whose ``valid_until`` has passed is neither: it is listed, and
        ``fact.state(now)`` is "past". What is pending is listed by its ``state``,
        beside which the first two arguments have no meaning.

        Args:
            with_retired: Also those that are retired.
            with_expired: Also those that have expired.
            wanted: Each of the following, by name.

        Raises:
            FactError: No fact can be meant: an unknown category, another agent, an id
                that no fact has, ``since`` after ``until``, or a datetime without a
                time zone.
        """
        chosen = await self._filter(wanted)
        facts = await self._all()
        now = utc_now()

        def listed() -> list[Fact]:
            facts.sort(key=attrgetter("created_at"), reverse=True)
            found = [
                fact for fact in facts[chosen.start(facts) :] if chosen.takes(fact, now)
            ]
            if chosen.state is None:
                found = [fact for fact in found if with_retired or not fact.retired]
                found = [
                    fact for fact in found if with_expired or not fact.expired(now)
                ]
                found = [fact for fact in found if fact.state(now) != "pending"]
            return found[: chosen.limit]

        # Of many facts this takes longer than the event loop should be blocked.
        return await asyncio.to_thread(listed)

    @unpacked(FactFilter, FactFilter)
    async def asearch(
        self, /, question: str, *, similarity_top_k: int = 10, **wanted: Any
    ) -> list[RankedFact]:
        """Return the facts that have something in common with a question, best first; [] if none has, or it is empty.

        They are ranked as the memory ranks them: with an ``embed_model`` nearly every
        fact has something in common. A question about the past finds past facts, too,
        whose entries say ``past``. What is pending is not found.

        Args:
            question: What is looked for.
            similarity_top_k: Most entries.
            wanted: Each of the following, by name.

        Raises:
            ValueError: ``similarity_top_k`` is less than 1.
            FactError: As for ``alist``.
        """
        check_top_k(similarity_top_k)
        chosen = await self._filter(wanted)
        now = utc_now()
        if question.strip():
            found = await self._search(question)
        else:
            found = ()

        def taken() -> list[RankedFact]:
            behind = found[chosen.start([one.fact for one in found]) :]
            return [one for one in behind if chosen.takes(one.fact, now)][
                : chosen.limit
            ]

        return [
            *(await asyncio.to_thread(taken) if wanted else found)[:similarity_top_k]
        ]

    @unpacked(Fact, Fact)
    async def aadd(
        self, /, fact: Fact | str, *, ttl: timedelta | None = None, **fields: Any
    ) -> Fact:
        """Store a new fact, or a text with the fields of ``Fact``; returns it as stored in this namespace.

        It is the agent's own if the book's agent keeps facts to itself;
        ``agent_id=None`` shares it with all agents of the user.

        Args:
            fact: The fact, or what it says in one sentence; there is no ``content``
                beside that.
            ttl: It expires so long from now.
            fields: Each of the following, by name.

        Raises:
            FactError: The category is none of the book's, the agent is one whose facts
                the book does not see, the id is that of one of its facts, no field
                takes such a value, or the ``ttl`` is not more than 0, is no timedelta,
                or stands beside ``expires_at``.
        """
        values = self._checked(ttl, fields)
        if isinstance(fact, str):
            new = Fact(content=fact, **values)
        elif not isinstance(fact, Fact):
            raise FactError(
                f"Expected a Fact, or what it says as a text; this is a {type(fact).__name__}."
            )
        else:
            if values:
                new = Fact(**{**fact.model_dump(), **values})
            else:
                new = fact
            if "category" in fact.model_fields_set:
                self._check_category(new.category)
        owner = self._view.own
        if "agent_id" in fields:
            owner = new.agent_id
        elif isinstance(fact, Fact) and "agent_id" in fact.model_fields_set:
            owner = self._view.owner(fact.agent_id)
        stored = new.model_copy(update={"namespace": self.namespace, "agent_id": owner})
        await self._store.facts.write(self.namespace, [stored], view=self._view)
        return stored

    @unpacked(Fact, Fact, with_defaults=False)
    async def aupdate(
        self, /, fact_id: str, *, ttl: timedelta | None = None, **fields: Any
    ) -> Fact:
        """Change fields of a fact; returns it as stored. What is not named stays, and ``agent_id=None`` shares it.

        Args:
            fact_id: The id of the fact.
            ttl: It expires so long from now.
            fields: Each of the following, by name.

        Raises:
            FactError: There is no fact with this id, and as for ``aadd``.
        """
        changed = {"updated_at": utc_now(), **self._checked(ttl, fields)}
        return await self._change(
            fact_id, lambda fact: Fact(**{**fact.model_dump(), **changed})
        )

    async def aretire(
        self,
        fact_id: str,
        reason: str = "retired by hand",
        replaced_by: str | None = None,
    ) -> Fact:
        """Stop showing a fact; it is kept, for ``arestore``. A FactError if there is none with this id.

        If it names the id of the fact that has replaced it, questions about the past go
        on to find it.
        """
        by: RetiredBy = "change" if replaced_by else "hand"
        return await self._change(
            fact_id, lambda fact: retire(fact, reason, utc_now(), replaced_by, by=by)
        )

    async def arestore(self, fact_id: str) -> Fact:
        """Let a fact that was retired, has ended or has expired hold again. A FactError if there is none with this id.

        ``past_retirements`` keeps that it was retired. What had replaced it holds as
        well, until somebody retires that.
        """
        return await self._change(fact_id, lambda fact: restored(fact, utc_now()))

    async def aapprove(self, *fact_ids: str) -> list[Fact]:
        """Let pending facts hold, and end what they correct, in one transaction; returns them as stored.

        Raises:
            FactError: One of them is not there, or is not pending. Nothing is stored
                then.
        """
        return await self._decide(fact_ids, approved)

    async def areject(
        self, *fact_ids: str, reason: str = "rejected by hand"
    ) -> list[Fact]:
        """Retire pending facts; returns them as stored. What they would have ended goes on to hold.

        Extraction is shown them and the ``reason``, so that they are not learned again.
        A FactError as for ``aapprove``.
        """
        return await self._decide(
            fact_ids, lambda fact, _, now: [retire(fact, reason, now, by="rejected")]
        )

    async def ahistory(self, fact_id: str) -> list[Fact]:
        """Return the fact with what it has replaced and what has replaced it, oldest first. A FactError for an unknown id.

        Replacements that ``arestore`` has undone belong to it; expired facts do, too,
        and deleted ones do not.
        """
        return await asyncio.to_thread(
            history_of, await self._all(), fact_id, name_of(self.namespace)
        )

    async def aforget(self, *fact_ids: str) -> int:
        """Delete facts for good, without ids all that the book sees; returns how many there were.

        ``CondensedMemory.aforget`` and ``MemoryStore.forget_user`` delete those of all
        agents.
        """
        if not all(isinstance(one, str) for one in fact_ids):
            raise FactError(
                "Expected ids of facts as single texts, aforget(*ids); saw others. Nothing was deleted."
            )
        return await self._store.facts.delete(
            self.namespace, list(fact_ids) or None, view=self._view
        )

    async def aexport(self) -> str:
        """Return all facts, retired ones too, as JSON Lines; the first line names the schema version."""
        facts = await self._all()
        head = json.dumps({"schema": _SCHEMA, "version": _SCHEMA_VERSION})
        return await asyncio.to_thread(
            lambda: "\n".join([head, *(fact.model_dump_json() for fact in facts), ""])
        )

    async def aimport(self, lines: str) -> int:
        """Store the facts of JSON Lines as ``aexport`` writes them; returns how many there are.

        A fact with a known id replaces that. Where no shared facts are seen, shared
        ones become the agent's own. A FactError for what is no fact or is another
        agent's; nothing is stored then. All are stored in one transaction, which may
        take the ``operation_timeout`` of the store for each 500 facts. The guide
        "Coming from elsewhere" has scripts that convert the exports of mem0, LangGraph
        and Zep.
        """
        # A long export takes a while to read, for which the event loop must not be
        # blocked.
        facts = await asyncio.to_thread(_parse, lines, self._view)
        await self._store.facts.write(self.namespace, facts, view=self._view)
        return len(facts)

    async def _all(self) -> list[Fact]:
        return (await self._store.facts.read(self.namespace, view=self._view)).facts

    async def _filter(self, wanted: Mapping[str, Any]) -> FactFilter:
        """Return the filter; a FactError if it can take no fact, as for another agent's, or a category that is none."""
        chosen = checked(FactFilter, FactFilter, FactError, **wanted)
        since = chosen.since
        until = chosen.until
        if since and until and since > until:
            raise FactError(
                f"Expected since to be before until; saw {since} and {until}. Exchange them."
            )
        if chosen.agent_id is not None:
            self._view.check(chosen.agent_id)
        if chosen.category is not None and chosen.category not in {
            fact.category for fact in await self._all()
        }:
            self._check_category(chosen.category)
        return chosen

    async def _decide(
        self, fact_ids: Sequence[str], decided: Callable[..., Sequence[Fact]]
    ) -> list[Fact]:
        """Store what becomes of pending facts, all or none; ``decided`` has each, all facts by id, and the time."""

        def change(facts: Mapping[str, Fact]) -> list[Fact]:
            now = utc_now()
            changed = dict[str, Fact]()
            pending = [
                fact.id for fact in facts.values() if fact.state(now) == "pending"
            ]
            for one in fact_ids:
                if one not in pending:
                    if one in facts:
                        seen = facts[one].state(now)
                    else:
                        seen = f"none of {len(facts)}"
                    listed = ", ".join(pending[:10]) or "none"
                    raise FactError(
                        f"Expected ids of pending facts; {one!r} is {seen}. Pending: {listed}."
                    )
                known = {**facts, **changed}
                changed |= {fact.id: fact for fact in decided(known[one], known, now)}
            return [*changed.values()]

        stored = {
            fact.id: fact
            for fact in await self._store.facts.change(
                self.namespace, change, view=self._view
            )
        }
        return [stored[one] for one in fact_ids]

    async def _by_words(self, question: str) -> list[RankedFact]:
        facts = await self._all()
        now = utc_now()

        def found() -> list[RankedFact]:
            present = [fact for fact in facts if fact.state(now) == "present"]
            return [entry for entry in rank(present, question) if entry.similarity]

        return await asyncio.to_thread(found)

    def _checked(self, ttl: timedelta | None, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields, with ``expires_at`` from the ``ttl``; a FactError for what is no ttl or category of this book."""
        if isinstance(fields.get("category"), str):
            self._check_category(visible(fields["category"]))
        if "agent_id" in fields:
            self._view.check(fields["agent_id"])
        if ttl is None:
            return fields
        if not isinstance(ttl, timedelta):
            seen = type(ttl).__name__
            raise FactError(
                f"Expected ttl to be a timedelta, such as timedelta(days=30); this is a {seen}."
            )
        if ttl <= timedelta():
            raise FactError(
                f"Expected a ttl of more than 0; saw {ttl}. A fact that is no longer true can be retired."
            )
        if fields.get("expires_at") is not None:
            raise FactError(
                "Expected either ttl or expires_at; saw both. Leave one of them out."
            )
        try:
            return {**fields, "expires_at": utc_now() + ttl}
        except OverflowError:
            problem = f"Expected a ttl that ends in the year 9999 at the latest; saw {ttl}. Leave it out."
            raise FactError(problem) from None

    def _check_category(self, category: str) -> None:
        if self.categories is not None and category not in self.categories:
            raise FactError(
                f"Expected one of the categories {', '.join(map(repr, self.categories))}; saw {category!r}. "
                "Choose one of them, or name it among the categories."
            )

    async def _change(self, fact_id: str, changed: Callable[[Fact], Fact]) -> Fact:
        change = self._store.facts.change
        found = await change(
            self.namespace,
            lambda known: [*map(changed, known.values())],
            [fact_id],
            view=self._view,
        )
        if not found:
            count = len(await self._all())
            raise FactError(
                f"There is no fact {fact_id!r} of {name_of(self.namespace)!r} among {count}. List them first."
            )
        return found[0]

    async def aconsolidate(self, *, token_limit: int = 4_000) -> list[Proposal]:
        """Ask the model which facts need not be kept, and return what of that is sure; [] for nothing. Nothing changes.

        Each proposal keeps one fact, as it is, and retires others that it makes
        superfluous, or retires plans that are over; none is written anew. Pinned facts
        are not retired, and those of two agents not compared.

        Args:
            token_limit: The most tokens of facts in one request, at least 1; a small
                window of the model's has less.

        Raises:
            FactError: The book has no model, as one that was made without ``propose``.
            NoModelError: The block of the book has none.
            FactReplyError: The model's answer cannot be read. What the model itself
                raises is raised as it is.
        """
        if self._propose is None:
            raise FactError(
                "These facts have no model to look at them. Take `memory.facts`, or pass propose=..."
            )
        now = utc_now()
        facts = [
            fact
            for fact in await self._all()
            if fact.state(now) in ("present", "past") and not fact.retired
        ]
        return await self._propose(facts, token_limit)

    async def aapply(self, proposals: Sequence[Proposal]) -> int:
        """Retire what the proposals say, all in one transaction; returns how many facts.

        What the newer fact of a contradiction replaces, and plans that are over, stay
        part of the past.

        Raises:
            FactError: Facts have changed since they were proposed, or are part of two
                proposals; it names their ids. Nothing is changed then.
        """
        gone = {one.retired.id: one.applied(utc_now()) for one in proposals}
        facts = [fact for one in proposals for fact in one.facts]

        def changed(stored: Mapping[str, Fact]) -> list[Fact]:
            wrong = {fact.id for fact in facts if stored.get(fact.id) != fact}
            # By proposals of two times, two facts could give way to each other.
            if wrong := wrong | {
                one.keep.id for one in proposals if one.keep and one.keep.id in gone
            }:
                raise FactError(
                    "Expected facts as they were proposed, each kept or retired; nothing was changed, because of "
                    f"{', '.join(sorted(wrong))}. Leave out the proposals with these ids, or ask for new ones."
                )
            return list(gone.values())

        return len(
            await self._store.facts.change(
                self.namespace, changed, [one.id for one in facts], view=self._view
            )
        )

    async def aundo(self, proposals: Sequence[Proposal]) -> int:
        """Let the facts hold again that ``aapply`` has retired, in one transaction; returns how many there were.

        They keep that they were retired, as by ``arestore``, and have the end that they
        had. What was deleted or restored since stays as it is.
        """
        now = utc_now()
        ends = {
            one.retired.id: one.retired.model_dump(include=_ENDS) for one in proposals
        }

        def changed(stored: Mapping[str, Fact]) -> list[Fact]:
            return [
                restored(one, now).model_copy(update=ends[one.id])
                for one in stored.values()
                if one.retired
            ]

        return len(
            await self._store.facts.change(
                self.namespace, changed, list(ends), view=self._view
            )
        )

    list = in_sync(alist)
    search = in_sync(asearch)
    add = in_sync(aadd)
    update = in_sync(aupdate)
    retire = in_sync(aretire)
    restore = in_sync(arestore)
    approve = in_sync(aapprove)
    reject = in_sync(areject)
    history = in_sync(ahistory)
    forget = in_sync(aforget)
    export = in_sync(aexport)
    import_ = in_sync(aimport)
    consolidate = in_sync(aconsolidate)
    apply = in_sync(aapply)
    undo = in_sync(aundo)


async def known_as(book: FactBook, text: str) -> Fact | None:
    """Return the fact of a book that says the same and holds, has ended or is pending; None if there is none."""
    now = utc_now()
    content = normalised(text)
    known = [
        one
        for one in await book.alist(state="all")
        if not (one.retired or one.expired(now))
    ]
    return next((one for one in known if normalised(one.content) == content), None)


def check_top_k(similarity_top_k: int) -> None:
    """Raise a ValueError if the most entries of a search are less than 1."""
    if similarity_top_k < 1:
        raise ValueError(
            f"similarity_top_k is the most that is found of a kind, at least 1; saw {similarity_top_k}."
        )


def _parse(lines: str, view: AgentView) -> list[Fact]:
    """Return the facts of an export, which are the agent's own where no shared ones are seen."""
    facts = []
    for number, line in enumerate(filter(str.strip, lines.splitlines()), start=1):
        try:
            values = json.loads(line)
            is_head = number == 1 and isinstance(values, dict) and "version" in values
            facts += [] if is_head else [Fact.model_validate(values)]
        except ValueError as error:
            raise FactError(
                f"Line {number} is no fact ({type(error).__name__}); expected JSON Lines as export writes them. "
                'Convert an export of mem0, LangGraph or Zep first, by a script of the guide "Coming from elsewhere" '
                "(docs/recipes). Nothing was imported."
            ) from None
        if is_head and values["version"] != _SCHEMA_VERSION:
            raise FactError(
                f"These facts have schema version {values['version']!r}, and this package knows version "
                f"{_SCHEMA_VERSION}. Import them with the package that wrote them, or a newer one."
            )
    return [
        fact.model_copy(update={"agent_id": view.owner(fact.agent_id)})
        for fact in facts
    ]
