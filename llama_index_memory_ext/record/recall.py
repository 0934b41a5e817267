"""Recall: finds the messages of a session that match a question, for the record and for a search."""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, tzinfo
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from llama_index.core.base.llms.types import ChatMessage, MessageRole

from llama_index_memory_ext.background.jobs import JobKey, Jobs
from llama_index_memory_ext.background.locks import lock_for, thread_lock
from llama_index_memory_ext.record.text import (
    DAY_HEADING,
    EARLIER_CLOSING,
    EARLIER_OPENING,
    NO_TEXT,
    clip_entries,
    earlier_element,
)
from llama_index_memory_ext.record.window import (
    RecallWhen,
    RecordReader,
    Window,
    entries_of,
)
from llama_index_memory_ext.search import tfidf
from llama_index_memory_ext.search.embeddings import EmbeddingRanker, model_key
from llama_index_memory_ext.store.readers import rows_in_epoch
from llama_index_memory_ext.store.rows import (
    LogRow,
    ReadPosition,
    Snapshot,
    day_of,
    times_of,
)
from llama_index_memory_ext.store.vectors import KeptVectors
from llama_index_memory_ext.text.entries import (
    INSTRUCTION_ROLES,
    Entry,
    body_of,
    plain_entry,
    tokens_of,
)
from llama_index_memory_ext.text.limits import excerpt
from llama_index_memory_ext.text.messages import (
    ASSISTANT_ROLES,
    ID_KEY,
    calls_of,
    now_in,
)
from llama_index_memory_ext.text.tokens import CountedText
from llama_index_memory_ext.text.turns import question_in, spoken, turns_in
from llama_index_memory_ext.words.asking import (
    asking_share,
    asks,
    asks_about_now,
    change_words,
)
from llama_index_memory_ext.words.dates import Period, date_words, relative_periods
from llama_index_memory_ext.words.pronouns import USER, speaker_asked_for
from llama_index_memory_ext.words.tokens import languages_of, terms_in

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from numpy.typing import NDArray

    from llama_index_memory_ext.store.transaction import Transaction
    from llama_index_memory_ext.text.tokens import TokenCounter

# The results of this tool repeat the log. They are not indexed.
SEARCH_TOOL = "search_memory"
# The two turns before a question find messages, too. Each weighs half of its weight for
# facts, because these turns mostly stand in the record themselves.
CONTEXT_TURNS = 3
_EARLIER_WEIGHT = 0.1
# A question with more different terms needs no turns before it.
_ENOUGH_TERMS = 6
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
# Beyond the limit, only messages with this share of the best similarity may have room
# that the record leaves free.
WORTH_MORE = 0.15
# The order in which messages get room: `similarity / max(tokens, 100) ** 0.4`. So a
# long reply comes behind several short messages that fit as well.
_SHORT = 100
_LENGTH_POWER = 0.4
_MOST_RANKED = 1_000
# A message of the time that the question names gains this share of the best similarity.
_TIME_SHARE = 1.0
# A message with a word of a change, such as "moved" for "live", gains this share of the
# best similarity. A question about now takes this share from the oldest message.
_CHANGE_SHARE = 0.15
_AGE_SHARE = 0.3
# No log has this epoch, so a broken index is made anew.
_BROKEN = -1
_INDEXED_CHARACTERS = 20_000
# Of a longer question only the beginning is counted for ``_ENOUGH_TERMS``.
_QUESTION_CHARACTERS = 2_000
LONGEST_MESSAGE_TOKENS = 500
# The share of the limit for one recalled message. Where it is less, a short message is
# shown whole: with 600 tokens, that finds 41 points more on LoCoMo 2 and 4.
_MESSAGE_SHARE = 0.25
# The share for all messages that a question recalls, if the record leaves it free.
_ASKED_SHARE = 1.4
# A text that matches the record more than all older messages recalls less, by this
# power of the ratio, but at least this share. Requests keep all.
_CURRENT_POWER = 4
_LEAST_SHARE = 0.25
# A message of the record that matches takes this share of its tokens, of 100 at most:
# so a question about the current talk recalls less.
_IN_RECORD_SHARE = 0.6
# The share for a text that only tells something, without an embedding model.
_TOLD_SHARE = 0.25
# The weight of the words of such a text with an embedding model.
_STATEMENT_WEIGHT = 0.25
_INDEXED_ROWS = 500
# A new process answers from so many rows until it has indexed the older ones.
_FIRST_ROWS = 2_000
# How long a question waits for messages to be indexed; indexing takes longer than this
# only after a restart.
_INDEX_SECONDS = 1.0
_RETRY_SECONDS = 2.0


class IndexedMessage(NamedTuple):
    """A message in the index: its rows and its day."""

    row_ids: tuple[int, ...]
    day: str


class RankedMessage(NamedTuple):
    """A message in the index, its similarity to a question, in (0, 1], and its tokens when it is recalled."""

    message: IndexedMessage
    similarity: float
    tokens: int


class Fitting(NamedTuple):
    """The messages that fit the budget of a question.

    Attributes:
        shown: The messages that the text recalls.
        heat: The similarity of each message of a single row that fits as a whole, by its
            row; also of messages that only a text without statements would recall.
    """

    shown: list[RankedMessage]
    heat: dict[int, float]


class _Matches(NamedTuple):
    """The messages of an index that match a question.

    Attributes:
        messages: All messages of the index.
        tokens: The tokens of each message when it is recalled.
        similarity: The similarity of each message, at most 1.
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


class _Unit(NamedTuple):
    """A message, or a call with its results: the rows, and the words and the tokens of each row."""

    rows: list[LogRow]
    words: list[str]
    tokens: list[int]


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
        is_partial: Whether the index lacks the oldest rows.
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
        self.is_partial = False
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
        # The last message, whose results may still come; [] before the first.
        self._units: list[_Unit] = []
        self._is_echo = False
        self._lock = thread_lock()

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def today(self) -> date:
        """The current day in the time zone, or else at the offset of the newest message."""
        return now_in(self._time_zone or self._offset).date()

    def drop(self) -> None:
        """Mark the index as broken."""
        self.epoch = _BROKEN

    def take(self, rows: Iterable[LogRow]) -> None:
        """Index rows, oldest first; skip rows that are indexed."""
        with self._lock:
            new = [row for row in rows if row.id > self.newest]
            if not new:
                return
            indexed = [*self._units]
            for row in new:
                self._add_to_units(row)
            if self._units[:1] == indexed:
                self._index_units(self._units[len(indexed) :])
            else:
                self._index_units(self._units)
            self.newest = new[-1].id
            del self._units[:-1]

    @contextmanager
    def extended(self, rows: Iterable[LogRow]) -> Iterator[None]:
        """Index rows behind all others until the context ends."""
        with self._lock:
            before = (self.newest, self.turns, self._is_echo, self._offset)
            units = [*self._units]
            self.take(rows)
        try:
            yield
        finally:
            with self._lock:
                self.newest, self.turns, self._is_echo, self._offset = before
                self._units = units
                self.ranker.remove(self._remove_messages(self.newest + 1))
                self._index_units(self._units)

    def _add_to_units(self, row: LogRow) -> None:
        message = row.message
        speech = spoken(message)
        if speech:
            self.turns = turns_in([message], self.turns)[1 - CONTEXT_TURNS :]
        words = (speech or body_of(message))[:_INDEXED_CHARACTERS]
        if row.is_result:
            if self._units and not self._is_echo:
                unit = self._units[-1]
                # A new object, because ``extended`` may return to the earlier one.
                self._units[-1] = _Unit(
                    [*unit.rows, row],
                    [*unit.words, words],
                    [*unit.tokens, self._count(row)],
                )
            return
        self._is_echo = {call.name for call in calls_of(message)} == {SEARCH_TOOL}
        if self._is_echo or row.role in INSTRUCTION_ROLES:
            return
        if words.strip():
            self._units.append(_Unit([row], [words], [self._count(row)]))

    def _count(self, row: LogRow) -> int:
        return tokens_of(entries_of([row], self._counter, self._tags, brief=True))

    def _index_units(self, units: Sequence[_Unit]) -> None:
        """Index the last units. The last message is indexed again when its results follow."""
        if not units:
            return
        # The ranker keeps the embedding of a message that is indexed again.
        removed_ids = self._remove_messages(units[0].rows[0].id)
        times = times_of(
            [unit.rows[0] for unit in units], self._time_zone, self._offset
        )
        if times[-1]:
            self._offset = times[-1].tzinfo
        documents: list[tfidf.Document] = []
        for unit, day in zip(units, map(day_of, times), strict=True):
            tokens = sum(unit.tokens)
            if not tokens:
                continue
            first = unit.rows[0]
            text = "\n".join(unit.words)
            self._messages.append(
                IndexedMessage(tuple(row.id for row in unit.rows), day)
            )
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
        self.ranker.remove(removed_ids - {document.id for document in documents})
        self.ranker.add(documents)

    def _remove_messages(self, first_row: int) -> set[str]:
        """Remove the messages from a row on, and return their ids, which stay in the ranker."""
        removed_ids = set()
        while self._messages and self._messages[-1].row_ids[0] >= first_row:
            removed_ids.add(self._ids[-1])
            for values in (
                self._messages,
                self._ids,
                self._tokens,
                self._questions,
                self._of_user,
            ):
                values.pop()
        return removed_ids

    def ranked(self, question: str) -> list[RankedMessage]:
        """Return the best 1,000 messages that match a question, best first; [] without a word in common.

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
            self.ranker, ids, question, context, _EARLIER_WEIGHT
        )
        similarity = favour_answers(questions, similarity)
        codes = languages_of(question, self._languages)
        speaker = speaker_asked_for(question, codes)
        similarity = favour_speaker(of_user, speaker, similarity)
        changes = change_words(question)
        if changes:
            changed = tfidf.values_of(self.ranker.similarities(changes), ids)
            similarity += _CHANGE_SHARE * tfidf.divided_by_best(changed)
        if asks_about_now(question):
            age = np.linspace(1.0, 0.0, len(ids))
            similarity *= 1 - _AGE_SHARE * age
        similarity = tfidf.divided_by_best(similarity)
        periods = list(relative_periods(question.casefold(), self.today))
        if periods:
            similarity = tfidf.divided_by_best(
                similarity + _TIME_SHARE * said_within(messages, periods)
            )
        matching = np.flatnonzero(similarity)
        if len(matching) > _MOST_RANKED:
            least = np.partition(similarity, -_MOST_RANKED)[-_MOST_RANKED]
            matching = np.flatnonzero(similarity >= least)
        order = matching[np.lexsort((-matching, -similarity[matching]))]
        return _Matches(messages, tokens, similarity, order[:_MOST_RANKED])

    def fitting(
        self,
        question: str,
        context: Sequence[str],
        before: float,
        budget: RecallBudget,
        message_limit: int,
    ) -> Fitting:
        """Return the messages as ``ranked`` that fit, clipped to ``message_limit``, under headings of their days.

        ``context`` is the text of each turn before the question, oldest first.

        The messages with the highest ``similarity / max(tokens, 100) ** 0.4`` come
        first. Messages from the row ``before`` on are in the record, and take a part of
        the budget.
        """
        matches = self._matches(question, context)
        shown_from = bisect_left(
            matches.messages, before, key=lambda message: message.row_ids[-1]
        )
        best = matches.similarity[:shown_from].max(initial=0.0)
        if not best:
            return Fitting([], {})
        ratio = float(best / matches.similarity.max())
        share = max(ratio**budget.current_power, _LEAST_SHARE)
        matches = matches._replace(similarity=matches.similarity / best)
        tokens = np.minimum(matches.tokens[matches.order], message_limit)
        length = np.maximum(tokens, _SHORT) ** _LENGTH_POWER
        worth = matches.similarity[matches.order] / length
        fewest_tokens = tokens.min(initial=message_limit)
        shown: list[RankedMessage] = []
        heat: dict[int, float] = {}
        days: set[str] = set()
        used = 0.0
        most_worth_first = np.argsort(-worth, kind="stable")
        places = matches.order[most_worth_first]
        rooms = share * np.where(
            matches.similarity[places] >= WORTH_MORE, budget.most, budget.limit
        )
        for place, message_tokens, room in zip(
            places.tolist(),
            tokens[most_worth_first].tolist(),
            rooms.tolist(),
            strict=True,
        ):
            if used + fewest_tokens > share * budget.most:
                break
            if place >= shown_from:
                used += budget.record_share * min(message_tokens, _SHORT)
                continue
            day = matches.messages[place].day
            cost = message_tokens
            if day not in days:
                cost += self._day_tokens
            if used + cost > room:
                continue
            used += cost
            days.add(day)
            ranked = matches.ranked(place)
            if used <= budget.asking_share * room:
                shown.append(ranked)
            if ranked.tokens <= message_limit and len(ranked.message.row_ids) == 1:
                heat[ranked.message.row_ids[0]] = ranked.similarity
        return Fitting(shown, heat)

    def clip_for(self, question: str) -> Callable[[str, int], str]:
        """Return a function that clips a text to the sentences with the words of a question."""
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
        """Return the rows of one message as they are recalled; [] if there is no room for a word of each.

        The whole message has ``tokens`` tokens. ``clip`` shortens a message of more
        than ``limit`` tokens.
        """
        if len(rows) == 1 and tokens <= limit:
            (row,) = rows
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


def favour_answers(
    questions: NDArray[np.bool_], similarity: tfidf.Values
) -> tfidf.Values:
    """Return the similarities, lower for messages that end as a question and higher for those behind them.

    ``questions`` tells of each message whether it does.
    """
    favoured = np.where(questions, _QUESTION_SHARE * similarity, similarity)
    favoured[1:] += _ANSWER_SHARE * np.where(questions, similarity, 0.0)[:-1]
    return tfidf.divided_by_best(favoured)


def favour_speaker(
    of_user: NDArray[np.bool_], speaker: str, similarity: tfidf.Values
) -> tfidf.Values:
    """Return the similarities, higher for the messages of the ``speaker``; "" favours no message.

    ``of_user`` tells of each message whether the user said it.
    """
    if not speaker:
        return similarity
    is_favoured = of_user == (speaker == USER)
    favoured = np.where(is_favoured, _SPEAKER_FACTOR * similarity, similarity)
    return tfidf.divided_by_best(favoured)


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


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message, or a call with its results, that a question finds.

    Attributes:
        similarity: The similarity to the question, 1 for the best message.
        row_ids: The rows of the log.
        role: The role of the first row.
        day: Such as 2026-11-20, or "" where it is unknown.
        text: The text, in which our own tags are escaped.
        message_id: The id in the ``additional_kwargs`` of the message, if the program
            has set it.
        is_whole: Whether the text is not clipped.
    """

    similarity: float
    row_ids: tuple[int, ...]
    role: str
    day: str
    text: str = field(repr=False)
    message_id: str | int | float | None = None
    is_whole: bool = True


class _ShownMessage(NamedTuple):
    """A message that a question has found, and the entries of its rows."""

    message: FoundMessage
    entries: list[Entry]


class RecalledText(NamedTuple):
    """The recalled messages as the record shows them; ``is_cached``: as for the request before."""

    text: CountedText
    is_cached: bool = False


class RecallBudget(NamedTuple):
    """The tokens for recalled messages.

    Attributes:
        limit: The tokens for all messages.
        most: The tokens for messages that are ``WORTH_MORE``.
        current_power: For a text about the record, both are multiplied by ``(best
            similarity of older messages / best of all) ** current_power``, at least
            0.25.
        record_share: The share of its tokens that a message of the record takes.
        asking_share: The share of both for the messages that are shown.
    """

    limit: int
    most: int
    current_power: int = 0
    record_share: float = 0.0
    asking_share: float = 1.0


class _Request(NamedTuple):
    """A question, the state of the index and the room in the record: they decide which messages are recalled."""

    question: str
    context: tuple[str, ...]
    before: int
    budget: RecallBudget
    epoch: int
    newest: int
    today: date


class _Recalled(NamedTuple):
    """The last request in a session, and the messages that it recalled."""

    request: _Request
    text: CountedText


@dataclass(frozen=True)
class MessageSearch:
    """Finds messages of sessions.

    Equal searches of a store share the index of each session, in the cache of the store.
    With an ``embed_model``, messages are embedded in the background, and no question
    waits for that. ``failures`` counts the failures of rankers by type.
    """

    reader: RecordReader
    embed_model: BaseEmbedding | None = field(default=None, repr=False, compare=False)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def _settings(self) -> tuple[object, ...]:
        # The index holds the model, so that no other model has this identity.
        return (self.reader, id(self.embed_model))

    def index(self, session_id: str) -> MessageIndex | None:
        """Return the index of a session; None if nothing was indexed, or it was used too long ago."""
        index: MessageIndex | None = self.reader.store.cache.get(
            session_id, ("index", *self._settings)
        )
        return index

    def _keep(self, session_id: str, index: MessageIndex) -> None:
        """Let all equal searches use this index."""
        self.reader.store.cache.put(
            session_id, ("index", *self._settings), index, len(index)
        )

    @property
    def jobs(self) -> Jobs:
        """The jobs that index sessions."""
        return self.reader.store.jobs.jobs(
            "recall index", "Earlier messages were not indexed"
        )

    @property
    def older_jobs(self) -> Jobs:
        """The jobs that index the older messages of sessions."""
        return self.reader.store.jobs.jobs(
            "older recall index", "Earlier messages were not indexed"
        )

    @property
    def embedding_jobs(self) -> Jobs:
        """The jobs that embed the messages of sessions."""
        return self.reader.store.jobs.jobs(
            "recall embeddings", "Earlier messages were not embedded"
        )

    def embed(self, session_id: str) -> None:
        """Index and embed the new rows of the log in the background."""

        async def embed_log() -> None:
            index = await self._index_log(session_id)
            if index.embeddings is not None:
                await index.embeddings.embed_documents()

        if self.embed_model is not None:
            self.embedding_jobs.start(
                JobKey(session_id, self.reader.name), embed_log, _RETRY_SECONDS
            )

    async def recall(
        self,
        session_id: str,
        messages: Sequence[ChatMessage],
        window: Window,
        snapshot: Snapshot | None = None,
    ) -> RecalledText:
        """Return the messages before the window that match the current question, "" for none.

        They have the tokens of ``recall_budget``. After a restart, a long log is indexed in the
        background, and a question finds the messages that are indexed. A ``snapshot``
        of the session spares a query.
        """
        counter = self.reader.counter
        tags = counter.count(EARLIER_OPENING + EARLIER_CLOSING)
        limit = self.reader.recall_limit - tags
        if limit <= 0:
            return RecalledText(NO_TEXT)
        await self._take_snapshot(session_id, snapshot)
        index = await self._current_index(session_id, window.seen)
        if index is None:
            return RecalledText(NO_TEXT)
        question, context = question_in(messages, index.turns, CONTEXT_TURNS)
        if len(set(terms_in(question[:_QUESTION_CHARACTERS]))) > _ENOUGH_TERMS:
            context = []
        await self._prepare(session_id, index, [question, *context])
        request = _Request(
            question,
            tuple(context),
            window.entries[0].row_id if window.entries else window.seen.last_id + 1,
            recall_budget(
                question,
                limit,
                self.reader.room - window.tokens - tags,
                recall_when=self.reader.recall_when,
                by_meaning=index.embeddings is not None,
            ),
            index.epoch,
            index.newest,
            index.today,
        )
        # An agent asks the same question again after each of its tool calls.
        key = ("recalled", *self._settings)
        last: _Recalled | None = self.reader.store.cache.get(session_id, key)
        if last and last.request == request:
            return RecalledText(last.text, is_cached=True)
        message_limit = max(int(limit * _MESSAGE_SHARE), min(limit, _SHORT))

        heat: dict[int, float] = {}

        def choose() -> list[RankedMessage]:
            fitting = index.fitting(
                question,
                request.context,
                request.before,
                request.budget,
                message_limit,
            )
            heat.update(fitting.heat)
            return sorted(fitting.shown)

        messages_shown = await self._show(
            session_id, index, question, choose, message_limit
        )
        if messages_shown is None:
            # Rows were deleted after the record was read.
            return RecalledText(NO_TEXT)
        self.reader.heat_up(session_id, window, heat)
        text = recalled_text(messages_shown, window.sticky_heat, counter)
        # Vectors may come later, and a failed index is made anew.
        if index.embeddings is None and index.epoch == window.seen.epoch:
            self.reader.store.cache.put(session_id, key, _Recalled(request, text))
        return RecalledText(text)

    async def _take_snapshot(self, session_id: str, snapshot: Snapshot | None) -> None:
        """Index the new rows of a snapshot if it has all rows behind a complete index; nothing without a snapshot."""
        index = self.index(session_id)
        if snapshot is None or index is None or index.is_partial:
            return
        rows = snapshot.log_behind(ReadPosition(index.epoch, last_id=index.newest))
        if rows:
            with tfidf.suppress_failures(
                self.failures, "Earlier messages were not indexed", index.drop
            ):
                await self._take(index, rows)
            self._keep(session_id, index)

    async def _current_index(
        self, session_id: str, seen: ReadPosition
    ) -> MessageIndex | None:
        """Return the index of the log, up to the last row of the record if time allows; None if it is void."""
        index = self.index(session_id)
        if index is None or index.epoch != seen.epoch or index.newest < seen.last_id:
            key = JobKey(session_id, self.reader.name)
            newest = partial(self._index_newest, session_id, seen.epoch)
            self.jobs.start(key, newest, _RETRY_SECONDS)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.jobs.wait(key), _INDEX_SECONDS)
            index = self.index(session_id)
        # After a deletion, other rows may have the ids in the index.
        if index is None or index.epoch != seen.epoch:
            return None
        return index

    async def search(
        self, session_id: str, question: str, *, most: int, message_limit: int
    ) -> list[FoundMessage]:
        """Return the messages most similar to a question, best first, of the log and of answered active turns.

        The search waits until all of them are indexed. It shows ``message_limit``
        tokens of a message, at most 500.
        """
        index = await self._index_log(session_id)
        page = await self.reader.store.readers.unread(
            session_id, "", with_active=True, after=index.newest
        )
        messages = None
        if page.epoch == index.epoch:
            await asyncio.to_thread(index.take, answered_rows(page.rows))
            await self._prepare(session_id, index, [question])
            messages = await self._show(
                session_id,
                index,
                question,
                lambda: index.ranked(question)[:most],
                min(message_limit, LONGEST_MESSAGE_TOKENS),
            )
        if messages is None and index.epoch != _BROKEN:
            # Rows were deleted meanwhile.
            return await self.search(
                session_id, question, most=most, message_limit=message_limit
            )
        return [message for message, _ in messages or []]

    async def _show(
        self,
        session_id: str,
        index: MessageIndex,
        question: str,
        choose: Callable[[], list[RankedMessage]],
        limit: int,
    ) -> list[_ShownMessage] | None:
        """Return the chosen messages that can be shown; None if rows were deleted since they were indexed."""

        def show(tx: Transaction) -> list[_ShownMessage] | None:
            chosen: list[RankedMessage] = []
            with tfidf.suppress_failures(
                self.failures, "Earlier messages were not found", index.drop
            ):
                chosen = choose()
            row_ids = [row_id for ranked in chosen for row_id in ranked.message.row_ids]
            rows = rows_in_epoch(tx, session_id, row_ids, index.epoch)
            if rows is None:
                return None
            return show_messages(index, question, chosen, rows, limit)

        # One job in the thread of the connection: a change of threads costs more than a
        # statement, and the search may take longer than an event loop should be blocked.
        return await self.reader.store.database.run(show, writes=False)

    async def _index_newest(self, session_id: str, epoch: int) -> None:
        """Index the rows behind the index, or the newest 2,000 rows of a log that has no index yet."""
        index = self.index(session_id)
        if index is None or index.epoch != epoch:
            page = await self.reader.store.readers.page(
                session_id, "", ReadPosition(), limit=_FIRST_ROWS
            )
            index = self._make_index(session_id, page.epoch)
            index.is_partial = page.more
            # A question that waits no longer finds the messages so far.
            self._keep(session_id, index)
            for start in range(0, len(page.rows), _INDEXED_ROWS):
                await self._take(index, page.rows[start : start + _INDEXED_ROWS])
        if index.is_partial:
            await self._extend(session_id, index)
            key = JobKey(session_id, self.reader.name)
            older = partial(self._index_log, session_id)
            self.older_jobs.start(key, older, _RETRY_SECONDS)
        else:
            await self._index_log(session_id)

    async def _index_log(self, session_id: str) -> MessageIndex:
        """Return the index with all rows of the log; a new index if rows were deleted."""
        # One task at a time, because two would index the same rows.
        async with lock_for(
            "index", id(self.reader.store), *self._settings, session_id
        ):
            index = self.index(session_id)
            if index is not None and index.is_partial:
                index = None
            while index is None or not await self._extend(session_id, index):
                page = await self.reader.store.readers.unread(session_id, "", limit=1)
                index = self._make_index(session_id, page.epoch)
            self._keep(session_id, index)
            return index

    async def _extend(self, session_id: str, index: MessageIndex) -> bool:
        """Index the rows behind the index; return False if rows were deleted meanwhile."""
        while True:
            page = await self.reader.store.readers.unread(
                session_id, "", after=index.newest, limit=_INDEXED_ROWS
            )
            if page.epoch != index.epoch:
                return False
            if page.rows:
                await self._take(index, page.rows)
            if len(page.rows) < _INDEXED_ROWS:
                return True

    async def _take(self, index: MessageIndex, rows: Sequence[LogRow]) -> None:
        await asyncio.to_thread(index.take, rows)
        if index.embeddings is not None:
            await index.embeddings.load()

    def _make_index(self, session_id: str, epoch: int) -> MessageIndex:
        reader = self.reader
        index = MessageIndex(
            epoch,
            reader.counter,
            (reader.name,),
            reader.languages,
            reader.time_zone,
        )
        model = self.embed_model
        if model is not None:
            keeper = KeptVectors.of_messages(
                reader.store.database, session_id, epoch, model_key(model)
            )
            ranker = EmbeddingRanker(
                model,
                lexical=index.ranker,
                keeper=keeper,
                statement_weight=_STATEMENT_WEIGHT,
            )
            index.ranker = ranker
            index.embeddings = ranker
            reader.store.jobs.watch(ranker)
        return index

    async def _prepare(
        self, session_id: str, index: MessageIndex, queries: Sequence[str]
    ) -> None:
        """Embed questions, and start to embed the other messages."""
        if index.embeddings is not None:
            await index.embeddings.prepare_queries(queries)
            if not index.embeddings.is_complete:
                self.embed(session_id)


def recall_budget(
    question: str,
    limit: int,
    free: int,
    *,
    recall_when: RecallWhen,
    by_meaning: bool,
) -> RecallBudget:
    """Return the budget of recall for a text of the user, of a ``limit`` and ``free`` tokens of the record.

    A question may have four tenths more where they are free. Unless ``recall_when`` is
    "always", messages of the record count, and if words alone find messages, a text has
    the share of its sentences that ask for something, at least a quarter.
    """
    is_question = asks(question)
    most = limit
    if is_question:
        most = max(limit, min(int(limit * _ASKED_SHARE), free))
    if recall_when == "always":
        return RecallBudget(limit, most)
    share = 1.0
    if not by_meaning:
        share = asking_share(question)
    if not share:
        limit = int(limit * _TOLD_SHARE)
        return RecallBudget(limit, limit, _CURRENT_POWER, _IN_RECORD_SHARE)
    power = 0
    if is_question:
        power = _CURRENT_POWER
    return RecallBudget(limit, most, power, _IN_RECORD_SHARE, max(share, _TOLD_SHARE))


def show_messages(
    index: MessageIndex,
    question: str,
    chosen: Iterable[RankedMessage],
    rows: Iterable[LogRow],
    limit: int,
) -> list[_ShownMessage]:
    """Return the chosen messages with a part of ``limit`` tokens that has the words of the question."""
    clip = index.clip_for(question)
    rows_by_id = {row.id: row for row in rows}
    shown_messages = []
    for message, similarity, tokens in chosen:
        stored = [rows_by_id[i] for i in message.row_ids if i in rows_by_id]
        entries = index.entries(stored, tokens, limit, clip)
        if entries:
            found_message = FoundMessage(
                similarity,
                tuple(row.id for row in stored),
                stored[0].role,
                message.day,
                "\n".join(entry.body for entry in entries),
                (stored[0].data.get("additional_kwargs") or {}).get(ID_KEY),
                is_whole=tokens <= limit,
            )
            shown_messages.append(_ShownMessage(found_message, entries))
    return shown_messages


def recalled_text(
    messages: Sequence[_ShownMessage], sticky: Container[int], counter: TokenCounter
) -> CountedText:
    """Return the element of recalled messages without sticky messages; it knows each message with its text."""
    element = earlier_element(
        [
            (message.day, entries)
            for message, entries in messages
            if message.row_ids[0] not in sticky
        ],
        counter,
    )
    matches = [
        (message, "".join(entry.text for entry in entries))
        for message, entries in messages
    ]
    return CountedText(element, element.tokens, matches)


def answered_rows(rows: Sequence[LogRow]) -> Sequence[LogRow]:
    """Return the rows before the last question if it has no answer yet: a question must not find itself."""
    if not rows:
        return rows
    newest = rows[-1]
    if newest.role in ASSISTANT_ROLES and not calls_of(newest.message):
        return rows
    last_question = max(
        (i for i, row in enumerate(rows) if row.role == MessageRole.USER.value),
        default=0,
    )
    return rows[:last_question]
