"""Extracts facts from the unread log of a session in batches; each is stored and left behind in one transaction."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.events import FactsExtractedEvent, is_heard, send
from llama_index_memory_ext.fact import utc_now
from llama_index_memory_ext.facts.batches import Room, answered_end, batch_end, said_at
from llama_index_memory_ext.facts.learning import Extracted, Part
from llama_index_memory_ext.facts.recovery import Action, Progress, SetAside, after_failure, blame_of, progress_of
from llama_index_memory_ext.store.rows import Opening, Seen
from llama_index_memory_ext.text.messages import OTHER_ROLE, Utterance, as_taken, spoken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_memory_ext.fact import Fact, RetiredBy
    from llama_index_memory_ext.facts.learning import Learner
    from llama_index_memory_ext.facts.reply import ExtractionReply
    from llama_index_memory_ext.facts.validation import ValidatedReply
    from llama_index_memory_ext.store import MemoryStore
    from llama_index_memory_ext.store.rows import LogPage, LogRow

logger = logging.getLogger(__name__)

_BATCH_ROWS = 200
# What an agent's tool stores: so many of a fact's keywords the user must have used.
_TOOL_KEYWORD_SHARE = 0.4
_TRIES = 3
# Characters of a tool's result that are compared with what an agent remembers.
_MOST_RESULT = 20_000
# Messages before a batch whose names and questions count for it, and their characters.
_CONTEXT_ROWS, _CONTEXT_CHARACTERS = 10, 1_000


@dataclass(frozen=True)
class Extractor:
    """Extracts the facts of one user (``namespace``) from the log of one session, as this ``reader`` of it.

    ``at_once``: what depends on a turn is tried again without a pause, because nothing else would try it.
    """

    namespace: str
    reader: str
    learner: Learner
    at_once: bool = False

    async def extract(self, *, least_turns: int = 1, with_active: bool = False, answered: bool = False) -> None:
        """Extract batches until fewer than ``least_turns`` turns are left.

        ``answered``: with the turn that has just ended; a question without an answer is left.
        """
        while await self.extract_next(least_turns=least_turns, with_active=with_active or answered, answered=answered):
            pass

    async def extract_next(
        self, *, least_turns: int = 0, with_active: bool = True, answered: bool = False
    ) -> Extracted | None:
        """Extract one batch; None if fewer than ``least_turns`` turns are left. If the model fails, it stays unread.

        What the model raises is raised, unless the batch was halved, or a turn that fails again and again set aside.
        """
        unread = await self._unread(with_active=with_active)
        room = self.learner.room(progress_of(unread.state).halved) if unread.rows else Room()
        utterances = await self._utterances(unread.rows, room)
        is_full = len(unread.rows) >= _BATCH_ROWS
        if answered:
            end = answered_end(utterances, [row.is_active for row in unread.rows]) or is_full * len(utterances)
            unread, utterances = replace(unread, rows=unread.rows[:end]), utterances[:end]
        turns = sum(one.is_users for one in utterances)
        # A full batch is extracted in any case: a turn of very many tool calls must not stand in the way for ever.
        if not unread.rows or (turns < least_turns and not is_full):
            if not turns:
                self._store.jobs.unread.discard(self._session_id)
            return None
        return await self._extract_batch(unread, utterances, room)

    async def set_aside(self) -> tuple[SetAside, ...]:
        """The turns that were set aside, oldest first."""
        _, state = await self._store.readers.state(self._session_id, self.reader)
        return progress_of(state).set_aside

    async def extract_again(self, turn: SetAside) -> Extracted:
        """Extract a turn that was set aside; if the model fails it stays so, and what the model raises is raised."""
        page = await self._store.readers.unread(
            self._session_id, self.reader, with_active=True, after=turn.first - 1, limit=_BATCH_ROWS
        )
        rows, progress = [row for row in page.rows if row.id <= turn.last], progress_of(page.state)
        if not rows or turn not in progress.set_aside:
            return Extracted()
        room = self.learner.room()
        utterances = await self._utterances(rows, room)
        part = self._part(rows, utterances, await self._before(rows[0].id), room)
        return await self._learn(replace(page, rows=rows), part, progress.without(turn))

    async def recent(self) -> tuple[list[Utterance], list[Utterance]]:
        """What was said last in the session, oldest first, and what tools gave; the turn that is going on included."""
        readers = self._store.readers
        page = await readers.page(self._session_id, "", Seen(), limit=_BATCH_ROWS)
        after = page.rows[-1].id if page.rows else 0
        unread = await readers.unread(self._session_id, "", with_active=True, after=after)
        rows = [*page.rows, *unread.rows][-_BATCH_ROWS:]
        given = [(row, (row.message.content or "")[:_MOST_RESULT]) for row in rows if row.is_result]
        results = [Utterance(row.id, row.role, text) for row, text in given]
        return [one for one in await self._utterances(rows, Room()) if one.text], results

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
        rules: Any = {"min_keyword_share": _TOOL_KEYWORD_SHARE, "others": others, "retired_by": retired_by}
        cache = self.learner.cache
        for _ in range(_TRIES):
            known = await cache.read(self.namespace)
            valid = await self.learner.validated(reply, lines, about, known, utc_now(), **rules)
            learned = self.learner.changes(valid, known)
            if not learned.changed:
                return learned.reply, ()
            if await self._store.facts.write(self.namespace, learned.changed, known.changes, view=cache.view):
                await self._tell(learned, known.facts)
                await cache.refresh(self.namespace)
                return learned.reply, learned.changed
        raise StoreError("Facts of this user are being deleted at the same time. Try it again.")

    @property
    def _session_id(self) -> str:
        return self.learner.session_id

    @property
    def _store(self) -> MemoryStore:
        return self.learner.cache.store

    async def _unread(self, *, with_active: bool) -> LogPage:
        """The oldest unread rows; the session is registered as the user's before anything is made of them."""
        readers = self._store.readers
        while True:
            unread = await readers.unread(self._session_id, self.reader, with_active=with_active, limit=_BATCH_ROWS)
            if unread.registered or not unread.rows:
                return unread
            # The session may be one that a plain Memory has written.
            opening = Opening(None if self.namespace == self._session_id else self.namespace)
            await self._store.users.claim(self._session_id, opening, readers=[self.reader], epoch=unread.epoch)

    async def _utterances(self, rows: Sequence[LogRow], room: Room) -> list[Utterance]:
        owners = await self._store.users.owners(self._session_id)
        # Counting some megabytes takes a second, for which the event loop must not be blocked.
        return await asyncio.to_thread(
            lambda: [self._clipped(one, room.batch // 2) for one in _said_in(rows, self.namespace, owners)]
        )

    def _clipped(self, line: Utterance, limit: int) -> Utterance:
        # No token is shorter than a byte.
        if len(line.text.encode()) <= limit:
            return line
        return line._replace(text=self.learner.block.tokenizer_fn.clip(line.text, limit))

    def _tokens(self, utterances: Sequence[Utterance], most: int) -> list[int]:
        """The tokens of each text, or its bytes where ``most`` tokens hold them all: no token is shorter than one."""
        sizes = [len(one.text.encode()) for one in utterances]
        if sum(sizes) <= most:
            return sizes
        return [self.learner.block.tokenizer_fn.count(one.text) for one in utterances]

    async def _before(self, row_id: int) -> list[Utterance]:
        """What was said right before a row: a short answer may need the question."""
        page = await self._store.readers.page(self._session_id, "", Seen(), before=row_id, limit=_CONTEXT_ROWS)
        lines = await self._utterances(page.rows, Room())
        return [line._replace(text=line.text[-_CONTEXT_CHARACTERS:]) for line in lines if line.text]

    def _part(
        self,
        rows: Sequence[LogRow],
        utterances: Sequence[Utterance],
        before: Sequence[Utterance],
        room: Room,
        unverified: int = 0,
    ) -> Part:
        asked = [row.said_at for row, one in zip(rows, utterances, strict=True) if one.is_users]
        now, lines = utc_now(), [one for one in utterances if one.text]
        # What comes before the first question belongs to a turn of an earlier batch.
        turns = len(asked) + (not utterances[0].is_users)
        return Part(lines, said_at(asked, now), said_at([rows[-1].said_at], now), turns, unverified, before, room)

    async def _extract_batch(self, unread: LogPage, utterances: Sequence[Utterance], room: Room) -> Extracted:
        """Extract the first batch of what is unread."""
        progress = progress_of(unread.state) if unread.state else Progress()
        days = [said.date() if (said := row.said_at) else None for row in unread.rows]
        starts, tokens = [one.is_users for one in utterances], self._tokens(utterances, room.batch)
        end = batch_end(starts, tokens, days, token_limit=room.batch, most_turns=progress.most_turns)
        unread, utterances = replace(unread, rows=unread.rows[:end]), utterances[:end]
        before = await self._before(unread.rows[0].id)
        part = self._part(unread.rows, utterances, before, room, progress.unverified)
        try:
            return await self._learn(unread, part, progress.succeeded() if unread.state else progress)
        except StoreError:
            raise
        except Exception as error:
            if await self._recovered(error, unread, part.turns, progress):
                return Extracted()
            raise

    async def _learn(self, unread: LogPage, part: Part, progress: Progress) -> Extracted:
        cache = self.learner.cache
        known = await cache.read(self.namespace)
        before = known.facts
        batch = await self.learner.learn(known, part)
        stored = await self._store.facts.write_extracted(
            self.namespace,
            batch.changed,
            known.changes,
            session_id=self._session_id,
            reader=self.reader,
            unread=unread,
            state=progress.state,
            view=cache.view,
        )
        if stored:
            batch = batch._replace(messages=len(unread.rows))
            await self._tell(batch, before)
        if batch.changed:
            await cache.refresh(self.namespace)
        return batch if stored else Extracted(seconds=batch.seconds)

    async def _recovered(self, error: Exception, unread: LogPage, turns: int, progress: Progress) -> bool:
        """Note a failure with the cursor; whether the caller can go on at once."""
        step = after_failure(progress, blame_of(error), turns)
        if step.if_answers and not await self.learner.answers():
            return False
        after, position, first, last = step.progress, unread.position, unread.rows[0].id, unread.rows[-1].id
        if step.action is Action.SET_ASIDE:
            after, position = after.leaving(SetAside(first, last, type(error).__name__)), max(last, position)
        if after == progress:
            return False
        noted = await self._store.readers.move(
            self._session_id, self.reader, epoch=unread.epoch, old=unread.position, new=position, state=after.state
        )
        if noted and step.action is Action.SET_ASIDE:
            logger.warning(
                "No facts could be extracted from messages %d to %d of session %r (%s); they are set aside, "
                "and the next ones are read. `await memory.abackfill(failed=True)` tries them again.",
                first,
                last,
                self._session_id,
                type(error).__name__,
            )
        return noted and (self.at_once or step.action is not Action.PAUSE)

    async def _tell(self, learned: Extracted, before: Mapping[str, Fact]) -> None:
        if not is_heard():
            return
        # What another process has stored meanwhile was left out.
        facts = (await self.learner.cache.read(self.namespace)).facts
        new, confirmed, retired = ids_by_change([fact for fact in learned.changed if fact.id in facts], before)
        send(
            FactsExtractedEvent(
                session_id=self._session_id,
                user_id=self.namespace,
                agent_id=self.learner.cache.view.own,
                messages=learned.messages,
                new=new,
                confirmed=confirmed,
                retired=retired,
                rejections=learned.reply.rejections,
                seconds=learned.seconds or 0.0,
                prompt_tokens=learned.usage.prompt_tokens,
                completion_tokens=learned.usage.completion_tokens,
            )
        )


def _said_in(rows: Sequence[LogRow], namespace: str, owners: Sequence[str]) -> list[Utterance]:
    """What each row says, and who: the user whose facts these are, another one of the ``owners``, or the assistant.

    The facts of somebody who does not talk here, as of a team, are those of all who do. LlamaIndex's own memory has
    written all that is put as the user's as such.
    """
    said = []
    for row, message in zip(rows, as_taken(row.message for row in rows), strict=True):
        is_known = row.user_id == namespace or (row.user_id is None and len(owners) == 1)
        is_others = message.role == MessageRole.USER and namespace in owners and not is_known
        said.append(Utterance(row.id, OTHER_ROLE if is_others else message.role.value, spoken(message)))
    return said


def ids_by_change(changed: Sequence[Fact], before: Mapping[str, Fact]) -> tuple[list[str], list[str], list[str]]:
    """The ids of new, confirmed and retired facts; a new one that was over ``max_facts`` at once is also retired."""
    new = [fact.id for fact in changed if fact.id not in before]
    confirmed = [fact.id for fact in changed if fact.id in before and not fact.retired]
    return new, confirmed, [fact.id for fact in changed if fact.retired]
