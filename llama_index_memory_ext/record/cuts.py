"""The cut of a record: its oldest messages leave for every process, and an event is sent."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.events import HistoryCondensedEvent, send
from llama_index_memory_ext.models.ask import Usage
from llama_index_memory_ext.record.sticky import halve

if TYPE_CHECKING:
    from llama_index_memory_ext.record.reader import RecordReader
    from llama_index_memory_ext.record.window import Window
    from llama_index_memory_ext.store.rows import Snapshot


async def read_within_limits(
    reader: RecordReader, session_id: str, snapshot: Snapshot | None
) -> Window:
    """Return the window within its limits. A cut is stored, so that every process sees it.

    With ``summarize`` no cut is stored: the messages leave when they are summarised.
    """
    window = await reader.read(session_id, snapshot)
    # If all messages of the record were deleted, the earlier ones have room again.
    is_behind = window.seen.position and not (window.seen.last_id or window.summary)
    if is_behind and await reader.move(session_id, window, 0):
        window = await reader.read(session_id)
    if not window.is_over:
        return window
    if reader.summarize:
        window = window.until_summary()
        reader.keep(session_id, window)
        return window
    return await _store_cut(reader, session_id, window)


async def _store_cut(reader: RecordReader, session_id: str, before: Window) -> Window:
    """Cut the window for every process, and return the window after the cut."""
    started = perf_counter()
    window = await with_short_results(reader, session_id, before)
    heat = reader.heat(session_id, window)
    window = await reader.with_sticky(session_id, window, halve(heat.by_row))
    after = window.after_cut()
    if after.entries == window.entries:
        # A call with more results than messages are allowed is kept whole.
        return window
    position = after.entries[0].row_id - 1
    if not await reader.move(session_id, after, position):
        # Another process has cut, or the database is busy: show the window as it
        # is now, within the limit.
        return (await reader.read(session_id)).within_limits()
    after = replace(after, seen=replace(window.seen, position=position))
    reader.keep(session_id, after)
    await announce(reader, session_id, before, after, started, Usage())
    return after


async def with_short_results(
    reader: RecordReader, session_id: str, window: Window
) -> Window:
    """Return the window with a line for each tool result before the last ``keep_tool_results`` turns.

    A window with so many turns is read anew, as every other process reads it after
    the cut.
    """
    turns = [
        entry.row_id for entry in window.entries if entry.role == MessageRole.USER.value
    ]
    if reader.keep_tool_results is None or len(turns) < reader.keep_tool_results:
        return window
    starts = [*turns, window.seen.last_id + 1]
    return await reader.read(
        session_id, results_from=starts[-reader.keep_tool_results - 1]
    )


async def announce(
    reader: RecordReader,
    session_id: str,
    before: Window,
    after: Window,
    started: float,
    spent: Usage,
) -> None:
    """Send an event if messages have left the record; ``started`` is of ``perf_counter``."""
    old = before.seen.position
    new = after.seen.position
    seconds = perf_counter() - started
    if new > old:
        event = HistoryCondensedEvent(
            session_id=session_id,
            messages=await reader.store.readers.count_messages(
                session_id, after=old, last=new
            ),
            tokens_before=reader.tokens(before),
            tokens_after=reader.tokens(after),
            summarised=reader.summarize,
            summary_tokens=after.element.tokens,
            position=new,
            seconds=seconds,
            prompt_tokens=spent.prompt_tokens,
            completion_tokens=spent.completion_tokens,
        )
        send(event)
