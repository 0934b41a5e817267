"""The facts block: learns facts and shows facts that fit the question, within a token limit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import MessageRole
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from pydantic import ValidationInfo, field_validator
from typing_extensions import TypedDict

from llama_index_memory_ext.agent_view import (
    Scope,  # noqa: TC001 - programs read the types of FactsOptions
)
from llama_index_memory_ext.background.recent import Recent
from llama_index_memory_ext.blocks import DEFAULT_SESSION_ID
from llama_index_memory_ext.blocks.learning import LearningBlock
from llama_index_memory_ext.blocks.log_end import read_log_end
from llama_index_memory_ext.errors import LimitError
from llama_index_memory_ext.events import (
    FactsInjectedEvent,
    send,
)
from llama_index_memory_ext.facts.book import FactBook
from llama_index_memory_ext.facts.explanation import Explanation, explain
from llama_index_memory_ext.facts.lines import counted_line
from llama_index_memory_ext.facts.ranking import (
    FLOOR_BEHIND_RECORD,
    IN_CONVERSATION,
    PROFILE_NAME,
    RankedFact,
    Ranking,
    RecordInPrompt,
    ShowableFacts,
    Surroundings,
)
from llama_index_memory_ext.facts.user_facts import UserFacts
from llama_index_memory_ext.models.local_embeddings import EmbedModel, embed_model_of
from llama_index_memory_ext.search.embeddings import EmbeddingRanker, model_key
from llama_index_memory_ext.search.tfidf import FactRanker, TfidfRanker
from llama_index_memory_ext.store.tables import PROFILE_READER, display_name
from llama_index_memory_ext.store.vectors import KeptVectors
from llama_index_memory_ext.text.parts import (
    NO_PARTS,
    Part,
    Section,
    counted_section,
)
from llama_index_memory_ext.text.turns import (
    Question,
    question_in,
    turns_of,
)
from llama_index_memory_ext.words.asking import is_statement
from llama_index_memory_ext.words.tokens import checked_languages

if TYPE_CHECKING:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.learning.extractor import Extractor
    from llama_index_memory_ext.store import MemoryStore
    from llama_index_memory_ext.store.rows import FactsVersion, LogRow, Snapshot


_PROFILE_LIMIT = 1_000
# Tokens of unread messages in a prompt.
_UNREAD_IN_PROMPT = 500


class FactsOptions(TypedDict, total=False):
    """How facts are extracted, ranked and shown: settings of a ``RelevantFactsBlock``, which documents them."""

    agent_id: str | None
    scope: Scope | None
    extract_facts: bool
    extract_every_turns: int | None
    wait_for_facts: float
    categories: Sequence[str] | Mapping[str, str]
    extraction_prompt: str | None
    max_facts: int | None
    min_confidence: float
    profile_token_limit: int | None
    review: bool
    context_turns: int
    min_similarity: float | None
    ranker_factory: Callable[[], FactRanker]


logger = logging.getLogger(__name__)


class FactsForPrompt(NamedTuple):
    """The facts of a prompt: ``profile`` comes before the record, ``question`` after it."""

    profile: Section = NO_PARTS
    question: Section = NO_PARTS


class _LastPrompt(NamedTuple):
    """The question of the last prompt of a session, its record if there was one, and its facts.

    ``key``: the facts, settings and texts for which the facts were chosen.
    """

    question: Question = Question("", [])
    record: RecordInPrompt | None = None
    key: tuple[object, ...] = ()
    facts: FactsForPrompt = FactsForPrompt()


class RelevantFactsBlock(LearningBlock):
    """Shows the facts of a user that fit the question, best first, within a token limit.

    A model extracts facts from the log of a ``MemoryStore``, in the background. The
    facts belong to a ``user_id``, or to the session if there is none. They are ranked
    by similarity, confidence and recency. Recency is halved for each 40 newer facts, and
    counts less while the question and the turns before it have under 15 terms. For a
    question about a time, the facts of that time are recent.

    With an ``agent_id``, the block shows the facts that all agents of the user share
    and the facts of this agent. New facts are this agent's own, but a fact that
    replaces a shared fact is shared. ``scope`` "agent" leaves the shared facts out, and
    "user" the agent's own. Facts of other agents are neither shown nor changed.

    Without a ``store`` the block keeps a private store in memory, which the memory
    fills when it flushes. Otherwise give the memory the same store.
    """

    name: str = Field(
        default="relevant_facts",
        description="The name of the element around the facts.",
    )
    token_limit: int = Field(
        default=2_000, ge=0, description="Maximum tokens of the facts, tags included."
    )
    profile_token_limit: int | None = Field(
        default=None,
        ge=0,
        validate_default=True,
        description="How many of these tokens go to the profile: facts before the record of a `CondensedMemory`, which "
        "change when the record is cut; 0: all facts come after it; default: half of the limit, at most 1,000.",
    )
    context_turns: int = Field(
        default=3, ge=1, description="Turns that rank facts, the current one included."
    )
    # 0.5 asks for a rare word, a few common ones or most of a short question in common,
    # and no more in another fact.
    min_similarity: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Facts that concern the question less are left out; None: facts with less than a tenth of the "
        "best similarity, except the best 12 of them; 0: no fact is left out.",
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
    _prompts: Recent[str, _LastPrompt] = PrivateAttr(default_factory=Recent)
    _last_session: str = PrivateAttr(default=DEFAULT_SESSION_ID)

    @field_validator("profile_token_limit")
    @classmethod
    def _check_profile(cls, value: int | None, info: ValidationInfo) -> int | None:
        limit = info.data.get("token_limit")
        if value is not None and limit is not None and value > limit:
            raise LimitError(
                f"profile_token_limit must be a part of the {limit} tokens of all facts; got {value}. "
                "Raise token_limit (facts_token_limit of the memory), or lower profile_token_limit."
            )
        return value

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this block."""
        return "RelevantFactsBlock"

    async def _aget(
        self,
        messages: list[ChatMessage] | None = None,
        *,
        session_id: str | None = None,
        **block_kwargs: Any,
    ) -> str:
        """Return the facts as text, an element and a newline for each; "" without facts."""
        facts = await self.aselect(messages or [], session_id)
        return self._text_of(facts.question)

    async def aselect(
        self,
        messages: Sequence[ChatMessage],
        session_id: str | None = None,
        snapshot: Snapshot | None = None,
        record: RecordInPrompt | None = None,
        unread: Sequence[LogRow] = (),
        log_store: MemoryStore | None = None,
    ) -> FactsForPrompt:
        """Return the facts for a prompt; without a ``record`` the profile is empty.

        A memory gives its ``snapshot`` of the session, and the ``unread`` messages of
        ``wait_for_others``, which are shown because their facts are not extracted yet.
        ``log_store``: the store of its log, which is not the store of the facts if the
        memory is temporary.
        """
        started = perf_counter()
        session_id = self._see(session_id)
        await self.tokenizer_fn.load()
        if snapshot is None:
            questions = [m.content for m in messages if m.role == MessageRole.USER]
            await self.aopen(session_id, questions[-1] if questions else None)
            unread = await self.wait_for_others(session_id)
        log_store = log_store or self._store
        log_end = await read_log_end(
            log_store, session_id, self.namespace_of(session_id), snapshot
        )
        stored = log_end.facts if log_store is self._store else None
        user_facts = await self._read_facts(session_id, stored)
        turns = turns_of(log_end.lines)[-self.context_turns :]
        question = question_in(messages, turns, self.context_turns)
        self._start_if_left(session_id)
        self._last_session = session_id
        facts = await self._choose(session_id, user_facts, question, record, unread)
        self._announce(session_id, user_facts, facts, perf_counter() - started)
        return facts

    async def _choose(
        self,
        session_id: str,
        user_facts: UserFacts,
        question: Question,
        record: RecordInPrompt | None,
        unread: Sequence[LogRow],
    ) -> FactsForPrompt:
        """Return the facts for a question, and the unread messages behind them."""
        # Another memory of the user may read newer facts meanwhile.
        version = user_facts.version
        showable = await user_facts.showable_for(question.text)
        surroundings = await self._surroundings(
            user_facts, showable, question.text, record
        )
        unread_text = await self._show_unread(unread, question.text, surroundings.limit)
        surroundings = surroundings._replace(
            limit=surroundings.limit - unread_text.tokens
        )
        # All settings and texts that choose among the same facts: the program may set
        # fields of the block at any time.
        key = (
            version,
            user_facts.namespace,
            self._facts_key,
            self.min_similarity,
            showable.period,
            surroundings,
            question.text,
            *question.context,
        )
        last = self._last_prompt(session_id)
        facts = FactsForPrompt()
        if last.key == key:
            facts = last.facts
        elif user_facts.facts:
            # Vectors that are missing now may be there for the next call.
            if not await showable.prepare([question.text, *question.context]):
                key = ()
            facts = await asyncio.to_thread(
                self._fill, showable, question, surroundings
            )
        self._prompts.put(session_id, _LastPrompt(question, record, key, facts))
        if not unread_text:
            return facts
        parts = [*facts.question.parts, *unread_text.parts]
        return facts._replace(question=counted_section(parts, self.tokenizer_fn))

    def _fill(
        self, showable: ShowableFacts, question: Question, surroundings: Surroundings
    ) -> FactsForPrompt:
        """Return the lines of the profile, and of the best facts that fit beside it."""
        ranking = self._rank(showable, question, surroundings)
        return FactsForPrompt(
            self._section_of(ranking.profile(), showable.lines, self.profile_limit),
            self._section_of(
                ranking.fit(surroundings.limit), showable.lines, surroundings.limit
            ),
        )

    def _section_of(
        self,
        entries: Sequence[RankedFact],
        line_of: Mapping[str, Part],
        limit: int,
    ) -> Section:
        """Return the lines of facts within the limit, with the facts that they show."""
        lines = []
        tokens = 0
        for entry in entries:
            line = line_of[entry.fact.id]
            lines.append(Part(line.kind, line.text, line.tokens, sources=(entry,)))
            tokens += line.tokens
        if self.tokenizer_fn.function is None:
            # With an encoding, the tokens of lines add up to the tokens of their text.
            return Section(lines, tokens)
        section = counted_section(lines, self.tokenizer_fn)
        if section.tokens > limit:
            return section.without(section.tokens - limit, self.tokenizer_fn)
        return section

    def _announce(
        self,
        session_id: str,
        user_facts: UserFacts,
        facts: FactsForPrompt,
        seconds: float,
    ) -> None:
        """Send an event about the facts of a prompt."""
        entries = [*facts.profile.sources, *facts.question.sources]
        if not entries:
            return
        tokens = facts.profile.tokens
        tokens += sum(p.tokens for p in facts.question.parts if p.kind == "fact")
        send(
            FactsInjectedEvent(
                session_id=session_id,
                user_id=display_name(user_facts.namespace),
                agent_id=self.view.own,
                fact_ids=[entry.fact.id for entry in entries],
                profile_fact_ids=[entry.fact.id for entry in facts.profile.sources],
                known=len(user_facts.present.facts),
                tokens=tokens,
                profile_tokens=facts.profile.tokens,
                token_limit=self.token_limit,
                seconds=seconds,
            )
        )

    async def _show_unread(
        self, rows: Sequence[LogRow], question: str, limit: int
    ) -> Section:
        """Return unread messages of other sessions, at most half of the limit and 500 tokens; empty for none."""
        if not rows:
            return NO_PARTS
        from llama_index_memory_ext.record.unread import (
            show_unread,  # while another session is unread
        )

        return await asyncio.to_thread(
            show_unread,
            rows,
            question,
            min(limit // 2, _UNREAD_IN_PROMPT),
            self.tokenizer_fn,
            languages=checked_languages(self.languages),
            zone=self.zone,
        )

    async def _surroundings(
        self,
        user_facts: UserFacts,
        showable: ShowableFacts,
        question: str,
        record: RecordInPrompt | None,
    ) -> Surroundings:
        """Return the profile, and the limits that it leaves for the facts for the question.

        Without a record, or with a profile limit of 0, only the limit is set. Beside a
        record, a statement gets no facts but the profile.
        """
        remaining = self._limit_within(PROFILE_NAME, self.profile_limit)
        if record is None or not remaining:
            return Surroundings(self._limit_within(self.name, self.token_limit))
        # The choice of the profile is stored as the state of a reader.
        reader = f"{PROFILE_READER}{self.reader_of(record.session_id)}"
        limit = self.token_limit
        profile = []
        for fact in await user_facts.profile(reader, record, remaining):
            line = showable.lines.get(fact.id)
            # Another task may have read a newer fact since.
            if line and line.tokens <= remaining:
                profile.append(fact)
                remaining -= line.tokens
        if profile:
            # The profile takes the tokens of its facts, and of the element around them.
            limit -= self.profile_limit - remaining
        if is_statement(question):
            limit = 0
        return Surroundings(
            self._limit_within(self.name, limit),
            tuple(profile),
            showable.stated_in(record.session_id, record.shown_ids),
            FLOOR_BEHIND_RECORD,
            remaining,
        )

    def book(self, session_id: str = DEFAULT_SESSION_ID) -> FactBook:
        """Return the facts of a session's user, to read and to change."""
        return FactBook(
            self._store,
            self.namespace_of(session_id),
            agent_id=self.agent_id,
            scope=self.scope,
            categories=tuple(self.categories),
            search=partial(self.asearch, session_id=session_id),
            learn=partial(self.alearn, session_id),
            time_zone=self.zone,
        )

    async def asearch(
        self, question: str, *, session_id: str = DEFAULT_SESSION_ID
    ) -> list[RankedFact]:
        """Return the facts that have something in common with a question, best first; [] for none.

        A question about the past finds past facts, too; their entries say ``past``.
        With an ``embed_model`` nearly every fact has something in common. The turns
        before the question do not count.
        """
        await self.alearn(session_id)
        ranking = await self._ranked(Question(question, []), session_id)
        return await asyncio.to_thread(ranking.similar)

    async def aexplain(
        self,
        question: str,
        *,
        session_id: str | None = None,
        context: Sequence[str] = (),
        most: int | None = None,
    ) -> Explanation:
        """Return why each fact is shown for a question, or not, as a table for a terminal or a notebook.

        For a question about the past, past facts are included. ``context`` are the
        turns before, oldest first. The last prompt of the session gives the profile and
        the recalled messages; in a new process, read a prompt (``aget``) first. Default:
        the session of the last prompt. ``most`` leaves out the facts that are neither
        shown nor among so many of the best.
        """
        session_id = session_id or self._last_session
        await self.alearn(session_id)
        record = self._last_prompt(session_id).record
        ranking = await self._ranked(
            Question(question, list(context)), session_id, record
        )
        return await asyncio.to_thread(explain, ranking, most)

    @property
    def last_question(self) -> Question:
        """The question of the last prompt, and the turns before it, as ``aexplain`` takes them."""
        return self._last_prompt(self._last_session).question

    def _last_prompt(self, session_id: str) -> _LastPrompt:
        return self._prompts.get(session_id) or _LastPrompt()

    def extractor(self, session_id: str, *, at_once: bool = False) -> Extractor:
        """Return the extractor of a session. ``at_once``: a turn that fails is tried again without a pause."""
        # Imported at the first extraction: they load all code that reads replies and checks facts.
        from llama_index_memory_ext.learning.batch import BatchReader
        from llama_index_memory_ext.learning.extractor import Extractor
        from llama_index_memory_ext.learning.request import RequestPlanner

        user_facts = self._user_facts(session_id)
        batches = BatchReader(
            user_facts,
            session_id,
            self.reader_of(session_id),
            self,
            is_own=self.has_record,
        )
        planner = RequestPlanner(
            user_facts, self.tokenizer_fn, self.categories, self.extraction_prompt
        )
        return Extractor(
            batches,
            planner,
            self._rejections,
            self._usage,
            self.max_facts,
            self.min_confidence,
            review=self.review,
            at_once=at_once,
        )

    def _user_facts(self, session_id: str) -> UserFacts:
        """Return the facts of a session's user, in the state that this process has read.

        All memories on the store with the same settings share this object.
        """
        namespace = self.namespace_of(session_id)
        cache = self._store.cache
        user_facts: UserFacts | None = cache.get(namespace, self._facts_key)
        if user_facts is not None:
            return user_facts
        line_of = partial(counted_line, counter=self.tokenizer_fn)
        make_ranker = partial(
            _make_ranker,
            self._store,
            namespace,
            self.ranker_factory,
            checked_languages(self.languages),
            embed_model_of(self.embed_model),
        )
        user_facts = UserFacts(
            self._store, namespace, self.view, make_ranker, line_of, self.zone
        )
        cache.put(namespace, self._facts_key, user_facts)
        return user_facts

    async def _read_facts(
        self, session_id: str, stored: FactsVersion | None = None
    ) -> UserFacts:
        """Return the facts of a session's user with all changes; ``stored`` as for ``UserFacts.read``."""
        user_facts = await self._user_facts(session_id).read(stored)
        self._store.cache.put(
            user_facts.namespace, self._facts_key, user_facts, len(user_facts.facts)
        )
        return user_facts

    @property
    def _facts_key(self) -> tuple[object, ...]:
        """The settings that facts in the cache of the store depend on."""
        # The cached facts keep the factory and the model alive, so no other object has
        # their ids.
        return (
            "facts",
            self.view,
            self.zone,
            self.tokenizer_fn,
            checked_languages(self.languages),
            id(self.ranker_factory),
            id(embed_model_of(self.embed_model)),
        )

    async def _ranked(
        self,
        question: Question,
        session_id: str,
        record: RecordInPrompt | None = None,
    ) -> Ranking:
        user_facts = await self._read_facts(session_id)
        showable = await user_facts.showable_for(question.text)
        surroundings = await self._surroundings(
            user_facts, showable, question.text, record
        )
        await showable.prepare([question.text, *question.context])
        # Ranking many facts takes long enough to block the event loop.
        return await asyncio.to_thread(self._rank, showable, question, surroundings)

    def _rank(
        self, showable: ShowableFacts, question: Question, surroundings: Surroundings
    ) -> Ranking:
        ranking = showable.score(
            question.text,
            question.context,
            IN_CONVERSATION,
            checked_languages(self.languages),
            surroundings,
        )
        return ranking._replace(min_similarity=self.min_similarity)

    @property
    def profile_limit(self) -> int:
        """The tokens of the profile, the element around it included; 0 for none."""
        if self.profile_token_limit is None:
            return min(_PROFILE_LIMIT, self.token_limit // 2)
        return self.profile_token_limit

    def _limit_within(self, name: str, limit: int) -> int:
        """Return the tokens for facts within an element of at most ``limit`` tokens."""
        return max(0, limit - self.tokenizer_fn.count(f"<{name}>\n</{name}>\n"))


def _make_ranker(
    store: MemoryStore,
    namespace: str,
    factory: Callable[[], FactRanker],
    languages: tuple[str, ...] | None,
    model: BaseEmbedding | None,
) -> FactRanker:
    """Return an empty ranker. It belongs to the cache of the store, and refers to no block."""
    # A ranker of the program chooses its languages itself.
    if factory is TfidfRanker and languages:
        ranker: FactRanker = TfidfRanker(languages=languages)
    else:
        ranker = factory()
    if model is None:
        return ranker
    keeper = KeptVectors(store.database, namespace, model_key(model))
    embedding_ranker = EmbeddingRanker(model, lexical=ranker, keeper=keeper)
    store.jobs.watch(embedding_ranker)
    return embedding_ranker
