"""Indexes the messages of a session, so that a question finds them by their words."""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from llama_index_memory_ext.record.entry import clip_entries
from llama_index_memory_ext.search import tfidf
from llama_index_memory_ext.search.embeddings import EmbeddingRanker
from llama_index_memory_ext.search.tokenization import date_words, terms_of
from llama_index_memory_ext.text.cutting import excerpt
from llama_index_memory_ext.text.messages import INSTRUCTION_ROLES, body_of, entry_of, spoken, tokens_of, turns_in
from llama_index_memory_ext.text.tokens import fit_tokens
from llama_index_memory_ext.text.tool_calls import calls_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_memory_ext.search.embeddings import VectorKeeper
    from llama_index_memory_ext.store.readers import LogRow
    from llama_index_memory_ext.text.messages import Entry
    from llama_index_memory_ext.text.tokens import TokenCounter

# The tool whose results repeat what is in the log. They are not found as if they were said in the conversation.
SEARCH_TOOL = "search_memory"
# A message is also found by the two turns before the question. Each weighs half of what it does for facts, because
# these turns mostly stand in the record themselves.
CONTEXT_TURNS = 3
_EARLIER_WEIGHT = 0.1
# A message gets this share of its more similar neighbour's similarity: relevant messages seldom stand alone.
_NEIGHBOUR_SHARE = 0.5
_INDEXED_CHARACTERS, _NEIGHBOUR_CHARACTERS = 20_000, 2_000


class _Unit(NamedTuple):
    """A message, or a call with its results: the rows, and the words of each."""

    rows: list[LogRow]
    words: list[str]


_NO_UNIT = _Unit([], [""])


class Place(NamedTuple):
    """A message in the index: its rows, and the tokens that it has, of which ``tag_tokens`` are those of its tags."""

    row_ids: tuple[int, ...]
    tokens: int
    tag_tokens: int


class MessageIndex:
    """The messages of one session, indexed for questions: a call and its results together, all others one by one.

    A message is found by its own words, by the day on which it was written and, with less weight, by the words of its
    neighbours. So it is indexed when the next one has come. Only a search also needs the newest one, which is indexed
    again later. Threads may call at the same time. ``epoch`` is that of the log, and ``tags`` are element names,
    besides our own, that no text must be able to forge.
    """

    def __init__(self, epoch: int, counter: TokenCounter, tags: tuple[str, ...] = ()) -> None:
        self.epoch = epoch
        self.newest = 0
        # Replaced and never changed, because it is read while another thread indexes.
        self.turns: list[list[str]] = []
        self._counter, self._tags = counter, tags
        self._ranker: tfidf.FactRanker = tfidf.TfidfRanker()
        # Ranks instead, once there is a model for it.
        self.embeddings: EmbeddingRanker | None = None
        self._places: list[Place] = []
        # The last one that is indexed for good, and those after it.
        self._units = [_NO_UNIT]
        self._is_echo = False
        self._lock = threading.Lock()

    def embed_with(self, model: BaseEmbedding, keeper: VectorKeeper) -> EmbeddingRanker:
        """Let messages that are taken from now on be ranked by their embeddings, too; returns what ranks them."""
        self._ranker = self.embeddings = EmbeddingRanker(model, lexical=self._ranker, keeper=keeper)
        return self.embeddings

    def take(self, rows: Iterable[LogRow], *, with_newest: bool = False) -> None:
        """Index rows, oldest first, but for known ones; ``with_newest``: even the newest, although no next has come."""
        with self._lock:
            new = [row for row in rows if row.id > self.newest]
            newest = self._units[-1].rows
            if (new or with_newest) and newest and self._places and self._places[-1].row_ids[0] == newest[0].id:
                # It is indexed again, now with the words of the next one.
                self._places.pop()
            for row in new:
                self._add(row)
                self.newest = row.id
            units = [*self._units, _NO_UNIT] if with_newest else self._units
            self._index(list(zip(units, units[1:], units[2:], strict=False)))
            del self._units[:-2]

    def ranked(self, question: str, context: Sequence[str] = (), before: float = math.inf) -> list[tuple[Place, float]]:
        """Returns the messages that match a question, each with its similarity, in (0, 1], 1 for the best one.

        The best come first, of equal ones the newest. [] without a word in common. ``context`` is the text of each turn
        before, oldest first. Only messages whose rows are all before the row ``before`` are found.
        """
        with self._lock:
            places = [place for place in self._places if place.row_ids[-1] < before]
        ids = [str(place.row_ids[0]) for place in places]
        similarity = tfidf.similarities_with_context(self._ranker, ids, question, context, _EARLIER_WEIGHT)
        around = np.pad(similarity, 1)
        similarity = tfidf.divided_by_best(similarity + _NEIGHBOUR_SHARE * np.maximum(around[:-2], around[2:]))
        found = np.flatnonzero(similarity)
        best_first = found[np.lexsort((-found, -similarity[found]))]
        return [(places[i], float(similarity[i])) for i in best_first]

    def search(
        self, question: str, context: Sequence[str], *, before: int, limit: int, message_limit: int
    ) -> list[tuple[int, ...]]:
        """Returns the rows of the best messages of ``ranked``; clipped to ``message_limit`` they fit into ``limit``."""
        ranked = (place for place, _ in self.ranked(question, context, before))
        # The tags and one token for each row are the least that is shown.
        found = [place for place in ranked if place.tag_tokens + len(place.row_ids) <= message_limit]
        return [found[i].row_ids for i in fit_tokens([min(place.tokens, message_limit) for place in found], limit)]

    def entries(self, rows: Sequence[LogRow], question: str, limit: int) -> list[Entry]:
        """Returns the rows of one message as they are shown; [] if there is no room for a word of each.

        Of more than ``limit`` tokens, the part with the words of the question is shown; without one, the two ends.
        """
        wanted = set(terms_of(question))
        clip = partial(excerpt, counter=self._counter, wanted=wanted, terms=terms_of) if wanted else None
        shown = clip_entries(self._whole(rows), limit, self._counter, clip)
        fits = tokens_of(shown) <= limit
        return shown if fits and all(entry.body.strip() for entry in shown) else []

    def _whole(self, rows: Sequence[LogRow]) -> list[Entry]:
        found = (entry_of(row.id, row.message, self._counter, self._tags, day=shown_day(row)) for row in rows)
        return [entry for entry in found if entry is not None]

    def _add(self, row: LogRow) -> None:
        """Add a row to the units that are to be indexed, with the words by which it is found."""
        message = row.message
        speech = spoken(message)
        if speech:
            self.turns = turns_in([message], self.turns)[1 - CONTEXT_TURNS :]
        words = (speech or body_of(message))[:_INDEXED_CHARACTERS]
        unit = self._units[-1]
        if not row.is_result:
            self._is_echo = {call.name for call in calls_of(message)} == {SEARCH_TOOL}
            if words.strip() and row.role not in INSTRUCTION_ROLES and not self._is_echo:
                self._units.append(_Unit([row], [words]))
        elif unit.rows and not self._is_echo:
            unit.rows.append(row)
            unit.words.append(words)

    def _index(self, units: Sequence[tuple[_Unit, _Unit, _Unit]]) -> None:
        """Index units that can be shown, each given with the unit before and after it."""
        documents: list[tfidf.Document] = []
        for before, unit, after in units:
            whole = self._whole(unit.rows)
            if not whole:
                continue
            tags = sum(self._counter.count("".join(entry.tags)) for entry in whole)
            row_ids = tuple(row.id for row in unit.rows)
            self._places.append(Place(row_ids, tokens_of(whole), tags))
            # The results of a call that comes next may not have come yet.
            around = ("\n".join(before.words)[:_NEIGHBOUR_CHARACTERS], after.words[0][:_NEIGHBOUR_CHARACTERS])
            context = tuple((words, tfidf.CONTEXT_SHARE) for words in around if words)
            written_at = unit.rows[0].written_at
            day = date_words(written_at.date()) if written_at else ""
            documents.append(tfidf.Document(str(row_ids[0]), "\n".join(unit.words), context, day))
        # All at once, for each call brings the lengths of all rows up to date.
        self._ranker.add(documents)


def shown_day(row: LogRow) -> str:
    """Returns the day (UTC) of a row as 2026-11-20; "" where it is unknown."""
    return row.written_at.date().isoformat() if row.written_at else ""
