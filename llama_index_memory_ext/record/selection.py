"""Decides which messages of the log the record shows word for word, and how much of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.record.entry import clip_entries
from llama_index_memory_ext.text.cutting import Limits, clip_start, plan_cut
from llama_index_memory_ext.text.messages import Entry, clip_entry
from llama_index_memory_ext.text.tool_calls import tool_call_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.text.tokens import TokenCounter


class Kept(NamedTuple):
    """What a cut leaves: the end of a message, if one is kept partly, and the messages after it."""

    partial: Entry | None = None
    entries: tuple[Entry, ...] = ()

    @property
    def position(self) -> int:
        """The last row that is not shown whole. Something must be kept."""
        return self.partial.row_id if self.partial else self.entries[0].row_id - 1

    @property
    def all(self) -> tuple[Entry, ...]:
        """All that is shown, oldest first."""
        return (self.partial, *self.entries) if self.partial else self.entries


@dataclass(frozen=True, slots=True)
class Selection:
    """How much of the messages is shown word for word. Entries are passed and returned oldest first.

    A message, or a call with its results, may have ``message_limit`` tokens. A longer one is clipped in its middle, or
    to its end if the limits ``allow_partial``.
    """

    limits: Limits
    counter: TokenCounter
    message_limit: int

    def is_over(self, entries: Sequence[Entry]) -> bool:
        """Returns whether the entries exceed one of the limits."""
        return sum(entry.tokens for entry in entries) > self.limits.tokens or len(entries) > self.limits.max_messages

    def are_full(self, entries: Sequence[Entry]) -> bool:
        """Returns whether nothing older than these can be shown. The oldest group of them may be incomplete."""
        return self.is_over(entries) and self.is_over(self.within_shares(entries[len(tool_call_groups(entries)[0]) :]))

    def within_shares(self, entries: Sequence[Entry]) -> list[Entry]:
        """Returns the entries, those over their share clipped. A call and its results have one share together."""
        limit = self.message_limit
        clip = self._end_of_text if self.limits.allow_partial else None
        shown: list[Entry] = []
        for group in tool_call_groups(entries):
            clipped = clip_entries(group, limit, self.counter, clip)
            if sum(entry.tokens for entry in clipped) <= limit:
                shown += clipped
        return shown

    def evict(self, before: Kept, *, low: bool = False) -> Kept:
        """Returns all that was kept if it is within the limits (``low``: of what a cut keeps), else the newest."""
        entries = before.all
        cut = self._plan_cut(entries, self.limits.kept if low else self.limits)
        if not cut:
            return before
        kept = entries[cut:]
        return Kept(self._partial(entries[cut - 1], kept), kept)

    def fit(self, entries: Sequence[Entry]) -> tuple[Entry, ...]:
        """Returns the newest entries within the limits, as many as possible."""
        limits = replace(self.limits, keep_ratio=1.0, keep_messages=self.limits.max_messages)
        return tuple(entries[self._plan_cut(entries, limits) :])

    def shown(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Returns the entries from the first role of ``start_on``, if there is one, to the last one of ``end_on``."""
        return self.limits.ending_on(self.limits.starting_on(entries) or entries)

    def _plan_cut(self, entries: Sequence[Entry], limits: Limits) -> int:
        # If the end of a message may be shown, no turn has to be whole.
        turn_starts = limits.start_on or (() if limits.allow_partial else (MessageRole.USER,))
        return plan_cut(entries, limits, turn_starts=turn_starts)

    def _partial(self, entry: Entry, kept: Sequence[Entry]) -> Entry | None:
        """Returns the end of the message in front of those that are kept, if there may be one and there is room."""
        limits = self.limits
        if not limits.allow_partial or entry.is_result or len(kept) >= limits.keep_messages:
            return None
        if limits.start_on and entry.role not in limits.start_on:
            return None
        room = limits.keep_tokens - sum(other.tokens for other in kept)
        clip = partial(clip_start, counter=self.counter, text_splitter=limits.text_splitter)
        end = clip_entry(entry, room, self.counter, clip)
        return end if end.body.strip() and end.tokens <= room else None

    def _end_of_text(self, text: str, limit: int) -> str:
        # A message over its share is shown in any case.
        return clip_start(text, limit, self.counter, self.limits.text_splitter) or self.counter.tail(text, limit)
