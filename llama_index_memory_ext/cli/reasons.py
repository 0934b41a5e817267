"""Says what has failed, and how many there are of something, to a person at a terminal; no key or password is told."""

from __future__ import annotations

import os
import sys
from typing import Any
from urllib.parse import urlsplit

from llama_index_memory_ext.errors import MemoryExtError

_LONGEST = 300


class TerminalError(Exception):
    """Something that the person at the terminal can put right; the text says what."""


def reason_of(error: BaseException) -> str:
    """What has failed, in one line of a sentence or two."""
    if isinstance(error, (TerminalError, MemoryExtError)):
        return _one_line(str(error), longest=3 * _LONGEST)
    reason = _of_server(error) or _of_values(error) or _of_database(error)
    said = _one_line(str(error))
    return reason or (f"{type(error).__name__}: {said}" if said else type(error).__name__)


def model_host() -> str:
    """The server that is asked for answers, without a name or a password that may stand in its address."""
    address = urlsplit(os.environ.get("OPENAI_API_BASE") or "https://api.openai.com")
    return address.netloc.rpartition("@")[2] or "the address in OPENAI_API_BASE"


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "fact"), counted(2, "fact")
    ('1 fact', '2 facts')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _of_server(error: BaseException) -> str | None:
    # Not imported: it takes half a second, and an error of it can only come from where it was imported already.
    openai: Any = sys.modules.get("openai")
    if openai is None:
        return None
    if isinstance(error, openai.APIConnectionError):
        return f"there is no connection to {model_host()}."
    if isinstance(error, openai.AuthenticationError):
        return f"{model_host()} refuses the key in OPENAI_API_KEY."
    if isinstance(error, openai.APIStatusError):
        said = error.body.get("message") if isinstance(error.body, dict) else error.message
        return f"{model_host()} answers with status {error.status_code}: {_one_line(str(said))}"
    return None


def _of_values(error: BaseException) -> str | None:
    """Of pydantic's error only what was expected: the whole text quotes the value."""
    errors = getattr(error, "errors", None)
    if not isinstance(error, ValueError) or not callable(errors):
        return None
    first: Any = errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    said = _one_line(first["msg"]).removeprefix("Value error, ").rstrip(".")
    return f"{field or type(error).__name__}: {said}."


def _of_database(error: BaseException) -> str | None:
    cause = getattr(error, "orig", None)
    return None if cause is None else f"the database cannot be used: {_one_line(str(cause)).rstrip('.')}."


def _one_line(text: str, longest: int = _LONGEST) -> str:
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    return " ".join((text.replace(key, "[key]") if key else text).split())[:longest]
