"""Errors and safe output, for the commands; imports no library of the extra."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import llama_index_memory_ext as ext

if TYPE_CHECKING:
    from collections.abc import Iterator

# Control characters except line ends and tabs, lone surrogates, and characters that
# change the direction of text.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
# Characters of a key that is left out of errors.
_SHORTEST_KEY = 8

PACKAGE = "llama-index-memory-ext"


class TerminalError(Exception):
    """An error that the user can correct; its text says how."""


class UsageError(TerminalError):
    """A wrong combination of arguments and options, or a missing extra."""


@contextmanager
def needs_extra(extra: str, *libraries: str) -> Iterator[None]:
    """Name the extra to install if the block imports one of these libraries and it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in libraries:
            raise
        raise UsageError(
            f'This command needs more packages. Install them: pip install "{PACKAGE}[{extra}]"'
        ) from None


def describe_error(error: BaseException) -> str:
    """Return an error in one line, without keys, passwords and rejected values."""
    text = str(error)
    usage_of_typer = getattr(error, "format_message", None)
    if usage_of_typer is not None:
        return str(usage_of_typer())
    if isinstance(error, (TerminalError, ext.MemoryExtError)):
        return _redacted(text, longest=900)
    name = type(error).__name__
    if type(error).__module__.partition(".")[0] in ("openai", "httpx"):
        name = f"{model_host()}: {name}"
    elif isinstance(error, ValueError) and hasattr(error, "errors"):
        # The whole text of a pydantic error quotes the value.
        first: Any = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        message = _redacted(first["msg"]).removeprefix("Value error, ").rstrip(".")
        return f"{field}: {message}."
    return f"{name}: {_redacted(text)}".removesuffix(": ")


def model_host() -> str:
    """Return the host of the model's API, without a user name or a password from its address."""
    address = urlsplit(os.environ.get("OPENAI_API_BASE") or "https://api.openai.com")
    return address.netloc.rpartition("@")[2] or "the address in OPENAI_API_BASE"


def plain(text: str) -> str:
    r"""Return the text with each character that could control a terminal replaced by U+FFFD.

    >>> plain("\x1b[31mred")
    '\ufffd[31mred'
    """
    return _UNSAFE.sub("\ufffd", text)


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
    # A server of one's own gets any word as its key, such as "none".
    if len(key) >= _SHORTEST_KEY:
        text = text.replace(key, "[key]")
    return one_line(text, longest)
