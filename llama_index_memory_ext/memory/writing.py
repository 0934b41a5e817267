"""Writes to a session: stores messages, and passes turns that leave short-term memory to the blocks."""
# ruff: noqa: SLF001 - parts of the class that calls these functions

from __future__ import annotations

import asyncio
import logging
from functools import cache, partial
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import ChatMessage, MessageRole

from llama_index_memory_ext.background.failures import log_failure
from llama_index_memory_ext.errors import StoreTimeoutError
from llama_index_memory_ext.memory.runs import has_run
from llama_index_memory_ext.record.media import has_answer_before_question
from llama_index_memory_ext.store.rows import SessionAccess
from llama_index_memory_ext.text.entries import (
    MEDIA_TOKENS,
    characters_of,
    message_tokens,
)
from llama_index_memory_ext.text.messages import Plan, checked_messages, redact_message
from llama_index_memory_ext.text.tokens import LONG_CHARACTERS
from llama_index_memory_ext.text.turns import FLUSH_EVERY_TURN, count_leaving, is_answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.memory.fields import MemoryFields

logger = logging.getLogger(__name__)


def access_of(memory: MemoryFields) -> SessionAccess:
    """Return how the memory opens its session."""
    return SessionAccess(memory.user_id, memory.shared)


async def stored_form(
    memory: MemoryFields, messages: list[ChatMessage]
) -> list[ChatMessage]:
    """Return the messages as they are to be stored; a MessageError for anything else."""
    valid_messages = checked_messages(messages)
    redact = memory.redact
    if redact is None:
        return valid_messages
    return await asyncio.to_thread(
        lambda: [redact_message(message, redact) for message in valid_messages]
    )


async def put(
    memory: MemoryFields, messages: list[ChatMessage], *, strict: bool = False
) -> int:
    """Add messages, and return the number of newly stored messages.

    ``strict``: a second message with the same id and other words raises a MessageError.
    """
    messages = await stored_form(memory, messages)
    if not messages:
        return 0
    # Only a new question ends the turn before it.
    plan = None
    if any(message.role == MessageRole.USER for message in messages):
        plan = partial(_plan_question if len(messages) == 1 else plan_flush, memory)
        if memory.chat_history_token_ratio > FLUSH_EVERY_TURN:
            # Counting long texts here keeps the write of the store short: the tokenizer
            # keeps the counts for the plan.
            await tokens_of(memory, messages)
    count = await append(memory, messages, plan, strict=strict)
    if any(map(is_answer, messages)):
        await memory.facts_block.anotice(
            memory.session_id,
            answered=True,
            asks=messages[-1].role == MessageRole.USER,
        )
    return count


async def append(
    memory: MemoryFields,
    messages: Sequence[ChatMessage],
    plan: Plan | None,
    *,
    replace: bool = False,
    strict: bool = False,
) -> int:
    """Let the blocks begin with the session or its new question, and write messages as ``write`` does.

    The messages are in the form that ``stored_form`` returns.
    """
    texts = [m.content for m in messages if m.role == MessageRole.USER]
    if texts or not memory._opened:
        question = texts[-1] if texts else None
        memory._opened |= await _open_blocks(memory, question)
    async with memory._calls():
        return await write(memory, messages, plan, replace=replace, strict=strict)


async def flush(memory: MemoryFields, plan: Plan) -> None:
    """Pass the messages that leave by the plan to the blocks; wait for facts and summary."""
    async with memory._calls():
        await write(memory, [], plan)
    for block in memory._log_blocks:
        await block.aflush(memory.session_id)


async def wait_for_jobs(memory: MemoryFields) -> None:
    """Wait until the jobs of the session have ended."""
    await memory.sql_store.jobs.wait_for_session(memory.session_id)


async def stored_question(
    memory: MemoryFields, question: str | ChatMessage | None
) -> ChatMessage | None:
    """Return a question as it would be stored; None for None."""
    if question is None:
        return None
    if isinstance(question, str):
        question = ChatMessage(question)
    return (await stored_form(memory, [question]))[0]


async def _open_blocks(memory: MemoryFields, question: str | None) -> bool:
    """Let the blocks begin with the session, or with a question; return whether they could.

    A failure is logged, because the message must still be stored.

    Raises:
        StoreTimeoutError: The database is too slow.
    """
    try:
        for block in memory._log_blocks:
            await block.aopen(memory.session_id, question)
    except StoreTimeoutError:
        # Storing the message would take as long again.
        raise
    except Exception as error:  # noqa: BLE001 - the message must be stored after any failure
        log_failure(
            "Unread messages of other sessions were not looked for",
            memory.session_id,
            error,
            "the next message tries again",
        )
        return False
    return True


async def write(
    memory: MemoryFields,
    messages: Sequence[ChatMessage],
    plan: Plan | None,
    *,
    replace: bool = False,
    strict: bool = False,
) -> int:
    """Write messages, and pass the messages that leave short-term memory to the blocks; log a block that fails.

    ``plan``: returns how many of the oldest active messages leave; None: none. Return
    the number of messages that were not stored before.
    """
    readers: list[str] = []
    for log_block in memory._log_blocks:
        readers += log_block.readers_of(memory.session_id)
    appended = await memory.sql_store.log.append(
        memory.session_id,
        messages,
        plan,
        replace=replace,
        access=access_of(memory),
        readers=readers,
        strict=strict,
    )
    flushed = list(appended.flushed)
    if not flushed:
        return appended.written
    for block in memory.memory_blocks:
        try:
            await block.aput(
                flushed, from_short_term_memory=True, session_id=memory.session_id
            )
        except Exception as error:  # noqa: BLE001, PERF203 - the messages are stored
            logger.warning(
                "Block %r did not take %d messages: %r",
                block.name,
                len(flushed),
                type(error),
            )
    return appended.written


def _plan_question(memory: MemoryFields, messages: Sequence[ChatMessage]) -> int:
    """Return the number of ``plan_flush``; warn if the question before the last one has no answer.

    There is no warning for a session of several users, or within ``turn()``.
    """
    roles = [message.role.value for message in messages]
    is_guarded = memory.shared or has_run(memory)
    if not is_guarded and not has_answer_before_question(roles):
        _warn_of_two_runs()
    return plan_flush(memory, messages)


def plan_flush(memory: MemoryFields, messages: Sequence[ChatMessage]) -> int:
    """Return how many of the oldest messages leave short-term memory."""
    ratio = memory.chat_history_token_ratio
    if ratio <= FLUSH_EVERY_TURN:
        return count_leaving(messages)
    limit = int(memory.token_limit * ratio)
    return count_leaving(messages, limit, partial(tokens_of_message, memory))


async def tokens_of(memory: MemoryFields, messages: Sequence[ChatMessage]) -> int:
    """Return the tokens of messages, as the model gets them; long texts are counted in a thread."""
    await memory.tokenizer_fn.load()

    def count() -> int:
        return sum(tokens_of_message(memory, message) for message in messages)

    if sum(map(characters_of, messages)) > LONG_CHARACTERS:
        return await asyncio.to_thread(count)
    return count()


def tokens_of_message(memory: MemoryFields, message: ChatMessage) -> int:
    """Return the tokens of a message, with the estimates of the memory for media."""
    estimates = {
        **MEDIA_TOKENS,
        "image": memory.image_token_size_estimate,
        "audio": memory.audio_token_size_estimate,
        "video": memory.video_token_size_estimate,
    }
    return message_tokens(message, memory.tokenizer_fn, estimates)


@cache
def _warn_of_two_runs() -> None:
    logger.warning(
        "A question was put before the last question of its session was answered. If its run failed, ignore this. "
        "Two runs at once would both answer the later question: put each run into `async with memory.turn():`."
    )
