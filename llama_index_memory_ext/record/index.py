"""The index of the messages of a session: finds the messages that match a question, and fits them into a budget."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from datetime import date, tzinfo
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from llama_index.core.base.llms.types import MessageRole

from llama_index_memory_ext.background.locks import thread_lock
from llama_index_memory_ext.record.text import clip_entries, entries_of
from llama_index_memory_ext.search import tfidf
from llama_index_memory_ext.store.rows import LogRow, day_of, times_of
from llama_index_memory_ext.text.entries import (
    INSTRUCTION_ROLES,
    Entry,
    body_of,
    plain_entry,
    tokens_of,
)
from llama_index_memory_ext.text.limits import excerpt
from llama_index_memory_ext.text.messages import calls_of, now_in, tool_call_groups
from llama_index_memory_ext.text.parts import DAY_HEADING
from llama_index_memory_ext.text.turns import spoken, turns_in
from llama_index_memory_ext.words.asking import change_words
from llama_index_memory_ext.words.dates import Period, date_words, relative_periods
from llama_index_memory_ext.words.pronouns import USER, speaker_asked_for
from llama_index_memory_ext.words.tokens import languages_of, terms_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from llama_index_memory_ext.search.embeddings import EmbeddingRanker
    from llama_index_memory_ext.text.tokens import TokenCounter

# The results of this tool repeat the log. They are not indexed.
SEARCH_TOOL = "search_memory"
# The question and the two turns before it find messages. A turn weighs half as much as
# for facts, because the record mostly shows these turns.
CONTEXT_TURNS = 3
_EARLIER_WEIGHT = 0.1
# The weights of the words of the messages before and after a message, at distance 1, 2
# and 3: the messages that answer a question seldom stand alone.
NEIGHBOUR_SHARES = (0.2, 0.1, 0.05)
# A message that ends with a question mark seldom answers a question, and the message
# behind it often does: the first keeps this share of its similarity, and the second
# gains this share of it.
_QUESTION_SHARE = 0.8
_ANSWER_SHARE = 0.15
# A question with "I" weighs the user's messages by this factor, and a question with
# "you" the assistant's.
_SPEAKER_FACTOR = 1.6
_QUESTION_MARKS = ("?", "\uff1f", "\u061f")
# The order in which messages get room: `similarity / max(tokens, 100) ** 0.4`. So a
# long reply comes behind several short messages that fit as well.
SHORT_TOKENS = 100
_LENGTH_POWER = 0.4
_MOST_RANKED = 1_000
# The most matching messages of the record that are read for changes, which a prompt
# repeats. Reading a message for changes takes 40 microseconds.
_MOST_REPEATED = 10
# A message of the time that the question names gains this share of the best similarity.
_TIME_SHARE = 1.0
# No log has this epoch, so a broken index is made anew.
_BROKEN = -1
_INDEXED_CHARACTERS = 20_000


class IndexedMessage(NamedTuple):
    """A message in the index: its rows and its day."""

    row_ids: tuple[int, ...]
    day: str


class RankedMessage(NamedTuple):
    """A message in the index, its similarity to a question, in (0, 1], and its tokens when it is recalled."""

    message: IndexedMessage
    similarity: float
    tokens: int


class RecallBudget(NamedTuple):
    """The tokens for recalled messages.

    Attributes:
        limit: The most tokens.
        record_share: The share of its tokens that a matching message of the record uses
            up.
    """

    limit: int
    record_share: float = 0.0


class Fitting(NamedTuple):
    """The messages that fit the budget of a question.

    Attributes:
        messages: The messages to recall, the message with the most worth first.
        record_rows: The first rows of the best ten matching messages in the record.
    """

    messages: list[RankedMessage]
    record_rows: frozenset[int] = frozenset()


class _Matches(NamedTuple):
    """The messages of an index that match a question.

    Attributes:
        messages: All messages of the index.
        tokens: The tokens of each message when it is recalled.
        similarity: The similarity of each message. ``_matches`` divides by the best;
            ``fitting`` divides again by the best message that is older than the record.
        order: The places of the best 1,000 messages that match, best first.
    """

    messages: Sequence[IndexedMessage]
    tokens: NDArray[np.intc]
    similarity: tfidf.Values
    order: NDArray[np.intp]

    def ranked(self, place: int) -> RankedMessage:
        """Return the message at a place with its similarity and tokens."""
        return RankedMessage(
            self.messages[place],
            float(self.similarity[place]),
            int(self.tokens[place]),
        )

    def rows_from(self, start: int) -> frozenset[int]:
        """Return the first rows of the best ten matching messages from this place on."""
        places = self.order[self.order >= start][:_MOST_REPEATED].tolist()
        return frozenset(self.messages[place].row_ids[0] for place in places)


class MessageIndex:
    """The messages of one session, indexed for questions. A call and its results are one message.

    A message is found by its own words, its speaker and its day. The words of the
    messages around it on the same day have less weight. Threads may call at the same
    time.

    Attributes:
        epoch: The epoch of the log.
        newest: The last row that is indexed.
        turns: The texts of the last turns, without the current question.
        embeddings: Ranks the messages by meaning, too; None: by words alone.
    """

    def __init__(
        self,
        epoch: int,
        counter: TokenCounter,
        tags: tuple[str, ...] = (),
        languages: tuple[str, ...] | None = None,
        time_zone: tzinfo | None = None,
    ) -> None:
        """Make an empty index.

        Args:
            epoch: The epoch of the log.
            counter: Counts the tokens of the messages.
            tags: The names of elements that no text can forge, beside our own.
            languages: The languages of questions; None for any.
            time_zone: Tells the days; None: as ``times_of``.
        """
        self.epoch = epoch
        self.newest = 0
        # Replaced and never changed, because it is read while another thread indexes.
        self.turns: list[list[str]] = []
        self.ranker: tfidf.FactRanker = tfidf.TfidfRanker(
            neighbour_shares=NEIGHBOUR_SHARES,
            languages=languages,
        )
        self.embeddings: EmbeddingRanker | None = None
        self._counter = counter
        self._tags = tags
        self._languages = languages
        self._time_zone = time_zone
        # The offset of the newest message.
        self._offset: tzinfo | None = None
        self._day_tokens = counter.count(DAY_HEADING.format("2026-11-20"))
        # By message: its tokens when it is recalled, whether it ends as a question, and
        # whether the user said it.
        self._messages: list[IndexedMessage] = []
        self._tokens = array("i")
        self._questions = array("b")
        self._of_user = array("b")
        # The ids of the messages in the ranker.
        self._ids: list[str] = []
        # The rows of the last message, whose results may still come.
        self._last_rows: list[LogRow] = []
        self._lock = thread_lock()

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def today(self) -> date:
        """The current day in the time zone, or else at the offset of the newest message."""
        return now_in(self._time_zone or self._offset).date()

    @property
    def is_broken(self) -> bool:
        """Whether the index must be made anew."""
        return self.epoch == _BROKEN

    def drop(self) -> None:
        """Mark the index as broken."""
        self.epoch = _BROKEN

    def add(self, rows: Iterable[LogRow]) -> None:
        """Index rows, oldest first; skip rows that are indexed."""
        with self._lock:
            new = [row for row in rows if row.id > self.newest]
            if not new:
                return
            indexed_rows = len(self._last_rows)
            groups = tool_call_groups([*self._last_rows, *new])
            turns = turns_in([row.message for row in new], self.turns)
            self.turns = turns[1 - CONTEXT_TURNS :]
            self._last_rows = groups[-1]
            if len(groups[0]) == indexed_rows:
                del groups[0]
            else:
                # A call is indexed again with its results.
                self._remove_last(groups[0][0].id)
            self._index_groups([group for group in groups if _is_indexed(group[0])])
            self.newest = new[-1].id

    def _remove_last(self, row_id: int) -> None:
        """Remove the last message if it begins with this row, but not from the ranker."""
        if self._ids[-1:] != [str(row_id)]:
            return
        for values in (
            self._messages,
            self._ids,
            self._tokens,
            self._questions,
            self._of_user,
        ):
            values.pop()

    def _index_groups(self, groups: Sequence[Sequence[LogRow]]) -> None:
        """Index groups of rows: a message, or a call with its results."""
        if not groups:
            return
        times = times_of([rows[0] for rows in groups], self._time_zone, self._offset)
        if times[-1]:
            self._offset = times[-1].tzinfo
        documents: list[tfidf.Document] = []
        for rows, day in zip(groups, map(day_of, times), strict=True):
            tokens = tokens_of(entries_of(rows, self._counter, self._tags, brief=True))
            if not tokens:
                continue
            first = rows[0]
            text = "\n".join(map(_words_of, rows))
            self._messages.append(IndexedMessage(tuple(row.id for row in rows), day))
            self._tokens.append(tokens)
            self._questions.append(text.rstrip().endswith(_QUESTION_MARKS))
            self._of_user.append(first.role == MessageRole.USER.value)
            self._ids.append(str(first.id))
            words = first.speaker
            number = 0
            if day:
                said_on = date.fromisoformat(day)
                words += f" {date_words(said_on)}"
                number = said_on.toordinal()
            documents.append(
                tfidf.Document(self._ids[-1], text, date=words, sequence=number)
            )
        self.ranker.add(documents)

    def ranked(self, question: str) -> list[RankedMessage]:
        """Return the best 1,000 messages that match a question, best first; [] if no message is similar.

        The similarity of the best message is 1. Of equal messages the newest comes
        first.
        """
        matches = self._matches(question)
        return [matches.ranked(place) for place in matches.order.tolist()]

    def _matches(self, question: str, context: Sequence[str] = ()) -> _Matches:
        with self._lock:
            messages = [*self._messages]
            ids = tuple(self._ids)
            tokens = np.array(self._tokens, np.intc)
            questions = np.array(self._questions, bool)
            of_user = np.array(self._of_user, bool)
        similarity = tfidf.similarities_with_context(
            self.ranker,
            ids,
            question,
            context,
            _EARLIER_WEIGHT,
            change_words(question),
        )
        similarity = favour_answers(questions, similarity)
        codes = languages_of(question, self._languages)
        speaker = speaker_asked_for(question, codes)
        similarity = favour_speaker(of_user, speaker, similarity)
        similarity = tfidf.divided_by_best(similarity)
        periods = relative_periods(question.casefold(), self.today)
        similarity += _TIME_SHARE * said_within(messages, periods)
        similarity = tfidf.divided_by_best(similarity)
        newest_first = np.flatnonzero(similarity)[::-1]
        if len(newest_first) > _MOST_RANKED:
            # Sorting all of them takes longer than the search.
            least = np.partition(similarity, -_MOST_RANKED)[-_MOST_RANKED]
            newest_first = newest_first[similarity[newest_first] >= least]
        order = newest_first[np.argsort(-similarity[newest_first], kind="stable")]
        return _Matches(messages, tokens, similarity, order[:_MOST_RANKED])

    def fitting(
        self,
        question: str,
        context: Sequence[str],
        record_row: int,
        budget: RecallBudget,
        message_limit: int,
    ) -> Fitting:
        """Return the matching messages that fit a budget; the headings of their days count, too.

        The messages with the highest ``similarity / max(tokens, 100) ** 0.4`` come
        first. Each counts at most ``message_limit`` tokens. Messages from ``record_row``
        on are in the record: they are not recalled, but use up a part of the budget.
        ``context`` is the text of each turn before the question, oldest first.
        """
        matches = self._matches(question, context)
        record_start = bisect_left(
            matches.messages, record_row, key=lambda message: message.row_ids[-1]
        )
        best = matches.similarity[:record_start].max(initial=0.0)
        if not best:
            return Fitting([])
        matches = matches._replace(similarity=matches.similarity / best)
        tokens = np.minimum(matches.tokens[matches.order], message_limit)
        length = np.maximum(tokens, SHORT_TOKENS) ** _LENGTH_POWER
        worth = matches.similarity[matches.order] / length
        fewest_tokens = tokens.min(initial=message_limit)
        recalled: list[RankedMessage] = []
        days: set[str] = set()
        used = 0.0
        most_worth_first = np.argsort(-worth, kind="stable")
        places = matches.order[most_worth_first]
        for place, message_tokens in zip(
            places.tolist(), tokens[most_worth_first].tolist(), strict=True
        ):
            if used + fewest_tokens > budget.limit:
                break
            if place >= record_start:
                used += budget.record_share * min(message_tokens, SHORT_TOKENS)
                continue
            day = matches.messages[place].day
            cost = message_tokens
            if day not in days:
                cost += self._day_tokens
            if used + cost > budget.limit:
                continue
            used += cost
            days.add(day)
            recalled.append(matches.ranked(place))
        return Fitting(recalled, matches.rows_from(record_start))

    def clip_for(self, question: str) -> Callable[[str, int], str]:
        """Return a function that clips a text to the sentences with words of a question."""
        terms = partial(terms_in, codes=languages_of(question, self._languages))
        wanted = set(terms(question))
        return partial(excerpt, counter=self._counter, wanted=wanted, terms=terms)

    def entries(
        self,
        rows: Sequence[LogRow],
        tokens: int,
        limit: int,
        clip: Callable[[str, int], str],
    ) -> list[Entry]:
        """Return the entries of the rows of one message; [] if a row would be left without a word.

        The message has ``tokens`` tokens. ``clip`` shortens a message of more than
        ``limit`` tokens.
        """
        if len(rows) == 1 and tokens <= limit:
            row = rows[0]
            entry = plain_entry(
                row.id, row.data, tokens, self._tags, speaker=row.speaker
            )
            if entry is not None:
                return [entry]
        entries = clip_entries(
            entries_of(rows, self._counter, self._tags, brief=True),
            limit,
            self._counter,
            clip,
        )
        fits = tokens_of(entries) <= limit
        if fits and all(entry.body.strip() for entry in entries):
            return entries
        return []


def _is_indexed(row: LogRow) -> bool:
    """Return whether a message with this first row is indexed: no instructions, calls of a search, or results."""
    names = {call.name for call in calls_of(row.message)}
    return not (
        row.is_result or row.role in INSTRUCTION_ROLES or names == {SEARCH_TOOL}
    )


def _words_of(row: LogRow) -> str:
    message = row.message
    words = spoken(message) or body_of(message)
    return words[:_INDEXED_CHARACTERS]


def favour_answers(
    questions: NDArray[np.bool_], similarity: tfidf.Values
) -> tfidf.Values:
    """Return the similarities, lower for questions and higher for the message behind each question.

    ``questions``: for each message, whether it ends with a question mark.
    """
    favoured = np.where(questions, _QUESTION_SHARE * similarity, similarity)
    favoured[1:] += _ANSWER_SHARE * np.where(questions, similarity, 0.0)[:-1]
    return favoured


def favour_speaker(
    of_user: NDArray[np.bool_], speaker: str, similarity: tfidf.Values
) -> tfidf.Values:
    """Return the similarities, higher for the messages of the ``speaker``; "" favours no message.

    ``of_user``: for each message, whether the user said it.
    """
    if not speaker:
        return similarity
    is_favoured = of_user == (speaker == USER)
    return np.where(is_favoured, _SPEAKER_FACTOR * similarity, similarity)


def said_within(
    messages: Sequence[IndexedMessage], periods: Iterable[Period]
) -> tfidf.Values:
    """Return 1 for each message of a day in one of the periods, and 0 for any other message."""
    values = np.zeros(len(messages))
    for period in periods:
        start = period.start.isoformat()
        end = period.end.isoformat()
        for i, message in enumerate(messages):
            if start <= message.day <= end:
                values[i] = 1.0
    return values
