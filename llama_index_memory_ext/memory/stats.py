"""Puts what a memory holds, and what has failed in it, into numbers that people and programs can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from llama_index_memory_ext.background.jobs import Failure
from llama_index_memory_ext.fact import SetAside, utc_now
from llama_index_memory_ext.models.responses import Usage
from llama_index_memory_ext.store.tables import ACTIVE, ARCHIVED, name_of

if TYPE_CHECKING:
    from llama_index_memory_ext.facts.block import RelevantFactsBlock
    from llama_index_memory_ext.record.block import CondensedMemoryBlock
    from llama_index_memory_ext.store import MemoryStore


class MemoryStats(BaseModel):
    """How much a session holds and shows. Prints as a few lines; ``model_dump(mode="json")`` is for programs.

    Counts of messages, facts and tokens are read from the database, so they include
    what other processes have written; ``failures``, ``rejections`` and ``usage`` are of
    this process alone, and the last two of this memory.
    """

    model_config = ConfigDict(frozen=True)

    session_id: str = Field(description="The conversation.")
    user_id: str = Field(
        description="Whose facts these are; the session's own if it belongs to no user."
    )
    database: str = Field(
        description="The address of the database, without password and options."
    )
    messages: int = Field(description="All messages of the session.")
    active: int = Field(
        description="Of these, the ones of the current turn, which are not in the record yet."
    )
    verbatim: int = Field(
        description="Messages that the record shows as they are, long ones clipped."
    )
    left: int = Field(
        description="Messages that have left the record; they are still in the database."
    )
    summarised: int = Field(
        description="Of these, the ones that the running summary covers."
    )
    record_tokens: int = Field(
        description="Tokens of the record, without what is recalled for a question."
    )
    summary_tokens: int = Field(description="Of these, the ones of the summary.")
    facts: int = Field(
        description="Active facts of the user that the agent of this memory sees."
    )
    retired: int = Field(
        description="Retired facts of these; they are kept, and not shown."
    )
    pending: int | None = Field(
        description="Messages not read for facts yet, active ones too; None: none are read."
    )
    failures: dict[str, Failure] = Field(
        description='What has failed last: "facts", "summary" or "recall index".'
    )
    rejections: dict[str, int] = Field(
        description="Entries of the model's replies that were not stored, by reason."
    )
    set_aside: tuple[SetAside, ...] = Field(
        default=(), description="Turns without facts: first row, last row, error."
    )
    usage: dict[str, Usage] = Field(
        default={}, description='Calls and tokens: "facts", "verification", "summary".'
    )

    def __str__(self) -> str:
        shown = (
            f"{self.active} of the current turn, {self.verbatim} shown in the record"
        )
        older = f"{self.left} older than the record, {self.summarised} in its summary"
        if self.pending is None:
            pending = "extraction is off"
        else:
            pending = f"{self.pending} messages to be read for facts"
        reasons = ", ".join(
            f"{count} {reason}" for reason, count in sorted(self.rejections.items())
        )
        if reasons:
            rejected = f"; not stored: {reasons}"
        else:
            rejected = ""
        if self.set_aside:
            aside = f", {len(self.set_aside)} turns set aside"
        else:
            aside = ""
        lines = [
            ("session", f"{self.session_id} (user {self.user_id}) in {self.database}"),
            ("messages", f"{self.messages}: {shown}; {older}"),
            (
                "record",
                f"{self.record_tokens} tokens, {self.summary_tokens} in its summary",
            ),
            (
                "facts",
                f"{self.facts} current, {self.retired} retired; {pending}{aside}{rejected}",
            ),
        ]
        for kind, usage in sorted(self.usage.items()):
            if usage.calls == 1:
                calls = "1 call"
            else:
                calls = f"{usage.calls} calls"
            if usage.counted:
                counted = (
                    f" ({usage.counted} of these did not report theirs: counted here)"
                )
            else:
                counted = ""
            spent = f"{usage.prompt_tokens} sent and {usage.completion_tokens} received in {calls}{counted}"
            lines.append(("tokens", f"{kind}: {spent}"))
        for name, failure in self.failures.items():
            if failure.failures == 1:
                times = "once"
            else:
                times = f"{failure.failures} times in a row"
            if failure.retry_at:
                again = f"at {failure.retry_at:%H:%M:%S}"
            else:
                again = "by the next start"
            when = f"last at {failure.at:%Y-%m-%d %H:%M:%S} UTC; tried again {again}"
            lines.append(("failed", f"{name}: {failure.error}, {times}, {when}"))
        return "\n".join(f"{name:<9} {line}" for name, line in lines)


async def read_stats(
    store: MemoryStore,
    record: CondensedMemoryBlock,
    facts: RelevantFactsBlock,
    session_id: str,
) -> MemoryStats:
    """Return the numbers of a session, from its two blocks and their store."""
    from llama_index_memory_ext.facts.extraction import (
        progress_of,
    )  # where statistics are asked for

    namespace = facts.namespace_of(session_id)
    size = await record.ameasure(session_id)
    reader = facts.reader_of(session_id)
    count = store.users.count
    now = utc_now()
    position, _ = await store.readers.state(session_id, record.name)
    _, state = await store.readers.state(session_id, reader)
    known = (await store.facts.read(namespace, view=facts.view)).facts
    return MemoryStats(
        session_id=session_id,
        user_id=name_of(namespace),
        database=store.address,
        **size._asdict(),
        messages=await count(session_id),
        active=await count(session_id, status=ACTIVE),
        left=await count(session_id, status=ARCHIVED, last=position),
        facts=sum(fact.state(now) == "present" for fact in known),
        retired=sum(fact.retired for fact in known),
        pending=await count(session_id, reader=reader) if facts.extract_facts else None,
        failures={**facts.failures_of(session_id), **record.failures_of(session_id)},
        rejections=facts.rejections,
        set_aside=progress_of(state).set_aside,
        usage=record.usage | facts.usage,
    )
