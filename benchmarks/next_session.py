"""Whether the first question of a new session finds what the user has just said in another one.

    python -m benchmarks.next_session [LOCOMO_JSON]

100 questions of LoCoMo about one message of the user. That message is one of the last nine messages of the user in a
session, of which no facts are learned yet; it has each of the nine places equally often. Then a new session of the user
begins with the question. The model that learns is the stand-in of ``stand_in.py``, and answers after 1 or 30 seconds.
The message is known if the prompt has a fact of it, or its own words.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole

from benchmarks.command import NOT_MEASURED, shown
from benchmarks.locomo import (
    Conversation,
    load_conversations,
    messages_of,
    prompt_text,
)
from benchmarks.report import Measure, Promise, publish
from benchmarks.stand_in import StandInModel
from llama_index_memory_ext import CondensedMemory, MemoryStore

QUESTIONS, UNREAD, DELAYS = 100, 9, (1, 30)
# So many sessions at once share the processor.
AT_ONCE = 5
LEAST_KNOWN = 95
# Of a message, the prompt must have these characters.
CHARACTERS = 60


class SlowModel(StandInModel):
    """Answers after some seconds."""

    delay: float = 0.0

    async def achat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponse:
        await asyncio.sleep(self.delay)
        return self.chat(messages, **kwargs)


@dataclass(frozen=True)
class Case:
    """A question, the messages of the session before it, and the message that it asks for."""

    question: str
    before: list[ChatMessage]
    evidence: str


def cases_of(conversation: Conversation, first: int) -> list[Case]:
    """Return the questions about one message of the user; the places of these messages begin at ``first``."""
    messages = messages_of(conversation)
    places = {turn["id"]: i for i, turn in enumerate(conversation["pools"]["turns"])}
    starts = [i for i, one in enumerate(messages) if one.role == MessageRole.USER]
    cases: list[Case] = []
    for question in conversation["questions"]:
        evidence = places[question["evidence"][0]]
        is_alone = len(question["evidence"]) == 1
        if question["adversarial"] or not is_alone or evidence not in starts:
            continue
        turn = starts.index(evidence) - (first + len(cases)) % UNREAD
        if 0 <= turn < len(starts) - UNREAD:
            before = messages[starts[turn] : starts[turn + UNREAD]]
            text = str(messages[evidence].content)
            cases.append(Case(question["text"], before, text))
    return cases


async def is_known(case: Case, delay: float) -> bool:
    """Put the session before, ask in a new session, and return whether the prompt has the message or its fact."""
    store = MemoryStore()
    options: dict[str, Any] = {
        "user_id": "ann",
        "chat_store": store,
        "llm": SlowModel(delay=delay),
    }
    before = CondensedMemory.from_defaults("before", **options)
    await before.aput_messages(case.before)
    after = CondensedMemory.from_defaults("after", **options)
    await after.aput(ChatMessage(case.question))
    prompt = " ".join(prompt_text(await after.aget()).split())
    quotes = [entry.fact.quote for entry in after.last_used().facts]
    words = " ".join(case.evidence.split())
    await store.aclose()
    return words[:CHARACTERS] in prompt or any(
        quote and quote in words for quote in quotes
    )


async def count_known(cases: Sequence[Case], delay: float) -> int:
    """Return how many of the messages are known to the first question."""
    await MemoryStore().awarm_up()
    limit = asyncio.Semaphore(AT_ONCE)

    async def ask(case: Case) -> bool:
        async with limit:
            return await is_known(case, delay)

    return sum(await asyncio.gather(*map(ask, cases)))


def main() -> int:
    """Measure, publish, and return the exit code."""
    conversations = load_conversations("next_session")
    if not conversations:
        return NOT_MEASURED
    of_each = QUESTIONS // len(conversations)
    cases: list[Case] = []
    for conversation in conversations:
        cases += islice(cases_of(conversation, len(cases)), of_each)
    measures = [Measure("questions", len(cases))]
    promises = []
    for delay in shown(DELAYS, "delays"):
        known = asyncio.run(count_known(cases, delay))
        what = f"messages known to the first question, learned in {delay} s"
        promises.append(
            Promise(what, LEAST_KNOWN, known, f"of {len(cases)}", at_least=True)
        )
    return publish("next_session", measures, promises)


if __name__ == "__main__":
    sys.exit(main())
