"""Checks settings, and shows which of them a function takes."""

from __future__ import annotations

import inspect
import re
from difflib import get_close_matches
from itertools import chain
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pydantic import BaseModel, StrictBool, ValidationError
from pydantic_core import PydanticUndefined

from llama_index_memory_ext.errors import MemoryExtError, SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from pydantic.fields import FieldInfo


# A field that does not take "yes" and 1.
Switch: TypeAlias = StrictBool
F = TypeVar("F", bound="Callable[..., Any]")

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
# The line of a docstring in whose place the options are shown.
_PLACE = re.compile(r"^( +)\w+: Each of the following, by name\.$", re.MULTILINE)


def unpacked(
    options: Any, *models: type[BaseModel], with_defaults: bool = True
) -> Callable[[F], F]:
    """Show ``**options: Unpack[...]`` of a function as arguments, with the descriptions of fields of the ``models``.

    In its docstring they stand where it says "options: Each of the following, by name."
    An ``options`` is a TypedDict. A default that is made anew each time is shown as
    ``...``, and so is each without ``with_defaults``.
    """
    known = {
        name: field
        for model in reversed(models)
        for name, field in model.model_fields.items()
    }
    fields = {name: known[name] for name in options.__annotations__}

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        named = [
            one for one in signature.parameters.values() if one.kind != one.VAR_KEYWORD
        ]
        for name, hint in options.__annotations__.items():
            if with_defaults:
                default = fields[name].default
            else:
                default = PydanticUndefined
            if default is PydanticUndefined:
                default = ...
            shown: Any = getattr(hint, "__forward_arg__", hint)
            named.append(
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=shown,
                )
            )
        vars(function)["__signature__"] = signature.replace(parameters=named)

        def listed(place: re.Match[str]) -> str:
            indents: dict[str, Any] = {
                "initial_indent": place[1],
                "subsequent_indent": f"{place[1]}    ",
            }
            lines = (
                wrap(f"{name}: {about(field)}", 120, **indents)
                for name, field in fields.items()
            )
            return "\n".join(chain(*lines))

        function.__doc__ = _PLACE.sub(listed, function.__doc__ or "")
        return function

    return decorate


def without_second(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a method without the argument behind ``self``."""
    signature = inspect.signature(function)
    first, _, *others = signature.parameters.values()
    return signature.replace(parameters=[first, *others])


def about(field: FieldInfo) -> str:
    """Return what a field is for, and its range; "" if it does not say."""
    marks = [
        (one, name) for one in field.metadata for name in _BOUNDS if hasattr(one, name)
    ]
    found = ", ".join(f"{_BOUNDS[name]} {getattr(one, name)}" for one, name in marks)
    return " ".join(
        filter(None, [field.description, f"{found.capitalize()}." if found else ""])
    )


T = TypeVar("T")

# Where a text stands in place of a number or a choice, it is no secret.
_SHOWN_TEXTS = ("int_", "float_", "bool_", "enum", "literal_")
_MOST = 20


def checked(
    kind: type[BaseModel],
    make: Callable[..., T],
    raised: type[MemoryExtError] = SettingError,
    /,
    **values: Any,
) -> T:
    """Return what ``make`` makes of the values of fields of a ``kind`` of objects.

    Raises errors of this package, such as the one that is ``raised``, in place of
    pydantic's, which quote the input.
    """
    try:
        return make(**values)
    except ValidationError as error:
        refused = _refusal(error, kind, raised)
    # Here, so that it has no context.
    raise refused.with_traceback(None)


def check_names(names: Iterable[str], known: Collection[str], owner: str) -> None:
    """Raise a SettingError for the first of the ``names`` that is not known to the ``owner``."""
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise _unknown(unknown[0], known, owner, SettingError)


def check_id(name: str, value: object) -> None:
    """Raise a SettingError for what cannot be the id of a user, a session or an agent; None, for no id, can.

    All whose id is missing would be one user, and ids that look alike would be two.
    """
    if not (
        value is None or (isinstance(value, str) and value and value == value.strip())
    ):
        raise SettingError(
            f"{name} must be a text, must not be empty, and must have no blanks around it; saw "
            f"{shown(value, with_text=True)}. What was stored under such an id, MemoryStore.forget_user can delete."
        )


def shown(value: object, *, with_text: bool = False) -> str:
    """Return what was seen in place of a setting: a number as it is, a text only if that is said, else the type."""
    if isinstance(value, int | float | None) or (
        with_text and isinstance(value, str) and len(value) <= _MOST
    ):
        return repr(value)
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _unknown(
    name: str, known: Collection[str], owner: str, raised: type[MemoryExtError]
) -> MemoryExtError:
    close = get_close_matches(name, known, n=1)
    if close:
        hint = f"Did you mean {close[0]!r}?"
    else:
        hint = f"Its settings are {', '.join(sorted(known))}."
    return raised(f"{owner} has no argument {name!r}. {hint}")


def _refusal(
    error: ValidationError, kind: type[BaseModel], raised: type[MemoryExtError]
) -> MemoryExtError:
    first, *others = error.errors(include_url=False)
    cause: Any = first.get("ctx", {}).get("error")
    if isinstance(cause, MemoryExtError):
        return cause
    name = str(next(iter(first["loc"]), ""))
    fields = kind.model_fields
    if first["type"] == "extra_forbidden":
        return _unknown(name, fields, kind.__name__, raised)
    # A union refuses a value once for each of its types.
    about_it = [first, *(one for one in others if one["loc"][:1] == first["loc"][:1])]
    said = ", or ".join(
        dict.fromkeys(one["msg"].partition(", unable to")[0] for one in about_it)
    )
    said = said.replace("a valid dictionary or instance", "an instance")
    said = said.replace("Input should", "must").replace(
        "Field required", "must be given"
    )
    if name not in fields or isinstance(cause, Exception):
        return raised(f"{name if name in fields else kind.__name__}: {cause or said}")
    seen = shown(
        first["input"],
        with_text=all(one["type"].startswith(_SHOWN_TEXTS) for one in about_it),
    )
    if first["type"] == "missing":
        seen = "nothing"
    field = fields[name]
    hint = "Give it such a value, or leave it out."
    if field.default is None or isinstance(field.default, int | float | str):
        hint = f"Leave it out for {field.default!r}."
    elif field.is_required():
        hint = "Give it such a value."
    if about(field):
        meaning = f'It is: "{about(field)}" '
    else:
        meaning = ""
    return raised(f"{name} {said}; saw {seen}. {meaning}{hint}")
