"""Extracts facts from conversations that took place before anybody asked for facts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from llama_index_memory_ext.background.jobs import log_failure
from llama_index_memory_ext.background.locks import lock_for
from llama_index_memory_ext.errors import StoreError
from llama_index_memory_ext.text.progress import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from llama_index_memory_ext.facts.block import RelevantFactsBlock
    from llama_index_memory_ext.facts.learning import Extracted

# A model without a key or a network fails with every session; a thousand of them need not be tried.
MOST_FAILURES_IN_A_ROW = 3


@dataclass(frozen=True)
class Backfilled:
    """What a backfill has done: how much it has read, what it has learned, and what is left for a second call.

    ``sessions`` is how many are read to their end now, and ``messages`` how many this call has read in all. ``new``,
    ``confirmed`` and ``retired`` are numbers of facts. ``failed`` has the name of the error's type for each session
    that stopped half-way, and ``not_tried`` are those behind too many failures in a row.
    """

    sessions: int = 0
    messages: int = 0
    new: int = 0
    confirmed: int = 0
    retired: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    not_tried: tuple[str, ...] = ()


async def backfill(
    block: RelevantFactsBlock, session_id: str, session_ids: Sequence[str] | None = None, *, show_progress: bool = False
) -> Backfilled:
    """Extract what is unread of sessions, one after the other: what was said later corrects what was said before.

    Args:
        block: Whose model is asked, and whose user the facts are of.
        session_id: The session that is meant, with all that are known as its user's, where ``session_ids`` is None.
        session_ids: In this order.
        show_progress: Whether a bar is shown.

    Raises:
        StoreError: One of the sessions does not exist. No model was asked then.
    """
    chosen = await block.asessions(session_id) if session_ids is None else await _checked(block, session_ids)
    # Two at once would ask for everything twice, though only one result is stored.
    async with lock_for("backfill", id(asyncio.get_running_loop()), *block.door_of(session_id)):
        unread = {one: await block.acount_unread(one) for one in chosen}
        if any(unread.values()):
            block.require_model()
        with progress("Extracting facts", sum(unread.values()), shown=show_progress) as step:
            return await _backfill(block, chosen, step)


async def _backfill(block: RelevantFactsBlock, session_ids: Sequence[str], step: Callable[[int], object]) -> Backfilled:
    done, in_a_row = Backfilled(), 0
    for i, session_id in enumerate(session_ids):
        if in_a_row == MOST_FAILURES_IN_A_ROW:
            return replace(done, not_tried=tuple(session_ids[i:]))
        try:
            while (batch := await block.aextract_next(session_id)) is not None:
                step(batch.messages)
                done = _with_batch(done, batch)
                in_a_row = 0 if batch.asked else in_a_row
            done = replace(done, sessions=done.sessions + 1)
        except Exception as error:  # noqa: BLE001 - a model may fail in any way, and the other sessions do not suffer
            log_failure("Facts were not extracted", session_id, error, "the next backfill goes on there")
            done = replace(done, failed={**done.failed, session_id: type(error).__name__})
            in_a_row += 1
    return done


def _with_batch(done: Backfilled, batch: Extracted) -> Backfilled:
    return replace(
        done,
        messages=done.messages + batch.messages,
        new=done.new + batch.new,
        confirmed=done.confirmed + batch.confirmed,
        retired=done.retired + batch.retired,
    )


async def _checked(block: RelevantFactsBlock, session_ids: Sequence[str]) -> list[str]:
    """The ids, each once.

    Raises:
        StoreError: This is no list of ids, or there is no such session.
    """
    if isinstance(session_ids, str) or not isinstance(session_ids, Iterable):
        raise StoreError(f"Expected session_ids to be a list of session ids; this is a {type(session_ids).__name__}.")
    chosen = list(dict.fromkeys(session_ids))
    for session_id in chosen:
        if not isinstance(session_id, str) or not await block.aknows(session_id):
            raise StoreError(
                f"There is no session {session_id!r} in this database, so nothing was read. "
                "`await memory.sql_store.get_keys()` lists those that there are."
            )
    return chosen
