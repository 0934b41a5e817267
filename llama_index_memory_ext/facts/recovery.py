"""Decides what becomes of a batch for which the model has failed: it is halved, asked for again, or set aside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.asking.failures import (
    REQUEST_STATUSES,
    is_about_words,
    is_no_answer,
    is_timeout,
    status_of,
)
from llama_index_memory_ext.errors import FactReplyError, TruncatedReplyError, VerificationError
from llama_index_memory_ext.store.cursors import ROWS

if TYPE_CHECKING:
    from llama_index_memory_ext.text.tool_calls import Json

# How often a single turn is tried before it is set aside, and a verification before facts are stored without it.
TURN_TRIES, VERIFICATION_TRIES = 3, 2
# After so many turns in a row it may be the model that cannot do it.
_MOST_IN_A_ROW = 3
# How often the limits of a batch are halved at most; a failure of a single turn halves them twice.
# With each success they grow by a fifth: what was too long for the last batch may be too long for the next one.
MOST_HALVED, _AT_ONCE, _GROWTH = 6, 2, 0.25


class SetAside(NamedTuple):
    """A turn from which no facts could be extracted: its first and last row in the log, and the type of the error."""

    first: int
    last: int
    error: str


class Blame(Enum):
    """What a failure comes from: the words of the turns, how long they take, the model, ... or one does not know."""

    TURNS = "turns"
    LENGTH = "length"
    UNKNOWN = "unknown"
    MODEL = "model"
    VERIFICATION = "verification"


class Action(Enum):
    """What is done after a failure: ask again at once, or after a pause, or leave the turn behind."""

    AGAIN = "again"
    PAUSE = "pause"
    SET_ASIDE = "set aside"


@dataclass(frozen=True, slots=True)
class Progress:
    """What a reader knows of the next batch, and of the turns that it has set aside; stored with its cursor.

    ``most_turns`` is how many turns the next batch may have, after a failure. ``tries`` and ``unverified`` count the
    failures of the extraction and of the verification of a single turn. ``in_a_row`` turns were set aside since
    the last success. ``halved`` is how often the limits of tokens are halved: they grow again with each success.
    """

    most_turns: int | None = None
    tries: int = 0
    unverified: int = 0
    in_a_row: int = 0
    set_aside: tuple[SetAside, ...] = ()
    halved: float = 0

    @property
    def state(self) -> Json:
        """As JSON, about single rows (``Readers.move``); None if there is nothing to know."""
        if self == Progress():
            return None
        fields = {name: getattr(self, name) for name in ("most_turns", "tries", "unverified", "in_a_row", "halved")}
        return {**fields, ROWS: [list(turn) for turn in self.set_aside]}

    def succeeded(self) -> Progress:
        """After a batch was stored."""
        return Progress(set_aside=self.set_aside, halved=max(self.halved - _GROWTH, 0))

    def shorter(self, times: int) -> Progress:
        """With limits that are halved so many times more."""
        return replace(self, halved=min(self.halved + times, MOST_HALVED))

    def without(self, turn: SetAside) -> Progress:
        """After a turn that was set aside has been read."""
        return replace(self, set_aside=tuple(one for one in self.set_aside if one != turn))

    def leaving(self, turn: SetAside) -> Progress:
        """After a turn was set aside."""
        return Progress(in_a_row=self.in_a_row + 1, set_aside=(*self.set_aside, turn))


class Step(NamedTuple):
    """What to do. ``if_answers``: only if the model answers something else; if it does not, there is a pause."""

    action: Action
    progress: Progress
    if_answers: bool = False


def progress_of(state: Json) -> Progress:
    """The progress that a cursor was stored with.

    >>> progress_of({"tries": 1, "rows": [[4, 5, "FactReplyError"]]}).set_aside
    (SetAside(first=4, last=5, error='FactReplyError'),)
    """
    if not state:
        return Progress()
    fields = {name: value for name, value in state.items() if name != ROWS}
    return Progress(**fields, set_aside=tuple(SetAside(*turn) for turn in state.get(ROWS, ())))


def after_failure(progress: Progress, blame: Blame, turns: int) -> Step:
    """What to do after a batch of so many turns has failed.

    A batch is halved until the turn is alone that fails. Alone it is tried three times, with less of it each time, and
    then set aside. Where the answer takes too long there is less to read the next time, and nothing is set aside.
    """
    if blame is Blame.MODEL:
        return Step(Action.PAUSE, progress)
    if blame is Blame.VERIFICATION:
        return Step(Action.PAUSE, replace(progress, unverified=progress.unverified + 1))
    if blame is Blame.LENGTH:
        return Step(Action.PAUSE, progress.shorter(1))
    if turns > 1:
        action = Action.AGAIN if blame is Blame.TURNS else Action.PAUSE
        return Step(action, replace(progress, most_turns=turns // 2, tries=0))
    tries = progress.tries + 1
    if tries < TURN_TRIES:
        return Step(Action.PAUSE, replace(progress.shorter(_AT_ONCE), most_turns=1, tries=tries))
    return Step(Action.SET_ASIDE, progress, blame is Blame.UNKNOWN or progress.in_a_row >= _MOST_IN_A_ROW)


def blame_of(error: Exception) -> Blame:
    """What a failure comes from."""
    if isinstance(error, VerificationError):
        return Blame.VERIFICATION
    if isinstance(error, FactReplyError | TruncatedReplyError) or is_about_words(error):
        return Blame.TURNS
    if is_timeout(error):
        return Blame.LENGTH
    status = status_of(error)
    # Without a status nobody has answered, or it is an error of the client's own code.
    if status in REQUEST_STATUSES or (status is None and not is_no_answer(error)):
        return Blame.UNKNOWN
    return Blame.MODEL
