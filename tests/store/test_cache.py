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


def test_a_value_belongs_to_a_name_and_settings() -> None:
    cache = StoreCache()
    assert cache.get("chat", "window") is None
    cache.put("chat", "window", 1)
    cache.put("chat", "index", 2)
    cache.put("chat", "index", 3)
    cache.put("ann", "window", 4)
    assert cache.get("chat", "window") == 1
    assert cache.get("chat", "index") == 3
    assert cache.get("ann", "window") == 4
    assert StoreCache().get("chat", "window") is None


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


def test_a_name_that_is_larger_than_the_bound_stays_while_it_is_used(
    set_bound: SetBound,
) -> None:
    """A turn of a long session uses the facts of its user, too, and dropped the index of the session each time."""
    cache = StoreCache()
    set_bound(400)
    for turn in range(10):
        assert cache.get("long", "index") == ("long" if turn else None)
        cache.put("long", "index", "long", 1_000)
        cache.put("ann", "facts", "facts", 10)
    for name in ("b", "c", "d"):
        cache.put(name, "index", name, 10)
        assert cache.get("long", "index") == "long"
    assert cache.get("ann", "facts") is None
    assert cache.get("d", "index") == "d"
    cache.put("longer", "index", "longer", 2_000)
    assert cache.get("long", "index") is None
    assert cache.get("longer", "index") == "longer"


def test_the_size_follows_what_is_put_and_dropped() -> None:
    gc.collect()
    before = size_of_caches()
    cache = StoreCache()
    for size in (10, 300, 20):
        cache.put("a", "index", "a", size)
        assert size_of_caches() - before == 50 + size
    cache.put("b", "index", "b", 5)
    cache.drop(["a", "nothing"])
    assert size_of_caches() - before == 55
    cache.clear()
    assert size_of_caches() == before
    assert cache.get("b", "index") is None


def test_a_store_that_is_gone_keeps_nothing() -> None:
    gc.collect()
    before = size_of_caches()
    cache = StoreCache()
    # Values refer to the readers of the store, and so to the store.
    cache.put("a", "index", [cache], 10)
    del cache
    gc.collect()
    assert size_of_caches() == before
