"""Errors, safe output and the database, for the commands; imports no library of the extra."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import llama_index_memory_ext as ext

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

# Control characters except line ends and tabs, lone surrogates, and characters that
# change the direction of text.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

PACKAGE = "llama-index-memory-ext"
# Seconds for an answer of the model.
TIMEOUT = 30.0
# Errors of OpenAI's library and of httpx, which is not imported for them.
_TIMEOUTS = {"APITimeoutError", "TimeoutException"}
_NO_ANSWERS = {"APIConnectionError", "TransportError"}
# The values that an option takes, by the name of the value in its help.
_RIGHT_VALUES = {
    "0..1": "a number from 0 to 1 such as 0.9",
    "CATEGORY": "preference, knowledge, context, behavior, goal or correction",
    "COUNT": "a whole number from 1 on such as 20",
    "DAY": "a day such as 2026-11-20",
    "DAYS": "a number of days above 0 such as 30",
    "FILE": "a file such as chat-17.json",
    "FORMAT": "llama_index or openai, such as --format openai",
    "ORDER": "used, messages or name, such as --sort name",
    "PORT": "a port from 0 to 65535 such as 8000",
    "STATE": "present, past, retired, expired, pending or all",
    "TAG": "a tag of 1 to 100 characters such as diet",
    "TEXT": 'a text such as "Likes tea"',
    "TOKENS": "a whole number of tokens such as 4000",
    "ZONE": "a time zone such as Europe/Paris (on a machine without a zone database: pip install tzdata)",
    "local": "the word local, as in --embed local",
}


class TerminalError(Exception):
    """An error that the user can correct; its text says how."""


class UsageError(TerminalError):
    """A wrong combination of arguments and options.

    ``example``: a right call; "{}" stands for the example in the help of the command.
    """

    def __init__(self, text: str, example: str = "{}") -> None:
        super().__init__(text)
        self.example = example


class ExtraError(UsageError):
    """A command that needs packages of an extra."""


@contextmanager
def needs_extra(extra: str, *libraries: str) -> Iterator[None]:
    """Name the extra to install if the block imports one of these libraries and it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in libraries:
            raise
        raise ExtraError(
            f'This command needs more packages. Install them: pip install "{PACKAGE}[{extra}]"'
        ) from None


def open_store(db: str, **place: Any) -> ext.MemoryStore:
    """Return the store in a SQLite file or at a SQLAlchemy address; it connects at its first use."""
    if "://" not in db:
        file = Path(db).expanduser().absolute()
        if "?" in db:
            raise UsageError(
                "--db must be a SQLAlchemy address, or the name of a file without a question mark."
            )
        if file.is_dir():
            raise UsageError(f"--db must name a file; {file} is a folder.")
        db = f"sqlite+aiosqlite:///{file.as_posix()}"
    # Arguments of a command can be seen by all users of the machine, variables cannot.
    keys = os.environ.get("LLAMA_INDEX_MEMORY_KEY", "").split()
    store = ext.MemoryStore(db, encryption_key=keys or None, **place)
    if store.is_in_memory:
        raise UsageError(
            "a database in memory is gone when the command ends. Pass a file or a server to --db."
        )
    return store


def describe_error(error: BaseException) -> str:
    """Return an error in one line, without keys, passwords and rejected values."""
    text = str(error)
    usage_of_typer = getattr(error, "format_message", None)
    if usage_of_typer is not None:
        return str(usage_of_typer()).replace("Value error, ", "")
    if isinstance(error, (TerminalError, ext.MemoryExtError)):
        return _redacted(text, longest=900)
    if type(error).__module__.partition(".")[0] in ("openai", "httpx"):
        problem = _problem_of_server(error)
        if problem:
            return problem
    elif isinstance(error, ValueError) and hasattr(error, "errors"):
        # The whole text of a pydantic error quotes the value.
        first: Any = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        message = _redacted(first["msg"]).removeprefix("Value error, ").rstrip(".")
        return f"{field}: {message}."
    return f"{type(error).__name__}: {_redacted(text)}".removesuffix(": ")


def explain_usage(error: Exception, arguments: Sequence[str], example: str) -> str:
    """Return a wrong usage in one line, with the values of the option, or the ``example`` of a right call."""
    parameter: Any = getattr(error, "param", None)
    right_values = _RIGHT_VALUES.get(getattr(parameter, "metavar", None) or "")
    if right_values:
        value = _value_in(arguments, parameter.opts)
        if value is not None:
            return (
                f"{parameter.opts[0]} takes {right_values}; got {one_line(value, 80)!r}"
            )
    right_call = getattr(error, "example", "{}").replace("{}", example)
    return f"{describe_error(error).rstrip('.')}. {right_call}"


def _value_in(arguments: Sequence[str], options: Collection[str]) -> str | None:
    """Return the last value that the arguments give to one of the options; None without such a value."""
    value = None
    for i, argument in enumerate(arguments):
        name, equals, attached = argument.partition("=")
        if name in options:
            value = attached if equals else "".join(arguments[i + 1 : i + 2])
    return value


def _problem_of_server(error: BaseException) -> str:
    """Return the failure of the model's server; "" if the error is of another kind."""
    host = model_host()
    status = getattr(error, "status_code", None)
    if status is not None:
        message: object = error
        body = getattr(error, "body", None)
        if isinstance(body, dict):
            message = body.get("message")
        return f"{host} answers with status {status}: {_redacted(str(message))}"
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & _TIMEOUTS:
        return f"{host} has not answered in time. OPENAI_TIMEOUT gives it more seconds."
    if kinds & _NO_ANSWERS:
        return f"there is no connection to {host}."
    return ""


def model_host() -> str:
    """Return the host of the model's API, without a user name or a password from its address."""
    address = urlsplit(os.environ.get("OPENAI_API_BASE") or "https://api.openai.com")
    return address.netloc.rpartition("@")[2] or "the address in OPENAI_API_BASE"


def plain(text: str) -> str:
    r"""Return the text with each character that could control a terminal replaced by a visible one.

    >>> plain("\x1b[31mred")
    '␛[31mred'
    """

    def picture(match: re.Match[str]) -> str:
        character = match[0]
        if character < " ":
            return chr(0x2400 + ord(character))
        return "\u2421" if character == "\x7f" else "\ufffd"

    return _UNSAFE.sub(picture, text)


def one_line(text: str, longest: int = 500) -> str:
    """Return the text safe to print, on one line of at most ``longest`` characters."""
    line = plain(" ".join(text.split()))
    if len(line) <= longest:
        return line
    return f"{line[: longest - 3]}..."


def pluralize(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 fact``, ``2 facts``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _redacted(text: str, longest: int = 300) -> str:
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if key:
        text = text.replace(key, "[key]")
    return one_line(text, longest)
