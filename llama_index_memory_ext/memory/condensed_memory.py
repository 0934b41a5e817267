"""The LlamaIndex Memory that joins a store and the blocks, and shows the model one message."""

from __future__ import annotations

import asyncio
import inspect
import logging
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
)

from llama_index.core.base.llms.types import (
    ChatMessage,
    ContentBlock,
    MessageRole,
    TextBlock,
)
from llama_index.core.bridge.pydantic import Field, PrivateAttr, model_validator
from llama_index.core.memory import BaseMemoryBlock, InsertMethod, Memory
from llama_index.core.prompts import RichPromptTemplate
from pydantic import AfterValidator
from typing_extensions import Self, Unpack

from llama_index_memory_ext.background.jobs import log_failure
from llama_index_memory_ext.background.locks import is_running, lock_for, single_run
from llama_index_memory_ext.background.loop import in_sync
from llama_index_memory_ext.blocks import Counter, LogBlock
from llama_index_memory_ext.blocks.facts import FactsOptions, RelevantFactsBlock
from llama_index_memory_ext.blocks.record import CondensedMemoryBlock, CondensedOptions
from llama_index_memory_ext.errors import (
    MessageError,
    SessionOwnerError,
    SettingError,
    StoreError,
    StoreTimeoutError,
)
from llama_index_memory_ext.events import MemoryFailure, failure_handler
from llama_index_memory_ext.facts.ranking import PROFILE_NAME, RecordInPrompt
from llama_index_memory_ext.formats import Layout, messages_to_json, moved_from_json
from llama_index_memory_ext.memory import template
from llama_index_memory_ext.memory.search import MemorySearchResult, check_search
from llama_index_memory_ext.memory.settings import (
    DEFAULT_TOKEN_LIMIT,
    StorePlace,
    check_cache_points,
    limits_for,
    session_id_for,
    store_for,
)
from llama_index_memory_ext.memory.stats import MemoryStats, read_stats
from llama_index_memory_ext.models.ask import warn_of_server_history
from llama_index_memory_ext.record.window import CachePoints, has_answer_before_question
from llama_index_memory_ext.settings import (
    Switch,
    TimeZone,
    build_checked,
    check_id,
    check_names,
    describe_value,
    unpacked,
)
from llama_index_memory_ext.store import DEFAULT_TABLE_NAME, MemoryStore, warn_of_unused
from llama_index_memory_ext.store.rows import (
    LogRow,
    ReadPosition,
    SessionAccess,
    Snapshot,
)
from llama_index_memory_ext.text.entries import (
    MEDIA_TOKENS,
    body_of,
    characters_of,
    tokens_with_pictures,
)
from llama_index_memory_ext.text.messages import (
    Plan,
    checked_messages,
    how_to_put,
    redact_message,
    speaker_of,
)
from llama_index_memory_ext.text.tokens import LONG_CHARACTERS, TokenCounter, as_counter
from llama_index_memory_ext.text.turns import (
    count_leaving,
    ends_with_answer,
    is_answer,
    leaving_at_end,
)

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from datetime import tzinfo

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.llms.llm import LLM
    from llama_index.core.storage.chat_store.base_db import MessageStatus
    from sqlalchemy.ext.asyncio import AsyncEngine

    from llama_index_memory_ext.facts.book import FactBook
    from llama_index_memory_ext.memory.backfill import Backfilled
    from llama_index_memory_ext.record.recall import FoundMessage
    from llama_index_memory_ext.store.address import Address
    from llama_index_memory_ext.store.encryption import EncryptionKey, TextFunction

logger = logging.getLogger(__name__)

# At this share of the token limit or less, every turn but the newest leaves short-term
# memory, however short it is.
FLUSH_EVERY_TURN = 0.0001

# Ends the docstring of a synchronous call.
_WAITS = ", then wait for extraction, summary and embeddings of this session"

B = TypeVar("B", bound=LogBlock)

# None stores texts unchanged.
Redact: TypeAlias = Callable[[str], str] | None


def _checked_handler(handler: Any) -> Any:
    """Return ``on_error``; a SettingError for an ``async def``, which nothing would await."""
    calls = (handler, getattr(handler, "__call__", None))  # noqa: B004 - an object may have an async __call__
    if any(map(inspect.iscoroutinefunction, calls)):
        raise SettingError(
            "on_error must be a plain function; saw an async def, which would never run. Pass a function that starts a "
            "task: asyncio.create_task(...)."
        )
    return handler


ErrorHandler: TypeAlias = Annotated[
    Callable[[MemoryFailure], object] | None, AfterValidator(_checked_handler)
]


async def _wait_for_jobs(memory: CondensedMemory) -> None:
    await memory.sql_store.jobs.wait_for_session(memory.session_id)


class MemoryOptions(CondensedOptions, FactsOptions, total=False):
    """The settings of both blocks that ``CondensedMemory.from_defaults`` takes by name.

    ``CondensedMemoryBlock`` and ``RelevantFactsBlock`` document them, and so does
    ``help`` of that function.
    """

    languages: Sequence[str] | None


class _Turn(NamedTuple):
    """The current turn of a session, read for a prompt.

    ``messages``: the active messages of the session; none if the question follows.
    ``query``: the messages and the question, for which the blocks select their content.
    ``question_follows``: the caller sends the question behind the prompt.
    ``unread``: the user's words in other sessions that were not read for facts.
    """

    snapshot: Snapshot
    messages: list[ChatMessage]
    query: list[ChatMessage]
    question_follows: bool
    unread: Sequence[LogRow] = ()


class _FittedContents(NamedTuple):
    """The contents of the memory blocks, truncated to a number of tokens.

    ``contents``: the content of each block, by its name.
    ``joined``: these contents as the content of one message.
    ``messages``: further messages, from blocks whose content is messages.
    ``tokens_left``: below 0 if the contents are still too long.
    """

    contents: dict[str, Any]
    joined: list[ContentBlock]
    messages: list[ChatMessage]
    tokens_left: int


class CondensedMemory(Memory):
    """A LlamaIndex ``Memory`` that shows the model one message: the earlier conversation, and the question.

    Build it with ``from_defaults``, pass it to every run, ``agent.run(question,
    memory=memory)``, and close it with ``await memory.aclose()``, or use it as ``async
    with CondensedMemory.from_defaults(...)``.

    LlamaIndex cannot keep two concurrent runs of one session apart: the later question
    moves the earlier question out of short-term memory. Put each run into ``async with
    memory.turn():``, so that they run one after the other.

    Examples:
        >>> memory = CondensedMemory.from_defaults(user_id="ann", extract_facts=False)
        >>> memory.put(ChatMessage("I live in Rome."))
        >>> memory.put(ChatMessage("Noted.", role="assistant"))
        >>> fact = memory.facts.add("Likes tea")
        >>> [message.content for message in memory.get_all()]
        ['I live in Rome.', 'Noted.']
        >>> memory.search("Where do I live?").messages[0].text
        'I live in Rome.'
        >>> memory.close()
    """

    # Fields of the host with different defaults.
    token_limit: int = DEFAULT_TOKEN_LIMIT
    chat_history_token_ratio: float = Field(default=FLUSH_EVERY_TURN, ge=0, le=1)
    image_token_size_estimate: int = Field(default=256, ge=0)
    audio_token_size_estimate: int = Field(default=256, ge=0)
    video_token_size_estimate: int = Field(default=256, ge=0)
    memory_blocks_template: RichPromptTemplate = Field(
        default_factory=template.MemoryBlocksTemplate
    )
    insert_method: InsertMethod = InsertMethod.USER
    tokenizer_fn: Counter = Field(
        default_factory=TokenCounter, exclude=True, repr=False
    )
    redact: Redact = Field(
        default=None,
        exclude=True,
        repr=False,
        description="Changes each text before it is stored.",
    )
    on_error: ErrorHandler = Field(default=None, exclude=True, repr=False)
    cache_points: CachePoints = False
    user_id: str | None = None
    shared: Switch = False
    temporary: Switch = False
    time_zone: TimeZone = None
    sql_store: MemoryStore = Field(
        default_factory=MemoryStore, exclude=True, repr=False
    )

    _owns_store: bool = PrivateAttr(default=False)
    _opened: bool = PrivateAttr(default=False)
    # Whether a program has called anything of this memory but close, and whether it has
    # looked at the facts.
    _is_used: bool = PrivateAttr(default=False)
    _has_only_facts: bool = PrivateAttr(default=False)
    # A hash of the last question: a pickle must not hold the words of users. The
    # sources of the last prompt stay out of pickles, too.
    _question_hash: int = PrivateAttr(default=0)
    _last_sources: MemorySearchResult | None = PrivateAttr(default=None)

    if not TYPE_CHECKING:  # With this method, a type checker would not know the fields.

        def __init__(self, **values: Any) -> None:
            build_checked(type(self), super().__init__, **values)

    @model_validator(mode="before")
    @classmethod
    def _check_blocks(cls, values: dict[str, Any]) -> dict[str, Any]:
        kinds = {type(block) for block in values.get("memory_blocks", ())}
        if not {CondensedMemoryBlock, RelevantFactsBlock} <= kinds:
            raise SettingError(
                "A CondensedMemory needs a CondensedMemoryBlock and a RelevantFactsBlock on the same store. Build it "
                "with CondensedMemory.from_defaults(...)."
            )
        # The host's validators run later and would take a tokenizer of another model.
        return {
            "token_limit": DEFAULT_TOKEN_LIMIT,
            "tokenizer_fn": TokenCounter(),
            **values,
        }

    @model_validator(mode="after")
    def _share_time_zone(self) -> Self:
        for block in self.memory_blocks:
            if isinstance(block, LogBlock) and self.time_zone is not None:
                block.time_zone = self.time_zone
        return self

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this memory."""
        return "CondensedMemory"

    @classmethod
    @unpacked(MemoryOptions, CondensedMemoryBlock, RelevantFactsBlock)
    def from_defaults(  # type: ignore[override]  # more arguments than the host's, and no other chat store
        cls,
        session_id: str | None = None,
        chat_history: list[ChatMessage] | None = None,
        token_limit: int | None = None,
        memory_blocks: list[BaseMemoryBlock[Any]] | None = None,
        tokenizer_fn: Callable[[str], list[Any]] | None = None,
        chat_history_token_ratio: float = FLUSH_EVERY_TURN,
        token_flush_size: int | None = None,
        memory_blocks_template: RichPromptTemplate | None = None,
        insert_method: InsertMethod | str = InsertMethod.USER,
        image_token_size_estimate: int = 256,
        audio_token_size_estimate: int = 256,
        video_token_size_estimate: int = 256,
        chat_store: MemoryStore | None = None,
        table_name: str = DEFAULT_TABLE_NAME,
        async_database_uri: Address = None,
        async_engine: AsyncEngine | None = None,
        db_schema: str | None = None,
        memory_blocks_concurrency: int = 1,
        *,
        context_window: int | None = None,
        condensed_token_limit: int | None = None,
        facts_token_limit: int | None = None,
        user_id: str | None = None,
        shared: bool = False,
        llm: LLM | None = None,
        embed_model: BaseEmbedding | Literal["local"] | None = None,
        cache_points: CachePoints = False,
        redact: Redact = None,
        on_error: ErrorHandler = None,
        encryption_key: EncryptionKey = None,
        encrypt: TextFunction = None,
        decrypt: TextFunction = None,
        temporary: bool = False,
        time_zone: str | tzinfo | None = None,
        **settings: Unpack[MemoryOptions],
    ) -> CondensedMemory:
        """Return a memory with a condensed block and a facts block on one store.

        The arguments up to ``memory_blocks_concurrency`` are the arguments of
        ``Memory.from_defaults``, in the same order.

        Args:
            session_id: The name of the conversation. Needed with a database that
                outlives the process.
            chat_history: Replaces the messages of the session.
            token_limit: Most tokens of a prompt to which this package adds something.
                If the messages of the current turn alone are longer, nothing is added.
                Default: three quarters of the window, at most 60,000.
            memory_blocks: Further blocks, shown behind the record and the facts.
            tokenizer_fn: Counts the tokens; default: o200k_base, exact and offline.
            chat_history_token_ratio: Share of the token limit, 0..1, for turns that are
                shown as separate messages. By default every turn but the newest is
                condensed.
            token_flush_size: Has no effect, because whole turns move into the record; a
                UserWarning says so.
            memory_blocks_template: Joins the texts of the blocks; default: unchanged,
                within ``<memory>``.
            insert_method: ``"user"``, in front of the question, or ``"system"``.
            image_token_size_estimate: Tokens of an image, at least 0. If its bytes are
                in the message, LlamaIndex's estimate is taken where it is higher.
            audio_token_size_estimate: Tokens of an audio block, at least 0.
            video_token_size_estimate: Tokens of a video, at least 0.
            chat_store: Your store, in place of the following four arguments and of
                ``encryption_key``, ``encrypt`` and ``decrypt``. You close it.
            table_name: The chat table.
            async_database_uri: SQLite or PostgreSQL, or the ``Path`` of a SQLite file;
                default: in memory.
            async_engine: Your engine. You close it.
            db_schema: The schema of the tables, where the database has schemas.
            memory_blocks_concurrency: Has no effect, because one block is read after
                the other; a UserWarning says so.
            context_window: Most tokens of prompt and answer of the model that answers.
                Default: the window of ``llm``, or of ``Settings.llm`` if the program
                has set one. It may be unknown.
            condensed_token_limit: Most tokens of the record, with its summary and
                recalled messages. Default: ``token_limit`` without the facts and
                without a quarter (at most 8,000) for the turn, at most 50,000.
            facts_token_limit: Most tokens of the facts; 0 shows none; default: an
                eighth of ``token_limit``, at most 2,000.
            user_id: The owner of the session and of its facts. The facts are shown in
                all sessions of this user, and no other user may open the session.
                Default: each session has an anonymous user, until its first user with
                an id takes it over.
            shared: Whether other users may read the session and write to it, with
                memories that are shared, too. Facts come from each user's own words. A
                message of a further user names that user in
                ``additional_kwargs["user_id"]``.
            llm: Extracts facts when they are needed, and summarises with
                ``summarize``. Default: ``Settings.llm`` if it is set later; without a
                model, no facts are extracted.
            embed_model: Ranks facts and recalled messages together with their words: a
                model of LlamaIndex, or "local" for a small model on this machine (extra
                ``local``). Default: words alone.
            cache_points: Whether the prompt has LlamaIndex's cache points. Some models
                reuse a prompt only where it is marked: models of Anthropic, models on
                Bedrock, and with ``CachingOpenAI`` GPT-5.6 and later. A
                ``CacheControl`` sets type and ttl. Other integrations refuse cache
                points.
            redact: A function from each text of a message, and of the arguments of its
                tool calls, to the text that is stored; ``redact_secrets`` is such a
                function. The model sees the stored text. If the function fails, nothing
                is stored, and the call that puts the message raises a
                ``SettingError``.
            on_error: A function that is called once for each failed extraction,
                summary, embedding or recall, with a ``MemoryFailure``: the work that
                failed, and the next step. It runs in the event loop, must return
                quickly, and is no ``async def``. Default: failures are logged.
            encryption_key: The key with which texts are stored encrypted, or a list of
                keys, as for ``MemoryStore``.
            encrypt: A function that encrypts a text, in place of ``encryption_key``.
            decrypt: The reverse function.
            temporary: Whether nothing is stored. The facts are read from the database,
                which must exist, and the session is in memory. No facts are extracted,
                and adding a fact raises a ``StoreError``.
            time_zone: The time zone of the user, as "Europe/Paris", or a ``tzinfo``. It
                tells on which day a message was said or a fact became known, and which
                day is today. Facts keep the day on which they were stored. Default: the
                offset of each message's own time, or else UTC.
            settings: Each of the following, by name.

        Raises:
            LimitError: The limits of the blocks do not fit into ``token_limit``, or
                ``token_limit`` does not fit into a known window.
            SettingError: An argument does not exist, has a wrong type or is out of its
                range, or contradicts another argument.
            StoreError: The database cannot be used, or would outlive a session without
                a ``session_id``. Later calls raise a ``SessionOwnerError`` if the
                session has another owner and is not shared by both users.
        """
        check_names(
            settings,
            inspect.signature(cls.from_defaults).parameters,
            "CondensedMemory.from_defaults()",
        )
        _warn_without_effect(
            "token_flush_size",
            token_flush_size,
            None,
            "chat_history_token_ratio decides how many whole turns move into the record",
        )
        _warn_without_effect(
            "memory_blocks_concurrency",
            memory_blocks_concurrency,
            1,
            "the facts are chosen for a record that was read before",
        )
        limits = limits_for(
            context_window, token_limit, condensed_token_limit, facts_token_limit, llm
        )
        check_cache_points(cache_points, memory_blocks_template, llm)
        place = StorePlace(
            async_database_uri,
            table_name,
            async_engine,
            db_schema,
            encryption_key,
            encrypt,
            decrypt,
        )
        store = store_for(chat_store, place)
        session_id = session_id_for(session_id, store)
        if shared and user_id is None:
            raise SettingError(
                "shared=True needs a user_id, which names the speaker; saw none. Pass the user's id."
            )
        facts_store = store
        if temporary:
            facts_store = store.read_only()
            store = MemoryStore()
            settings = {**settings, "extract_facts": False}
        counter = TokenCounter() if tokenizer_fn is None else as_counter(tokenizer_fn)
        counter.warm_up()
        common: Any = {"llm": llm, "embed_model": embed_model, "tokenizer_fn": counter}
        record_block = CondensedMemoryBlock(
            token_limit=limits.record,
            store=store,
            **_settings_of(CondensedMemoryBlock, settings),
            **common,
        )
        facts_block = RelevantFactsBlock(
            token_limit=limits.facts,
            store=facts_store,
            user_id=session_id if user_id is None else user_id,
            **_settings_of(RelevantFactsBlock, settings),
            **common,
        )
        memory = cls(
            session_id=session_id,
            token_limit=limits.total,
            memory_blocks=_with_further_blocks(
                [record_block, facts_block], memory_blocks
            ),
            tokenizer_fn=counter,
            sql_store=store,
            chat_history_token_ratio=chat_history_token_ratio,
            memory_blocks_template=memory_blocks_template
            or template.MemoryBlocksTemplate(),
            insert_method=insert_method,  # type: ignore[arg-type]  # pydantic converts a text
            cache_points=cache_points,
            redact=redact,
            on_error=on_error,
            temporary=temporary,
            time_zone=time_zone,
            user_id=user_id,
            shared=shared,
            image_token_size_estimate=image_token_size_estimate,
            audio_token_size_estimate=audio_token_size_estimate,
            video_token_size_estimate=video_token_size_estimate,
        )
        facts_block.belong_to(SessionAccess(user_id).user_in(session_id))
        _warn_without_summary_model(record_block)
        memory._owns_store = chat_store is None or temporary
        warn_of_server_history(facts_block.known_llm())
        store.jobs.used = bool(store.jobs.used)
        if chat_history is not None:
            memory.set(chat_history)
        return memory

    async def aput(self, message: ChatMessage | None = None) -> None:
        """Add a message; a user's message moves the turns before it into the record.

        Raises:
            MessageError: It is no ``ChatMessage``.
        """
        if message is None:
            # With the class as its memory, an agent calls this function without an object.
            raise MessageError(
                "Expected a ChatMessage; got none. An agent needs an object as its memory, not the class: "
                'memory=CondensedMemory.from_defaults(session_id="chat-17").'
            )
        if not isinstance(message, ChatMessage):
            raise MessageError(
                f"Expected a ChatMessage; saw {describe_value(message)}. {how_to_put(message)}"
            )
        await self.aput_messages([message])

    async def aput_messages(self, messages: list[ChatMessage]) -> None:
        """Add messages in one step; an empty list adds none.

        A message with an id, ``additional_kwargs["message_id"]``, is stored once: see
        ``MemoryStore.add_messages``.

        Raises:
            MessageError: An entry is no ``ChatMessage``; nothing is written.
        """
        await self._put(messages)

    async def _put(self, messages: list[ChatMessage], *, strict: bool = False) -> int:
        """Add messages, and return the number of newly stored messages."""
        messages = await self._stored_form(messages)
        if not messages:
            return 0
        # Only a new question ends the turn before it.
        plan = None
        if any(message.role == MessageRole.USER for message in messages):
            plan = self._plan_question if len(messages) == 1 else self._plan_flush
            if self.chat_history_token_ratio > FLUSH_EVERY_TURN:
                # Counting long texts here keeps the write of the store short: the
                # tokenizer keeps the counts for the plan.
                await self._tokens_of(messages)
        count = await self._append(messages, plan, strict=strict)
        answers = [message for message in messages if is_answer(message)]
        if answers:
            await self.facts_block.anotice(
                self.session_id,
                answer=answers[-1],
                asks=messages[-1].role == MessageRole.USER,
            )
        return count

    async def aset(self, messages: list[ChatMessage]) -> None:
        """Replace the whole conversation, the record included.

        Messages that equal the beginning of the stored session stay, and their facts are
        not extracted again.
        """
        await self._append(
            await self._stored_form(messages), self._plan_flush, replace=True
        )

    async def areset(self, status: MessageStatus | None = None) -> None:
        """Delete the messages of the session, or its messages with a status, after the running calls."""
        async with self._calls():
            await self.acheck_session()
            await super().areset(status)
        self.sql_store.jobs.unread.discard(self.session_id)

    async def aflush(self) -> None:
        """Move the last turn into the record too, as the next question would; wait for facts and summary."""
        await self._flush(len)

    async def aget(
        self,
        /,
        input: str | ChatMessage | None = None,
        initial_token_count: int = 0,
        **block_kwargs: Any,
    ) -> list[ChatMessage]:
        """Return the messages for the model: the current turn, with the record in front of its question.

        Args:
            input: The question. If it is not put yet, as by LlamaIndex's chat engines,
                the caller has to send it behind these messages. A completed turn then
                moves into the record, which comes as a user message that a short answer
                follows.
            initial_token_count: Tokens of the limit that stay free.
            block_kwargs: Passed on to each block.
        """
        await self.tokenizer_fn.load()
        question = await self._question_of(input)
        await self.facts_block.aopen(
            self.session_id, question.content if question else None
        )
        unread = await self.facts_block.await_learned(self.session_id)
        async with self._calls():
            turn = (await self._read_turn(question))._replace(unread=unread)
            tokens = initial_token_count + await self._tokens_beside_memory(turn)
            room = self.token_limit - tokens
            contents = await self._ask_blocks(turn, room, block_kwargs)
            fitted = await self._fit(contents, room, turn.messages)
            media = await self._read_media(turn, fitted)
        # An agent reads the memory once more after its answer, and sends that to no
        # model.
        if not turn.messages or turn.messages[-1].role != MessageRole.ASSISTANT:
            self._last_sources = self._sources_in(contents, fitted.contents)
        return self._assemble(turn, fitted, media)

    async def aget_all(self, status: MessageStatus | None = None) -> list[ChatMessage]:
        """Return the messages of the session, or its messages with a status, oldest first."""
        await self.acheck_session()
        return await super().aget_all(status)

    async def aiter_all(
        self, status: MessageStatus | None = None
    ) -> AsyncIterator[ChatMessage]:
        """Yield the messages of the session (``async for``), or its messages with a status, oldest first.

        The messages are read in pages: messages that are written meanwhile are
        included, and messages that are deleted meanwhile are not.
        """
        await self.acheck_session()
        async for message in self.sql_store.iter_messages(self.session_id, status):
            yield message

    async def acheck_session(self) -> None:
        """Raise a SessionOwnerError if the session holds words of another user, and is not shared by both."""
        self._mark_used()
        await self.sql_store.owners.check(
            self.session_id, SessionAccess(self.user_id, self.shared)
        )

    async def astats(self) -> MemoryStats:
        """Return counts of the session and its last failures; all counts are 0 before the first message.

        The database counts by index, and no more of the log is read than the next
        question needs. Nothing is written.
        """
        await self.acheck_session()
        return await read_stats(
            self.sql_store, self.condensed_block, self.facts_block, self.session_id
        )

    @property
    def condensed_block(self) -> CondensedMemoryBlock:
        """The block that shows the record."""
        self._mark_used()
        return self._block_of(CondensedMemoryBlock)

    @property
    def facts_block(self) -> RelevantFactsBlock:
        """The block that keeps and shows facts about the user."""
        self._mark_used()
        return self._block_of(RelevantFactsBlock)

    @property
    def facts(self) -> FactBook:
        """The facts of the user: to list, add, change, retire, restore, forget, export and import."""
        block = self._block_of(RelevantFactsBlock)
        # A program that only looks for learned facts may have given its runs no memory.
        if block.extract_facts:
            self._has_only_facts = True
        else:
            self._mark_used()
        book = block.book(self.session_id)
        book.on_change = self._mark_used
        return book

    async def asearch(
        self,
        question: str,
        *,
        facts: bool = True,
        messages: bool = True,
        similarity_top_k: int = 10,
    ) -> MemorySearchResult:
        """Return the user's facts and the session's messages that match a question, best first.

        Facts are ranked as for the prompt, and messages as for recall. The current turn
        is not searched. The result is empty for an empty question; with an
        ``embed_model`` nearly every question has results. The result prints a line for
        each entry.

        Args:
            question: The words to search for.
            facts: Whether facts are searched.
            messages: Whether messages are searched.
            similarity_top_k: Most facts, and most messages.

        Raises:
            ValueError: Neither facts nor messages are searched, or
                ``similarity_top_k`` is less than 1.
        """
        await self.acheck_session()
        check_search(similarity_top_k, facts=facts, messages=messages)
        if not question.strip():
            return MemorySearchResult()
        matching_facts = []
        if facts:
            matching_facts = await self.facts.asearch(
                question, similarity_top_k=similarity_top_k
            )
        matching_messages: Sequence[FoundMessage] = ()
        if messages:
            matching_messages = await self.condensed_block.asearch(
                question, session_id=self.session_id, most=similarity_top_k
            )
        return MemorySearchResult(tuple(matching_facts), tuple(matching_messages))

    def last_used(self) -> MemorySearchResult:
        """Return the facts and the recalled messages in the last prompt of this memory, in their order.

        The last prompt is the last ``aget`` for a question without an answer; of
        concurrent calls, the last to end. Entries that were cut off to fit, and further
        messages of the record, are not included. The result is empty before the first
        question, and in a copy: each memory object reports its prompts only.
        """
        return self._last_sources or MemorySearchResult()

    def turn(self) -> AbstractAsyncContextManager[Self]:
        """Let one run of a session through at a time, in this process; a TurnError for a turn within a turn."""
        return single_run(self, self._run_name)

    @property
    def _run_name(self) -> tuple[str, ...]:
        return (self.session_id, *self.sql_store.database.identity)

    async def aclose(self) -> None:
        """Flush, and close the database connections that this memory has opened.

        A turn without an answer goes on: its question stays in short-term memory until
        the session is opened again. A later call opens a file or a server again. A
        database in memory is lost, and a later call raises a StoreError. Closing twice
        does no harm. If no run has used the memory, a warning is logged, once in a
        process.
        """
        uses_store = self._owns_store and not self._has_only_facts
        if not self._is_used and not (uses_store and self.sql_store.database.engine):
            warn_of_unused()
        try:
            if not self.sql_store.database.is_gone:
                await self._finish()
        finally:
            await self.facts_block.release()
            if self._owns_store:
                await self.sql_store.aclose()
            if self.temporary and self.facts_block.store:
                await self.facts_block.store.aclose()

    async def aimport(
        self, source: str | bytes | Iterable[Any], *, show_progress: bool = False
    ) -> int:
        """Add a conversation from JSON behind the messages of the session, as if it were put now.

        Messages with a time keep it, and messages of an export also keep the time at
        which they were stored. All messages are stored in one transaction.
        Importing twice stores messages twice, unless they have ids. With
        ``extract_facts``, their facts are extracted in the background. In an export of
        a shared session, each message of a user names its speaker, who stays its
        speaker here. Facts that were imported before find their messages.

        Args:
            source: JSON in the format of LlamaIndex or OpenAI; see
                ``messages_from_json``.
            show_progress: Whether a bar is shown.

        Returns:
            The number of messages that were stored: a message that the session has
            already, with its id and its words, is not stored again.

        Raises:
            MessageError: ``source`` is no JSON of messages, or two messages have one
                id and different words. Or messages name other users, and the memory is
                not ``shared``. The error names the place and the expected value;
                nothing is stored.
        """
        # Reading a long history takes seconds and must not block the event loop.
        messages = await asyncio.to_thread(
            moved_from_json, source, show_progress=show_progress
        )
        speakers = set(map(speaker_of, messages)) - {None}
        if self.user_id is None and len(speakers) > 1:
            raise MessageError(
                f"Expected messages of one user; these name {len(speakers)} users, whose words would become those of "
                "one. Nothing was stored. Open the session with a user_id and shared=True."
            )
        count = await self._put(messages, strict=True)
        await self.sql_store.facts.link_session(self.session_id)
        return count

    async def aexport(self, *, layout: Layout = "llama_index") -> str:
        """Return all messages of the session, oldest first, as a JSON list; "[]" if there are none.

        Beside each message, ``stored_at`` is the time at which it was stored. In a
        session of several users, ``additional_kwargs["user_id"]`` is the speaker.
        ``layout="openai"`` is the format of OpenAI's Chat Completions, without these;
        ``messages_to_json`` lists the fields that this format lacks.
        """
        await self.acheck_session()
        rows = await self.sql_store.readers.find(self.session_id)
        # Writing a long history takes seconds and must not block the event loop.
        return await asyncio.to_thread(
            lambda: messages_to_json(
                [row.moved for row in rows if not row.is_damaged], layout=layout
            )
        )

    async def abackfill(
        self,
        session_ids: Sequence[str] | None = None,
        *,
        show_progress: bool = False,
        failed: bool = False,
    ) -> Backfilled:
        """Extract facts from all messages that were not read for facts yet, the current turn included.

        Use it for histories that a plain ``Memory`` has written, for imports, and for
        messages that were written with ``extract_facts=False``; that setting is ignored
        here. A second call continues where the first has stopped and repeats no
        request. Two concurrent calls store nothing twice. ``created_at`` of a fact is
        the time of its messages, and dates like "tomorrow" count from that time. A fact
        that was learned on a later day is never retired.

        Args:
            session_ids: Sessions of this memory's user, in reading order. None: this
                session, and then all other sessions of this user, oldest first; where
                an agent keeps its facts apart, only sessions of this agent.
            show_progress: Whether a bar is shown.
            failed: Whether to retry the turns that were set aside, which ``astats``
                lists.

        Returns:
            Counts of messages and facts. A session whose extraction fails is named in
            ``failed``, and the next sessions follow. After three failures in a row the
            remaining sessions are named in ``not_tried``.

        Raises:
            StoreError: A session of ``session_ids`` does not exist; no model was asked.
            NoModelError: There is neither an ``llm`` nor a ``Settings.llm`` that the
                program has set.
        """
        from llama_index_memory_ext.memory.backfill import backfill  # at first use

        return await backfill(
            self.sql_store,
            self.facts_block,
            self.session_id,
            session_ids,
            show_progress=show_progress,
            failed=failed,
        )

    async def abranch(
        self,
        new_session_id: str,
        *,
        until: str | int | None = None,
        before: str | int | None = None,
    ) -> Self:
        """Copy the session into a new session, up to a message; the original does not change.

        The copy has the same owner, and its messages keep their ids and times. All of
        them are in its record, as between two turns. Both sessions show the user's
        facts. Messages whose facts were extracted are not read again; each session
        reads the unread messages. A session without a user has separate facts: its copy
        learns them anew.

        Args:
            new_session_id: The name of the new session.
            until: The last message that is copied, by its
                ``additional_kwargs["message_id"]``; None copies all messages.
            before: In place of ``until``, the first message that is not copied, such as
                a question that the user asks again.

        Returns:
            A memory of the new session with the settings of this memory, on the same
            store. Closing this memory closes the store.

        Raises:
            SettingError: The new name is no id, or both ``until`` and ``before`` are
                passed.
            StoreError: The new session exists, the session was never used, or no message
                has this id; a ``SessionOwnerError`` if this session has another owner.
                Nothing is copied.
        """
        check_id("new_session_id", new_session_id)
        if new_session_id is None:
            raise SettingError(
                "abranch takes a new_session_id; saw None. Pass the name of the new session."
            )
        if until is not None and before is not None:
            raise SettingError(
                "abranch takes until or before, where the copy ends; saw both. Leave out one of them."
            )
        access = SessionAccess(self.user_id, self.shared)
        end = until if before is None else before
        async with self._calls():
            owners = self.sql_store.owners
            await owners.branch(
                self.session_id, new_session_id, access, end, with_end=before is None
            )
        copy = self.model_copy(update={"session_id": new_session_id})
        copy._owns_store = False  # noqa: SLF001 - of the same class
        copy._opened = False  # noqa: SLF001 - the same
        copy._last_sources = None  # noqa: SLF001 - the same
        if self.user_id is None:
            facts_block = self.facts_block.model_copy(
                update={"user_id": new_session_id}
            ).belong_to(access.user_in(new_session_id))
            copy.memory_blocks = [
                facts_block if block is self.facts_block else block
                for block in self.memory_blocks
            ]
        return copy

    async def aforget(self, *, vacuum: bool = True) -> dict[str, int]:
        """Delete for good everything about the user of this memory: all of the user's sessions, and this session.

        Facts of all agents are deleted, also outside the ``scope`` of this memory.
        Running work on them is cancelled in this process, and stores nothing in other
        processes. The memory can be used afterwards, as a new memory. In a session
        that is shared, the turns of this user are deleted, with the answers; messages
        of other users stay. Data that further ``memory_blocks`` keep elsewhere stays,
        too.

        Args:
            vacuum: Whether the database is rewritten afterwards. Otherwise, deleted
                words may remain in its file. See ``MemoryStore.vacuum`` for the cost.

        Returns:
            The number of deleted rows of ``"messages"``, ``"cursors"``, ``"facts"`` and
            ``"embeddings"``.
        """
        if self.temporary:
            raise StoreError(
                "A temporary memory stores nothing; nothing was deleted. To delete the stored data of a person, use "
                "`await store.forget_user(user_id)` of a MemoryStore."
            )
        async with self._calls():
            user_id = SessionAccess(self.user_id).user_in(self.session_id)
            return await self.sql_store.forget_user(
                user_id, session_ids=[self.session_id], vacuum=vacuum
            )

    # The synchronous twins.
    put = in_sync(aput, after=_wait_for_jobs, note=_WAITS)
    put_messages = in_sync(aput_messages, after=_wait_for_jobs, note=_WAITS)
    set = in_sync(aset)
    reset = in_sync(areset)
    flush = in_sync(aflush)
    get = in_sync(aget)
    get_all = in_sync(aget_all)
    stats = in_sync(astats)
    search = in_sync(asearch)
    close = in_sync(aclose)
    import_ = in_sync(aimport, after=_wait_for_jobs, note=_WAITS)
    export = in_sync(aexport)
    backfill = in_sync(abackfill)
    branch = in_sync(abranch)
    forget = in_sync(aforget)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, error: object, *_: object) -> None:
        # A program that fails may end before its first run.
        if error is not None:
            self._mark_used()
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    __exit__ = in_sync(__aexit__)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        # A workflow copies its start event, and has to write to this conversation.
        return self

    def __getstate__(self) -> dict[str, Any]:
        if self.sql_store.database.in_memory:
            raise StoreError(
                "This memory cannot be pickled: its database is in memory, and the copy would be empty. Use a file or "
                'a server, as async_database_uri="sqlite+aiosqlite:///memory.db", or pass on the memory itself.'
            )
        state = super().__getstate__()
        state["__pydantic_private__"]["_last_sources"] = None
        # LlamaIndex leaves out fields that cannot be pickled.
        if "redact" not in state["__dict__"]:
            raise SettingError(
                "This memory cannot be pickled: redact is no function of a module, and the copy would store texts "
                "unredacted. Define redact in a module, or pass on the memory itself."
            )
        return state

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        # The unpickled store has its own connections, which only this memory closes.
        self._owns_store = True

    async def _stored_form(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """Return the messages as they are to be stored; a MessageError for anything else."""
        valid_messages = checked_messages(messages)
        redact = self.redact
        if redact is None:
            return valid_messages
        return await asyncio.to_thread(
            lambda: [redact_message(message, redact) for message in valid_messages]
        )

    async def _question_of(self, input: str | ChatMessage | None) -> ChatMessage | None:
        """Return the question as it is stored."""
        if input is None:
            return None
        question = ChatMessage(input) if isinstance(input, str) else input
        return (await self._stored_form([question]))[0]

    async def _append(
        self,
        messages: Sequence[ChatMessage],
        plan: Plan | None,
        *,
        replace: bool = False,
        strict: bool = False,
    ) -> int:
        texts = [m.content for m in messages if m.role == MessageRole.USER]
        if texts or not self._opened:
            await self._open_session(texts[-1] if texts else None)
        async with self._calls():
            return await self._write(messages, plan, replace=replace, strict=strict)

    async def _open_session(self, question: str | None) -> None:
        """Let the blocks begin with the session, or with a question.

        A failure is logged, because the message must still be stored.
        """
        try:
            for block in self._log_blocks:
                await block.aopen(self.session_id, question)
            self._opened = True
        except StoreTimeoutError:
            # Storing the message would wait as long again.
            raise
        except Exception as error:  # noqa: BLE001 - the message must be stored after any failure
            log_failure(
                "Unread messages of other sessions were not looked for",
                self.session_id,
                error,
                "the next message tries again",
            )

    async def _flush(self, plan: Plan) -> None:
        """Pass the messages that leave by the plan to the blocks; wait for facts and summary."""
        async with self._calls():
            await self._write([], plan)
        for block in self._log_blocks:
            await block.aflush(self.session_id)

    async def _finish(self) -> None:
        """Flush before closing; accept a read-only database or another owner's session if nothing was written."""
        try:
            await self._flush(leaving_at_end)
            for block in self._log_blocks:
                await block.finish()
        except StoreError as error:
            if self._opened and not isinstance(error, SessionOwnerError):
                raise

    async def _write(
        self,
        messages: Sequence[ChatMessage],
        plan: Plan | None,
        *,
        replace: bool = False,
        strict: bool = False,
    ) -> int:
        """Write messages, and pass the messages that leave by the plan to the blocks; log a block that fails.

        Return the number of messages that were not stored before.
        """
        readers: list[str] = []
        for block in self._log_blocks:
            readers += block.readers_of(self.session_id)
        appended = await self.sql_store.log.append(
            self.session_id,
            messages,
            plan,
            replace=replace,
            access=SessionAccess(self.user_id, self.shared),
            readers=readers,
            strict=strict,
        )
        flushed = appended.flushed
        if not flushed:
            return appended.written
        calls = [
            block.aput(
                list(flushed), from_short_term_memory=True, session_id=self.session_id
            )
            for block in self.memory_blocks
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for memory_block, result in zip(self.memory_blocks, results, strict=True):
            if isinstance(result, Exception):
                # The messages are stored in any case.
                logger.warning(
                    "Block %r did not take %d messages: %r",
                    memory_block.name,
                    len(flushed),
                    type(result),
                )
        return appended.written

    def _mark_used(self) -> None:
        self._is_used = True
        self.sql_store.jobs.used = True

    def _block_of(self, kind: type[B]) -> B:
        return next(block for block in self.memory_blocks if isinstance(block, kind))

    @property
    def _log_blocks(self) -> list[LogBlock]:
        return [block for block in self.memory_blocks if isinstance(block, LogBlock)]

    async def _read_turn(self, question: ChatMessage | None) -> _Turn:
        """Read the current turn; before a question that follows, move a completed turn into the record.

        LlamaIndex's chat engines put their question only with its answer. The turn moves
        as it would when the question is put.
        """
        snapshot = await self._read_snapshot()
        messages = [row.message for row in snapshot.active]
        follows = False
        if question is not None and not template.holds_question(messages, question):
            if not messages:
                follows = not await self._is_in_log(question)
            elif ends_with_answer(messages):
                await self._write([], len)
                snapshot = await self._read_snapshot()
                messages = [row.message for row in snapshot.active]
                follows = True
        query = messages
        if question is not None and not template.holds_question(messages, question):
            query = [*messages, question]
        if follows:
            messages = []
        return _Turn(snapshot, messages, query, follows)

    async def _is_in_log(self, question: ChatMessage) -> bool:
        """Return whether the newest row of the log is this question: a flush moves an open turn into the log."""
        page = await self.sql_store.readers.page(
            self.session_id, "", ReadPosition(), limit=1
        )
        return template.holds_question([row.message for row in page.rows], question)

    async def _read_snapshot(self) -> Snapshot:
        record = self.condensed_block
        snapshot = await self.sql_store.readers.read_snapshot(
            self.session_id,
            record.name,
            record.last_seen(self.session_id),
            self.facts_block.namespace_of(self.session_id),
            SessionAccess(self.user_id, self.shared),
        )
        if snapshot.is_closed:
            await self.acheck_session()
        return snapshot

    def _plan_question(self, messages: Sequence[ChatMessage]) -> int:
        """Return the plan of ``_plan_flush``; warn if the question before the last one has no answer."""
        roles = [message.role.value for message in messages]
        is_guarded = self.shared or is_running(self._run_name)
        if not is_guarded and not has_answer_before_question(roles):
            _warn_of_two_runs()
        return self._plan_flush(messages)

    def _plan_flush(self, messages: Sequence[ChatMessage]) -> int:
        """Return how many of the oldest messages leave short-term memory."""
        if self.chat_history_token_ratio <= FLUSH_EVERY_TURN:
            return count_leaving(messages)
        return count_leaving(
            messages,
            int(self.token_limit * self.chat_history_token_ratio),
            self._tokens,
        )

    async def _ask_blocks(
        self, turn: _Turn, room: int, block_kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the content of each memory block by its name, in the order of their priorities.

        The profile of the user stands in front of all of them; another block of facts has
        none.
        """
        profile = ""
        contents: dict[str, Any] = {}
        blocks: list[Any] = sorted(
            self.memory_blocks, key=lambda block: block.priority, reverse=True
        )
        for block in blocks:
            kwargs = dict(block_kwargs)
            # The snapshot has the position of this record and the facts of this user.
            is_own = block is self.condensed_block or block is self.facts_block
            if is_own and block.store is self.sql_store:
                kwargs["snapshot"] = turn.snapshot
            content: Any
            if block is self.facts_block:
                facts = await block.aselect(
                    turn.query,
                    self.session_id,
                    kwargs.get("snapshot"),
                    self._record_in(contents, turn, room),
                    turn.unread,
                )
                profile = facts.profile
                content = facts.question
            else:
                content = await block.aget(
                    turn.query, session_id=self.session_id, **kwargs
                )
            if not content:
                continue
            if not isinstance(content, str | list):
                raise ValueError(  # noqa: TRY004 - LlamaIndex raises the same
                    f"Block {block.name!r} returned {type(content).__name__}; expected str or a list of content blocks."
                )
            contents[block.name] = content
        if profile:
            contents = {PROFILE_NAME: profile, **contents}
        return contents

    def _record_in(
        self, contents: dict[str, Any], turn: _Turn, room: int
    ) -> RecordInPrompt | None:
        """Return the record among the contents; None if it is not among them.

        A record that may be truncated to ``room`` tokens loses its recalled messages
        first, so none of them counts as shown.
        """
        window = self.condensed_block.window(self.session_id)
        record = contents.get(self.condensed_block.name)
        if window is None or record is None:
            return None
        active = [row.id for row in turn.snapshot.active]
        # A longer entry may be clipped, and then shows only a part of its message.
        longest = window.message_limit // 2
        whole = [entry.row_id for entry in window.entries if entry.tokens <= longest]
        row_ids = frozenset([*active, *whole, *window.sticky_heat])
        recalled_ids = set[int]()
        limits = self.condensed_block.token_limit + self.facts_block.token_limit
        for message, _ in getattr(record, "matches", ()):
            if message.is_whole and limits <= room:
                recalled_ids.update(message.row_ids)
        return RecordInPrompt(
            self.session_id,
            self.sql_store.readers,
            window.place,
            row_ids,
            frozenset(recalled_ids),
        )

    async def _tokens_beside_memory(self, turn: _Turn) -> int:
        """Return the tokens of the messages that the model receives beside the memory."""
        if not turn.question_follows:
            return await self._tokens_of(turn.messages)
        tokens = await self._tokens_of(turn.query)
        return tokens + self._tokens(template.ACKNOWLEDGED)

    async def _fit(
        self, contents: dict[str, Any], room: int, turn: list[ChatMessage]
    ) -> _FittedContents:
        """Return the contents joined, truncated to ``room`` tokens if possible."""
        fitted = await self._join(contents, room, turn)
        while fitted.tokens_left < 0:
            contents = dict(fitted.contents)
            block = self._block_to_truncate(contents)
            if block is not None:
                contents[block.name] = await block.atruncate(
                    contents[block.name], -fitted.tokens_left
                )
            elif contents.pop(PROFILE_NAME, None) is None:
                break
            fitted = await self._join(contents, room, turn)
        return fitted

    async def _join(
        self, contents: dict[str, Any], room: int, turn: list[ChatMessage]
    ) -> _FittedContents:
        shape = self.memory_blocks_template
        split_contents = contents
        tokens_left = -1
        if isinstance(shape, template.MemoryBlocksTemplate):
            split_contents = template.with_record_in_blocks(
                contents, self.cache_points, turn
            )
            tokens_left = room - template.max_tokens(contents, self.tokenizer_fn)
        parts, messages = await self._format_memory_blocks(split_contents)
        profile = split_contents.get(PROFILE_NAME)
        if isinstance(profile, str):
            profile = [TextBlock(text=profile)]
        if profile:
            parts.insert(0, (PROFILE_NAME, profile))
        joined = template.joined(shape, parts)
        if tokens_left < 0:
            # The bound of our template may be too high, never too low. The exact count
            # is slower.
            tokens = await self._tokens_of([*messages, ChatMessage(blocks=joined)])
            tokens_left = room - tokens
        return _FittedContents(contents, joined, messages, tokens_left)

    def _block_to_truncate(
        self, contents: dict[str, Any]
    ) -> BaseMemoryBlock[Any] | None:
        """Return the block to truncate next; None if no block with content may be truncated.

        LlamaIndex never truncates priority 0. The blocks of this package can be
        truncated with any priority.
        """
        blocks = [
            block
            for block in self.memory_blocks
            if contents.get(block.name)
            and (isinstance(block, LogBlock) or block.priority > 0)
        ]
        return max(blocks, key=lambda block: block.priority, default=None)

    async def _read_media(
        self, turn: _Turn, fitted: _FittedContents
    ) -> list[ContentBlock]:
        roles = []
        if fitted.joined:
            roles = [message.role.value for message in turn.messages]
        return await self.condensed_block.amedia(
            self.session_id, roles, fitted.tokens_left, self._tokens
        )

    def _assemble(
        self, turn: _Turn, fitted: _FittedContents, media: list[ContentBlock]
    ) -> list[ChatMessage]:
        """Return the messages for the model."""
        turn_messages = [
            template.without_our_tags(message) for message in turn.messages
        ]
        if turn.question_follows:
            messages = [*template.before_question(fitted.joined), *fitted.messages]
        else:
            template.add_media(media, turn_messages)
            messages = self._insert_memory_content(
                turn_messages, fitted.joined, fitted.messages
            )
        template.mark_for_cache(
            messages,
            self.session_id,
            self.cache_points,
            goes_on=self._expects_more_calls(turn.messages),
        )
        for message, row in zip(turn_messages, turn.snapshot.active, strict=False):
            # A result of a tool that the program has put as the user's.
            if row.is_code_output:
                message.role = MessageRole.USER
        return [template.without_blank_texts(message) for message in messages]

    def _expects_more_calls(self, turn: list[ChatMessage]) -> bool:
        """Return whether the model will be asked again in this turn.

        An agent asks again after each tool call, and may not put the results. An agent
        that used tools in the last turn is expected to use them again.
        """
        last_hash = self._question_hash
        self._question_hash = hash(body_of(turn[0])) if turn else 0
        if not turn:
            return False
        if last_hash == self._question_hash:
            return True
        return self.condensed_block.used_tools(self.session_id)

    def _sources_in(
        self, contents: dict[str, Any], fitted_contents: dict[str, Any]
    ) -> MemorySearchResult:
        """Return the facts and recalled messages of the contents whose texts are still in the fitted contents."""
        facts = []
        for name in (PROFILE_NAME, self.facts_block.name):
            text = str(fitted_contents.get(name))
            facts += _sources_within(text, contents.get(name))
        record = self.condensed_block.name
        # Other tags stand around the same words in the messages of the record.
        text = str(fitted_contents.get(record))
        return MemorySearchResult(
            tuple(facts), tuple(_sources_within(text, contents.get(record)))
        )

    async def _tokens_of(self, messages: Sequence[ChatMessage]) -> int:
        await self.tokenizer_fn.load()
        if sum(map(characters_of, messages)) > LONG_CHARACTERS:
            return await asyncio.to_thread(lambda: sum(map(self._tokens, messages)))
        return sum(map(self._tokens, messages))

    def _tokens(self, message: ChatMessage) -> int:
        estimates = {
            kind: getattr(self, f"{kind}_token_size_estimate") for kind in MEDIA_TOKENS
        }
        return tokens_with_pictures(message, self.tokenizer_fn, estimates)

    def _calls(self) -> asyncio.Lock:
        """Return the lock that lets one call at a time read or write the session, per event loop.

        The lock is not shared across loops: a synchronous call inside a running loop
        would wait for the loop that it blocks.
        """
        self._mark_used()
        # A copy from a pickle may have lost the function.
        failure_handler.set(vars(self).get("on_error"))
        return lock_for("calls", self.session_id, *self.sql_store.database.identity)


@cache
def _warn_of_two_runs() -> None:
    logger.warning(
        "A question was put before the last question of its session was answered. If its run failed, that is right. "
        "Two runs at once would both answer the later question: put each run into `async with memory.turn():`."
    )


def _warn_without_effect(
    name: str, value: object, default: object, reason: str
) -> None:
    if value == default:
        return
    warnings.warn(
        f"{name}={describe_value(value)} has no effect in a CondensedMemory: {reason}. Leave it out.",
        UserWarning,
        # The caller of ``from_defaults``.
        stacklevel=3,
    )


def _warn_without_summary_model(record_block: CondensedMemoryBlock) -> None:
    if record_block.summarize and record_block.known_llm() is None:
        logger.warning(
            "summarize=True has no model, so messages that leave the record are not summarised. Pass llm=..., as "
            'in llm=OpenAI(model="gpt-4o-mini"), or set Settings.llm.'
        )


def _sources_within(text: str, content: Any) -> list[Any]:
    """Return the facts or messages that a block has selected for its content and that the text holds."""
    selected = getattr(content, "matches", ())
    return [source for source, source_text in selected if source_text in text]


def _settings_of(
    block_type: type[LogBlock], settings: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        name: value
        for name, value in settings.items()
        if name in block_type.model_fields
    }


def _with_further_blocks(
    blocks: list[LogBlock], further_blocks: object
) -> list[BaseMemoryBlock[Any]]:
    """Return the record and the facts, and behind them the blocks of the program; a SettingError for anything else."""
    further: Sequence[Any] = ()
    if further_blocks:
        is_list = isinstance(further_blocks, list | tuple)
        further = further_blocks if is_list else [further_blocks]  # type: ignore[assignment]
    all_blocks = [*blocks, *further]
    names = {block.name for block in all_blocks if isinstance(block, BaseMemoryBlock)}
    if len(names) < len(all_blocks) or PROFILE_NAME in names:
        descriptions = [
            str(getattr(block, "name", describe_value(block))) for block in further
        ]
        raise SettingError(
            "memory_blocks must be a list of LlamaIndex's memory blocks with different names; "
            f"saw {', '.join(descriptions)}. "
            f"Leave out {' and '.join(block.name for block in blocks)}: the memory makes these blocks itself, "
            f"and {PROFILE_NAME} is the name of the profile."
        )
    return all_blocks
