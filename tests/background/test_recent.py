"""The cache of what was used last."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from llama_index_memory_ext.background.locks import Recent


def test_the_least_recently_used_entry_is_evicted() -> None:
    """Reading an entry is a use of it, looking whether it is there is none."""
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert (recent.get("a"), "b" in recent) == (1, True)
    recent.put("c", 3)
    assert ("a" in recent, "b" in recent, "c" in recent) == (True, False, True)
    assert (recent.get("b"), recent.values()) == (None, [1, 3])
    recent.put("a", 4)
    assert (recent.get("a"), recent.values()) == (4, [3, 4])


@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy, lambda recent: pickle.loads(pickle.dumps(recent))])
def test_a_copy_of_a_cache_begins_empty(twin_of: Any) -> None:
    recent: Recent[str, int] = Recent(3)
    recent.put("a", 1)
    twin = twin_of(recent)
    assert (twin.values(), twin.size, recent.values()) == ([], 3, [1])


def test_threads_can_share_a_cache() -> None:
    recent: Recent[int, int] = Recent(10)

    def use(number: int) -> bool:
        recent.put(number, number)
        return recent.get(number) in (number, None)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(use, range(2_000)))
    assert len(recent.values()) == 10
