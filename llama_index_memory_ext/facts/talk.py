"""Reads what was said last in a session, by which facts are ranked."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.store.rows import Seen
from llama_index_memory_ext.text.messages import Utterance, spoken, turns_of

if TYPE_CHECKING:
    from llama_index_memory_ext.store.cursors import Readers
    from llama_index_memory_ext.store.rows import LogPage, Snapshot

_CONTEXT_ROWS = 40


class Talk(NamedTuple):
    """What was said last in the log of a session, and the turns of it."""

    seen: Seen = Seen()
    said: tuple[Utterance, ...] = ()
    turns: tuple[list[str], ...] = ()


async def read_talk(
    readers: Readers, session_id: str, namespace: str, talk: Talk, snapshot: Snapshot | None, turns: int
) -> tuple[Talk, int, tuple[int, int] | None]:
    """Returns the talk with what has been said since, its last ``turns`` turns, the epoch, and the ``facts`` then."""
    rows = snapshot.log_behind(talk.seen) if snapshot else None
    now: Snapshot | LogPage
    if snapshot and rows is not None:
        now = snapshot
    else:
        # No cursor of a reader: what was left behind was said all the same.
        read = partial(readers.page, session_id, "", limit=_CONTEXT_ROWS, watch=namespace)
        now = await read(talk.seen)
        if not now.fresh:
            talk = Talk()
            now = await read(talk.seen)
        rows = now.rows
    if rows:
        new = [Utterance(row.id, row.role, spoken(row.message)) for row in rows]
        said = (*talk.said, *(one for one in new if one.text))[-_CONTEXT_ROWS:]
        talk = Talk(Seen(now.epoch, 0, rows[-1].id), said, tuple(turns_of(said)[-turns:]))
    return talk, now.epoch, now.facts
