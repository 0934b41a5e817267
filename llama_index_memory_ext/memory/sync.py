"""Runs the calls of a memory without an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from llama_index_memory_ext.store import MemoryStore

T = TypeVar("T")


class HasStore(Protocol):
    """A memory."""

    sql_store: MemoryStore


WAITS = ", then wait for extraction, summary and embeddings"


def run(memory: HasStore, call: Coroutine[Any, Any, T]) -> T:
    """Returns what a call returns."""
    return memory.sql_store.jobs.run(call, with_jobs=False)


def run_with_jobs(memory: HasStore, call: Coroutine[Any, Any, T]) -> T:
    """Returns what a call returns, when the jobs that it has started are done."""
    return memory.sql_store.jobs.run(call, with_jobs=True)
