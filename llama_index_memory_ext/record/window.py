"""The window of the messages that a record shows, and how a window that is too long is cut."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.record.text import clip_entries
from llama_index_memory_ext.text.entries import Entry, tokens_of
from llama_index_memory_ext.text.limits import Limits, plan_cut
from llama_index_memory_ext.text.messages import tool_call_groups
from llama_index_memory_ext.text.parts import DAY_HEADING, NO_PARTS, Section

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import tzinfo

    from llama_index_memory_ext.store.rows import LogPage, ReadPosition
    from llama_index_memory_ext.text.tokens import TokenCounter


# After so many slides without a new summary, the window is cut as without a summary.
_MOST_SLIDES = 3
# The tags of a message, and a few words of it.
_LEAST_MESSAGE_TOKENS = 25


@dataclass(frozen=True)
class Window:
    """The record of one session as this process remembers it, and the limits of its messages.

    Attributes:
        seen: The position up to which the log was read.
        instructions: The first message, if it is the system's or the developer's and
            stays.
        summary: The running summary of ``summarised`` messages.
        element: The summary as the record shows it.
        sticky: The messages that were recalled most before the last cut, as the record
            shows them.
        sticky_heat: The heat of each of them by its row.
        entries: The messages, oldest first.
        slides: How often the window has dropped its oldest messages, which still wait
            for a summary: the log then has rows behind the cursor that are not shown.
        results_from: The results of tools before this row are shown in a line.
        offset: The offset of the newest message.
    """

    seen: ReadPosition
    limits: Limits
    counter: TokenCounter
    instructions: tuple[Entry, ...] = ()
    summary: str = ""
    element: Section = NO_PARTS
    summarised: int = 0
    sticky: Section = NO_PARTS
    sticky_heat: Mapping[int, float] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    slides: int = 0
    results_from: int = 0
    offset: tzinfo | None = None

    def extended_by(
        self, new: Sequence[Entry], *, with_days: bool
    ) -> tuple[Entry, ...]:
        """Return the entries and the new entries, with the tokens of a heading where the day changes.

        The heading above the first entry is not counted here. A result has the day of
        its call.
        """
        entries = list(self.entries)
        last_day = entries[-1].day if entries else ""
        for entry in new:
            day = last_day
            if with_days and entry.day and not entry.is_result:
                day = entry.day
            heading_tokens = 0
            if entries and day != last_day:
                heading_tokens = self.counter.count(DAY_HEADING.format(day))
            tokens = entry.tokens + heading_tokens
            entries.append(
                replace(entry, day=day, tokens=tokens, heading_tokens=heading_tokens)
            )
            last_day = day
        return tuple(entries)

    @property
    def place(self) -> tuple[int, int]:
        """The epoch and the cursor with which the window was read."""
        return self.seen.epoch, self.seen.position

    @property
    def last_left(self) -> int:
        """The newest row that has left the record; 0 for none."""
        if not self.has_left:
            return 0
        return self.entries[0].row_id - 1 if self.entries else self.seen.last_id

    @property
    def has_left(self) -> bool:
        """Whether messages of the session have left the record."""
        return bool(self.seen.position or self.slides)

    @property
    def last_turn(self) -> int:
        """The row of the newest message of the user; 0 if there is none."""
        for entry in reversed(self.entries):
            if entry.role == MessageRole.USER.value:
                return entry.row_id
        return 0

    @cached_property
    def tokens(self) -> int:
        """The tokens of the record without its element, its first heading, the line of today, and recalled messages."""
        in_front = self.element.tokens + self.sticky.tokens
        return in_front + tokens_of(self.instructions) + tokens_of(self.entries)

    @cached_property
    def is_over(self) -> bool:
        """Whether the messages exceed a limit."""
        return (
            len(self.entries) > self.limits.max_messages
            or tokens_of(self.entries) > self.limits.tokens
        )

    @property
    def message_limit(self) -> int:
        """The most tokens of a message, or of a call with its results.

        This is two thirds of the kept room, at most half of the room, at least 25. It is
        the same with and without sticky messages, and so is a clipped message.
        """
        room = self.limits.tokens + self.sticky.tokens
        share = int(room * min(0.5, self.limits.keep_ratio / 1.5))
        return max(share, min(room, _LEAST_MESSAGE_TOKENS))

    @cached_property
    def whole_rows(self) -> list[int]:
        """The rows of the entries that show a whole message; a longer entry may be clipped."""
        longest = self.message_limit // 2
        return [entry.row_id for entry in self.entries if entry.tokens <= longest]

    @cached_property
    def has_media(self) -> bool:
        """Whether a message has an image, a sound, a video or a document."""
        return any(entry.has_media for entry in self.entries)

    def is_continued_by(self, page: LogPage) -> bool:
        """Return whether the rows of a page follow the entries, and the log and the cursor are unchanged."""
        if not page.fresh or page.position != self.seen.position:
            return False
        # A result shares the limit of its call, which is among the entries.
        return not (self.entries and page.rows and page.rows[0].is_result)

    def within_shares(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries, clipped to their limit. A call and its results have one limit together."""
        fitting: list[Entry] = []
        for group in tool_call_groups(entries):
            clipped = clip_entries(group, self.message_limit, self.counter)
            if tokens_of(clipped) <= self.message_limit:
                fitting += clipped
        return fitting

    def is_filled_by(self, entries: Sequence[Entry]) -> bool:
        """Return whether these entries fill the window. Their oldest group does not count: it may lack rows."""
        if not replace(self, entries=tuple(entries)).is_over:
            return False
        whole = entries[len(tool_call_groups(entries)[0]) :]
        return replace(self, entries=tuple(self.within_shares(whole))).is_over

    def within_limits(self, limits: Limits | None = None) -> Window:
        """Return the window within these limits or, by default, its limits: cut if it exceeds them."""
        return self.without_oldest(plan_cut(self.entries, limits or self.limits))

    def after_cut(self) -> Window:
        """Return the window after a cut, which removes at least the first group, but never the newest.

        A cut that removed no group would not move the cursor, and other processes would
        not know of it.
        """
        after = self.within_limits(self.limits.kept)
        groups = tool_call_groups(self.entries)
        if after.entries == self.entries and len(groups) > 1:
            return self.without_oldest(len(groups[0]))
        return after

    def without_oldest(self, number: int) -> Window:
        """Return the window without this number of its oldest entries."""
        entries = self.entries[number:]
        if entries and entries[0].heading_tokens:
            tokens = entries[0].tokens - entries[0].heading_tokens
            first = replace(entries[0], tokens=tokens, heading_tokens=0)
            entries = (first, *entries[1:])
        return replace(self, entries=entries)

    def is_before(self, last: Window) -> bool:
        """Return whether the ``last`` window of the same log was read further, or as far with more slides."""
        here = (self.seen.last_id, self.slides)
        return self.place == last.place and here < (last.seen.last_id, last.slides)

    def until_summary(self) -> Window:
        """Return the window within its limits, with as many entries as possible, while a summary is made.

        After three slides without a new summary, the window is cut down to
        ``keep_ratio``. Then its beginning stays for many turns.
        """
        if self.slides >= _MOST_SLIDES:
            return self.within_limits()
        as_many = replace(
            self.limits, keep_ratio=1.0, keep_messages=self.limits.max_messages
        )
        return replace(self.within_limits(as_many), slides=self.slides + 1)
