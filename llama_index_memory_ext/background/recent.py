"""A cache of the last used values, shared by threads."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from llama_index_memory_ext.background.locks import thread_lock

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A cache of the ``size`` most recently used entries. Threads may share it. A copy or a pickle of it is empty."""

    def __init__(self, size: int = 128) -> None:
        self.size = size
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = thread_lock()

    def get(self, key: K) -> V | None:
        """Return the value of a key, which counts as a use; None if there is none."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: K, value: V) -> None:
        """Set the value of a key."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self.size:
                self._entries.popitem(last=False)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __reduce__(self) -> tuple[type[Recent[K, V]], tuple[int]]:
        return type(self), (self.size,)
