"""Recall: finds the messages of a session that match a question, for the record and for a search."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from llama_index.core.base.llms.types import ChatMessage, MessageRole

from llama_index_memory_ext.background.locks import lock_for
from llama_index_memory_ext.background.waiting import JobKey
from llama_index_memory_ext.record.index import (
    CONTEXT_TURNS,
    SHORT_TOKENS,
    Fitting,
    MessageIndex,
    RankedMessage,
    RecallBudget,
)
from llama_index_memory_ext.record.text import earlier_section
from llama_index_memory_ext.search.embeddings import EmbeddingRanker, model_key
from llama_index_memory_ext.search.tfidf import suppress_failures
from llama_index_memory_ext.store.readers import rows_in_epoch
from llama_index_memory_ext.store.rows import LogRow, ReadPosition, Snapshot
from llama_index_memory_ext.store.vectors import KeptVectors
from llama_index_memory_ext.text.entries import tokens_of
from llama_index_memory_ext.text.messages import ID_KEY
from llama_index_memory_ext.text.parts import (
    NO_PARTS,
    TAGS,
    Part,
    Section,
    counted_section,
)
from llama_index_memory_ext.text.turns import ends_with_answer, question_in
from llama_index_memory_ext.words.asking import asking_share, asks, tells_change
from llama_index_memory_ext.words.dates import relative_periods
from llama_index_memory_ext.words.tokens import terms_in

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_memory_ext.background.jobs import Jobs
    from llama_index_memory_ext.record.reader import RecallWhen, RecordReader
    from llama_index_memory_ext.record.window import Window
    from llama_index_memory_ext.store.transaction import Transaction
    from llama_index_memory_ext.text.entries import Entry
    from llama_index_memory_ext.text.tokens import TokenCounter

# A question with more different terms needs no turns before it.
_ENOUGH_TERMS = 6
# Of a longer question only the beginning is counted for ``_ENOUGH_TERMS``.
_QUESTION_CHARACTERS = 2_000
LONGEST_MESSAGE_TOKENS = 500
# The share of the limit for one recalled message, but at least ``SHORT_TOKENS``: with a
# limit of 600, that finds 41 points more on LoCoMo 2 and 4.
_MESSAGE_SHARE = 0.25
# A question may recall this multiple of the limit, if the record leaves the tokens free.
_QUESTION_FACTOR = 1.4
# A matching message of the record uses up ``share * min(tokens, 100)`` of the budget, so a
# question about the record recalls less.
_IN_RECORD_SHARE = 0.6
# The least share of the limit that a text gets, even if none of it asks. With an embedding
# model, each text gets the whole limit.
_STATEMENT_SHARE = 0.25
# The weight of the words of a statement, with an embedding model.
_STATEMENT_WEIGHT = 0.25
# The rows that are indexed at once. A new process answers from this number of newest rows
# until it has indexed the older ones.
_INDEXED_ROWS = 500
# How long a question waits for messages to be indexed; indexing takes longer than this
# only after a restart.
_INDEX_SECONDS = 1.0
_RETRY_SECONDS = 2.0


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


class _ReadMessage(NamedTuple):
    """A message that matches a question, and the entries of its rows."""

    message: FoundMessage
    entries: list[Entry]


class _ReadMatches(NamedTuple):
    """The messages that were chosen for a question, and the read messages among them, in the same order."""

    fitting: Fitting
    messages: list[_ReadMessage]

    @property
    def heat(self) -> dict[int, float]:
        """The heat that this recall adds: the similarity of each whole message of one row, by its row."""
        heat = {}
        for message, _ in self.messages:
            if message.is_whole and len(message.row_ids) == 1:
                heat[message.row_ids[0]] = message.similarity
        return heat


class RecalledMessages(NamedTuple):
    """Recalled messages.

    Attributes:
        section: The messages as the record shows them, without sticky messages.
        matches: The messages, sticky messages included.
        request: The values that decide which messages are recalled.
        is_cached: Whether they were kept from the last request, which was the same.
    """

    section: Section = NO_PARTS
    matches: Sequence[FoundMessage] = ()
    request: tuple[object, ...] = ()
    is_cached: bool = False


@dataclass(frozen=True)
class MessageSearch:
    """Finds messages of sessions.

    Equal searches of a store share the index of each session, in the cache of the store.
    With an ``embed_model``, messages are embedded in the background, and no question
    waits for that. ``failures`` counts the failures of indexes by type.
    """

    reader: RecordReader
    embed_model: BaseEmbedding | None = field(default=None, repr=False, compare=False)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def _settings(self) -> tuple[object, ...]:
        # The index refers to the model, so that Python does not reuse this id.
        return (self.reader, id(self.embed_model))

    def index(
        self, session_id: str, kind: Literal["index", "newest"] = "index"
    ) -> MessageIndex | None:
        """Return the index of a session; None if nothing was indexed, or it was used too long ago.

        "newest" is an index of the newest messages alone, while the others are indexed.
        """
        index: MessageIndex | None = self.reader.store.cache.get(
            session_id, (kind, *self._settings)
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
    ) -> RecalledMessages:
        """Return the messages before the window that match the current question; empty for none.

        The user's changes among them, and among matching messages of the record, stand in a
        list at the end. All parts together fit the budget of ``recall_budget``. After a
        restart, a long log is indexed in the background, and a question finds only its
        newest messages. A ``snapshot`` of the session spares a query.
        """
        counter = self.reader.counter
        tags = counter.count("".join(TAGS["recalled"]))
        limit = self.reader.recall_limit - tags
        if limit <= 0:
            return RecalledMessages()
        index = await self._current_index(session_id, window.seen, snapshot)
        if index is None:
            return RecalledMessages()
        question, context = question_in(messages, index.turns, CONTEXT_TURNS)
        if len(set(terms_in(question[:_QUESTION_CHARACTERS]))) > _ENOUGH_TERMS:
            context = []
        await self._prepare(session_id, index, [question, *context])
        budget = recall_budget(
            question,
            limit,
            self.reader.room - window.tokens - tags,
            recall_when=self.reader.recall_when,
            by_meaning=index.embeddings is not None,
        )
        request = (
            question,
            *context,
            window.last_left,
            budget,
            index.epoch,
            index.newest,
            index is self.index(session_id),
            index.today,
        )
        # An agent asks the same question again after each of its tool calls.
        key = ("recalled", *self._settings)
        last: RecalledMessages | None = self.reader.store.cache.get(session_id, key)
        if last and last.request == request:
            return last._replace(is_cached=True)
        message_limit = max(int(limit * _MESSAGE_SHARE), min(limit, SHORT_TOKENS))

        def choose() -> Fitting:
            fitting = index.fitting(
                question, context, window.last_left + 1, budget, message_limit
            )
            # By their rows: the oldest message comes first.
            return fitting._replace(messages=sorted(fitting.messages))

        matches = await self._read_matches(
            session_id, index, question, choose, message_limit
        )
        if matches is None:
            # Rows were deleted after the record was read.
            return RecalledMessages()
        self.reader.heat_up(session_id, window, matches.heat)
        recalled = arrange_recalled(
            matches.messages,
            window,
            matches.fitting.record_rows,
            index.today.isoformat(),
            budget.limit + tags,
            # A question about a time asks for the value before the change.
            with_changes=not any(relative_periods(question.casefold(), index.today)),
        )
        # Vectors may come later, and a failed index is made anew.
        if index.embeddings is None and index.epoch == window.seen.epoch:
            last = recalled._replace(request=request)
            self.reader.store.cache.put(session_id, key, last)
        return recalled

    async def _current_index(
        self, session_id: str, seen: ReadPosition, snapshot: Snapshot | None
    ) -> MessageIndex | None:
        """Return the index up to the last row of the record; None without an index of this epoch.

        After a second without it, return an incomplete index.
        """
        index = self.index(session_id)
        if snapshot and index:
            rows = snapshot.log_behind(ReadPosition(index.epoch, last_id=index.newest))
            if rows:
                with suppress_failures(
                    self.failures, "Earlier messages were not indexed", index.drop
                ):
                    await self._add_rows(index, rows)
                self._keep(session_id, index)
        if index is None or index.epoch != seen.epoch or index.newest < seen.last_id:
            key = JobKey(session_id, self.reader.name)
            index_log = partial(self._index_log, session_id)
            self.jobs.start(key, index_log, _RETRY_SECONDS)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.jobs.wait(key), _INDEX_SECONDS)
        for index in (self.index(session_id), self.index(session_id, "newest")):
            # After a deletion, other rows may have the ids in the index.
            if index is not None and index.epoch == seen.epoch:
                return index
        return None

    async def search(
        self, session_id: str, question: str, *, most: int, message_limit: int
    ) -> list[FoundMessage]:
        """Return the messages that are most similar to a question, best first.

        The search waits until all messages of the log and of answered active turns are
        indexed. A message has at most ``message_limit`` tokens, and at most 500.
        """
        index = await self._index_log(session_id)
        page = await self.reader.store.readers.unread(
            session_id, "", with_active=True, after=index.newest
        )
        matches = None
        if page.epoch == index.epoch:
            await self._add_rows(index, answered_rows(page.rows))
            await self._prepare(session_id, index, [question])
            matches = await self._read_matches(
                session_id,
                index,
                question,
                lambda: Fitting(index.ranked(question)[:most]),
                min(message_limit, LONGEST_MESSAGE_TOKENS),
            )
        if matches is not None:
            return [match.message for match in matches.messages]
        if index.is_broken:
            return []
        # Rows were deleted meanwhile.
        return await self.search(
            session_id, question, most=most, message_limit=message_limit
        )

    async def _read_matches(
        self,
        session_id: str,
        index: MessageIndex,
        question: str,
        choose: Callable[[], Fitting],
        limit: int,
    ) -> _ReadMatches | None:
        """Choose messages of the index, and read their rows; None if rows were deleted since they were indexed."""

        def choose_and_read(tx: Transaction) -> _ReadMatches | None:
            fitting = Fitting([])
            with suppress_failures(
                self.failures, "Earlier messages were not found", index.drop
            ):
                fitting = choose()
            row_ids: list[int] = []
            for ranked in fitting.messages:
                row_ids += ranked.message.row_ids
            rows = rows_in_epoch(tx, session_id, row_ids, index.epoch)
            if rows is None:
                return None
            messages = read_messages(index, question, fitting.messages, rows, limit)
            return _ReadMatches(fitting, messages)

        # One job in the thread of the connection: a change of threads costs more than a
        # statement, and the search may take longer than an event loop should be blocked.
        return await self.reader.store.database.run(choose_and_read, writes=False)

    async def _index_log(self, session_id: str) -> MessageIndex:
        """Return the index with all rows of the log; a new index if rows were deleted."""
        cache = self.reader.store.cache
        newest_key = ("newest", *self._settings)
        # One task at a time, because two would index the same rows.
        async with lock_for(
            "index", id(self.reader.store), *self._settings, session_id
        ):
            index = self.index(session_id)
            while index is None or not await self._extend(session_id, index):
                page = await self.reader.store.readers.page(
                    session_id, "", limit=_INDEXED_ROWS
                )
                index = self._make_index(session_id, page.epoch)
                # A question whose time is over finds the newest messages.
                cache.put(session_id, newest_key, index, len(page.rows))
                await self._add_rows(index, page.rows)
                if page.more:
                    index = self._make_index(session_id, page.epoch)
            self._keep(session_id, index)
            cache.put(session_id, newest_key, None)
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
                await self._add_rows(index, page.rows)
            if len(page.rows) < _INDEXED_ROWS:
                return True

    async def _add_rows(self, index: MessageIndex, rows: Sequence[LogRow]) -> None:
        try:
            await asyncio.to_thread(index.add, rows)
        except Exception:
            # A part of the rows may be indexed.
            index.drop()
            raise
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
            keeper = KeptVectors(
                reader.store.database, session_id, model_key(model), epoch
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
    """Return the budget of recall for a text of the user.

    A question gets up to 1.4 times the ``limit``, as the record leaves tokens ``free``.
    With ``recall_when="always"`` nothing lowers the budget. Otherwise matching messages of
    the record use up a part of it. A search by words also multiplies it by the share of
    the sentences that ask, at least 0.25.
    """
    most = limit
    if asks(question):
        most = min(int(limit * _QUESTION_FACTOR), free)
    if recall_when == "always":
        return RecallBudget(most)
    asking = 1.0 if by_meaning else asking_share(question)
    share = max(asking, _STATEMENT_SHARE)
    return RecallBudget(int(most * share), _IN_RECORD_SHARE)


def read_messages(
    index: MessageIndex,
    question: str,
    chosen: Iterable[RankedMessage],
    rows: Iterable[LogRow],
    limit: int,
) -> list[_ReadMessage]:
    """Return the chosen messages with their texts, in their order.

    Of a message above ``limit`` tokens, the text is the sentences with words of the
    question. A message without rows, or without a word within the limit, is left out.
    """
    clip = index.clip_for(question)
    rows_by_id = {row.id: row for row in rows}
    messages = []
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
            messages.append(_ReadMessage(found_message, entries))
    return messages


def arrange_recalled(
    messages: Sequence[_ReadMessage],
    window: Window,
    record_rows: Container[int],
    today: str,
    limit: int,
    *,
    with_changes: bool,
) -> RecalledMessages:
    """Return the messages, and a section without the sticky messages, within ``limit`` tokens.

    ``with_changes``: the user's changes stand last. Changes in the matching rows of the
    record, ``record_rows``, are repeated: a small model otherwise answers with an older
    change.
    """
    counter = window.counter
    recalled: list[Part] = []
    changes: list[Entry] = []
    for message, entries in messages:
        if message.row_ids[0] in window.sticky_heat:
            continue
        sources = (message,)
        if with_changes and message.is_whole and _is_change(entries[0]):
            changes.append(replace(entries[0], day=message.day, sources=sources))
        else:
            text = "".join(entry.text for entry in entries)
            tokens = tokens_of(entries)
            recalled.append(Part("recalled", text, tokens, message.day, sources))
    if with_changes:
        changes += _changes_of_record(window, record_rows)
    earlier = earlier_section(recalled, counter)
    changed = _changed_section(changes, counter, today)
    section = Section([*earlier.parts, *changed.parts], earlier.tokens + changed.tokens)
    if section.tokens > limit:
        section = section.without(section.tokens - limit, counter)
    return RecalledMessages(section, [match.message for match in messages])


def _changes_of_record(window: Window, rows: Container[int]) -> list[Entry]:
    """Return the changes among these rows that the record shows."""
    return [
        entry for entry in window.entries if entry.row_id in rows and _is_change(entry)
    ]


def _is_change(entry: Entry) -> bool:
    """Return whether an entry is a short message in which the user tells a change.

    False in a session of several users: a line of a change does not name its speaker.
    """
    opening, _ = entry.tags
    is_users = opening in ("<message user>", '<message role="user">')
    return is_users and entry.tokens <= SHORT_TOKENS and tells_change(entry.body)


def _changed_section(
    changes: Sequence[Entry], counter: TokenCounter, today: str
) -> Section:
    """Return changes as a list, a line for each with its day, unless it is of ``today``."""
    parts = []
    for change in changes:
        words = ["-", *change.body.split()]
        if change.day not in ("", today):
            words.append(f"({change.day})")
        line = " ".join(words) + "\n"
        tokens = counter.count(line)
        parts.append(Part("changed", line, tokens, sources=change.sources))
    return counted_section(parts, counter)


def answered_rows(rows: Sequence[LogRow]) -> Sequence[LogRow]:
    """Return the rows without a last turn that has no answer yet: a question must not find itself."""
    if ends_with_answer([row.message for row in rows[-1:]]):
        return rows
    last_question = max(
        (i for i, row in enumerate(rows) if row.role == MessageRole.USER.value),
        default=0,
    )
    return rows[:last_question]
