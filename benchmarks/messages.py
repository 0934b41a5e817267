"""Makes the messages that the benchmarks put in: plain words, 20 tokens each, the same in every run."""

from __future__ import annotations

import random

from llama_index.core.base.llms.types import ChatMessage, MessageRole

WORDS_PER_MESSAGE = 20

# Each is one token of o200k_base, with or without a space before it.
_WORDS = (
    "time people way water day part sound work year place thing name line right mean old same boy form "
    "sentence set three land well home air play small end read hand port large add even here must big "
    "high such follow act why ask men change light kind off need house picture try us again "
).split()


def sample_messages(count: int, *, start: int = 0) -> list[ChatMessage]:
    """Fresh messages, a user's and an assistant's by turns; ``start`` is the number of the first one."""
    return [_message(number) for number in range(start, start + count)]


def _message(number: int) -> ChatMessage:
    words = random.Random(number).choices(_WORDS, k=WORDS_PER_MESSAGE)
    return ChatMessage(role=MessageRole.ASSISTANT if number % 2 else MessageRole.USER, content=" ".join(words))
