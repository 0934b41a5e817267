"""Backfill: extracts facts from the unread messages of past sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from llama_index_memory_ext.background.failures import log_failure
from llama_index_memory_ext.background.locks import lock_for
from llama_index_memory_ext.errors import StoreError, blame_of
from llama_index_memory_ext.memory.writing import access_of

if TYPE_CHECKING:
    from llama_index_memory_ext.learning.extractor import Extracted, Extractor
    from llama_index_memory_ext.memory.fields import MemoryFields


# A model without a key or a network fails with every session, so a backfill of a
# thousand sessions stops after three.
_MOST_FAILURES = 3


@dataclass(frozen=True)
class Backfilled:
    """The result of a backfill.

    ``sessions``: sessions that are now read to their end.
    ``messages``: messages that this call has read.
    ``new``, ``confirmed``, ``retired``: numbers of facts.
    ``failed``: the type of the error, by session, of sessions that stopped half-way.
    ``not_tried``: the sessions after too many failures in a row.
    ``set_aside``: turns of the read sessions without facts, because extraction failed.
    """

    sessions: int = 0
    messages: int = 0
    new: int = 0
    confirmed: int = 0
    retired: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    not_tried: tuple[str, ...] = ()
    set_aside: int = 0


async def backfill(
    memory: MemoryFields, session_ids: Sequence[str] | None, *, failed: bool
) -> Backfilled:
    """Extract facts from the unread messages of sessions, one session after the other.

    A later session can so correct an earlier one.

    Args:
        memory: The memory of the user.
        session_ids: The sessions to read; None: the session of the memory and all other
            sessions of its user, or for an agent, the sessions in which it has learned
            before.
        failed: Whether to try the turns once more that were set aside.

    Raises:
        StoreError: A session does not exist, or is another user's. No model was asked then.
    """
    store = memory.sql_store
    block = memory.facts_block
    namespace = block.namespace_of(memory.session_id)
    remaining = await _sessions_to_read(memory, session_ids)
    # Two backfills at the same time would ask for everything twice, and store only one
    # of the results.
    async with lock_for("backfill", *store.database.identity, namespace):
        unread = 0
        for name in remaining:
            unread += await store.readers.count_messages(
                name, reader=block.reader_of(name)
            )
        if unread:
            # Raises a NoModelError where there is none.
            block.chosen_llm()
        counts = Counter[str]()
        failures = {}
        failures_in_a_row = 0
        while remaining and failures_in_a_row < _MOST_FAILURES:
            name = remaining.pop(0)
            try:
                await block.jobs.wait(block.job_key(name))
                extractor = block.extractor(name, at_once=True)
                async for batch in _batches(extractor, again=failed):
                    counts.update(
                        messages=batch.messages,
                        new=len(batch.reply.accepted),
                        confirmed=len(batch.reply.confirmed),
                        retired=len(batch.reply.retired),
                    )
                    if batch.usage.calls:
                        failures_in_a_row = 0
                set_aside = await extractor.set_aside()
                counts.update(sessions=1, set_aside=len(set_aside))
            except Exception as error:  # noqa: BLE001 - a model may fail in any way, and the other sessions go on
                log_failure(
                    "Facts were not extracted",
                    name,
                    error,
                    "the next backfill continues there",
                )
                failures[name] = type(error).__name__
                failures_in_a_row += 1
        return Backfilled(**counts, failed=failures, not_tried=tuple(remaining))


async def _sessions_to_read(
    memory: MemoryFields, session_ids: Sequence[str] | None
) -> list[str]:
    """Return the sessions to read, each once: the named ones in their order, or the user's, oldest first.

    Raises:
        StoreError: A named session does not exist, or no list of ids was passed.
    """
    if session_ids is None:
        return await _sessions_of_user(memory)
    if isinstance(session_ids, str) or not isinstance(session_ids, Iterable):
        raise StoreError(
            f"Expected session_ids to be a list of session ids; got {type(session_ids).__name__}."
        )
    store = memory.sql_store
    named = list(dict.fromkeys(session_ids))
    for name in named:
        if not isinstance(name, str) or not await store.readers.has_session(name):
            raise StoreError(
                f"There is no session {name!r} in this database, so nothing was read. "
                "`await memory.sql_store.get_keys()` lists the sessions."
            )
        users = await store.log.users_of_session(name)
        # A user may read a session that the user shares.
        if memory.user_id not in users:
            await store.log.check_owner(name, access_of(memory))
    return named


async def _sessions_of_user(memory: MemoryFields) -> list[str]:
    """Return the sessions of the user of a memory, oldest first; empty sessions come before others."""
    store = memory.sql_store
    block = memory.facts_block
    session_id = memory.session_id
    never = datetime.min.replace(tzinfo=timezone.utc)
    began = {session_id: never}
    for info in await store.sessions(
        block.namespace_of(session_id), session_ids=[session_id]
    ):
        began[info.session_id] = info.first_at or never
    names = set(began)
    if block.view.own is not None:
        # Words of the user to another agent are not for this agent.
        talks = await store.readers.sessions_of_reader(block.reader_of(session_id))
        names &= {session_id, *talks}
    return sorted(names, key=lambda name: (began[name], name))


async def _batches(extractor: Extractor, *, again: bool) -> AsyncIterator[Extracted]:
    """Extract the turns that were set aside, if tried ``again``, and then the unread turns.

    A turn that fails again stays set aside. An error of the model is raised.
    """
    turns = await extractor.set_aside() if again else ()
    for turn in turns:
        try:
            batch = await extractor.extract_again(turn)
        except Exception as error:  # noqa: PERF203 - a turn that fails does not keep the others
            if blame_of(error) in ("model", "length"):
                raise
            log_failure(
                "Facts were not extracted",
                extractor.session_id,
                error,
                "the turn stays set aside",
            )
        else:
            yield batch
    while True:
        unread = await extractor.extract_next()
        if unread is None:
            return
        yield unread
