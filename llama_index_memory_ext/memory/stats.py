"""Statistics of a memory: counts, tokens and failures of a session, for people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from llama_index_memory_ext.background.failures import Failure
from llama_index_memory_ext.fact import SetAside
from llama_index_memory_ext.models.ask import Usage
from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED, display_name

if TYPE_CHECKING:
    from llama_index_memory_ext.memory.fields import MemoryFields


class MemoryStats(BaseModel):
    """Statistics of a session. They print as a line for each field; ``model_dump(mode="json")`` is for programs.

    Messages, facts and tokens are counted in the database, including writes of other
    processes. ``failures`` covers this process, ``rejections`` and ``usage`` only this
    memory in this process.

    ``user_id``: the owner of the facts; the session's id if it has no user.
    ``database``: the address of the database, without password and options.
    ``messages``: all messages of the session.
    ``active``: messages of the current turn, which are not in the record yet.
    ``verbatim``: messages that the record shows, long ones clipped.
    ``left``: messages that had left the record at the last prompt; they are still in the
    database.
    ``summarised``: messages of ``left`` that the running summary covers.
    ``record_tokens``: tokens of the record, without recalled messages.
    ``summary_tokens``: tokens of the summary in the record.
    ``facts``: present facts of the user that the agent of this memory sees.
    ``retired``: retired facts, which are kept and not shown.
    ``pending``: messages not read for facts yet, active ones too; None: extraction is
    off.
    ``failures``: the last failure of "facts", "summary", "recall index" and "recall
    embeddings".
    ``rejections``: entries of the model's replies that were not stored, by reason.
    ``set_aside``: turns without facts: first row, last row, error.
    ``usage``: calls and tokens: "facts", "summary".
    """

    model_config = ConfigDict(frozen=True)

    session_id: str
    user_id: str
    database: str
    messages: int
    active: int
    verbatim: int
    left: int
    summarised: int
    record_tokens: int
    summary_tokens: int
    facts: int
    retired: int
    pending: int | None
    failures: dict[str, Failure]
    rejections: dict[str, int]
    set_aside: tuple[SetAside, ...] = ()
    usage: dict[str, Usage] = {}

    def __str__(self) -> str:
        values = self.model_dump(mode="json")
        return "\n".join(f"{name:<14} {value}" for name, value in values.items())


async def read_stats(memory: MemoryFields, *, with_pending: bool) -> MemoryStats:
    """Return the statistics of the session of a memory."""
    # Loaded only when a program asks for statistics.
    from llama_index_memory_ext.learning.progress import progress_of

    store = memory.sql_store
    record = memory.condensed_block
    facts = memory.facts_block
    session_id = memory.session_id
    namespace = facts.namespace_of(session_id)
    size = await record.ameasure(session_id)
    reader = facts.reader_of(session_id)
    count = store.readers.count_messages
    now = facts.now()
    cursor = await store.readers.cursor(session_id, reader)
    pending = None
    if with_pending:
        pending = await count(session_id, reader=reader)
    cut = await store.readers.cursor(session_id, record.name)
    visible_facts = (await store.facts.read(namespace, view=facts.view)).facts
    return MemoryStats(
        session_id=session_id,
        user_id=display_name(namespace),
        database=store.address,
        **size._asdict(),
        messages=await count(session_id),
        active=await count(session_id, statuses=[ACTIVE]),
        left=await count(session_id, statuses=[ARCHIVED], last=cut.position),
        facts=sum(fact.state(now) == "present" for fact in visible_facts),
        retired=sum(fact.retired for fact in visible_facts),
        pending=pending,
        failures={**facts.failures_of(session_id), **record.failures_of(session_id)},
        rejections=facts.rejections,
        set_aside=progress_of(cursor.state).set_aside,
        usage=record.usage | facts.usage,
    )
