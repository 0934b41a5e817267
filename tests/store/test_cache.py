"""The cache of a store: names that were used last stay, within one bound for all stores of the process."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from llama_index_memory_ext.store import cache as subject
from llama_index_memory_ext.store.cache import StoreCache, size_of_caches

SetBound = Callable[[int], None]


@pytest.fixture
def set_bound(monkeypatch: pytest.MonkeyPatch) -> SetBound:
    """Sets how much these tests may keep beside what other stores of this process keep."""
    gc.collect()
    before = size_of_caches()

    def set_it(size: int) -> None:
        monkeypatch.setattr(subject, "MOST_KEPT", before + size)

    return set_it


def test_names_that_were_used_last_stay_over_all_stores(set_bound: SetBound) -> None:
    first, second = StoreCache(), StoreCache()
    set_bound(3 * 150)
    first.put("a", "index", "a", 100)
    second.put("b", "index", "b", 100)
    first.put("c", "index", "c", 100)
    assert first.get("a", "index") == "a"
    second.put("d", "index", "d", 100)
    assert second.get("b", "index") is None
    assert first.get("a", "index") == "a"
    assert first.get("c", "index") == "c"
    # All values of a name go together.
    second.put("d", "window", "d", 150)
    assert first.get("a", "index") is None
    assert first.get("c", "index") == "c"
    assert second.get("d", "index") == "d"


def test_a_name_that_is_larger_than_the_bound_is_kept_alone(
    set_bound: SetBound,
) -> None:
    cache = StoreCache()
    set_bound(200)
    cache.put("a", "index", "a", 10)
    cache.put("large", "index", "large", 1_000)
    cache.put("large", "window", "large", 1_000)
    assert cache.get("a", "index") is None
    assert cache.get("large", "index") == "large"
    cache.put("b", "index", "b", 10)
    assert cache.get("large", "index") is None
    assert cache.get("b", "index") == "b"


def test_a_store_that_is_gone_keeps_nothing() -> None:
    gc.collect()
    before = size_of_caches()
    cache = StoreCache()
    # Values refer to the readers of the store, and so to the store.
    cache.put("a", "index", [cache], 10)
    del cache
    gc.collect()
    assert size_of_caches() == before
