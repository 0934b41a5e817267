"""Indexes the messages of a session, so that a question finds them by their words."""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from llama_index_memory_ext.record.entry import clip_entries, day_heading
from llama_index_memory_ext.search import tfidf
from llama_index_memory_ext.search.embeddings import EmbeddingRanker
from llama_index_memory_ext.search.languages import languages_of, terms_in
from llama_index_memory_ext.search.tokenization import date_words
from llama_index_memory_ext.text.cutting import excerpt
from llama_index_memory_ext.text.messages import INSTRUCTION_ROLES, body_of, entry_of, spoken, tokens_of, turns_in
from llama_index_memory_ext.text.tool_calls import calls_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_memory_ext.search.embeddings import VectorKeeper
    from llama_index_memory_ext.store.rows import LogRow
    from llama_index_memory_ext.text.messages import Entry
    from llama_index_memory_ext.text.tokens import TokenCounter

# The tool whose results repeat what is in the log. They are not found as if they were said in the conversation.
SEARCH_TOOL = "search_memory"
# A message is also found by the two turns before the question. Each weighs half of what it does for facts, because
# these turns mostly stand in the record themselves.
CONTEXT_TURNS = 3
_EARLIER_WEIGHT = 0.1
# The weights of the words of the messages before and after a message, at distance 1, 2 and 3: those that matter for a
# question seldom stand alone.
_NEIGHBOUR_SHARES = (0.2, 0.1, 0.05)
_REACH = len(_NEIGHBOUR_SHARES)
# Only messages with this share of the best one's similarity may have what the record leaves of its limit.
WORTH_MORE = 0.15
# The epoch of an index in which something went wrong: that of no log, so that it is made anew.
BROKEN = -1
_INDEXED_CHARACTERS, _NEIGHBOUR_CHARACTERS = 20_000, 2_000


class _Unit(NamedTuple):
    """A message, or a call with its results: the rows, and the words of each."""

    rows: list[LogRow]
    words: list[str]

    @property
    def text(self) -> str:
        """All of its words."""
        return "\n".join(self.words)


class Place(NamedTuple):
    """A message in the index: its rows, its day, and its tokens when recalled; ``tag_tokens`` are those of its tags."""

    row_ids: tuple[int, ...]
    day: str
    tokens: int
    tag_tokens: int


class Room(NamedTuple):
    """The tokens for recalled messages: ``limit`` for any, ``most`` together with those that are ``WORTH_MORE``.

    One message may have ``message_limit`` of them.
    """

    limit: int
    most: int
    message_limit: int


class MessageIndex:
    """The messages of one session, indexed for questions: a call and its results together, all others one by one.

    A message is found by its own words, by the day on which it was said and, with less weight, by the words of the
    messages around it on the same day. So the last ones are indexed again when others come. Threads may call at the
    same time. ``epoch`` is that of the log, and ``tags`` are element names, besides our own, that no text must be able
    to forge; ``languages`` are those in which questions may be, None for any.
    """

    def __init__(
        self,
        epoch: int,
        counter: TokenCounter,
        tags: tuple[str, ...] = (),
        languages: tuple[str, ...] | None = None,
    ) -> None:
        self.epoch = epoch
        self.newest = 0
        # Replaced and never changed, because it is read while another thread indexes.
        self.turns: list[list[str]] = []
        self._counter, self._tags, self._languages = counter, tags, languages
        self._day_tokens = counter.count(day_heading("2026-11-20"))
        self._ranker: tfidf.FactRanker = tfidf.TfidfRanker(languages=languages)
        # Ranks instead, once there is a model for it.
        self.embeddings: EmbeddingRanker | None = None
        self._places: list[Place] = []
        # The last ones, whose neighbours may still come, and the neighbours before them.
        self._units: list[_Unit] = []
        self._is_echo = False
        self._lock = threading.Lock()

    def embed_with(self, model: BaseEmbedding, keeper: VectorKeeper) -> EmbeddingRanker:
        """Let messages that are taken from now on be ranked by their embeddings, too; returns what ranks them."""
        self._ranker = self.embeddings = EmbeddingRanker(model, lexical=self._ranker, keeper=keeper)
        return self.embeddings

    def drop(self) -> None:
        """Let it be made anew."""
        self.epoch = BROKEN

    def take(self, rows: Iterable[LogRow]) -> None:
        """Index rows, oldest first, but for known ones."""
        with self._lock:
            new = [row for row in rows if row.id > self.newest]
            if not new:
                return
            first = max(len(self._units) - _REACH - 1, 0)
            for row in new:
                self._add(row)
                self.newest = row.id
            self._index(first)
            del self._units[: -2 * _REACH - 1]

    def ranked(self, question: str, context: Sequence[str] = (), before: float = math.inf) -> list[tuple[Place, float]]:
        """Returns the messages that match a question, each with its similarity, in (0, 1], 1 for the best one.

        The best come first, of equal ones the newest. [] without a word in common. ``context`` is the text of each turn
        before, oldest first. Only messages whose rows are all before the row ``before`` are found.
        """
        with self._lock:
            places = [place for place in self._places if place.row_ids[-1] < before]
        ids = [str(place.row_ids[0]) for place in places]
        similarity = tfidf.similarities_with_context(self._ranker, ids, question, context, _EARLIER_WEIGHT)
        found = np.flatnonzero(similarity)
        best_first = found[np.lexsort((-found, -similarity[found]))]
        return [(places[i], float(similarity[i])) for i in best_first]

    def search(self, question: str, context: Sequence[str], room: Room, *, before: int) -> list[tuple[int, ...]]:
        """Returns the rows of the best messages of ``ranked`` that fit, clipped, under the headings of their days."""
        return [place.row_ids for place in fit_places(self.ranked(question, context, before), room, self._day_tokens)]

    def entries(self, rows: Sequence[LogRow], question: str, limit: int, *, brief: bool = True) -> list[Entry]:
        """Returns the rows of one message as they are recalled; [] if there is no room for a word of each.

        Of more than ``limit`` tokens, the part with the words of the question is shown; without one, the two ends.
        """
        codes = languages_of(question, self._languages)
        terms = partial(terms_in, codes=codes)
        wanted = set(terms(question))
        clip = partial(excerpt, counter=self._counter, wanted=wanted, terms=terms) if wanted else None
        shown = clip_entries(self._whole(rows, brief=brief), limit, self._counter, clip)
        fits = tokens_of(shown) <= limit
        return shown if fits and all(entry.body.strip() for entry in shown) else []

    def _whole(self, rows: Sequence[LogRow], *, brief: bool = True) -> list[Entry]:
        found = (
            entry_of(row.id, row.message, self._counter, self._tags, speaker=row.speaker, brief=brief) for row in rows
        )
        return [entry for entry in found if entry is not None]

    def _add(self, row: LogRow) -> None:
        """Add a row to the units that are to be indexed, with the words by which it is found."""
        message = row.message
        speech = spoken(message)
        if speech:
            self.turns = turns_in([message], self.turns)[1 - CONTEXT_TURNS :]
        words = (speech or body_of(message))[:_INDEXED_CHARACTERS]
        if not row.is_result:
            self._is_echo = {call.name for call in calls_of(message)} == {SEARCH_TOOL}
            if words.strip() and row.role not in INSTRUCTION_ROLES and not self._is_echo:
                self._units.append(_Unit([row], [words]))
        elif self._units and not self._is_echo:
            self._units[-1].rows.append(row)
            self._units[-1].words.append(words)

    def _index(self, first: int) -> None:
        """Index the units from a place on, those that are indexed again, too."""
        texts, days = [unit.text for unit in self._units], [shown_day(unit.rows[0]) for unit in self._units]
        again = {unit.rows[0].id for unit in self._units[first:]}
        while self._places and self._places[-1].row_ids[0] in again:
            self._places.pop()
        documents: list[tfidf.Document] = []
        for i, unit in list(enumerate(self._units))[first:]:
            place, said_at = self._place(unit), unit.rows[0].said_at
            if place:
                self._places.append(place)
                day = date_words(said_at.date()) if said_at else ""
                documents.append(tfidf.Document(str(place.row_ids[0]), texts[i], neighbours(i, texts, days), day))
        self._ranker.add(documents)

    def _place(self, unit: _Unit) -> Place | None:
        """Returns the place of a unit; None if it has nothing to be shown."""
        whole = self._whole(unit.rows)
        tags = sum(self._counter.count("".join(entry.tags)) for entry in whole)
        row_ids = tuple(row.id for row in unit.rows)
        return Place(row_ids, shown_day(unit.rows[0]), tokens_of(whole), tags) if whole else None


def neighbours(place: int, texts: Sequence[str], days: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """Returns the texts around one of a conversation, of the same day, each with its weight."""
    around = [(place + sign * i, share) for i, share in enumerate(_NEIGHBOUR_SHARES, 1) for sign in (-1, 1)]
    known = ((i, share) for i, share in around if 0 <= i < len(texts) and days[i] == days[place])
    return tuple((texts[i][:_NEIGHBOUR_CHARACTERS], share) for i, share in known)


def fit_places(ranked: Iterable[tuple[Place, float]], room: Room, day_tokens: int) -> list[Place]:
    """Returns the messages that fit, best first; ``day_tokens`` are those of the heading above a day's messages."""
    found: list[Place] = []
    days: set[str] = set()
    used = 0
    for place, similarity in ranked:
        tokens = min(place.tokens, room.message_limit) + (0 if place.day in days else day_tokens)
        # The tags and one token for each row are the least that is shown.
        is_legible = place.tag_tokens + len(place.row_ids) <= room.message_limit
        if is_legible and used + tokens <= (room.most if similarity >= WORTH_MORE else room.limit):
            found.append(place)
            days.add(place.day)
            used += tokens
    return found


def shown_day(row: LogRow) -> str:
    """Returns the day (UTC) on which a row was said as 2026-11-20; "" where it is unknown."""
    said_at = row.said_at
    return said_at.date().isoformat() if said_at else ""
