"""The cache of a store: what its memories have read of sessions and users, within one bound for the process."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from llama_index_memory_ext.background.locks import thread_lock

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

# All stores of a process keep at most so many messages and facts, of about 4 kB each,
# unless one session has more. A session or a user alone counts as 50.
MOST_KEPT = 50_000
_SIZE_OF_NAME = 50

_guard = thread_lock()


@dataclass
class _Kept:
    """The values of a session or user by their settings, and the size of each."""

    values: dict[Hashable, Any] = field(default_factory=dict)
    sizes: dict[Hashable, int] = field(default_factory=dict)


class StoreCache:
    """The sessions and users that the memories of one store have read. Threads may share it.

    A value belongs to the name of a session or user, and to the settings of the
    memories that share it. The names of all stores that were used last are kept while
    they have at most ``MOST_KEPT`` messages and facts together.
    """

    # The number of messages and facts that all stores keep, and 50 for each name.
    size: ClassVar[int] = 0
    # By the id of the cache and the name, the name that was used last at the end.
    _kept: ClassVar[OrderedDict[tuple[int, str], _Kept]] = OrderedDict()

    def get(self, name: str, settings: Hashable) -> Any:
        """Return the value of a session or user for these settings, which counts as a use; None if there is none."""
        place = (id(self), name)
        with _guard:
            if place not in self._kept:
                return None
            self._kept.move_to_end(place)
            return self._kept[place].values.get(settings)

    def put(self, name: str, settings: Hashable, value: object, size: int = 0) -> None:
        """Set a value that holds ``size`` messages or facts, and drop the names that were used longest ago.

        The name that is put stays, however large it is.
        """
        place = (id(self), name)
        with _guard:
            if place not in self._kept:
                self._kept[place] = _Kept()
                StoreCache.size += _SIZE_OF_NAME
            self._kept.move_to_end(place)
            kept = self._kept[place]
            StoreCache.size += size - kept.sizes.get(settings, 0)
            kept.values[settings] = value
            kept.sizes[settings] = size
            while self.size > MOST_KEPT and len(self._kept) > 1:
                _drop(next(iter(self._kept)))

    def drop(self, names: Iterable[str]) -> None:
        """Drop the values of these sessions and users."""
        with _guard:
            for name in names:
                _drop((id(self), name))

    def clear(self) -> None:
        """Drop all values."""
        with _guard:
            self.drop([name for owner, name in self._kept if owner == id(self)])

    def __del__(self) -> None:
        self.clear()


def _drop(place: tuple[int, str]) -> None:
    kept = StoreCache._kept.pop(place, None)  # noqa: SLF001
    if kept is not None:
        StoreCache.size -= _SIZE_OF_NAME + sum(kept.sizes.values())
