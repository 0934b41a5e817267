"""Settings: checks of their values, and signatures that list them."""

from __future__ import annotations

import inspect
import re
from datetime import tzinfo
from difflib import get_close_matches
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    StrictBool,
    ValidationError,
)
from pydantic_core import ErrorDetails, PydanticUndefined

from llama_index_memory_ext.errors import LimitError, MemoryExtError, SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from pydantic.fields import FieldInfo


# A boolean field that refuses "yes" and 1.
Switch: TypeAlias = StrictBool
F = TypeVar("F", bound="Callable[..., Any]")

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
# The line of a docstring that the options replace.
_OPTIONS_LINE = re.compile(r"^( +)\w+: Each of the following, by name\.$", re.MULTILINE)


def optional(description: str) -> Any:
    """Return a field of a model that is None unless it is set."""
    return Field(default=None, description=description)


def unpacked(
    options: Any, *models: type[BaseModel], with_defaults: bool = True
) -> Callable[[F], F]:
    """Show ``**options: Unpack[...]`` of a function as arguments, with the descriptions of fields of the ``models``.

    In the docstring, the arguments replace the line "options: Each of the following, by
    name." ``options`` is a TypedDict. The default is shown as ``...`` if a factory makes
    it, and always without ``with_defaults``.
    """
    all_fields: dict[str, FieldInfo] = {}
    for model in reversed(models):
        all_fields |= model.model_fields
    fields = {name: all_fields[name] for name in options.__annotations__}

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        parameters = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind != parameter.VAR_KEYWORD
        ]
        for name, hint in options.__annotations__.items():
            default = fields[name].default
            if not with_defaults or default is PydanticUndefined:
                default = ...
            parameters.append(
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=getattr(hint, "__forward_arg__", hint),
                )
            )
        vars(function)["__signature__"] = signature.replace(parameters=parameters)

        def describe_fields(line: re.Match[str]) -> str:
            lines = []
            for name, field in fields.items():
                lines += wrap(
                    f"{name}: {about(field)}",
                    120,
                    initial_indent=line[1],
                    subsequent_indent=f"{line[1]}    ",
                )
            return "\n".join(lines)

        function.__doc__ = _OPTIONS_LINE.sub(describe_fields, function.__doc__ or "")
        return function

    return decorate


def about(field: FieldInfo) -> str:
    """Return the description and the range of a field; "" if it has neither."""
    sentences = [field.description] if field.description else []
    bounds = []
    for constraint in field.metadata:
        for name, words in _BOUNDS.items():
            if hasattr(constraint, name):
                bounds.append(f"{words} {getattr(constraint, name)}")
    if bounds:
        sentences.append(f"{', '.join(bounds).capitalize()}.")
    return " ".join(sentences)


T = TypeVar("T")

# The types of errors for a text in place of a number or a choice, which is no secret.
_ERRORS_WITHOUT_SECRETS = ("int_", "float_", "bool_", "enum", "literal_")
_MOST_CHARACTERS = 20


def build_checked(
    kind: type[BaseModel],
    make: Callable[..., T],
    raised: type[MemoryExtError] = SettingError,
    /,
    **values: Any,
) -> T:
    """Return ``make(**values)``, an object of a ``kind`` with these fields.

    Errors of pydantic quote the input. In their place, raise the error of this package
    that a validator has raised, or an error of the type ``raised``.
    """
    try:
        return make(**values)
    except ValidationError as error:
        refusal = _refusal(error, kind, raised)
    # Raised outside the except block, so that the error has no context.
    raise refusal.with_traceback(None)


def check_names(names: Iterable[str], known_names: Collection[str], owner: str) -> None:
    """Raise a SettingError for the first of the ``names`` that the ``owner`` does not take."""
    unknown_names = sorted(set(names) - set(known_names))
    if unknown_names:
        raise _unknown(unknown_names[0], known_names, owner, SettingError)


def check_id(name: str, value: object) -> None:
    """Raise a SettingError for a value that cannot be the id of a user, a session or an agent; None is allowed.

    With empty ids, all users without an id would be one user. With blanks around them,
    ids that look alike would be two users.
    """
    if value is None:
        return
    if not isinstance(value, str) or not value or not _is_plain(value):
        remedy = "Data under such an id can be deleted: MemoryStore.forget_user."
        if not isinstance(value, str):
            remedy = f"Pass a str, such as str({name})."
        raise SettingError(
            f"{name} must be a str that is not empty, without spaces around it or lone surrogates; got "
            f"{describe_value(value, with_text=True)}. {remedy}"
        )


def check_text(name: str, value: object) -> None:
    """Raise a SettingError for a value that is not a str."""
    if not isinstance(value, str):
        raise SettingError(
            f"{name} must be a str; got {describe_value(value)}. Pass the text itself."
        )


def check_count(
    name: str, value: object, raised: type[SettingError] = SettingError
) -> None:
    """Raise an error for a value that is not a whole number of at least 1."""
    # True is an int, too.
    if type(value) is not int or value < 1:
        raise raised(
            f"{name} must be a whole number of at least 1; got {describe_value(value, with_text=True)}. "
            "Pass another number, or leave it out."
        )


def check_limit(name: str, value: object) -> None:
    """Raise a LimitError for a limit that is neither None nor a whole number of at least 1."""
    if value is not None:
        check_count(name, value, LimitError)


def _is_plain(text: str) -> bool:
    """Return whether a text has no blanks around it and no half of a surrogate pair, which no database stores."""
    has_surrogate = any("\ud800" <= character <= "\udfff" for character in text)
    return text == text.strip() and not has_surrogate


def checked_zone(value: Any) -> tzinfo | None:
    """Return the time zone of a name such as "Europe/Paris"; a tzinfo or None as it is.

    Raises:
        SettingError: There is no such time zone.
    """
    if value is None or isinstance(value, tzinfo):
        return value
    try:
        return ZoneInfo(value)
    # A name may also be a folder of the database, or no text.
    except (ZoneInfoNotFoundError, AttributeError, OSError, TypeError, ValueError):
        description = describe_value(value, with_text=True)
    raise SettingError(
        'time_zone must be a name of the IANA database, such as "Europe/Paris", or a tzinfo; '
        f"got {description}. Correct the name, or on a machine without a zone database: pip install tzdata."
    )


# A field with a time zone or its name; None: UTC.
TimeZone: TypeAlias = Annotated[
    Any,
    BeforeValidator(checked_zone),
    PlainSerializer(str, when_used="json-unless-none"),
]


def describe_value(value: object, *, with_text: bool = False) -> str:
    """Return a description of a wrong value: a number as it is, ``with_text`` a short text too, else the type."""
    is_text = with_text and isinstance(value, str) and len(value) <= _MOST_CHARACTERS
    if is_text or isinstance(value, int | float | None):
        return repr(value)
    name = type(value).__name__
    article = "an" if name[0].lower() in "aeiou" else "a"
    return f"{article} {name}"


def _unknown(
    name: str, known_names: Collection[str], owner: str, raised: type[MemoryExtError]
) -> MemoryExtError:
    hint = f"Its settings are {', '.join(sorted(known_names))}."
    close = get_close_matches(name, known_names, n=1)
    if close:
        hint = f"Did you mean {close[0]!r}?"
    return raised(f"{owner} has no argument {name!r}. {hint}")


def _refusal(
    error: ValidationError, kind: type[BaseModel], raised: type[MemoryExtError]
) -> MemoryExtError:
    """Return an error for the first problem of a ValidationError, without the input."""
    problems = error.errors(include_url=False)
    first = problems[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, MemoryExtError):
        return cause
    name = str(next(iter(first["loc"]), ""))
    if first["type"] == "extra_forbidden":
        return _unknown(name, kind.model_fields, kind.__name__, raised)
    # A union refuses a value once for each of its types.
    problems = [
        problem for problem in problems if problem["loc"][:1] == first["loc"][:1]
    ]
    expected = _expected(problems)
    field = kind.model_fields.get(name)
    if field is None:
        return raised(f"{kind.__name__}: {cause or expected}")
    if isinstance(cause, Exception):
        return raised(f"{name}: {cause}")
    meaning = f'It is: "{about(field)}" ' if about(field) else ""
    return raised(
        f"{name} {expected}; got {_seen(problems)}. {meaning}{_advice(field)}"
    )


def _expected(problems: Sequence[ErrorDetails]) -> str:
    texts = [problem["msg"].partition(", unable to")[0] for problem in problems]
    expected = ", or ".join(dict.fromkeys(texts))
    expected = expected.replace("a valid dictionary or instance", "an instance")
    expected = expected.replace("Input should", "must")
    return expected.replace("Field required", "must be given")


def _seen(problems: Sequence[ErrorDetails]) -> str:
    if problems[0]["type"] == "missing":
        return "nothing"
    types = [problem["type"] for problem in problems]
    has_no_secret = all(kind.startswith(_ERRORS_WITHOUT_SECRETS) for kind in types)
    return describe_value(problems[0]["input"], with_text=has_no_secret)


def _advice(field: FieldInfo) -> str:
    if field.examples:
        return f"Pass {field.examples[0]}."
    if field.default is None or isinstance(field.default, int | float | str):
        return f"Leave it out for {field.default!r}."
    if field.is_required():
        return "Give it such a value."
    return "Give it such a value, or leave it out."
