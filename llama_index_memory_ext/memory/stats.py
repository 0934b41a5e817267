"""Puts what a memory holds, and what has failed in it, into numbers that people and programs can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from llama_index_memory_ext.background.jobs import Failure  # noqa: TC001 - pydantic reads the annotations of fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from llama_index_memory_ext.facts.block import RelevantFactsBlock
    from llama_index_memory_ext.record.block import CondensedMemoryBlock
    from llama_index_memory_ext.store import MemoryStore


class MemoryStats(BaseModel):
    """How much a session holds and shows. Prints as a few lines; ``model_dump(mode="json")`` is for programs.

    Counts of messages, facts and tokens are those of the database, whichever process has written them; ``failures``
    and ``rejections`` are of this process alone, and are forgotten with it.
    """

    model_config = ConfigDict(frozen=True)

    session_id: str = Field(description="The conversation.")
    user_id: str = Field(description="Whose facts these are; the session's own if it belongs to no user.")
    database: str = Field(description="The address of the database, without password and options.")
    messages: int = Field(description="All messages of the session.")
    active: int = Field(description="Of these, the ones that are not in the record yet: the turn that is going on.")
    verbatim: int = Field(description="Messages that the record shows as they are, long ones clipped.")
    left: int = Field(description="Messages that have left the record; they are still in the database.")
    summarised: int = Field(description="Of these, the ones that the running summary is of.")
    record_tokens: int = Field(description="Tokens of the record, without what is recalled for a question.")
    summary_tokens: int = Field(description="Of these, the ones of the summary.")
    facts: int = Field(description="Facts of the user that hold.")
    retired: int = Field(description="Facts of the user that hold no longer; they are kept, and not shown.")
    pending: int | None = Field(
        description="Messages of the session that were not read for facts yet, the active ones too; None where no "
        "facts are extracted."
    )
    failures: dict[str, Failure] = Field(
        description='What has failed since it last succeeded: "facts", "summary" or "recall index"; {} if nothing has.'
    )
    rejections: dict[str, int] = Field(
        description="Replies of the model, in all sessions of this memory's block, that were not stored as facts, for "
        "each reason."
    )

    def __str__(self) -> str:
        return "\n".join(f"{name:<9} {line}" for name, line in self._lines())

    def _lines(self) -> Iterator[tuple[str, str]]:
        yield "session", f"{self.session_id} (user {self.user_id}) in {self.database}"
        shown = f"{self.verbatim} in the record as they are, {self.left} have left it"
        yield "messages", f"{self.messages}: {self.active} active, {shown} ({self.summarised} of these summarised)"
        yield "record", f"{self.record_tokens} tokens, of which the summary {self.summary_tokens}"
        pending = "none are extracted" if self.pending is None else f"{self.pending} messages not read yet"
        yield "facts", f"{self.facts} that hold, {self.retired} retired; {pending}{_rejected(self.rejections)}"
        for name, failure in self.failures.items():
            yield "failed", f"{name}: {_told(failure)}"


async def read_stats(
    store: MemoryStore, record: CondensedMemoryBlock, facts: RelevantFactsBlock, session_id: str
) -> MemoryStats:
    """The numbers of a session, from its two blocks and their store."""
    namespace, size = facts.namespace_of(session_id), await record.ameasure(session_id)
    counts = await store.users.counts(
        session_id, record=record.name, extraction=facts.reader_of(session_id), namespace=namespace
    )
    return MemoryStats(
        session_id=session_id,
        user_id=namespace,
        database=store.address,
        messages=counts.messages,
        active=counts.active,
        verbatim=size.verbatim,
        left=counts.left,
        summarised=size.summarised,
        record_tokens=size.tokens,
        summary_tokens=size.summary_tokens,
        facts=counts.facts,
        retired=counts.retired,
        pending=counts.unread if facts.extract_facts else None,
        failures={**facts.failures_of(session_id), **record.failures_of(session_id)},
        rejections=facts.rejections,
    )


def _rejected(rejections: Mapping[str, int]) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(rejections.items()))
    return f"; not stored: {reasons}" if reasons else ""


def _told(failure: Failure) -> str:
    times = "once" if failure.failures == 1 else f"{failure.failures} times in a row"
    again = f"at {failure.retry_at:%H:%M:%S}" if failure.retry_at else "by whoever comes next"
    return f"{failure.error}, {times}, last at {failure.at:%Y-%m-%d %H:%M:%S} UTC; tried again {again}"
