"""Shows `help`, `inspect` and the pages which arguments a function takes."""

from __future__ import annotations

import inspect
import re
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

F = TypeVar("F", bound="Callable[..., Any]")

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
# The line of a docstring in whose place the options are shown.
_PLACE = re.compile(r"^( +)\w+: Each of the following, by name\.$", re.MULTILINE)


def unpacked(options: Any, *models: type[BaseModel], with_defaults: bool = True) -> Callable[[F], F]:
    """Shows ``**options: Unpack[...]`` of a function as arguments, with the descriptions of fields of the ``models``.

    In its docstring they stand where it says "options: Each of the following, by name." An ``options`` is a TypedDict.
    A default that is made anew each time is shown as ``...``, and so is each without ``with_defaults``.
    """
    fields = {name: _field(name, models) for name in options.__annotations__}

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        named = [one for one in signature.parameters.values() if one.kind != one.VAR_KEYWORD]
        for name, hint in options.__annotations__.items():
            # A field without a default has an object of pydantic's in its place.
            has_default = with_defaults and fields[name].default_factory is None and not fields[name].is_required()
            default = fields[name].default if has_default else ...
            shown: Any = getattr(hint, "__forward_arg__", hint)
            named.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=shown))
        vars(function)["__signature__"] = signature.replace(parameters=named)
        if function.__doc__:
            function.__doc__ = _PLACE.sub(lambda place: "\n".join(_lines(fields, place[1])), function.__doc__)
        return function

    return decorate


def without_second(function: Callable[..., Any]) -> inspect.Signature:
    """Returns the signature of a method without the argument behind ``self``."""
    signature = inspect.signature(function)
    first, _, *others = signature.parameters.values()
    return signature.replace(parameters=[first, *others])


def about(field: FieldInfo) -> str:
    """Returns what a field is for, and its range; "" if it does not say."""
    bounds = (
        f"{words} {getattr(one, name)}"
        for one in field.metadata
        for name, words in _BOUNDS.items()
        if hasattr(one, name)
    )
    found = ", ".join(bounds)
    return " ".join(filter(None, [field.description, f"{found.capitalize()}." if found else ""]))


def _field(name: str, models: tuple[type[BaseModel], ...]) -> FieldInfo:
    return next(model.model_fields[name] for model in models if name in model.model_fields)


def _lines(fields: dict[str, FieldInfo], indent: str) -> Iterator[str]:
    for name, field in fields.items():
        yield from wrap(f"{name}: {about(field)}", 120, initial_indent=indent, subsequent_indent=f"{indent}    ")
