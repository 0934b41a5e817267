"""Indexes the messages of a session, so that a question finds them by their words."""

from __future__ import annotations

import threading
from bisect import bisect_left
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.record.entry import clip_entries
from llama_index_memory_ext.search.tfidf import CONTEXT_SHARE, Document, TfidfRanker, similarities_with_context
from llama_index_memory_ext.search.tokenization import date_words, terms_of
from llama_index_memory_ext.text.cutting import excerpt
from llama_index_memory_ext.text.messages import CLOSING, INSTRUCTION_ROLES, body_of, entry_of, spoken
from llama_index_memory_ext.text.tokens import fit_tokens
from llama_index_memory_ext.text.tool_calls import calls_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from llama_index_memory_ext.store.readers import LogRow
    from llama_index_memory_ext.text.messages import Entry
    from llama_index_memory_ext.text.tokens import TokenCounter

# The tool whose results repeat what is in the log: they are not found as if somebody had said it.
SEARCH_TOOL = "search_memory"
# A message is also found by the two turns before the question. Each weighs half of what it does for facts, because
# these turns mostly stand in the record themselves.
CONTEXT_TURNS = 3
_EARLIER_WEIGHT = 0.1
# A message gets this share of its more similar neighbour's similarity: relevant messages seldom stand alone.
_NEIGHBOUR_SHARE = 0.5
_INDEXED_CHARACTERS, _NEIGHBOUR_CHARACTERS = 20_000, 2_000


class _Unit(NamedTuple):
    """A message, or a call with its results: the rows, their words, and the words of the first row."""

    rows: list[LogRow]
    words: str
    first_words: str


class _Place(NamedTuple):
    """Where an indexed unit stands, and the tokens that it has: all of them, and those of its tags."""

    row_ids: tuple[int, ...]
    tokens: int
    tag_tokens: int


class MessageIndex:
    """The messages of one session, indexed for questions: a call and its results together, all others one by one.

    A message is found by its own words, by the day on which it was written and, with less weight, by the words of its
    neighbours. So it is indexed when the next one has come; only a search also needs the newest one, which is indexed
    again later. Threads may call at the same time.

    Args:
        epoch: The epoch of the log.
        counter: Counts the tokens of what would be shown.
        tags: Element names, besides our own, that no text must be able to forge.
    """

    def __init__(self, epoch: int, counter: TokenCounter, tags: tuple[str, ...] = ()) -> None:
        self.epoch = epoch
        self.newest = 0
        self.turns: list[list[str]] = []
        self._counter, self._tags = counter, tags
        self._ranker = TfidfRanker()
        self._places: list[_Place] = []
        self._words_before = ""
        self._waiting: list[_Unit] = []
        self._has_newest = self._is_echo = False
        self._guard = threading.Lock()

    def take(self, rows: Iterable[LogRow], *, with_newest: bool = False) -> None:
        """Index rows of the log, oldest first; rows that were taken before are passed over.

        Args:
            rows: Rows after those that were taken.
            with_newest: Whether the newest message is indexed, too, although the next one has not come.
        """
        with self._guard:
            for row in rows:
                if row.id > self.newest:
                    self._hear(row)
                    self.newest = row.id
            if self._waiting:
                self._index(self._waiting, with_newest=with_newest)
                del self._waiting[:-1]

    def search(
        self, question: str, context: Sequence[str], *, before: int, limit: int, message_limit: int
    ) -> list[tuple[int, ...]]:
        """The rows of the messages that matter for a question, the best first; none without a word in common.

        Args:
            question: The question.
            context: What was said in each of the turns before, oldest first.
            before: Only messages whose rows are all before this row are found.
            limit: Most tokens of all messages.
            message_limit: Most tokens of one message; longer ones are clipped when they are shown.
        """
        with self._guard:
            count = bisect_left(self._places, (before,), key=attrgetter("row_ids"))
            # A call whose results are shown anyway.
            count -= count > 0 and self._places[count - 1].row_ids[-1] >= before
            places = self._places[:count]
        similarity = self._similarity(places, question, context)
        ordered = map(places.__getitem__, _best_first(similarity))
        # One token for each row beside its tags is the least that is shown.
        order = [place for place in ordered if place.tag_tokens + len(place.row_ids) <= message_limit]
        tokens = [min(place.tokens, message_limit) for place in order]
        return [order[i].row_ids for i in fit_tokens(tokens, limit)]

    def nearest(self, question: str, most: int) -> list[tuple[tuple[int, ...], float]]:
        """The rows of the messages most similar to a question, each with its similarity in 0..1, the best first.

        The best one has 1. None without a word in common.
        """
        with self._guard:
            places = list(self._places)
        similarity = self._similarity(places, question, ())
        similarity = similarity / (similarity.max(initial=0.0) or 1.0)
        return [(places[i].row_ids, float(similarity[i])) for i in _best_first(similarity)[:most]]

    def entries(self, rows: Sequence[LogRow], question: str, limit: int) -> list[Entry]:
        """The rows of one message as they are shown, each with its date; [] if there is no room for a word of each.

        Of a message that has more than ``limit`` tokens, the part with the words of the question is shown; without a
        question its two ends.
        """
        wanted = set(terms_of(question))
        clip = partial(excerpt, counter=self._counter, wanted=wanted, terms=terms_of) if wanted else None
        shown = clip_entries(self._whole(rows), limit, self._counter, clip)
        fits = sum(entry.tokens for entry in shown) <= limit
        return shown if fits and all(entry.body.strip() for entry in shown) else []

    def _similarity(self, places: Sequence[_Place], question: str, context: Sequence[str]) -> NDArray[np.float64]:
        """The similarity of each message, raised by that of the more similar of its two neighbours."""
        ids = [str(place.row_ids[0]) for place in places]
        similarity = similarities_with_context(self._ranker, ids, question, context, _EARLIER_WEIGHT)
        around = np.pad(similarity, 1)
        raised: NDArray[np.float64] = similarity + _NEIGHBOUR_SHARE * np.maximum(around[:-2], around[2:])
        return raised

    def _whole(self, rows: Sequence[LogRow]) -> list[Entry]:
        found = (entry_of(row.id, row.message, self._counter, self._tags, day=shown_day(row)) for row in rows)
        return [entry for entry in found if entry is not None]

    def _hear(self, row: LogRow) -> None:
        """Let a row wait until the next message has come, with the words that it is found by."""
        message = row.message
        speech = spoken(message)
        if speech:
            self._follow_turns(speech, is_question=message.role == MessageRole.USER)
        words = (speech or body_of(message))[:_INDEXED_CHARACTERS]
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

    def _follow_turns(self, speech: str, *, is_question: bool) -> None:
        if is_question or not self.turns:
            self.turns = [*self.turns[2 - CONTEXT_TURNS :], [speech]]
        else:
            self.turns[-1] = [*self.turns[-1], speech]

    def _index(self, units: Sequence[_Unit], *, with_newest: bool) -> None:
        if self._has_newest:
            self._places.pop()
        documents = [document for unit, after in pairwise(units) if (document := self._document(unit, after))]
        newest = None
        if with_newest:
            words_before, newest = self._words_before, self._document(units[-1], None)
            self._words_before = words_before
        self._has_newest = newest is not None
        # All at once, for each call brings the lengths of all rows up to date.
        self._ranker.add([*documents, newest] if newest else documents)

    def _document(self, unit: _Unit, after: _Unit | None) -> Document | None:
        """A unit as it is found; None if there is nothing of it to show."""
        # The results of a call that comes next may not have come yet.
        beside = (self._words_before, after.first_words[:_NEIGHBOUR_CHARACTERS] if after else "")
        self._words_before = unit.words[:_NEIGHBOUR_CHARACTERS]
        whole = self._whole(unit.rows)
        if not whole:
            return None
        tags = sum(self._counter.count(entry.opening + CLOSING) for entry in whole)
        tokens = sum(entry.tokens for entry in whole)
        self._places.append(_Place(tuple(row.id for row in unit.rows), tokens, tags))
        written_at = unit.rows[0].written_at
        day = date_words(written_at.date()) if written_at else ""
        context = tuple((words, CONTEXT_SHARE) for words in beside if words)
        return Document(str(unit.rows[0].id), unit.words, context, day)


def shown_day(row: LogRow) -> str:
    """The day (UTC) on which a row was written, as 2026-11-20; "" where that is unknown."""
    return row.written_at.date().isoformat() if row.written_at else ""


def _best_first(similarity: NDArray[np.float64]) -> list[int]:
    """The places of what is similar at all, the most similar first; ties: the newest first."""
    found = np.flatnonzero(similarity)
    order: list[int] = found[np.lexsort((-found, -similarity[found]))].tolist()
    return order
