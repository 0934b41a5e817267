"""Makes the messages and facts that the benchmarks put in: plain words, one token each, the same in every run."""

from __future__ import annotations

import random

from llama_index.core.base.llms.types import ChatMessage, MessageRole

from llama_index_memory_ext import CondensedMemory, Fact

WORDS_PER_MESSAGE = 20
# A question, and the answer of an assistant.
QUESTION_WORDS, ANSWER_WORDS = (10, 70), (60, 260)

# Each is one token of o200k_base, with or without a space before it.
_WORDS = (
    "time people way water day part sound work year place thing name line right mean old same boy form "
    "sentence set three land well home air play small end read hand port large add even here must big "
    "high such follow act why ask men change light kind off need house picture try us again "
).split()


def sample_messages(count: int, *, start: int = 0) -> list[ChatMessage]:
    """Fresh messages of 20 tokens, a user's and an assistant's by turns; ``start`` is the number of the first one."""
    return [
        _message(number, WORDS_PER_MESSAGE, WORDS_PER_MESSAGE)
        for number in range(start, start + count)
    ]


async def put_facts(memory: CondensedMemory, count: int) -> None:
    """Store facts of the memory's user, as many of 20 tokens."""
    texts = [str(message.content) for message in sample_messages(count, start=10_000)]
    facts = [
        Fact(content=text, confidence=0.7 + i % 30 / 100)
        for i, text in enumerate(texts)
    ]
    await memory.facts.aimport("\n".join(fact.model_dump_json() for fact in facts))


def conversation(turns: int) -> list[ChatMessage]:
    """Questions of 10 to 70 tokens, 40 in the mean, each with an answer of 60 to 260, 160 in the mean."""
    return [
        _message(number, *(ANSWER_WORDS if number % 2 else QUESTION_WORDS))
        for number in range(2 * turns)
    ]


def _message(number: int, least: int, most: int) -> ChatMessage:
    chance = random.Random(number)
    # Where there is nothing to draw nothing is drawn.
    words = chance.choices(
        _WORDS, k=least if least == most else chance.randint(least, most)
    )
    return ChatMessage(
        role=MessageRole.ASSISTANT if number % 2 else MessageRole.USER,
        content=" ".join(words),
    )
