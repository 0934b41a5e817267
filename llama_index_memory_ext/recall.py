"""Finds the messages of a session again that have left the record, by the words of a question."""

from __future__ import annotations

import threading
from bisect import bisect_left
from datetime import datetime, timezone
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.budget import fit_tokens
from llama_index_memory_ext.ranking import CONTEXT_SHARE, Document, TfidfRanker, similarities_of
from llama_index_memory_ext.transcript import Entry, body_of, clip_entry, entry_of, spoken
from llama_index_memory_ext.window import share_out
from llama_index_memory_ext.words import date_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_index_memory_ext.store import LogRow
    from llama_index_memory_ext.tokens import TokenCounter

# By how many turns before the question a message is found, too, and what each of them weighs beside it: half of what
# it does for facts, because they mostly stand in the record themselves.
_TURNS_BEFORE, _EARLIER_WEIGHT = 2, 0.1
# What is near a question seldom stands alone: of the nearer neighbour's similarity a message has this share.
_NEIGHBOUR_SHARE = 0.5
_INDEXED_CHARACTERS, _NEIGHBOUR_CHARACTERS = 20_000, 2_000
_INSTRUCTIONS = frozenset({MessageRole.SYSTEM.value, MessageRole.DEVELOPER.value})


class _Unit(NamedTuple):
    """A message, or a call with its results: the rows, and what they say."""

    rows: list[LogRow]
    words: str


class RecallIndex:
    """The messages of one session as they can be found: a call and its results together, all others one by one.

    A message is found by its own words, by the day on which it was written and, with less weight, by the words of its
    neighbours. So it is indexed when the next one has come, and never again. Threads may call at the same time.

    Args:
        epoch: The epoch of the log whose rows these are.
        counter: Counts the tokens of what would be shown.
        unit_limit: Most tokens of one message, its tags included; a longer one is clipped in its middle.
        tags: Element names, besides our own, that no text must be able to forge.
    """

    def __init__(self, epoch: int, counter: TokenCounter, unit_limit: int, tags: tuple[str, ...] = ()) -> None:
        self.epoch = epoch
        self.newest = 0
        self.turns: list[list[str]] = []
        self._counter, self._unit_limit, self._tags = counter, unit_limit, tags
        self._ranker = TfidfRanker()
        self._names: list[str] = []
        self._rows: list[tuple[int, ...]] = []
        self._tokens: list[int] = []
        self._words_before = ""
        self._waiting: list[_Unit] = []
        self._guard = threading.Lock()

    def take(self, rows: Iterable[LogRow]) -> None:
        """Follow the log: rows behind those that were taken, oldest first; known ones are passed over."""
        with self._guard:
            for row in rows:
                if row.id > self.newest:
                    self._hear(row)
                    self.newest = row.id
            if self._waiting:
                self._index(self._waiting)
                del self._waiting[:-1]

    def search(self, question: str, context: Sequence[str], *, before: int, limit: int) -> list[tuple[int, ...]]:
        """The rows of the messages that matter for a question, the best first, as many as fit into ``limit`` tokens.

        Only rows in front of the row ``before`` are looked at. Nothing is found without a word in common.
        """
        with self._guard:
            count = bisect_left(self._rows, (before,))
            names, rows, tokens = self._names[:count], self._rows[:count], self._tokens[:count]
        near = _with_neighbours(similarities_of(names, question, context, self._ranker, earlier_weight=_EARLIER_WEIGHT))
        order = sorted((i for i, value in enumerate(near) if value > 0), key=lambda i: (near[i], i), reverse=True)
        return [rows[order[place]] for place in fit_tokens((tokens[i] for i in order), limit)]

    def entries(self, rows: Sequence[LogRow]) -> list[Entry]:
        """What is shown of the rows of one message, each with its date."""
        shown = [entry_of(row.id, row.message, self._counter, self._tags, day=_day(row)) for row in rows]
        entries = [entry for entry in shown if entry is not None]
        shares = share_out([entry.tokens for entry in entries], self._unit_limit)
        return [clip_entry(entry, share, self._counter) for entry, share in zip(entries, shares, strict=True)]

    def _hear(self, row: LogRow) -> None:
        message = row.message
        said = spoken(message)
        if said:
            self._follow_talk(said, is_question=message.role == MessageRole.USER)
        words = (said or body_of(message))[:_INDEXED_CHARACTERS]
        if row.is_result:
            if self._waiting:
                unit = self._waiting[-1]
                self._waiting[-1] = _Unit([*unit.rows, row], f"{unit.words}\n{words}")
        elif words.strip() and row.role not in _INSTRUCTIONS:
            self._waiting.append(_Unit([row], words))

    def _follow_talk(self, said: str, *, is_question: bool) -> None:
        if is_question or not self.turns:
            self.turns = [*self.turns[1 - _TURNS_BEFORE :], [said]]
        else:
            self.turns[-1] = [*self.turns[-1], said]

    def _index(self, units: Sequence[_Unit]) -> None:
        """Index all units but the last, whose next neighbour is not known yet."""
        documents = []
        for unit, after in pairwise(units):
            beside = (self._words_before, after.words[:_NEIGHBOUR_CHARACTERS])
            context = tuple((words, CONTEXT_SHARE) for words in beside if words)
            name = str(unit.rows[0].id)
            documents.append(Document(name, unit.words, context, date_words(_time(unit.rows[0]))))
            self._names.append(name)
            self._rows.append(tuple(row.id for row in unit.rows))
            self._tokens.append(sum(entry.tokens for entry in self.entries(unit.rows)))
            self._words_before = unit.words[:_NEIGHBOUR_CHARACTERS]
        # All at once, for each call brings the lengths of all rows up to date.
        self._ranker.add(documents)


def _with_neighbours(near: Sequence[float]) -> list[float]:
    """The similarities of messages in their order, each raised by that of the nearer of its two neighbours."""
    around = [0.0, *near, 0.0]
    return [
        value + _NEIGHBOUR_SHARE * max(before, after)
        for before, value, after in zip(around, near, around[2:], strict=False)
    ]


def _time(row: LogRow) -> datetime:
    return datetime.fromtimestamp(row.timestamp / 1e9, tz=timezone.utc)


def _day(row: LogRow) -> str:
    return _time(row).date().isoformat()
