"""The progress of a facts' reader: the next step after a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from llama_index_memory_ext.fact import SetAside
from llama_index_memory_ext.store.tables import ROWS

if TYPE_CHECKING:
    from llama_index_memory_ext.errors import Blame
    from llama_index_memory_ext.text.messages import Json


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

# The next step after a failure. "again": try at once. "pause": try after a pause.
# "stop": pause even where no pause is usual. "set aside": leave the turn behind.
Action: TypeAlias = Literal["again", "pause", "stop", "set aside"]


class Progress(NamedTuple):
    """The state of a facts' reader, stored with its cursor.

    ``most_turns``: limit of turns in the next batch, after a failure.
    ``tries``: failures of a single turn.
    ``in_a_row``: turns that were set aside since the last success.
    ``halved``: how often the limits of tokens are halved.
    ``set_aside``: the turns that were set aside.
    ``is_understood``: whether an answer of the model was read.
    """

    most_turns: int | None = None
    tries: int = 0
    in_a_row: int = 0
    halved: float = 0
    set_aside: tuple[SetAside, ...] = ()
    is_understood: bool = False

    def after_success(self) -> Progress:
        """Return the progress after a batch was stored."""
        halved = max(self.halved - _HALVINGS_UNDONE, 0)
        return self._replace(most_turns=None, tries=0, in_a_row=0, halved=halved)

    def without(self, turn: SetAside) -> Progress:
        """Return the progress after a turn was set aside."""
        return Progress(
            in_a_row=self.in_a_row + 1,
            set_aside=(*self.set_aside, turn),
            is_understood=self.is_understood,
        )

    @property
    def state(self) -> Json:
        """The progress as JSON for ``Readers.move``; None for a progress without content."""
        if self == Progress():
            return None
        fields = self._asdict()
        fields[ROWS] = fields.pop("set_aside")
        return fields


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
