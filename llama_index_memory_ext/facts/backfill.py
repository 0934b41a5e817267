"""Extracts facts from the messages of past sessions that no extraction has read."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from llama_index_memory_ext.background.jobs import log_failure
from llama_index_memory_ext.background.locks import lock_for
from llama_index_memory_ext.errors import StoreError, blame_of

if TYPE_CHECKING:
    from llama_index_memory_ext.facts.block import RelevantFactsBlock
    from llama_index_memory_ext.facts.extraction import Extracted, Extractor
    from llama_index_memory_ext.store import MemoryStore


# A model without a key or a network fails with every session; a thousand of them need
# not be tried.
_MOST_FAILURES = 3


@dataclass(frozen=True)
class Backfilled:
    """What a backfill has read and extracted, and what is left for a second call.

    ``sessions`` is how many are now read to their end, and ``messages`` how many this
    call has read in all. ``new``, ``confirmed`` and ``retired`` are numbers of facts.
    ``failed`` maps each session that stopped half-way to the type of its error, and
    ``not_tried`` are those after too many failures in a row. ``set_aside`` turns of the
    sessions that are read were left behind, by this call or before, because no facts
    could be extracted from them.
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
    store: MemoryStore,
    block: RelevantFactsBlock,
    session_id: str,
    session_ids: Sequence[str] | None = None,
    *,
    show_progress: bool = False,
    failed: bool = False,
) -> Backfilled:
    """Extract what is unread of sessions, one after the other, so that a later one can correct an earlier one.

    Without ``session_ids``, ``session_id`` and all other sessions of its user are read,
    or with facts of an agent's own, those in which this agent has learned before. With
    ``failed``, the turns that were set aside are tried once more. Raises a StoreError,
    before a model is asked, if one of the sessions does not exist.
    """
    namespace = block.namespace_of(session_id)
    chosen = await _chosen(store, block, session_id, session_ids)
    # Two backfills at once would ask for everything twice, and store only one of the
    # results.
    async with lock_for("backfill", *store.database.identity, namespace):
        unread = {
            one: await store.users.count(one, reader=block.reader_of(one))
            for one in chosen
        }
        if any(unread.values()):
            # Raises a NoModelError where there is none.
            block.chosen_llm()
        # Imported here, because it looks for a notebook around it, which takes a while.
        from tqdm.auto import tqdm  # type: ignore[import-untyped]  # tqdm has no type hints

        done: Counter[str] = Counter()
        failures: dict[str, str] = {}
        in_a_row = 0
        total = sum(unread.values())
        with tqdm(
            desc="Extracting facts",
            total=total,
            unit=" messages",
            disable=not show_progress,
        ) as bar:
            while chosen and in_a_row < _MOST_FAILURES:
                one = chosen.pop(0)
                try:
                    await block.jobs.wait(block.job_key(one))
                    extractor = block.extractor(one, at_once=True)
                    async for batch in _batches(extractor, again=failed):
                        bar.update(batch.messages)
                        reply = batch.reply
                        done.update(messages=batch.messages, new=len(reply.accepted))
                        done.update(
                            confirmed=len(reply.confirmed), retired=len(reply.retired)
                        )
                        in_a_row = in_a_row if batch.seconds is None else 0
                    done.update(sessions=1, set_aside=len(await extractor.set_aside()))
                except Exception as error:  # noqa: BLE001 - a model may fail in any way, and the other sessions go on
                    log_failure(
                        "Facts were not extracted",
                        one,
                        error,
                        "the next backfill goes on there",
                    )
                    failures[one] = type(error).__name__
                    in_a_row += 1
        return Backfilled(**done, failed=failures, not_tried=tuple(chosen))


async def _chosen(
    store: MemoryStore,
    block: RelevantFactsBlock,
    session_id: str,
    session_ids: Sequence[str] | None,
) -> list[str]:
    """Return the sessions to read, the oldest first or as they are named, each once; a StoreError for one unknown."""
    if session_ids is None:
        infos = await store.sessions(
            block.namespace_of(session_id), session_ids=[session_id]
        )
        never = datetime.min.replace(tzinfo=timezone.utc)
        began = {
            session_id: never,
            **{info.session_id: info.first_at or never for info in infos},
        }
        if block.view.own is not None:
            # What the user has told another agent is not for this one.
            talks = {
                session_id,
                *await store.users.read_by(block.reader_of(session_id)),
            }
            began = {one: first_at for one, first_at in began.items() if one in talks}
        return sorted(began, key=lambda one: (began[one], one))
    if isinstance(session_ids, str) or not isinstance(session_ids, Iterable):
        raise StoreError(
            f"Expected session_ids to be a list of session ids; this is a {type(session_ids).__name__}."
        )
    chosen = list(dict.fromkeys(session_ids))
    for one in chosen:
        if not isinstance(one, str) or not await store.users.knows(one):
            raise StoreError(
                f"There is no session {one!r} in this database, so nothing was read. "
                "`await memory.sql_store.get_keys()` lists those that there are."
            )
    return chosen


async def _batches(extractor: Extractor, *, again: bool) -> AsyncIterator[Extracted]:
    """Extract from the turns of a session that were set aside, which are older, and then from what is unread.

    A turn that fails again stays set aside. An error of the model is raised.
    """
    for turn in await extractor.set_aside() if again else ():
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
    while (unread := await extractor.extract_next()) is not None:
        yield unread
