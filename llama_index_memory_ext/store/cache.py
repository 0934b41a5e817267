"""The cache of a store: what its memories have read of sessions and users, within one bound for the process."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, count
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from llama_index_memory_ext.background.locks import thread_lock

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

# All stores of a process keep at most so many messages and facts, of about 4 kB each,
# unless one session has more. A session or a user alone counts as 50.
MOST_KEPT = 50_000
_SIZE_OF_NAME = 50

_guard = thread_lock()
# Numbers the uses of all caches in their order.
_uses = count()


@dataclass
class _Kept:
    """The values of a session or user by their settings, the size of each, and the number of the last use."""

    cache: StoreCache
    name: str
    values: dict[Hashable, Any] = field(default_factory=dict)
    sizes: dict[Hashable, int] = field(default_factory=dict)
    last_use: int = 0

    @property
    def size(self) -> int:
        """The number of messages and facts, and 50 for the name."""
        return _SIZE_OF_NAME + sum(self.sizes.values())


class StoreCache:
    """The sessions and users that the memories of one store have read. Threads may share it.

    A value belongs to the name of a session or user, and to the settings of the
    memories that share it. The names of all stores that were used last are kept while
    they have at most ``MOST_KEPT`` messages and facts together.
    """

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        with _guard:
            _caches.add(self)

    @property
    def size(self) -> int:
        """The number of messages and facts, and 50 for each name."""
        return sum(kept.size for kept in self.names())

    def get(self, name: str, settings: Hashable) -> Any:
        """Return the value of a session or user for these settings, which counts as a use; None if there is none."""
        with _guard:
            if name not in self._kept:
                return None
            kept = self._kept[name]
            kept.last_use = next(_uses)
            return kept.values.get(settings)

    def put(self, name: str, settings: Hashable, value: object, size: int = 0) -> None:
        """Set a value that holds ``size`` messages or facts, and drop the names that were used longest ago.

        The name that is put stays, however large it is.
        """
        with _guard:
            kept = self._kept.setdefault(name, _Kept(self, name))
            kept.values[settings] = value
            kept.sizes[settings] = size
            kept.last_use = next(_uses)
            surplus = size_of_caches() - MOST_KEPT
            if surplus > 0:
                _drop_oldest(surplus)

    def names(self) -> list[_Kept]:
        """Return all names with their values."""
        return list(self._kept.values())

    def drop(self, names: Iterable[str]) -> None:
        """Drop the values of these sessions and users."""
        with _guard:
            for name in names:
                self._kept.pop(name, None)

    def clear(self) -> None:
        """Drop all values."""
        with _guard:
            self._kept.clear()


_caches: WeakSet[StoreCache] = WeakSet()


def size_of_caches() -> int:
    """Return the number of messages and facts that all stores of this process keep, and 50 for each name."""
    with _guard:
        return sum(cache.size for cache in _caches)


def _drop_oldest(surplus: int) -> None:
    """Drop the names of all stores that were used longest ago, with so many messages and facts; not the last one."""
    names = chain.from_iterable(cache.names() for cache in _caches)
    for kept in sorted(names, key=lambda kept: kept.last_use)[:-1]:
        if surplus <= 0:
            return
        surplus -= kept.size
        kept.cache.drop([kept.name])
