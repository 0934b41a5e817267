"""Learns what a part of a conversation says about the user, by asking the model."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import ChatResponse

from llama_index_memory_ext.asking.window import context_window
from llama_index_memory_ext.errors import TruncatedReplyError, VerificationError
from llama_index_memory_ext.fact import CATEGORIES, Fact, retire, utc_now
from llama_index_memory_ext.facts.batches import Room, room_in
from llama_index_memory_ext.facts.evidence import question_before
from llama_index_memory_ext.facts.offering import offered, texts_in
from llama_index_memory_ext.facts.prompt import ask, ask_for_facts, extraction_prompt, form_texts
from llama_index_memory_ext.facts.recovery import VERIFICATION_TRIES
from llama_index_memory_ext.facts.validation import ValidatedReply, owned, validate_reply, without_repeats
from llama_index_memory_ext.facts.verification import (
    VERDICT_FORM,
    VERDICT_TOOL,
    candidates_of,
    parse_verdict,
    similar_facts,
    verification_prompt,
    verified,
)
from llama_index_memory_ext.text.messages import Utterance
from llama_index_memory_ext.text.responses import Usage, usage_of

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence
    from datetime import date, datetime

    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.llms import LLM

    from llama_index_memory_ext.facts.cache import FactCache, UserFacts
    from llama_index_memory_ext.facts.categories import Categories
    from llama_index_memory_ext.facts.reply import ExtractionReply
    from llama_index_memory_ext.facts.verification import Judgement
    from llama_index_memory_ext.log_block import LogBlock

logger = logging.getLogger(__name__)

EXTRACTION, VERIFICATION = "facts", "verification"
# A verdict on a candidate has at most so many tokens.
_VERDICT = 60
# What the model is asked where it is not known whether it, or a turn, is to blame for a failure.
_HARMLESS = (Utterance(0, "user", "I like tea."), Utterance(0, "assistant", "So do I."))


class Part(NamedTuple):
    """A part of a conversation: who says what, when its last question was asked, and when its last message was written.

    ``turns`` is how many turns it has, ``unverified`` how often its verification has failed, and ``before`` what was
    said right before it. ``room`` is what a request for it may have.
    """

    lines: Sequence[Utterance]
    asked_at: datetime
    ended_at: datetime
    turns: int = 1
    unverified: int = 0
    before: Sequence[Utterance] = ()
    room: Room = Room()


class Extracted(NamedTuple):
    """The facts that a reply changes, the validated reply, the model's seconds, and how many messages it has read.

    ``seconds`` is None if no model was asked. If another process was faster, nothing was stored: all else is empty.
    ``usage`` is of all calls for it.
    """

    changed: Sequence[Fact] = ()
    reply: ValidatedReply = ValidatedReply()
    seconds: float | None = None
    messages: int = 0
    usage: Usage = Usage()


@dataclass(frozen=True)
class Learner:
    """What extracts facts from parts of a session, with the settings of the block that are used for it.

    ``rejections`` counts the entries of replies that are not stored, by reason, and ``usage`` the calls by their kind.
    """

    session_id: str
    block: LogBlock
    cache: FactCache
    rejections: Counter[str]
    usage: dict[str, Usage]
    max_facts: int | None
    min_confidence: float
    verify: bool = False
    categories: Categories = CATEGORIES
    instructions: str | None = None

    async def learn(self, known: UserFacts, part: Part) -> Extracted:
        """What changes by a part of the conversation; no model is asked where the user has said nothing.

        Raises what the model raises, a FactReplyError for an answer that cannot be read, a TruncatedReplyError for one
        that is not whole, if there is more than one turn.
        """
        if not any(line.is_users for line in part.lines):
            return Extracted()
        started, spent = perf_counter(), list[Usage]()
        related = await self._related(known, part)
        # More of it would be learned twice, and a model may have refused to read it.
        answered = question_before([*part.before, *part.lines], len(part.before))
        tail = self.block.tokenizer_fn.tail
        before = [line._replace(text=tail(line.text, part.room.before)) for line in part.before[-1:] if answered]
        prompt = self._prompt(part.lines, related, said_on=part.asked_at.date(), before=before)
        reply = await self._ask(prompt, part, spent)
        valid = await self.validated(reply, part.lines, related, known, part.asked_at, context=part.before)
        if self.verify and (valid.accepted or valid.retired):
            places = range(1, len(related) + 1)
            quotes = {related[one.number - 1].id: one.quote for one in reply.retired if one.number in places}
            valid = await self._verified(valid, known, part, quotes, spent)
        return self.changes(valid, known)._replace(seconds=perf_counter() - started, usage=sum(spent, Usage()))

    def room(self, halved: float = 0) -> Room:
        """What a request to the model has room for, after so many halvings; all that we ask for if that is unknown."""
        try:
            llm = self._llm
        except Exception:  # noqa: BLE001 - that there is no model is told when it is asked
            return room_in(None, 0, halved=halved)
        window, answer = context_window(llm), getattr(llm, "max_tokens", None)
        texts = [*(message.content or "" for message in self._prompt(())), *form_texts(self.categories)]
        fixed = sum(map(self.block.tokenizer_fn.count, texts)) if window else 0
        return room_in(window, fixed, halved=halved, answer=answer if isinstance(answer, int) else None)

    async def answers(self) -> bool:
        """Whether the model gives a readable reply about a harmless turn."""
        try:
            now = utc_now()
            await self._ask(self._prompt(_HARMLESS), Part(_HARMLESS, now, now), [])
        except Exception as error:  # noqa: BLE001 - a model may fail in any way
            logger.info("The model does not answer about a harmless turn either (%s).", type(error).__name__)
            return False
        return True

    async def validated(
        self,
        reply: ExtractionReply,
        lines: Sequence[Utterance],
        related: Sequence[Fact],
        known: UserFacts,
        then: datetime,
        **rules: Any,
    ) -> ValidatedReply:
        """What of a reply is stored, by the rules of ``validate_reply``."""
        # A fact that was deleted since must not come back by being retired.
        about = [known.facts.get(fact.id) or retire(fact, "deleted", fact.updated_at) for fact in related]
        rules |= {"session_id": self.session_id, "min_confidence": self.min_confidence}

        def validated() -> ValidatedReply:
            valid = validate_reply(reply, lines, about, now=then, active=known.active, **rules)
            return without_repeats(valid, known.past)

        # Dates and languages of a long text take a while, for which the event loop must not be blocked.
        return await asyncio.to_thread(validated)

    def changes(self, valid: ValidatedReply, known: UserFacts) -> Extracted:
        """What changes by a validated reply; over ``max_facts`` the least confident own facts are retired."""
        self.rejections.update(valid.rejections)
        own = self.cache.view.own
        valid = owned(valid, own)
        changed = {fact.id: fact for fact in (*valid.accepted, *valid.confirmed, *valid.retired)}
        if self.max_facts is not None:
            now = utc_now()
            active = [fact for fact in {**known.facts, **changed}.values() if fact.state(now) == "present"]
            active.sort(key=lambda fact: (fact.pinned, fact.confidence, fact.updated_at))
            # The limit of one agent takes no shared facts from the others.
            mine = [fact for fact in active if fact.agent_id == own]
            over = mine[: max(len(active) - self.max_facts, 0)]
            changed |= {fact.id: retire(fact, "over max_facts", now, by="limit") for fact in over}
        return Extracted(list(changed.values()), valid)

    def _prompt(
        self,
        lines: Sequence[Utterance],
        known: Sequence[Fact] = (),
        *,
        said_on: date | None = None,
        before: Sequence[Utterance] = (),
    ) -> list[ChatMessage]:
        words: Any = {"categories": self.categories, "instructions": self.instructions}
        return extraction_prompt(lines, known, today=utc_now().date(), said_on=said_on, before=before, **words)

    @property
    def _llm(self) -> LLM:
        return self.block.chosen_llm()

    async def _related(self, known: UserFacts, part: Part) -> list[Fact]:
        """The known facts that the model is shown, and no fact that was learned from later words.

        An old conversation would seem to correct it.
        """
        facts = [fact for fact in known.active if fact.created_at <= max(part.asked_at, part.ended_at)]
        # No token is shorter than a byte, and none of the numbers and marks around a fact has more than six.
        if sum(len(fact.content.encode()) + 6 for fact in facts) <= part.room.known:
            return facts
        texts = texts_in(part.lines)
        await self.cache.prepare(known, texts)
        counter, room = self.block.tokenizer_fn, part.room.known
        return await asyncio.to_thread(offered, facts, texts, known.present, counter, room)

    async def _ask(self, prompt: Sequence[ChatMessage], part: Part, spent: list[Usage]) -> ExtractionReply:
        tokens, heard = part.room.answer_to(self._tokens(part.lines)), list[ChatResponse]()
        try:
            answer = await ask_for_facts(
                self._llm, prompt, categories=self.categories, answer_tokens=tokens, heard=heard
            )
        finally:
            spent += [self._count(EXTRACTION, prompt, response) for response in heard]
        if answer.truncated and part.turns > 1:
            raise TruncatedReplyError(
                "Expected a whole answer; saw one that was cut off. The turns are asked for apart."
            )
        return answer.reply

    async def _verified(
        self, valid: ValidatedReply, known: UserFacts, part: Part, quotes: dict[str, str], spent: list[Usage]
    ) -> ValidatedReply:
        """What a second call leaves of a validated reply. If that fails once more, all of it."""
        candidates = candidates_of(valid, quotes)
        similar = await asyncio.to_thread(similar_facts, candidates, known.active, known.present)
        prompt = verification_prompt(candidates, part.lines, similar)
        tokens, heard = part.room.answer_to(_VERDICT * len(candidates)), list[ChatResponse]()

        def read(texts: Sequence[str], _: ChatResponse) -> list[Judgement]:
            return parse_verdict(texts, len(candidates))

        try:
            judgements, _ = await ask(
                self._llm, prompt, VERDICT_TOOL, VERDICT_FORM, read, answer_tokens=tokens, heard=heard
            )
        except Exception as error:
            if part.unverified + 1 < VERIFICATION_TRIES:
                raise VerificationError("Expected a verdict on what was extracted; there is none.") from error
            outcome = "they are stored without it"
            logger.warning("%d facts were not verified (%s); %s.", len(candidates), type(error).__name__, outcome)
            return valid
        finally:
            spent += [self._count(VERIFICATION, prompt, response) for response in heard]
        return verified(valid, candidates, judgements, similar, now=part.asked_at)

    def _tokens(self, lines: Sequence[Utterance]) -> int:
        return sum(self.block.tokenizer_fn.count(line.text) for line in lines)

    def _count(self, kind: str, prompt: Sequence[ChatMessage], response: ChatResponse) -> Usage:
        one = usage_of(prompt, response, self.block.tokenizer_fn)
        self.usage[kind] = self.usage.get(kind, Usage()) + one
        return one
