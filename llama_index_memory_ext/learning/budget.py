"""The most tokens of a request for facts, in the window of its model."""

from __future__ import annotations

from typing import NamedTuple

from llama_index_memory_ext.models.ask import tokens_left

# The least tokens of a request in a small window: a shorter one would say nothing.
_LEAST_BATCH = 200
_LEAST_ANSWER = 200
# An answer may have this many tokens, and one more for each token of the batch. Halving a
# batch does not lower this number.
ANSWER_TOKENS = 1_000


class RequestBudget(NamedTuple):
    """The most tokens of a request: messages, known facts, and the answer."""

    batch: int = 8_000
    facts: int = 300
    answer: int = 4_000


def request_budget(
    window: int | None, fixed: int, *, halved: float, answer: int | None
) -> RequestBudget:
    """Return the budget in a window beside ``fixed`` tokens of instructions.

    The budget is halved ``halved`` times. An unknown ``window`` (None) does not limit it.
    ``answer``: the most tokens that the settings of the model allow.

    >>> request_budget(8_192, 1_000, halved=0, answer=None)
    RequestBudget(batch=3878, facts=145, answer=1939)
    """
    budget = RequestBudget()
    if answer:
        budget = budget._replace(answer=answer)
    share = 1.0
    left_tokens = tokens_left(window, fixed)
    if left_tokens is not None:
        # The least of an answer may be more than its share.
        left_for_texts = max(0, left_tokens - _LEAST_ANSWER)
        share = min(share, left_tokens / sum(budget), left_for_texts / sum(budget[:-1]))

    def halve(tokens: int) -> int:
        return int(tokens * share / 2**halved)

    longest_answer = int(budget.answer * share)
    return RequestBudget(
        max(halve(budget.batch), _LEAST_BATCH),
        halve(budget.facts),
        max(halve(budget.answer), min(longest_answer, ANSWER_TOKENS), _LEAST_ANSWER),
    )
