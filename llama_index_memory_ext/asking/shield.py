"""Stands for a model in our frames and objects, because a model's own repr shows its key."""

from __future__ import annotations

import threading
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

M = TypeVar("M")


class _Shield:
    """Has the class and the attributes of a model, and shows of it only its class and its name.

    A pickle has None in its place.
    """

    __slots__ = ("__weakref__", "_model")

    def __init__(self, model: object) -> None:
        self._model = model

    @property
    def __class__(self) -> type[Any]:
        return type(self._model)

    @__class__.setter
    def __class__(self, _: type[Any]) -> None:
        raise AttributeError("the class of a model cannot be changed")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __repr__(self) -> str:
        names = (getattr(self._model, name, None) for name in ("model_name", "model"))
        name = next((name for name in names if isinstance(name, str)), "")
        return f"<{type(self._model).__name__}{f' {name}' if name else ''}>"

    def __copy__(self) -> _Shield:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> _Shield:
        return self

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


# One for each model, so that both have one identity. As long as there is one, its model exists.
_shields: WeakValueDictionary[int, _Shield] = WeakValueDictionary()
_guard = threading.Lock()


def shielded(model: M) -> M:
    """Returns what stands for a model: the same object each time, as long as it exists; None for None."""
    if model is None or type(model) is _Shield:
        return model
    with _guard:
        shield = _shields.get(id(model)) or _Shield(model)
        _shields[id(model)] = shield
    return cast("M", shield)


def model_of(model: M) -> M:
    """Returns the model itself; anything else comes back as it is."""
    kind: type[Any] = type(model)
    return cast("Any", model)._model if kind is _Shield else model  # noqa: SLF001 - of this file
