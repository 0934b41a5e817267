"""Finds messages of a session again for a question: for the record, and for a search."""

from __future__ import annotations

import asyncio
import math
import re
from bisect import bisect_left
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from llama_index.core.base.llms.types import ChatMessage, MessageRole

from llama_index_memory_ext.background.jobs import JobKey, Jobs
from llama_index_memory_ext.background.locks import Recent, lock_for, thread_lock
from llama_index_memory_ext.fact import utc_now
from llama_index_memory_ext.language.dates import date_words, relative_periods
from llama_index_memory_ext.language.tokens import languages_of, terms_in
from llama_index_memory_ext.record.text import (
    DAY_HEADING,
    EARLIER_CLOSING,
    EARLIER_OPENING,
    NO_TEXT,
    clip_entries,
    earlier_element,
)
from llama_index_memory_ext.record.window import entries_of
from llama_index_memory_ext.search import tfidf
from llama_index_memory_ext.search.embeddings import EmbeddingRanker, model_key
from llama_index_memory_ext.store.facts import KeptVectors
from llama_index_memory_ext.text.limits import excerpt
from llama_index_memory_ext.text.messages import (
    ID_KEY,
    INSTRUCTION_ROLES,
    body_of,
    question_in,
    spoken,
    tokens_of,
    turns_in,
)
from llama_index_memory_ext.text.tool_calls import ASSISTANT_ROLES, calls_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_memory_ext.record.window import RecordReader, Window
    from llama_index_memory_ext.store.tables import LogRow
    from llama_index_memory_ext.text.messages import Entry
    from llama_index_memory_ext.text.tokens import CountedText, TokenCounter

# The tool whose results repeat what is in the log. They are not found as if they were
# said in the conversation.
SEARCH_TOOL = "search_memory"
# A message is also found by the two turns before the question. Each weighs half of what
# it does for facts, because these turns mostly stand in the record themselves.
CONTEXT_TURNS = 3
# A question with more different terms says itself what it is about.
_ENOUGH_TERMS = 6
_EARLIER_WEIGHT = 0.1
# The weights of the words of the messages before and after a message, at distance 1, 2
# and 3: those that matter for a question seldom stand alone.
_NEIGHBOUR_SHARES = (0.2, 0.1, 0.05)
_REACH = len(_NEIGHBOUR_SHARES)
# Only messages with this share of the best one's similarity may have what the record
# leaves of its limit.
WORTH_MORE = 0.15
# A message costs room: its similarity is divided by its tokens, at least the first
# number, to this power. So a long reply comes behind several short messages that fit as
# well. More messages are not looked at.
_SHORT = 100
_LENGTH_POWER = 0.4
_MOST_RANKED = 1_000
# What a message gains, beside the similarity of the best one, that was said at the time
# that the question names.
_TIME_SHARE = 1.0
# The epoch of an index in which something went wrong: that of no log, so that it is
# made anew.
_BROKEN = -1
_INDEXED_CHARACTERS = 20_000
_NEIGHBOUR_CHARACTERS = 2_000


class IndexedMessage(NamedTuple):
    """A message in the index: its rows, its day, and its tokens when recalled."""

    row_ids: tuple[int, ...]
    day: str
    tokens: int


class MessageIndex:
    """The messages of one session, indexed for questions: a call and its results together, all others one by one.

    A message is found by its own words, by the day on which it was said and, with less
    weight, by the words of the messages around it on the same day. So the last ones are
    indexed again when others come. Threads may call at the same time. ``epoch`` is that
    of the log, and ``tags`` are element names, besides our own, that no text must be
    able to forge; ``languages`` are those in which questions may be, None for any. With
    ``embeddings`` messages are ranked by these, too.
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
        self._counter = counter
        self._tags = tags
        self._languages = languages
        self._day_tokens = counter.count(DAY_HEADING.format("2026-11-20"))
        self.ranker: tfidf.FactRanker = tfidf.TfidfRanker(languages=languages)
        self.embeddings: EmbeddingRanker | None = None
        self._messages: list[IndexedMessage] = []
        # Their names in the ranker.
        self._ids: list[str] = []
        # The last ones, whose neighbours may still come, and the neighbours before
        # them: rows, each with its words.
        self._units: list[list[tuple[LogRow, str]]] = []
        self._is_echo = False
        self._lock = thread_lock()

    def take(self, rows: Iterable[LogRow]) -> None:
        """Index rows, oldest first, but for known ones."""
        with self._lock:
            new = [row for row in rows if row.id > self.newest]
            if not new:
                return
            first = max(len(self._units) - _REACH - 1, 0)
            for row in new:
                message, speech = row.message, spoken(row.message)
                if speech:
                    self.turns = turns_in([message], self.turns)[1 - CONTEXT_TURNS :]
                words = (speech or body_of(message))[:_INDEXED_CHARACTERS]
                if not row.is_result:
                    self._is_echo = {call.name for call in calls_of(message)} == {
                        SEARCH_TOOL
                    }
                    if (
                        words.strip()
                        and row.role not in INSTRUCTION_ROLES
                        and not self._is_echo
                    ):
                        self._units.append([(row, words)])
                elif self._units and not self._is_echo:
                    self._units[-1].append((row, words))
            texts = ["\n".join(words for _, words in unit) for unit in self._units]
            days = [unit[0][0].day for unit in self._units]
            again = {unit[0][0].id for unit in self._units[first:]}
            while self._messages and self._messages[-1].row_ids[0] in again:
                self._messages.pop()
                self._ids.pop()
            documents: list[tfidf.Document] = []
            for i in range(first, len(self._units)):
                unit = [row for row, _ in self._units[i]]
                entries = entries_of(unit, self._counter, self._tags, brief=True)
                if entries:
                    row_ids = tuple(row.id for row in unit)
                    self._messages.append(
                        IndexedMessage(row_ids, days[i], tokens_of(entries))
                    )
                    self._ids.append(str(row_ids[0]))
                    if days[i]:
                        day = date_words(date.fromisoformat(days[i]))
                    else:
                        day = ""
                    documents.append(
                        tfidf.Document(
                            str(row_ids[0]), texts[i], neighbours(i, texts, days), day
                        )
                    )
            self.ranker.add(documents)
            self.newest = new[-1].id
            del self._units[: -2 * _REACH - 1]

    def ranked(
        self, question: str, context: Sequence[str] = (), before: float = math.inf
    ) -> list[tuple[IndexedMessage, float]]:
        """Return the messages that match a question, each with its similarity, in (0, 1], 1 for the best one.

        These are the best 1,000, best first, of equal ones the newest first. [] without
        a word in common. ``context`` is the text of each turn before, oldest first.
        Only messages whose rows are all before the row ``before`` are found.
        """
        with self._lock:
            end = bisect_left(
                self._messages, before, key=lambda message: message.row_ids[-1]
            )
            messages = self._messages[:end]
            ids = tuple(self._ids[:end])
        similarity = tfidf.similarities_with_context(
            self.ranker, ids, question, context, _EARLIER_WEIGHT
        )
        times = list(relative_periods(question.casefold(), utc_now().date()))
        if times:
            spans = [(time.start.isoformat(), time.end.isoformat()) for time in times]
            said = [
                any(start <= message.day <= end for start, end in spans)
                for message in messages
            ]
            similarity = tfidf.divided_by_best(
                similarity + _TIME_SHARE * np.array(said, dtype=np.float64)
            )
        found = np.flatnonzero(similarity)
        best_first = found[np.lexsort((-found, -similarity[found]))][:_MOST_RANKED]
        return [(messages[i], float(similarity[i])) for i in best_first]

    def fitting(
        self,
        ranked: Iterable[tuple[IndexedMessage, float]],
        limit: int,
        most: int,
        message_limit: int,
    ) -> list[tuple[IndexedMessage, float]]:
        """Return those of the ranked messages that fit, clipped to ``message_limit``, under headings of their days.

        Those come first that are most similar for what they cost. ``limit`` tokens are
        for any of them, ``most`` together with those that are ``WORTH_MORE``.
        """

        def worth(one: tuple[IndexedMessage, float]) -> float:
            return one[1] / float(
                max(min(one[0].tokens, message_limit), _SHORT) ** _LENGTH_POWER
            )

        found: list[tuple[IndexedMessage, float]] = []
        days: set[str] = set()
        used = 0
        for message, similarity in sorted(ranked, key=worth, reverse=True):
            tokens = min(message.tokens, message_limit) + (
                0 if message.day in days else self._day_tokens
            )
            if used + tokens <= (most if similarity >= WORTH_MORE else limit):
                found.append((message, similarity))
                days.add(message.day)
                used += tokens
        return found

    def clip_for(self, question: str) -> Callable[[str, int], str] | None:
        """Return what leaves the part of a text that has the words of a question; None for no words."""
        terms = partial(terms_in, codes=languages_of(question, self._languages))
        wanted = set(terms(question))
        if wanted:
            return partial(excerpt, counter=self._counter, wanted=wanted, terms=terms)
        return None

    def entries(
        self, rows: Sequence[LogRow], limit: int, clip: Callable[[str, int], str] | None
    ) -> list[Entry]:
        """Return the rows of one message as they are recalled; [] if there is no room for a word of each.

        Of more than ``limit`` tokens the part is shown that ``clip`` leaves; None: the
        two ends.
        """
        shown = clip_entries(
            entries_of(rows, self._counter, self._tags, brief=True),
            limit,
            self._counter,
            clip,
        )
        fits = tokens_of(shown) <= limit
        if fits and all(entry.body.strip() for entry in shown):
            return shown
        return []


def neighbours(
    place: int, texts: Sequence[str], days: Sequence[str]
) -> tuple[tuple[str, float], ...]:
    """Return the texts around one of a conversation, of the same day, each with its weight."""
    around = [
        (place + sign * i, share)
        for i, share in enumerate(_NEIGHBOUR_SHARES, 1)
        for sign in (-1, 1)
    ]
    known = (
        (i, share)
        for i, share in around
        if 0 <= i < len(texts) and days[i] == days[place]
    )
    return tuple((texts[i][:_NEIGHBOUR_CHARACTERS], share) for i, share in known)


LONGEST_MESSAGE_TOKENS = 500

# The shares of the limit that one recalled message may have, and all of them for a text
# that asks something, where the record leaves so much.
_MESSAGE_SHARE = 0.25
_ASKED_SHARE = 1.3
# Many questions are written without a question mark.
_ASKS = re.compile(
    r"[?\uff1f\u061f]|[吗嗎谁誰]|什么|什麼|哪|怎么|怎麼|多少|几|幾|为何|か。?\s*$"
    r"|(?:^|[.!;:\n]\s*)(?:who|whose|what|when|where|which|why|how|(?:tell|remind) me|do you remember)\b",
    re.IGNORECASE,
)
_INDEXED_ROWS = 500
# How long a question waits for messages to be indexed; indexing takes longer than this
# only after a restart.
_INDEX_SECONDS = 1.0
_RETRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message, or a call with its results, by its ``similarity`` to a question, 1 for the best one.

    ``day`` is 2026-11-20, or "" where it is unknown. In ``text`` our own tags are
    escaped. ``message_id`` is that of its ``additional_kwargs``, if the program has
    given it one.
    """

    similarity: float
    row_ids: tuple[int, ...]
    role: str
    day: str
    text: str = field(repr=False)
    message_id: str | int | float | None = None


@dataclass(frozen=True)
class MessageSearch:
    """Finds messages of sessions; ``indexes`` are of the last sessions, ``failures`` those of rankers by their types.

    With an ``embed_model``, messages are embedded in the background, and no question
    waits for that.
    """

    reader: RecordReader
    embed_model: BaseEmbedding | None = field(default=None, repr=False, compare=False)
    indexes: Recent[str, MessageIndex] = field(default_factory=lambda: Recent(32))
    # What was recalled last in a session, by all that it depends on: agents ask again
    # for each of their tool calls.
    recalled: Recent[str, tuple[object, CountedText]] = field(default_factory=Recent)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def jobs(self) -> Jobs:
        """The jobs that index sessions."""
        return self.reader.store.jobs.jobs(
            "recall index", "Earlier messages were not indexed"
        )

    @property
    def embedding_jobs(self) -> Jobs:
        """The jobs that embed the messages of sessions."""
        return self.reader.store.jobs.jobs(
            "recall embeddings", "Earlier messages were not embedded"
        )

    def embed(self, session_id: str) -> None:
        """Index and embed in the background what the log has gained."""

        async def embed_log() -> None:
            index = await self._index_log(session_id)
            if index.embeddings is not None:
                await index.embeddings.embed_documents()

        if self.embed_model is not None:
            self.embedding_jobs.start(
                JobKey(session_id, self.reader.name), embed_log, _RETRY_SECONDS
            )

    async def recall(
        self, session_id: str, messages: Sequence[ChatMessage], window: Window
    ) -> CountedText:
        """Return the messages that have left the window and matter for the current question, "" for none.

        They have at most the tokens that it leaves free, and beyond the limit for them
        only those that are similar enough. After a restart a long log is indexed in the
        background up to what the window has seen, and a question is answered by what
        has been indexed by then.
        """
        counter = self.reader.counter
        limit = self.reader.recall_limit
        seen = window.seen
        tags = counter.count(EARLIER_OPENING + EARLIER_CLOSING)
        if limit <= tags:
            return NO_TEXT
        index = self.indexes.get(session_id)
        if index is None or index.epoch != seen.epoch or index.newest < seen.last_id:
            key = JobKey(session_id, self.reader.name)
            self.jobs.start(key, partial(self._index_log, session_id), _RETRY_SECONDS)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.jobs.wait(key), _INDEX_SECONDS)
            index = self.indexes.get(session_id)
        # What was indexed before rows were deleted may name other rows by now.
        if index is None or index.epoch != seen.epoch:
            return NO_TEXT
        if window.kept:
            before = window.kept[0].row_id
        else:
            before = seen.last_id + 1
        free = self.reader.room - window.tokens
        question, context = question_in(messages, index.turns, CONTEXT_TURNS)
        if len(set(terms_in(question[:_NEIGHBOUR_CHARACTERS]))) > _ENOUGH_TERMS:
            context = []
        if _ASKS.search(question):
            most = max(limit, min(int(limit * _ASKED_SHARE), free))
        else:
            most = limit
        message_limit = int((limit - tags) * _MESSAGE_SHARE)
        await self._prepare(session_id, index, [question, *context])
        depends_on = (
            (question, *context),
            index.epoch,
            index.newest,
            before,
            most,
            utc_now().date(),
        )
        last = self.recalled.get(session_id)
        if last and last[0] == depends_on:
            return last[1]

        def choose() -> list[tuple[IndexedMessage, float]]:
            ranked = index.ranked(question, context, before)
            return sorted(
                index.fitting(ranked, limit - tags, most - tags, message_limit)
            )

        shown = await self._shown(session_id, index, question, choose, message_limit)
        if shown is None:
            # Rows were deleted meanwhile, and the record was read before.
            return NO_TEXT
        earlier = earlier_element(
            [(message.day, entries) for message, entries in shown], counter
        )
        earlier.shown = [
            (message, "".join(entry.text for entry in entries))
            for message, entries in shown
        ]
        # Vectors may come later, and what has failed may succeed.
        if index.embeddings is None and index.epoch == seen.epoch:
            self.recalled.put(session_id, (depends_on, earlier))
        return earlier

    async def search(
        self, session_id: str, question: str, *, most: int, message_limit: int
    ) -> list[FoundMessage]:
        """Return the messages most similar to a question, best first, of the log and of answered active turns.

        It waits until all of them are indexed. ``message_limit`` tokens of a message
        are shown, at most 500.
        """
        index = await self._index_log(session_id)
        page = await self.reader.store.readers.unread(
            session_id, "", with_active=True, after=index.newest
        )
        shown = None
        if page.epoch == index.epoch:
            rows = page.rows
            if rows and (
                rows[-1].role not in ASSISTANT_ROLES or calls_of(rows[-1].message)
            ):
                # The last question was not answered yet, and must not find itself.
                questions = [
                    i
                    for i, row in enumerate(rows)
                    if row.role == MessageRole.USER.value
                ]
                rows = rows[: questions[-1]] if questions else []
            await asyncio.to_thread(index.take, rows)
            await self._prepare(session_id, index, [question])
            limit = min(message_limit, LONGEST_MESSAGE_TOKENS)
            shown = await self._shown(
                session_id,
                index,
                question,
                lambda: index.ranked(question)[:most],
                limit,
            )
        if shown is None and index.epoch != _BROKEN:
            # Rows were deleted meanwhile.
            return await self.search(
                session_id, question, most=most, message_limit=message_limit
            )
        return [message for message, _ in shown or []]

    async def _shown(
        self,
        session_id: str,
        index: MessageIndex,
        question: str,
        choose: Callable[[], list[tuple[IndexedMessage, float]]],
        limit: int,
    ) -> list[tuple[FoundMessage, list[Entry]]] | None:
        """Return the chosen messages that can be shown, each with its entries.

        None if rows were deleted since they were indexed.
        """
        # The search in a long log takes longer than an event loop should be blocked.
        chosen: list[tuple[IndexedMessage, float]] = []
        with tfidf.sparing(
            self.failures,
            "Earlier messages were not found",
            partial(setattr, index, "epoch", _BROKEN),
        ):
            chosen = await asyncio.to_thread(choose)
        row_ids = [row_id for message, _ in chosen for row_id in message.row_ids]
        stored = await self.reader.store.readers.rows_in(
            session_id, row_ids, index.epoch
        )
        if stored is None:
            return None
        by_id = {row.id: row for row in stored}

        def show() -> list[tuple[FoundMessage, list[Entry]]]:
            shown = []
            clip = index.clip_for(question)
            for message, similarity in chosen:
                rows = [by_id[row_id] for row_id in message.row_ids if row_id in by_id]
                entries = index.entries(rows, limit, clip)
                if entries:
                    text = "\n".join(entry.body for entry in entries)
                    row_ids = tuple(row.id for row in rows)
                    name = rows[0].message.additional_kwargs.get(ID_KEY)
                    found = FoundMessage(
                        similarity, row_ids, rows[0].role, message.day, text, name
                    )
                    shown.append((found, entries))
            return shown

        return await asyncio.to_thread(show)

    async def _index_log(self, session_id: str) -> MessageIndex:
        """Index what the log has gained, a page at a time, or all of it if rows were deleted; returns the index."""
        # One task at a time, or each would index what the others do.
        async with lock_for("index", id(self.indexes), session_id):
            index = self.indexes.get(session_id)
            reader = self.reader
            while True:
                after = index.newest if index else 0
                page = await reader.store.readers.unread(
                    session_id, "", after=after, limit=_INDEXED_ROWS
                )
                if index is None or index.epoch != page.epoch:
                    index = MessageIndex(
                        page.epoch, reader.counter, (reader.name,), reader.languages
                    )
                    model = self.embed_model
                    readers = reader.store.readers
                    if model is not None:
                        keeper = KeptVectors.of_messages(
                            readers, session_id, page.epoch, model_key(model)
                        )
                        index.ranker = index.embeddings = EmbeddingRanker(
                            model, lexical=index.ranker, keeper=keeper
                        )
                        reader.store.jobs.watch(index.embeddings)
                    self.indexes.put(session_id, index)
                    continue
                if page.rows:
                    await asyncio.to_thread(index.take, page.rows)
                    if index.embeddings is not None:
                        await index.embeddings.load()
                if len(page.rows) < _INDEXED_ROWS:
                    return index

    async def _prepare(
        self, session_id: str, index: MessageIndex, queries: Sequence[str]
    ) -> None:
        """Embed questions, and start to embed what is not embedded yet."""
        if index.embeddings is not None:
            await index.embeddings.prepare_queries(queries)
            if not index.embeddings.is_complete:
                self.embed(session_id)
