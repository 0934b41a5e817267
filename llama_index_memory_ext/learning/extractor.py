"""Extracts facts from the log of a session in five steps: reads, plans the request, asks, checks and writes."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.errors import (
    StoreError,
    TruncatedReplyError,
    WorkError,
    blame_of,
)
from llama_index_memory_ext.events import FactsExtractedEvent, send
from llama_index_memory_ext.fact import Fact, SetAside, retire
from llama_index_memory_ext.learning.batch import ALL_UNREAD, Batch, BatchReader, Due
from llama_index_memory_ext.learning.changes import (
    changed_facts,
    pending_reply,
    with_agent,
)
from llama_index_memory_ext.learning.endings import (
    ask_whether_over,
    doubted_facts,
    ending_prompt,
    with_ending,
)
from llama_index_memory_ext.learning.progress import (
    Progress,
    after_failure,
    progress_of,
)
from llama_index_memory_ext.learning.rejections import TOOL_CHECKS
from llama_index_memory_ext.learning.report import ask_for_facts, can_call
from llama_index_memory_ext.learning.validation import ValidatedReply, validate_reply
from llama_index_memory_ext.models.ask import Usage, usage_of, was_truncated
from llama_index_memory_ext.store.facts import add_facts
from llama_index_memory_ext.store.readers import move_cursor
from llama_index_memory_ext.store.tables import display_name

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from llama_index.core.base.llms.types import ChatMessage, ChatResponse

    from llama_index_memory_ext.blocks import LogBlock
    from llama_index_memory_ext.facts.user_facts import UserFacts
    from llama_index_memory_ext.learning.budget import RequestBudget
    from llama_index_memory_ext.learning.reply import NewFact
    from llama_index_memory_ext.learning.request import Request, RequestPlanner
    from llama_index_memory_ext.store.facts import FactChanges
    from llama_index_memory_ext.store.transaction import Transaction
    from llama_index_memory_ext.text.turns import Utterance


logger = logging.getLogger(__name__)


class Extracted(NamedTuple):
    """The facts that a batch has changed, and how it was read.

    ``reply``: the validated reply.
    ``seconds``: the time that the model took.
    ``usage``: the calls of the model and their tokens; none if no model was asked.
    ``messages``: how many messages were read.

    If another process was faster, only ``seconds`` and ``usage`` are set. For the reply of
    a tool, only ``changed`` and ``reply`` are set.
    """

    changed: Sequence[Fact] = ()
    reply: ValidatedReply = ValidatedReply()
    seconds: float = 0.0
    usage: Usage = Usage()
    messages: int = 0


@dataclass(frozen=True)
class Extractor:
    """Extracts the facts of one user from the log of one session.

    ``batches``: reads the log.
    ``planner``: plans the requests.
    ``rejections``: counts the entries of replies that are not stored, by reason.
    ``usage``: the usage of the model, by kind of call.
    ``review``: new facts are pending.
    ``at_once``: a turn that fails is tried again without a pause.
    ``uncounted``: the usage that no event has counted yet.
    """

    batches: BatchReader
    planner: RequestPlanner
    rejections: Counter[str]
    usage: dict[str, Usage]
    max_facts: int | None
    min_confidence: float
    review: bool
    at_once: bool
    uncounted: list[Usage] = field(default_factory=list)

    @property
    def session_id(self) -> str:
        """The session whose log is read."""
        return self.batches.session_id

    @property
    def block(self) -> LogBlock:
        """The block whose model and clock are used."""
        return self.batches.block

    @property
    def user_facts(self) -> UserFacts:
        """The facts of the user."""
        return self.batches.user_facts

    async def extract(self, due: Due = ALL_UNREAD) -> None:
        """Extract batches until no unread messages are due.

        Raises:
            WorkError: The model or the database has failed.
        """
        try:
            while await self.extract_next(due):
                pass
        except Exception as error:
            used = self._take_uncounted()
            raise WorkError(
                error, used.prompt_tokens, used.completion_tokens
            ) from error

    async def extract_next(self, due: Due = ALL_UNREAD) -> Extracted | None:
        """Extract one batch; None if no unread messages are due.

        After a failure the batch stays unread, or its only turn is set aside. The error is
        raised, unless the reader can go on at once.
        """
        batch = await self._read(due)
        if batch is None:
            return None
        try:
            return await self._learn(batch, batch.progress.after_success())
        except Exception as error:
            if await self._store_failure(error, batch):
                return Extracted()
            raise

    async def extract_again(self, turn: SetAside) -> Extracted:
        """Extract a turn that was set aside. If the model fails, it stays set aside, and the error is raised."""
        batch = await self.batches.read_turn(turn, await self._budget())
        if batch is None:
            return Extracted()
        progress = batch.progress
        remaining = tuple(entry for entry in progress.set_aside if entry != turn)
        return await self._learn(batch, progress._replace(set_aside=remaining))

    async def set_aside(self) -> tuple[SetAside, ...]:
        """Return the turns that were set aside, oldest first."""
        readers = self.user_facts.store.readers
        cursor = await readers.cursor(self.session_id, self.batches.reader)
        return progress_of(cursor.state).set_aside

    async def apply(
        self,
        reply: Sequence[NewFact],
        lines: Sequence[Utterance],
        about: Sequence[Fact] = (),
        *,
        tool_text: str = "",
        is_request: bool = False,
    ) -> Extracted:
        """Store a reply that comes from a tool.

        A web page may tell a model with tools to store a fact. So a new fact must pass
        ``TOOL_CHECKS``.

        Args:
            reply: The entries of the reply.
            lines: The conversation.
            about: The facts that the reply names by their places, from 1.
            tool_text: The texts that tools returned.
            is_request: Whether the user asks to forget the facts that the reply ends.

        Raises:
            StoreError: Facts of the user are being deleted.
        """
        user_facts = await self.user_facts.read()
        seen = user_facts.changes
        validate = partial(
            validate_reply,
            reply,
            lines,
            checks=TOOL_CHECKS,
            tool_text=tool_text,
            is_request=is_request,
        )
        applied = await self._check(validate, about, self.block.now())
        if not applied.changed:
            return applied
        store = user_facts.store.facts
        if not await store.write(
            user_facts.namespace, applied.changed, seen, view=user_facts.view
        ):
            raise StoreError(
                "Expected to store facts; facts of this user are being deleted at the same time. Try again."
            )
        await self._announce(applied)
        return applied

    # ---- the five steps of a batch ----

    async def _read(self, due: Due) -> Batch | None:
        """Return the next batch; None if no unread messages are due."""
        unread = await self.batches.unread_rows()
        if not unread.rows:
            self.user_facts.store.jobs.unread.discard(self.session_id)
            return None
        budget = await self._budget(progress_of(unread.state).halved)
        return await self.batches.read(unread, budget, due)

    async def _learn(self, batch: Batch, progress: Progress) -> Extracted:
        """Extract the facts of a batch, and store them with the cursor and the progress.

        No model is asked about a batch without a line of the user.

        Raises:
            FactReplyError: The answer cannot be read.
            TruncatedReplyError: The answer about several turns was cut off.
            Exception: The error of the model.
        """
        seen = (await self.user_facts.read()).changes
        extracted = Extracted()
        if any(line.is_users for line in batch.lines):
            lists_facts = can_call(self.block.chosen_llm())
            request = await self.planner.plan(batch, lists_facts=lists_facts)
            started = perf_counter()
            reply = await self._ask(request)
            seconds = perf_counter() - started
            validate = partial(validate_reply, reply, batch.lines, context=batch.before)
            extracted = await self._check(
                validate, request.known_facts, batch.asked_at, review=self.review
            )
            used = self._take_uncounted()
            extracted = extracted._replace(seconds=seconds, usage=used)
            progress = progress._replace(is_understood=True)
        return await self._write(batch, extracted, progress, seen)

    async def _ask(self, request: Request) -> Sequence[NewFact]:
        """Return the reply of the model, with the known facts that end."""
        llm = self.block.chosen_llm()
        with self._counted(request.messages) as responses:
            reply = await ask_for_facts(
                llm,
                request.messages,
                categories=self.planner.categories,
                answer_tokens=request.answer_tokens,
                responses=responses,
            )
        if was_truncated(responses[-1]) and request.batch.turns > 1:
            raise TruncatedReplyError(
                "Expected a whole answer; it was cut off. Each half of the turns is read alone next."
            )
        # The request may have shown that the model calls no tools.
        if can_call(llm) or any(entry.ends for entry in reply):
            return reply
        return await self._with_endings(request, reply)

    async def _with_endings(
        self, request: Request, reply: Sequence[NewFact]
    ) -> Sequence[NewFact]:
        """Ask a model without tools which known facts the new words end, a fact at a time.

        A small model that reads a list of facts reports the wrong ones as ended, so each fact
        is a separate question. A model with tools names the facts that end in its report.
        """
        facts = request.known_facts
        for doubt in await asyncio.to_thread(doubted_facts, request.batch.lines, facts):
            prompt = ending_prompt(facts[doubt.number - 1], doubt.words)
            with self._counted(prompt) as responses:
                llm = self.block.chosen_llm()
                is_over = await ask_whether_over(llm, prompt, responses)
            if is_over:
                reply = with_ending(reply, doubt)
        return reply

    async def _check(
        self,
        validate: Callable[..., ValidatedReply],
        known_facts: Sequence[Fact],
        said_at: datetime,
        *,
        review: bool = False,
    ) -> Extracted:
        """Validate a reply beside the facts of the user; return the facts that it changes, not yet stored.

        ``validate``: ``validate_reply`` with all arguments that do not depend on stored
        facts.
        ``review``: new facts are pending.
        """
        user_facts = self.user_facts
        # A fact that was deleted meanwhile is retired here, so that no entry stores it
        # again.
        current = [
            user_facts.facts.get(fact.id) or retire(fact, "deleted", fact.updated_at)
            for fact in known_facts
        ]
        # Dates and languages of a long text take a while, which must not block the
        # event loop.
        valid = await asyncio.to_thread(
            validate,
            current,
            now=said_at,
            active=(*user_facts.active, *user_facts.pending),
            session_id=self.session_id,
            min_confidence=self.min_confidence,
        )
        valid = with_agent(valid, user_facts.view.own)
        if review:
            valid = pending_reply(valid, user_facts)
        self.rejections.update(valid.rejections)
        changed = changed_facts(valid, user_facts, self.max_facts, self.block.now())
        return Extracted(changed, valid)

    async def _write(
        self,
        batch: Batch,
        extracted: Extracted,
        progress: Progress,
        seen: FactChanges,
    ) -> Extracted:
        """Store the facts of a batch with the cursor; return no facts if another process was faster."""
        user_facts = self.user_facts
        unread = batch.unread
        namespace = user_facts.namespace

        def write(tx: Transaction) -> bool:
            # All or nothing.
            if not add_facts(tx, namespace, extracted.changed, seen, user_facts.view):
                return False
            return move_cursor(
                tx,
                self.session_id,
                self.batches.reader,
                unread,
                max(unread.position, unread.rows[-1].id),
                progress.state,
            )

        is_stored = await user_facts.store.database.run(
            write,
            sessions=[self.session_id],
            users=[namespace],
        )
        written = Extracted(seconds=extracted.seconds, usage=extracted.usage)
        if is_stored:
            written = extracted._replace(messages=len(batch.rows))
            await self._announce(written)
        return written

    # ---- parts of the steps ----

    async def _budget(self, halved: float = 0) -> RequestBudget:
        # In a thread: the first call builds the schema of the tool and the model's client.
        return await asyncio.to_thread(
            self.planner.budget, self.block.chosen_llm(), halved
        )

    @contextmanager
    def _counted(self, prompt: Sequence[ChatMessage]) -> Iterator[list[ChatResponse]]:
        """Yield a list for responses. At the end, also after a failure, count their tokens."""
        responses: list[ChatResponse] = []
        try:
            yield responses
        finally:
            count = self.block.tokenizer_fn
            used = [usage_of(prompt, response, count) for response in responses]
            self.usage["facts"] = sum(used, self.usage.get("facts", Usage()))
            self.uncounted.extend(used)

    def _take_uncounted(self) -> Usage:
        """Return the usage that no event has counted yet, and reset it."""
        used = sum(self.uncounted, Usage())
        self.uncounted.clear()
        return used

    async def _store_failure(self, error: Exception, batch: Batch) -> bool:
        """Store the progress after a failure with the cursor; return whether the next batch can be read at once.

        A failure of the model's server or of the database changes no progress.
        """
        action, progress = after_failure(batch.progress, blame_of(error), batch.turns)
        unread = batch.unread
        position = unread.position
        turn = SetAside(batch.rows[0].id, batch.rows[-1].id, type(error).__name__)
        if action == "set aside":
            progress = progress.without(turn)
            position = turn.last
        if progress == batch.progress:
            return False
        is_stored = await self.user_facts.store.readers.move(
            self.session_id,
            self.batches.reader,
            unread,
            position,
            progress.state,
        )
        if not is_stored or action == "stop":
            return False
        if action == "set aside":
            logger.warning(
                "No facts could be extracted from messages %d to %d of session %r (%s); they are set aside, "
                "and the next ones are read. `await memory.abackfill(failed=True)` tries them again.",
                turn.first,
                turn.last,
                self.session_id,
                turn.error,
            )
        return self.at_once or action != "pause"

    async def _announce(self, extracted: Extracted) -> None:
        """Send an event about facts that were stored, and embed them, so that the next question need not wait."""
        user_facts = await self.user_facts.read()

        def stored_ids(facts: Iterable[Fact]) -> list[str]:
            # A change that another process had stored already was left out.
            return [fact.id for fact in facts if fact.id in user_facts.facts]

        reply = extracted.reply
        # Also new facts over ``max_facts``.
        retired = [fact for fact in extracted.changed if fact.retired]
        pending = [
            fact for fact in extracted.changed if fact.pending and not fact.retired
        ]
        send(
            FactsExtractedEvent(
                session_id=self.session_id,
                user_id=display_name(user_facts.namespace),
                agent_id=user_facts.view.own,
                messages=extracted.messages,
                new=stored_ids(reply.accepted),
                confirmed=stored_ids(reply.confirmed),
                retired=stored_ids(retired),
                pending=stored_ids(pending),
                rejections=reply.rejections,
                not_stored=reply.rejected,
                seconds=extracted.seconds,
                prompt_tokens=extracted.usage.prompt_tokens,
                completion_tokens=extracted.usage.completion_tokens,
            )
        )
        await user_facts.present.prepare()
