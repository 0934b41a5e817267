"""Puts a store and the blocks together as a LlamaIndex Memory that shows the model one message."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.bridge.pydantic import Field, PrivateAttr, model_validator
from llama_index.core.memory import BaseMemoryBlock, InsertMethod, Memory
from llama_index.core.memory.memory import generate_chat_store_key
from llama_index.core.prompts import RichPromptTemplate  # noqa: TC002 - pydantic reads the annotations of fields
from typing_extensions import Self, Unpack

from llama_index_memory_ext.background.locks import SharedLock, lock_for
from llama_index_memory_ext.errors import TurnError
from llama_index_memory_ext.facts.backfill import Backfilled, backfill
from llama_index_memory_ext.facts.block import RelevantFactsBlock
from llama_index_memory_ext.formats import messages_from_json, messages_to_json
from llama_index_memory_ext.memory.flushing import FLUSH_EVERY_TURN, Flusher, FlushPlan, check_store, run_alone
from llama_index_memory_ext.memory.stats import MemoryStats, read_stats
from llama_index_memory_ext.memory.template import (
    BlockFormatter,
    MemoryBlocksTemplate,
    is_last_question,
    without_our_tags,
)
from llama_index_memory_ext.record.block import CondensedMemoryBlock
from llama_index_memory_ext.record.options import CondensedOptions, check_limits, check_option_names
from llama_index_memory_ext.store import DEFAULT_TABLE_NAME, MemoryStore
from llama_index_memory_ext.text.messages import checked_messages, message_tokens
from llama_index_memory_ext.text.tokens import TokenCounter, as_counter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.llms.llm import LLM
    from llama_index.core.storage.chat_store.base_db import MessageStatus
    from sqlalchemy.ext.asyncio import AsyncEngine

    from llama_index_memory_ext.facts.book import FactBook
    from llama_index_memory_ext.formats import Layout

DEFAULT_TOKEN_LIMIT = 60_000
DEFAULT_CONDENSED_TOKEN_LIMIT = 50_000
DEFAULT_FACTS_TOKEN_LIMIT = 2_000


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

    _owns_store: bool = PrivateAttr(default=False)
    _opened: bool = PrivateAttr(default=False)

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
    def from_defaults(  # type: ignore[override]  # more arguments than the host's, and no agent_id
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
        check_limits(token_limit, condensed_token_limit, facts_token_limit)
        check_option_names(condensed)
        store = chat_store or MemoryStore(
            async_database_uri, table_name=table_name, async_engine=async_engine, db_schema=db_schema
        )
        check_store(store, session_id)
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

    # ---- writing -------------------------------------------------------------------------------------

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
            await self._append(messages, self._flush_plan if starts_turn else None)

    async def aset(self, messages: list[ChatMessage]) -> None:
        """Replace the whole conversation, the record included."""
        await self._append(checked_messages(messages), self._flush_plan, replace=True)

    async def areset(self, status: MessageStatus | None = None) -> None:
        """Delete the conversation: the messages, and what the blocks of this package show of them."""
        async with self._calls():
            await self.sql_store.delete_messages(self.session_id, status)

    async def aflush(self) -> None:
        """Move the last turn into the record too, as the next question would; extract its facts, and sum up."""
        async with self._calls():
            await self._flusher.append([], len)
        await self._flusher.finish()

    def put(self, message: ChatMessage) -> None:
        """Add a message, and wait for what is extracted or summarised meanwhile."""
        self.put_messages([message])

    def put_messages(self, messages: list[ChatMessage]) -> None:
        """Add messages in one step, and wait for what is extracted or summarised meanwhile."""
        run_alone(self.sql_store, self.aput_messages(messages), with_jobs=True)

    def set(self, messages: list[ChatMessage]) -> None:
        """Replace the whole conversation, the record included."""
        run_alone(self.sql_store, self.aset(messages))

    def flush(self) -> None:
        """Move the last turn into the record too, as the next question would."""
        run_alone(self.sql_store, self.aflush())

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
            turn = await self.sql_store.readers.active(self.session_id)
            question = ChatMessage(content=input) if isinstance(input, str) else input
            asked = [question] if question is not None and not is_last_question(question, turn) else []
            contents = await self._get_memory_blocks_content([*turn, *asked], **block_kwargs)
            room = self.token_limit - initial_token_count - sum(map(self._tokens, turn))
            formatter = BlockFormatter(self.memory_blocks_template, self.memory_blocks, self.tokenizer_fn, self._tokens)
            content, messages = await formatter.fit(contents, room)
        return self._insert_memory_content([without_our_tags(message) for message in turn], content, messages)

    def get(
        self, input: str | ChatMessage | None = None, initial_token_count: int = 0, **block_kwargs: Any
    ) -> list[ChatMessage]:
        """The messages for the model, as ``aget`` gives them."""
        return run_alone(self.sql_store, self.aget(input, initial_token_count, **block_kwargs))

    async def astats(self) -> MemoryStats:
        """How much the session holds and shows, and what has failed; all zero where nothing was said yet.

        Some counts by index, and as much of the log as the next question would be shown. Nothing is written.
        """
        return await read_stats(self.sql_store, self.condensed_block, self.facts_block, self.session_id)

    def stats(self) -> MemoryStats:
        """As ``astats``."""
        return run_alone(self.sql_store, self.astats())

    # ---- its parts and its life ----------------------------------------------------------------------

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

    async def aclose(self) -> None:
        """Flush, and close the database connections that this memory has opened."""
        await self.aflush()
        await self.condensed_block.aclose()
        await self.facts_block.aclose()
        if self._owns_store:
            await self.sql_store.aclose()

    def close(self) -> None:
        """Flush, and close the database connections that this memory has opened."""
        run_alone(self.sql_store, self.aclose())

    # ---- moving in, and forgetting -------------------------------------------------------------------

    async def aimport(self, source: str | bytes | Iterable[Any], *, show_progress: bool = False) -> int:
        """Add a conversation that was written as JSON behind what the session holds, as if it were put now.

        All of it is stored in one transaction, or nothing. Importing twice stores it twice. With ``extract_facts``
        its facts are extracted in the background, as of any messages.

        Args:
            source: Whatever ``messages_from_json`` reads: LlamaIndex's format or OpenAI's.
            show_progress: Whether a bar is shown.

        Returns:
            The number of messages.

        Raises:
            MessageError: This is no JSON of messages. It says where and what was expected; nothing is stored.
        """
        # A long history takes seconds to read, in which nobody else should have to wait.
        messages = await asyncio.to_thread(messages_from_json, source, show_progress=show_progress)
        await self.aput_messages(messages)
        return len(messages)

    def import_(self, source: str | bytes | Iterable[Any], *, show_progress: bool = False) -> int:
        """As ``aimport``; the underscore is Python's. It waits for what is extracted or summarised meanwhile."""
        return run_alone(self.sql_store, self.aimport(source, show_progress=show_progress), with_jobs=True)

    async def aexport(self, *, layout: Layout = "llama_index") -> str:
        """All messages of the session, oldest first, as a JSON list; "[]" if there are none.

        ``layout="openai"`` is the format of OpenAI's Chat Completions; ``messages_to_json`` says what that leaves out.
        """
        return messages_to_json(await self.aget_all(), layout=layout)

    def export(self, *, layout: Layout = "llama_index") -> str:
        """As ``aexport``."""
        return run_alone(self.sql_store, self.aexport(layout=layout))

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
        return await backfill(
            self.sql_store, self.facts_block, self.session_id, session_ids, show_progress=show_progress
        )

    def backfill(self, session_ids: Sequence[str] | None = None, *, show_progress: bool = False) -> Backfilled:
        """As ``abackfill``."""
        return run_alone(self.sql_store, self.abackfill(session_ids, show_progress=show_progress))

    async def aforget(self, *, vacuum: bool = True) -> dict[str, int]:
        """Delete for good all that is stored about the user of this memory, in all of their sessions, and this session.

        What is under way for them is cancelled here, and stores nothing elsewhere. The memory can be used on, as a new
        one. Messages of a session that another user has talked in too are deleted with it; the other's facts stay.
        What further ``memory_blocks`` keep elsewhere is not deleted.

        Args:
            vacuum: Whether the database is rewritten afterwards, without which deleted words may still be in its
                file; see ``MemoryStore.vacuum`` for what that takes.

        Returns:
            The number of deleted rows of ``"messages"``, ``"cursors"``, ``"facts"`` and ``"embeddings"``.
        """
        async with self._calls():
            store, user_id = self.sql_store, self.facts_block.namespace_of(self.session_id)
            await store.jobs.stop({user_id, self.session_id, *await store.users.keys(user_id)})
            return await store.forget_user(user_id, session_ids=[self.session_id], vacuum=vacuum)

    def forget(self, *, vacuum: bool = True) -> dict[str, int]:
        """Delete for good all that is stored about the user of this memory, as ``aforget`` does."""
        return run_alone(self.sql_store, self.aforget(vacuum=vacuum))

    # ---- inside --------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        # A workflow that copies its start event must go on writing to this conversation.
        return self

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        # The store of a memory that was pickled has opened the database anew, for this memory alone.
        self._owns_store = True

    @property
    def _flusher(self) -> Flusher:
        return Flusher(self.sql_store, self.session_id, self.memory_blocks)

    @property
    def _flush_plan(self) -> FlushPlan:
        ratio = self.chat_history_token_ratio
        return FlushPlan(int(self.token_limit * ratio), None if ratio <= FLUSH_EVERY_TURN else self._tokens)

    async def _append(self, messages: list[ChatMessage], plan: FlushPlan | None, *, replace: bool = False) -> None:
        self._opened = self._opened or await self._flusher.open()
        async with self._calls():
            await self._flusher.append(messages, plan, replace=replace)

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
