"""Plans a request for facts: which known facts it shows, its messages, and the length of its answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.learning.budget import (
    ANSWER_TOKENS,
    RequestBudget,
    request_budget,
)
from llama_index_memory_ext.learning.prompt import (
    extraction_prompt,
    on_one_line,
    sent_part,
)
from llama_index_memory_ext.learning.report import report_tool
from llama_index_memory_ext.models.ask import context_window
from llama_index_memory_ext.text.tokens import take_fitting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.llms import LLM

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.facts.user_facts import UserFacts
    from llama_index_memory_ext.learning.batch import Batch
    from llama_index_memory_ext.learning.categories import Categories
    from llama_index_memory_ext.search.tfidf import Similar
    from llama_index_memory_ext.text.tokens import TokenCounter
    from llama_index_memory_ext.text.turns import Utterance


# Limits of the rejected facts that a model reads: their number, their tokens, and the
# characters of each fact with its reason.
_MOST_REJECTED = 20
_REJECTED_TOKENS = 400
_REJECTED_CHARACTERS = 400
# The share of the budget for facts with words in common with the messages. A fact that
# the user corrects need not have any.
_MATCHING_SHARE = 0.5


class Request(NamedTuple):
    """A request for the facts of a batch.

    ``known_facts``: the facts that the batch may change.
    ``answer_tokens``: the most tokens of the answer.
    """

    batch: Batch
    known_facts: Sequence[Fact]
    messages: list[ChatMessage]
    answer_tokens: int


@dataclass(frozen=True)
class RequestPlanner:
    """Plans requests for the facts of one user.

    ``instructions``: what to look for, in place of our own words.
    """

    user_facts: UserFacts
    counter: TokenCounter
    categories: Categories
    instructions: str | None

    def budget(self, llm: LLM, halved: float = 0) -> RequestBudget:
        """Return the limits of a request after so many halvings."""
        answer = getattr(llm, "max_tokens", None)
        if not isinstance(answer, int):
            answer = None
        messages = self._messages((), (), date.min)
        texts = [message.content or "" for message in messages]
        texts.append(report_tool().metadata.fn_schema_str)
        fixed = sum(map(self.counter.count, texts))
        return request_budget(context_window(llm), fixed, halved=halved, answer=answer)

    async def plan(self, batch: Batch, *, lists_facts: bool) -> Request:
        """Return the request for a batch.

        ``lists_facts``: whether it lists the known facts. False for a model without tools,
        which ``learning.endings`` asks about each fact.
        """
        known_facts = await self._known_facts(batch)
        tokens = sum(self.counter.count(line.text) for line in batch.lines)
        messages = self._messages(
            batch.lines,
            known_facts if lists_facts else (),
            batch.asked_at.date(),
            batch.before,
        )
        answer_tokens = min(batch.budget.answer, ANSWER_TOKENS + tokens)
        return Request(batch, known_facts, messages, answer_tokens)

    def _messages(
        self,
        lines: Sequence[Utterance],
        facts: Sequence[Fact],
        said_on: date,
        before: Sequence[Utterance] = (),
    ) -> list[ChatMessage]:
        return extraction_prompt(
            lines,
            facts,
            said_on=said_on,
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
        joined = "".join(take_fitting(texts, self.counter.count, _REJECTED_TOKENS))
        if not joined:
            return ""
        return (
            f"Do not report these again:\n<rejected_facts>\n{joined}</rejected_facts>\n"
        )

    async def _known_facts(self, batch: Batch) -> Sequence[Fact]:
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
        text = "\n".join(map(sent_part, batch.lines))
        present = user_facts.present
        await present.prepare([text])
        return await asyncio.to_thread(
            select_known_facts, facts, text, present, self.counter, batch.budget.facts
        )


def select_known_facts(
    facts: Sequence[Fact],
    text: str,
    ranker: Similar,
    counter: TokenCounter,
    limit: int,
) -> list[Fact]:
    """Return the facts that fit about ``limit`` tokens.

    Half of the limit is for the facts most similar to the text, the rest for the
    shortest facts. "I moved to Rome" has no word in common with "Lives in Oslo", but
    facts that a few words end are short.
    """
    similarities = ranker.similarities(text)
    matching = [fact for fact in facts if similarities.get(fact.id)]
    matching.sort(key=lambda fact: similarities[fact.id], reverse=True)

    def tokens_of(fact: Fact) -> int:
        return counter.count(f"{len(facts)}. {' '.join(fact.content.split())}\n")

    similar = take_fitting(matching, tokens_of, int(_MATCHING_SHARE * limit))
    chosen = set(similar)
    shortest = [fact for fact in facts if fact not in chosen]
    shortest.sort(key=lambda fact: len(fact.content))
    remaining = limit - sum(map(tokens_of, similar))
    return [*similar, *take_fitting(shortest, tokens_of, remaining)]
