"""Describes errors for a terminal, and makes text safe to print there."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import urlsplit

from llama_index_memory_ext.asking.failures import is_timeout, status_of
from llama_index_memory_ext.errors import MemoryExtError

# Control characters except line ends and tabs, lone surrogates, and characters that change the direction of text.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


PACKAGE = "llama-index-memory-ext"
# Seconds that a model has for an answer.
DEFAULT_TIMEOUT, _LONGEST_TIMEOUT = 30.0, 86_400.0


class TerminalError(Exception):
    """An error that the user can correct; the text says how."""


def describe_error(error: BaseException) -> str:
    """Returns what failed, in one line, without keys, passwords and values that were refused."""
    if (usage := getattr(error, "format_message", None)) is not None:
        return str(usage())
    if isinstance(error, (TerminalError, MemoryExtError)):
        return _redacted(str(error), longest=900)
    if (reason := _describe_model_error(error)) is not None:
        return reason
    if isinstance(error, ValueError) and callable(errors := getattr(error, "errors", None)):
        # The whole text of a pydantic error quotes the value.
        first: Any = errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or type(error).__name__
        return f"{field}: {_redacted(first['msg']).removeprefix('Value error, ').rstrip('.')}."
    if (cause := getattr(error, "orig", None)) is not None:
        return f"the database cannot be used: {_redacted(str(cause)).rstrip('.')}."
    return ": ".join(filter(None, [type(error).__name__, _redacted(str(error))]))


def _describe_model_error(error: BaseException) -> str | None:
    # Not imported: it takes half a second, and its errors can only come from where it was imported already.
    openai: Any = sys.modules.get("openai")
    is_clients = type(error).__module__.partition(".")[0] in ("openai", "httpx")
    if openai is not None and is_clients and is_timeout(error) and status_of(error) is None:
        more = "--timeout SECONDS or OPENAI_TIMEOUT gives it more"
        return f"{model_host()} has not answered{_seconds_of(error)}. {more}."
    if openai is None or not isinstance(error, (openai.APIConnectionError, openai.APIStatusError)):
        return None
    if isinstance(error, openai.APIConnectionError):
        return f"there is no connection to {model_host()}."
    if isinstance(error, openai.AuthenticationError):
        return f"{model_host()} refuses the key in OPENAI_API_KEY."
    text = error.body.get("message") if isinstance(error.body, dict) else error.message
    return f"{model_host()} answers with status {error.status_code}: {_redacted(str(text))}"


def _seconds_of(error: BaseException) -> str:
    """Returns how long a request has waited, as far as its client says."""
    limits: Any = getattr(getattr(error, "request", None), "extensions", {}).get("timeout", {})
    seconds = limits.get("read")
    return f" within {_time(seconds)}" if seconds else " in time"


def version_line() -> str:
    """Returns the name and the version of this package."""
    try:
        return f"{PACKAGE} {version(PACKAGE)}"
    except PackageNotFoundError:
        return f"{PACKAGE} (not installed, so its version is not known)"


def check_timeout(value: str | float) -> float:
    """Returns a number of seconds; a TerminalError says which ones can be used."""
    with suppress(ValueError):
        if 0 < float(value) <= _LONGEST_TIMEOUT:
            return float(value)
    expected = f"a number of seconds above 0, at most {_LONGEST_TIMEOUT:g}"
    raise TerminalError(f"the time-out is {expected}, and not {one_line(str(value), 40)!r}.")


def model_host() -> str:
    """Returns the host of the model's API, without a user name or a password from its address."""
    address = urlsplit(os.environ.get("OPENAI_API_BASE") or "https://api.openai.com")
    return address.netloc.rpartition("@")[2] or "the address in OPENAI_API_BASE"


def plain(text: str) -> str:
    r"""Returns the text with each character that could control a terminal replaced by a visible one.

    >>> plain("\x1b[31mred")
    '␛[31mred'
    """
    return _UNSAFE.sub(_picture, text)


def one_line(text: str, longest: int = 500) -> str:
    """Returns the text safe to print, on one line of at most ``longest`` characters."""
    line = plain(" ".join(text.split()))
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def pluralize(number: int, noun: str) -> str:
    """Returns a number with its noun: ``1 fact``, ``2 facts``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _time(seconds: float) -> str:
    """Returns a time in words: ``1 second``, ``0.5 seconds``."""
    return f"{seconds:g} second{'' if seconds == 1 else 's'}"


def _redacted(text: str, longest: int = 300) -> str:
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    return one_line(text.replace(key, "[key]") if key else text, longest)


def _picture(found: re.Match[str]) -> str:
    return chr(0x2400 + ord(found[0])) if found[0] < " " else "\u2421" if found[0] == "\x7f" else "\ufffd"
