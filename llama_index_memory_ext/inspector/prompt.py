"""Works out what the model would be shown for a question, on a copy of the session in memory."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import asynccontextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import ChatMessage, TextBlock

from llama_index_memory_ext.memory.condensed_memory import CondensedMemory
from llama_index_memory_ext.store import MemoryStore
from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED, LAST_ID
from llama_index_memory_ext.text.messages import as_taken, body_of, question_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from llama_index_memory_ext.text.tokens import TokenCounter

# Rows of the log that the facts look at, whatever has left the record.
_LEAST_ROWS = 60
# No message of the record has fewer tokens: that many have its tags alone.
_LEAST_TOKENS = 8
# A session needs a name in the copy.
_UNNAMED = "(no name)"
_SECTIONS = {"<relevant_facts>": "facts", "</memory>": "question"}
_SECTION = re.compile(rf"^(?=(?:{'|'.join(_SECTIONS)})$)", re.MULTILINE)


class Part(NamedTuple):
    """A part of a prompt: of the record, the facts, the question, or a further message of the turn."""

    kind: str
    role: str
    text: str
    tokens: int


def memory_on(store: MemoryStore, session_id: str, user_id: str, limits: Mapping[str, int]) -> CondensedMemory:
    """Returns a memory that asks no model; a LimitError for limits that do not fit into each other."""
    # Ids that no memory takes may be stored.
    name, user = session_id.strip() or _UNNAMED, user_id.strip() or _UNNAMED
    options: Any = {"extract_facts": False, **limits}
    return CondensedMemory.from_defaults(name, user_id=user, chat_store=store, **options)


async def show(
    store: MemoryStore, session_id: str, user_id: str, question: str, limits: Mapping[str, int]
) -> dict[str, Any]:
    """Returns what the model would be shown if the user asked this question now; "": at the last question.

    The ``question``, the ``explanation`` of the facts and the ``summary``; the ``runs`` of parts of one kind and role,
    and the ``tokens`` by kind, in the order of the prompt; and the ``limits`` that are used.
    """
    async with _copied(store, session_id, user_id, limits) as memory:
        record, facts = memory.condensed_block, memory.facts_block
        said = as_taken(await memory.aget_all())[-_LEAST_ROWS:]
        asked, context = question_in([*said, *([ChatMessage(question)] if question else [])], [], facts.context_turns)
        explanation = await facts.aexplain(asked, context=context)
        if question:
            await memory.aput(ChatMessage(question))
        parts = [part for message in await memory.aget() for part in _parts(message, memory.tokenizer_fn)]
        tokens = Counter[str]()
        for part in parts:
            tokens[part.kind] += part.tokens
        return {
            "question": asked,
            "explanation": explanation,
            "summary": await record.asummary(memory.session_id),
            "runs": [list(run) for _, run in groupby(parts, lambda part: (part.kind, part.role))],
            "tokens": tokens,
            "limits": {
                "token_limit": memory.token_limit,
                "condensed_token_limit": record.token_limit,
                "facts_token_limit": facts.token_limit,
                "recall_token_limit": record.recall_token_limit,
            },
        }


@asynccontextmanager
async def _copied(
    store: MemoryStore, session_id: str, user_id: str, limits: Mapping[str, int]
) -> AsyncIterator[CondensedMemory]:
    """Gives a memory on a copy of what a prompt needs of the session and of its user's facts, until the block ends."""
    blank = memory_on(MemoryStore(), session_id, user_id, limits)
    name, record = blank.session_id, blank.condensed_block
    position, state = await store.readers.state(session_id, record.name)
    most = max(_LEAST_ROWS, record.token_limit // _LEAST_TOKENS)
    skipped = 0 if record.recall_token_limit else max(await store.users.count(session_id) - most, 0)
    rows = await store.readers.find(session_id, [ARCHIVED, ACTIVE], limit=LAST_ID, offset=skipped)
    kept = ("id", "role", "data", "timestamp", "status", "user_id")
    copy = MemoryStore(db_data=[{"key": name, **{field: getattr(row, field) for field in kept}} for row in rows])
    try:
        if position:
            await copy.readers.move(name, record.name, epoch=0, old=0, new=position, state=state)
        memory = memory_on(copy, session_id, user_id, limits)
        await copy.facts.write(memory.facts.namespace, (await store.facts.read(user_id)).facts)
        yield memory
    finally:
        await copy.aclose()


def _parts(message: ChatMessage, tokens: TokenCounter) -> Iterator[Part]:
    """Yields the parts of a message: the record in its blocks, the facts, and the question; another one is one part."""
    role, blocks = message.role.value, [block.text for block in message.blocks if isinstance(block, TextBlock)]
    if not blocks or not blocks[0].startswith("<memory>\n"):
        text = body_of(message)
        yield Part("question" if role == "user" else "turn", role, text, tokens.count(text))
        return
    kind = "record"
    for text in (section for block in blocks for section in _SECTION.split(block) if section):
        if kind != "question":
            kind = _SECTIONS.get(text.partition("\n")[0], kind)
        yield Part(kind, role, text, tokens.count(text))
