"""The prompt that a session would send for a question, made without storing anything."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from time import time_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import ChatMessage, TextBlock

from llama_index_memory_ext.agent_view import ALL_FACTS
from llama_index_memory_ext.background.jobs import JobRegistry
from llama_index_memory_ext.learning.progress import progress_of
from llama_index_memory_ext.memory.condensed_memory import CondensedMemory
from llama_index_memory_ext.store.cache import StoreCache
from llama_index_memory_ext.store.readers import Readers
from llama_index_memory_ext.store.rows import LogRow, Snapshot
from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED, LAST_ID, display_name
from llama_index_memory_ext.text.entries import body_of
from llama_index_memory_ext.text.messages import storable
from llama_index_memory_ext.text.parts import CHANGED_OPENING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from llama_index_memory_ext.fact import Fact, SetAside
    from llama_index_memory_ext.facts.explanation import ExplainedFact, Explanation
    from llama_index_memory_ext.facts.ranking import RankedFact
    from llama_index_memory_ext.record.window import Window
    from llama_index_memory_ext.store import MemoryStore
    from llama_index_memory_ext.text.tokens import TokenCounter

# The most facts outside the prompt that a preview explains.
_MOST_EXPLAINED = 1_000

# The kind of the part that begins with this line.
_KINDS = {
    "<condensed_memory>": "record",
    "<relevant_facts>": "facts",
    "</memory>": "question",
}
_PROFILE_START = "<memory>\n<user_profile>\n"
# Without a profile, the part of the record begins with the line "<memory>".
_PART_START = re.compile(rf"^(?=(?:{'|'.join(_KINDS)})$)(?<!^<memory>\n)", re.MULTILINE)


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


class ReaderProgress(NamedTuple):
    """The progress of a reader that learns facts from a session.

    ``name``: the reader and the owner of its facts.
    ``unread``: the number of messages that it has not read.
    ``set_aside``: turns from which no facts could be learned.
    """

    name: str
    unread: int
    set_aside: tuple[SetAside, ...]


@dataclass(frozen=True)
class PromptPreview:
    """The prompt that the model would get for a question.

    ``question``: the question, "" before the first.
    ``window``: the record before the question.
    ``left``: the number of messages that had left the record before the question.
    ``explanation``: why each fact is in the prompt, or not.
    ``facts``: the explained facts; facts of the prompt come first, in its order.
    ``runs``: the parts in the order of the prompt, grouped by kind and role.
    ``tokens``: tokens by kind, in the order of the prompt.
    ``all_facts``: all facts of the owner.
    ``active``: the number of messages of the current turn.
    ``readers``: the progress of each reader that learns facts from the session.
    ``memory``: the memory with the limits.
    """

    question: str
    window: Window | None
    left: int
    explanation: Explanation
    facts: list[ExplainedFact]
    runs: list[list[Part]]
    tokens: Counter[str]
    all_facts: list[Fact]
    active: int
    readers: list[ReaderProgress]
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

    async def read_snapshot(self, key: str, reader: str, *request: Any) -> Snapshot:
        """Return the state of the session with the question. The session is open to a preview."""
        snapshot = await super().read_snapshot(key, reader, *request)
        position = self._positions.get(reader, snapshot.position)
        snapshot = snapshot._replace(position=position, is_closed=False)
        if self.question:
            log = snapshot.log + snapshot.active
            snapshot = snapshot._replace(active=(self.question,), log=log)
        return snapshot

    async def move(self, key: str, reader: str, *, new: int, **_: Any) -> bool:
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
            ``token_limit``; {} for the defaults.
        question: The question of the user; "" for the last question.

    Raises:
        LimitError: The limits do not fit together.
    """
    memory = _memory_of(store, session_id, namespace, limits)
    readers = PreviewReaders(store.database)
    memory.sql_store.readers = readers
    # Reading the record makes older messages leave it.
    prompt = await memory.aget()
    # The jobs index the messages that have left.
    await memory.sql_store.jobs.stop()
    window = memory.condensed_block.window(session_id)
    left = await readers.count_messages(
        session_id, status=ARCHIVED, last=window.seen.position if window else 0
    )
    if question:
        data = storable(ChatMessage(question))
        readers.question = LogRow(LAST_ID, "user", data, time_ns(), ACTIVE)
        prompt = await _ask(memory, store)
    parts: list[Part] = []
    for message in prompt:
        parts += _parts(message, memory.tokenizer_fn)
    tokens = Counter[str]()
    for part in parts:
        tokens[part.kind] += part.tokens
    all_facts = await store.facts.read(namespace, view=ALL_FACTS)
    latest = memory.facts_block.last_question
    # After the prompt, so that the explanation knows the record in it.
    explanation = await memory.facts_block.aexplain(
        latest.text, context=latest.context, most=_MOST_EXPLAINED
    )
    return PromptPreview(
        question=latest.text,
        window=window,
        left=left,
        explanation=explanation,
        facts=_sort_as_in_prompt(explanation.facts, memory.last_used().facts),
        runs=[list(run) for _, run in groupby(parts, attrgetter("kind", "role"))],
        tokens=tokens,
        all_facts=all_facts.facts,
        active=await readers.count_messages(session_id, status=ACTIVE),
        readers=await _read_progress(store, memory),
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


async def _read_progress(
    store: MemoryStore, memory: CondensedMemory
) -> list[ReaderProgress]:
    readers = store.readers
    session_id = memory.session_id
    progresses = []
    for reader in await readers.names(session_id):
        block, of, namespace = reader.partition(" of ")
        if not reader.startswith(f"{memory.facts_block.name} "):
            continue
        _, state = await readers.state(session_id, reader)
        progresses.append(
            ReaderProgress(
                name=f"{block}{of}{display_name(namespace)}",
                unread=await readers.count_messages(session_id, reader=reader),
                set_aside=progress_of(state).set_aside,
            )
        )
    return progresses


async def _ask(memory: CondensedMemory, store: MemoryStore) -> list[ChatMessage]:
    """Return the prompt for the question; the index has the turn before it, too."""
    index = memory.condensed_block.index(memory.session_id)
    if index is None:
        prompt = await memory.aget()
        # The first prompt from which messages have left begins the index.
        index = memory.condensed_block.index(memory.session_id)
        if index is None:
            return prompt
    turn = await store.readers.find(memory.session_id, [ACTIVE])
    index.add(turn)
    prompt = await memory.aget()
    await memory.sql_store.jobs.stop()
    return prompt


def _sort_as_in_prompt(
    facts: Iterable[ExplainedFact], used_facts: Iterable[RankedFact]
) -> list[ExplainedFact]:
    """Return the facts of the prompt first, in its order, and then the further facts."""
    places = {used.fact.id: i for i, used in enumerate(used_facts)}
    return sorted(facts, key=lambda entry: places.get(entry.fact.id, len(places)))


def _parts(message: ChatMessage, counter: TokenCounter) -> Iterator[Part]:
    """Yield the parts of a message: of the memory's message several, of any other message a single one."""
    role = message.role.value
    texts = [block.text for block in message.blocks if isinstance(block, TextBlock)]
    if not texts or not texts[0].startswith("<memory>\n"):
        kind = "question" if role == "user" else "turn"
        text = body_of(message)
        yield Part(kind, role, text, counter.count(text))
        return
    kind = "profile" if texts[0].startswith(_PROFILE_START) else "record"
    for block_text in texts:
        if block_text.startswith(CHANGED_OPENING):
            yield Part("record", role, block_text, counter.count(block_text))
            continue
        for text in filter(None, _PART_START.split(block_text)):
            kind = _kind_of(text, kind)
            yield Part(kind, role, text, counter.count(text))


def _kind_of(text: str, kind_before: str) -> str:
    """Return the kind of the part with this text."""
    # The question is last; a line of it may look like the start of a part.
    if kind_before == "question":
        return kind_before
    return _KINDS.get(text.partition("\n")[0], kind_before)
