"""The LlamaIndex Memory that joins a store and the blocks, and shows the model one message."""

from __future__ import annotations

import inspect
from collections.abc import Sequence  # noqa: TC003 - programs read the types of MemoryOptions
from datetime import tzinfo  # noqa: TC003 - the same
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from llama_index.core.base.llms.types import ChatMessage  # noqa: TC002 - for the example
from llama_index.core.memory import BaseMemoryBlock, InsertMethod
from pydantic import ConfigDict
from typing_extensions import Self, Unpack

from llama_index_memory_ext.background.loop import in_sync
from llama_index_memory_ext.blocks.facts import FactsOptions, RelevantFactsBlock
from llama_index_memory_ext.blocks.record import CondensedMemoryBlock, CondensedOptions
from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.memory.fields import ErrorHandler, MemoryFields, Redact
from llama_index_memory_ext.memory.prompt import assemble, read_prompt
from llama_index_memory_ext.memory.runs import single_run
from llama_index_memory_ext.memory.search import MemorySearchResult, check_search
from llama_index_memory_ext.memory.settings import (
    StorePlace,
    check_cache_points,
    check_history,
    limits_for,
    session_id_for,
    settings_of,
    store_for,
    warn_of_model,
    with_further_blocks,
)
from llama_index_memory_ext.memory.template import MemoryBlocksTemplate
from llama_index_memory_ext.memory.writing import (
    access_of,
    append,
    flush,
    plan_flush,
    put,
    stored_form,
    stored_question,
    wait_for_jobs,
)
from llama_index_memory_ext.record.cache_points import CachePoints  # noqa: TC001
from llama_index_memory_ext.settings import check_names, check_text, unpacked
from llama_index_memory_ext.store import DEFAULT_TABLE_NAME, MemoryStore
from llama_index_memory_ext.store.rows import SessionAccess
from llama_index_memory_ext.text.entries import MEDIA_TOKENS
from llama_index_memory_ext.text.tokens import TokenCounter, as_counter
from llama_index_memory_ext.text.turns import FLUSH_EVERY_TURN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractAsyncContextManager

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.llms.llm import LLM
    from llama_index.core.prompts import RichPromptTemplate
    from llama_index.core.storage.chat_store.base_db import MessageStatus
    from sqlalchemy.ext.asyncio import AsyncEngine

    from llama_index_memory_ext.facts.book import FactBook
    from llama_index_memory_ext.memory.backfill import Backfilled
    from llama_index_memory_ext.memory.stats import MemoryStats
    from llama_index_memory_ext.store.address import Address
    from llama_index_memory_ext.store.encryption import EncryptionKey

# Ends the docstring of a synchronous call.
_WAITS = ", then wait for extraction, summary and embeddings of this session"


class MemoryOptions(CondensedOptions, FactsOptions, total=False):
    """The settings of a memory and its blocks that ``from_defaults`` takes by name; its ``help`` documents them."""

    user_id: str | None
    shared: bool
    cache_points: CachePoints
    redact: Redact
    on_error: ErrorHandler
    temporary: bool
    time_zone: str | tzinfo | None
    languages: Sequence[str] | None


class CondensedMemory(MemoryFields):
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

    model_config = ConfigDict(defer_build=False)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this memory."""
        return "CondensedMemory"

    @classmethod
    @unpacked(MemoryOptions, MemoryFields, CondensedMemoryBlock, RelevantFactsBlock)
    def from_defaults(  # type: ignore[override]  # more arguments than the host's, and no other chat store
        cls,
        session_id: str | None = None,
        chat_history: list[ChatMessage] | None = None,
        token_limit: int | None = None,
        memory_blocks: list[BaseMemoryBlock[Any]] | None = None,
        tokenizer_fn: Callable[[str], list[Any]] | None = None,
        chat_history_token_ratio: float = FLUSH_EVERY_TURN,
        token_flush_size: int | None = None,  # noqa: ARG003 - the host's
        memory_blocks_template: RichPromptTemplate | None = None,
        insert_method: InsertMethod | str = InsertMethod.USER,
        image_token_size_estimate: int = MEDIA_TOKENS["image"],
        audio_token_size_estimate: int = 256,
        video_token_size_estimate: int = 256,
        chat_store: MemoryStore | None = None,
        table_name: str = DEFAULT_TABLE_NAME,
        async_database_uri: Address = None,
        async_engine: AsyncEngine | None = None,
        db_schema: str | None = None,
        memory_blocks_concurrency: int = 1,  # noqa: ARG003 - the host's
        *,
        context_window: int | None = None,
        condensed_token_limit: int | None = None,
        facts_token_limit: int | None = None,
        llm: LLM | None = None,
        embed_model: BaseEmbedding | Literal["local"] | None = None,
        encryption_key: EncryptionKey = None,
        **settings: Unpack[MemoryOptions],
    ) -> CondensedMemory:
        """Return a memory with a condensed block and a facts block on one store.

        The arguments up to ``memory_blocks_concurrency`` are the arguments of
        ``Memory.from_defaults``, in the same order.

        Args:
            session_id: The name of the conversation. Needed with a database that
                outlives the process.
            chat_history: Replaces the messages of the session.
            token_limit: Maximum tokens of a prompt. If the current turn alone is longer,
                nothing is added. Default: 3/4 of the window, at most 60,000.
            memory_blocks: Further blocks, shown after the record and the facts.
            tokenizer_fn: Counts the tokens; default: o200k_base, exact and offline.
            chat_history_token_ratio: Share of the token limit, 0..1, for turns that are
                shown as separate messages; default: only the newest turn.
            token_flush_size: Has no effect, because whole turns move into the record.
            memory_blocks_template: Joins the texts of the blocks; default: unchanged,
                within ``<memory>``.
            insert_method: ``"user"``, before the question, or ``"system"``.
            image_token_size_estimate: Tokens of an image, at least 0.
            audio_token_size_estimate: Tokens of an audio block, at least 0.
            video_token_size_estimate: Tokens of a video, at least 0.
            chat_store: Your store, instead of the following four arguments and
                ``encryption_key``. You close it.
            table_name: The chat table.
            async_database_uri: SQLite or PostgreSQL, or the ``Path`` of a SQLite file;
                default: in memory.
            async_engine: Your engine. You close it.
            db_schema: The schema of the tables, where the database has schemas.
            memory_blocks_concurrency: Has no effect: blocks are read one by one.
            context_window: Maximum tokens of prompt and answer, for the answering model.
                Default: the window of ``llm`` or ``Settings.llm``, which may be unknown.
            condensed_token_limit: Maximum tokens of the record, with its summary and
                recalled messages. Default: ``token_limit`` minus the facts and a
                quarter (at most 8,000) for the turn, at most 50,000.
            facts_token_limit: Maximum tokens of the facts; 0 shows none; default: an
                eighth of ``token_limit``, at most 2,000.
            llm: Extracts facts, and summarises with ``summarize``. Default:
                ``Settings.llm``; without a model, no facts are extracted.
            embed_model: Ranks facts and recalled messages together with their words:
                LlamaIndex's, or "local" (extra ``local``). Default: words alone.
            encryption_key: The key with which texts are stored encrypted, or a list of
                keys, as for ``MemoryStore``.
            settings: Each of the following, by name.

        Raises:
            LimitError: The limits of the blocks do not fit into ``token_limit``, or
                ``token_limit`` does not fit into a known window.
            SettingError: An argument does not exist, has a wrong type or is out of its
                range, or contradicts another argument.
            StoreError: The database cannot be used, or would outlive a session without
                a ``session_id``. Later calls raise a ``SessionOwnerError`` if the
                session has another owner and is not shared.
        """
        check_names(
            settings,
            inspect.signature(cls.from_defaults).parameters,
            "CondensedMemory.from_defaults()",
        )
        check_history(chat_history)
        limits = limits_for(
            context_window, token_limit, condensed_token_limit, facts_token_limit, llm
        )
        check_cache_points(
            settings.get("cache_points", False), memory_blocks_template, llm
        )
        temporary = settings.get("temporary", False)
        place = StorePlace(
            async_database_uri, table_name, async_engine, db_schema, encryption_key
        )
        store = store_for(chat_store, place)
        session_id = session_id_for(session_id, store)
        facts_store = store
        if temporary:
            facts_store = store.read_only()
            store = MemoryStore()
            settings = {**settings, "extract_facts": False}
        counter = TokenCounter() if tokenizer_fn is None else as_counter(tokenizer_fn)
        user_id = settings.get("user_id")
        of_blocks = {
            **settings,
            "llm": llm,
            "embed_model": embed_model,
            "user_id": session_id if user_id is None else user_id,
        }
        record_block = CondensedMemoryBlock(
            token_limit=limits.record,
            store=store,
            tokenizer_fn=counter,
            **settings_of(CondensedMemoryBlock, of_blocks),
        )
        facts_block = RelevantFactsBlock(
            token_limit=limits.facts,
            store=facts_store,
            tokenizer_fn=counter,
            **settings_of(RelevantFactsBlock, of_blocks),
        ).belong_to(SessionAccess(user_id).user_in(session_id))
        memory = cls(
            session_id=session_id,
            token_limit=limits.total,
            memory_blocks=with_further_blocks(
                [record_block, facts_block], memory_blocks
            ),
            tokenizer_fn=counter,
            sql_store=store,
            chat_history_token_ratio=chat_history_token_ratio,
            memory_blocks_template=memory_blocks_template or MemoryBlocksTemplate(),
            insert_method=insert_method,  # type: ignore[arg-type]  # pydantic converts a text
            image_token_size_estimate=image_token_size_estimate,
            audio_token_size_estimate=audio_token_size_estimate,
            video_token_size_estimate=video_token_size_estimate,
            **settings_of(MemoryFields, settings),
        )
        warn_of_model(record_block)
        memory._owns_store = chat_store is None or temporary
        if chat_history is not None:
            memory.set(chat_history)
        return memory

    async def aput(self, message: ChatMessage) -> None:
        """Add a message; a user's message moves the turns before it into the record.

        Raises:
            MessageError: The argument is not a ``ChatMessage``.
        """
        await put(self, [message])

    async def aput_messages(self, messages: list[ChatMessage]) -> None:
        """Add messages in one step; an empty list adds none.

        A message with an id, ``additional_kwargs["message_id"]``, is stored once: see
        ``MemoryStore.add_messages``.

        Raises:
            MessageError: An entry is not a ``ChatMessage``; nothing is written.
        """
        await put(self, messages)

    async def aset(self, messages: list[ChatMessage]) -> None:
        """Replace the whole conversation, the record included.

        Messages that equal the beginning of the stored session stay, and their facts are
        not extracted again.
        """
        stored = await stored_form(self, messages)
        await append(self, stored, partial(plan_flush, self), replace=True)

    async def areset(self, status: MessageStatus | None = None) -> None:
        """Delete the messages of the session, or only its messages with a status, once running calls have ended."""
        async with self._calls():
            await self.acheck_session()
            await super().areset(status)

    async def aflush(self) -> None:
        """Move the last turn into the record, as the next question would; wait for facts and summary."""
        await flush(self, len)

    async def aget(
        self,
        /,
        input: str | ChatMessage | None = None,
        initial_token_count: int = 0,
        **block_kwargs: Any,
    ) -> list[ChatMessage]:
        """Return the messages for the model: the current turn, with the memory before its question.

        Args:
            input: The question, for LlamaIndex's chat engines: they send it after these
                messages, and put it together with its answer. A completed turn first
                moves into the record. The memory is then a user's message, followed
                by a short answer.
            initial_token_count: Tokens of the limit that stay free.
            block_kwargs: Passed on to the further blocks of the program.
        """
        question = await stored_question(self, input)
        await self.facts_block.aopen(
            self.session_id, question.content if question else None
        )
        unread = await self.facts_block.wait_for_others(self.session_id)
        async with self._calls():
            prompt = await read_prompt(
                self,
                question,
                reserved=initial_token_count,
                unread=unread,
                block_kwargs=block_kwargs,
            )
        return assemble(self, prompt)

    async def aget_all(self, status: MessageStatus | None = None) -> list[ChatMessage]:
        """Return the messages of the session, or only its messages with a status, oldest first."""
        await self.acheck_session()
        return await super().aget_all(status)

    async def acheck_session(self) -> None:
        """Raise a SessionOwnerError if the session has words of another user, and is not shared by both."""
        self._is_used = True
        await self.sql_store.log.check_owner(self.session_id, access_of(self))

    async def astats(self) -> MemoryStats:
        """Return counts of the session and its last failures; all counts are 0 before the first message.

        The database counts by index, and no more of the log is read than the next
        question needs. Nothing is written.
        """
        from llama_index_memory_ext.memory.stats import read_stats  # at first use

        await self.acheck_session()
        return await read_stats(self, with_pending=self.facts_block.extract_facts)

    @property
    def facts(self) -> FactBook:
        """The facts of the user: to list, add, change, retire, restore, forget, export and import."""
        return self.facts_block.book(self.session_id)

    async def asearch(
        self,
        question: str,
        *,
        facts: bool = True,
        messages: bool = True,
        similarity_top_k: int = 10,
    ) -> MemorySearchResult:
        """Return the user's facts and the session's messages that match a question, best first.

        Facts are ranked as for the prompt, and messages as for recall. A current turn
        without an answer is not searched, so that a question does not find itself. The
        result is empty for an empty question, and prints a line for each entry. With an
        ``embed_model`` nearly every question has results.

        Args:
            question: The words to search for.
            facts: Whether facts are searched.
            messages: Whether messages are searched.
            similarity_top_k: Maximum number of facts, and of messages.

        Raises:
            ValueError: Neither facts nor messages are searched.
            SettingError: ``question`` is not a str, or ``similarity_top_k`` not a whole
                number of at least 1.
        """
        await self.acheck_session()
        check_search(similarity_top_k, facts=facts, messages=messages)
        check_text("question", question)
        ranked = []
        if facts:
            ranked = await self.facts.asearch(
                question, similarity_top_k=similarity_top_k
            )
        if not (messages and question.strip()):
            return MemorySearchResult(tuple(ranked))
        similar = await self.condensed_block.asearch(
            question, session_id=self.session_id, most=similarity_top_k
        )
        return MemorySearchResult(tuple(ranked), tuple(similar))

    def last_used(self) -> MemorySearchResult:
        """Return the facts and the recalled messages in the last prompt of this memory, in their order.

        The last prompt is the last ``aget`` for a question without an answer; of
        concurrent calls, the last to end. Entries that were cut off to fit, and further
        messages of the record, are not included. The result is empty before the first
        question, and in a copy: each memory object reports its prompts only.
        """
        return self._last_sources or MemorySearchResult()

    def turn(self) -> AbstractAsyncContextManager[Self]:
        """Let one run of a session through at a time, in this process; raise a TurnError for a turn within a turn."""
        return single_run(self)

    async def aclose(self) -> None:
        """Flush, and close the database connections that this memory has opened.

        A turn without an answer continues: its question stays in short-term memory until
        the session is opened again. A later call opens the database again. A
        database in memory is lost, and a later call raises a StoreError. If no run has
        used the memory, a warning is logged, once in a process.
        """
        from llama_index_memory_ext.memory.closing import close

        await close(self)

    async def aimport(
        self, source: str | bytes | Iterable[Any], *, show_progress: bool = False
    ) -> int:
        """Add a conversation from JSON after the messages of the session, as if it were put now.

        Messages with a time keep it, and messages of an export also keep the time at
        which they were stored. All are stored in one transaction. Importing twice
        stores messages twice, unless they have ids. With ``extract_facts``, facts are
        extracted in the background. A user's message of an export keeps its speaker.
        Facts that were imported before find their messages.

        Args:
            source: JSON in the format of LlamaIndex or OpenAI; see
                ``messages_from_json``.
            show_progress: Whether a bar is shown.

        Returns:
            The number of messages that were stored: a message that the session has
            already, with its id and its words, is not stored again.

        Raises:
            MessageError: ``source`` is not JSON of messages, two messages have one id and
                different words, or messages name other users and the memory is not
                ``shared``. The error names the place; nothing is stored.
        """
        from llama_index_memory_ext.memory.moving import import_json  # at first use

        return await import_json(self, source, show_progress=show_progress)

    async def aexport(self) -> str:
        """Return all messages of the session, oldest first, as a JSON list; "[]" if there are none.

        Beside each message, ``stored_at`` is the time at which it was stored. In a
        session of several users, ``additional_kwargs["user_id"]`` is the speaker.
        """
        from llama_index_memory_ext.memory.moving import export_json  # at first use

        return await export_json(self)

    async def abackfill(
        self,
        session_ids: Sequence[str] | None = None,
        *,
        failed: bool = False,
    ) -> Backfilled:
        """Extract facts from all messages that were not read for facts yet, the current turn included.

        Use it for histories of a plain ``Memory``, for imports, and for messages that
        were written with ``extract_facts=False``, which is ignored here. A second call
        continues where the first has stopped. Two concurrent calls store nothing twice.
        ``created_at`` of a fact is the time of its messages. A fact that was learned on
        a later day is never retired.

        Args:
            session_ids: Sessions of this memory's user, in reading order. None: this
                session, and then all other sessions of this user, oldest first; where
                an agent keeps its facts apart, only sessions of this agent.
            failed: Whether to retry the turns that were set aside, which ``astats``
                lists.

        Returns:
            Counts of messages and facts. A session whose extraction fails is named in
            ``failed``, and the next sessions follow. After three failures in a row the
            remaining sessions are named in ``not_tried``.

        Raises:
            StoreError: A session of ``session_ids`` does not exist; no model was asked.
            NoModelError: There is neither an ``llm`` nor a ``Settings.llm``.
        """
        from llama_index_memory_ext.memory.backfill import backfill  # at first use

        return await backfill(self, session_ids, failed=failed)

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
        facts. Each session reads its unread messages for facts. A session without a user
        has separate facts: its copy learns them again.

        Args:
            new_session_id: The name of the new session.
            until: The last message that is copied, by its
                ``additional_kwargs["message_id"]``; None copies all messages.
            before: Instead of ``until``, the first message that is not copied, such as
                a question that the user asks again.

        Returns:
            A memory of the new session with the settings of this memory, on the same
            store. Closing this memory closes the store.

        Raises:
            SettingError: The new name is not an id, or both ``until`` and ``before`` are
                passed.
            StoreError: The new session exists, this session was never used, or no message
                has this id; a ``SessionOwnerError`` if this session has another owner.
                Nothing is copied.
        """
        from llama_index_memory_ext.memory.moving import branch  # at first use

        return await branch(self, new_session_id, until, before)

    async def aforget(self, *, vacuum: bool = True) -> dict[str, int]:
        """Delete everything about the user of this memory for good: all of the user's sessions, and this session.

        Facts of all agents are deleted, even outside the ``scope`` of this memory.
        Running work on them is cancelled in this process, and stores nothing in other
        processes. The memory can be used afterwards. In a shared session, the turns of
        this user are deleted, with the answers; messages of other users stay. Data that
        further ``memory_blocks`` keep elsewhere stays.

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
    put = in_sync(aput, after=wait_for_jobs, note=_WAITS)
    put_messages = in_sync(aput_messages, after=wait_for_jobs, note=_WAITS)
    set = in_sync(aset)
    reset = in_sync(areset)
    flush = in_sync(aflush)
    get = in_sync(aget)
    get_all = in_sync(aget_all)
    stats = in_sync(astats)
    search = in_sync(asearch)
    close = in_sync(aclose)
    import_ = in_sync(aimport, after=wait_for_jobs, note=_WAITS)
    export = in_sync(aexport)
    backfill = in_sync(abackfill)
    branch = in_sync(abranch)
    forget = in_sync(aforget)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, error: object, *_: object) -> None:
        # A program that fails may end before its first run.
        if error is not None:
            self._is_used = True
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    __exit__ = in_sync(__aexit__)
