"""Shows what is known about the user, ranked for the question, and learns more from what the log gains."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from llama_index.core.base.embeddings.base import BaseEmbedding  # noqa: TC002 - pydantic reads it too
from llama_index.core.base.llms.types import MessageRole
from llama_index.core.bridge.pydantic import Field, PrivateAttr

from llama_index_memory_ext.embedding_calls import model_key
from llama_index_memory_ext.embedding_ranker import EmbeddingRanker
from llama_index_memory_ext.explanation import Explanation, explain
from llama_index_memory_ext.fact_book import FactBook
from llama_index_memory_ext.facts import DEFAULT_MIN_CONFIDENCE, Fact, raised, retire
from llama_index_memory_ext.jobs import Jobs
from llama_index_memory_ext.log_block import DEFAULT_SESSION_ID, LogBlock, Remembered
from llama_index_memory_ext.ranking import (
    CONFIDENCE_WEIGHT,
    SIMILARITY_WEIGHT,
    FactRanker,
    RankedFact,
    TfidfRanker,
    best_first,
    document_of,
    fitted,
    rank,
    scores_of,
    similarities_of,
)
from llama_index_memory_ext.rendering import split_lines
from llama_index_memory_ext.store import Seen
from llama_index_memory_ext.store.fact_table import NOTHING_READ, FactChanges
from llama_index_memory_ext.transcript import Line, question_in, spoken, turns_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.gates import Gated
    from llama_index_memory_ext.store import LogPage, LogRow, Unread

logger = logging.getLogger(__name__)

_CONTEXT_ROWS = 40
_BATCH_ROWS = 200
_BATCH_TOKENS = 8_000
_RELATED_FACTS = 10
_SOURCE_CHARACTERS = 2_000


@dataclass
class Known:
    """What this process remembers of a namespace: its facts by id, and the index of those that hold, if any do."""

    ranker: FactRanker | None = None
    changes: FactChanges = NOTHING_READ
    facts: dict[str, Fact] = field(default_factory=dict)
    active: tuple[Fact, ...] = ()
    rendered: dict[str, tuple[str, int]] = field(default_factory=dict)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def take(self, changes: FactChanges, make_ranker: Callable[[], FactRanker]) -> None:
        """Follow the changes that were read; in a thread, so one at a time, and what is read meanwhile stays whole."""
        with self.guard:
            self.ranker = self.ranker or make_ranker()
            facts = dict(self.facts) if changes.fresh else {}
            self.ranker.remove([fact_id for fact_id in self.facts if fact_id not in facts])
            self.ranker.add([document_of(fact) for fact in changes.facts if not fact.retired])
            self.ranker.remove([fact.id for fact in changes.facts if fact.retired])
            facts.update((fact.id, fact) for fact in changes.facts)
            self.facts, self.rendered = facts, {}
            self.active = tuple(fact for fact in facts.values() if not fact.retired)


@dataclass(frozen=True)
class _Talk:
    """The last messages of a session in the log, and the turns that they make."""

    seen: Seen = field(default_factory=Seen)
    messages: tuple[ChatMessage, ...] = ()
    turns: tuple[list[str], ...] = ()


class RelevantFactsBlock(LogBlock):
    """What is known about the user and matters for the question, best first, within a token limit.

    Facts are extracted by a model from the log of a ``MemoryStore``, beside the conversation, and belong to a
    ``user_id``, or to the session if there is none. They are ranked by
    ``similarity_weight * similarity + confidence_weight * confidence``.

    Without a ``store`` the block keeps a private one in memory, fed by what the memory flushes. Give the
    memory the same store otherwise.
    """

    name: str = Field(default="relevant_facts", description="The name of the element around the facts.")
    user_id: str | None = Field(default=None, description="Whose facts these are; None: those of each session.")
    token_limit: int = Field(
        default=2_000, ge=0, description="Most tokens of the facts, all tags included; never exceeded."
    )
    similarity_weight: float = Field(default=SIMILARITY_WEIGHT, ge=0, description="Divided by the sum of both.")
    confidence_weight: float = Field(default=CONFIDENCE_WEIGHT, ge=0, description="Divided by the sum of both.")
    context_turns: int = Field(default=3, ge=1, description="Turns that are looked at, the current one included.")
    max_facts: int | None = Field(default=None, ge=1, description="Facts over it are retired, the least sure first.")
    min_confidence: float = Field(default=DEFAULT_MIN_CONFIDENCE, ge=0, le=1)
    extract_facts: bool = Field(default=True, description="Whether new facts are extracted.")
    extract_every_turns: int = Field(default=1, ge=1, description="Finished turns that wait for one extraction.")
    embed_model: BaseEmbedding | None = Field(
        default=None, exclude=True, repr=False, description="Ranks facts together with their words; None: words alone."
    )
    ranker_factory: Any = Field(default=TfidfRanker, exclude=True, repr=False, description="Makes a FactRanker.")

    _known: Remembered[str, Known] = PrivateAttr(default_factory=Remembered)
    _talks: Remembered[str, _Talk] = PrivateAttr(default_factory=Remembered)
    _shown: Remembered[Any, str] = PrivateAttr(default_factory=Remembered)
    _rejections: Counter[str] = PrivateAttr(default_factory=Counter)

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex serialises this block."""
        return "RelevantFactsBlock"

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state["__dict__"] = {**state["__dict__"], "embed_model": None}
        return state

    # ---- what the host calls -----------------------------------------------------------------------

    async def _aget(
        self, messages: list[ChatMessage] | None = None, *, session_id: str | None = None, **block_kwargs: Any
    ) -> str:
        """The facts as text, one line-ended element per fact; empty if none is known."""
        session_id = session_id or DEFAULT_SESSION_ID
        talk, now = await self._read_talk(session_id)
        known = await self._read_known(self.namespace_of(session_id), now)
        if not known.active:
            return ""
        question, context = question_in(messages or [], talk.turns, self.context_turns)
        key = (known.changes.epoch, known.changes.change, self.namespace_of(session_id), question, tuple(context))
        text = self._shown.get(key)
        if text is None:
            prepared = await self._prepare(known, [question, *context])
            facts = self._best_first(known, question, context)
            lines = fitted(facts, self._room, self.tokenizer_fn, known.rendered)
            text = "".join(line for line, _ in lines)
            if self.tokenizer_fn.adds_up:
                self.tokenizer_fn.remember(text, sum(tokens for _, tokens in lines))
            if prepared:
                self._shown.put(key, text)
        return text

    async def atruncate(self, content: Any, tokens_to_truncate: int) -> str | None:
        """The facts without the lowest-ranked: at least ``tokens_to_truncate`` tokens shorter, or None."""
        lines = split_lines(content) if isinstance(content, str) else []
        gone = 0
        while lines and gone < tokens_to_truncate:
            gone += self.tokenizer_fn.count(lines.pop())
        return "".join(lines) or None

    # ---- life --------------------------------------------------------------------------------------

    async def aopen(self, session_id: str) -> None:
        """Begin with a session: what other sessions of this user have left unread is extracted too."""
        if self.extract_facts:
            await self._log.register(session_id, self.reader_of(session_id))
            for other in await self._log.pending(self.reader_of(session_id)):
                if other != session_id:
                    self._jobs.start(other, self._extract_finished, self.retry_seconds)

    async def aflush(self, session_id: str) -> None:
        """Extract what is left of the session; a failure is logged, and tried again by whoever comes next."""
        if self.extract_facts:
            await self._jobs.finish(session_id, partial(self._extract, least_turns=1))

    def book(self, session_id: str = DEFAULT_SESSION_ID) -> FactBook:
        """The facts of a session's user, to look at and to change."""
        return FactBook(self._log, self.namespace_of(session_id))

    async def aexplain(
        self,
        question: str,
        *,
        session_id: str = DEFAULT_SESSION_ID,
        context: Sequence[str] = (),
    ) -> Explanation:
        """Why each fact is shown for a question, or not; prints as a table, and shows as one in a notebook.

        ``session_id`` is needed only by a block without a ``user_id``; ``context`` is what was said in the turns
        before, oldest first.
        """
        known = await self._read_known(self.namespace_of(session_id))
        await self._prepare(known, [question, *context])
        return explain(self._ranked(known, question, context), self._room, self.tokenizer_fn)

    async def aclose(self) -> None:
        """Close the private store, and end what is under way there; what was not extracted stays unread."""
        for known in list(self._known.values()):
            if isinstance(known.ranker, EmbeddingRanker):
                await known.ranker.stop()
        await super().aclose()

    def namespace_of(self, session_id: str) -> str:
        """Whose facts a session's are."""
        return self.user_id if self.user_id is not None else session_id

    def reader_of(self, session_id: str) -> str:
        """The name of this block's cursor in a session."""
        return f"{self.name} of {self.namespace_of(session_id)}"

    def _doing(self) -> str:
        return f"{super()._doing()} of {self.user_id!r}"

    @property
    def rejections(self) -> dict[str, int]:
        """How many replies of the model were not stored by this block, for each reason."""
        return dict(self._rejections)

    # ---- reading -----------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        return self._room_within(self.token_limit)

    async def _read_known(self, namespace: str, now: tuple[int, int] | None = None) -> Known:
        """The facts of a namespace; ``now`` is the epoch and the last change, if the caller knows them."""
        known = self._known.get(namespace)
        if known is not None and now == (known.changes.epoch, known.changes.change):
            return known
        changes = await self._log.facts.read(namespace, known.changes if known else NOTHING_READ)
        known = known or Known()
        if changes.facts or not changes.fresh:
            # The first facts load scikit-learn and build the index, which would stop the event loop.
            await asyncio.to_thread(known.take, changes, partial(self._make_ranker, namespace))
        known.changes = changes
        self._known.put(namespace, known)
        return known

    def _make_ranker(self, namespace: str) -> FactRanker:
        ranker: FactRanker = self.ranker_factory()
        if self.embed_model is None:
            return ranker
        keeper = self._log.embeddings.of(namespace, model_key(self.embed_model))
        embedding_ranker = EmbeddingRanker(self.embed_model, lexical=ranker, keeper=keeper)
        self._log.board.watch(embedding_ranker)
        return embedding_ranker

    async def _prepare(self, known: Known, queries: Sequence[str] = ()) -> bool:
        """Embed what is not yet, where there is a model for it; False if facts are ranked by less than that for now."""
        return await known.ranker.aprepare(queries) if isinstance(known.ranker, EmbeddingRanker) else True

    async def _read_talk(self, session_id: str) -> tuple[_Talk, tuple[int, int] | None]:
        """The last turns in the log, and how far the changes of the facts have come."""
        talk = self._talks.get(session_id, _Talk())
        page = await self._context_page(session_id, talk.seen)
        if not page.fresh:
            talk = _Talk()
            page = await self._context_page(session_id, talk.seen)
        if page.rows:
            said = [row.message for row in page.rows]
            new = [message for message in said if spoken(message)]
            kept = (*talk.messages, *new)[-_CONTEXT_ROWS:]
            seen = Seen(page.epoch, page.position, page.rows[-1].id)
            talk = _Talk(seen, kept, tuple(turns_in(kept)[-self.context_turns :]))
            self._talks.put(session_id, talk)
        return talk, page.facts

    async def _context_page(self, session_id: str, seen: Seen) -> LogPage:
        watched = self.namespace_of(session_id)
        return await self._log.read_log(session_id, f"{self.name} context", seen, limit=_CONTEXT_ROWS, watch=watched)

    def _best_first(self, known: Known, question: str, context: Sequence[str]) -> list[Fact]:
        """The same order as that of ``_ranked``, without the marks of each fact, which take as long as all the rest."""
        facts, ranker = known.active, known.ranker
        near = (
            similarities_of([fact.id for fact in facts], question, context, ranker)
            if ranker is not None
            else [0.0] * len(facts)
        )
        scores = scores_of(facts, near, self.similarity_weight, self.confidence_weight)
        return [facts[i] for i in best_first(facts, scores)]

    def _ranked(self, known: Known, question: str, context: Sequence[str]) -> list[RankedFact]:
        return rank(
            known.active,
            question,
            context,
            similarity_weight=self.similarity_weight,
            confidence_weight=self.confidence_weight,
            ranker=known.ranker,
        )

    # ---- extracting --------------------------------------------------------------------------------

    def _new_jobs(self) -> Jobs:
        return Jobs("Facts were not extracted")

    async def _notice(self, session_id: str) -> None:
        if self.extract_facts:
            self._jobs.start(session_id, self._extract_turns, self.retry_seconds)

    async def _extract_turns(self, session_id: str) -> None:
        await self._extract(session_id, least_turns=self.extract_every_turns)

    async def _extract_finished(self, session_id: str) -> None:
        await self._extract(session_id, least_turns=1, with_active=True)

    async def _extract(self, session_id: str, *, least_turns: int, with_active: bool = False) -> None:
        """Extract until nothing is left: each batch is stored and left behind in one step, or stays unread."""
        reader = self.reader_of(session_id)
        while True:
            unread = await self._log.read_unread(session_id, reader, with_active=with_active, limit=_BATCH_ROWS)
            lines = [Line(row.id, row.role, self._clipped(spoken(row.message))) for row in unread.rows]
            asked = sum(line.role == MessageRole.USER.value for line in lines)
            # A full batch is extracted in any case: a turn of very many tool calls must not stand in the way for ever.
            if not unread.rows or (asked < least_turns and len(unread.rows) < _BATCH_ROWS):
                return
            await self._extract_batch(session_id, reader, *self._batch(unread, lines))

    def _clipped(self, text: str) -> str:
        return self.tokenizer_fn.clip(text, _BATCH_TOKENS // 2)

    def _batch(self, unread: Unread, lines: list[Line]) -> tuple[Unread, list[Line]]:
        """As much as one request should hold, at least one row; it ends where a turn does, if it can."""
        tokens = 0
        for i, line in enumerate(lines):
            tokens += self.tokenizer_fn.count(line.text)
            if i and tokens > _BATCH_TOKENS:
                starts = [j for j in range(1, i + 1) if lines[j].role == MessageRole.USER.value]
                end = starts[-1] if starts else i
                rows: list[LogRow] = unread.rows[:end]
                return type(unread)(unread.position, unread.epoch, rows), lines[:end]
        return unread, lines

    async def _extract_batch(self, session_id: str, reader: str, unread: Unread, lines: Sequence[Line]) -> None:
        # Imported here: their patterns take a while to compile, and not every program extracts facts.
        from llama_index_memory_ext.extraction import ask_for_facts, extraction_prompt
        from llama_index_memory_ext.gates import gate

        namespace = self.namespace_of(session_id)
        known = await self._read_known(namespace)
        now, said = datetime.now(timezone.utc), [line for line in lines if line.text]
        changed: list[Fact] = []
        if any(line.role == MessageRole.USER.value for line in said):
            users = "\n".join(line.text for line in said if line.role == MessageRole.USER.value)
            related = [entry.fact for entry in self._ranked(known, users, [])[:_RELATED_FACTS]]
            reply = await ask_for_facts(self._model(), extraction_prompt(said, related, today=_day(now)))
            gated = gate(
                reply,
                said,
                related,
                now=now,
                new_id=lambda: uuid4().hex,
                active=known.active,
                namespace=namespace,
                session_id=session_id,
                min_confidence=self.min_confidence,
            )
            self._rejections.update(gated.rejections)
            spoken_by_id = {line.row_id: i for i, line in enumerate(said)}
            gated = replace(
                gated, accepted=tuple(_with_neighbours(fact, said, spoken_by_id) for fact in gated.accepted)
            )
            changed = self._within_number(known, changes_of(gated, known.facts, now), now)
        await self._log.facts.write_extracted(
            namespace, changed, known.changes, session_id=session_id, reader=reader, unread=unread
        )
        if changed and self.embed_model is not None:
            # Now rather than when the next question is waiting for it.
            await self._prepare(await self._read_known(namespace))

    def _within_number(self, known: Known, changed: list[Fact], now: datetime) -> list[Fact]:
        if self.max_facts is None:
            return changed
        after = {**known.facts, **{fact.id: fact for fact in changed}}
        holding = sorted(
            (fact for fact in after.values() if not fact.retired),
            key=lambda fact: (fact.pinned, fact.confidence, fact.updated_at),
        )
        over = holding[: max(len(holding) - self.max_facts, 0)]
        return list(
            {fact.id: fact for fact in [*changed, *(retire(fact, "over max_facts", now) for fact in over)]}.values()
        )


def changes_of(gated: Gated, facts: dict[str, Fact], now: datetime) -> list[Fact]:
    """The facts as they are after a reply: new ones, those that are surer now, and those that hold no longer."""
    confirmed = [
        facts[fact_id].model_copy(update={"confidence": raised(facts[fact_id].confidence), "updated_at": now})
        for fact_id in gated.confirmed
        if fact_id in facts
    ]
    retired = [
        retire(facts[entry.fact_id], entry.reason, now, entry.replaced_by)
        for entry in gated.retired
        if entry.fact_id in facts
    ]
    return [*gated.accepted, *confirmed, *retired]


def _with_neighbours(fact: Fact, said: Sequence[Line], places: dict[int, int]) -> Fact:
    """The fact with the words of the messages around its own: it is found by them too, which finds most."""
    found = [places[row_id] for row_id in fact.message_ids if row_id in places]
    if not found:
        return fact
    around = said[max(min(found) - 1, 0) : max(found) + 2]
    return fact.model_copy(update={"source": "\n".join(line.text[:_SOURCE_CHARACTERS] for line in around)})


def _day(now: datetime) -> date:
    return now.date()
