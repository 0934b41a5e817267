"""Puts a store and the blocks together as one LlamaIndex Memory that flushes every turn."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from llama_index.core.bridge.pydantic import PrivateAttr, model_validator
from llama_index.core.memory import BaseMemoryBlock, InsertMethod
from llama_index.core.memory.memory import generate_chat_store_key
from typing_extensions import Self, TypedDict, Unpack

from llama_index_memory_ext.background.locks import lock_for
from llama_index_memory_ext.errors import LimitError, StoreError, TurnError
from llama_index_memory_ext.facts.block import RelevantFactsBlock
from llama_index_memory_ext.memory.flushing_memory import DEFAULT_TOKEN_LIMIT, FLUSH_EVERY_TURN, FlushedMemory
from llama_index_memory_ext.memory.template import MemoryBlocksTemplate
from llama_index_memory_ext.record.block import CondensedMemoryBlock
from llama_index_memory_ext.store import DEFAULT_TABLE_NAME, MemoryStore
from llama_index_memory_ext.text.tokens import TokenCounter, as_counter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from types import TracebackType

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.llms.llm import LLM
    from llama_index.core.prompts import RichPromptTemplate
    from sqlalchemy.ext.asyncio import AsyncEngine

    from llama_index_memory_ext.facts.backfill import Backfilled
    from llama_index_memory_ext.facts.book import FactBook
    from llama_index_memory_ext.formats import Layout
    from llama_index_memory_ext.memory.stats import MemoryStats
    from llama_index_memory_ext.text.cutting import Splitter


DEFAULT_CONDENSED_TOKEN_LIMIT = 50_000
DEFAULT_FACTS_TOKEN_LIMIT = 2_000


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


class CondensedMemory(FlushedMemory):
    """A LlamaIndex ``Memory`` that shows the model one message: what was said before, and the question.

    Build it with ``from_defaults`` and pass it to every run: ``agent.run(question, memory=memory)``.

    LlamaIndex cannot keep two concurrent runs of one session apart: the later question takes the earlier
    one out of short-term memory. Let one at a time through with ``async with memory.turn():``.

    Close it with ``await memory.aclose()``, or use it as ``async with CondensedMemory.from_defaults(...)``.
    """

    _owns_store: bool = PrivateAttr(default=False)

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
        # Imported here, as what moves conversations below: most programs start without.
        from llama_index_memory_ext.memory.stats import MemoryStats

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

    async def aclose(self) -> None:
        """Flush, and close the database connections that this memory has opened."""
        await self.aflush()
        await self.condensed_block.aclose()
        await self.facts_block.aclose()
        if self._owns_store:
            await self.sql_store.aclose()

    def close(self) -> None:
        """Flush, and close the database connections that this memory has opened."""
        self._run(self.aclose())

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
        from llama_index_memory_ext.formats import messages_from_json

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
        from llama_index_memory_ext.formats import messages_to_json

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
        from llama_index_memory_ext.facts.backfill import backfill

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
            # Others have work under way in the same place.
            sessions = await self.facts_block.asessions(self.session_id)
            for block in self._log_blocks():
                await block.stop_jobs(sessions)
            await self.facts_block.stop_embedding()
            user_id = self.facts_block.namespace_of(self.session_id)
            return await self.sql_store.forget_user(user_id, session_ids=[self.session_id], vacuum=vacuum)

    def forget(self, *, vacuum: bool = True) -> dict[str, int]:
        """Delete for good all that is stored about the user of this memory, as ``aforget`` does."""
        return self._run(self.aforget(vacuum=vacuum))

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
