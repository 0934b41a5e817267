"""Says in one line which setting was wrong."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from llama_index_memory_ext.errors import MemoryExtError, SettingError
from llama_index_memory_ext.signatures import about

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

    Raised: TypeAlias = type[MemoryExtError]

T = TypeVar("T")

# Where a text stands in place of a number or a choice, it is no secret.
_SHOWN_TEXTS = ("int_", "float_", "bool_", "enum", "literal_")
_MOST = 20


def checked(kind: type[BaseModel], make: Callable[..., T], /, **values: Any) -> T:
    """Returns what ``make`` makes of the values of fields of a ``kind`` of objects.

    Raises errors of this package in place of pydantic's, in whose text the input stands.
    """
    try:
        return make(**values)
    except ValidationError as error:
        refused = refusal(error, kind, SettingError)
    # Here, so that it has no context.
    raise refused.with_traceback(None)


def check_names(names: Iterable[str], known: Collection[str], owner: str) -> None:
    """Raises a SettingError for the first of the ``names`` that is not known to the ``owner``."""
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise _unknown(unknown[0], known, owner, SettingError)


def check_id(name: str, value: object) -> None:
    """Raises a SettingError for what cannot be the id of a user, a session or an agent; None, for no id, can.

    All whose id is missing would be one user, and ids that look alike would be two.
    """
    if not (value is None or (isinstance(value, str) and value and value == value.strip())):
        raise SettingError(
            f"{name} must be a text, must not be empty, and must have no blanks around it; saw "
            f"{shown(value, with_text=True)}. What was stored under such an id, MemoryStore.forget_user can delete."
        )


def shown(value: object, *, with_text: bool = False) -> str:
    """Returns what was seen in place of a setting: a number as it is, a text only if that is said, else the type."""
    # Not by its class: what stands for a model, or for a key in its place, has that of another.
    if type(value) in {type(None), bool, int, float} or (type(value) is str and with_text and len(value) <= _MOST):
        return repr(value)
    name = value.__class__.__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _unknown(name: str, known: Collection[str], owner: str, raised: Raised) -> MemoryExtError:
    close = get_close_matches(name, known, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Its settings are {', '.join(sorted(known))}."
    return raised(f"{owner} has no argument {name!r}. {hint}")


def refusal(error: ValidationError, kind: type[BaseModel], raised: Raised) -> MemoryExtError:
    """Returns the error of this package, such as the one that is ``raised``, in place of pydantic's."""
    details = error.errors(include_url=False)
    first = details[0]
    cause: Any = first.get("ctx", {}).get("error")
    if isinstance(cause, MemoryExtError):
        return cause
    name, fields = str(next(iter(first["loc"]), "")), kind.model_fields
    if first["type"] == "extra_forbidden":
        return _unknown(name, fields, kind.__name__, raised)
    about_it = [one for one in details if one["loc"][:1] == first["loc"][:1]]
    expected = ", or ".join(dict.fromkeys(map(_expected, about_it)))
    seen = shown(first["input"], with_text=all(one["type"].startswith(_SHOWN_TEXTS) for one in about_it))
    if name not in fields or isinstance(cause, Exception):
        return raised(f"{name if name in fields else kind.__name__}: {cause or expected}")
    seen = "nothing" if first["type"] == "missing" else seen
    return raised(f"{name} {expected}; saw {seen}. {_hint(fields[name])}".strip())


def _expected(detail: ErrorDetails) -> str:
    said = detail["msg"].partition(", unable to")[0].replace("a valid dictionary or instance", "an instance")
    return said.replace("Input should", "must").replace("Field required", "must be given")


def _hint(field: FieldInfo) -> str:
    meaning = about(field)
    said = f'It is: "{meaning}" ' if meaning else ""
    is_plain = field.default is None or isinstance(field.default, int | float | str)
    other = "Give it such a value." if field.is_required() else "Give it such a value, or leave it out."
    return said + (f"Leave it out for {field.default!r}." if is_plain else other)
