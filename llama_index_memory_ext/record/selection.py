"""Decides which messages of the log the record shows word for word, and how much of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.record.entry import clip_entries
from llama_index_memory_ext.text.cutting import Limits, clip_start, plan_cut
from llama_index_memory_ext.text.messages import Entry, clip_entry, tokens_of
from llama_index_memory_ext.text.tool_calls import tool_call_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.text.tokens import TokenCounter


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """How a block keeps its record short.

    ``room`` is the tokens inside the element ``name``. The tokens of ``limits`` are not used: ``selection`` sets them
    to what the rest of the record leaves.
    """

    name: str
    counter: TokenCounter
    room: int
    limits: Limits
    message_ratio: float
    include_system: bool
    summarize: bool
    summary_limit: int
    recall_limit: int
    languages: tuple[str, ...] | None = None

    @property
    def reserved(self) -> int:
        """Tokens that messages may not have: those of the summary and of recalled messages."""
        return self.recall_limit + (self.summary_limit if self.summarize else 0)

    def shown_summary_limit(self, instructions: Sequence[Entry]) -> int:
        """Returns the limit of the summary. A stored one that is no longer extended leaves half to messages."""
        if self.summarize:
            return self.summary_limit
        return min(self.summary_limit, (self.room - self.recall_limit - tokens_of(instructions)) // 2)

    def selection(self, instructions: Sequence[Entry], summary_tokens: int = 0) -> Selection:
        """Returns how messages are selected, with first instructions and a summary of so many tokens in front."""
        taken = self.reserved + (0 if self.summarize else summary_tokens) + tokens_of(instructions)
        limits = replace(self.limits.remaining(0, len(instructions)), tokens=max(self.room - taken, 0))
        return Selection(limits, self.counter, int(limits.tokens * min(self.message_ratio, limits.keep_ratio)))


class Kept(NamedTuple):
    """The messages that a cut leaves, oldest first; ``partial``: only the end of the first one is left."""

    entries: tuple[Entry, ...] = ()
    partial: bool = False

    @property
    def position(self) -> int:
        """The last row that is not shown whole. ``entries`` must not be empty."""
        return self.entries[0].row_id - (not self.partial)


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects messages within limits. A message, or a call with its results, is clipped to ``message_limit`` tokens."""

    limits: Limits
    counter: TokenCounter
    message_limit: int

    def is_over(self, entries: Sequence[Entry]) -> bool:
        """Returns whether the entries exceed one of the limits."""
        return len(entries) > self.limits.max_messages or tokens_of(entries) > self.limits.tokens

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
            if tokens_of(clipped) <= limit:
                shown += clipped
        return shown

    def evict(self, before: Kept, *, low: bool = False) -> Kept:
        """Returns all that was kept if it is within the limits (``low``: of what a cut keeps), else the newest."""
        cut = self._plan_cut(before.entries, self.limits.kept if low else self.limits)
        if not cut:
            return before
        kept = before.entries[cut:]
        end = self._end_of(before.entries[cut - 1], kept)
        return Kept((end, *kept), partial=True) if end else Kept(kept)

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

    def _end_of(self, entry: Entry, kept: Sequence[Entry]) -> Entry | None:
        """Returns the end of the message in front of those that are kept, if there may be one and there is room."""
        limits = self.limits
        has_role = not limits.start_on or entry.role in limits.start_on
        if not limits.allow_partial or not has_role or entry.is_result or len(kept) >= limits.keep_messages:
            return None
        room = limits.keep_tokens - tokens_of(kept)
        clip = partial(clip_start, counter=self.counter, text_splitter=limits.text_splitter)
        end = clip_entry(entry, room, self.counter, clip)
        return end if end.body.strip() and end.tokens <= room else None

    def _end_of_text(self, text: str, limit: int) -> str:
        # A message over its share is shown in any case.
        return clip_start(text, limit, self.counter, self.limits.text_splitter) or self.counter.tail(text, limit)
