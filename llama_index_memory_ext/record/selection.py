"""Decides which messages of the log the record shows word for word, and how much of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.record.entry import clip_entries
from llama_index_memory_ext.text.cutting import Limits, plan_cut
from llama_index_memory_ext.text.messages import Entry, tokens_of
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
        shown: list[Entry] = []
        for group in tool_call_groups(entries):
            clipped = clip_entries(group, limit, self.counter)
            if tokens_of(clipped) <= limit:
                shown += clipped
        return shown

    def evict(self, entries: tuple[Entry, ...], *, low: bool = False) -> tuple[Entry, ...]:
        """Returns all entries if they are within the limits (``low``: of what a cut keeps), else the newest."""
        return self._newest(entries, self.limits.kept if low else self.limits)

    def fit(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Returns the newest entries within the limits, as many as possible."""
        return self._newest(entries, replace(self.limits, keep_ratio=1.0, keep_messages=self.limits.max_messages))

    def _newest(self, entries: tuple[Entry, ...], limits: Limits) -> tuple[Entry, ...]:
        return entries[plan_cut(entries, limits, turn_starts=(MessageRole.USER,)) :]
