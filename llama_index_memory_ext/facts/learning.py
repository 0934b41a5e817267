"""Learns facts from what the log of a session has gained: each part of it is asked about, stored and left behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from llama_index.core.bridge.pydantic import Field, PrivateAttr

from llama_index_memory_ext.background.jobs import Jobs
from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.events import ExtractionFailedEvent, FactsExtractedEvent, is_heard, send
from llama_index_memory_ext.fact import DEFAULT_MIN_CONFIDENCE, Fact, raised, retire
from llama_index_memory_ext.facts.batches import batch_end, said_at
from llama_index_memory_ext.facts.known_facts import Known, KnownFacts
from llama_index_memory_ext.log_block import DEFAULT_SESSION_ID, Remembered
from llama_index_memory_ext.store import Seen, owner
from llama_index_memory_ext.text.messages import Utterance, spoken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_memory_ext.facts.reply import ExtractionReply
    from llama_index_memory_ext.facts.validation import ValidatedReply
    from llama_index_memory_ext.store import LogRow, Unread

_BATCH_ROWS = 200
_BATCH_TOKENS = 8_000
_RELATED_FACTS = 10
_LEAST_SAID = 0.4
_TRIES = 3


@dataclass(frozen=True)
class Extracted:
    """What one batch of the log has given: how many messages were left behind, and how many facts changed.

    ``asked`` is whether a model was. All counts are 0 if another worker was faster, and nothing was stored.
    """

    messages: int = 0
    new: int = 0
    confirmed: int = 0
    retired: int = 0
    asked: bool = False


class _Learned(NamedTuple):
    """The facts as they are after a part of the conversation, what passed the gates, and the model's seconds."""

    changed: list[Fact]
    gated: ValidatedReply | None = None
    seconds: float = 0.0


class FactLearning(KnownFacts):
    """A block that extracts facts from the log by a model, beside the conversation."""

    max_facts: int | None = Field(default=None, ge=1, description="Facts over it are retired, the least sure first.")
    min_confidence: float = Field(default=DEFAULT_MIN_CONFIDENCE, ge=0, le=1)
    extract_facts: bool = Field(default=True, description="Whether new facts are extracted.")
    extract_every_turns: int = Field(default=1, ge=1, description="Finished turns that wait for one extraction.")

    _registered: Remembered[str, int] = PrivateAttr(default_factory=Remembered)
    _rejections: Counter[str] = PrivateAttr(default_factory=Counter)

    # ---- whose it is ---------------------------------------------------------------------------------

    def reader_of(self, session_id: str) -> str:
        """The name of this block's cursor in a session."""
        return f"{self.name} of {self.namespace_of(session_id)}"

    def known_as(self, session_id: str) -> tuple[str, ...]:
        """What a session is found by: whose it is, and this block's cursor if it extracts facts."""
        reader = (self.reader_of(session_id),) if self.extract_facts else ()
        return owner(self.namespace_of(session_id)), *reader

    def door_of(self, session_id: str) -> tuple[str, ...]:
        """What all who extract this user's facts in this process have in common."""
        return (*self._log.identity, self.namespace_of(session_id))

    def require_model(self) -> None:
        """Raise what LlamaIndex raises where no model was given and ``Settings.llm`` has none."""
        self._model()

    @property
    def rejections(self) -> dict[str, int]:
        """How many replies of the model were not stored by this block, for each reason."""
        return dict(self._rejections)

    # ---- beside the conversation ---------------------------------------------------------------------

    async def aopen(self, session_id: str) -> None:
        """Begin with a session: what other sessions of this user have left unread is extracted too."""
        if self.extract_facts:
            for other in await self._log.pending(self.reader_of(session_id)):
                if other != session_id:
                    self._jobs.start(other, self._extract_finished, self.retry_seconds)

    async def aflush(self, session_id: str = DEFAULT_SESSION_ID) -> None:
        """Extract what is left of the session; a failure is logged, and tried again by whoever comes next."""
        if self.extract_facts:
            await self._jobs.finish(session_id, partial(self._extract, least_turns=1))

    def _new_jobs(self) -> Jobs:
        return Jobs("Facts were not extracted", "facts", ExtractionFailedEvent)

    def _doing(self) -> str:
        return f"{super()._doing()} of {self.user_id!r}"

    async def _notice(self, session_id: str) -> None:
        if self.extract_facts:
            self._jobs.start(session_id, self._extract_turns, self.retry_seconds)

    async def _extract_turns(self, session_id: str) -> None:
        await self._extract(session_id, least_turns=self.extract_every_turns)

    async def _extract_finished(self, session_id: str) -> None:
        await self._extract(session_id, least_turns=1, with_active=True)

    # ---- on purpose ------------------------------------------------------------------------------------

    async def aextract_next(self, session_id: str) -> Extracted | None:
        """Extract the next batch of what is unread of a session, its newest turn too, whatever ``extract_facts`` says.

        None if nothing is unread. Whatever the model raises comes through; the batch stays unread then.
        """
        await self._jobs.wait(session_id)
        return await self._extract_next(session_id, least_turns=0, with_active=True)

    async def asessions(self, session_id: str) -> list[str]:
        """This session, and all that are known as its user's; the one that began first comes first."""
        never = datetime.min.replace(tzinfo=timezone.utc)
        namespace, began = self.namespace_of(session_id), {session_id: never}
        for info in await self._log.sessions(namespace, session_ids=[session_id]):
            began[info.session_id] = info.first_at or never
        return sorted(began, key=lambda one: (began[one], one))

    async def aknows(self, session_id: str) -> bool:
        """Whether the block's store has ever been given a message of the session."""
        return await self._log.knows(session_id)

    async def acount_unread(self, session_id: str) -> int:
        """How many messages of a session facts were not extracted from yet."""
        return await self._log.count_unread(session_id, self.reader_of(session_id))

    async def aheard(self, session_id: str = DEFAULT_SESSION_ID) -> list[Utterance]:
        """What was said last in a session, the turn that is going on included, oldest first."""
        page = await self._log.read_log(session_id, "", Seen(), limit=_BATCH_ROWS)
        after = page.rows[-1].id if page.rows else 0
        unread = await self._log.read_unread(session_id, "", with_active=True, after=after)
        rows = [*page.rows, *unread.rows][-_BATCH_ROWS:]
        return [line for line in await self._lines(rows) if line.text]

    async def aapply(
        self, reply: ExtractionReply, said: Sequence[Line], about: Sequence[Fact] = (), *, session_id: str
    ) -> tuple[ValidatedReply, list[Fact]]:
        """Store what somebody else than the extraction says of the user, through the same gates and one more.

        Who reads more than the conversation may be told by a web page what to say: of what is new, two words in five
        must be the user's.

        Args:
            reply: What is new, and which facts hold no longer.
            said: What was said, on which the reply must stand.
            about: The facts that the reply names by their places, from 1.
            session_id: Where it was said.

        Returns:
            What passed the gates and what did not, and all facts that have changed by it, as they are now.
        """
        namespace = self.namespace_of(session_id)
        for _ in range(_TRIES):
            known = await self._read_known(namespace)
            # A fact that was deleted since must not come back by being retired.
            still = [known.facts.get(fact.id) or retire(fact, "deleted", fact.updated_at) for fact in about]
            now = datetime.now(timezone.utc)
            gated = self._gated(reply, said, still, known, session_id=session_id, now=now, least_said=_LEAST_SAID)
            changed = self._within_number(known, changes_of(gated, known.facts, now), now)
            if not changed or await self._log.facts.write(namespace, changed, known.changes):
                break
        else:
            raise StoreError("Facts of this user are being deleted at the same time. Try it again.")
        if changed:
            await self._tell(session_id, 0, _Learned(changed, gated), known.facts)
            await self._prepare(await self._read_known(namespace))
        return gated, changed

    # ---- extracting ------------------------------------------------------------------------------------

    async def _extract(self, session_id: str, *, least_turns: int, with_active: bool = False) -> None:
        """Extract until nothing is left: each batch is stored and left behind in one step, or stays unread."""
        while await self._extract_next(session_id, least_turns=least_turns, with_active=with_active):
            pass

    async def _extract_next(self, session_id: str, *, least_turns: int, with_active: bool) -> Extracted | None:
        """Extract one batch; None if there is nothing that is worth a request."""
        reader = self.reader_of(session_id)
        while True:
            unread = await self._log.read_unread(session_id, reader, with_active=with_active, limit=_BATCH_ROWS)
            if not unread.rows or self._registered.get(session_id) == unread.epoch:
                break
            # A plain Memory has written here, perhaps: whose it is must be known before anything is made of it.
            if await self._log.register(session_id, *self.known_as(session_id), epoch=unread.epoch):
                self._registered.put(session_id, unread.epoch)
        lines = await self._lines(unread.rows)
        asked = sum(line.is_users for line in lines)
        # A full batch is extracted in any case: a turn of very many tool calls must not stand in the way for ever.
        if not unread.rows or (asked < least_turns and len(unread.rows) < _BATCH_ROWS):
            return None
        return await self._extract_batch(session_id, reader, *self._batch(unread, lines))

    async def _lines(self, rows: Sequence[LogRow]) -> list[Utterance]:
        # Counting takes a second for some megabytes, in which the event loop must not stand still.
        return await asyncio.to_thread(lambda: [self._line(row) for row in rows])

    def _line(self, row: LogRow) -> Utterance:
        return Utterance(row.id, row.role, self.tokenizer_fn.clip(spoken(row.message), _BATCH_TOKENS // 2))

    def _batch(self, unread: Unread, lines: list[Utterance]) -> tuple[Unread, list[Utterance]]:
        """As much as one request should hold."""
        end = batch_end(
            [line.is_users for line in lines],
            [self.tokenizer_fn.count(line.text) for line in lines],
            [row.written_at.date() if row.written_at else None for row in unread.rows],
            token_limit=_BATCH_TOKENS,
        )
        return replace(unread, rows=unread.rows[:end]), lines[:end]

    async def _extract_batch(
        self, session_id: str, reader: str, unread: Unread, lines: Sequence[Utterance]
    ) -> Extracted:
        namespace = self.namespace_of(session_id)
        known = await self._read_known(namespace)
        # A fact is as old as the words that it stands on, however late they are read.
        timestamps = [row.timestamp for row in unread.rows]
        then = said_at([line.is_users for line in lines], timestamps, datetime.now(timezone.utc))
        before = known.facts
        learned = await self._learn(session_id, known, [line for line in lines if line.text], then)
        stored = await self._log.facts.write_extracted(
            namespace, learned.changed, known.changes, session_id=session_id, reader=reader, unread=unread
        )
        if stored:
            await self._tell(session_id, len(unread.rows), learned, before)
        if learned.changed and self.embed_model is not None:
            # Now rather than when the next question is waiting for it.
            await self._prepare(await self._read_known(namespace))
        return _extracted(len(unread.rows) if stored else 0, learned.gated)

    async def _learn(self, session_id: str, known: Known, said: Sequence[Utterance], then: datetime) -> _Learned:
        """What changes by a part of the conversation; no model is asked where the user has said nothing."""
        users = [line.text for line in said if line.is_users]
        if not users:
            return _Learned([])
        # Imported here: its patterns take a while to compile, and not every program extracts facts.
        from llama_index_memory_ext.facts.prompt import ask_for_facts, extraction_prompt

        # What was learned on a later day is not shown: an old conversation would be taken for a correction of it.
        ranked = (entry.fact for entry in self._ranked(known, "\n".join(users), []))
        related = list(islice((fact for fact in ranked if fact.created_at.date() <= then.date()), _RELATED_FACTS))
        now, started = datetime.now(timezone.utc), perf_counter()
        prompt = extraction_prompt(said, related, today=now.date(), said_on=then.date())
        reply = await ask_for_facts(self._model(), prompt)
        seconds = perf_counter() - started
        gated = self._gated(reply, said, related, known, session_id=session_id, now=then)
        changed = self._within_number(known, changes_of(gated, known.facts, then), now)
        return _Learned(changed, gated, seconds)

    def _gated(
        self,
        reply: ExtractionReply,
        said: Sequence[Utterance],
        related: Sequence[Fact],
        known: Known,
        *,
        session_id: str,
        now: datetime,
        least_said: float = 0.0,
    ) -> ValidatedReply:
        """What of a reply may be stored."""
        from llama_index_memory_ext.facts.validation import validate_reply

        gated = validate_reply(
            reply,
            said,
            related,
            now=now,
            new_id=lambda: uuid4().hex,
            active=known.active,
            namespace=self.namespace_of(session_id),
            session_id=session_id,
            min_confidence=self.min_confidence,
            min_keyword_share=least_said,
        )
        self._rejections.update(gated.rejections)
        return gated

    async def _tell(self, session_id: str, messages: int, learned: _Learned, before: Mapping[str, Fact]) -> None:
        if not is_heard():
            return
        namespace = self.namespace_of(session_id)
        # What another worker has stored meanwhile was left out.
        facts = (await self._read_known(namespace)).facts
        new, confirmed, retired = ids_by_change([fact for fact in learned.changed if fact.id in facts], before)
        send(
            FactsExtractedEvent(
                session_id=session_id,
                user_id=namespace,
                messages=messages,
                new=new,
                confirmed=confirmed,
                retired=retired,
                rejections={
                    str(reason): n for reason, n in (learned.gated.rejections if learned.gated else {}).items()
                },
                seconds=learned.seconds,
            )
        )

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


def changes_of(gated: ValidatedReply, facts: Mapping[str, Fact], then: datetime) -> list[Fact]:
    """The facts as they are after a reply: new ones, those that are surer now, and those that hold no longer.

    ``then`` is when it was said. No fact becomes older by it than it was.
    """
    confirmed = [
        facts[fact_id].model_copy(
            update={"confidence": raised(facts[fact_id].confidence), "updated_at": max(facts[fact_id].updated_at, then)}
        )
        for fact_id in gated.confirmed
        if fact_id in facts
    ]
    retired = [
        retire(facts[entry.fact_id], entry.reason, max(facts[entry.fact_id].updated_at, then), entry.replaced_by)
        for entry in gated.retired
        if entry.fact_id in facts
    ]
    return [*gated.accepted, *confirmed, *retired]


def ids_by_change(changed: Sequence[Fact], before: Mapping[str, Fact]) -> tuple[list[str], list[str], list[str]]:
    """The ids of changed facts, apart: those that were not known before, those said again, those that hold no longer.

    One that was over ``max_facts`` as soon as it came is among the first and the last.
    """
    new = [fact.id for fact in changed if fact.id not in before]
    confirmed = [fact.id for fact in changed if fact.id in before and not fact.retired]
    return new, confirmed, [fact.id for fact in changed if fact.retired]


def _extracted(messages: int, gated: ValidatedReply | None) -> Extracted:
    if not messages or gated is None:
        return Extracted(messages, asked=gated is not None)
    return Extracted(messages, len(gated.accepted), len(gated.confirmed), len(gated.retired), asked=True)
