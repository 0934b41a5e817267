"""The prompt that a session would send for a question, made without storing anything."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from time import time_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import ChatMessage

from llama_index_memory_ext.background.registry import JobRegistry
from llama_index_memory_ext.facts.ranking import PROFILE_NAME
from llama_index_memory_ext.memory.condensed_memory import CondensedMemory
from llama_index_memory_ext.memory.prompt import Prompt, assemble, read_prompt
from llama_index_memory_ext.memory.stats import MemoryStats, read_stats
from llama_index_memory_ext.store.cache import StoreCache
from llama_index_memory_ext.store.readers import Readers
from llama_index_memory_ext.store.rows import LogPage, LogRow, Snapshot
from llama_index_memory_ext.store.tables import ACTIVE, LAST_ID
from llama_index_memory_ext.text.entries import body_of
from llama_index_memory_ext.text.messages import storable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from llama_index_memory_ext.facts.explanation import Explanation
    from llama_index_memory_ext.store import MemoryStore
    from llama_index_memory_ext.text.parts import Section

# The most facts outside the prompt that a preview explains.
_MOST_EXPLAINED = 1_000


class Part(NamedTuple):
    """A part of the prompt.

    ``kind``: "profile", "record", "facts", "question", or "turn" for a further message
    of the turn.
    ``role``: the role of the message.
    ``text``, ``tokens``: the text, and its tokens.
    """

    kind: str
    role: str
    text: str
    tokens: int


@dataclass(frozen=True)
class PromptPreview:
    """The prompt that the model would get for a question.

    ``question``: the question, "" before the first.
    ``parts``: the parts in the order of the prompt.
    ``tokens``: tokens by kind, in the order of the prompt.
    ``summary``: the summary in the record, "" for none.
    ``explanation``: why each fact is in the prompt, or not.
    ``stats``: the statistics of the session before the question. Its ``pending``
    messages count for the facts of ``namespace`` alone.
    ``memory``: the memory with the limits.
    """

    question: str
    parts: list[Part]
    tokens: Counter[str]
    summary: str
    explanation: Explanation
    stats: MemoryStats
    memory: CondensedMemory


class PreviewReaders(Readers):
    """Reads a session as if a question were put; a cursor moves in this object, and not in the store.

    ``question``: the row of the question. It ends the turn before it, which is then in
    the log of each snapshot.
    """

    def __init__(self, database: Any) -> None:
        super().__init__(database)
        self.question: LogRow | None = None
        self._positions: dict[str, int] = {}

    async def unread(self, *request: Any, **options: Any) -> LogPage:
        """Return the oldest unread rows; recall indexes the turn before the question, too."""
        options["with_active"] = self.question is not None
        return await super().unread(*request, **options)

    async def read_snapshot(self, key: str, reader: str, *request: Any) -> Snapshot:
        """Return the state of the session with the question. The session is open to a preview."""
        snapshot = await super().read_snapshot(key, reader, *request)
        position = self._positions.get(reader, snapshot.position)
        snapshot = snapshot._replace(position=position, is_closed=False)
        if self.question:
            log = snapshot.log + snapshot.active
            snapshot = snapshot._replace(active=(self.question,), log=log)
        return snapshot

    async def move(
        self, key: str, reader: str, seen: object, new: int, state: object = None
    ) -> bool:
        """Move a cursor in this object; True."""
        self._positions[reader] = new
        return True


async def preview_prompt(
    store: MemoryStore,
    session_id: str,
    namespace: str,
    limits: Mapping[str, Any],
    question: str = "",
) -> PromptPreview:
    """Return the prompt that a session would send for a question. Nothing is stored, and no model is asked.

    Args:
        store: The store, which may be read-only.
        session_id: The session.
        namespace: The owner of the facts, such as an entry of
            ``SessionInfo.namespaces``.
        limits: Arguments of ``CondensedMemory.from_defaults``, such as
            ``token_limit``; {} for the defaults. Not ``chat_history`` or
            ``memory_blocks``.
        question: The question of the user; "" for the last question.

    Raises:
        LimitError: The limits do not fit together.
    """
    memory = _memory_of(store, session_id, namespace, limits)
    stats = await read_stats(memory, with_pending=True)
    readers = PreviewReaders(store.database)
    memory.sql_store.readers = readers
    # Reading the record makes older messages leave it.
    prompt = await read_prompt(memory)
    if question:
        data = storable(ChatMessage(question))
        readers.question = LogRow(LAST_ID, "user", data, time_ns(), ACTIVE)
        prompt = await read_prompt(memory)
    # The jobs index the messages that have left.
    await memory.sql_store.jobs.stop()
    parts = list(_parts_of(memory, prompt))
    tokens = Counter[str]()
    for part in parts:
        tokens[part.kind] += part.tokens
    latest = memory.facts_block.last_question
    # After the prompt, so that the explanation knows the record in it.
    explanation = await memory.facts_block.aexplain(
        latest.text, context=latest.context, most=_MOST_EXPLAINED
    )
    return PromptPreview(
        question=latest.text,
        parts=parts,
        tokens=tokens,
        summary=await memory.condensed_block.asummary(session_id),
        explanation=explanation,
        stats=stats,
        memory=memory,
    )


def _memory_of(
    store: MemoryStore, session_id: str, namespace: str, limits: Mapping[str, Any]
) -> CondensedMemory:
    options: Any = {"extract_facts": False, **limits}
    memory = CondensedMemory.from_defaults(
        "preview",
        # A preview stores nothing, and cancels its jobs: it shares neither with the
        # memories that do.
        chat_store=store.model_copy(
            update={"cache": StoreCache(), "jobs": JobRegistry()}
        ),
        **options,
    )
    # The host may have stored an id that ``from_defaults`` does not accept.
    memory.session_id = session_id
    memory.facts_block.belong_to(namespace)
    return memory


def _parts_of(memory: CondensedMemory, prompt: Prompt) -> Iterator[Part]:
    """Yield the parts of a prompt: the elements of the memory, and the messages of the turn."""
    counter = memory.tokenizer_fn
    joined = prompt.fitted.joined
    for message in assemble(memory, prompt):
        role = message.role.value
        blocks = message.blocks
        if joined and blocks[: len(joined)] == joined:
            for kind, text in _elements(memory, prompt.fitted.contents):
                yield Part(kind, role, text, counter.count(text))
            blocks = blocks[len(joined) :]
        text = body_of(message.model_copy(update={"blocks": blocks}))
        if text:
            kind = "question" if role == "user" else "turn"
            yield Part(kind, role, text, counter.count(text))


def _elements(
    memory: CondensedMemory, contents: Mapping[str, Section]
) -> list[tuple[str, str]]:
    """Return the kind and the text of each element of the memory's message."""
    kinds = {
        PROFILE_NAME: "profile",
        memory.condensed_block.name: "record",
        memory.facts_block.name: "facts",
    }
    elements = []
    opening = "<memory>\n"
    for name, section in contents.items():
        text = f"{opening}<{name}>\n{section.text}</{name}>\n"
        elements.append((kinds[name], text))
        opening = ""
    kind, text = elements.pop()
    return [*elements, (kind, f"{text}</memory>\n\n")]
