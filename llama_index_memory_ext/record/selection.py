"""Decides which messages of the log the record shows word for word, and how much of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.record.entry import clip_entries
from llama_index_memory_ext.text.cutting import plan_cut, with_results
from llama_index_memory_ext.text.limits import kept_of
from llama_index_memory_ext.text.messages import clip_entry
from llama_index_memory_ext.text.pieces import end_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.text.messages import Entry
    from llama_index_memory_ext.text.pieces import Splitter
    from llama_index_memory_ext.text.tokens import TokenCounter


class Kept(NamedTuple):
    """What a cut leaves: the end of a message, if one is kept partly, and the messages behind it."""

    end: Entry | None = None
    entries: tuple[Entry, ...] = ()

    @property
    def position(self) -> int:
        """The last row that is left behind, wholly or but for its end; there must be something left."""
        return self.end.row_id if self.end else self.entries[0].row_id - 1

    @property
    def all(self) -> tuple[Entry, ...]:
        """All that is shown, oldest first."""
        return (self.end, *self.entries) if self.end else self.entries


@dataclass(frozen=True, slots=True)
class VerbatimLimits:
    """How much may stand in the record word for word. Entries are given and come back oldest first.

    ``tokens`` is the room for all entries. One that is over ``message_ratio`` of it is clipped in its middle, or to its
    end with ``allow_partial``. The roles of ``start_on`` and ``end_on`` are those of ``MessageRole``; none is any.
    """

    tokens: int
    counter: TokenCounter
    keep_ratio: float = 0.75
    message_ratio: float = 0.5
    max_messages: int | None = None
    keep_messages: int | None = None
    allow_partial: bool = False
    text_splitter: Splitter | None = None
    start_on: frozenset[str] = frozenset()
    end_on: frozenset[str] = frozenset()

    def is_over(self, entries: Sequence[Entry]) -> bool:
        """Whether the entries pass one of the limits; at a limit they do not."""
        too_many = self.max_messages is not None and len(entries) > self.max_messages
        return too_many or sum(entry.tokens for entry in entries) > self.tokens

    def are_full(self, entries: Sequence[Entry]) -> bool:
        """Whether nothing older than these can be shown; the oldest unit may be incomplete yet."""
        if not self.is_over(entries):
            return False
        return self.is_over(self.within_shares([entry for unit in units_of(entries)[1:] for entry in unit]))

    def within_shares(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries with each that is over its share clipped; a call and its results have one share together."""
        limit = int(self.tokens * min(self.message_ratio, self.keep_ratio))
        shown: list[Entry] = []
        for unit in units_of(entries):
            clipped = clip_entries(unit, limit, self.counter, self._end if self.allow_partial else None)
            if sum(entry.tokens for entry in clipped) <= limit:
                shown += clipped
        return shown

    def cut(self, before: Kept, *, low: bool = False) -> Kept:
        """What stays: all of it within the limits, else the newest, ``keep_ratio`` or ``keep_messages`` of them.

        With ``low`` these are the limits.
        """
        entries, low_tokens, low_messages = before.all, self._low_tokens, self._low_messages
        limits = (low_tokens, low_messages) if low else (self.tokens, self.max_messages)
        first = self._first(entries, *limits, low_tokens, low_messages)
        if not first:
            return before
        kept = entries[first:]
        return Kept(self._end_before(entries[first - 1], kept) if self.allow_partial else None, kept)

    def cap(self, entries: Sequence[Entry]) -> tuple[Entry, ...]:
        """The newest entries within the limits, as many as there can be."""
        return tuple(entries[self._first(entries, self.tokens, self.max_messages, self.tokens, self.max_messages) :])

    def shown(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """The entries from the first one of ``start_on``, if there is such a one, to the last unit of ``end_on``."""
        if self.start_on:
            # A result must not come first: it would stand without its call.
            starts = [i for i, entry in enumerate(entries) if entry.role in self.start_on and not entry.is_result]
            entries = entries[starts[0] if starts else 0 :]
        if self.end_on:
            units = units_of(entries)
            while units and units[-1][-1].role not in self.end_on:
                units.pop()
            entries = [entry for unit in units for entry in unit]
        return entries

    @property
    def _low_tokens(self) -> int:
        return int(self.tokens * self.keep_ratio)

    @property
    def _low_messages(self) -> int | None:
        if self.keep_messages is None and self.max_messages is not None:
            return kept_of(self.max_messages, self.keep_ratio)
        return self.keep_messages

    def _first(
        self,
        entries: Sequence[Entry],
        token_limit: int,
        max_messages: int | None,
        keep_tokens: int,
        keep_messages: int | None,
    ) -> int:
        return plan_cut(
            [entry.tokens for entry in entries],
            turn_starts=[self._may_start(entry) for entry in entries],
            results=[entry.is_result for entry in entries],
            token_limit=token_limit,
            keep_tokens=keep_tokens,
            max_messages=max_messages,
            keep_messages=keep_messages,
            only_at_starts=bool(self.start_on),
        )

    def _may_start(self, entry: Entry) -> bool:
        if self.start_on:
            return entry.role in self.start_on
        # Where the end of a message may be shown, no turn has to be whole.
        return entry.starts_turn and not self.allow_partial

    def _end_before(self, entry: Entry, kept: Sequence[Entry]) -> Entry | None:
        """The end of the message before those that stay, as much as there is room for; results come never partly."""
        fewer = self._low_messages is None or len(kept) < self._low_messages
        if entry.is_result or not fewer or (self.start_on and entry.role not in self.start_on):
            return None
        room = self._low_tokens - sum(other.tokens for other in kept)
        end = clip_entry(entry, room, self.counter, partial(self._end, or_tokens=False))
        return end if end.body.strip() and end.tokens <= room else None

    def _end(self, text: str, limit: int, *, or_tokens: bool = True) -> str:
        end = end_of(text, limit, self.counter, self.text_splitter)
        return end or (self.counter.tail(text, limit) if or_tokens else "")


def units_of(entries: Sequence[Entry]) -> list[list[Entry]]:
    """The entries in groups that must not be parted: each with the tool results behind it."""
    return with_results(entries, lambda entry: entry.is_result)
