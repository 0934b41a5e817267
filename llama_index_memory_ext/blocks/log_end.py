"""The end of a session's log, which all memories on a store share."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.store.rows import (
    FactsVersion,
    LogPage,
    ReadPosition,
    Snapshot,
)
from llama_index_memory_ext.text.turns import Utterance, spoken

if TYPE_CHECKING:
    from llama_index_memory_ext.store import MemoryStore


# The last rows of a session, by which facts are ranked.
_CONTEXT_ROWS = 40


class LogEnd(NamedTuple):
    """The end of a session's log.

    ``lines``: the last lines, oldest first.
    ``position``: the position up to which the log was read.
    ``facts``: the version of the user's facts at that time; None before the first read.
    """

    lines: tuple[Utterance, ...] = ()
    position: ReadPosition = ReadPosition()
    facts: FactsVersion | None = None


async def read_log_end(
    store: MemoryStore, session_id: str, namespace: str, snapshot: Snapshot | None
) -> LogEnd:
    """Return the end of a session's log, from the snapshot if it reaches far enough back.

    ``namespace``: the facts whose version is read, too.
    """
    key = ("log_end", namespace)
    end = store.cache.get(session_id, key) or LogEnd()
    source: Snapshot | LogPage | None = snapshot
    rows = snapshot.log_behind(end.position) if snapshot else None
    if source is None or rows is None:
        # No reader is named: rows that a reader has processed count, too.
        newest_page = partial(
            store.readers.page, session_id, "", limit=_CONTEXT_ROWS, watch=namespace
        )
        source = await newest_page(end.position)
        if not source.fresh:
            end = LogEnd()
            source = await newest_page(end.position)
        rows = source.rows
    lines = list(end.lines)
    position = end.position
    for row in rows:
        position = ReadPosition(source.epoch, 0, row.id)
        text = spoken(row.message)
        if text:
            lines.append(Utterance(row.id, row.role, text))
    end = LogEnd(tuple(lines[-_CONTEXT_ROWS:]), position, source.facts)
    store.cache.put(session_id, key, end, len(end.lines))
    return end
