"""Extracts facts from the log of a session: reads, asks, checks and stores.

After a failure the next batch is shorter; a turn that always fails is set aside.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import ChainMap, Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import partial
from operator import add
from time import perf_counter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole

from llama_index_memory_ext.background.loading import wait_until_loaded
from llama_index_memory_ext.errors import (
    Blame,
    StoreError,
    TruncatedReplyError,
    WorkError,
    blame_of,
)
from llama_index_memory_ext.events import (
    FactsExtractedEvent,
    Rejection,
    has_listeners,
    send,
)
from llama_index_memory_ext.fact import (
    CATEGORIES,
    ENDING,
    ONLY_ENDS,
    Fact,
    RetiredBy,
    SetAside,
    duplicate_key,
    retire,
)
from llama_index_memory_ext.learning.endings import (
    ask_whether_over,
    doubted_facts,
    ending_prompt,
)
from llama_index_memory_ext.learning.prompt import (
    ANSWER_TOKENS,
    Categories,
    RequestBudget,
    ask_for_facts,
    batch_end,
    can_call,
    extraction_prompt,
    on_one_line,
    request_budget,
    select_known_facts,
    sent_part,
    texts_in,
    tool_of,
)
from llama_index_memory_ext.learning.reply import ExtractionReply, NewFact, Retirement
from llama_index_memory_ext.learning.validation import (
    TOOL_CHECKS,
    ValidatedReply,
    validate_reply,
)
from llama_index_memory_ext.models.ask import (
    Usage,
    context_window,
    usage_of,
    was_truncated,
)
from llama_index_memory_ext.store.rows import (
    LogPage,
    LogRow,
    ReadPosition,
    SessionAccess,
    times_of,
)
from llama_index_memory_ext.store.tables import ROWS, display_name, namespace_of_session
from llama_index_memory_ext.text.tokens import take_fitting
from llama_index_memory_ext.text.turns import (
    OTHER_ROLE,
    Utterance,
    spoken,
    with_code_results,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from llama_index_memory_ext.blocks import LogBlock
    from llama_index_memory_ext.facts.known import UserFacts
    from llama_index_memory_ext.text.messages import Json


logger = logging.getLogger(__name__)

# A turn that fails alone is set aside after three tries. After three turns set aside in
# a row the model itself may be broken: a turn then has four times as many tries, and
# each run makes one of them.
_TURN_TRIES = 3
_MOST_SET_ASIDE_IN_A_ROW = 3
_MORE_TRIES_IN_DOUBT = 4
# The limits of a batch are halved at most six times; the failure of a single turn
# halves them twice. Each success undoes a quarter of a halving: a length that was too
# long for the last batch may be too long for the next one.
_MOST_HALVINGS = 6
_HALVINGS_OF_A_TURN = 2
_HALVINGS_UNDONE = 0.25
_BATCH_ROWS = 200
# Limits of the rejected facts that a model reads: their number, their tokens, and the
# characters of each fact with its reason.
_MOST_REJECTED = 20
_REJECTED_TOKENS = 400
_REJECTED_CHARACTERS = 400
# Limits of the messages before a batch: names and questions in them count for it.
_CONTEXT_ROWS = 10
_CONTEXT_CHARACTERS = 1_000
# Characters of a tool's result that are compared with a fact of an agent.
_RESULT_CHARACTERS = 20_000
_APPLY_TRIES = 3
_ANY_NUMBER = sys.maxsize
_DECIDED = Rejection("duplicate", "It is pending, or was rejected.")


# The next step after a failure. "again": try at once. "pause": try after a pause.
# "stop": pause even where no pause is usual. "set aside": leave the turn behind.
Action: TypeAlias = Literal["again", "pause", "stop", "set aside"]


# The users whose messages are the user's; None: all of them.
_Speakers: TypeAlias = "set[str | None] | None"
# Days and rejections that a cursor keeps.
_DAYS_NOTED = 30
_MOST_NOTED = 50


class Progress(NamedTuple):
    """The state of a facts' reader, stored with its cursor.

    ``most_turns``: limit of turns in the next batch, after a failure.
    ``tries``: failures of a single turn.
    ``in_a_row``: turns that were set aside since the last success.
    ``halved``: how often the limits of tokens are halved.
    ``set_aside``: the turns that were set aside.
    ``days``: calls, tokens sent and tokens received, by day.
    ``rejected``: day, reason, first row and last row of each rejection.
    """

    most_turns: int | None = None
    tries: int = 0
    in_a_row: int = 0
    halved: float = 0
    set_aside: tuple[SetAside, ...] = ()
    days: Mapping[str, Sequence[int]] = {}
    rejected: Sequence[Sequence[str | int]] = ()

    def succeeded(self) -> Progress:
        """Return the progress after a batch was stored."""
        halved = max(self.halved - _HALVINGS_UNDONE, 0)
        return self._replace(most_turns=None, tries=0, in_a_row=0, halved=halved)

    def leaving(self, turn: SetAside) -> Progress:
        """Return the progress after a turn was set aside."""
        return self._replace(
            most_turns=None,
            tries=0,
            in_a_row=self.in_a_row + 1,
            halved=0,
            set_aside=(*self.set_aside, turn),
        )

    def noting(
        self, today: date, used: Usage, reasons: Iterable[str], first: int, last: int
    ) -> Progress:
        """Return the progress with today's usage and rejections for these rows."""
        oldest_day = (today - timedelta(days=_DAYS_NOTED)).isoformat()
        day = today.isoformat()
        counts = (used.calls, used.prompt_tokens, used.completion_tokens)
        before = self.days.get(day, (0, 0, 0))
        totals = {**self.days, day: list(map(add, before, counts))}
        days = {name: total for name, total in totals.items() if name > oldest_day}
        rejected = [entry for entry in self.rejected if str(entry[0]) > oldest_day]
        rejected += [(day, reason, first, last) for reason in reasons]
        return self._replace(days=days, rejected=rejected[-_MOST_NOTED:])

    @property
    def is_understood(self) -> bool:
        """Whether an answer of the model was read in the last 30 days."""
        return bool(self.days)

    @property
    def state(self) -> Json:
        """The progress as JSON for ``Readers.move``; None for a progress without content."""
        if self == Progress():
            return None
        fields = self._asdict()
        turns = fields.pop("set_aside")
        return {**fields, "days": dict(self.days), ROWS: [list(turn) for turn in turns]}


def progress_of(state: Json) -> Progress:
    """Return the progress that a cursor was stored with.

    Fields of earlier versions that this version does not have are ignored.

    >>> progress_of({"tries": 1, "rows": [[4, 5, "FactReplyError"]]}).set_aside
    (SetAside(first=4, last=5, error='FactReplyError'),)
    """
    stored = state or {}
    turns = tuple(SetAside(*turn) for turn in stored.get(ROWS, ()))
    fields = {name: stored[name] for name in Progress._fields if name in stored}
    return Progress(**fields, set_aside=turns)


class Due(NamedTuple):
    """When unread messages are read: as soon as one of these limits is reached.

    ``turns``: the number of unread turns.
    ``tokens``: the tokens of unread messages.
    ``last_left``: the last row that has left the record; unread messages of the log up to it
    are due.
    ``answered``: whether the current turn is read only if it has its answer.
    """

    turns: int = 0
    tokens: int = _ANY_NUMBER
    last_left: int = 0
    answered: bool = False

    def is_reached(self, first: LogRow, turns: int, tokens: int) -> bool:
        """Return whether so many unread turns and tokens, from this row on, are due."""
        has_left = first.id <= self.last_left and not first.is_active
        return has_left or turns >= self.turns or tokens >= self.tokens


ALL = Due()


class Decision(NamedTuple):
    """The next step after a failure, and the progress to store."""

    action: Action
    progress: Progress


def after_failure(progress: Progress, blame: Blame, turns: int) -> Decision:
    """Return the next step after a batch of so many turns has failed.

    A batch is halved until the failing turn is alone; a model that was never understood
    gets a single turn at once. A single turn is tried three times, with a shorter text
    each time, and then set aside. If the model itself seems broken, the turn has more
    tries, with a pause before each. After a timeout the next text is shorter, and no
    turn is set aside.
    """
    if blame == "model":
        return Decision("pause", progress)
    if blame == "length":
        return Decision("pause", _halved(progress, 1))
    if turns > 1:
        action: Action = "again" if blame == "turns" else "pause"
        most_turns = turns // 2 if progress.is_understood else 1
        return Decision(action, progress._replace(most_turns=most_turns, tries=0))
    return _after_failed_turn(progress, blame)


def _after_failed_turn(progress: Progress, blame: Blame) -> Decision:
    """Return the next step after a batch of one turn has failed, which the turn or the model has caused."""
    is_model_in_doubt = (
        blame == "unknown" or progress.in_a_row >= _MOST_SET_ASIDE_IN_A_ROW
    )
    most_tries = _TURN_TRIES
    if is_model_in_doubt:
        most_tries *= _MORE_TRIES_IN_DOUBT
    tries = progress.tries + 1
    if tries >= most_tries:
        return Decision("set aside", progress)
    shorter = _halved(progress, _HALVINGS_OF_A_TURN)
    is_stopped = is_model_in_doubt or not progress.is_understood
    action: Action = "stop" if is_stopped else "pause"
    return Decision(action, shorter._replace(most_turns=1, tries=tries))


def _halved(progress: Progress, halvings: int) -> Progress:
    return progress._replace(halved=min(progress.halved + halvings, _MOST_HALVINGS))


class Batch(NamedTuple):
    """The turns that one request reads.

    ``unread``: their rows, with the reader's cursor.
    ``lines``: the texts of the rows, without empty ones.
    ``turns``: how many turns they are.
    ``asked_at``: the time of the last question.
    ``ended_at``: the time of the last message.
    ``before``: the lines right before the batch.
    ``budget``: the limits of a request.
    """

    unread: LogPage
    lines: Sequence[Utterance]
    turns: int
    asked_at: datetime
    ended_at: datetime
    before: Sequence[Utterance]
    budget: RequestBudget


class RecentLines(NamedTuple):
    """The last lines of a session, and the results of its tools, oldest first."""

    lines: list[Utterance]
    results: list[Utterance]


class Extracted(NamedTuple):
    """The facts that a batch has changed, and how it was read.

    ``reply``: the validated reply.
    ``seconds``: the time that the model took; None if no model was asked.
    ``usage``: the calls of the model and their tokens.
    ``messages``: how many messages were read.

    All fields but ``seconds`` are empty if another process was faster. The reply of a
    tool has only the first two.
    """

    changed: Sequence[Fact] = ()
    reply: ValidatedReply = ValidatedReply()
    seconds: float | None = None
    usage: Usage = Usage()
    messages: int = 0


@dataclass(frozen=True)
class Extractor:
    """Extracts the facts of one user from the log of one session.

    ``reader``: the name of the cursor.
    ``block``: its model, tokenizer and settings are used.
    ``rejections``: counts the entries of replies that are not stored, by reason.
    ``usage``: the usage of the model, by kind of call.
    ``at_once``: a turn that fails is tried again without a pause.
    ``spent``: the usage that no event has counted yet.
    ``review``: new facts are pending.
    ``is_own``: the user is the user of the memory, who never stands for a team.
    """

    user_facts: UserFacts
    session_id: str
    reader: str
    block: LogBlock
    rejections: Counter[str]
    usage: dict[str, Usage]
    max_facts: int | None
    min_confidence: float
    categories: Categories = CATEGORIES
    instructions: str | None = None
    at_once: bool = False
    spent: list[Usage] = field(default_factory=list)
    review: bool = False
    is_own: bool = False

    async def extract(self, due: Due = ALL) -> None:
        """Extract batches until no unread messages are due.

        Raises:
            WorkError: The model or the database has failed.
        """
        try:
            while await self.extract_next(due):
                pass
        except Exception as error:
            used = self._take_spent()
            raise WorkError(
                error, used.prompt_tokens, used.completion_tokens
            ) from error

    async def extract_next(self, due: Due = ALL) -> Extracted | None:
        """Extract one batch; None if no unread messages are due.

        If the model fails, the batch stays unread. The error is raised, unless the
        reader can go on at once with a shorter batch or with the next turn.
        """
        batch = await self._next_batch(due)
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
        store = self.user_facts.store
        _, state = await store.readers.state(self.session_id, self.reader)
        return progress_of(state).set_aside

    async def extract_again(self, turn: SetAside) -> Extracted:
        """Extract a turn that was set aside. If the model fails, it stays set aside, and the error is raised."""
        page = await self.user_facts.store.readers.unread(
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
        budget = await asyncio.to_thread(self._request_budget)
        speakers = await self._speakers()
        lines = await self._lines_of(rows, speakers, budget)
        batch = await self._batch(replace(page, rows=rows), lines, budget, speakers)
        remaining = tuple(entry for entry in progress.set_aside if entry != turn)
        return await self._learn(batch, progress._replace(set_aside=remaining))

    async def recent(self) -> RecentLines:
        """Return the last lines of the session and its tools' results, the current turn included."""
        readers = self.user_facts.store.readers
        page = await readers.page(
            self.session_id, "", ReadPosition(), limit=_BATCH_ROWS
        )
        after = page.rows[-1].id if page.rows else 0
        unread = await readers.unread(
            self.session_id, "", with_active=True, after=after
        )
        rows = [*page.rows, *unread.rows][-_BATCH_ROWS:]
        results = [
            Utterance(
                row.id, row.role, (row.message.content or "")[:_RESULT_CHARACTERS]
            )
            for row in rows
            if row.is_result
        ]
        lines = await self._lines_of(rows, await self._speakers())
        return RecentLines([line for line in lines if line.text], results)

    async def apply(
        self,
        reply: ExtractionReply,
        lines: Sequence[Utterance],
        about: Sequence[Fact] = (),
        *,
        tool_text: str = "",
        retired_by: RetiredBy | None = None,
    ) -> Extracted:
        """Store a reply that comes from a tool.

        A web page may tell a model with tools to store a fact. So two keywords in five
        of a new fact must be the user's.

        Args:
            reply: The reply.
            lines: The conversation.
            about: The facts that the reply names by their places, from 1.
            tool_text: The texts that tools returned.
            retired_by: The cause of a retirement; None: the words decide.

        Raises:
            StoreError: Facts of the user are being deleted.
        """
        for _ in range(_APPLY_TRIES):
            user_facts = await self.user_facts.read()
            changes = user_facts.changes
            before = user_facts.facts
            validate = partial(
                validate_reply,
                reply,
                lines,
                checks=TOOL_CHECKS,
                tool_text=tool_text,
                retired_by=retired_by,
            )
            valid = await self._validated(validate, about, self.block.now())
            valid = self._with_agent(valid)
            self.rejections.update(valid.rejections)
            changed = self._changed_facts(valid)
            if not changed:
                return Extracted(reply=valid)
            if await user_facts.store.facts.write(
                user_facts.namespace, changed, changes, view=user_facts.view
            ):
                applied = Extracted(changed, valid)
                await self._send_event(applied, before)
                await user_facts.refresh(is_read=has_listeners())
                return applied
        raise StoreError(
            "Expected to store facts; facts of this user are being deleted at the same time. Try again."
        )

    async def _next_batch(self, due: Due) -> Batch | None:
        """Return the oldest unread rows that fit one request; None if they are not due."""
        unread = await self._registered_rows()
        progress = progress_of(unread.state)
        rows = unread.rows
        budget = RequestBudget()
        if rows:
            # The first one describes the tool, and loads the model's client.
            budget = await asyncio.to_thread(self._request_budget, progress.halved)
        speakers = await self._speakers()
        lines = await self._lines_of(rows, speakers, budget)
        end = _end_of_turns(rows, lines, answered=due.answered)
        starts = [line.is_users for line in lines[:end]]
        texts = [sent_part(line) for line in lines[:end]]
        count = self.block.tokenizer_fn.count
        tokens = await asyncio.to_thread(lambda: list(map(count, texts)))
        if len(rows) < _BATCH_ROWS:
            if not any(starts):
                self.user_facts.store.jobs.unread.discard(self.session_id)
            if not end or not due.is_reached(rows[0], sum(starts), sum(tokens)):
                return None
        end = batch_end(
            starts,
            tokens,
            [at and at.date() for at in times_of(rows[:end], self.block.zone)],
            token_limit=budget.batch,
            most_turns=progress.most_turns,
        )
        unread = replace(unread, rows=rows[:end])
        return await self._batch(unread, lines[:end], budget, speakers)

    async def _registered_rows(self) -> LogPage:
        """Return the unread rows, after the session is registered as the user's.

        A plain Memory may have written the session, which registers no user.
        """
        store = self.user_facts.store
        user: str | None = self.user_facts.namespace
        if user == namespace_of_session(self.session_id):
            user = None
        while True:
            unread = await store.readers.unread(
                self.session_id, self.reader, with_active=True, limit=_BATCH_ROWS
            )
            if unread.registered or not unread.rows:
                return unread
            await store.owners.claim(
                self.session_id,
                SessionAccess(user),
                readers=[self.reader],
                epoch=unread.epoch,
            )

    async def _speakers(self) -> _Speakers:
        """Return the speakers whose messages are the user's.

        A user who does not talk in the session, such as a team, has the facts of all
        its users. A message that LlamaIndex's own memory has written is the user's.
        """
        user = self.user_facts.namespace
        owners = await self.user_facts.store.owners.users_of_session(self.session_id)
        if not self.is_own and user not in owners:
            return None
        # As long as a session has one user, no row says whose it is.
        if set(owners) <= {user}:
            return {user, None}
        return {user}

    async def _lines_of(
        self,
        rows: Sequence[LogRow],
        speakers: _Speakers,
        budget: RequestBudget = RequestBudget(),  # noqa: B008 - it is immutable
    ) -> list[Utterance]:
        """Return the text and the speaker of each row.

        A text is clipped to half a batch. A question of a user outside ``speakers`` gets
        another role.
        """
        limit = budget.batch // 2

        def read_lines() -> list[Utterance]:
            lines = []
            speaker = ""
            messages = with_code_results(row.message for row in rows)
            for row, message in zip(rows, messages, strict=True):
                role = message.role.value
                if message.role == MessageRole.USER:
                    speaker = row.user_id or ""
                    if speakers is not None and row.user_id not in speakers:
                        role = OTHER_ROLE
                text = spoken(message)
                # No token is shorter than a byte.
                if len(text.encode()) > limit:
                    text = self.block.tokenizer_fn.clip(text, limit)
                lines.append(Utterance(row.id, role, text, speaker))
            return lines

        # Counting some megabytes takes a second, which must not block the event loop.
        return await asyncio.to_thread(read_lines)

    def _request_budget(self, halved: float = 0) -> RequestBudget:
        """Return the limits of a request after so many halvings; the defaults for an unknown model."""
        llm = self.block.known_llm()
        window = context_window(llm) if llm else None
        answer = getattr(llm, "max_tokens", None)
        if not isinstance(answer, int):
            answer = None
        fixed = 0
        if window:
            texts = [message.content or "" for message in self._prompt(())]
            texts.append(tool_of(tuple(self.categories)).metadata.fn_schema_str)
            fixed = sum(map(self.block.tokenizer_fn.count, texts))
        return request_budget(window, fixed, halved=halved, answer=answer)

    async def _batch(
        self,
        unread: LogPage,
        lines: Sequence[Utterance],
        budget: RequestBudget,
        speakers: _Speakers,
    ) -> Batch:
        """Return a batch of rows and their lines, with the lines right before it.

        A short answer may need the question that it answers.
        """
        rows = unread.rows
        now = self.block.now()
        page = await self.user_facts.store.readers.page(
            self.session_id, "", ReadPosition(), before=rows[0].id, limit=_CONTEXT_ROWS
        )
        context = await self._lines_of(page.rows, speakers)
        before = [
            line._replace(text=line.text[-_CONTEXT_CHARACTERS:])
            for line in context
            if line.text
        ]
        times = times_of(rows, self.block.zone)
        pairs = zip(times, lines, strict=True)
        question_times = [said_at for said_at, line in pairs if line.is_users]
        # Rows before the first question belong to a turn of an earlier batch.
        turns = len(question_times) + (not lines[0].is_users)
        # No time is after now: a clock may have been ahead.
        asked_at = now
        if question_times:
            asked_at = min(question_times[-1] or now, now)
        ended_at = min(times[-1] or now, now)
        return Batch(
            unread,
            [line for line in lines if line.text],
            turns,
            asked_at,
            ended_at,
            before,
            budget,
        )

    async def _learn(self, batch: Batch, progress: Progress) -> Extracted:
        """Extract the facts of a batch, and store them with the cursor and the progress.

        No model is asked about a batch without a line of the user.

        Raises:
            FactReplyError: The answer cannot be read.
            TruncatedReplyError: The answer about several turns was cut off.
            Exception: The error of the model.
        """
        user_facts = await self.user_facts.read()
        changes = user_facts.changes
        before = user_facts.facts
        learned = Extracted()
        if any(line.is_users for line in batch.lines):
            learned = await self._extracted(batch)
            rows = batch.unread.rows
            progress = progress.noting(
                self.block.now().date(),
                learned.usage,
                [rejection.reason for rejection in learned.reply.rejected],
                rows[0].id,
                rows[-1].id,
            )
        is_stored = await user_facts.store.facts.write_extracted(
            user_facts.namespace,
            learned.changed,
            changes,
            session_id=self.session_id,
            reader=self.reader,
            unread=batch.unread,
            state=progress.state,
            view=user_facts.view,
        )
        if is_stored:
            learned = learned._replace(messages=len(batch.unread.rows))
            await self._send_event(learned, before)
        if learned.changed:
            await self.user_facts.refresh(is_read=is_stored and has_listeners())
        if is_stored:
            return learned
        return Extracted(seconds=learned.seconds)

    async def _extracted(self, batch: Batch) -> Extracted:
        """Return the facts that a batch changes, checked and not yet stored."""
        started = perf_counter()
        llm = self.block.chosen_llm()
        related = await self._related_facts(batch)
        # A model without tools ends no fact of a list, so its request has none.
        reply = await self._report(batch, related if can_call(llm) else ())
        # The request may have shown that the model calls no tools.
        if related and not (reply.retired or can_call(llm)):
            retired = await self._endings(batch, reply, related)
            reply = reply.model_copy(update={"retired": retired})
        validate = partial(validate_reply, reply, batch.lines, context=batch.before)
        valid = await self._validated(validate, related, batch.asked_at)
        valid = self._with_agent(valid)
        if self.review:
            valid = _pending_reply(valid, self.user_facts)
        self.rejections.update(valid.rejections)
        changed = self._changed_facts(valid)
        return Extracted(changed, valid, perf_counter() - started, self._take_spent())

    def _take_spent(self) -> Usage:
        """Return the usage that no event has counted yet, and count it from now on."""
        used = sum(self.spent, Usage())
        self.spent.clear()
        return used

    async def _report(self, batch: Batch, related: Sequence[Fact]) -> ExtractionReply:
        """Return the model's reply about a batch, and about the facts that it may change."""
        counter = self.block.tokenizer_fn
        prompt = self._prompt(
            batch.lines, related, said_at=batch.asked_at, before=batch.before
        )
        tokens = ANSWER_TOKENS + sum(counter.count(line.text) for line in batch.lines)
        with self._counted("facts", prompt) as responses:
            reply, response = await ask_for_facts(
                self.block.chosen_llm(),
                prompt,
                categories=self.categories,
                answer_tokens=min(batch.budget.answer, tokens),
                responses=responses,
            )
        if was_truncated(response) and batch.turns > 1:
            raise TruncatedReplyError(
                "Expected a whole answer; it was cut off. Each half of the turns is read alone next."
            )
        return reply

    async def _endings(
        self, batch: Batch, reply: ExtractionReply, related: Sequence[Fact]
    ) -> list[Retirement]:
        """Ask a model without tools which known facts the new words end, a fact at a time.

        Small models end any fact of a list. A model with tools names the facts that end in
        its report.
        """
        llm = self.block.chosen_llm()
        retired = []
        for doubt in await asyncio.to_thread(doubted_facts, batch.lines, related):
            prompt = ending_prompt(related[doubt.number - 1], doubt.words)
            with self._counted("facts", prompt) as responses:
                is_over = await ask_whether_over(llm, prompt, responses)
            if is_over:
                entry = Retirement(
                    number=doubt.number,
                    quote=doubt.words,
                    replaced_by=_label_of(doubt.words, reply.new_facts),
                )
                retired.append(entry)
        return retired

    async def _related_facts(self, batch: Batch) -> Sequence[Fact]:
        """Return the facts that the batch may change, within the limit of a request.

        Facts of later words are left out: an old conversation would seem to correct
        them.
        """
        last = max(batch.asked_at, batch.ended_at)
        user_facts = self.user_facts
        facts = [
            fact
            for fact in (*user_facts.active, *user_facts.pending)
            if fact.created_at <= last
        ]
        # No token is shorter than a byte. The number and the marks around a fact have
        # at most six.
        most_tokens = sum(len(fact.content.encode()) + 6 for fact in facts)
        if most_tokens <= batch.budget.facts:
            return facts
        texts = texts_in(batch.lines)
        present = user_facts.present
        await present.prepare(texts)
        return await asyncio.to_thread(
            select_known_facts,
            facts,
            texts,
            present,
            self.block.tokenizer_fn,
            batch.budget.facts,
        )

    def _prompt(
        self,
        lines: Sequence[Utterance],
        facts: Sequence[Fact] = (),
        *,
        said_at: datetime | None = None,
        before: Sequence[Utterance] = (),
    ) -> list[ChatMessage]:
        return extraction_prompt(
            lines,
            facts,
            said_on=(said_at or self.block.now()).date(),
            categories=self.categories,
            instructions=self.instructions,
            before=before,
            rejected=self._rejected_text(),
        )

    def _rejected_text(self) -> str:
        """Return the facts that a person has rejected, newest first, for the prompt; "" for none."""
        texts = []
        newest_first = self.user_facts.rejected[::-1]
        for fact in newest_first[:_MOST_REJECTED]:
            text = f"{fact.content} ({fact.retired_reason})"[:_REJECTED_CHARACTERS]
            texts.append(f"- {on_one_line(text)}\n")
        count = self.block.tokenizer_fn.count
        joined = "".join(take_fitting(texts, count, _REJECTED_TOKENS))
        if not joined:
            return ""
        return (
            f"Do not report these again:\n<rejected_facts>\n{joined}</rejected_facts>\n"
        )

    @contextmanager
    def _counted(
        self, kind: str, prompt: Sequence[ChatMessage]
    ) -> Iterator[list[ChatResponse]]:
        """Count the tokens of the responses in the list, also if the model fails in the end."""
        responses: list[ChatResponse] = []
        try:
            yield responses
        finally:
            count = self.block.tokenizer_fn
            used = [usage_of(prompt, response, count) for response in responses]
            self.usage[kind] = sum(used, self.usage.get(kind, Usage()))
            self.spent.extend(used)

    async def _validated(
        self,
        validate: Callable[..., ValidatedReply],
        related: Sequence[Fact],
        said_at: datetime,
    ) -> ValidatedReply:
        """Return the reply as ``validate_reply`` validates it beside the facts of the user."""
        user_facts = self.user_facts
        # A fact that was deleted since must not come back by being retired.
        current = [
            user_facts.facts.get(fact.id) or retire(fact, "deleted", fact.updated_at)
            for fact in related
        ]
        await wait_until_loaded()
        # Dates and languages of a long text take a while, which must not block the
        # event loop.
        return await asyncio.to_thread(
            validate,
            current,
            now=said_at,
            active=(*user_facts.active, *user_facts.pending),
            past=user_facts.past,
            session_id=self.session_id,
            min_confidence=self.min_confidence,
        )

    def _with_agent(self, valid: ValidatedReply) -> ValidatedReply:
        """Return the reply with the agent of each new fact.

        A new fact is the agent's own. A fact that replaces a shared fact is shared.
        """
        shared_ids = {
            fact.replaced_by for fact in valid.retired if fact.agent_id is None
        }
        accepted = []
        for fact in valid.accepted:
            agent_id = None if fact.id in shared_ids else self.user_facts.view.own
            accepted.append(fact.model_copy(update={"agent_id": agent_id}))
        return replace(valid, accepted=tuple(accepted))

    def _changed_facts(self, valid: ValidatedReply) -> list[Fact]:
        """Return all facts that a validated reply changes.

        Over ``max_facts`` the least confident of the agent's own facts are retired.
        """
        changed = {
            fact.id: fact
            for fact in (*valid.accepted, *valid.confirmed, *valid.retired)
        }
        if self.max_facts is not None:
            now = self.block.now()
            facts = {**self.user_facts.facts, **changed}.values()
            present = [fact for fact in facts if fact.state(now) == "present"]
            present.sort(
                key=lambda fact: (fact.pinned, fact.confidence, fact.updated_at)
            )
            # The limit of one agent retires no shared facts.
            agent_id = self.user_facts.view.own
            own = [fact for fact in present if fact.agent_id == agent_id]
            for fact in own[: max(len(present) - self.max_facts, 0)]:
                changed[fact.id] = retire(fact, "over max_facts", now, by="limit")
        return list(changed.values())

    async def _goes_on(
        self, error: Exception, batch: Batch, progress: Progress
    ) -> bool:
        """Note a failure with the cursor; return whether the caller can go on at once."""
        action, noted = after_failure(progress, blame_of(error), batch.turns)
        unread = batch.unread
        position = unread.position
        turn = SetAside(unread.rows[0].id, unread.rows[-1].id, type(error).__name__)
        if action == "set aside":
            noted = noted.leaving(turn)
            position = max(turn.last, position)
        if noted == progress:
            return False
        is_stored = await self.user_facts.store.readers.move(
            self.session_id,
            self.reader,
            epoch=unread.epoch,
            old=unread.position,
            new=position,
            state=noted.state,
        )
        if is_stored and action == "set aside":
            logger.warning(
                "No facts could be extracted from messages %d to %d of session %r (%s); they are set aside, "
                "and the next ones are read. `await memory.abackfill(failed=True)` tries them again.",
                turn.first,
                turn.last,
                self.session_id,
                turn.error,
            )
        return is_stored and action != "stop" and (self.at_once or action != "pause")

    async def _send_event(self, learned: Extracted, before: Mapping[str, Fact]) -> None:
        if not has_listeners():
            return
        stored_facts = (await self.user_facts.read()).facts
        new = []
        confirmed = []
        retired = []
        pending = []
        for fact in learned.changed:
            # A change that another process had stored already was left out.
            if fact.id not in stored_facts:
                continue
            # A new fact over ``max_facts`` is retired, too.
            if fact.id not in before:
                new.append(fact.id)
            elif not fact.retired:
                confirmed.append(fact.id)
            if fact.retired:
                retired.append(fact.id)
            elif fact.pending:
                pending.append(fact.id)
        send(
            FactsExtractedEvent(
                session_id=self.session_id,
                user_id=display_name(self.user_facts.namespace),
                agent_id=self.user_facts.view.own,
                messages=learned.messages,
                new=new,
                confirmed=confirmed,
                retired=retired,
                pending=pending,
                rejections=learned.reply.rejections,
                not_stored=learned.reply.rejected,
                seconds=learned.seconds or 0.0,
                prompt_tokens=learned.usage.prompt_tokens,
                completion_tokens=learned.usage.completion_tokens,
            )
        )


def _label_of(words: str, new_facts: Iterable[NewFact]) -> str:
    """Return the label of the first new fact with these words in its quote; "" if there is none."""
    for new in new_facts:
        if words in new.quote or new.quote in words:
            return new.label
    return ""


def _end_of_turns(
    rows: Sequence[LogRow], lines: Sequence[Utterance], *, answered: bool
) -> int:
    """Return how many of the rows can be read now; with ``answered``, only turns that have ended.

    A turn has ended when the assistant has said something that is no tool call, or when
    its question has left short-term memory. Only the last turn can be going on. A full
    page is read in any case: a turn of very many tool calls would block the session for
    ever.
    """
    for start in reversed(range(len(rows))):
        if lines[start].is_users:
            is_full = not start and len(rows) >= _BATCH_ROWS
            if answered and rows[start].is_active and not is_full:
                return start
            break
        if lines[start].text:
            break
    return len(rows)


def _pending_reply(valid: ValidatedReply, user_facts: UserFacts) -> ValidatedReply:
    """Return a validated reply whose new facts, and the facts that they end, wait for a person.

    A fact that ends without a replacement waits as a pending fact that says so. A fact
    that the user wants forgotten does not wait. A new fact that is pending already, or
    was rejected, is left out.
    """
    new = {
        fact.id: fact.model_copy(update={"pending": True}) for fact in valid.accepted
    }
    pending = ChainMap(new, {fact.id: fact for fact in user_facts.pending})
    ended_now = []
    for ending in valid.retired:
        old = user_facts.facts[ending.id]
        if _ends_at_once(ending, old):
            ended_now.append(ending)
        else:
            replacement = pending.get(ending.replaced_by or "")
            fact = _with_ending(replacement, ending, old)
            new[fact.id] = fact
    decided = (*user_facts.pending, *user_facts.rejected)
    accepted = [fact for fact in new.values() if not _is_repeated(fact, decided)]
    repeated = len(new) - len(accepted)
    return replace(
        valid,
        accepted=tuple(accepted),
        confirmed=tuple(fact for fact in valid.confirmed if fact.id not in new),
        retired=tuple(ended_now),
        rejected=(*valid.rejected, *[_DECIDED] * repeated),
    )


def _ends_at_once(ending: Fact, old: Fact) -> bool:
    """Return whether a fact ends without approval."""
    return ending.retired_by == "request" or (old.pending and not ending.replaced_by)


def _with_ending(replacement: Fact | None, ending: Fact, old: Fact) -> Fact:
    """Return the pending fact whose approval ends an old fact, and all facts that the old one was to end.

    Without a replacement it says that the old fact is no longer true.
    """
    pending = replacement or Fact(
        content=f"No longer true: {old.content}",
        pending=True,
        category=old.category,
        agent_id=old.agent_id,
        said_as=ONLY_ENDS,
    )
    ends_facts = {
        **pending.ends_facts,
        ending.id: ending.model_dump(mode="json", include={*ENDING}),
        **old.ends_facts,
    }
    return pending.model_copy(update={"ends_facts": ends_facts})


def _is_repeated(new: Fact, decided: Iterable[Fact]) -> bool:
    """Return whether a pending or rejected fact says the same as a new fact."""
    content = duplicate_key(new.content)
    return any(
        duplicate_key(fact.content) == content and fact.id != new.id for fact in decided
    )
