"""The prompt that the model would get for a question, worked out on a copy; nothing is written."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import ChatMessage, TextBlock

from llama_index_memory_ext.fact import ALL, utc_now
from llama_index_memory_ext.memory.condensed_memory import CondensedMemory
from llama_index_memory_ext.store import MemoryStore
from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED, anonymous
from llama_index_memory_ext.text.messages import (
    body_of,
)
from llama_index_memory_ext.text.turns import (
    as_taken,
    question_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.facts.ranking import ExplainedFact, Explanation
    from llama_index_memory_ext.memory.stats import MemoryStats
    from llama_index_memory_ext.text.tokens import TokenCounter

# The copy needs a session_id that a memory accepts.
_UNNAMED = "(no name)"
_COPIED_COLUMNS = ("id", "role", "data", "timestamp", "status", "user_id")
# The kind of the part that begins with this line.
_KINDS = {"<relevant_facts>": "facts", "</memory>": "question"}
_PART_START = re.compile(rf"^(?=(?:{'|'.join(_KINDS)})$)", re.MULTILINE)


class Part(NamedTuple):
    """A part of the prompt.

    ``kind``: "record", "facts", "question", or "turn" for a further message of the turn.
    ``role``: the role of the message.
    ``text``, ``tokens``: the text, and its tokens.
    """

    kind: str
    role: str
    text: str
    tokens: int


class FactWithState(NamedTuple):
    """A fact, and its state now."""

    fact: Fact
    state: str


@dataclass(frozen=True)
class PromptPreview:
    """The prompt that the model would get for a question.

    ``question``: the question, "" before the first.
    ``explanation``: why each fact is in the prompt, or not.
    ``facts``: the explained facts; facts of the prompt come first, in its order.
    ``summary``: the summary of the older conversation, or "".
    ``runs``: the parts in the order of the prompt, grouped by kind and role.
    ``tokens``: tokens by kind, in the order of the prompt.
    ``all_facts``: all facts of the user.
    ``stats``: the numbers of the memory.
    ``readers``: the names of the session's readers for facts.
    ``limits``: the limits of the memory, by setting.
    """

    question: str
    explanation: Explanation
    facts: list[ExplainedFact]
    summary: str
    runs: list[list[Part]]
    tokens: Counter[str]
    all_facts: list[FactWithState]
    stats: MemoryStats
    readers: list[str]
    limits: dict[str, int]


def memory_on(
    store: MemoryStore, session_id: str, user_id: str, limits: Mapping[str, Any]
) -> CondensedMemory:
    """Return a memory that asks no model; raise a LimitError for limits that do not fit together."""
    # The host may have stored ids that a memory does not accept.
    name = session_id.strip() or _UNNAMED
    user = None
    if user_id != anonymous(session_id):
        user = user_id.strip() or _UNNAMED
    options: Any = {"extract_facts": False, **limits}
    return CondensedMemory.from_defaults(
        name, user_id=user, chat_store=store, **options
    )


async def read_facts(store: MemoryStore, user: str) -> list[FactWithState]:
    """Return all facts of a user with their states."""
    now = utc_now()
    facts = (await store.facts.read(user, view=ALL)).facts
    return [FactWithState(fact, fact.state(now)) for fact in facts]


async def preview_prompt(
    store: MemoryStore,
    session_id: str,
    user_id: str,
    question: str,
    limits: Mapping[str, Any],
) -> PromptPreview:
    """Return the prompt for this question of the user; for the last question, if ``question`` is ""."""
    settings = memory_on(MemoryStore(), session_id, user_id, limits)
    name = settings.session_id
    record = settings.condensed_block
    position, state = await store.readers.state(session_id, record.name)
    rows = await store.readers.find(session_id, [ARCHIVED, ACTIVE])
    all_facts = await read_facts(store, user_id)
    data = []
    for row in rows:
        columns = {column: getattr(row, column) for column in _COPIED_COLUMNS}
        data.append({"key": name, **columns})
    copy = MemoryStore(db_data=data)
    async with aclosing(copy):
        if position:
            await copy.readers.move(
                name, record.name, epoch=0, old=0, new=position, state=state
            )
        memory = memory_on(copy, session_id, user_id, limits)
        copied_facts = [fact for fact, _ in all_facts]
        await copy.facts.write(memory.facts.namespace, copied_facts, view=ALL)
        stats = await memory.astats()
        messages = as_taken(await memory.aget_all())
        if question:
            messages = [*messages, ChatMessage(question)]
        facts_block = memory.facts_block
        newest_question, context = question_in(messages, [], facts_block.context_turns)
        explanation = await facts_block.aexplain(newest_question, context=context)
        if question:
            await memory.aput(ChatMessage(question))
        parts: list[Part] = []
        for message in await memory.aget():
            parts += _parts(message, memory.tokenizer_fn)
        summary = await memory.condensed_block.asummary(name)
        places = {used.fact.id: i for i, used in enumerate(memory.last_used().facts)}
    return PromptPreview(
        question=newest_question,
        explanation=explanation,
        facts=sorted(
            explanation.facts,
            key=lambda explained: places.get(explained.fact.id, len(places)),
        ),
        summary=summary,
        runs=_runs(parts),
        tokens=_tokens_by_kind(parts),
        all_facts=all_facts,
        stats=stats,
        readers=await _fact_readers(store, session_id, settings),
        limits=_limits_of(settings),
    )


def _parts(message: ChatMessage, counter: TokenCounter) -> Iterator[Part]:
    """Yield the parts of a message: of the memory's message several, of any other message a single one."""
    role = message.role.value
    texts = [block.text for block in message.blocks if isinstance(block, TextBlock)]
    if not texts or not texts[0].startswith("<memory>\n"):
        kind = "question" if role == "user" else "turn"
        text = body_of(message)
        yield Part(kind, role, text, counter.count(text))
        return
    kind = "record"
    for block_text in texts:
        for text in filter(None, _PART_START.split(block_text)):
            # The question is last; a line of it may look like the start of a part.
            if kind != "question":
                kind = _KINDS.get(text.partition("\n")[0], kind)
            yield Part(kind, role, text, counter.count(text))


def _runs(parts: Iterable[Part]) -> list[list[Part]]:
    groups = groupby(parts, lambda part: (part.kind, part.role))
    return [list(run) for _, run in groups]


def _tokens_by_kind(parts: Iterable[Part]) -> Counter[str]:
    tokens = Counter[str]()
    for part in parts:
        tokens[part.kind] += part.tokens
    return tokens


async def _fact_readers(
    store: MemoryStore, session_id: str, memory: CondensedMemory
) -> list[str]:
    prefix = f"{memory.facts_block.name} "
    names = await store.readers.names(session_id)
    return [name for name in names if name.startswith(prefix)]


def _limits_of(memory: CondensedMemory) -> dict[str, int]:
    return {
        "token_limit": memory.token_limit,
        "condensed_token_limit": memory.condensed_block.token_limit,
        "facts_token_limit": memory.facts_block.token_limit,
        "recall_token_limit": memory.condensed_block.recall_limit,
    }
