"""Reads what was said last in a session, by which facts are ranked."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

from llama_index.core.bridge.pydantic import BeforeValidator, Field, PrivateAttr
from pydantic import ValidationInfo, field_validator, model_validator
from typing_extensions import Self, TypedDict

from llama_index_memory_ext.background.jobs import JobKey, Jobs
from llama_index_memory_ext.background.locks import Recent, wait_for_owner
from llama_index_memory_ext.events import (
    ExtractionFailedEvent,
    FactsInjectedEvent,
    is_heard,
    send,
)
from llama_index_memory_ext.fact import (
    CATEGORIES,
    CONFIDENCE_WEIGHT,
    DEFAULT_MIN_CONFIDENCE,
    RECENCY_WEIGHT,
    SIMILARITY_WEIGHT,
    AgentView,
    Fact,
    Scope,
    utc_now,
    view_of,
)
from llama_index_memory_ext.facts.book import FactBook
from llama_index_memory_ext.facts.known import UserFacts
from llama_index_memory_ext.facts.prompt import check_categories
from llama_index_memory_ext.facts.ranking import Weights, counted_line, explain
from llama_index_memory_ext.language.loading import start_loading
from llama_index_memory_ext.language.tokens import checked_languages
from llama_index_memory_ext.models.local_embeddings import EmbedModel, embed_model_of
from llama_index_memory_ext.models.responses import Usage
from llama_index_memory_ext.reader_block import DEFAULT_SESSION_ID, LogBlock
from llama_index_memory_ext.search.embeddings import EmbeddingRanker, model_key
from llama_index_memory_ext.search.tfidf import FactRanker, TfidfRanker
from llama_index_memory_ext.settings import Switch, check_id
from llama_index_memory_ext.store.facts import KeptVectors
from llama_index_memory_ext.store.tables import (
    LogPage,
    Seen,
    Snapshot,
    anonymous,
    name_of,
)
from llama_index_memory_ext.text.messages import (
    Utterance,
    question_in,
    spoken,
    turns_of,
)
from llama_index_memory_ext.text.tokens import CountedText

if TYPE_CHECKING:
    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.facts.consolidation import Proposal
    from llama_index_memory_ext.facts.extraction import Extractor
    from llama_index_memory_ext.facts.ranking import (
        Explanation,
        RankedFact,
        Ranking,
        ShowableFacts,
    )


_CONTEXT_ROWS = 40


class FactsOptions(TypedDict, total=False):
    """How facts are extracted, ranked and shown: settings of a ``RelevantFactsBlock``, which documents them."""

    agent_id: str | None
    scope: Scope | None
    extract_facts: bool
    extract_every_turns: int
    wait_for_facts: float
    retire_with_messages: bool
    verify: bool
    categories: Sequence[str] | Mapping[str, str]
    extraction_prompt: str | None
    max_facts: int | None
    min_confidence: float
    review: bool
    show_metadata: Sequence[str]
    similarity_weight: float
    confidence_weight: float
    recency_weight: float
    context_turns: int
    min_similarity: float | None
    ranker_factory: Callable[[], FactRanker]


logger = logging.getLogger(__name__)


class RelevantFactsBlock(LogBlock):
    """What is known about the user and matters for the question, best first, within a token limit.

    Facts are extracted by a model from the log of a ``MemoryStore``, in the background,
    and belong to a ``user_id``, or to the session if there is none. They are ranked by
    ``similarity_weight * similarity + confidence_weight * confidence + recency_weight *
    recency``: recency is halved by each 40 newer facts, and counts the less the fewer
    words a question and the turns before it have (``rank``). Of a question about a
    time, the facts of that time count as recent.

    With an ``agent_id`` it shows the facts that all agents of the user share and those
    of this agent, and what is learned is this agent's own; but what takes the place of
    a shared fact is shared. ``scope`` "agent" leaves the shared facts out, and "user"
    the agent's own. Facts of other agents are neither shown nor changed.

    Without a ``store`` the block keeps a private one in memory, fed by what the memory
    flushes. Give the memory the same store otherwise.
    """

    name: str = Field(
        default="relevant_facts",
        description="The name of the element around the facts.",
    )
    token_limit: int = Field(
        default=2_000, ge=0, description="Most tokens of the facts, all tags included."
    )
    context_turns: int = Field(
        default=3, ge=1, description="Turns that rank facts, the current one included."
    )
    user_id: str | None = Field(
        default=None, description="Whose facts these are; None: those of each session."
    )
    agent_id: str | None = Field(
        default=None,
        description="The agent that may have facts of its own; None: none has.",
    )
    scope: Scope | None = Field(
        default=None,
        description='"user": what all share, "agent": its own, or "both"; None: "both" if there is an agent.',
    )
    similarity_weight: float = Field(
        default=SIMILARITY_WEIGHT,
        ge=0,
        description="What similarity weighs in a score.",
    )
    confidence_weight: float = Field(
        default=CONFIDENCE_WEIGHT,
        ge=0,
        description="What confidence weighs in a score.",
    )
    recency_weight: float = Field(
        default=RECENCY_WEIGHT,
        ge=0,
        validate_default=True,
        description="For newer facts; 0: age does not matter.",
    )
    # 0.5 asks for a rare word, a few common ones or most of a short question in common,
    # and no more in another fact.
    min_similarity: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Facts that concern the question less are left out; None: those with less than a tenth of the "
        "best one's similarity, but for 12; 0: none is.",
    )
    embed_model: EmbedModel = Field(
        default=None, exclude=True, repr=False, description="None: words alone."
    )
    ranker_factory: Callable[[], Any] = Field(
        default=TfidfRanker,
        exclude=True,
        repr=False,
        description="Makes an empty FactRanker, which compares facts.",
    )
    max_facts: int | None = Field(
        default=None, ge=1, description="The least confident facts over it are retired."
    )
    min_confidence: float = Field(
        default=DEFAULT_MIN_CONFIDENCE,
        ge=0,
        le=1,
        description="New facts need as much.",
    )
    extract_facts: Switch = Field(
        default=True, description="Whether new facts are extracted."
    )
    extract_every_turns: int = Field(
        default=1, ge=1, description="Finished turns that wait for one extraction."
    )
    wait_for_facts: float = Field(
        default=0.5,
        ge=0,
        description="Most seconds that a question waits for facts that are being extracted from another session of the "
        "user; 0: it never waits.",
    )
    retire_with_messages: Switch = Field(
        default=False, description="Whether facts go with the messages that say them."
    )
    verify: Switch = Field(
        default=False,
        description="Whether a second call checks what the first one has extracted.",
    )
    review: Switch = Field(
        default=False,
        description="Whether what is learned is pending until somebody approves it.",
    )
    show_metadata: tuple[str, ...] = Field(
        default=(), description="Keys of facts' metadata that the model is shown."
    )
    categories: Annotated[Any, BeforeValidator(check_categories)] = Field(
        default=CATEGORIES,
        description="The kinds of facts; with a dict, what each of them is.",
    )
    extraction_prompt: str | None = Field(
        default=None,
        max_length=20_000,
        pattern=r"\S",
        description="What to look for instead of our words; not blank.",
    )

    _users: Recent[tuple[str, AgentView, tuple[str, ...]], UserFacts] = PrivateAttr(
        default_factory=Recent
    )
    _own_namespace: str | None = PrivateAttr(default=None)
    # What was said last in the log of each session.
    _talks: Recent[str, tuple[Seen, tuple[Utterance, ...]]] = PrivateAttr(
        default_factory=Recent
    )
    # The epoch of each session in which no more facts were to retire.
    _retired_in: Recent[str, int] = PrivateAttr(default_factory=Recent)
    _shown: Recent[tuple[object, ...], CountedText] = PrivateAttr(
        default_factory=Recent
    )
    _rejections: Counter[str] = PrivateAttr(default_factory=Counter)
    _usage: dict[str, Usage] = PrivateAttr(default_factory=dict)

    # A field's check, because an error of the whole block would carry all of its
    # fields, the model too.
    @field_validator("recency_weight")
    @classmethod
    def _check_weights(cls, value: float, info: ValidationInfo) -> float:
        """Return the last of the weights, so that the others are known."""
        similarity, confidence = (
            info.data.get(f"{name}_weight", 1.0)
            for name in ("similarity", "confidence")
        )
        Weights(similarity, confidence, value).shares()
        return value

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this block."""
        return "RelevantFactsBlock"

    @model_validator(mode="after")
    def _check_whose(self) -> Self:
        check_id("user_id", self.user_id)
        view_of(self.agent_id, self.scope)
        return self

    @property
    def view(self) -> AgentView:
        """Which facts of a user are seen, and whose new ones are; a FactError if the fields contradict each other."""
        return view_of(self.agent_id, self.scope)

    async def _aget(
        self,
        messages: list[ChatMessage] | None = None,
        *,
        session_id: str | None = None,
        snapshot: Snapshot | None = None,
        **block_kwargs: Any,
    ) -> str:
        """Return the facts as text, one line-ended element per fact; empty if none is known.

        A memory on the same store gives its ``snapshot`` of the session.
        """
        text = await self._text_for(messages or [], self._see(session_id), snapshot)
        if self.extract_facts and self.known_llm() is not None:
            # Behind the prompt, while the model answers.
            start_loading("llama_index_memory_ext.facts.extraction")
        return text

    async def _text_for(
        self,
        messages: Sequence[ChatMessage],
        session_id: str,
        snapshot: Snapshot | None,
    ) -> str:
        await self.tokenizer_fn.load()
        started = perf_counter()
        if snapshot is None:
            await self.await_learned(session_id)
        said, now = await self._said_before(session_id, snapshot)
        if snapshot is None and not said:
            self._advise(messages)
        known = await self._known(session_id).read(now)
        turns = turns_of(said)[-self.context_turns :]
        question, context = question_in(messages, turns, self.context_turns)
        showable = await known.asked(question)
        if not showable.facts:
            return ""
        # Fields may be set at any time.
        weights = (
            self.similarity_weight,
            self.confidence_weight,
            self.recency_weight,
            self.min_similarity,
        )
        settings = (*weights, checked_languages(self.languages), self.token_limit)
        key = (
            *known.version,
            *settings,
            showable.period,
            known.namespace,
            self.view,
            question,
            *context,
        )
        key += (self.show_metadata,)
        text = cached = self._shown.get(key)
        if text is None:
            prepared = await showable.prepare([question, *context])
            room = self._room
            shown = [
                (one, showable.lines[one.fact.id])
                for one in self._rank(showable, question, context).fit(room)
            ]
            joined = "".join([line for _, line in shown])
            # By some tokenizers a text has more tokens than its lines.
            while shown and self.tokenizer_fn.count(joined) > room:
                shown.pop()
                joined = "".join([line for _, line in shown])
            text = CountedText(joined, self.tokenizer_fn.count(joined), shown)
            if prepared:
                self._shown.put(key, text)
        if text and is_heard():
            send(
                FactsInjectedEvent(
                    session_id=session_id,
                    user_id=name_of(known.namespace),
                    agent_id=self.view.own,
                    fact_ids=[one.fact.id for one, _ in text.shown],
                    known=len(showable.facts),
                    tokens=text.tokens,
                    token_limit=self.token_limit,
                    cached=cached is not None,
                    seconds=perf_counter() - started,
                )
            )
        return text

    async def atruncate(self, content: Any, tokens_to_truncate: int) -> str | None:
        """Return the facts without the lowest-ranked: at least ``tokens_to_truncate`` tokens shorter, or None."""
        if isinstance(content, str):
            lines = content.splitlines(keepends=True)
        else:
            lines = []
        gone = 0
        while lines and gone < tokens_to_truncate:
            gone += self.tokenizer_fn.count(lines.pop())
        return "".join(lines) or None

    def namespace_of(self, session_id: str) -> str:
        """Return the namespace of a session's facts: the user, or one that no user can have."""
        if self._own_namespace is not None:
            return self._own_namespace
        if self.user_id is None:
            return anonymous(session_id)
        return self.user_id

    def belong_to(self, namespace: str) -> Self:
        """Let these be the facts of the user of a memory, who is a speaker of its session before the first message."""
        self._own_namespace = namespace
        return self

    def book(self, session_id: str = DEFAULT_SESSION_ID) -> FactBook:
        """Return the facts of a session's user, to look at and to change."""
        return FactBook(
            self._store,
            self.namespace_of(session_id),
            agent_id=self.agent_id,
            scope=self.scope,
            categories=tuple(self.categories),
            search=partial(self.asearch, session_id=session_id),
            propose=self.apropose,
        )

    async def apropose(self, facts: Sequence[Fact], token_limit: int) -> list[Proposal]:
        """Return the proposals to tidy up these facts that the model confirms; see ``FactBook.aconsolidate``."""
        from llama_index_memory_ext.facts.consolidation import (
            confirmed,
            proposals,
        )  # at first use

        found = await asyncio.to_thread(proposals, facts, utc_now())
        return await confirmed(found, token_limit, self.chosen_llm(), self.tokenizer_fn)

    async def asearch(
        self, question: str, *, session_id: str = DEFAULT_SESSION_ID
    ) -> list[RankedFact]:
        """Return the facts that have something in common with a question, best first; [] if none has.

        A question about the past finds past facts, too; their entries say ``past``.
        With an ``embed_model`` nearly every fact has something in common. The turns
        before the question are not looked at.
        """
        ranking = await self._ranked(question, session_id)
        return await asyncio.to_thread(ranking.similar)

    async def aexplain(
        self,
        question: str,
        *,
        session_id: str = DEFAULT_SESSION_ID,
        context: Sequence[str] = (),
    ) -> Explanation:
        """Why each fact is shown for a question, or not; prints as a table, and shows as one in a notebook.

        For a question about the past, each past fact is one of them. Only a block
        without a ``user_id`` needs a ``session_id``; ``context`` are the turns before,
        oldest first.
        """
        ranking = await self._ranked(question, session_id, context)
        return await asyncio.to_thread(explain, ranking, self._room)

    @property
    def rejections(self) -> dict[str, int]:
        """How many entries of the model's replies were not stored by this block, for each reason."""
        return dict(self._rejections)

    @property
    def usage(self) -> dict[str, Usage]:
        """The calls of the model by this block and their tokens, by kind: "facts" and "verification"."""
        return dict(self._usage)

    @property
    def jobs(self) -> Jobs:
        """The jobs that extract facts."""
        return self._store.jobs.jobs(
            "facts", "Facts were not extracted", ExtractionFailedEvent
        )

    def reader_of(self, session_id: str) -> str:
        """Return the name of this block's cursor in a session."""
        namespace = self.namespace_of(session_id)
        own = self.view.own
        # Quoted, so that no id of a user makes the name of another reader.
        if own is None:
            return f"{self.name} of {namespace}"
        return f"{self.name} by {own!r} of {namespace}"

    def job_key(self, session_id: str) -> JobKey:
        """Return the key of this block's job of a session."""
        owner = (*self._store.database.identity, self.namespace_of(session_id))
        return JobKey(session_id, self.reader_of(session_id), owner)

    def readers_of(self, session_id: str) -> tuple[str, ...]:
        """This block's cursor, if it extracts facts."""
        if self.extract_facts:
            return (self.reader_of(session_id),)
        return ()

    def extractor(self, session_id: str, *, at_once: bool = False) -> Extractor:
        """What extracts facts from a session; ``at_once``: a turn that fails is tried again without a pause."""
        # At the first extraction: all that reads replies and checks facts comes with
        # it.
        from llama_index_memory_ext.facts.extraction import Extractor

        return Extractor(
            self._known(session_id),
            session_id,
            self.reader_of(session_id),
            self,
            self._rejections,
            self._usage,
            self.max_facts,
            self.min_confidence,
            verify=self.verify,
            categories=self.categories,
            instructions=self.extraction_prompt,
            review=self.review,
            is_own=self._own_namespace is not None,
            at_once=at_once,
        )

    async def aopen(self, session_id: str) -> None:
        """Begin with a session: what other sessions of this user have left unread is extracted, too."""
        if self._extracts():
            for other in await self._store.users.read_by(
                self.reader_of(session_id), pending=True
            ):
                if other != session_id:
                    # For ``aclose``, which waits for it.
                    self._see(other)
                    self.jobs.start(
                        self.job_key(other),
                        self.extractor(other).extract,
                        self.retry_seconds,
                    )

    async def await_learned(self, session_id: str) -> None:
        """Wait for facts that are being extracted from other sessions of the user, as ``wait_for_facts`` says.

        What was said in the session itself is in its record, or still in short-term
        memory.
        """
        await wait_for_owner(
            self.job_key(session_id).owner, self.wait_for_facts, but=session_id
        )

    async def anotice(
        self, session_id: str, *, answer: ChatMessage | None = None
    ) -> None:
        """Return a turn of the session has ended, with the ``answer`` just now: extract facts from it in the background."""
        if self._extracts():
            if answer is not None and not self._store.database.in_memory:
                self._store.jobs.unread.add(session_id)
            work = partial(
                self.extractor(session_id).extract,
                least_turns=self.extract_every_turns,
                answered=True,
            )
            cause = None if answer is None else answer.content
            self.jobs.start(
                self.job_key(session_id), work, self.retry_seconds, cause=cause
            )

    async def anotice_flush(
        self, session_id: str, messages: Sequence[ChatMessage]
    ) -> None:
        """As ``anotice``, unless the answer with which these messages end has started the extraction."""
        if not self.jobs.takes_care_of(self.job_key(session_id), messages[-1].content):
            await self.anotice(session_id)

    async def aflush(self, session_id: str | None = None) -> None:
        """Extract what is left of a session, or of each that this block has seen, also of a turn that goes on.

        A failure is logged, and tried again.
        """
        for session in self._take_seen(session_id):
            if self._extracts():
                await self.jobs.finish(
                    self.job_key(session), self.extractor(session, at_once=True).extract
                )
                # What has failed was told.
                self._store.jobs.unread.discard(session)

    async def anotice_deletion(self, session_id: str = DEFAULT_SESSION_ID) -> bool:
        """Messages of the session may have been deleted: with ``retire_with_messages``, retire the facts in them.

        The next question in the session does so, too. A fact stays if it is pinned, if
        its quote stands in another message of the user's in this session, or if
        somebody has restored it. Returns False if it has to be done again, because
        facts were deleted at the same time.
        """
        if not self.retire_with_messages:
            return True
        from llama_index_memory_ext.facts.source import retire_deleted  # at first use

        return await retire_deleted(self._known(session_id), session_id)

    async def release(self) -> None:
        """Close a private store without flushing, and cancel what is being embedded."""
        for known in self._users.values():
            await known.stop()
        await super().release()

    def _extracts(self) -> bool:
        """Return whether facts are extracted now. Once in a process it is logged by which model, or that there is none."""
        llm = self.known_llm()
        if self.extract_facts:
            _tell_of_model(
                ""
                if llm is None
                else f"{type(llm).__name__} {getattr(llm, 'model', '')}".strip()
            )
        return self.extract_facts and llm is not None

    def _known(self, session_id: str) -> UserFacts:
        """Return the facts of a session's user, as far as this process knows them."""
        key = namespace, view, shown = (
            self.namespace_of(session_id),
            self.view,
            self.show_metadata,
        )
        known = self._users.get(key)
        if known is None:
            line_of = partial(counted_line, counter=self.tokenizer_fn, metadata_keys=shown)
            known = UserFacts(
                self._store,
                namespace,
                view,
                partial(self._make_ranker, namespace),
                line_of,
            )
            self._users.put(key, known)
        return known

    def _make_ranker(self, namespace: str) -> FactRanker:
        languages = checked_languages(self.languages)
        # One of the program's own knows the languages itself.
        is_ours = self.ranker_factory is TfidfRanker
        if is_ours and languages:
            ranker: FactRanker = TfidfRanker(languages=languages)
        else:
            ranker = self.ranker_factory()
        model = embed_model_of(self.embed_model)
        if model is None:
            return ranker
        keeper = KeptVectors(self._store.database, namespace, model_key(model))
        embedding_ranker = EmbeddingRanker(model, lexical=ranker, keeper=keeper)
        self._store.jobs.watch(embedding_ranker)
        return embedding_ranker

    async def _ranked(
        self, question: str, session_id: str, context: Sequence[str] = ()
    ) -> Ranking:
        showable = await (await self._known(session_id).read()).asked(question)
        await showable.prepare([question, *context])
        # Of many facts this takes longer than the event loop should be blocked.
        return await asyncio.to_thread(self._rank, showable, question, context)

    def _rank(
        self, showable: ShowableFacts, question: str, context: Sequence[str]
    ) -> Ranking:
        weights = Weights(
            self.similarity_weight, self.confidence_weight, self.recency_weight
        )
        ranking = showable.rank(
            question, context, weights, checked_languages(self.languages)
        )
        return ranking._replace(min_similarity=self.min_similarity)

    @property
    def _room(self) -> int:
        """Tokens for all facts: the limit without the element around them."""
        return max(
            0,
            self.token_limit
            - self.tokenizer_fn.count(f"<{self.name}>\n</{self.name}>\n"),
        )

    async def _said_before(
        self, session_id: str, snapshot: Snapshot | None
    ) -> tuple[Sequence[Utterance], tuple[int, int] | None]:
        """Return what was said last, and how far the changes of facts have come, if that is known."""
        seen, said = self._talks.get(session_id) or (Seen(), ())
        now: Snapshot | LogPage | None = snapshot
        if snapshot:
            rows = snapshot.log_behind(seen)
        else:
            rows = None
        if now is None or rows is None:
            # No cursor of a reader: what was left behind was said all the same.
            watch = self.namespace_of(session_id)
            read = partial(
                self._store.readers.page,
                session_id,
                "",
                limit=_CONTEXT_ROWS,
                watch=watch,
            )
            now = page = await read(seen)
            if not page.fresh:
                seen = Seen()
                said = ()
                now = page = await read(seen)
            rows = page.rows
        if rows:
            new = [Utterance(row.id, row.role, spoken(row.message)) for row in rows]
            said = (*said, *(one for one in new if one.text))[-_CONTEXT_ROWS:]
            seen = Seen(now.epoch, 0, rows[-1].id)
        self._talks.put(session_id, (seen, said))
        # Once in an epoch, which ends when messages are deleted.
        if self.retire_with_messages and self._retired_in.get(session_id) != now.epoch:
            if await self.anotice_deletion(session_id):
                self._retired_in.put(session_id, now.epoch)
            return said, None
        return said, now.facts


@cache
def _tell_of_model(name: str) -> None:
    if name:
        logger.info("Facts are extracted by %s.", name)
        return
    logger.warning(
        "No facts are extracted, because there is no model: pass llm=... or set Settings.llm, and what was said until "
        "then is read, too. If none are wanted, say extract_facts=False."
    )
