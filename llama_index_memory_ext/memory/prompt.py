"""The prompt of a session: reads the current turn, and truncates the contents of the blocks to the limit."""

# ruff: noqa: SLF001 - parts of the class that calls these functions

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import (
    ChatMessage,
    ContentBlock,
    MessageRole,
    TextBlock,
)

from llama_index_memory_ext.blocks import LogBlock
from llama_index_memory_ext.facts.ranking import PROFILE_NAME, RecordInPrompt
from llama_index_memory_ext.memory import template
from llama_index_memory_ext.memory.search import MemorySearchResult
from llama_index_memory_ext.memory.writing import (
    access_of,
    tokens_of,
    tokens_of_message,
    write,
)
from llama_index_memory_ext.text.entries import body_of
from llama_index_memory_ext.text.parts import NO_PARTS, Section
from llama_index_memory_ext.text.turns import ends_with_answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index.core.memory import BaseMemoryBlock

    from llama_index_memory_ext.memory.fields import MemoryFields
    from llama_index_memory_ext.store.rows import LogRow, Snapshot


class Turn(NamedTuple):
    """The current turn of a session, read for a prompt.

    ``snapshot``: the active messages as rows, and the newest rows of the log.
    ``messages``: the active messages, which the prompt shows; none if the question
    follows.
    ``query``: the active messages, and the question if they lack it; the blocks select
    their content for them.
    ``question_follows``: whether the caller sends the question after a completed turn.
    """

    snapshot: Snapshot
    messages: list[ChatMessage]
    query: list[ChatMessage]
    question_follows: bool


class _FittedContents(NamedTuple):
    """The contents of the memory blocks, truncated to a number of tokens.

    ``contents``: the profile and the content of each block, by name in their order.
    ``joined``: these contents as the content of one message.
    ``messages``: further messages, from blocks whose content is messages.
    ``tokens_left``: below 0 if the contents are still too long.
    """

    contents: dict[str, Any]
    joined: list[ContentBlock]
    messages: list[ChatMessage]
    tokens_left: int


class Prompt(NamedTuple):
    """A turn, and the content of the memory for it.

    ``media``: pictures, sounds and documents of earlier turns, sent again.
    """

    turn: Turn
    fitted: _FittedContents
    media: list[ContentBlock]


async def _read_turn(memory: MemoryFields, question: ChatMessage | None) -> Turn:
    """Read the current turn; before a question that follows, move a completed turn into the log.

    LlamaIndex's chat engines put their question only with its answer, so it follows the
    prompt. The completed turn moves as it would when the question is put. Agents put
    their question before they read the prompt.
    """
    snapshot = await _read_snapshot(memory)
    messages = [row.message for row in snapshot.active]
    if question is None:
        return Turn(snapshot, messages, messages, question_follows=False)
    follows = ends_with_answer(messages)
    if not messages:
        # The session is new, or a flush has moved an open turn, with its question, into
        # the log.
        follows = not await _is_in_log(memory, question)
    elif follows:
        # All active messages leave.
        await write(memory, [], len)
        snapshot = await _read_snapshot(memory)
        messages = [row.message for row in snapshot.active]
    query = messages
    if not template.holds_question(messages, question):
        query = [*messages, question]
    return Turn(snapshot, [] if follows else messages, query, follows)


async def _is_in_log(memory: MemoryFields, question: ChatMessage) -> bool:
    """Return whether the newest row of the log is this question: a flush moves an open turn into the log."""
    page = await memory.sql_store.readers.page(memory.session_id, "", limit=1)
    return template.holds_question([row.message for row in page.rows], question)


async def _read_snapshot(memory: MemoryFields) -> Snapshot:
    """Return the state of the session; a SessionOwnerError if it is closed to the user."""
    record = memory.condensed_block
    window = record.window(memory.session_id)
    access = access_of(memory)
    snapshot = await memory.sql_store.readers.read_snapshot(
        memory.session_id,
        record.name,
        window.seen.last_id if window else 0,
        memory.facts_block.namespace_of(memory.session_id),
        access,
    )
    if snapshot.is_closed:
        await memory.sql_store.log.check_owner(memory.session_id, access)
    return snapshot


async def read_prompt(
    memory: MemoryFields,
    question: ChatMessage | None = None,
    *,
    reserved: int = 0,
    unread: Sequence[LogRow] = (),
    block_kwargs: Mapping[str, Any] = {},
) -> Prompt:
    """Return the current turn with the content of the memory, within the limit less ``reserved`` tokens.

    ``unread``: the user's words in other sessions that were not read for facts.
    ``block_kwargs``: arguments for the blocks of the program.
    """
    turn = await _read_turn(memory, question)
    # The messages that the model receives beside the memory.
    messages = [template.prepare_to_send(message) for message in turn.query]
    if turn.question_follows:
        messages = [*messages, template.ACKNOWLEDGED]
    room = memory.token_limit - reserved - await tokens_of(memory, messages)
    contents = await _ask_blocks(memory, turn, room, unread, block_kwargs)
    fitted = await _fit(memory, contents, room, turn.messages)
    # The media stand beside the content of the memory: without content there are none.
    roles = []
    if fitted.joined:
        roles = [message.role.value for message in turn.messages]
    media = await memory.condensed_block.amedia(
        memory.session_id, roles, fitted.tokens_left, partial(tokens_of_message, memory)
    )
    return Prompt(turn, fitted, media)


async def _ask_blocks(
    memory: MemoryFields,
    turn: Turn,
    room: int,
    unread: Sequence[LogRow],
    block_kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the profile of the user, and the content of each memory block by its name.

    The block with the largest ``priority`` is asked first. At equal priority the record
    is asked before the facts: a fact whose words the record shows is left out.

    Raises:
        ValueError: A block of the program returned neither text nor a list.
    """
    record = memory.condensed_block
    facts = memory.facts_block
    contents: dict[str, Any] = {}
    blocks: list[Any] = sorted(
        memory.memory_blocks, key=lambda block: block.priority, reverse=True
    )
    for block in blocks:
        content: Any
        if block is facts:
            selected = await facts.aselect(
                turn.query,
                memory.session_id,
                turn.snapshot,
                _record_in(memory, contents, turn, room),
                unread,
                memory.sql_store,
            )
            contents[PROFILE_NAME] = selected.profile
            content = selected.question
        elif block is record:
            content = await record.arecord(turn.query, memory.session_id, turn.snapshot)
        else:
            content = await block.aget(
                turn.query, session_id=memory.session_id, **block_kwargs
            )
            if content and not isinstance(content, str | list):
                raise ValueError(
                    f"Block {block.name!r} returned {type(content).__name__}; expected str or a list of content "
                    "blocks."
                )
        contents[block.name] = content
    names = [PROFILE_NAME, *(block.name for block in memory.memory_blocks)]
    return {name: contents[name] for name in names if contents.get(name)}


def _record_in(
    memory: MemoryFields, contents: dict[str, Any], turn: Turn, room: int
) -> RecordInPrompt | None:
    """Return the record among the contents; None if it is not among them.

    The facts get their room first. A record that may be truncated beside them loses its
    oldest messages, so only the active messages count as shown.
    """
    block = memory.condensed_block
    window = block.window(memory.session_id)
    record = contents.get(block.name)
    if window is None or not record:
        return None
    active = frozenset(row.id for row in turn.snapshot.active)
    row_ids = active.union(window.whole_rows, window.sticky_heat)
    shown_ids = active
    if record.tokens + memory.facts_block.token_limit <= room:
        recalled = [message for message in record.sources if message.is_whole]
        shown_ids = row_ids.union(*(message.row_ids for message in recalled))
    return RecordInPrompt(
        memory.session_id, memory.sql_store.readers, window.place, row_ids, shown_ids
    )


async def _fit(
    memory: MemoryFields, contents: dict[str, Any], room: int, turn: list[ChatMessage]
) -> _FittedContents:
    """Return the contents joined; the least important parts are dropped until they fit ``room`` tokens.

    The profile is dropped last. Contents that still do not fit are returned as they are.
    """
    contents = dict(contents)
    asked = set[str]()
    while True:
        fitted = await _join(memory, contents, room, turn)
        if fitted.tokens_left >= 0:
            return fitted
        block = _block_to_truncate(memory, contents)
        if block is not None:
            content = contents[block.name]
            excess = -fitted.tokens_left
            if isinstance(content, Section):
                contents[block.name] = await asyncio.to_thread(
                    content.without, excess, memory.tokenizer_fn
                )
            elif block.name in asked:
                # It did not become short enough.
                contents[block.name] = None
            else:
                asked.add(block.name)
                contents[block.name] = await block.atruncate(content, excess)
        elif contents.pop(PROFILE_NAME, None) is None:
            return fitted


async def _join(
    memory: MemoryFields, contents: dict[str, Any], room: int, turn: list[ChatMessage]
) -> _FittedContents:
    """Return the contents as one message, with the tokens that they leave of ``room``."""
    blocks_template = memory.memory_blocks_template
    split_contents = contents
    # For a template of the program, no bound is known.
    tokens = sys.maxsize
    if isinstance(blocks_template, template.MemoryBlocksTemplate):
        split_contents = template.with_cache_points(contents, memory.cache_points, turn)
        tokens = template.max_tokens(contents, memory.tokenizer_fn)
    parts: list[tuple[str, list[ContentBlock]]] = []
    messages: list[ChatMessage] = []
    for name, content in split_contents.items():
        text = content.text if isinstance(content, Section) else content
        if text and isinstance(text, str):
            parts.append((name, [TextBlock(text=text)]))
        elif content and isinstance(content[0], ChatMessage):
            messages += content
        elif content:
            parts.append((name, content))
    joined = template.joined(blocks_template, parts)
    if tokens > room:
        # The bound of our template may be too high, never too low. The exact count is
        # slower.
        tokens = await tokens_of(memory, [*messages, ChatMessage(blocks=joined)])
    return _FittedContents(contents, joined, messages, room - tokens)


def _block_to_truncate(
    memory: MemoryFields, contents: dict[str, Any]
) -> BaseMemoryBlock[Any] | None:
    """Return the block to truncate next, with the largest ``priority``; None if no content may be truncated.

    LlamaIndex never truncates priority 0. The blocks of this package can be truncated
    with any priority.
    """
    blocks = [
        block
        for block in memory.memory_blocks
        if contents.get(block.name)
        and (isinstance(block, LogBlock) or block.priority > 0)
    ]
    return max(blocks, key=lambda block: block.priority, default=None)


def assemble(memory: MemoryFields, prompt: Prompt) -> list[ChatMessage]:
    """Return the messages for the model; the memory keeps their sources and a hash of the question."""
    turn = prompt.turn
    fitted = prompt.fitted
    turn_messages = [template.prepare_to_send(message) for message in turn.messages]
    question = template.last_question(turn_messages)
    if turn.question_follows:
        messages = list(fitted.messages)
        if fitted.joined:
            content = ChatMessage(role=MessageRole.USER, blocks=fitted.joined)
            messages = [content, template.ACKNOWLEDGED, *messages]
    else:
        if question:
            # A system message with the memory would take no media.
            question.blocks = [*prompt.media, *question.blocks]
        messages = memory._insert_memory_content(
            turn_messages, fitted.joined, fitted.messages
        )
    # An agent reads the memory once more after its answer, and sends that to no model.
    if not turn_messages or turn_messages[-1].role != MessageRole.ASSISTANT:
        memory._last_sources = _sources_in(memory, fitted.contents)
    question_hash = _hash_of_question(turn)
    expects_tools = _expects_tools(memory, question_hash)
    memory._question_hash = question_hash
    template.mark_for_cache(
        messages, memory.session_id, memory.cache_points, expects_tools=expects_tools
    )
    for message, row in zip(turn_messages, turn.snapshot.active, strict=False):
        # The output of a CodeActAgent goes to the model with the role that the agent gave
        # it.
        if row.is_code_output:
            message.role = MessageRole.USER
    return [template.without_blank_texts(message) for message in messages]


def _hash_of_question(turn: Turn) -> int:
    return hash(body_of(turn.messages[0])) if turn.messages else 0


def _expects_tools(memory: MemoryFields, question_hash: int) -> bool:
    """Return whether the model is expected to be asked again in the turn of a question; its hash is 0 for no turn.

    An agent asks again after each tool call, and may not put the results. An agent that
    used tools in the last turn is expected to use them again.
    """
    if not question_hash:
        return False
    is_asked_again = question_hash == memory._question_hash
    return is_asked_again or memory.condensed_block.used_tools(memory.session_id)


def _sources_in(memory: MemoryFields, contents: dict[str, Any]) -> MemorySearchResult:
    """Return the facts and recalled messages that the contents show."""
    profile = contents.get(PROFILE_NAME, NO_PARTS)
    facts = contents.get(memory.facts_block.name, NO_PARTS)
    record = contents.get(memory.condensed_block.name, NO_PARTS)
    return MemorySearchResult((*profile.sources, *facts.sources), tuple(record.sources))
