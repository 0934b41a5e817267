"""What a function that runs in a transaction can say and ask of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from sqlalchemy import Connection

    from llama_index_memory_ext.background.locks import Recent

_LOCKED = "llama_index_memory_ext locked"


class UnchangedError(Exception):
    """Raised in a function that writes: its transaction is rolled back, and the call returns the ``result``."""

    def __init__(self, result: object = None) -> None:
        self.result = result


@dataclass
class Locked:
    """The epochs of the sessions that a transaction has locked, and what is ``done`` when it is committed.

    ``known`` is what was done in this process before.
    """

    known: Recent[Hashable, bool]
    epochs: dict[str, int] = field(default_factory=dict)
    done: list[Hashable] = field(default_factory=list)

    @staticmethod
    def by(conn: Connection) -> Locked:
        """What the transaction of a connection has locked."""
        locked: Locked = conn.info[_LOCKED]
        return locked

    def begin(self, conn: Connection) -> None:
        """Begin the transaction of a connection."""
        conn.info[_LOCKED] = self

    def is_new(self, key: str, what: Hashable) -> bool:
        """Whether something is still to be done for a session; once it is committed, it is new no longer.

        It is new again where rows of the session were deleted.
        """
        mark = (key, self.epochs.get(key), what)
        self.done.append(mark)
        return mark[1] is None or mark not in self.known

    def end(self) -> None:
        """Remember what was done: it is committed."""
        for mark in self.done:
            self.known.put(mark, value=True)
