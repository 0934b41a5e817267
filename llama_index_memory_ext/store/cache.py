"""The cache of a store: what its memories have read of sessions and users, within one bound for the process."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from llama_index_memory_ext.background.locks import thread_lock

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

# The most messages and facts, of about 4 kB each, that all stores of a process keep. Each
# session and each user counts as 50 more, and for at most a little more than half of the
# bound: so one longer session is kept beside others.
MOST_KEPT = 50_000
_SIZE_OF_NAME = 50

_guard = thread_lock()
# Numbers the uses of all caches in their order.
_uses = count()


@dataclass
class _Kept:
    """The values of a session or user by their settings, and their sizes.

    ``size``: how much the name counts. ``last_use``: the number of the last use.
    """

    values: dict[Hashable, Any] = field(default_factory=dict)
    sizes: dict[Hashable, int] = field(default_factory=dict)
    size: int = 0
    last_use: int = 0


class StoreCache:
    """The sessions and users that the memories of one store have read. Threads may share it.

    A value belongs to the name of a session or user, and to the settings of the
    memories that share it. The names of all stores that were used last are kept while
    they count at most ``MOST_KEPT`` together.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        with _guard:
            _caches.add(self)

    @property
    def size(self) -> int:
        """How much the names count together."""
        return sum(named.size for named in self._kept.values())

    @property
    def oldest_use(self) -> float:
        """The number of the last use of the name that was used longest ago; infinite if there is none."""
        for values in self._kept.values():
            return values.last_use
        return float("inf")

    def get(self, name: str, settings: Hashable) -> Any:
        """Return the value of a session or user for these settings, which counts as a use; None if there is none."""
        with _guard:
            if name not in self._kept:
                return None
            return self._use(name).values.get(settings)

    def put(self, name: str, settings: Hashable, value: object, size: int = 0) -> None:
        """Set a value that holds ``size`` messages or facts, and drop the names that were used longest ago.

        The name that is put stays, however large it is.
        """
        with _guard:
            self._kept.setdefault(name, _Kept())
            named = self._use(name)
            named.values[settings] = value
            named.sizes[settings] = size
            count = _SIZE_OF_NAME + sum(named.sizes.values())
            named.size = min(count, MOST_KEPT // 2 + 1)
            while size_of_caches() > MOST_KEPT:
                oldest = min(_caches, key=lambda cache: cache.oldest_use)
                oldest.drop_oldest()

    def drop_oldest(self) -> None:
        """Drop the values of the name that was used longest ago."""
        self.drop([next(iter(self._kept))])

    def drop(self, names: Iterable[str]) -> None:
        """Drop the values of these sessions and users."""
        with _guard:
            for name in names:
                self._kept.pop(name, None)

    def clear(self) -> None:
        """Drop all values."""
        with _guard:
            self._kept.clear()

    def _use(self, name: str) -> _Kept:
        self._kept.move_to_end(name)
        named = self._kept[name]
        named.last_use = next(_uses)
        return named


_caches: WeakSet[StoreCache] = WeakSet()


def size_of_caches() -> int:
    """Return how much the names in all stores of this process count."""
    with _guard:
        return sum(cache.size for cache in _caches)
