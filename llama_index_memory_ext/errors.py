"""The errors of this package, and the cause of a failed request to a model, for the clients of all providers.

Each error of this package names the expected value, the value seen, and the remedy.
"""

from __future__ import annotations

import asyncio
import copyreg
import re
from typing import Any, Literal, TypeAlias


class MemoryExtError(Exception):
    """Base of all errors that this package raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Some constructors take other arguments than the text.
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined] # copyreg uses it


class SettingError(MemoryExtError, ValueError, TypeError):
    """A setting that does not exist, is of a wrong type, or is out of its range."""


class LimitError(SettingError):
    """Token limits that are not numbers, contradict each other, or leave no room for a block."""


class StoreError(MemoryExtError, ValueError):
    """A database, a store or a session id that cannot keep the conversation."""


class EncryptionError(StoreError):
    """A key that is malformed, missing or wrong, so that texts can be neither stored nor read."""


class SessionOwnerError(StoreError):
    """A session that holds words of another user, and is not shared by both users."""


class StoreTimeoutError(StoreError):
    """A call of the store that has taken longer than its ``operation_timeout``; ``operation`` names the call.

    The database continues the call. Whether a write was stored is unknown.
    """

    def __init__(self, operation: str, seconds: float, *, writes: bool = True) -> None:
        outcome = ""
        if writes:
            outcome = " Whether it was stored is unknown: check before you repeat it."
        super().__init__(
            f"The database has not answered within {seconds:g} s ({operation}).{outcome} Check whether it is "
            "reachable, overloaded or locked by another program, or give it more time: "
            "MemoryStore(operation_timeout=...). With your own engine, a synchronous call (put, get, ...) within a "
            "running event loop waits in vain for connections that tasks of that loop hold: await aput or aget there."
        )
        self.operation = operation


class MessageError(MemoryExtError, TypeError):
    """An argument that is not a LlamaIndex ``ChatMessage`` and cannot be read as one."""


class LayoutError(MemoryExtError, ValueError):
    """A template of memory blocks that cannot keep cache points."""


class FactError(MemoryExtError, ValueError):
    """A fact that does not exist, an invalid field, or an imported entry that is not a fact."""


class TurnError(MemoryExtError):
    """A turn inside a turn of the same session, which would wait forever."""


_FACTS = '[{"message": 1, "quote": "..."}]'


class FactReplyError(MemoryExtError, ValueError):
    """A model's answer in which no facts could be read.

    ``reply``: the text of the answer, which the message of the error never quotes.
    ``problem``: the place where the JSON cannot be read; "" for an answer without JSON.
    """

    def __init__(self, reply: str, problem: str = "") -> None:
        detail = f" ({problem})" if problem else ""
        super().__init__(
            f"Expected JSON such as {_FACTS}, or an empty answer for nothing new; got {len(reply)} characters "
            f"in which there is none{detail}. `reply` of this error holds them."
        )
        self.reply = reply
        self.problem = problem


class TruncatedReplyError(MemoryExtError, ValueError):
    """A model's answer about several turns that has reached the model's limit of tokens; each turn is retried alone."""


class NoModelError(MemoryExtError, ValueError):
    """There is no model that could extract facts or summarise."""

    def __init__(self) -> None:
        super().__init__(
            "there is no model: pass llm=... or set Settings.llm; to work without one, pass extract_facts=False and "
            "leave out summarize"
        )


class SummaryReplyError(MemoryExtError, ValueError):
    """A model's answer that is not a summary, for this ``reason``.

    ``reply``: the text of the answer, which the message of the error never quotes.
    """

    def __init__(self, reply: str, reason: str) -> None:
        super().__init__(
            f"Expected the text of a summary; got {len(reply)} characters that were rejected: {reason}. "
            "The last summary stays. `reply` of this error holds the answer."
        )
        self.reply = reply
        self.reason = reason


# The statuses with which a provider refuses a request for its content.
REQUEST_STATUSES = frozenset({400, 413, 422})
TOO_LARGE = 413
# A provider's explanation that the words are the cause. A request can also be refused
# for its settings, and then other words do not help.
_ABOUT_WORDS = re.compile(
    r"(?i)context.{0,20}(?:length|window|size)|content.{0,20}(?:filter|polic|management)|moderation|flagged|safety"
    r"|(?:prompt|input|messages?|string|request)\b.{0,20} too (?:long|large)"
)
# Class names of errors without an answer: of the clients of OpenAI, Anthropic and
# others, of httpx, and of botocore.
_NO_ANSWER = frozenset({"APIConnectionError", "TransportError", "HTTPClientError"})
_TIMEOUTS = frozenset({"APITimeoutError", "TimeoutException", "ReadTimeoutError"})
# Timeouts in which no server accepted the request.
_CONNECT_TIMEOUTS = frozenset({"ConnectTimeout", "ConnectTimeoutError", "PoolTimeout"})
_TIMEOUT_STATUSES = frozenset({408, 504})
_LOWEST_STATUS = 100


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status in the error of a provider's client; None if there is none."""
    response = getattr(error, "response", None)
    candidates = [
        getattr(error, "status_code", None),
        getattr(response, "status_code", None),
    ]
    if isinstance(response, dict):
        metadata = response.get("ResponseMetadata", {})
        candidates.append(metadata.get("HTTPStatusCode"))
    candidates.append(getattr(error, "code", None))
    for status in candidates:
        if isinstance(status, int) and status >= _LOWEST_STATUS:
            return int(status)
    return None


def is_about_words(error: BaseException) -> bool:
    """Return whether a provider has refused a request for its words: their number, or their content."""
    status = status_of(error)
    return status == TOO_LARGE or (
        status in REQUEST_STATUSES and _ABOUT_WORDS.search(str(error)) is not None
    )


def is_about_request(error: BaseException) -> bool:
    """Return whether another request, with less in it, might be answered."""
    return status_of(error) in REQUEST_STATUSES or is_timeout(error)


def is_timeout(error: BaseException) -> bool:
    """Return whether a server accepted the request but did not answer in time: less to read may help."""
    if status_of(error) in _TIMEOUT_STATUSES:
        return True
    names = _names(error) | _names(error.__cause__)
    if names & _CONNECT_TIMEOUTS:
        return False
    is_late = isinstance(error, asyncio.TimeoutError | TimeoutError)
    return is_late or bool(names & _TIMEOUTS)


def is_no_answer(error: BaseException) -> bool:
    """Return whether no server has answered, or an error of this package says that no model could be asked."""
    return isinstance(error, OSError | asyncio.TimeoutError | MemoryExtError) or bool(
        _NO_ANSWER & _names(error)
    )


def _names(error: BaseException | None) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


class WorkError(Exception):
    """The ``error`` of work in the background, with the tokens of the calls that led to it."""

    def __init__(
        self, error: Exception, prompt_tokens: int = 0, completion_tokens: int = 0
    ) -> None:
        super().__init__(type(error).__name__)
        self.error = error
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = completion_tokens


# The cause of a failed request: the words of the turns, their length, the model or its
# server, or unknown.
Blame: TypeAlias = Literal["turns", "length", "unknown", "model"]


def blame_of(error: Exception) -> Blame:
    """Return the cause of a failed request to a model."""
    is_reply = isinstance(error, FactReplyError | TruncatedReplyError)
    if is_reply or is_about_words(error):
        return "turns"
    if is_timeout(error):
        return "length"
    status = status_of(error)
    if status is None:
        # An error of the client's code has no status either.
        return "model" if is_no_answer(error) else "unknown"
    return "unknown" if status in REQUEST_STATUSES else "model"
