"""Extracts facts from the unread log of a session in batches; each is stored and left behind in one transaction."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.settings import Settings

from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.events import FactsExtractedEvent, is_heard, send
from llama_index_memory_ext.fact import retire, utc_now
from llama_index_memory_ext.facts.prompt import ask_for_facts, extraction_prompt
from llama_index_memory_ext.facts.validation import ValidatedReply, validate_reply, without_repeats
from llama_index_memory_ext.store.readers import Seen
from llama_index_memory_ext.text.messages import Utterance, spoken

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping, Sequence
    from datetime import date, datetime

    from llama_index_memory_ext.fact import Fact, RetiredBy
    from llama_index_memory_ext.facts.cache import FactCache, UserFacts
    from llama_index_memory_ext.facts.reply import ExtractionReply
    from llama_index_memory_ext.log_block import LogBlock
    from llama_index_memory_ext.store.readers import LogPage, LogRow

_BATCH_ROWS, _BATCH_TOKENS = 200, 8_000
_RELATED_FACTS = 10
# What an agent's tool stores: so many of a fact's keywords the user must have used.
_TOOL_KEYWORD_SHARE = 0.4
_TRIES = 3
# Characters of a tool's result that are compared with what an agent remembers.
_MOST_RESULT = 20_000


class Extracted(NamedTuple):
    """The facts that a reply changes, the validated reply, the model's seconds, and how many messages it has read.

    ``seconds`` is None if no model was asked. If another process was faster, nothing was stored: all else is empty.
    """

    changed: Sequence[Fact] = ()
    reply: ValidatedReply = ValidatedReply()
    seconds: float | None = None
    messages: int = 0


@dataclass(frozen=True)
class Extractor:
    """Extracts the facts of one user (``namespace``) from the log of one session, as this ``reader`` of it.

    ``rejections`` counts the entries of replies that are not stored, by reason.
    """

    session_id: str
    namespace: str
    reader: str
    block: LogBlock
    cache: FactCache
    rejections: Counter[str]
    max_facts: int | None
    min_confidence: float

    async def extract(self, *, least_turns: int = 1, with_active: bool = False) -> None:
        """Extract batches until fewer than ``least_turns`` turns are left."""
        while await self.extract_next(least_turns=least_turns, with_active=with_active):
            pass

    async def extract_next(self, *, least_turns: int = 0, with_active: bool = True) -> Extracted | None:
        """Extract one batch; None if fewer than ``least_turns`` turns are left. If the model fails, it stays unread."""
        unread = await self._unread(with_active=with_active)
        utterances = await self._utterances(unread.rows)
        starts = [one.is_users for one in utterances]
        # A full batch is extracted in any case: a turn of very many tool calls must not stand in the way for ever.
        if not unread.rows or (sum(starts) < least_turns and len(unread.rows) < _BATCH_ROWS):
            return None
        days = [row.written_at.date() if row.written_at else None for row in unread.rows]
        end = batch_end(starts, self._tokens(utterances), days, token_limit=_BATCH_TOKENS)
        return await self._extract_batch(replace(unread, rows=unread.rows[:end]), utterances[:end])

    async def recent(self) -> tuple[list[Utterance], str]:
        """What was said last in the session, oldest first, and what tools gave; the turn that is going on included."""
        readers = self.cache.store.readers
        page = await readers.page(self.session_id, "", Seen(), limit=_BATCH_ROWS)
        after = page.rows[-1].id if page.rows else 0
        unread = await readers.unread(self.session_id, "", with_active=True, after=after)
        rows = [*page.rows, *unread.rows][-_BATCH_ROWS:]
        results = "\n".join((row.message.content or "")[:_MOST_RESULT] for row in rows if row.is_result)
        return [one for one in await self._utterances(rows) if one.text], results

    async def apply(
        self,
        reply: ExtractionReply,
        lines: Sequence[Utterance],
        about: Sequence[Fact] = (),
        *,
        others: str = "",
        retired_by: RetiredBy | None = None,
    ) -> tuple[ValidatedReply, Sequence[Fact]]:
        """Store a reply that comes from a tool; returns it validated, and all facts that it has changed.

        A web page may tell a model with tools what to store: of what is new, two keywords in five must be the user's.
        ``about`` are the facts that the reply names by their places, from 1, and ``others`` is what tools said.
        """
        rules = {"min_keyword_share": _TOOL_KEYWORD_SHARE, "others": others, "retired_by": retired_by}
        for _ in range(_TRIES):
            known = await self.cache.read(self.namespace)
            learned = self._validated(reply, lines, about, known, utc_now(), **rules)
            if not learned.changed:
                return learned.reply, ()
            if await self.cache.store.facts.write(self.namespace, learned.changed, known.changes):
                await self._tell(learned, known.facts)
                await self.cache.refresh(self.namespace)
                return learned.reply, learned.changed
        raise StoreError("Facts of this user are being deleted at the same time. Try it again.")

    async def _unread(self, *, with_active: bool) -> LogPage:
        """The oldest unread rows; the session is registered as the user's before anything is made of them."""
        readers = self.cache.store.readers
        while True:
            unread = await readers.unread(self.session_id, self.reader, with_active=with_active, limit=_BATCH_ROWS)
            if unread.registered or not unread.rows:
                return unread
            # The session may be one that a plain Memory has written.
            await readers.register(self.session_id, owners=[self.namespace], readers=[self.reader], epoch=unread.epoch)

    async def _utterances(self, rows: Sequence[LogRow]) -> list[Utterance]:
        # Counting some megabytes takes a second, for which the event loop must not be blocked.
        return await asyncio.to_thread(lambda: [self._utterance(row) for row in rows])

    def _utterance(self, row: LogRow) -> Utterance:
        text, limit = spoken(row.message), _BATCH_TOKENS // 2
        # No token is shorter than a byte.
        if len(text.encode()) > limit:
            text = self.block.tokenizer_fn.clip(text, limit)
        return Utterance(row.id, row.role, text)

    def _tokens(self, utterances: Sequence[Utterance]) -> list[int]:
        """The tokens of each text, or its bytes where all of them fit into a batch: no token is shorter than one."""
        sizes = [len(one.text.encode()) for one in utterances]
        if sum(sizes) <= _BATCH_TOKENS:
            return sizes
        return [self.block.tokenizer_fn.count(one.text) for one in utterances]

    async def _extract_batch(self, unread: LogPage, utterances: Sequence[Utterance]) -> Extracted:
        known = await self.cache.read(self.namespace)
        before = known.facts
        asked = [row.written_at for row, one in zip(unread.rows, utterances, strict=True) if one.is_users]
        batch = await self._learn(known, [one for one in utterances if one.text], said_at(asked, utc_now()))
        stored = await self.cache.store.facts.write_extracted(
            self.namespace, batch.changed, known.changes, session_id=self.session_id, reader=self.reader, unread=unread
        )
        if stored:
            batch = batch._replace(messages=len(unread.rows))
            await self._tell(batch, before)
        if batch.changed:
            await self.cache.refresh(self.namespace)
        return batch if stored else Extracted(seconds=batch.seconds)

    async def _learn(self, known: UserFacts, lines: Sequence[Utterance], then: datetime) -> Extracted:
        """What changes by a part of the conversation; no model is asked where the user has said nothing."""
        users = [line.text for line in lines if line.is_users]
        if not users:
            return Extracted()
        # A fact that was learned on a later day is none of these: an old conversation would seem to correct it.
        facts = known.active if len(known.active) <= _RELATED_FACTS else self.cache.best_first(known, "\n".join(users))
        related = [fact for fact in facts if fact.created_at.date() <= then.date()][:_RELATED_FACTS]
        started = perf_counter()
        prompt = extraction_prompt(lines, related, today=utc_now().date(), said_on=then.date())
        answer = await ask_for_facts(self.block.llm or Settings.llm, prompt)
        seconds = perf_counter() - started
        return self._validated(answer.reply, lines, related, known, then)._replace(seconds=seconds)

    def _validated(
        self,
        reply: ExtractionReply,
        lines: Sequence[Utterance],
        related: Sequence[Fact],
        known: UserFacts,
        then: datetime,
        **rules: Any,
    ) -> Extracted:
        """What changes by a reply, with ``validate_reply``'s rules; the least confident over ``max_facts`` retire."""
        valid = validate_reply(
            reply,
            lines,
            # A fact that was deleted since must not come back by being retired.
            [known.facts.get(fact.id) or retire(fact, "deleted", fact.updated_at) for fact in related],
            now=then,
            active=known.active,
            session_id=self.session_id,
            min_confidence=self.min_confidence,
            **rules,
        )
        valid = without_repeats(valid, known.past)
        self.rejections.update(valid.rejections)
        changed = {fact.id: fact for fact in (*valid.accepted, *valid.confirmed, *valid.retired)}
        if self.max_facts is not None:
            now = utc_now()
            active = [fact for fact in {**known.facts, **changed}.values() if fact.state(now) == "present"]
            active.sort(key=lambda fact: (fact.pinned, fact.confidence, fact.updated_at))
            over = active[: max(len(active) - self.max_facts, 0)]
            changed |= {fact.id: retire(fact, "over max_facts", now, by="limit") for fact in over}
        return Extracted(list(changed.values()), valid)

    async def _tell(self, learned: Extracted, before: Mapping[str, Fact]) -> None:
        if not is_heard():
            return
        # What another process has stored meanwhile was left out.
        facts = (await self.cache.read(self.namespace)).facts
        new, confirmed, retired = ids_by_change([fact for fact in learned.changed if fact.id in facts], before)
        send(
            FactsExtractedEvent(
                session_id=self.session_id,
                user_id=self.namespace,
                messages=learned.messages,
                new=new,
                confirmed=confirmed,
                retired=retired,
                rejections=learned.reply.rejections,
                seconds=learned.seconds or 0.0,
            )
        )


def batch_end(
    starts_turn: Sequence[bool], tokens: Sequence[int], days: Sequence[date | None], *, token_limit: int
) -> int:
    """How many of the messages, oldest first, go into one request: at least one if there is any, else 0.

    A batch ends before a turn, if it can: before what would make it longer than ``token_limit``, and before the first
    turn of another day than its own first turn's, because a relative date ("tomorrow") counts from one day.
    """
    total, turns, last_start = 0, 0, 0
    first_day = None
    for i, starts in enumerate(starts_turn):
        total += tokens[i]
        if starts and turns and days[i] != first_day:
            return i
        if starts:
            first_day = first_day if turns else days[i]
            turns, last_start = turns + 1, i
        if i and total > token_limit:
            return last_start or i
    return len(starts_turn)


def said_at(questions: Sequence[datetime | None], now: datetime) -> datetime:
    """When a batch was said: when its last question was written, but never after ``now``, the default."""
    return min(questions[-1] or now, now) if questions else now


def ids_by_change(changed: Sequence[Fact], before: Mapping[str, Fact]) -> tuple[list[str], list[str], list[str]]:
    """The ids of new, confirmed and retired facts; a new one that was over ``max_facts`` at once is also retired."""
    new = [fact.id for fact in changed if fact.id not in before]
    confirmed = [fact.id for fact in changed if fact.id in before and not fact.retired]
    return new, confirmed, [fact.id for fact in changed if fact.retired]
