"""The block of the record, through which LlamaIndex reads a condensed session."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import (
    ChatMessage,
    ContentBlock,
    MessageRole,
)
from llama_index.core.bridge.pydantic import (
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
)
from typing_extensions import TypedDict

from llama_index_memory_ext.blocks import DEFAULT_SESSION_ID, LogBlock
from llama_index_memory_ext.blocks.limits import limits_of
from llama_index_memory_ext.events import (
    MessagesRecalledEvent,
    SummaryFailedEvent,
    send,
)
from llama_index_memory_ext.models.local_embeddings import EmbedModel, embed_model_of
from llama_index_memory_ext.record.cuts import read_within_limits
from llama_index_memory_ext.record.media import newest_media
from llama_index_memory_ext.record.reader import RecallWhen, RecordReader
from llama_index_memory_ext.record.recall import (
    LONGEST_MESSAGE_TOKENS,
    FoundMessage,
    MessageSearch,
    RecalledMessages,
)
from llama_index_memory_ext.settings import Switch
from llama_index_memory_ext.text.messages import RESULT_ROLES
from llama_index_memory_ext.text.parts import NO_PARTS, TODAY_HEADING, Section
from llama_index_memory_ext.words.tokens import checked_languages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from llama_index_memory_ext.background.jobs import Jobs
    from llama_index_memory_ext.record.index import MessageIndex
    from llama_index_memory_ext.record.window import Window
    from llama_index_memory_ext.store.rows import Snapshot


class CondensedOptions(TypedDict, total=False):
    """The options of a ``CondensedMemoryBlock`` that shorten a conversation. The block documents them."""

    keep_ratio: float
    max_messages: int | None
    keep_messages: int | None
    include_system: bool
    show_days: bool
    summarize: bool
    recall_token_limit: int | None
    recall_when: RecallWhen
    sticky_token_limit: int | None
    media_turns: int
    keep_tool_results: int | None


class RecordSize(NamedTuple):
    """The size of a record.

    Attributes:
        record_tokens: The tokens without the element around the record.
        verbatim: The number of messages in the record.
        summary_tokens: The tokens of the summary.
        summarised: The number of messages in the summary.
    """

    record_tokens: int = 0
    verbatim: int = 0
    summary_tokens: int = 0
    summarised: int = 0


class _ConfiguredSearch(NamedTuple):
    """A search, and the values of the block's fields for which it was made.

    A turn uses the search 14 times. Without a kept search, a turn takes a tenth longer.
    """

    fields: dict[str, Any]
    search: MessageSearch


class CondensedMemoryBlock(LogBlock):
    """The messages of this session, oldest first, one element per message, within a token limit.

    The block reads the log of a ``MemoryStore``. A record within its limits is shown
    whole. Above a limit, the oldest messages leave until ``keep_ratio`` of the limit is
    left. The beginning of the prompt then stays the same for many turns, and the
    provider's prompt cache can serve it. Messages that leave stay in the store. A
    question recalls them by its words, and with an ``embed_model`` by its meaning,
    within ``recall_token_limit``. With ``summarize`` a model summarises them.

    Without a ``store`` the block keeps a private store in memory, which holds the
    messages that the memory flushes. It works in any
    ``Memory.from_defaults(memory_blocks=[...])``, and is empty after a restart. The
    memory's ``areset`` does not reach it. With a ``store``, give the same store to the
    memory: ``Memory.from_defaults(chat_store=store, ...)``. One block may serve many
    sessions, and keeps their messages apart. A summary is made in the event loop of
    ``aput``, which must keep running: in a plain ``Memory``, call ``aput`` rather than
    ``put``.

    Raises:
        ValueError: ``keep_messages`` is larger than ``max_messages``, or summary and
            recall leave no room.
        StoreError: By ``aput``, if the given store does not know the session, because
            the memory keeps its messages in another store.

    Examples:
        >>> CondensedMemoryBlock(token_limit=8_000).name
        'condensed_memory'
    """

    name: str = Field(
        default="condensed_memory",
        description="The name of the element around the record.",
    )
    token_limit: int = Field(
        default=50_000,
        ge=1,
        description="Maximum tokens of the whole record: tags, summary and recalled messages included.",
    )
    keep_ratio: float = Field(
        default=0.4,
        gt=0,
        le=1,
        description="Share of the limit that remains after a cut; 1: the record is cut in each turn.",
    )
    max_messages: int | None = Field(
        default=None, ge=1, description="Maximum messages; None: any number."
    )
    keep_messages: int | None = Field(
        default=None,
        ge=1,
        description="Messages that remain after a cut; default: by `keep_ratio`.",
    )
    include_system: Switch = Field(
        default=False, description="Whether a first system or developer message stays."
    )
    show_days: Switch = Field(
        default=True,
        description="Whether days stand above the messages, and today's date below messages of earlier days.",
    )
    summarize: Switch = Field(
        default=False,
        description="Whether a model summarises the messages that have left, in the background. A summary has at most "
        "a quarter of the tokens, and at most 1,000.",
    )
    embed_model: EmbedModel = Field(
        default=None,
        exclude=True,
        repr=False,
        description="Ranks messages that are found for a question, together with their words; None: words alone.",
    )
    recall_when: RecallWhen = Field(
        default="asked",
        description='When messages are recalled. "asked": a text gets a share of the tokens, as large as the share of '
        'its sentences that ask for something, at least a quarter; with an embed_model, all. "always": each text gets '
        'all. "never": no message is recalled.',
    )
    recall_token_limit: int | None = Field(
        default=None,
        ge=0,
        validate_default=True,
        description="Tokens for messages found for the question, which get four tenths more if it asks something and "
        "the record leaves them free; 0: none; default: a quarter of a limit up to 4,000, at least 150; 1,000 up to "
        "8,000; an eighth of a larger limit, at most 2,000.",
    )
    sticky_token_limit: int | None = Field(
        default=None,
        ge=0,
        validate_default=True,
        description="Maximum tokens of the messages recalled most often, which move before the record at a cut; 0: "
        "none, as with `summarize`; default: a quarter of a limit of at least 2,000, at most 2,000.",
    )
    media_turns: int = Field(
        default=2,
        ge=0,
        description="Turns before this one whose media a `CondensedMemory` sends again; 0: none.",
    )
    keep_tool_results: int | None = Field(
        default=None,
        ge=0,
        description="Turns before a cut whose tool results stay; each older result becomes a line with its size. The "
        "calls stay, and a search finds the whole results. None: all stay.",
    )
    _configured: _ConfiguredSearch | None = PrivateAttr(default=None)

    @field_validator("sticky_token_limit")
    @classmethod
    def _check_limits(cls, value: int | None, info: ValidationInfo) -> int | None:
        """Check all limits together; ``info`` has the fields before this one.

        A field that ``limits_of`` reads must stand before this one; else no limit is
        checked. A check of the whole block would put all fields into its error, the model too.
        """
        # A field that is missing here has failed its own check.
        with suppress(KeyError):
            limits_of({**info.data, "sticky_token_limit": value})
        return value

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this block."""
        return "CondensedMemoryBlock"

    async def _aget(
        self,
        messages: list[ChatMessage] | None = None,
        *,
        session_id: str | None = None,
        **block_kwargs: Any,
    ) -> str:
        """Return the record as text; "" for a session without messages."""
        return self._text_of(await self.arecord(messages or [], session_id))

    async def arecord(
        self,
        messages: Sequence[ChatMessage],
        session_id: str | None = None,
        snapshot: Snapshot | None = None,
    ) -> Section:
        """Return the record for a question in parts; empty for a session without messages, or if it cannot fit.

        Messages are recalled only if messages have left the record. A memory on the same
        store gives its ``snapshot`` of the session.
        """
        await self.tokenizer_fn.load()
        session_id = self._see(session_id)
        search = self._search
        started = perf_counter()
        window = await read_within_limits(search.reader, session_id, snapshot)
        self._store.jobs.last_left.put(session_id, window.last_left)
        recalled = RecalledMessages()
        if window.has_left:
            recalled = await search.recall(session_id, messages, window, snapshot)
        if not search.reader.has_room(window):
            return NO_PARTS
        self._announce_recall(session_id, recalled, perf_counter() - started)
        return search.reader.render(
            session_id, window, recalled.section, recalled.matches
        )

    async def anotice(self, session_id: str) -> None:
        """Summarise and embed in the background; raise a StoreError if the given store has no such session."""
        window = self.window(session_id)
        if window is None or not window.seen.last_id:
            await self._check_log(session_id)
        if self.summarize:
            self.jobs.start(
                self.job_key(session_id),
                self._summarising(session_id),
                self.retry_seconds,
            )
        if self.recall_limit:
            self._search.embed(session_id)

    async def _flush(self, session_id: str) -> None:
        """Summarise a session now, if the block summarises."""
        if self.summarize:
            work = self._summarising(session_id)
            await self.jobs.finish(self.job_key(session_id), work)

    def window(self, session_id: str = DEFAULT_SESSION_ID) -> Window | None:
        """Return the window of the record as this process has read it last; None if it has not."""
        return self._search.reader.window(session_id)

    def index(self, session_id: str = DEFAULT_SESSION_ID) -> MessageIndex | None:
        """Return the index of the messages of a session in this process; None if nothing was indexed."""
        return self._search.index(session_id)

    def used_tools(self, session_id: str = DEFAULT_SESSION_ID) -> bool:
        """Return whether tools were used in the last turn of the record, as this process has shown it."""
        window = self.window(session_id)
        for entry in reversed(window.entries if window else ()):
            if entry.role == MessageRole.USER.value:
                return False
            if entry.role in RESULT_ROLES:
                return True
        return False

    async def amedia(
        self,
        session_id: str,
        roles: Sequence[str],
        room: int,
        tokens: Callable[[ChatMessage], int],
    ) -> list[ContentBlock]:
        """Return the newest media of the last turns within ``room`` tokens, oldest first.

        A line before each medium names its message. The media are of messages in the
        record that was read last. No media stay in memory.

        ``roles``: the roles of the active messages. Without a question among them, or
        while the newest turn of the record has no answer, there are no media. Each
        question after the first takes the place of a turn.
        """
        questions = roles.count(MessageRole.USER.value)
        if not questions:
            return []
        turns = self.media_turns - questions + 1
        reader = self._search.reader
        return await newest_media(reader, session_id, turns, roles, room, tokens)

    async def asummary(self, session_id: str = DEFAULT_SESSION_ID) -> str:
        """Return the running summary of the messages that have left the record; "" if there is none."""
        return (await self._search.reader.read(session_id)).summary

    async def asearch(
        self,
        question: str,
        *,
        session_id: str = DEFAULT_SESSION_ID,
        most: int = 10,
        message_token_limit: int = LONGEST_MESSAGE_TOKENS,
    ) -> list[FoundMessage]:
        """Return the messages of a session that are similar to a question, best first; [] if they share no word.

        With an ``embed_model`` nearly every embedded message is similar; no search waits
        until messages are embedded. The search covers the whole log, including the
        messages of the record, and an answered current turn.
        """
        return await self._search.search(
            session_id, question, most=most, message_limit=message_token_limit
        )

    async def ameasure(self, session_id: str = DEFAULT_SESSION_ID) -> RecordSize:
        """Return the size of the record of a session now, without recalled messages. No cut is stored."""
        reader = self._search.reader
        window = await reader.read(session_id)
        if self.summarize:
            window = window.until_summary()
        else:
            window = window.within_limits()
        if not reader.has_room(window):
            return RecordSize(summarised=window.summarised)
        verbatim = len(window.instructions) + len(window.entries)
        return RecordSize(
            reader.tokens(window), verbatim, window.element.tokens, window.summarised
        )

    def _announce_recall(
        self, session_id: str, recalled: RecalledMessages, seconds: float
    ) -> None:
        """Send an event about the recalled messages, if there are any."""
        messages = recalled.matches
        if not messages:
            return
        send(
            MessagesRecalledEvent(
                session_id=session_id,
                cached=recalled.is_cached,
                seconds=seconds,
                tokens=recalled.section.tokens,
                token_limit=self.recall_limit,
                row_ids=[message.row_ids[0] for message in messages],
                scores=[message.similarity for message in messages],
            )
        )

    @property
    def recall_limit(self) -> int:
        """The tokens for messages that are found for the question; 0 for none."""
        return self._search.reader.recall_limit

    @property
    def sticky_limit(self) -> int:
        """The tokens for sticky messages before the record; 0 for none."""
        return self._search.reader.sticky_limit

    @property
    def jobs(self) -> Jobs:
        """The jobs that summarise sessions."""
        return self._store.jobs.jobs(
            "summary", "Earlier messages were not summarised", SummaryFailedEvent
        )

    @property
    def all_jobs(self) -> tuple[Jobs, ...]:
        """The jobs that summarise, index and embed sessions."""
        search = self._search
        return self.jobs, search.jobs, search.embedding_jobs

    @property
    def _search(self) -> MessageSearch:
        """The search over the log, with the reader of the record. A changed field makes a new search."""
        fields = {**self.__dict__, "llm": None, "embed_model": id(self.embed_model)}
        configured = self._configured
        if configured is None or configured.fields != fields:
            model = embed_model_of(self.embed_model)
            search = MessageSearch(self._make_reader(), model)
            configured = _ConfiguredSearch(fields, search)
            self._configured = configured
        return configured.search

    def _make_reader(self) -> RecordReader:
        """Return a reader with these fields; its room is the limit without the tags and the lines of days."""
        tags = self.tokenizer_fn.count(f"<{self.name}>\n</{self.name}>\n")
        if self.show_days:
            tags += 2 * self.tokenizer_fn.count(TODAY_HEADING.format("2026-11-20"))
        limits = limits_of(self.__dict__)
        return RecordReader(
            store=self._store,
            name=self.name,
            counter=self.tokenizer_fn,
            room=max(self.token_limit - tags, 0),
            limits=limits.messages,
            include_system=self.include_system,
            summarize=self.summarize,
            summary_limit=limits.summary_tokens,
            recall_limit=limits.recall_tokens,
            sticky_limit=limits.sticky_tokens,
            recall_when=self.recall_when,
            show_days=self.show_days,
            time_zone=self.zone,
            keep_tool_results=self.keep_tool_results,
            languages=checked_languages(self.languages),
        )

    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()
        # The search holds the model, and is made anew.
        state["__pydantic_private__"]["_configured"] = None
        return state

    def _summarising(self, session_id: str) -> Callable[[], Awaitable[None]]:
        """Return the work that summarises a session."""
        # Imported here, because only a block with a running summary needs it.
        from llama_index_memory_ext.record.summary import summarise

        key = self.job_key(session_id)
        return partial(
            summarise, self._search.reader, self.chosen_llm, self.jobs, key, self._usage
        )
