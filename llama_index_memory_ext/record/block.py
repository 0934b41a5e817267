"""Shows what was said in a session, condensed into one text within a token limit."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - pydantic reads the annotations of fields
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.bridge.pydantic import Field, PrivateAttr, ValidationInfo, field_validator

from llama_index_memory_ext.background.jobs import JobKey
from llama_index_memory_ext.background.locks import Recent
from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.events import SummaryFailedEvent
from llama_index_memory_ext.log_block import DEFAULT_SESSION_ID, LogBlock
from llama_index_memory_ext.record.entry import truncated
from llama_index_memory_ext.record.options import check_room, summary_limit
from llama_index_memory_ext.record.recall import LONGEST_MESSAGE_TOKENS, FoundMessage, IndexCache, MessageSearch
from llama_index_memory_ext.record.summary import Summarizer
from llama_index_memory_ext.record.window import RecordReader, Window
from llama_index_memory_ext.text.cutting import Limits
from llama_index_memory_ext.text.tokens import CountedText

if TYPE_CHECKING:
    from llama_index.core.base.llms.types import ChatMessage

    from llama_index_memory_ext.background.jobs import Failure, Jobs


class RecordSize(NamedTuple):
    """The size of a record: its tokens without the element around it, and the messages that it shows word for word.

    ``summary_tokens`` are those of the summary within it, which is of ``summarised`` messages.
    """

    tokens: int = 0
    verbatim: int = 0
    summary_tokens: int = 0
    summarised: int = 0


class CondensedMemoryBlock(LogBlock):
    """What was said in this session, oldest first, one element per message, within a token limit.

    The block reads the log of a ``MemoryStore``. While the record fits into its limits it is shown
    whole. When it does not, the oldest messages leave until ``keep_ratio`` of the limit is left, so that
    the beginning of the prompt then stays the same for many turns and can be served from the provider's
    prompt cache. What has left stays in the store; it is summarised with ``summarize``, and found again by the words of
    a question with a ``recall_token_limit``.

    Without a ``store`` the block keeps a private one in memory, fed by the messages that the memory
    flushes: it works in any ``Memory.from_defaults(memory_blocks=[...])``, and is empty after a restart.
    With a ``store``, give the same one to the memory: ``Memory.from_defaults(chat_store=store, ...)``.
    One block may serve many sessions; none sees another's messages. A summary is made in the event loop of ``aput``,
    which must go on then: in a plain ``Memory``, call ``aput`` rather than ``put``.

    Raises:
        ValueError: ``keep_messages`` is larger than ``max_messages``, or no room is left beside summary and recall.
        StoreError: By ``aput``, if the given store has never seen the session: the memory keeps its messages elsewhere.

    Examples:
        >>> CondensedMemoryBlock(token_limit=8_000).name
        'condensed_memory'
    """

    name: str = Field(default="condensed_memory", description="The name of the element around the record.")
    token_limit: int = Field(
        default=50_000,
        ge=1,
        description="Most tokens of all that the block shows: tags, summary and recalled messages included.",
    )
    keep_ratio: float = Field(
        default=0.75, gt=0, le=1, description="Share of the limit that is left when the record is cut; 1: each turn."
    )
    message_ratio: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of the limit that one message (a tool call with its results counts as one) may have; a "
        "longer one is clipped in its middle. Default: 0.5, or 1 with `allow_partial`.",
    )
    max_messages: int | None = Field(
        default=None, ge=1, description="Most messages of the record; None for any number."
    )
    keep_messages: int | None = Field(
        default=None,
        ge=1,
        description="Messages that are left when there are over `max_messages`; default: `keep_ratio` of them.",
    )
    allow_partial: bool = Field(
        default=False, description="Whether the end of a message is shown that only partly fits, instead of its middle."
    )
    text_splitter: Any = Field(
        default=None,
        exclude=True,
        repr=False,
        description="A function from text to its pieces, or a LlamaIndex text splitter: of a message that only partly "
        "fits, whole pieces are shown. None: as many tokens as fit.",
    )
    start_on: str | Sequence[str] | None = Field(
        default=None,
        description="Roles with one of which the record begins; earlier messages are not shown, unless there is no "
        "message of these roles in the record.",
    )
    end_on: str | Sequence[str] | None = Field(
        default=None, description="Roles with one of which the record ends; later messages are not shown yet."
    )
    include_system: bool = Field(
        default=False, description="Whether a first message of instructions (system, developer) stays for good."
    )
    summarize: bool = Field(
        default=False, description="Whether a model sums up what leaves the record, in the background."
    )
    summary_token_limit: int | None = Field(
        default=None, ge=1, description="Most tokens of the summary; default: a quarter of the limit, at most 1,000."
    )
    recall_token_limit: int = Field(
        default=0,
        ge=0,
        validate_default=True,
        description="Most tokens of earlier messages that are found for the question; 0: none.",
    )

    _windows: Recent[str, Window] = PrivateAttr(default_factory=Recent)
    _indexes: IndexCache = PrivateAttr(default_factory=IndexCache)

    # Checked field by field, because an error of the whole block would carry all of its fields, the model too.
    @field_validator("keep_messages", "text_splitter", "start_on", "end_on", "include_system")
    @classmethod
    def _check_limits(cls, value: Any, info: ValidationInfo) -> Any:
        Limits.checked(**{"max_messages": info.data.get("max_messages"), str(info.field_name): value})
        return value

    @field_validator("recall_token_limit")
    @classmethod
    def _check_room(cls, value: int, info: ValidationInfo) -> int:
        """The last field, so that all others are known."""
        limit = info.data.get("token_limit")
        if limit is not None:
            summary = summary_limit(limit, info.data.get("summary_token_limit")) if info.data.get("summarize") else 0
            check_room(limit, value + summary)
        return value

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex serialises this block."""
        return "CondensedMemoryBlock"

    # ---- what the host calls -----------------------------------------------------------------------

    async def _aget(
        self, messages: list[ChatMessage] | None = None, *, session_id: str | None = None, **block_kwargs: Any
    ) -> str:
        """The record as text, one line-ended element per message; empty if nothing was said yet."""
        session_id = session_id or DEFAULT_SESSION_ID
        reader = self._reader
        window = await reader.read(session_id)
        if window.is_over:
            window = reader.fit(session_id, window) if self.summarize else await reader.cut(session_id, window)
        return self._render(window, await self._earlier(session_id, window, messages or []))

    async def atruncate(self, content: Any, tokens_to_truncate: int) -> str | None:
        """The record, at least ``tokens_to_truncate`` tokens shorter: what was recalled goes first, then the oldest.

        None if nothing is left, or nothing was there.
        """
        is_record = content and isinstance(content, str)
        return (truncated(content, tokens_to_truncate, self.tokenizer_fn) or None) if is_record else None

    async def anotice(self, session_id: str) -> None:
        """The log of a session has grown: sum up in the background what leaves its record.

        Raises:
            StoreError: The given store holds no message of the session.
        """
        if session_id not in self._windows and not await self._store.users.knows(session_id):
            raise StoreError(
                f"{self.class_name()}(store=...) shows the log of its store, but that store holds no message of "
                f"session {session_id!r}: the memory keeps them elsewhere. Give both the same store: "
                "Memory.from_defaults(chat_store=store, memory_blocks=[...])."
            )
        if self.summarize:
            key = self.job_key(session_id)
            self.jobs.start(key, self._summarizer(session_id).run, self.retry_seconds)

    # ---- its own methods ---------------------------------------------------------------------------

    async def aflush(self, session_id: str = DEFAULT_SESSION_ID) -> None:
        """Wait until what has left the record is summarised; after a failure the next start tries again."""
        if self.summarize:
            await self.jobs.finish(self.job_key(session_id), self._summarizer(session_id).run)

    async def await_jobs(self, session_id: str) -> None:
        """Wait for the jobs of a session that are under way; those that pause after a failure are cancelled."""
        await super().await_jobs(session_id)
        await self._search.jobs.wait(self.job_key(session_id))

    async def asummary(self, session_id: str = DEFAULT_SESSION_ID) -> str:
        """The running summary of what has left the record; "" if there is none."""
        return (await self._reader.read(session_id)).preamble.summary

    async def asearch(
        self,
        question: str,
        *,
        session_id: str = DEFAULT_SESSION_ID,
        most: int = 10,
        message_token_limit: int = LONGEST_MESSAGE_TOKENS,
    ) -> list[FoundMessage]:
        """The messages of a session that are similar to a question, best first; [] if they share no word.

        All of the log is searched, what the record shows too, but not the turn that is going on.
        """
        return await self._search.search(session_id, question, most=most, message_limit=message_token_limit)

    async def ameasure(self, session_id: str = DEFAULT_SESSION_ID) -> RecordSize:
        """How large the record of a session would be now, without what is recalled; nothing is cut for it."""
        window = await self._reader.read(session_id)
        selection, kept, preamble = window.selection, window.kept, window.preamble
        if window.is_over:
            fitted = selection.fit(kept.all) if self.summarize else None
            window = window.showing(selection.evict(kept) if fitted is None else type(kept)(None, fitted))
        if not self._has_room(window):
            return RecordSize(summarised=preamble.summarised)
        shown = len(window.shown) + (preamble.system is not None)
        return RecordSize(window.tokens, shown, preamble.tokens, preamble.summarised)

    @property
    def jobs(self) -> Jobs:
        """The jobs that sum up sessions."""
        return self._store.jobs.jobs("summary", "Earlier messages were not summarised", SummaryFailedEvent)

    def failures_of(self, session_id: str) -> dict[str, Failure]:
        """The last failures of a session's jobs since their last success, by kind; {} if there are none."""
        jobs = self._search.jobs
        failure = jobs.failure_of(self.job_key(session_id))
        return {**super().failures_of(session_id), **({jobs.kind: failure} if failure else {})}

    def job_key(self, session_id: str) -> JobKey:
        """The key of this block's jobs of a session."""
        return JobKey(session_id, self.name)

    # ---- its parts ---------------------------------------------------------------------------------

    @property
    def _reader(self) -> RecordReader:
        return RecordReader(self._store, self, self._windows)

    @property
    def _search(self) -> MessageSearch:
        return MessageSearch(self._store, self.name, self.tokenizer_fn, self._indexes)

    def _summarizer(self, session_id: str) -> Summarizer:
        return Summarizer(session_id, self._reader, self.llm, self.jobs, self.job_key(session_id))

    def _has_room(self, window: Window) -> bool:
        return window.tokens <= window.room - self.recall_token_limit

    async def _earlier(self, session_id: str, window: Window, messages: Sequence[ChatMessage]) -> CountedText:
        """The messages from before the record that matter for the question."""
        has_left = window.seen.position or window.has_overflow or self.start_on
        if not self.recall_token_limit or not has_left:
            return CountedText("", 0)
        whole = [entry for entry in window.shown if entry.row_id > window.seen.position]
        return await self._search.recall(
            session_id,
            messages,
            seen=window.seen,
            before=whole[0].row_id if whole else window.seen.last_id + 1,
            limit=self.recall_token_limit,
        )

    def _render(self, window: Window, earlier: CountedText) -> str:
        if not self._has_room(window):
            return ""
        counter, text = self.tokenizer_fn, window.text + earlier
        if counter.adds_up:
            return CountedText(text, window.tokens + earlier.tokens)
        while text and counter.count(text) > window.room:
            text = truncated(text, 1, counter)
        return text
