"""Decides what goes into one request for facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.asking.window import tokens_left

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date, datetime

    from llama_index_memory_ext.text.messages import Utterance

# However small the window is, so much is asked for: less would say nothing.
_LEAST_BATCH, _LEAST_ANSWER = 200, 200
# What an answer may have beside a token for each one of the batch, and with a batch that was halved.
_ANSWER = 1_000


class Room(NamedTuple):
    """Most tokens of what is read and answered: the messages, the known facts, what was said before, and the answer."""

    batch: int = 8_000
    known: int = 2_000
    before: int = 1_000
    answer: int = 4_000

    def answer_to(self, tokens: int) -> int:
        """Most tokens of the answer to a batch of so many."""
        return min(self.answer, _ANSWER + tokens)


def room_in(window: int | None, fixed: int, *, halved: float = 0, answer: int | None = None) -> Room:
    """The room in a window beside ``fixed`` tokens of instructions, after so many halvings; all of it if None.

    ``answer`` is the most that the model answers by its own settings.

    >>> room_in(8_192, 1_000)
    Room(batch=3180, known=795, before=397, answer=1590)
    """
    room = Room()._replace(**({"answer": answer} if answer else {}))
    left = tokens_left(window, fixed)
    share = 1.0 if left is None else min(1.0, left / sum(room))
    longest = int(room.answer * share)
    batch, known, before, shorter = (int(tokens * share / 2**halved) for tokens in room)
    return Room(max(batch, _LEAST_BATCH), known, before, max(shorter, min(longest, _ANSWER), _LEAST_ANSWER))


def batch_end(
    starts_turn: Sequence[bool],
    tokens: Sequence[int],
    days: Sequence[date | None],
    *,
    token_limit: int,
    most_turns: int | None = None,
) -> int:
    """How many of the messages, oldest first, go into one request: at least one if there is any, else 0.

    A batch ends before a turn, if it can: before what would make it longer than ``token_limit``, after ``most_turns``,
    and before the first turn of another day than its own first turn's, because a relative date ("tomorrow") counts from
    one day.
    """
    starts = [i for i, is_start in enumerate(starts_turn) if is_start]
    later = (i for turns, i in enumerate(starts[1:], 1) if turns == most_turns or days[i] != days[starts[0]])
    end, total = next(later, len(starts_turn)), 0
    for i in range(end):
        total += tokens[i]
        if i and total > token_limit:
            return max(filter(i.__ge__, starts), default=0) or i
    return end


def answered_end(utterances: Sequence[Utterance], is_active: Sequence[bool]) -> int:
    """How many of the messages, oldest first, belong to turns that have ended: the last one may be going on.

    A turn has ended when the assistant has said something that is no tool call, or when its question has left
    short-term memory.
    """
    start = max((i for i, one in enumerate(utterances) if one.is_users), default=0)
    goes_on = bool(utterances) and utterances[start].is_users and is_active[start]
    answered = any(one.text for one in utterances[start + 1 :])
    return start if goes_on and not answered else len(utterances)


def said_at(questions: Sequence[datetime | None], now: datetime) -> datetime:
    """When a batch was said: when its last question was written, but never after ``now``, the default."""
    return min(questions[-1] or now, now) if questions else now
