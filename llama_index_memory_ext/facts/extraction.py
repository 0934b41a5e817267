"""Extracts facts from the log of a session: reads, asks, checks, stores, and halves or sets aside what fails."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from datetime import date, datetime, timedelta
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole

from llama_index_memory_ext.errors import (
    Blame,
    StoreError,
    TruncatedReplyError,
    blame_of,
)
from llama_index_memory_ext.events import FactsExtractedEvent, is_heard, send
from llama_index_memory_ext.fact import (
    CATEGORIES,
    ENDING,
    ONLY_ENDS,
    Fact,
    SetAside,
    normalised,
    retire,
    utc_now,
)
from llama_index_memory_ext.facts import prompt as asking
from llama_index_memory_ext.facts.checks import TOOL_CHECKS, Rejection
from llama_index_memory_ext.facts.prompt import ANSWER, Categories, Room
from llama_index_memory_ext.facts.source import question_before
from llama_index_memory_ext.facts.validation import ValidatedReply, validate_reply
from llama_index_memory_ext.language.loading import wait_until_loaded
from llama_index_memory_ext.models.ask import context_window
from llama_index_memory_ext.models.responses import Usage, usage_of, was_truncated
from llama_index_memory_ext.store.tables import (
    ROWS,
    LogPage,
    LogRow,
    Opening,
    Seen,
    anonymous,
    name_of,
)
from llama_index_memory_ext.text.messages import OTHER_ROLE, Utterance, as_taken, spoken
from llama_index_memory_ext.text.tokens import fit_tokens

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from llama_index_memory_ext.fact import RetiredBy
    from llama_index_memory_ext.facts.known import UserFacts
    from llama_index_memory_ext.facts.reply import ExtractionReply
    from llama_index_memory_ext.reader_block import LogBlock
    from llama_index_memory_ext.text.tool_calls import Json


logger = logging.getLogger(__name__)

# How often a single turn is tried before it is set aside. After so many turns in a row
# it may be the model that cannot do it. Then a turn has so many times as many tries,
# and of those only one at once.
_TURN_TRIES = 3
_MOST_IN_A_ROW = 3
_DOUBT = 4
# How often the limits of a batch are halved at most; a failure of a single turn halves
# them twice. With each success they grow by a fifth: what was too long for the last
# batch may be too long for the next one.
_MOST_HALVED = 6
_AT_ONCE = 2
_GROWTH = 0.25
_BATCH_ROWS = 200
# Of the rejected facts a model is shown so many, and tokens, and of each, with its
# reason, so many characters.
_MOST_REJECTED = 20
_REJECTED_TOKENS = 400
_REJECTED_CHARACTERS = 400
# Messages before a batch whose names and questions count for it, and their characters.
_CONTEXT_ROWS = 10
_CONTEXT_CHARACTERS = 1_000


# What is done after a failure: ask again at once, or after a pause, also where nothing
# pauses otherwise ("stop"), or leave the turn behind.
Action: TypeAlias = Literal["again", "pause", "stop", "set aside"]


# Days and rejections that a cursor keeps.
_DAYS_NOTED = 30
_MOST_NOTED = 50


class Progress(NamedTuple):
    """What a reader knows of the next batch, and of the turns that it has set aside; stored with its cursor.

    ``most_turns`` is how many turns the next batch may have, after a failure. ``tries``
    counts the failures of a single turn. ``in_a_row`` turns were set aside since the
    last success. ``halved`` is how often the limits of tokens are halved: they grow
    again with each success. ``days`` has the calls, and the tokens sent and received,
    of each of the last days; ``rejected`` the day, the reason, and the first and last
    row of what was not stored then.
    """

    most_turns: int | None = None
    tries: int = 0
    in_a_row: int = 0
    halved: float = 0
    set_aside: tuple[SetAside, ...] = ()
    days: Mapping[str, Sequence[int]] = MappingProxyType({})
    rejected: Sequence[Sequence[str | int]] = ()

    def succeeded(self) -> Progress:
        """Return the progress after a batch was stored."""
        return self._replace(
            most_turns=None, tries=0, in_a_row=0, halved=max(self.halved - _GROWTH, 0)
        )

    def leaving(self, turn: SetAside) -> Progress:
        """Return the progress after a turn was set aside."""
        left = (*self.set_aside, turn)
        return self._replace(
            most_turns=None,
            tries=0,
            in_a_row=self.in_a_row + 1,
            halved=0,
            set_aside=left,
        )

    def noting(
        self, today: date, used: Usage, reasons: Iterable[str], first: int, last: int
    ) -> Progress:
        """Return the progress with what a batch of these rows took today, and why some of its reply was rejected."""
        since = (today - timedelta(days=_DAYS_NOTED)).isoformat()
        day = today.isoformat()
        spent = [
            a + b
            for a, b in zip(self.days.get(day, (0, 0, 0)), astuple(used), strict=False)
        ]
        days = {
            name: one for name, one in {**self.days, day: spent}.items() if name > since
        }
        rejected: list[Sequence[str | int]] = [
            one for one in self.rejected if str(one[0]) > since
        ]
        rejected += ([day, why, first, last] for why in reasons)
        return self._replace(days=days, rejected=rejected[-_MOST_NOTED:])

    @property
    def state(self) -> Json:
        """The progress as JSON, about single rows (``Readers.move``); None if there is nothing to know."""
        fields = self._asdict()
        turns = fields.pop("set_aside")
        if self == Progress():
            return None
        return {**fields, "days": dict(self.days), ROWS: [list(turn) for turn in turns]}


def progress_of(state: Json) -> Progress:
    """Return the progress that a cursor was stored with, also by an earlier version, which counted more.

    >>> progress_of({"tries": 1, "rows": [[4, 5, "FactReplyError"]]}).set_aside
    (SetAside(first=4, last=5, error='FactReplyError'),)
    """
    stored = state or {}
    turns = tuple(SetAside(*turn) for turn in stored.get(ROWS, ()))
    return Progress(
        **{name: stored[name] for name in Progress._fields if name in stored},
        set_aside=turns,
    )


def after_failure(
    progress: Progress, blame: Blame, turns: int
) -> tuple[Action, Progress]:
    """Return what to do after a batch of so many turns has failed, and the progress then.

    A batch is halved until the turn is alone that fails. Alone it is tried three times,
    with less of it each time, and then set aside; more often, and with a pause each
    time, where it may not be the turn that is to blame. Where the answer takes too long
    there is less to read the next time, and nothing is set aside.
    """
    if blame == "model":
        return "pause", progress
    halvings = 1 if blame == "length" else _AT_ONCE
    shorter = progress._replace(halved=min(progress.halved + halvings, _MOST_HALVED))
    if blame == "length":
        return "pause", shorter
    if turns > 1:
        return ("again" if blame == "turns" else "pause"), progress._replace(
            most_turns=turns // 2, tries=0
        )
    is_doubtful = blame == "unknown" or progress.in_a_row >= _MOST_IN_A_ROW
    tries = progress.tries + 1
    if tries >= _TURN_TRIES * (_DOUBT if is_doubtful else 1):
        return "set aside", progress
    return ("stop" if is_doubtful else "pause"), shorter._replace(
        most_turns=1, tries=tries
    )


class Batch(NamedTuple):
    """The ``turns`` that are read at once: their rows, with the reader's cursor, and what is said in them.

    The last question was asked, and the last message written, at these times.
    ``before`` is what was said right before, ``room`` what a request may have, and
    ``spent`` takes what the requests have used.
    """

    unread: LogPage
    lines: Sequence[Utterance]
    turns: int
    asked_at: datetime
    ended_at: datetime
    before: Sequence[Utterance]
    room: Room
    spent: list[Usage]


class Extracted(NamedTuple):
    """The facts that a reply changes, the validated reply, the model's seconds, and how many messages it has read.

    ``seconds`` is None if no model was asked. If another process was faster, nothing
    was stored: all else is empty.
    """

    changed: Sequence[Fact] = ()
    reply: ValidatedReply = ValidatedReply()
    seconds: float | None = None
    messages: int = 0


@dataclass(frozen=True)
class Extractor:
    """Extracts the facts of one user (those ``known``) from the log of one session, as this ``reader`` of it.

    Its settings are those of the ``block``. With ``review`` what it learns is pending.
    ``rejections`` counts the entries of replies that are not stored, by reason, and
    ``usage`` the calls by their kind. ``at_once``: what depends on a turn is tried
    again without a pause, because nothing else would try it. ``is_own``: the user is
    that of the memory, who never stands for a team.
    """

    known: UserFacts
    session_id: str
    reader: str
    block: LogBlock
    rejections: Counter[str]
    usage: dict[str, Usage]
    max_facts: int | None
    min_confidence: float
    verify: bool = False
    categories: Categories = CATEGORIES
    instructions: str | None = None
    at_once: bool = False
    review: bool = False
    is_own: bool = False

    async def extract(self, *, least_turns: int = 1, answered: bool = False) -> None:
        """Extract batches until fewer than ``least_turns`` turns are left."""
        while await self.extract_next(least_turns=least_turns, answered=answered):
            pass

    async def extract_next(
        self, *, least_turns: int = 0, answered: bool = False
    ) -> Extracted | None:
        """Extract one batch; None if fewer than ``least_turns`` turns are left. If the model fails, it stays unread.

        ``answered``: of the current turn, only if it has its answer. What the model
        raises is raised, unless the batch was halved, or a turn that fails again and
        again set aside.
        """
        batch = await self._next_batch(least_turns, answered=answered)
        if batch is None:
            return None
        progress = progress_of(batch.unread.state)
        try:
            return await self._learn(batch, progress.succeeded())
        except StoreError:
            raise
        except Exception as error:
            if await self._goes_on(error, batch, progress):
                return Extracted()
            raise

    async def set_aside(self) -> tuple[SetAside, ...]:
        """Return the turns that were set aside, oldest first."""
        _, state = await self.known.store.readers.state(self.session_id, self.reader)
        return progress_of(state).set_aside

    async def extract_again(self, turn: SetAside) -> Extracted:
        """Extract a turn that was set aside; if the model fails it stays so, and what the model raises is raised."""
        page = await self.known.store.readers.unread(
            self.session_id,
            self.reader,
            with_active=True,
            after=turn.first - 1,
            limit=_BATCH_ROWS,
        )
        rows = [row for row in page.rows if row.id <= turn.last]
        progress = progress_of(page.state)
        if not rows or turn not in progress.set_aside:
            return Extracted()
        room = self._room()
        batch = await self._batch(
            replace(page, rows=rows), await self._said(rows, room), room
        )
        left = tuple(one for one in progress.set_aside if one != turn)
        return await self._learn(batch, progress._replace(set_aside=left))

    async def recent(self) -> tuple[list[Utterance], list[Utterance]]:
        """Return what was said last in the session, oldest first, and what tools gave; the current turn included."""
        readers = self.known.store.readers
        page = await readers.page(self.session_id, "", Seen(), limit=_BATCH_ROWS)
        after = page.rows[-1].id if page.rows else 0
        unread = await readers.unread(
            self.session_id, "", with_active=True, after=after
        )
        rows = [*page.rows, *unread.rows][-_BATCH_ROWS:]
        # Of a tool's result so much is compared with what an agent remembers.
        results = [
            Utterance(row.id, row.role, (row.message.content or "")[:20_000])
            for row in rows
            if row.is_result
        ]
        return [one for one in await self._said(rows, Room()) if one.text], results

    async def apply(
        self,
        reply: ExtractionReply,
        lines: Sequence[Utterance],
        about: Sequence[Fact] = (),
        *,
        others: str = "",
        retired_by: RetiredBy | None = None,
    ) -> tuple[ValidatedReply, Sequence[Fact]]:
        """Store a reply that comes from a tool; return it validated, and all facts that it has changed.

        A web page may tell a model with tools what to store: of what is new, two
        keywords in five must be the user's. ``about`` are the facts that the reply
        names by their places, from 1, and ``others`` is what tools said.
        """
        for _ in range(3):
            known = await self.known.read()
            seen = known.changes
            before = known.facts
            rules: Any = {
                "checks": TOOL_CHECKS,
                "others": others,
                "retired_by": retired_by,
            }
            changed, valid = self._changes(
                await self._validated(reply, lines, about, utc_now(), **rules)
            )
            if not changed:
                return valid, ()
            if await self.known.store.facts.write(
                known.namespace, changed, seen, view=known.view
            ):
                await self._tell(Extracted(changed, valid), before)
                await self.known.refresh(is_read=is_heard())
                return valid, changed
        raise StoreError(
            "Facts of this user are being deleted at the same time. Try it again."
        )

    async def _next_batch(self, least_turns: int, *, answered: bool) -> Batch | None:
        """Return as many of the oldest unread rows as one request may have; None if they are too few turns.

        The session is registered as the user's before anything is made of them.
        """
        store = self.known.store
        if self.known.namespace == anonymous(self.session_id):
            own = None
        else:
            own = self.known.namespace
        while True:
            unread = await store.readers.unread(
                self.session_id, self.reader, with_active=True, limit=_BATCH_ROWS
            )
            if unread.registered or not unread.rows:
                break
            # The session may be one that a plain Memory has written.
            await store.users.claim(
                self.session_id, Opening(own), readers=[self.reader], epoch=unread.epoch
            )
        progress = progress_of(unread.state)
        rows = unread.rows
        if rows:
            room = self._room(progress.halved)
        else:
            room = Room()
        said = await self._said(rows, room)
        # A full batch is extracted in any case: a turn of very many tool calls must not
        # stand in the way for ever.
        end = len(rows)
        is_full = len(rows) >= _BATCH_ROWS
        if answered:
            end = (
                asking.answered_end(said, [row.is_active for row in rows])
                or is_full * end
            )
        starts = [one.is_users for one in said[:end]]
        if not any(starts) and not is_full:
            store.jobs.unread.discard(self.session_id)
        if not end or (sum(starts) < least_turns and not is_full):
            return None
        texts = [one.text for one in said[:end]]
        count = self.block.tokenizer_fn.count
        tokens = await asyncio.to_thread(lambda: [count(text) for text in texts])
        days = [row.said_at and row.said_at.date() for row in rows[:end]]
        end = asking.batch_end(
            starts, tokens, days, token_limit=room.batch, most_turns=progress.most_turns
        )
        return await self._batch(replace(unread, rows=rows[:end]), said[:end], room)

    async def _said(self, rows: Sequence[LogRow], room: Room) -> list[Utterance]:
        """Return what each row says, clipped to half a batch, and who: the user whose facts these are, or another one.

        The facts of a user who does not talk here, as of a team, are those of all who
        do. LlamaIndex's own memory has written all that is put as the user's as such.
        """
        user = self.known.namespace
        owners = await self.known.store.users.owners(self.session_id)
        talks = self.is_own or user in owners
        # As long as a session has one user, no row says whose it is.
        is_alone = set(owners) <= {user}
        limit = room.batch // 2

        def read() -> list[Utterance]:
            said = []
            speaker = ""
            for row, message in zip(
                rows, as_taken(row.message for row in rows), strict=True
            ):
                is_users = row.user_id == user or (row.user_id is None and is_alone)
                is_others = False
                if message.role == MessageRole.USER:
                    speaker = row.user_id or ""
                    is_others = talks and not is_users
                text = spoken(message)
                # No token is shorter than a byte.
                if len(text.encode()) > limit:
                    text = self.block.tokenizer_fn.clip(text, limit)
                if is_others:
                    role = OTHER_ROLE
                else:
                    role = message.role.value
                said.append(Utterance(row.id, role, text, speaker))
            return said

        # Counting some megabytes takes a second, for which the event loop must not be
        # blocked.
        return await asyncio.to_thread(read)

    def _room(self, halved: float = 0) -> Room:
        """Return what a request has room for, after so many halvings; all that we ask for if that is unknown."""
        llm = self.block.known_llm()
        window = context_window(llm) if llm else None
        answer = getattr(llm, "max_tokens", None)
        fixed = 0
        if window:
            texts = [
                *(message.content or "" for message in self._prompt(())),
                *asking.form_texts(tuple(self.categories)),
            ]
            fixed = sum(map(self.block.tokenizer_fn.count, texts))
        return asking.room_in(
            window,
            fixed,
            halved=halved,
            answer=answer if isinstance(answer, int) else None,
        )

    async def _batch(
        self, unread: LogPage, said: Sequence[Utterance], room: Room
    ) -> Batch:
        """Return rows and what they say as a batch; a short answer may need what was asked right before it."""
        rows = unread.rows
        now = utc_now()
        page = await self.known.store.readers.page(
            self.session_id, "", Seen(), before=rows[0].id, limit=_CONTEXT_ROWS
        )
        before = [one for one in await self._said(page.rows, Room()) if one.text]
        before = [one._replace(text=one.text[-_CONTEXT_CHARACTERS:]) for one in before]
        # No time is after now: a clock may have been ahead. The default is now.
        asked = [
            min(row.said_at or now, now)
            for row, one in zip(rows, said, strict=True)
            if one.is_users
        ]
        # What comes before the first question belongs to a turn of an earlier batch.
        turns = len(asked) + (not said[0].is_users)
        times = asked[-1] if asked else now, min(rows[-1].said_at or now, now)
        return Batch(
            unread, [one for one in said if one.text], turns, *times, before, room, []
        )

    async def _learn(self, batch: Batch, progress: Progress) -> Extracted:
        """Ask for the facts of a batch, check them, and store them with the cursor and the progress.

        No model is asked where the user has said nothing. Raises what the model raises,
        a FactReplyError for an answer that cannot be read, a TruncatedReplyError for
        one that is not whole, if there is more than one turn.
        """
        known = await self.known.read()
        seen = known.changes
        before = known.facts
        learned = Extracted()
        if any(line.is_users for line in batch.lines):
            started = perf_counter()
            reply, related = await self._reported(batch)
            valid = await self._validated(
                reply, batch.lines, related, batch.asked_at, context=batch.before
            )
            if self.verify and valid.claims:
                places = range(1, len(related) + 1)
                quotes = {
                    related[one.number - 1].id: one.quote
                    for one in reply.retired
                    if one.number in places
                }
                valid = await self._verified(valid, batch, quotes)
            learned = Extracted(
                *self._changes(valid, review=self.review), perf_counter() - started
            )
            reasons = [one.reason for one in learned.reply.rejected]
            rows = batch.unread.rows
            progress = progress.noting(
                utc_now().date(),
                sum(batch.spent, Usage()),
                reasons,
                rows[0].id,
                rows[-1].id,
            )
        stored = await self.known.store.facts.write_extracted(
            known.namespace,
            learned.changed,
            seen,
            session_id=self.session_id,
            reader=self.reader,
            unread=batch.unread,
            state=progress.state,
            view=known.view,
        )
        if stored:
            learned = learned._replace(messages=len(batch.unread.rows))
            await self._tell(learned, before, batch.spent)
        if learned.changed:
            await self.known.refresh(is_read=stored and is_heard())
        if stored:
            return learned
        return Extracted(seconds=learned.seconds)

    async def _reported(self, batch: Batch) -> tuple[ExtractionReply, Sequence[Fact]]:
        """Return what the model reports of a batch, and the known facts that it was shown.

        It is shown no fact that was learned from later words: an old conversation would
        seem to correct it.
        """
        counter = self.block.tokenizer_fn
        room = batch.room
        known = (*self.known.active, *self.known.pending)
        related = [
            fact
            for fact in known
            if fact.created_at <= max(batch.asked_at, batch.ended_at)
        ]
        # No token is shorter than a byte, and none of the numbers and marks around a
        # fact has more than six.
        if sum(len(fact.content.encode()) + 6 for fact in related) > room.known:
            texts = asking.texts_in(batch.lines)
            present = self.known.present
            await present.prepare(texts)
            related = await asyncio.to_thread(
                asking.offered, related, texts, present, counter, room.known
            )
        # More of it would be learned twice, and a model may have refused to read it.
        answered = question_before([*batch.before, *batch.lines], len(batch.before))
        last = batch.before[-1:] if answered else ()
        before = [
            line._replace(text=counter.tail(line.text, room.before)) for line in last
        ]
        prompt = self._prompt(
            batch.lines, related, said_on=batch.asked_at.date(), before=before
        )
        tokens = min(
            room.answer, ANSWER + sum(counter.count(line.text) for line in batch.lines)
        )
        with self._counted("facts", prompt, batch) as heard:
            reply, response = await asking.ask_for_facts(
                self.block.chosen_llm(),
                prompt,
                categories=self.categories,
                answer_tokens=tokens,
                heard=heard,
            )
        if was_truncated(response) and batch.turns > 1:
            raise TruncatedReplyError(
                "Expected a whole answer; saw one that was cut off. The turns are asked for apart."
            )
        return reply, related

    def _prompt(
        self, lines: Sequence[Utterance], known: Sequence[Fact] = (), **told: Any
    ) -> list[ChatMessage]:
        told |= {"categories": self.categories, "instructions": self.instructions}
        rejected = [
            f"{one.content} ({one.retired_reason})"
            for one in self.known.refused[: -_MOST_REJECTED - 1 : -1]
        ]
        texts = [
            f"- {asking.on_one_line(one[:_REJECTED_CHARACTERS])}\n" for one in rejected
        ]
        kept = fit_tokens(map(self.block.tokenizer_fn.count, texts), _REJECTED_TOKENS)
        shown = "".join(texts[i] for i in kept)
        told["rejected"] = (
            shown
            and f"Do not report these again:\n<rejected_facts>\n{shown}</rejected_facts>\n"
        )
        return asking.extraction_prompt(lines, known, today=utc_now().date(), **told)

    @contextmanager
    def _counted(
        self, kind: str, prompt: Sequence[ChatMessage], batch: Batch
    ) -> Iterator[list[ChatResponse]]:
        """Count the tokens of the responses that are heard, also if the model fails in the end."""
        heard: list[ChatResponse] = []
        try:
            yield heard
        finally:
            used = [
                usage_of(prompt, response, self.block.tokenizer_fn)
                for response in heard
            ]
            self.usage[kind] = sum(used, self.usage.get(kind, Usage()))
            batch.spent.extend(used)

    async def _validated(
        self,
        reply: ExtractionReply,
        lines: Sequence[Utterance],
        related: Sequence[Fact],
        then: datetime,
        **rules: Any,
    ) -> ValidatedReply:
        """Return what of a reply is stored, by the rules of ``validate_reply``."""
        known = self.known
        # A fact that was deleted since must not come back by being retired.
        about = [
            known.facts.get(fact.id) or retire(fact, "deleted", fact.updated_at)
            for fact in related
        ]
        rules |= {"session_id": self.session_id, "min_confidence": self.min_confidence}
        rules |= {"active": (*known.active, *known.pending), "past": known.past}
        await wait_until_loaded()
        # Dates and languages of a long text take a while, for which the event loop must
        # not be blocked.
        return await asyncio.to_thread(
            validate_reply, reply, lines, about, now=then, **rules
        )

    async def _verified(
        self, valid: ValidatedReply, batch: Batch, quotes: dict[str, str]
    ) -> ValidatedReply:
        """Return what a second call leaves of a validated reply: all of it if that gives no verdict.

        Raises what the model raises if nobody has answered: the batch is read again
        then.
        """
        from llama_index_memory_ext.facts import verification  # where it is switched on

        count = len(valid.claims)
        prompt = await asyncio.to_thread(
            verification.verification_prompt, valid, quotes, batch.lines
        )
        try:
            with self._counted("verification", prompt, batch) as heard:
                judgements, _ = await asking.ask(
                    self.block.chosen_llm(),
                    prompt,
                    verification.VERDICT_TOOL,
                    verification.VERDICT_FORM,
                    lambda texts, _: verification.parse_verdict(texts, count),
                    # A verdict on a candidate has at most 60 tokens.
                    answer_tokens=min(batch.room.answer, ANSWER + 60 * count),
                    heard=heard,
                )
        except Exception as error:
            if blame_of(error) in ("model", "length"):
                raise
            told = "%d facts were not verified (%s); they are stored without it."
            logger.warning(told, count, type(error).__name__)
            return valid
        return verification.verified(valid, judgements, batch.lines)

    def _changes(
        self, valid: ValidatedReply, *, review: bool = False
    ) -> tuple[list[Fact], ValidatedReply]:
        """Return what changes by a validated reply; over ``max_facts`` the least confident own facts are retired.

        New facts are the agent's own, but what takes the place of a shared fact is
        shared, too.
        """
        own = self.known.view.own
        shared_ids = {
            fact.replaced_by for fact in valid.retired if fact.agent_id is None
        }
        new = (
            fact if fact.id in shared_ids else fact.model_copy(update={"agent_id": own})
            for fact in valid.accepted
        )
        valid = replace(valid, accepted=tuple(new))
        if review:
            valid = self._pending(valid)
        self.rejections.update(valid.rejections)
        changed = {
            fact.id: fact
            for fact in (*valid.accepted, *valid.confirmed, *valid.retired)
        }
        if self.max_facts is not None:
            now = utc_now()
            active = [
                fact
                for fact in {**self.known.facts, **changed}.values()
                if fact.state(now) == "present"
            ]
            active.sort(
                key=lambda fact: (fact.pinned, fact.confidence, fact.updated_at)
            )
            # The limit of one agent takes no shared facts from the others.
            mine = [fact for fact in active if fact.agent_id == own]
            over = mine[: max(len(active) - self.max_facts, 0)]
            changed |= {
                fact.id: retire(fact, "over max_facts", now, by="limit")
                for fact in over
            }
        return list(changed.values()), valid

    def _pending(self, valid: ValidatedReply) -> ValidatedReply:
        """Return a validated reply of which what is new, and what that ends, is pending; what was rejected is left out.

        What ends without a replacement waits as a fact that says so. What the user
        wants forgotten does not wait.
        """
        facts = self.known.facts
        waiting = {fact.id: fact for fact in self.known.pending}
        decided = {
            normalised(fact.content): fact.id
            for fact in (*waiting.values(), *self.known.refused)
        }
        fields: dict[str, Any] = {"pending": True}
        new = {fact.id: fact.model_copy(update=fields) for fact in valid.accepted}
        at_once = []
        for one in valid.retired:
            old = facts[one.id]
            name = one.replaced_by or ""
            if one.retired_by == "request" or (old.pending and not name):
                at_once.append(one)
                continue
            fields |= {
                "category": old.category,
                "agent_id": old.agent_id,
                "said_as": ONLY_ENDS,
            }
            waits = (
                new.get(name)
                or waiting.get(name)
                or Fact(content=f"No longer true: {old.content}", **fields)
            )
            ends = {
                one.id: one.model_dump(mode="json", include={*ENDING}),
                **old.ends_facts,
            }
            new[waits.id] = waits.model_copy(
                update={"ends_facts": {**waits.ends_facts, **ends}}
            )
        left = [
            fact
            for fact in new.values()
            if decided.get(normalised(fact.content), fact.id) == fact.id
        ]
        again = [Rejection("duplicate", "It is pending, or was rejected.")] * (
            len(new) - len(left)
        )
        confirmed = tuple(fact for fact in valid.confirmed if fact.id not in new)
        return ValidatedReply(
            tuple(left),
            confirmed,
            tuple(at_once),
            (*valid.rejected, *again),
            valid.doubted,
        )

    async def _goes_on(
        self, error: Exception, batch: Batch, progress: Progress
    ) -> bool:
        """Note a failure with the cursor; return whether the caller can go on at once."""
        action, after = after_failure(progress, blame_of(error), batch.turns)
        unread, position = batch.unread, batch.unread.position
        turn = SetAside(unread.rows[0].id, unread.rows[-1].id, type(error).__name__)
        if action == "set aside":
            after = after.leaving(turn)
            position = max(turn.last, position)
        if after == progress:
            return False
        noted = await self.known.store.readers.move(
            self.session_id,
            self.reader,
            epoch=unread.epoch,
            old=unread.position,
            new=position,
            state=after.state,
        )
        if noted and action == "set aside":
            logger.warning(
                "No facts could be extracted from messages %d to %d of session %r (%s); they are set aside, "
                "and the next ones are read. `await memory.abackfill(failed=True)` tries them again.",
                turn.first,
                turn.last,
                self.session_id,
                turn.error,
            )
        return noted and action != "stop" and (self.at_once or action != "pause")

    async def _tell(
        self,
        learned: Extracted,
        before: Mapping[str, Fact],
        spent: Sequence[Usage] = (),
    ) -> None:
        if not is_heard():
            return
        usage = sum(spent, Usage())
        # What another process has stored meanwhile was left out. A new fact over
        # ``max_facts`` is retired, too.
        facts = (await self.known.read()).facts
        changed = [fact for fact in learned.changed if fact.id in facts]
        send(
            FactsExtractedEvent(
                session_id=self.session_id,
                user_id=name_of(self.known.namespace),
                agent_id=self.known.view.own,
                messages=learned.messages,
                new=[fact.id for fact in changed if fact.id not in before],
                confirmed=[
                    fact.id
                    for fact in changed
                    if fact.id in before and not fact.retired
                ],
                retired=[fact.id for fact in changed if fact.retired],
                pending=[
                    fact.id for fact in changed if fact.pending and not fact.retired
                ],
                rejections=learned.reply.rejections,
                seconds=learned.seconds or 0.0,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
            )
        )
