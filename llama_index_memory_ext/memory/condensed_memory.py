"""Puts a store and the blocks together as a LlamaIndex Memory that shows the model one message."""

from __future__ import annotations

import asyncio
import inspect
import logging
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from llama_index.core.base.llms.types import ChatMessage, ContentBlock, MessageRole
from llama_index.core.bridge.pydantic import Field, PrivateAttr, model_validator
from llama_index.core.memory import BaseMemoryBlock, InsertMethod, Memory
from llama_index.core.prompts import RichPromptTemplate
from typing_extensions import Self, Unpack

from llama_index_memory_ext.background.jobs import log_failure
from llama_index_memory_ext.background.locks import lock_for
from llama_index_memory_ext.background.loop import in_sync
from llama_index_memory_ext.errors import (
    SessionOwnerError,
    SettingError,
    StoreError,
    StoreTimeoutError,
)
from llama_index_memory_ext.facts.block import FactsOptions, RelevantFactsBlock
from llama_index_memory_ext.formats import messages_from_json, messages_to_json
from llama_index_memory_ext.memory import template, turns
from llama_index_memory_ext.memory.search import MemorySearchResult, check_search
from llama_index_memory_ext.memory.settings import (
    DEFAULT_TOKEN_LIMIT,
    check_cache_points,
    limits_for,
    place_of,
)
from llama_index_memory_ext.memory.stats import MemoryStats, read_stats
from llama_index_memory_ext.models.server_history import warn_of_server_history
from llama_index_memory_ext.reader_block import Counter, LogBlock
from llama_index_memory_ext.record.block import CondensedMemoryBlock, CondensedOptions
from llama_index_memory_ext.record.text import EARLIER_OPENING
from llama_index_memory_ext.record.window import CachePoints
from llama_index_memory_ext.settings import (
    Switch,
    check_id,
    check_names,
    checked,
    shown,
    unpacked,
)
from llama_index_memory_ext.store import DEFAULT_TABLE_NAME, MemoryStore, reader_of
from llama_index_memory_ext.store.tables import Opening, Seen
from llama_index_memory_ext.text.messages import (
    HINT,
    MEDIA_TOKENS,
    body_of,
    characters_of,
    checked_messages,
    is_answer,
    redacted,
    tokens_by_bytes,
)
from llama_index_memory_ext.text.tokens import LONG_CHARACTERS, TokenCounter, as_counter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.llms.llm import LLM
    from llama_index.core.storage.chat_store.base_db import MessageStatus
    from sqlalchemy.ext.asyncio import AsyncEngine

    from llama_index_memory_ext.facts.backfill import Backfilled
    from llama_index_memory_ext.facts.book import FactBook
    from llama_index_memory_ext.formats import Layout
    from llama_index_memory_ext.store.tables import Snapshot

logger = logging.getLogger(__name__)

# A function from a text to a text; None: texts are stored as they are.
Redact: TypeAlias = Callable[[str], str] | None


async def _wait_for_jobs(memory: CondensedMemory) -> None:
    await memory.sql_store.jobs.wait_for_session(memory.session_id)


class MemoryOptions(CondensedOptions, FactsOptions, total=False):
    """The settings of both blocks that ``CondensedMemory.from_defaults`` takes by name.

    ``CondensedMemoryBlock`` and ``RelevantFactsBlock`` document them, and so does
    ``help`` of that function.
    """

    languages: Sequence[str] | None
    retry_seconds: float


class CondensedMemory(Memory):
    """A LlamaIndex ``Memory`` that shows the model one message: the earlier conversation, and the question.

    Build it with ``from_defaults``, pass it to every run, ``agent.run(question,
    memory=memory)``, and close it with ``await memory.aclose()``, or use it as ``async
    with CondensedMemory.from_defaults(...)``.

    LlamaIndex cannot keep two concurrent runs of one session apart: the later question
    moves the earlier one out of short-term memory. Run one at a time within ``async
    with memory.turn():``.
    """

    # Fields of the host, with other defaults.
    token_limit: int = DEFAULT_TOKEN_LIMIT
    chat_history_token_ratio: float = Field(default=turns.FLUSH_EVERY_TURN, ge=0, le=1)
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
    cache_points: CachePoints = False
    chat_engine_role: template.EngineRole = "system"
    user_id: str | None = None
    shared: Switch = False
    temporary: Switch = False
    sql_store: MemoryStore = Field(
        default_factory=MemoryStore, exclude=True, repr=False
    )

    _owns_store: bool = PrivateAttr(default=False)
    _opened: bool = PrivateAttr(default=False)
    # Whether a program has read, written or looked at anything by this memory.
    _is_used: bool = PrivateAttr(default=False)
    # Of the question that was shown last. Its words must not travel with a pickle, nor
    # those of what was found for it.
    _question_hash: int = PrivateAttr(default=0)
    _used: MemorySearchResult | None = PrivateAttr(default=None)

    if not TYPE_CHECKING:  # With this method, a type checker would not know the fields.

        def __init__(self, **values: Any) -> None:
            checked(type(self), super().__init__, **values)

    @model_validator(mode="before")
    @classmethod
    def _check_blocks(cls, values: dict[str, Any]) -> dict[str, Any]:
        if not {CondensedMemoryBlock, RelevantFactsBlock} <= set(
            map(type, values.get("memory_blocks", ()))
        ):
            raise SettingError(
                "a CondensedMemory needs a CondensedMemoryBlock and a RelevantFactsBlock on its own store: build it "
                "with CondensedMemory.from_defaults(...)"
            )
        # Memory's own validators run after this one and would take a tokenizer of
        # another model.
        return {
            "token_limit": DEFAULT_TOKEN_LIMIT,
            "tokenizer_fn": TokenCounter(),
            **values,
        }

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
        chat_history_token_ratio: float = turns.FLUSH_EVERY_TURN,
        token_flush_size: int | None = None,
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
        *,
        context_window: int | None = None,
        condensed_token_limit: int | None = None,
        facts_token_limit: int | None = None,
        user_id: str | None = None,
        shared: bool = False,
        llm: LLM | None = None,
        embed_model: BaseEmbedding | Literal["local"] | None = None,
        cache_points: CachePoints = False,
        chat_engine_role: template.EngineRole = "system",
        redact: Redact = None,
        temporary: bool = False,
        **settings: Unpack[MemoryOptions],
    ) -> CondensedMemory:
        """Return a memory with a condensed block and a facts block on one store.

        The first arguments are those of the host's ``Memory.from_defaults``, in their
        order.

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
                shown as messages of their own; by default every turn but the newest is
                condensed.
            token_flush_size: Without a meaning here, where whole turns leave for the
                record; a UserWarning says so.
            memory_blocks_template: Joins the texts of the blocks; default: as they are,
                within ``<memory>``.
            insert_method: ``"user"``, in front of the question, or ``"system"``.
            image_token_size_estimate: Tokens of an image, at least 0. If its bytes are
                in the message, LlamaIndex's own estimate is taken where it is higher.
            audio_token_size_estimate: Tokens of an audio block, at least 0.
            video_token_size_estimate: Tokens of a video, at least 0.
            chat_store: A store of your own instead of the following four; it is not
                closed.
            table_name: The chat table.
            async_database_uri: SQLite or PostgreSQL; default: in memory.
            async_engine: Your own engine; it is not closed.
            db_schema: The schema of the tables, where the database has schemas.
            context_window: Most tokens of prompt and answer of the model that answers;
                default: what ``llm`` says, or ``Settings.llm`` if one is set, and where
                that does not know it, it is unknown.
            condensed_token_limit: Most tokens of the record, with its summary and
                recalled messages; default: what the facts and a quarter of
                ``token_limit`` (at most 8,000) leave of it, at most 50,000.
            facts_token_limit: Most tokens of the facts; 0 shows none; default: an
                eighth of ``token_limit``, at most 2,000.
            user_id: The user whose facts are shown, in all of their sessions, and to
                whom the session is open alone; default: each session's own. The first
                user of a session that was begun without one takes it over.
            shared: Whether other users may read the session and write to it, with
                memories that are shared, too. Each one's facts are of their own words.
                A message of another user than this one names them in
                ``additional_kwargs["user_id"]``.
            llm: Extracts facts, by one more call for each turn, and summarises with
                ``summarize``; default: ``Settings.llm`` if one is set when a turn ends,
                else no facts are extracted.
            embed_model: Ranks facts, and messages that are found for a question,
                together with their words: a model of LlamaIndex, or "local" for a small
                one on this machine (extra ``local``); default: words alone.
            cache_points: Whether the prompt has LlamaIndex's cache points, for models
                that find a prompt in their cache only where it is marked: Anthropic's,
                those on Bedrock, and with ``CachingOpenAI`` GPT-5.6 and later. A
                ``CacheControl`` sets type and ttl. Other integrations refuse what they
                do not know.
            chat_engine_role: Whose message holds the memory for chat engines that put
                their question later, as context engines do: ``"system"``, or
                ``"user"``, which a short answer follows, for models that take one
                system message only.
            redact: A function from each text of a message, and of the arguments of its
                tool calls, to the text that is stored; ``redact_secrets`` is one. The
                model is shown what is stored. If it fails, nothing is stored, and
                whoever puts the message gets a ``SettingError``.
            temporary: Whether nothing is stored: the user's facts are read from the
                database, which has to be there already, and the session is in memory.
                No facts are extracted, and to add one raises a ``StoreError``.
            settings: Each of the following, by name.

        Raises:
            LimitError: The limits of the blocks do not fit into ``token_limit``, or
                that into a known window.
            SettingError: An argument does not exist, is of a wrong type or out of its
                range, or contradicts another.
            StoreError: The database cannot be used, or would outlive a session without
                a ``session_id``. Later, by each call: a ``SessionOwnerError`` if the
                session is another user's, and not shared by both.
        """
        check_names(
            settings,
            inspect.signature(cls.from_defaults).parameters,
            "CondensedMemory.from_defaults()",
        )
        if token_flush_size is not None:
            warnings.warn(
                f"token_flush_size={shown(token_flush_size)} does nothing in a CondensedMemory: whole turns are moved "
                "into the record, as many as are over chat_history_token_ratio. Leave it out.",
                UserWarning,
                stacklevel=2,
            )
        limits = limits_for(
            context_window, token_limit, condensed_token_limit, facts_token_limit, llm
        )
        check_cache_points(cache_points, memory_blocks_template, llm)
        place: Any = {
            "async_database_uri": async_database_uri,
            "table_name": table_name,
            "async_engine": async_engine,
        }
        store, session_id = place_of(
            chat_store, session_id, **place, db_schema=db_schema
        )
        if shared and user_id is None:
            raise SettingError(
                "shared=True needs a user_id, which says who is speaking; saw none. Give it the user's."
            )
        facts_store = store
        if temporary:
            facts_store = reader_of(store)
            store = MemoryStore()
            settings = {**settings, "extract_facts": False}
        if tokenizer_fn is None:
            counter = TokenCounter()
        else:
            counter = as_counter(tokenizer_fn)
        counter.warm_up()
        of_both: Any = {"llm": llm, "embed_model": embed_model, "tokenizer_fn": counter}
        stores = store, facts_store
        of_user = session_id if user_id is None else user_id
        namespace = Opening(user_id).user_in(session_id)
        memory = cls(
            session_id=session_id,
            token_limit=limits[0],
            memory_blocks=blocks_for(
                settings, limits[1:], stores, of_user, memory_blocks or (), **of_both
            ),
            tokenizer_fn=counter,
            sql_store=store,
            chat_history_token_ratio=chat_history_token_ratio,
            memory_blocks_template=memory_blocks_template
            or template.MemoryBlocksTemplate(),
            insert_method=insert_method,  # type: ignore[arg-type]  # a text is made one
            cache_points=cache_points,
            chat_engine_role=chat_engine_role,
            redact=redact,
            temporary=temporary,
            user_id=user_id,
            shared=shared,
            image_token_size_estimate=image_token_size_estimate,
            audio_token_size_estimate=audio_token_size_estimate,
            video_token_size_estimate=video_token_size_estimate,
        )
        memory.facts_block.belong_to(namespace)
        memory._owns_store = chat_store is None or temporary
        memory._is_used = False
        warn_of_server_history(memory.facts_block.known_llm())
        if chat_history is not None:
            memory.set(chat_history)
        return memory

    async def aput(self, message: ChatMessage) -> None:
        """Add a message; a user's message moves the turns before it into the record."""
        await self.aput_messages([message])

    async def aput_messages(self, messages: list[ChatMessage]) -> None:
        """Add messages in one step; none is fine. A MessageError for anything else; nothing is written then.

        One with an id, ``additional_kwargs["message_id"]``, is stored once: see
        ``MemoryStore.add_messages``.
        """
        messages = await self._checked(messages)
        if messages:
            # Only a new question ends the turn before it.
            ends_turn = any(message.role == MessageRole.USER for message in messages)
            if ends_turn and self.chat_history_token_ratio > turns.FLUSH_EVERY_TURN:
                # The plan needs them in the middle of a write, and long texts are not
                # counted twice.
                await self._tokens_of(messages)
            await self._append(messages, self._plan_flush if ends_turn else None)
            answers = [message for message in messages if is_answer(message)]
            if answers:
                await self.facts_block.anotice(self.session_id, answer=answers[-1])

    async def aset(self, messages: list[ChatMessage]) -> None:
        """Replace the whole conversation, the record included.

        Messages at its beginning that are there already stay, and what was read of them
        is not read again.
        """
        await self._append(
            await self._checked(messages), self._plan_flush, replace=True
        )
        await self.facts_block.anotice_deletion(self.session_id)

    async def areset(self, status: MessageStatus | None = None) -> None:
        """Delete the messages of the session, or those with a status, after the calls that are under way."""
        async with self._calls():
            await self.acheck_session()
            await super().areset(status)
        self.sql_store.jobs.unread.discard(self.session_id)
        await self.facts_block.anotice_deletion(self.session_id)

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

        ``input`` is the question. If it is not put yet, as by LlamaIndex's chat
        engines, the caller has to send it behind these messages: a turn that is over
        moves into the record, and that comes as one system message, or as
        ``chat_engine_role`` says. ``initial_token_count`` tokens of the limit are left
        free; ``block_kwargs`` are passed on to each block.
        """
        await self.tokenizer_fn.load()
        if input is not None:
            given = [ChatMessage(input) if isinstance(input, str) else input]
        else:
            given = []
        # As it is stored.
        question = next(iter(await self._checked(given)), None)
        await self.facts_block.await_learned(self.session_id)
        async with self._calls():
            snapshot, is_to_come = await self._look(question)
            turn = [row.message for row in snapshot.active]
            asked = template.with_question(turn, question)
            turn = [] if is_to_come else turn
            contents: dict[str, Any] = {}
            for block in sorted(
                self.memory_blocks, key=lambda block: block.priority, reverse=True
            ):
                # The blocks of others need not know such an argument.
                is_ours = isinstance(block, LogBlock) and block.store is self.sql_store
                more = {"snapshot": snapshot} if is_ours else {}
                content = await block.aget(
                    asked, session_id=self.session_id, **block_kwargs, **more
                )
                if content and not isinstance(content, str | list):
                    raise ValueError(
                        f"Block {block.name!r} gave a {type(content).__name__}, and no text or list."
                    )
                if content:
                    contents[block.name] = content
            found = {
                name: getattr(content, "shown", ())
                for name, content in contents.items()
            }
            room = (
                self.token_limit
                - initial_token_count
                - await self._tokens_of(asked if is_to_come else turn)
            )
            if is_to_come:
                room -= template.tokens_of_role(self.chat_engine_role, self._tokens)
            content, messages, left = await self._fit(contents, room, turn)
            if content:
                questions = sum(message.role == MessageRole.USER for message in turn)
            else:
                questions = 0
            media = await self.condensed_block.amedia(
                self.session_id, questions, left, self._tokens
            )
        # An agent asks once more when it has answered, and shows that to no model.
        if not turn or turn[-1].role != MessageRole.ASSISTANT:
            self._used = self._left_of(found, contents)
        sent = list(map(template.without_our_tags, turn))
        if is_to_come:
            # A user's message alone would stand next to the question, and many models
            # take turns with users only.
            shown = [
                *template.before_question(content, self.chat_engine_role),
                *messages,
            ]
        else:
            template.add_media(media, content, sent)
            shown = self._insert_memory_content(sent, content, messages)
        # An agent asks again for each of its tool calls, whose results it may keep to
        # itself. One that has used tools in the last turn is taken to use them again.
        before = self._question_hash
        self._question_hash = hash(body_of(turn[0])) if turn else 0
        goes_on = bool(turn) and (
            before == self._question_hash
            or self.condensed_block.used_tools(self.session_id)
        )
        shown = template.with_cache_points(
            shown, self.session_id, self.cache_points, goes_on=goes_on
        )
        for message, row in zip(sent, snapshot.active, strict=False):
            # A tool's result that was put as the user's.
            if row.is_printed:
                message.role = MessageRole.USER
        return list(map(template.without_blank_texts, shown))

    async def aget_all(self, status: MessageStatus | None = None) -> list[ChatMessage]:
        """Return the messages of the session, or those with a status, oldest first."""
        await self.acheck_session()
        return await super().aget_all(status)

    async def aiter_all(
        self, status: MessageStatus | None = None
    ) -> AsyncIterator[ChatMessage]:
        """Yield the messages of the session (``async for``), or those with a status, oldest first.

        It reads them in pages, and not all at once: what is written meanwhile comes,
        too, and what is deleted does not.
        """
        await self.acheck_session()
        async for message in self.sql_store.iter_messages(self.session_id, status):
            yield message

    async def acheck_session(self) -> None:
        """Raise a SessionOwnerError if the session holds words of another user, and is not shared by both."""
        self._is_used = True
        await self.sql_store.users.check(
            self.session_id, Opening(self.user_id, self.shared)
        )

    async def astats(self) -> MemoryStats:
        """Return how much the session holds and shows, and what has failed; all zero before the first message.

        It counts by index, and reads as much of the log as the next question needs.
        Nothing is written.
        """
        await self.acheck_session()
        return await read_stats(
            self.sql_store, self.condensed_block, self.facts_block, self.session_id
        )

    @property
    def condensed_block(self) -> CondensedMemoryBlock:
        """The block that shows the record."""
        self._is_used = True
        return next(
            block
            for block in self.memory_blocks
            if isinstance(block, CondensedMemoryBlock)
        )

    @property
    def facts_block(self) -> RelevantFactsBlock:
        """The block that keeps and shows facts about the user."""
        self._is_used = True
        return next(
            block
            for block in self.memory_blocks
            if isinstance(block, RelevantFactsBlock)
        )

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
        """Return the user's facts and the session's messages that have to do with a question, best first.

        Facts are ranked as the memory ranks them, and messages as for recall, without
        the turn that is going on. An empty question finds nothing, and with an
        ``embed_model`` nearly every other finds something. The result prints a line for
        each.

        Args:
            question: What is looked for.
            facts: Whether facts are searched.
            messages: Whether messages are.
            similarity_top_k: Most facts, and most messages.

        Raises:
            ValueError: There is nothing to look for, or ``similarity_top_k`` is less
                than 1.
        """
        await self.acheck_session()
        check_search(similarity_top_k, facts=facts, messages=messages)
        if not question.strip():
            return MemorySearchResult()
        if facts:
            known = await self.facts.asearch(
                question, similarity_top_k=similarity_top_k
            )
        else:
            known = []
        record = self.condensed_block
        most = similarity_top_k
        if messages:
            said = await record.asearch(question, session_id=self.session_id, most=most)
        else:
            said = []
        return MemorySearchResult(tuple(known), tuple(said))

    def last_used(self) -> MemorySearchResult:
        """Return the facts and the recalled messages that stand in the last prompt of this memory, in their order.

        They are those of the last ``aget`` for a question without an answer, and stay
        until the next; of concurrent ones the last to end counts. What was cut off to
        fit is not among them. Both are empty before the first question, and in a copy:
        each memory object, branches and unpickled ones too, tells of its own prompts.
        What the record shows without having been found for the question is not listed.
        """
        return self._used or MemorySearchResult()

    def turn(self) -> AbstractAsyncContextManager[Self]:
        """Let one run of a session through at a time, in this process; a TurnError for a turn within a turn."""
        return turns.one_run(self, (self.session_id, *self.sql_store.database.identity))

    async def aclose(self) -> None:
        """Flush, and close the database connections that this memory has opened.

        A turn without an answer goes on: its question stays in short-term memory, for
        whoever opens the session next. A later call opens a file or a server again.
        What was in memory is gone, and a later call raises a StoreError; closing twice
        does no harm. A memory that no run was given is warned of, once in a process.
        """
        if not self._is_used and not (
            self._owns_store and self.sql_store.database.engine
        ):
            _warn_of_unused()
        try:
            if not self.sql_store.database.is_gone:
                await self._flush(turns.leaving_at_end)
                for block in self._log_blocks:
                    await block.finish()
        except StoreError as error:
            # A memory that has only read may do so in a database that cannot be written
            # to, or in another's session.
            if self._opened and not isinstance(error, SessionOwnerError):
                raise
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

        Messages that tell when they were said keep that time. All is stored in one
        transaction; importing twice stores it twice, but for messages with ids. With
        ``extract_facts`` its facts are extracted in the background.

        Args:
            source: JSON in the format of LlamaIndex or OpenAI; see
                ``messages_from_json``.
            show_progress: Whether a bar is shown.

        Returns:
            The number of messages.

        Raises:
            MessageError: This is no JSON of messages. It says where and what was
                expected; nothing is stored.
        """
        # A long history takes seconds to read, for which the event loop must not be
        # blocked.
        messages = await asyncio.to_thread(
            messages_from_json, source, show_progress=show_progress
        )
        await self.aput_messages(messages)
        return len(messages)

    async def aexport(self, *, layout: Layout = "llama_index") -> str:
        """Return all messages of the session, oldest first, as a JSON list; "[]" if there are none.

        ``layout="openai"`` is the format of OpenAI's Chat Completions; see
        ``messages_to_json`` for what it leaves out.
        """
        # A long history takes seconds to write, for which the event loop must not be
        # blocked.
        return await asyncio.to_thread(
            messages_to_json, await self.aget_all(), layout=layout
        )

    async def abackfill(
        self,
        session_ids: Sequence[str] | None = None,
        *,
        show_progress: bool = False,
        failed: bool = False,
    ) -> Backfilled:
        """Extract facts from messages from which none were extracted yet, those of the current turn too.

        For histories that a plain ``Memory`` has written, that were imported, or
        written with ``extract_facts=False``, which does not matter here. A second call
        continues where one has stopped and repeats no request; two at once store
        nothing twice. ``created_at`` of a fact is when its messages were said, dates
        like "tomorrow" count from then, and no fact that was learned on a later day is
        retired.

        Args:
            session_ids: Sessions of this memory's user, in the order in which they are
                read. None: this session, and then all others of this user, oldest
                first; where an agent keeps facts to itself, those of this agent.
            show_progress: Whether a bar is shown.
            failed: Whether turns that were set aside, which ``astats`` lists, are tried
                once more.

        Returns:
            Counts of what was read and learned. A session whose extraction fails is
            named in ``failed``, and the others go on; after three failures in a row the
            rest is named in ``not_tried``.

        Raises:
            StoreError: One of ``session_ids`` does not exist; no model was asked then.
            NoModelError: There is neither an ``llm`` nor a ``Settings.llm`` that the
                program has set.
        """
        from llama_index_memory_ext.facts.backfill import backfill  # at first use

        how = {"show_progress": show_progress, "failed": failed}
        return await backfill(
            self.sql_store, self.facts_block, self.session_id, session_ids, **how
        )

    async def abranch(
        self,
        new_session_id: str,
        *,
        until: str | int | None = None,
        before: str | int | None = None,
    ) -> Self:
        """Copy the session into a new one, up to a message; the two go on apart, and this one stays as it is.

        The copy belongs to the same user, and its messages keep their ids and times;
        all of them are in its record, as between two turns. Facts are the user's in
        both. Messages from which they were extracted are not read again, and what is
        not read yet is read in both sessions. A session without a user has facts of its
        own: a copy of it learns them anew.

        Args:
            new_session_id: The name of the new session.
            until: The last message that is copied, by its
                ``additional_kwargs["message_id"]``; None: all are.
            before: In place of ``until``, the first message that is not copied, such as
                a question to be asked anew.

        Returns:
            A memory of the new session with the settings of this one, on its store,
            which this one closes.

        Raises:
            SettingError: The new name is no id, or both ``until`` and ``before`` are
                given.
            StoreError: The new session was used before, as this one was, or no message
                has this id; a ``SessionOwnerError`` if this session is another user's.
                Nothing is copied then.
        """
        check_id("new_session_id", new_session_id)
        if new_session_id is None or None not in (until, before):
            if new_session_id is None:
                saw = "none"
            else:
                saw = "both until and before"
            raise SettingError(
                f"abranch takes a new_session_id, and until or before, where the copy ends; saw {saw}."
            )
        opening = Opening(self.user_id, self.shared)
        end = until if before is None else before
        async with self._calls():
            users = self.sql_store.users
            await users.branch(
                self.session_id, new_session_id, opening, end, with_end=before is None
            )
        copied = self.model_copy(update={"session_id": new_session_id})
        copied._owns_store, copied._opened, copied._used = False, False, None  # noqa: SLF001 - one of these
        if self.user_id is None:
            namespace = opening.user_in(new_session_id)
            own = self.facts_block.model_copy(
                update={"user_id": new_session_id}
            ).belong_to(namespace)
            copied.memory_blocks = [
                own if block is self.facts_block else block
                for block in self.memory_blocks
            ]
        return copied

    async def aforget(self, *, vacuum: bool = True) -> dict[str, int]:
        """Delete for good all that is stored about the user of this memory, in all of their sessions, and this session.

        Facts of all agents go, whatever the ``scope`` of this memory. Work in progress
        for them is cancelled here, and stores nothing elsewhere. The memory can be used
        on, as a new one. Of a session that others share, the turns of this user go,
        with the answers; what others have said stays. Data that further
        ``memory_blocks`` keep elsewhere is not deleted.

        Args:
            vacuum: Whether the database is rewritten afterwards; without that, deleted
                words may still be in its file. See ``MemoryStore.vacuum`` for the cost.

        Returns:
            The number of deleted rows of ``"messages"``, ``"cursors"``, ``"facts"`` and
            ``"embeddings"``.
        """
        if self.temporary:
            raise StoreError(
                "A temporary memory stores nothing, and there is nothing of it to forget; nothing was deleted. "
                "`await store.forget_user(user_id)` of a MemoryStore deletes what is stored about a person."
            )
        async with self._calls():
            store = self.sql_store
            user_id = self.facts_block.namespace_of(self.session_id)
            sessions = {self.session_id, *await store.users.keys(user_id)}
            await store.jobs.stop({user_id, *sessions})
            store.jobs.unread.difference_update(sessions)
            return await store.forget_user(
                user_id, session_ids=[self.session_id], vacuum=vacuum
            )

    # The same, without an event loop.
    put = in_sync(aput, after=_wait_for_jobs, note=turns.WAITS)
    put_messages = in_sync(aput_messages, after=_wait_for_jobs, note=turns.WAITS)
    set = in_sync(aset)
    reset = in_sync(areset)
    flush = in_sync(aflush)
    get = in_sync(aget)
    get_all = in_sync(aget_all)
    stats = in_sync(astats)
    search = in_sync(asearch)
    close = in_sync(aclose)
    import_ = in_sync(aimport, after=_wait_for_jobs, note=turns.WAITS)
    export = in_sync(aexport)
    backfill = in_sync(abackfill)
    branch = in_sync(abranch)
    forget = in_sync(aforget)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, error: object, *_: object) -> None:
        # A program that has failed may not have come to its first run.
        self._is_used = self._is_used or error is not None
        await self.aclose()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        # A workflow that copies its start event must go on writing to this
        # conversation.
        return self

    def __getstate__(self) -> dict[str, Any]:
        if self.sql_store.database.in_memory:
            raise StoreError(
                "This memory cannot be pickled: its database is in memory, and the copy would be empty. Keep it in a "
                'file or on a server: async_database_uri="sqlite+aiosqlite:///memory.db", or pass on the memory itself.'
            )
        state = super().__getstate__()
        state["__pydantic_private__"]["_used"] = None
        # LlamaIndex leaves out what cannot be pickled.
        if "redact" not in state["__dict__"]:
            raise SettingError(
                "This memory cannot be pickled: the copy would not have its redact, and store what that leaves out. "
                "Let redact be a function of a module, or pass on the memory itself."
            )
        return state

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        # The store of a memory that was pickled has opened the database anew, for this
        # memory alone.
        self._owns_store = True

    async def _checked(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """Return the messages as they are to be stored; a MessageError for anything else."""
        found = checked_messages(messages)
        if self.redact is None:
            return found
        return await asyncio.to_thread(
            list, map(partial(redacted, redact=self.redact), found)
        )

    async def _append(
        self,
        messages: Sequence[ChatMessage],
        plan: turns.Plan | None,
        *,
        replace: bool = False,
    ) -> None:
        if not self._opened:
            # Let the blocks begin with the session.
            try:
                for block in self._log_blocks:
                    await block.aopen(self.session_id)
                self._opened = True
            except StoreTimeoutError:
                # The message would wait as long again.
                raise
            except Exception as error:  # noqa: BLE001 - the message that is put now must be stored, whatever has failed
                outcome = "the next message tries again"
                log_failure(
                    "Unread messages of other sessions were not looked for",
                    self.session_id,
                    error,
                    outcome,
                )
        async with self._calls():
            await self._write(messages, plan, replace=replace)

    async def _flush(self, plan: turns.Plan) -> None:
        """Pass on to the blocks what leaves by the plan; wait for facts and summary."""
        async with self._calls():
            await self._write([], plan)
        for block in self._log_blocks:
            await block.aflush(self.session_id)

    async def _write(
        self,
        messages: Sequence[ChatMessage],
        plan: turns.Plan | None,
        *,
        replace: bool = False,
    ) -> None:
        """Write messages, and pass on to the blocks those that leave by the plan; a block that fails is logged."""
        flushed = await self.sql_store.log.append(
            self.session_id,
            messages,
            plan,
            replace=replace,
            opening=Opening(self.user_id, self.shared),
            readers=[
                name
                for block in self._log_blocks
                for name in block.readers_of(self.session_id)
            ],
        )
        if not flushed:
            return
        passed_on: Any = {"from_short_term_memory": True, "session_id": self.session_id}
        calls = (block.aput(list(flushed), **passed_on) for block in self.memory_blocks)
        results = await asyncio.gather(*calls, return_exceptions=True)
        for block, result in zip(self.memory_blocks, results, strict=True):
            if isinstance(result, Exception):
                # The messages are stored.
                logger.warning(
                    "Block %r did not take %d messages: %r",
                    block.name,
                    len(flushed),
                    type(result),
                )

    @property
    def _log_blocks(self) -> list[LogBlock]:
        return [block for block in self.memory_blocks if isinstance(block, LogBlock)]

    async def _look(self, question: ChatMessage | None) -> tuple[Snapshot, bool]:
        """Read what the session holds now, and whether the question is still to come behind these messages.

        LlamaIndex's chat engines put their question when it was answered. With a
        question that is still to come, a turn that is over moves into the record here,
        as it would when the question is put.
        """
        snapshot = await self._glance()
        turn = [row.message for row in snapshot.active]
        asked = template.with_question(turn, question)
        if asked is turn or (turn and not turns.is_over(turn)):
            return snapshot, False
        if turn:
            await self._write([], len)
            return await self._glance(), True
        # A flush moves a question into the log while it is being answered.
        page = await self.sql_store.readers.page(self.session_id, "", Seen(), limit=1)
        last = [row.message for row in page.rows if row.role == MessageRole.USER.value]
        return snapshot, not last or template.with_question(last, question) is not last

    async def _glance(self) -> Snapshot:
        record = self.condensed_block
        opening = Opening(self.user_id, self.shared)
        known = record.last_seen(self.session_id)
        watched = self.facts_block.namespace_of(self.session_id)
        snapshot = await self.sql_store.readers.glance(
            self.session_id, record.name, known, watched, opening
        )
        if snapshot.is_closed:
            await self.acheck_session()
        return snapshot

    def _plan_flush(self, messages: Sequence[ChatMessage]) -> int:
        """Return how many of the oldest messages leave short-term memory."""
        if self.chat_history_token_ratio <= turns.FLUSH_EVERY_TURN:
            return turns.leaving(messages)
        return turns.leaving(
            messages,
            int(self.token_limit * self.chat_history_token_ratio),
            self._tokens,
        )

    async def _fit(
        self, contents: dict[str, Any], room: int, turn: list[ChatMessage]
    ) -> tuple[list[ContentBlock], list[ChatMessage], int]:
        """Return what blocks gave as content of one message and as messages, truncated to ``room`` tokens if possible.

        The number is of tokens that are left at least, below 0 for what is still over.
        ``contents`` is what each block gave, by its name; truncated contents replace it
        there. The ``turn`` may have cache points of its own.
        """
        shape = self.memory_blocks_template
        given = contents
        left = -1
        is_in_front = self.insert_method == InsertMethod.USER and any(
            one.role == MessageRole.USER for one in turn
        )
        while True:
            if isinstance(shape, template.MemoryBlocksTemplate):
                given = template.with_record_in_blocks(
                    contents, self.cache_points, turn
                )
                left = room - template.max_tokens(contents, self.tokenizer_fn)
            parts, messages = await self._format_memory_blocks(given)
            if is_in_front and contents.get(self.condensed_block.name):
                hint = HINT
            else:
                hint = ""
            content = template.joined(shape, parts, hint)
            # The bound is never too low; only where it is over the room the exact count
            # decides.
            if left < 0:
                left = room - await self._tokens_of(
                    [*messages, ChatMessage(blocks=content)]
                )
            shown = [block for block in self.memory_blocks if contents.get(block.name)]
            # A block of ours can be truncated whatever its priority.
            may_be_cut = [
                block
                for block in shown
                if isinstance(block, LogBlock) or block.priority > 0
            ]
            if left >= 0 or not may_be_cut:
                return content, messages, left
            block = max(may_be_cut, key=lambda block: block.priority)
            contents[block.name] = await block.atruncate(contents[block.name], -left)

    def _left_of(
        self, found: Mapping[str, Sequence[tuple[Any, str]]], contents: dict[str, Any]
    ) -> MemorySearchResult:
        """Return what was found, each with its text, as far as the blocks' contents still show it."""
        facts = self.facts_block.name
        record = self.condensed_block.name
        # What stands above may have the same words.
        texts = {
            facts: str(contents.get(facts)),
            record: str(contents.get(record)).partition(EARLIER_OPENING)[2],
        }
        used = (
            (one for one, text in found.get(name, ()) if text in texts[name])
            for name in texts
        )
        return MemorySearchResult(*map(tuple, used))

    async def _tokens_of(self, messages: Sequence[ChatMessage]) -> int:
        await self.tokenizer_fn.load()
        if sum(map(characters_of, messages)) > LONG_CHARACTERS:
            return sum(await asyncio.to_thread(list, map(self._tokens, messages)))
        return sum(map(self._tokens, messages))

    def _tokens(self, message: ChatMessage) -> int:
        estimates = {
            kind: getattr(self, f"{kind}_token_size_estimate") for kind in MEDIA_TOKENS
        }
        return tokens_by_bytes(message, self.tokenizer_fn, estimates)

    def _calls(self) -> asyncio.Lock:
        """Return the lock by which a turn is read as it was written: one call at a time per session and event loop.

        It is not shared across loops: a synchronous call inside a running loop would
        wait for the loop that it blocks.
        """
        self._is_used = True
        return lock_for("calls", self.session_id, *self.sql_store.database.identity)


@cache
def _warn_of_unused() -> None:
    logger.warning(
        "A memory was closed that nothing was put into or read from. FunctionAgent(memory=...) is ignored by "
        "LlamaIndex: pass the memory to each run, `await agent.run(question, memory=memory)`."
    )


def blocks_for(
    settings: Mapping[str, Any],
    limits: tuple[int, int],
    stores: tuple[MemoryStore, MemoryStore],
    user_id: str,
    others: Sequence[BaseMemoryBlock[Any]],
    **of_both: Any,
) -> list[BaseMemoryBlock[Any]]:
    """Return the record and the facts, with these limits and stores and with what is ``of_both``, and the ``others``.

    A setting goes to the block that has a field of its name. Raises a SettingError for
    a setting of a wrong type or range or for what is no list of blocks, and what the
    checks of the record raise.
    """
    of_record = {
        name: settings[name]
        for name in settings
        if name in CondensedMemoryBlock.model_fields
    }
    of_facts = {
        name: settings[name]
        for name in settings
        if name in RelevantFactsBlock.model_fields
    }
    record = CondensedMemoryBlock(
        token_limit=limits[0], store=stores[0], **of_record, **of_both
    )
    facts = RelevantFactsBlock(
        token_limit=limits[1], store=stores[1], user_id=user_id, **of_facts, **of_both
    )
    blocks = [
        record,
        facts,
        *(others if isinstance(others, list | tuple) else [others]),
    ]
    names = {block.name for block in blocks if isinstance(block, BaseMemoryBlock)}
    if len(names) < len(blocks):
        saw = ", ".join(
            str(getattr(block, "name", shown(block))) for block in blocks[2:]
        )
        raise SettingError(
            f"memory_blocks must be a list of LlamaIndex's memory blocks with a name each; saw {saw}. "
            f"The record and the facts, {record.name} and {facts.name}, are there without it."
        )
    return blocks
