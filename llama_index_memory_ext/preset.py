"""Puts a store and the blocks together as one LlamaIndex Memory that flushes every turn."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from llama_index.core.async_utils import asyncio_run
from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock
from llama_index.core.bridge.pydantic import Field, PrivateAttr, model_validator
from llama_index.core.memory import BaseMemoryBlock, InsertMethod, Memory
from llama_index.core.memory.memory import generate_chat_store_key
from llama_index.core.prompts import RichPromptTemplate
from llama_index.core.storage.chat_store.base_db import MessageStatus
from typing_extensions import Self, TypedDict, Unpack

from llama_index_memory_ext.backfill import Backfilled, backfill
from llama_index_memory_ext.condensed_block import CondensedMemoryBlock
from llama_index_memory_ext.errors import LimitError, StoreError, TurnError
from llama_index_memory_ext.facts_block import RelevantFactsBlock
from llama_index_memory_ext.jobs import log_failure
from llama_index_memory_ext.locks import SharedLock, lock_for
from llama_index_memory_ext.log_block import LogBlock
from llama_index_memory_ext.messages_json import messages_from_json, messages_to_json
from llama_index_memory_ext.stats import MemoryStats
from llama_index_memory_ext.store import DEFAULT_TABLE_NAME, MemoryStore
from llama_index_memory_ext.tokens import TokenCounter, as_counter
from llama_index_memory_ext.transcript import body_of, checked_messages, escape_tags, message_tokens
from llama_index_memory_ext.window import plan_flush

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
    from types import TracebackType

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.llms.llm import LLM
    from sqlalchemy.ext.asyncio import AsyncEngine

    from llama_index_memory_ext.fact_book import FactBook
    from llama_index_memory_ext.messages_json import Layout
    from llama_index_memory_ext.pieces import Splitter

T = TypeVar("T")

logger = logging.getLogger(__name__)

DEFAULT_TOKEN_LIMIT = 60_000
DEFAULT_CONDENSED_TOKEN_LIMIT = 50_000
DEFAULT_FACTS_TOKEN_LIMIT = 2_000
# At this share or less, every turn but the newest leaves short-term memory, however short it is.
FLUSH_EVERY_TURN = 0.0001

_MEMORY_OPENING, _MEMORY_CLOSING = "<memory>\n", "</memory>\n\n"


class CondensedOptions(TypedDict, total=False):
    """Settings that the preset hands on to its ``CondensedMemoryBlock``, whose fields say what they mean."""

    keep_ratio: float
    message_ratio: float | None
    max_messages: int | None
    keep_messages: int | None
    allow_partial: bool
    text_splitter: Splitter | None
    start_on: str | Sequence[str]
    end_on: str | Sequence[str]
    include_system: bool
    summarize: bool
    summary_token_limit: int | None
    recall_token_limit: int


class MemoryBlocksTemplate(RichPromptTemplate):
    """Joins the blocks' texts as they are.

    No template language ever sees what users and tools have written, and nothing is compiled or parsed.
    ``template_str`` says the same in Jinja, for people who look it up.
    """

    def __init__(self) -> None:
        super().__init__(
            template_str=(
                "<memory>\n{% for name, blocks in memory_blocks %}<{{ name }}>\n"
                "{% for block in blocks %}{{ block.text }}{% endfor %}</{{ name }}>\n{% endfor %}</memory>\n\n"
            ),
            template_vars=["memory_blocks"],
        )

    def format_messages(self, llm: Any = None, **kwargs: Any) -> list[ChatMessage]:
        """One user message: a text block, and between its parts whatever is not text."""
        content: list[Any] = []
        _add_text(content, _MEMORY_OPENING)
        for name, blocks in kwargs["memory_blocks"]:
            _add_text(content, f"<{name}>\n")
            for block in blocks:
                if isinstance(block, TextBlock):
                    _add_text(content, block.text if block.text.endswith("\n") else f"{block.text}\n")
                else:
                    content.append(block)
            _add_text(content, f"</{name}>\n")
        _add_text(content, _MEMORY_CLOSING)
        return [ChatMessage(role=MessageRole.USER, blocks=content)]


class CondensedMemory(Memory):
    """A LlamaIndex ``Memory`` that shows the model one message: what was said before, and the question.

    Build it with ``from_defaults`` and pass it to every run: ``agent.run(question, memory=memory)``.

    LlamaIndex cannot keep two concurrent runs of one session apart: the later question takes the earlier
    one out of short-term memory. Let one at a time through with ``async with memory.turn():``.

    Close it with ``await memory.aclose()``, or use it as ``async with CondensedMemory.from_defaults(...)``.
    """

    token_limit: int = Field(default=DEFAULT_TOKEN_LIMIT, description="The overall token limit of the memory.")
    chat_history_token_ratio: float = Field(
        default=FLUSH_EVERY_TURN, description="Share of the token limit for turns that are not flushed yet."
    )
    memory_blocks_template: RichPromptTemplate = Field(
        default_factory=MemoryBlocksTemplate, description="Joins the texts of the blocks."
    )
    insert_method: InsertMethod = Field(default=InsertMethod.USER, description="Where the blocks' text goes.")
    tokenizer_fn: TokenCounter = Field(
        default_factory=TokenCounter, exclude=True, repr=False, description="Counts the tokens."
    )
    sql_store: MemoryStore = Field(
        default_factory=MemoryStore, exclude=True, repr=False, description="Keeps the log and the cursors."
    )

    _opened: bool = PrivateAttr(default=False)
    _owns_store: bool = PrivateAttr(default=False)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: dict[str, Any]) -> dict[str, Any]:
        # Memory's own validators run after this one and would take a tokenizer of another model.
        counter = values.get("tokenizer_fn")
        return {
            "token_limit": DEFAULT_TOKEN_LIMIT,
            **values,
            "tokenizer_fn": as_counter(counter) if counter is not None else TokenCounter(),
        }

    @model_validator(mode="after")
    def _check_blocks(self) -> CondensedMemory:
        kinds = {type(block) for block in self.memory_blocks}
        if not {CondensedMemoryBlock, RelevantFactsBlock} <= kinds:
            raise ValueError(
                "a CondensedMemory needs a CondensedMemoryBlock and a RelevantFactsBlock on its own store: build it "
                "with CondensedMemory.from_defaults(...)"
            )
        return self

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex serialises this memory."""
        return "CondensedMemory"

    @classmethod
    def from_defaults(  # type: ignore[override]
        cls,
        session_id: str | None = None,
        chat_history: list[ChatMessage] | None = None,
        *,
        token_limit: int = DEFAULT_TOKEN_LIMIT,
        condensed_token_limit: int = DEFAULT_CONDENSED_TOKEN_LIMIT,
        facts_token_limit: int = DEFAULT_FACTS_TOKEN_LIMIT,
        user_id: str | None = None,
        llm: LLM | None = None,
        embed_model: BaseEmbedding | None = None,
        extract_facts: bool = True,
        extract_every_turns: int = 1,
        memory_blocks: list[BaseMemoryBlock[Any]] | None = None,
        tokenizer_fn: Callable[[str], list[Any]] | None = None,
        chat_history_token_ratio: float = FLUSH_EVERY_TURN,
        memory_blocks_template: RichPromptTemplate | None = None,
        insert_method: InsertMethod | str = InsertMethod.USER,
        image_token_size_estimate: int = 256,
        audio_token_size_estimate: int = 256,
        video_token_size_estimate: int = 256,
        chat_store: MemoryStore | None = None,
        table_name: str = DEFAULT_TABLE_NAME,
        async_database_uri: str | None = None,
        async_engine: AsyncEngine | None = None,
        db_schema: str | None = None,
        **condensed: Unpack[CondensedOptions],
    ) -> CondensedMemory:
        """A memory with a condensed block and a facts block on one store.

        Args:
            session_id: Names the conversation. Needed with a database that outlives the process.
            chat_history: Replaces what the session holds.
            token_limit: Most tokens that a prompt has by what this package adds to the messages of the
                current turn. If these alone are longer, nothing is added.
            condensed_token_limit: Most tokens of the record, with its summary and what is recalled.
            facts_token_limit: Most tokens of the facts; 0 shows none.
            user_id: Whose facts these are, in all of their sessions; default: the session's own.
            llm: Extracts facts, and sums up with ``summarize``; default: ``Settings.llm`` at first use.
            embed_model: Ranks the facts together with their words; default: by their words alone.
            extract_facts: Whether facts are extracted. What is known is shown all the same.
            extract_every_turns: Finished turns that wait for one extraction.
            memory_blocks: Further blocks, shown behind the record and the facts.
            tokenizer_fn: Counts the tokens; default: o200k_base, exact and offline.
            chat_history_token_ratio: Share of the token limit for turns that are shown as messages of their
                own; by default every turn but the newest is condensed.
            memory_blocks_template: A template of your own, as for LlamaIndex's ``Memory``.
            insert_method: ``"user"`` (in front of the question) or ``"system"``.
            image_token_size_estimate: Tokens counted for an image; likewise for the following two.
            audio_token_size_estimate: Tokens counted for a sound.
            video_token_size_estimate: Tokens counted for a film.
            chat_store: A store of your own instead of the following four; it is not closed.
            table_name: The chat table.
            async_database_uri: SQLite by aiosqlite or PostgreSQL by asyncpg; default: in memory.
            async_engine: Your own engine; it is not closed.
            db_schema: The schema of the tables, where the database has schemas.
            condensed: How the record is kept short, as for ``CondensedMemoryBlock``: ``max_messages``, ``summarize``,
                ``recall_token_limit`` and so on; ``CondensedOptions`` lists them.

        Raises:
            LimitError: The limits of the blocks do not fit into ``token_limit``.
            ValueError: The options of the record contradict each other.
            TypeError: There is no option of such a name.
            StoreError: The database cannot be used, or would outlive a session without a ``session_id``.
        """
        _check_limits(token_limit, condensed_token_limit, facts_token_limit)
        _check_options(condensed)
        store = chat_store or MemoryStore(
            async_database_uri, table_name=table_name, async_engine=async_engine, db_schema=db_schema
        )
        if not isinstance(store, MemoryStore):
            raise StoreError(
                f"chat_store must be a MemoryStore, which keeps the cursors of the blocks; it is a "
                f"{type(store).__name__}. Use MemoryStore(async_database_uri)."
            )
        if not (session_id or store.is_in_memory):
            raise StoreError(
                f"{store!r} outlives this process, but without a session_id nobody could find the conversation "
                "again. Give it one: CondensedMemory.from_defaults(session_id=...)."
            )
        session_id = session_id or generate_chat_store_key()
        counter = as_counter(tokenizer_fn) if tokenizer_fn is not None else TokenCounter()
        options: dict[str, Any] = {**condensed}
        record = CondensedMemoryBlock(
            token_limit=condensed_token_limit, llm=llm, tokenizer_fn=counter, store=store, **options
        )
        facts = RelevantFactsBlock(
            token_limit=facts_token_limit,
            user_id=user_id if user_id is not None else session_id,
            llm=llm,
            embed_model=embed_model,
            extract_facts=extract_facts,
            extract_every_turns=extract_every_turns,
            tokenizer_fn=counter,
            store=store,
        )
        memory = cls(
            session_id=session_id,
            token_limit=token_limit,
            memory_blocks=[record, facts, *(memory_blocks or [])],
            tokenizer_fn=counter,
            chat_history_token_ratio=chat_history_token_ratio,
            memory_blocks_template=memory_blocks_template or MemoryBlocksTemplate(),
            insert_method=InsertMethod(insert_method),
            image_token_size_estimate=image_token_size_estimate,
            audio_token_size_estimate=audio_token_size_estimate,
            video_token_size_estimate=video_token_size_estimate,
            sql_store=store,
        )
        memory._owns_store = chat_store is None
        if chat_history is not None:
            memory.set(chat_history)
        return memory

    # ---- turns and life ------------------------------------------------------------------------------

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[CondensedMemory]:
        """Let one run at a time through per session, in every task and thread of this process.

        Raises:
            TurnError: The task that holds the turn asks for it again.
        """
        lock = lock_for("turn", self.session_id, *self.sql_store.identity)
        if lock.holder is not None and lock.holder is asyncio.current_task():
            raise TurnError("This task is within memory.turn() already; run the agent without opening another.")
        async with lock:
            yield self

    @property
    def condensed_block(self) -> CondensedMemoryBlock:
        """The block that shows what was said."""
        return next(block for block in self.memory_blocks if isinstance(block, CondensedMemoryBlock))

    @property
    def facts_block(self) -> RelevantFactsBlock:
        """The block that keeps and shows what is known about the user."""
        return next(block for block in self.memory_blocks if isinstance(block, RelevantFactsBlock))

    @property
    def facts(self) -> FactBook:
        """What is known about the user: to list, add, change, retire, restore, forget, export and import."""
        return self.facts_block.book(self.session_id)

    async def astats(self) -> MemoryStats:
        """How much the session holds and shows, and what has failed; all zero where nothing was said yet.

        Some counts by index, and as much of the log as the next question would be shown. Nothing is written.
        """
        record, facts, session_id = self.condensed_block, self.facts_block, self.session_id
        namespace = facts.namespace_of(session_id)
        size = await record.ameasure(session_id)
        counts = await self.sql_store.counts.read(
            session_id, record=record.name, extraction=facts.reader_of(session_id), namespace=namespace
        )
        return MemoryStats(
            session_id=session_id,
            user_id=namespace,
            database=self.sql_store.address,
            messages=counts.messages,
            active=counts.active,
            verbatim=size.verbatim,
            left=counts.left,
            summarised=size.summarised,
            record_tokens=size.tokens,
            summary_tokens=size.summary_tokens,
            facts=counts.facts,
            retired=counts.retired,
            pending=counts.unread if facts.extract_facts else None,
            failures={**facts.failures_of(session_id), **record.failures_of(session_id)},
            rejections=facts.rejections,
        )

    def stats(self) -> MemoryStats:
        """As ``astats``."""
        return self._run(self.astats())

    async def aflush(self) -> None:
        """Move the last turn into the record too, as the next question would; extract its facts, and sum up."""
        async with self._calls():
            await self._append([], len)
        await self.condensed_block.aflush(self.session_id)
        await self.facts_block.aflush(self.session_id)

    async def aclose(self) -> None:
        """Flush, and close the database connections that this memory has opened."""
        await self.aflush()
        await self.condensed_block.aclose()
        await self.facts_block.aclose()
        if self._owns_store:
            await self.sql_store.aclose()

    def flush(self) -> None:
        """Move the last turn into the record too, as the next question would."""
        self._run(self.aflush())

    def close(self) -> None:
        """Flush, and close the database connections that this memory has opened."""
        asyncio_run(self.aclose())

    # ---- moving in -----------------------------------------------------------------------------------

    async def aimport(self, source: str | bytes | Iterable[Any], *, show_progress: bool = False) -> int:
        """Add a conversation that was written as JSON behind what the session holds, as if it were put now.

        All of it is stored in one transaction, or nothing. Importing twice stores it twice. With ``extract_facts``
        its facts are extracted beside it, as of any messages.

        Args:
            source: Whatever ``messages_from_json`` reads: LlamaIndex's format or OpenAI's.
            show_progress: Whether a bar is shown.

        Returns:
            How many messages these are.

        Raises:
            MessageError: This is no JSON of messages. It says where and what was expected; nothing is stored.
        """
        # A long history takes seconds to read, in which nobody else should have to wait.
        messages = await asyncio.to_thread(messages_from_json, source, show_progress=show_progress)
        await self.aput_messages(messages)
        return len(messages)

    def import_(self, source: str | bytes | Iterable[Any], *, show_progress: bool = False) -> int:
        """As ``aimport``; the underscore is Python's. It waits for what is extracted or summarised meanwhile."""
        return self._run(self._and_jobs(self.aimport(source, show_progress=show_progress)))

    async def aexport(self, *, layout: Layout = "llama_index") -> str:
        """All messages of the session, oldest first, as a JSON list; "[]" if there are none.

        ``layout="openai"`` is the format of OpenAI's Chat Completions; ``messages_to_json`` says what that leaves out.
        """
        return messages_to_json(await self.aget_all(), layout=layout)

    def export(self, *, layout: Layout = "llama_index") -> str:
        """As ``aexport``."""
        return self._run(self.aexport(layout=layout))

    async def abackfill(self, session_ids: Sequence[str] | None = None, *, show_progress: bool = False) -> Backfilled:
        """Extract facts from messages that nobody has extracted facts from, the newest turn's too.

        For histories that a plain ``Memory`` has written, that were imported, or written with ``extract_facts=False``;
        it extracts even where that is set. A second call goes on where one has stopped and asks for nothing twice, and
        two at once store nothing twice. A fact is as old as the words that it stands on: ``created_at`` is when these
        were stored, dates like "tomorrow" count from then, and no fact that was learned on a later day is retired.

        Args:
            session_ids: The sessions to read, in this order; their facts become those of this memory's user, so they
                should be theirs. None: this session, and all others that are known as this user's, oldest first.
            show_progress: Whether a bar is shown.

        Returns:
            What was read and learned. A session whose extraction fails is named in ``failed``, and the others go on;
            after three failures in a row the rest is named in ``not_tried``.

        Raises:
            StoreError: One of ``session_ids`` does not exist; no model was asked then. Besides, whatever LlamaIndex
                raises where there is no model at all.
        """
        return await backfill(self.facts_block, self.session_id, session_ids, show_progress=show_progress)

    def backfill(self, session_ids: Sequence[str] | None = None, *, show_progress: bool = False) -> Backfilled:
        """As ``abackfill``."""
        return self._run(self.abackfill(session_ids, show_progress=show_progress))

    async def aforget(self, *, vacuum: bool = True) -> dict[str, int]:
        """Delete for good all that is stored about the user of this memory, in all of their sessions, and this session.

        What is under way for them is stopped here, and stores nothing elsewhere. The memory can be used on, as a new
        one. Messages of a session that somebody else has talked in too are deleted with it; the other's facts stay.
        What further ``memory_blocks`` keep elsewhere is theirs.

        Args:
            vacuum: Whether the database is rewritten afterwards, without which deleted words may still be in its
                file; see ``MemoryStore.vacuum`` for what that takes.

        Returns:
            How many rows were deleted of ``"messages"``, ``"cursors"``, ``"facts"`` and ``"embeddings"``.
        """
        async with self._calls():
            for block in self._log_blocks():
                await block.stop_jobs()
            await self.facts_block.stop_embedding()
            user_id = self.facts_block.namespace_of(self.session_id)
            return await self.sql_store.forget_user(user_id, session_ids=[self.session_id], vacuum=vacuum)

    def forget(self, *, vacuum: bool = True) -> dict[str, int]:
        """Delete for good all that is stored about the user of this memory, as ``aforget`` does."""
        counts: dict[str, int] = asyncio_run(self.aforget(vacuum=vacuum))
        return counts

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        # The store of a memory that was pickled has opened the database anew, for this memory alone.
        self._owns_store = True

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> CondensedMemory:
        # A workflow that copies its start event must go on writing to this conversation.
        return self

    # ---- writing -------------------------------------------------------------------------------------

    def put(self, message: ChatMessage) -> None:
        """Add a message, and wait for what is extracted or summarised meanwhile."""
        self.put_messages([message])

    def put_messages(self, messages: list[ChatMessage]) -> None:
        """Add messages in one step, and wait for what is extracted or summarised meanwhile."""
        self._run(self._and_jobs(self.aput_messages(messages)))

    def set(self, messages: list[ChatMessage]) -> None:
        """Replace the whole conversation, the record included."""
        self._run(self.aset(messages))

    def get(
        self, input: str | ChatMessage | None = None, initial_token_count: int = 0, **block_kwargs: Any
    ) -> list[ChatMessage]:
        """The messages for the model, as ``aget`` gives them."""
        return self._run(self.aget(input, initial_token_count, **block_kwargs))

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        """The result of a call, in an event loop that may not go on behind it: so nothing is left under way there."""
        under_way: list[asyncio.Task[Any] | None] = []

        async def call_alone() -> T:
            under_way.append(asyncio.current_task())
            try:
                return await call
            finally:
                for block in self._log_blocks():
                    await block.stop_jobs()

        try:
            result: T = asyncio_run(call_alone())
        except KeyboardInterrupt:
            for task in under_way:
                _end(task)
            raise
        return result

    async def _and_jobs(self, call: Coroutine[Any, Any, T]) -> T:
        """The result of a call, when what it has started beside the conversation is done."""
        result = await call
        for block in self._log_blocks():
            await block.await_jobs(self.session_id)
        return result

    async def aput(self, message: ChatMessage) -> None:
        """Add a message; a user's message moves the turns before it into the record."""
        await self.aput_messages([message])

    async def aput_messages(self, messages: list[ChatMessage]) -> None:
        """Add messages in one step; none is fine.

        Raises:
            MessageError: Something else than a ``ChatMessage`` is among them; nothing is written then.
        """
        messages = checked_messages(messages)
        # Only a new question ends the turn before it.
        starts_turn = any(message.role == MessageRole.USER for message in messages)
        if messages:
            await self._open()
            async with self._calls():
                await self._append(messages, self._plan_flush if starts_turn else None)

    async def aset(self, messages: list[ChatMessage]) -> None:
        """Replace the whole conversation, the record included."""
        messages = checked_messages(messages)
        await self._open()
        async with self._calls():
            await self._append(messages, self._plan_flush, replace=True)

    async def areset(self, status: MessageStatus | None = None) -> None:
        """Delete the conversation: the messages, and what the blocks of this package show of them."""
        async with self._calls():
            await self.sql_store.delete_messages(self.session_id, status)

    def _log_blocks(self) -> list[LogBlock]:
        return [block for block in self.memory_blocks if isinstance(block, LogBlock)]

    async def _open(self) -> None:
        """Once: whoever reads this session is made known, and what the user's others left unread is read."""
        if self._opened:
            return
        self._opened = True
        try:
            await self.facts_block.aopen(self.session_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, the message that comes now must be stored
            self._opened = False
            log_failure(
                "What others left unread was not looked for", self.session_id, error, "the next message tries again"
            )

    async def _append(
        self,
        messages: list[ChatMessage],
        plan: Callable[[Sequence[ChatMessage]], int] | None,
        *,
        replace: bool = False,
    ) -> None:
        readers = self.facts_block.known_as(self.session_id)
        flushed = await self.sql_store.append(self.session_id, messages, plan, replace=replace, readers=readers)
        if not flushed:
            return
        results = await asyncio.gather(
            *(
                block.aput(list(flushed), from_short_term_memory=True, session_id=self.session_id)
                for block in self.memory_blocks
            ),
            return_exceptions=True,
        )
        for block, result in zip(self.memory_blocks, results, strict=True):
            if isinstance(result, Exception):
                # The messages are stored; a block that fails must not cost the user the answer.
                logger.warning("Block %r did not take %d messages: %r", block.name, len(flushed), type(result))

    def _plan_flush(self, messages: Sequence[ChatMessage]) -> int:
        every_turn = self.chat_history_token_ratio <= FLUSH_EVERY_TURN
        return plan_flush(
            [1 if every_turn else self._tokens(message) for message in messages],
            turn_starts=[message.role == MessageRole.USER for message in messages],
            limit=0 if every_turn else int(self.token_limit * self.chat_history_token_ratio),
        )

    # ---- reading -------------------------------------------------------------------------------------

    async def aget(
        self, input: str | ChatMessage | None = None, initial_token_count: int = 0, **block_kwargs: Any
    ) -> list[ChatMessage]:
        """The messages for the model: the current turn, with the record in front of its question.

        Args:
            input: What the blocks should take for the question, if it is not among the messages.
            initial_token_count: Tokens of the limit that the caller needs for something else.
            block_kwargs: Passed on to each block.
        """
        async with self._calls():
            turn = await self.sql_store.get_messages(self.session_id, MessageStatus.ACTIVE)
            question = ChatMessage(content=input) if isinstance(input, str) else input
            asked = [question] if question is not None and not _is_last_question(question, turn) else []
            contents = await self._get_memory_blocks_content([*turn, *asked], **block_kwargs)
            room = self.token_limit - initial_token_count - sum(self._tokens(message) for message in turn)
            content, messages = await self._within(room, contents)
        return self._insert_memory_content([_without_our_tags(message) for message in turn], content, messages)

    async def _within(self, room: int, contents: dict[str, Any]) -> tuple[list[Any], list[ChatMessage]]:
        """What the blocks gave, formatted, and truncated to ``room`` tokens as far as they can be."""
        blocks = sorted(
            (block for block in self.memory_blocks if _may_be_truncated(block)), key=lambda block: -block.priority
        )
        while True:
            content, messages = await self._formatted(contents)
            excess = 0
            # The estimate is never too low; only where it is over the room the exact count decides.
            if self._estimate(contents) > room:
                excess = sum(map(self._tokens, [*messages, ChatMessage(blocks=content)])) - room
            shrinkable = [block for block in blocks if contents.get(block.name)]
            if excess <= 0 or not shrinkable:
                return content, messages
            name = shrinkable[0].name
            contents[name] = await shrinkable[0].atruncate(contents[name], excess)

    def _estimate(self, contents: dict[str, Any]) -> float:
        """At least as many tokens as the blocks' texts have in our template; the counter remembers theirs."""
        texts = [content for content in contents.values() if isinstance(content, str)]
        if len(texts) < len(contents) or not isinstance(self.memory_blocks_template, MemoryBlocksTemplate):
            return math.inf
        tags = _MEMORY_OPENING + _MEMORY_CLOSING + "".join(f"<{name}>\n</{name}>\n\n" for name in contents)
        # No token is shorter than a byte.
        return sum(self.tokenizer_fn.count(text) for text in texts) + len(tags.encode())

    async def _formatted(self, contents: dict[str, Any]) -> tuple[list[Any], list[ChatMessage]]:
        blocks, messages = await self._format_memory_blocks(contents)
        formatted = self.memory_blocks_template.format_messages(memory_blocks=blocks) if blocks else []
        content = list(formatted[0].blocks) if formatted else []
        if content and isinstance(content[-1], TextBlock) and not content[-1].text.endswith("\n\n"):
            # Some APIs join the text blocks of a message without anything between them.
            content[-1] = TextBlock(text=content[-1].text.rstrip("\n") + "\n\n")
        return content, messages

    def _tokens(self, message: ChatMessage) -> int:
        estimates = {
            "image": self.image_token_size_estimate,
            "audio": self.audio_token_size_estimate,
            "video": self.video_token_size_estimate,
            "document": self.document_token_size_estimate,
        }
        return message_tokens(message, self.tokenizer_fn, estimates)

    def _calls(self) -> SharedLock:
        """One call at a time per session and event loop, so that a turn is read as it was written.

        Not across loops: a synchronous call inside a running loop would wait for the loop that it blocks.
        """
        return lock_for("calls", id(asyncio.get_running_loop()), self.session_id, *self.sql_store.identity)


def _check_limits(token_limit: int, condensed: int, facts: int) -> None:
    if condensed < 1 or facts < 0 or condensed + facts > token_limit:
        raise LimitError(
            f"The blocks' limits must be at least 1 (0 for no facts) and fit into token_limit={token_limit}; "
            f"condensed_token_limit={condensed} and facts_token_limit={facts} make {condensed + facts}. "
            "Lower them, or raise token_limit."
        )


def _check_options(options: CondensedOptions) -> None:
    unknown = sorted(options.keys() - CondensedOptions.__annotations__.keys())
    if unknown:
        raise TypeError(
            f"CondensedMemory.from_defaults() has no argument {unknown[0]!r}. Those of the record are "
            f"{', '.join(sorted(CondensedOptions.__annotations__))}."
        )


def _end(task: asyncio.Task[Any] | None) -> None:
    """Cancel a task that Ctrl+C has left in an event loop that stands still, where it would hold its locks for ever."""
    if task is not None and not task.done() and not task.get_loop().is_running():
        task.cancel()
        with suppress(asyncio.CancelledError):
            task.get_loop().run_until_complete(task)


def _add_text(content: list[Any], text: str) -> None:
    if content and isinstance(content[-1], TextBlock):
        content[-1] = TextBlock(text=content[-1].text + text)
    else:
        content.append(TextBlock(text=text))


def _is_last_question(question: ChatMessage, turn: list[ChatMessage]) -> bool:
    """Whether the question is the turn's own: agents hand it over a second time in each tool round."""
    asked = [message for message in turn if message.role == MessageRole.USER]
    return bool(asked) and body_of(asked[-1]) == body_of(question)


def _may_be_truncated(block: BaseMemoryBlock[Any]) -> bool:
    return isinstance(block, CondensedMemoryBlock | RelevantFactsBlock) or block.priority > 0


def _without_our_tags(message: ChatMessage) -> ChatMessage:
    """The message with our tags escaped in a user's text, which stands in one message with the record."""
    if message.role != MessageRole.USER:
        return message
    blocks = [
        TextBlock(text=escape_tags(block.text)) if isinstance(block, TextBlock) else block for block in message.blocks
    ]
    return ChatMessage(role=message.role, blocks=blocks, additional_kwargs=message.additional_kwargs)
