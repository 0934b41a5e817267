"""Works out what the model would be shown for a question, on a copy of the session in memory."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from itertools import groupby
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock

from llama_index_memory_ext.memory.condensed_memory import CondensedMemory
from llama_index_memory_ext.store import MemoryStore
from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED, LAST_ID
from llama_index_memory_ext.text.messages import as_taken, body_of, question_in, turns_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from llama_index_memory_ext.facts.explanation import Explanation

# Rows of the log that the facts look at, whatever has left the record.
_LEAST_ROWS = 60
# No message of the record has fewer tokens: that many have its tags alone.
_LEAST_TOKENS = 8
# A session needs a name in the copy.
_UNNAMED = "(no name)"
_SECTIONS = {"<relevant_facts>": "facts", "</memory>": "question"}
_SECTION = re.compile(rf"^(?=(?:{'|'.join(_SECTIONS)})$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the memory that is looked at, in tokens, which no database knows; None: the preset's own."""

    token_limit: int | None = None
    condensed_token_limit: int | None = None
    facts_token_limit: int | None = None
    recall_token_limit: int | None = None

    @property
    def given(self) -> dict[str, int]:
        """Those that are given, as ``CondensedMemory.from_defaults`` takes them."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def check(self) -> None:
        """Raises a LimitError if they do not fit into each other."""
        memory_on(MemoryStore(), _UNNAMED, _UNNAMED, self)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a prompt: of the record, the facts, the question, or a further message of the turn."""

    kind: str
    role: str
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Shown:
    """What the model would be shown: the parts of the prompt, and what of the facts.

    Without a question it is the prompt of the last turn. ``limits`` are those used.
    """

    question: str
    parts: Sequence[Part]
    explanation: Explanation
    summary: str
    limits: dict[str, int]

    @property
    def runs(self) -> list[list[Part]]:
        """The parts in runs that are shown as one: of one kind and role."""
        return [list(run) for _, run in groupby(self.parts, lambda part: (part.kind, part.role))]

    @property
    def tokens(self) -> dict[str, int]:
        """The tokens of the whole prompt by kind, in its order."""
        found: dict[str, int] = {}
        for part in self.parts:
            found[part.kind] = found.get(part.kind, 0) + part.tokens
        return found


def memory_on(store: MemoryStore, session_id: str, user_id: str, limits: Limits) -> CondensedMemory:
    """Returns a memory that asks no model."""
    options: Any = {"extract_facts": False, **limits.given}
    return CondensedMemory.from_defaults(session_id, user_id=user_id, chat_store=store, **options)


async def show(store: MemoryStore, session_id: str, user_id: str, question: str, limits: Limits) -> Shown:
    """Returns what the model would be shown if the user asked this question now; "": at the last question."""
    async with _copied(store, session_id, user_id, limits) as memory:
        asked, context = await _asked(memory, question)
        explanation = await memory.facts_block.aexplain(asked, context=context)
        if question:
            await memory.aput(ChatMessage(question))
        parts = list(_parts(await memory.aget(), memory))
        used = {
            "token_limit": memory.token_limit,
            "condensed_token_limit": memory.condensed_block.token_limit,
            "facts_token_limit": memory.facts_block.token_limit,
            "recall_token_limit": memory.condensed_block.recall_token_limit,
        }
        summary = await memory.condensed_block.asummary(memory.session_id)
        return Shown(asked, parts, explanation, summary, used)


async def _asked(memory: CondensedMemory, question: str) -> tuple[str, list[str]]:
    """The question, or else the last one of the session, and the turns before it."""
    store, session_id, most = memory.sql_store, memory.session_id, memory.facts_block.context_turns
    skipped = max(await store.count_messages(session_id, None) - _LEAST_ROWS, 0)
    said = as_taken(await store.get_messages(session_id, None, offset=skipped))
    if question:
        return question, question_in([ChatMessage(question)], turns_in(said)[-most:], most)[1]
    last = next((i for i in range(len(said) - 1, -1, -1) if said[i].role == MessageRole.USER), None)
    return question_in(said[: last + 1], [], most) if last is not None else ("", [])


@asynccontextmanager
async def _copied(store: MemoryStore, session_id: str, user_id: str, limits: Limits) -> AsyncIterator[CondensedMemory]:
    """A memory on a copy of what a prompt needs of the session and of its user's facts. It is gone with the block."""
    # Ids that no memory takes may be stored.
    name, user = session_id.strip() or _UNNAMED, user_id.strip() or _UNNAMED
    blank = memory_on(MemoryStore(), name, user, limits)
    position, state = await store.readers.state(session_id, blank.condensed_block.name)
    count = await store.users.count(session_id)
    most = max(_LEAST_ROWS, blank.condensed_block.token_limit // _LEAST_TOKENS)
    skipped = 0 if blank.condensed_block.recall_token_limit else max(count - most, 0)
    rows = await store.readers.find(session_id, [ARCHIVED, ACTIVE], limit=LAST_ID, offset=skipped)
    kept = ("id", "role", "data", "timestamp", "status", "user_id")
    copy = MemoryStore(db_data=[{"key": name, **{field: getattr(row, field) for field in kept}} for row in rows])
    try:
        if position:
            reader = blank.condensed_block.name
            await copy.readers.move(name, reader, epoch=0, old=0, new=position, state=state)
        await copy.facts.write(user, (await store.facts.read(user_id)).facts)
        yield memory_on(copy, name, user, limits)
    finally:
        await copy.aclose()


def _parts(messages: Iterable[ChatMessage], memory: CondensedMemory) -> Iterator[Part]:
    """The parts of a prompt: the record in its blocks, the facts, and the question; other messages are one each."""
    count = memory.tokenizer_fn.count
    for message in messages:
        first = next((block.text for block in message.blocks if isinstance(block, TextBlock)), "")
        if first.startswith("<memory>\n"):
            yield from _parts_of_memory(message, count)
        else:
            text, role = body_of(message), message.role.value
            yield Part("question" if role == "user" else "turn", role, text, count(text))


def _parts_of_memory(message: ChatMessage, count: Callable[[str], int]) -> Iterator[Part]:
    kind = "record"
    for block in message.blocks:
        for text in filter(None, _SECTION.split(block.text)) if isinstance(block, TextBlock) else ():
            if kind != "question":
                kind = next((name for tag, name in _SECTIONS.items() if text.startswith(tag)), kind)
            yield Part(kind, message.role.value, text, count(text))
