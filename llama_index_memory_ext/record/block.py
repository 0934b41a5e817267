"""Shows what was said in a session, condensed into one text within a token limit."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from itertools import takewhile
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import (
    ChatMessage,
    ContentBlock,
    MessageRole,
    TextBlock,
)
from llama_index.core.bridge.pydantic import (
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
)
from typing_extensions import TypedDict

from llama_index_memory_ext.errors import LimitError, StoreError
from llama_index_memory_ext.events import (
    MessagesRecalledEvent,
    SummaryFailedEvent,
    is_heard,
    send,
)
from llama_index_memory_ext.language.tokens import checked_languages
from llama_index_memory_ext.models.local_embeddings import EmbedModel, embed_model_of
from llama_index_memory_ext.models.responses import Usage
from llama_index_memory_ext.reader_block import DEFAULT_SESSION_ID, LogBlock
from llama_index_memory_ext.record.recall import (
    LONGEST_MESSAGE_TOKENS,
    FoundMessage,
    MessageSearch,
)
from llama_index_memory_ext.record.text import (
    MIN_ROOM,
    NO_TEXT,
    TODAY_HEADING,
    truncated,
)
from llama_index_memory_ext.record.window import (
    CachePoints,
    RecordReader,
    cache_points_in,
)
from llama_index_memory_ext.settings import Switch
from llama_index_memory_ext.text.limits import Limits
from llama_index_memory_ext.text.tool_calls import RESULT_ROLES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from llama_index_memory_ext.background.jobs import Jobs
    from llama_index_memory_ext.store.tables import Snapshot
    from llama_index_memory_ext.text.tokens import CountedText

_MAX_SUMMARY_TOKENS = 1_000
_MAX_RECALL_TOKENS = 2_000
# With less, an eighth of it shows a few words of a message.
_LEAST_WITH_RECALL = 1_000


class CondensedOptions(TypedDict, total=False):
    """How a conversation is kept short: options of a ``CondensedMemoryBlock``, which documents them."""

    keep_ratio: float
    max_messages: int | None
    keep_messages: int | None
    include_system: bool
    show_days: bool
    summarize: bool
    summary_token_limit: int | None
    recall_token_limit: int | None
    media_turns: int
    keep_tool_results: int | None


class RecordSize(NamedTuple):
    """The tokens of a record without its element, its ``verbatim`` messages, and the summary of ``summarised`` ones."""

    record_tokens: int = 0
    verbatim: int = 0
    summary_tokens: int = 0
    summarised: int = 0


class CondensedMemoryBlock(LogBlock):
    """What was said in this session, oldest first, one element per message, within a token limit.

    The block reads the log of a ``MemoryStore``. While the record fits into its limits
    it is shown whole. When it does not, the oldest messages leave until ``keep_ratio``
    of the limit is left, so that the beginning of the prompt then stays the same for
    many turns and can be served from the provider's prompt cache. What has left stays
    in the store; it is found again within ``recall_token_limit`` by the words of a
    question, with an ``embed_model`` by their meaning, too, and summarised with
    ``summarize``.

    Without a ``store`` the block keeps a private one in memory, fed by the messages
    that the memory flushes: it works in any
    ``Memory.from_defaults(memory_blocks=[...])``, and is empty after a restart. With a
    ``store``, give the same one to the memory: ``Memory.from_defaults(chat_store=store,
    ...)``. One block may serve many sessions; none sees another's messages. A summary
    is made in the event loop of ``aput``, which must go on then: in a plain ``Memory``,
    call ``aput`` rather than ``put``.

    Raises:
        ValueError: ``keep_messages`` is larger than ``max_messages``, or summary and
            recall leave no room.
        StoreError: By ``aput``, if the given store has never seen the session: the
            memory keeps its messages elsewhere.

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
        description="Most tokens of all that is shown: tags, summary and recalled messages too.",
    )
    keep_ratio: float = Field(
        default=0.4,
        gt=0,
        le=1,
        description="Share of the limit that is left when the record is cut; 1: each turn.",
    )
    max_messages: int | None = Field(
        default=None, ge=1, description="Most messages of the record; None: any number."
    )
    keep_messages: int | None = Field(
        default=None,
        ge=1,
        description="Messages that are left when the record is cut; default: by `keep_ratio`.",
    )
    include_system: Switch = Field(
        default=False, description="Whether a first system or developer message stays."
    )
    show_days: Switch = Field(
        default=True,
        description="Whether the days of the messages (UTC) stand above them, and today below those of other days.",
    )
    summarize: Switch = Field(
        default=False,
        description="Whether a model sums up, in the background, what has left.",
    )
    summary_token_limit: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens of the summary; default: a quarter of the limit, at most 1,000.",
    )
    embed_model: EmbedModel = Field(
        default=None,
        exclude=True,
        repr=False,
        description="Ranks messages that are found for a question, together with their words; None: words alone.",
    )
    recall_token_limit: int | None = Field(
        default=None,
        ge=0,
        validate_default=True,
        description="Tokens for messages found for the question, which get three tenths more if it asks something and "
        "the record leaves them free; 0: none; default: an eighth of a limit of at least 1,000, at most 2,000.",
    )

    media_turns: int = Field(
        default=2,
        ge=0,
        description="Turns before this one whose media a `CondensedMemory` sends again; 0: none.",
    )
    keep_tool_results: int | None = Field(
        default=None,
        ge=0,
        description="Turns before a cut whose tool results stay; those of older turns are one line each from then on, "
        "with their size. The calls stay, and a search finds the results whole. None: all stay.",
    )
    cache_points: CachePoints = Field(
        default=False,
        description="Whether the record comes as text blocks with cache points between them, for models that find a "
        "prompt only where it is marked; a LlamaIndex `CacheControl` sets their type and ttl. The memory needs a "
        "`memory_blocks_template` of `MemoryBlocksTemplate()` then. In a `CondensedMemory`, set it there.",
    )

    _made: tuple[dict[str, Any], MessageSearch] | None = PrivateAttr(default=None)
    _usage: dict[str, Usage] = PrivateAttr(default_factory=dict)

    @field_validator("recall_token_limit")
    @classmethod
    def _check_fields(cls, value: int | None, info: ValidationInfo) -> int | None:
        """Return the last field, so that all others are known; an error of the whole block would carry them, the model too."""
        # Where one is missing, it is wrong itself.
        with suppress(KeyError):
            _limits_of({**info.data, "recall_token_limit": value})
        return value

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this block."""
        return "CondensedMemoryBlock"

    async def _aget(  # type: ignore[override]  # blocks, too
        self,
        messages: list[ChatMessage] | None = None,
        *,
        session_id: str | None = None,
        snapshot: Snapshot | None = None,
        **block_kwargs: Any,
    ) -> str | list[ContentBlock]:
        """Return the record, one line-ended element per message: as text, or as blocks with `cache_points`.

        It is empty if nothing was said yet. A memory on the same store gives its
        `snapshot` of the session.
        """
        await self.tokenizer_fn.load()
        session_id = self._see(session_id)
        search = self._search
        started = perf_counter()
        window = await search.reader.shown(session_id, snapshot)
        before = search.recalled.get(session_id)
        if window.has_left:
            earlier = await search.recall(session_id, messages or [], window)
        else:
            earlier = NO_TEXT
        if snapshot is None and not self.last_seen(session_id):
            self._advise(messages or [])
        if not search.reader.has_room(window):
            return ""
        cached = before is not None and before[1] is earlier
        self._tell(
            earlier,
            session_id=session_id,
            cached=cached,
            seconds=perf_counter() - started,
        )
        record = search.reader.text(session_id, window, earlier)
        if not (self.cache_points and record):
            return record
        return record.content_blocks(self.cache_points, cache_points_in(messages or []))

    async def atruncate(self, content: Any, tokens_to_truncate: int) -> str | None:
        """Return the record as text, at least so many tokens shorter; None if nothing is left.

        First what was recalled is left out, then the oldest messages.
        """
        if isinstance(content, str):
            blocks = [TextBlock(text=content)]
        else:
            blocks = content or []
        text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
        return (
            await asyncio.to_thread(
                truncated, text, tokens_to_truncate, self.tokenizer_fn
            )
            or None
        )

    async def anotice(self, session_id: str) -> None:
        """Sum up and embed in the background; a StoreError if the given store has no such session."""
        if (
            session_id not in self._search.reader.windows
            and not await self._store.users.knows(session_id)
        ):
            raise StoreError(
                f"{self.class_name()}(store=...) shows the log of its store, but that store holds no message of "
                f"session {session_id!r}: the memory keeps them elsewhere. Give both the same store: "
                "Memory.from_defaults(chat_store=store, memory_blocks=[...])."
            )
        if self.summarize:
            self.jobs.start(
                self.job_key(session_id),
                self._summarising(session_id),
                self.retry_seconds,
            )
        if self.recall_limit:
            self._search.embed(session_id)

    async def aflush(self, session_id: str | None = None) -> None:
        """Wait until what has left the record is summarised, of a session, or of each that this block has seen.

        After a failure the next start tries again.
        """
        for session in self._take_seen(session_id):
            if self.summarize:
                await self.jobs.finish(
                    self.job_key(session), self._summarising(session)
                )

    def last_seen(self, session_id: str = DEFAULT_SESSION_ID) -> int:
        """Return the id of the last row of the log that the record has taken; 0 if this process does not know the session."""
        window = self._search.reader.windows.get(session_id)
        return window.seen.last_id if window else 0

    def used_tools(self, session_id: str = DEFAULT_SESSION_ID) -> bool:
        """Return whether tools were used in the last turn of the record, as this process has shown it."""
        window = self._search.reader.windows.get(session_id)
        newest = reversed(window.kept if window else ())
        last_turn = takewhile(
            lambda role: role != MessageRole.USER.value,
            (entry.role for entry in newest),
        )
        return any(role in RESULT_ROLES for role in last_turn)

    async def amedia(
        self,
        session_id: str,
        questions: int,
        room: int,
        tokens: Callable[[ChatMessage], int],
    ) -> list[ContentBlock]:
        """Return the newest media of the last turns within ``room`` tokens, oldest first, each behind a line that says whose.

        They are of messages that the record has just shown. ``questions`` are those of
        the turn that is shown as it is: with none there is no message for media, and
        each further one is one turn less. Only media that are shown are read, and the
        next ones; none is kept.
        """
        turns = self.media_turns - questions + 1
        if questions:
            return await self._search.reader.media(session_id, turns, room, tokens)
        return []

    async def asummary(self, session_id: str = DEFAULT_SESSION_ID) -> str:
        """Return the running summary of what has left the record; "" if there is none."""
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

        With an ``embed_model`` nearly every message is similar once it is embedded, for
        which no search waits. All of the log is searched, what the record shows too,
        but not the turn that is going on.
        """
        return await self._search.search(
            session_id, question, most=most, message_limit=message_token_limit
        )

    async def ameasure(self, session_id: str = DEFAULT_SESSION_ID) -> RecordSize:
        """Return how large the record of a session would be now, without what is recalled; nothing is cut for it."""
        reader = self._search.reader
        window = await reader.read(session_id)
        if window.is_over:
            if self.summarize:
                window = window.fitted()
            else:
                window = window.evicted()
        if not reader.has_room(window):
            return RecordSize(summarised=window.summarised)
        verbatim = len(window.instructions) + len(window.kept)
        return RecordSize(
            reader.tokens(window), verbatim, window.element.tokens, window.summarised
        )

    def _tell(self, earlier: CountedText, **about: Any) -> None:
        """Send an event about earlier messages that were found for a question, if there are any."""
        if not (earlier.shown and is_heard()):
            return
        found = [message for message, _ in earlier.shown]
        about |= {
            "row_ids": [one.row_ids[0] for one in found],
            "scores": [one.similarity for one in found],
        }
        send(
            MessagesRecalledEvent(
                tokens=earlier.tokens, token_limit=self.recall_limit, **about
            )
        )

    @property
    def usage(self) -> dict[str, Usage]:
        """The calls of the model by this block and their tokens, as "summary"."""
        return dict(self._usage)

    @property
    def recall_limit(self) -> int:
        """The tokens for messages that are found for the question; 0 for none."""
        return self._search.reader.recall_limit

    @property
    def jobs(self) -> Jobs:
        """The jobs that sum up sessions."""
        return self._store.jobs.jobs(
            "summary", "Earlier messages were not summarised", SummaryFailedEvent
        )

    @property
    def all_jobs(self) -> tuple[Jobs, ...]:
        """The jobs that sum up sessions, and those that index and embed them."""
        return self.jobs, self._search.jobs, self._search.embedding_jobs

    @property
    def _search(self) -> MessageSearch:
        """What searches the record, and reads it; it remembers what it has read. A changed field makes it anew."""
        fields = {**self.__dict__, "llm": None, "embed_model": id(self.embed_model)}
        if self._made is None or self._made[0] != fields:
            tags = self.tokenizer_fn.count(f"<{self.name}>\n</{self.name}>\n")
            if self.show_days:
                tags += 2 * self.tokenizer_fn.count(TODAY_HEADING.format("2026-11-20"))
            limits, summary_limit, recall_limit = _limits_of(self.__dict__)
            reader = RecordReader(
                store=self._store,
                name=self.name,
                counter=self.tokenizer_fn,
                room=max(self.token_limit - tags, 0),
                limits=limits,
                include_system=self.include_system,
                summarize=self.summarize,
                summary_limit=summary_limit,
                recall_limit=recall_limit,
                show_days=self.show_days,
                keep_tool_results=self.keep_tool_results,
                languages=checked_languages(self.languages),
            )
            self._made = fields, MessageSearch(reader, embed_model_of(self.embed_model))
        return self._made[1]

    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()
        # The search holds the model, and is made anew.
        state["__pydantic_private__"]["_made"] = None
        return state

    def _summarising(self, session_id: str) -> Callable[[], Awaitable[None]]:
        from llama_index_memory_ext.record.summary import (
            summarise,
        )  # where a running summary is kept

        key = self.job_key(session_id)
        return partial(
            summarise, self._search.reader, self.chosen_llm, self.jobs, key, self._usage
        )


def _limits_of(fields: Mapping[str, Any]) -> tuple[Limits, int, int]:
    """Return the limits of the messages, of the summary and of recall by a block's fields; a LimitError if they do not fit."""
    most = fields["max_messages"]
    keep = fields["keep_messages"]
    ratio = fields["keep_ratio"]
    limits = Limits.checked(
        None, most, keep, ratio, include_system=fields["include_system"]
    )
    token_limit, summary, recall = (
        fields[f"{name}token_limit"] for name in ("", "summary_", "recall_")
    )
    if summary is None:
        summary = max(1, min(_MAX_SUMMARY_TOKENS, token_limit // 4))
    reserved = summary if fields["summarize"] else 0
    if recall is None:
        if token_limit >= _LEAST_WITH_RECALL:
            share = token_limit // 8
        else:
            share = 0
        recall = max(
            min(share, _MAX_RECALL_TOKENS, token_limit - reserved - MIN_ROOM), 0
        )
    reserved += recall
    if reserved and reserved + MIN_ROOM > token_limit:
        raise LimitError(
            f"The summary and what is recalled may have {reserved} tokens, and leave no room for messages in "
            f"the {token_limit} of the whole record. Raise token_limit (condensed_token_limit of the memory), "
            "or lower summary_token_limit or recall_token_limit."
        )
    return limits, summary, recall
