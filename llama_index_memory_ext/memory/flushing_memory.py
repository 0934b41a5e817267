"""Flushes every turn of a LlamaIndex Memory into blocks on one store, and shows what they make of it."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from llama_index.core.async_utils import asyncio_run
from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock
from llama_index.core.bridge.pydantic import Field, PrivateAttr, model_validator
from llama_index.core.memory import BaseMemoryBlock, InsertMethod, Memory
from llama_index.core.prompts import RichPromptTemplate  # noqa: TC002 - pydantic reads the annotations of fields
from llama_index.core.storage.chat_store.base_db import MessageStatus
from typing_extensions import Self

from llama_index_memory_ext.background.jobs import log_failure
from llama_index_memory_ext.background.locks import SharedLock, lock_for
from llama_index_memory_ext.log_block import LogBlock
from llama_index_memory_ext.memory.template import MEMORY_CLOSING, MEMORY_OPENING, MemoryBlocksTemplate
from llama_index_memory_ext.store import MemoryStore
from llama_index_memory_ext.text.cutting import plan_flush
from llama_index_memory_ext.text.messages import body_of, checked_messages, escape_tags, message_tokens
from llama_index_memory_ext.text.tokens import TokenCounter, as_counter

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

T = TypeVar("T")

logger = logging.getLogger(__name__)

DEFAULT_TOKEN_LIMIT = 60_000
# At this share or less, every turn but the newest leaves short-term memory, however short it is.
FLUSH_EVERY_TURN = 0.0001


class FlushedMemory(Memory):
    """A LlamaIndex ``Memory`` whose turns are flushed into blocks that read the log of its store."""

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
            # Those of other sessions too, which nobody would ever wait for in a program without an event loop.
            await block.await_jobs()
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
            for block in self._log_blocks():
                await block.aopen(self.session_id)
        except asyncio.CancelledError:
            self._opened = False
            raise
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
        readers = [reader for block in self._log_blocks() for reader in block.known_as(self.session_id)]
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

    # ---- life ----------------------------------------------------------------------------------------

    async def aflush(self) -> None:
        """Move the last turn into the record too, as the next question would; extract its facts, and sum up."""
        async with self._calls():
            await self._append([], len)
        for block in self._log_blocks():
            await block.aflush(self.session_id)

    def flush(self) -> None:
        """Move the last turn into the record too, as the next question would."""
        self._run(self.aflush())

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        # A workflow that copies its start event must go on writing to this conversation.
        return self

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
        tags = MEMORY_OPENING + MEMORY_CLOSING + "".join(f"<{name}>\n</{name}>\n\n" for name in contents)
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


def _end(task: asyncio.Task[Any] | None) -> None:
    """Cancel a task that Ctrl+C has left in an event loop that stands still, where it would hold its locks for ever."""
    if task is not None and not task.done() and not task.get_loop().is_running():
        task.cancel()
        with suppress(asyncio.CancelledError):
            task.get_loop().run_until_complete(task)


def _is_last_question(question: ChatMessage, turn: list[ChatMessage]) -> bool:
    """Whether the question is the turn's own: agents hand it over a second time in each tool round."""
    asked = [message for message in turn if message.role == MessageRole.USER]
    return bool(asked) and body_of(asked[-1]) == body_of(question)


def _may_be_truncated(block: BaseMemoryBlock[Any]) -> bool:
    return isinstance(block, LogBlock) or block.priority > 0


def _without_our_tags(message: ChatMessage) -> ChatMessage:
    """The message with our tags escaped in a user's text, which stands in one message with the record."""
    if message.role != MessageRole.USER:
        return message
    blocks = [
        TextBlock(text=escape_tags(block.text)) if isinstance(block, TextBlock) else block for block in message.blocks
    ]
    return ChatMessage(role=message.role, blocks=blocks, additional_kwargs=message.additional_kwargs)
