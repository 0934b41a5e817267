"""Finds the messages of a session again that have left the record, by the words of a question."""

from __future__ import annotations

import threading
from bisect import bisect_left
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.record.entry import clip_entries
from llama_index_memory_ext.search.tfidf import CONTEXT_SHARE, Document, TfidfRanker, similarities_with_context
from llama_index_memory_ext.search.tokenization import date_words, terms_of
from llama_index_memory_ext.text.budget import fit_tokens
from llama_index_memory_ext.text.excerpts import excerpt
from llama_index_memory_ext.text.messages import INSTRUCTION_ROLES, Entry, body_of, calls_of, entry_of, spoken

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from llama_index_memory_ext.store import LogRow
    from llama_index_memory_ext.text.tokens import TokenCounter

# By how many turns before the question a message is found, too, and what each of them weighs beside it: half of what
# it does for facts, because they mostly stand in the record themselves.
_TURNS_BEFORE, _EARLIER_WEIGHT = 2, 0.1
# What is near a question seldom stands alone: of the nearer neighbour's similarity a message has this share.
_NEIGHBOUR_SHARE = 0.5
_INDEXED_CHARACTERS, _NEIGHBOUR_CHARACTERS = 20_000, 2_000
# The tool whose results say again what stands in the log: they are not found as if somebody had said it.
SEARCH_TOOL = "search_memory"
# An entry of nothing but its tags: where its tokens do not fit, no message does.
_SHORTEST = '<message role="user"></message>\n'


class _Unit(NamedTuple):
    """A message, or a call with its results: the rows, what they say, and what the first of them says."""

    rows: list[LogRow]
    words: str
    first_words: str


_NOTHING = _Unit([], "", "")


class RecallIndex:
    """The messages of one session as they can be found: a call and its results together, all others one by one.

    A message is found by its own words, by the day on which it was written and, with less weight, by the words of its
    neighbours. So it is indexed when the next one has come, and never again. Threads may call at the same time.

    Args:
        epoch: The epoch of the log whose rows these are.
        counter: Counts the tokens of what would be shown.
        unit_limit: Most tokens of one message, its tags included; a longer one is clipped in its middle.
        tags: Element names, besides our own, that no text must be able to forge.
        with_newest: Whether the newest message is found, too; when the next one has come it is indexed anew.
    """

    def __init__(
        self,
        epoch: int,
        counter: TokenCounter,
        unit_limit: int,
        tags: tuple[str, ...] = (),
        *,
        with_newest: bool = False,
    ) -> None:
        self.epoch = epoch
        self.newest = 0
        self.turns: list[list[str]] = []
        self._counter, self._unit_limit, self._tags = counter, unit_limit, tags
        self._with_newest, self._has_newest, self._is_echo = with_newest, False, False
        self._ranker = TfidfRanker()
        self._least = counter.count(_SHORTEST)
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
            # A call whose results are shown anyway.
            count -= count > 0 and self._rows[count - 1][-1] >= before
            rows, tokens = self._rows[:count], self._tokens[:count]
        near = similarities_with_context(self._ranker, _ids(rows), question, context, _EARLIER_WEIGHT)
        order = _best_first(_with_neighbours(near)).tolist()
        return [rows[order[place]] for place in fit_tokens((tokens[i] for i in order), limit, least=self._least)]

    def nearest(self, question: str, most: int) -> list[tuple[tuple[int, ...], float]]:
        """The rows of the messages that are nearest to a question, each with its similarity, the best first and 1.

        Nothing is found without a word in common.
        """
        with self._guard:
            rows = list(self._rows)
        near = _with_neighbours(similarities_with_context(self._ranker, _ids(rows), question, ()))
        near = near / (near.max(initial=0.0) or 1.0)
        return [(rows[i], float(near[i])) for i in _best_first(near)[:most].tolist()]

    def entries(self, rows: Sequence[LogRow], question: str = "", limit: int | None = None) -> list[Entry]:
        """What is shown of the rows of one message, each with its date; [] if there is no room for a word of each.

        Of one that is too long, the part with the words of the question is shown; without a question its two ends.
        ``limit`` is the most tokens of it, if these are less than the index has.
        """
        return self._within_limit(self._whole(rows), question, limit)

    def _whole(self, rows: Sequence[LogRow]) -> list[Entry]:
        found = [entry_of(row.id, row.message, self._counter, self._tags, day=shown_day(row)) for row in rows]
        return [entry for entry in found if entry is not None]

    def _within_limit(self, whole: Sequence[Entry], question: str, limit: int | None = None) -> list[Entry]:
        most = self._unit_limit if limit is None else min(limit, self._unit_limit)
        wanted = set(terms_of(question))
        clip = partial(excerpt, counter=self._counter, wanted=wanted, terms=terms_of) if wanted else None
        shown = clip_entries(whole, most, self._counter, clip)
        fits = sum(entry.tokens for entry in shown) <= most
        return shown if fits and all(entry.body.strip() for entry in shown) else []

    def _hear(self, row: LogRow) -> None:
        message = row.message
        said = spoken(message)
        if said:
            self._follow_talk(said, is_question=message.role == MessageRole.USER)
        words = (said or body_of(message))[:_INDEXED_CHARACTERS]
        if not row.is_result:
            self._is_echo = {call.name for call in calls_of(message)} == {SEARCH_TOOL}
        if self._is_echo:
            return
        if row.is_result:
            if self._waiting:
                unit = self._waiting[-1]
                self._waiting[-1] = unit._replace(rows=[*unit.rows, row], words=f"{unit.words}\n{words}")
        elif words.strip() and row.role not in INSTRUCTION_ROLES:
            self._waiting.append(_Unit([row], words, words))

    def _follow_talk(self, said: str, *, is_question: bool) -> None:
        if is_question or not self.turns:
            self.turns = [*self.turns[1 - _TURNS_BEFORE :], [said]]
        else:
            self.turns[-1] = [*self.turns[-1], said]

    def _index(self, units: Sequence[_Unit]) -> None:
        """Index all units but the last, whose next neighbour is not known yet; that, if at all, until it is."""
        if self._has_newest:
            self._rows.pop()
            self._tokens.pop()
        documents = [document for unit, after in pairwise(units) if (document := self._document(unit, after))]
        if self._with_newest:
            words_before, newest = self._words_before, self._document(units[-1], _NOTHING)
            self._words_before, self._has_newest = words_before, newest is not None
            documents += [newest] if newest else []
        # All at once, for each call brings the lengths of all rows up to date.
        self._ranker.add(documents)

    def _document(self, unit: _Unit, after: _Unit) -> Document | None:
        """A unit as it is found, and its place among the rows taken; None if there is no room to show it."""
        document = None
        whole = self._whole(unit.rows)
        if self._within_limit(whole, ""):
            # The results of a call that comes next may not have come yet.
            beside = (self._words_before, after.first_words[:_NEIGHBOUR_CHARACTERS])
            context = tuple((words, CONTEXT_SHARE) for words in beside if words)
            written_at = unit.rows[0].written_at
            day = date_words(written_at.date()) if written_at else ""
            document = Document(str(unit.rows[0].id), unit.words, context, day)
            self._rows.append(tuple(row.id for row in unit.rows))
            # Of a long one another part is shown for each question, which has at most this.
            self._tokens.append(min(sum(entry.tokens for entry in whole), self._unit_limit))
        self._words_before = unit.words[:_NEIGHBOUR_CHARACTERS]
        return document


def _ids(rows: Iterable[tuple[int, ...]]) -> list[str]:
    """The ids of messages in the index."""
    return [str(row_ids[0]) for row_ids in rows]


def _best_first(near: NDArray[np.float64]) -> NDArray[np.int64]:
    """The places of those that are near at all, the nearest first; ties: the newest first."""
    found = np.flatnonzero(near)
    order: NDArray[np.int64] = found[np.lexsort((-found, -near[found]))]
    return order


def _with_neighbours(near: NDArray[np.float64]) -> NDArray[np.float64]:
    """The similarities of messages in their order, each raised by that of the nearer of its two neighbours."""
    around = np.pad(near, 1)
    return near + _NEIGHBOUR_SHARE * np.maximum(around[:-2], around[2:])


def shown_day(row: LogRow) -> str:
    """The day (UTC) on which a row was written, as 2026-11-20; "" where that is not known."""
    return row.written_at.date().isoformat() if row.written_at else ""
