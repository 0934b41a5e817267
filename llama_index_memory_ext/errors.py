"""Defines the errors of this package, and tells why a model has given no answer, whatever client it was asked with.

Each of our errors says what was expected, what was seen and what to do.
"""

from __future__ import annotations

import asyncio
import copyreg
import re
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from llama_index.core.base.llms.types import ChatResponse


class MemoryExtError(Exception):
    """Base of all errors that this package raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Some are made of other arguments than their text. The answer of a model stays
        # out of a pickle.
        state = {
            name: value for name, value in vars(self).items() if name != "response"
        }
        return copyreg.__newobj__, (type(self), *self.args), state  # type: ignore[attr-defined] # what copyreg uses


class SettingError(MemoryExtError, ValueError, TypeError):
    """A setting that does not exist, is of a wrong type, or is out of its range."""


class LimitError(SettingError):
    """Token limits that are no numbers, contradict each other, or leave no room for a block."""


class StoreError(MemoryExtError, ValueError):
    """A database, a store or a session id that cannot keep the conversation."""


class SessionOwnerError(StoreError):
    """A session that holds words of another user, and was not opened as shared by both."""


class StoreTimeoutError(StoreError):
    """A call of the store that has taken longer than its ``operation_timeout``; ``operation`` names it.

    What it has begun goes on until the database ends it. Of a write it is unknown
    whether it was stored.
    """

    def __init__(self, operation: str, seconds: float, *, writes: bool = True) -> None:
        if writes:
            outcome = " Whether it was stored is unknown: look before you repeat it."
        else:
            outcome = ""
        super().__init__(
            f"The database has not answered within {seconds:g} s ({operation}).{outcome} See whether it is reachable, "
            "overloaded or locked by another program, or give it more time: MemoryStore(operation_timeout=...). With "
            "an engine of your own, a synchronous call (put, get, ...) within a running event loop waits in vain for "
            "what a task of that loop holds: await aput, aget, ... there."
        )
        self.operation = operation
        self.seconds = seconds
        self.writes = writes


class MessageError(MemoryExtError, TypeError):
    """An argument that is no LlamaIndex ``ChatMessage`` and cannot be read as one."""


class LayoutError(MemoryExtError, ValueError):
    """A layout of messages that is unknown, or cannot hold what was asked for."""


class FactError(MemoryExtError, ValueError):
    """A fact that does not exist, or an imported entry that is no fact."""


class TurnError(MemoryExtError):
    """A turn that is opened inside itself and would never begin."""


_FACTS = '{"new_facts": [], "confirmed": [], "retired": []}'


class FactReplyError(MemoryExtError, ValueError):
    """A model's answer in which no facts could be read. Its text is in ``reply``, never in the message of the error.

    ``problem`` is where its JSON cannot be read, "" if there is none. ``response`` is
    the whole answer, with its tokens, or None; a copy or a pickle of the error has
    none.
    """

    response: ChatResponse | None = None

    def __init__(self, reply: str, problem: str = "", *, form: str = _FACTS) -> None:
        super().__init__(
            f"Expected a JSON object such as {form}, or an empty answer for nothing new; saw {len(reply)} characters "
            f"in which there is none{f' ({problem})' if problem else ''}. `reply` of this error holds them."
        )
        self.reply = reply
        self.problem = problem


class TruncatedReplyError(MemoryExtError, ValueError):
    """A model's answer about several turns that has reached the model's limit of tokens; they are asked for apart."""


class VerificationError(MemoryExtError, ValueError):
    """Extracted facts for which the model has given no verdict."""


class NoModelError(MemoryExtError, ValueError):
    """There is no model that could extract facts or summarise."""

    def __init__(self) -> None:
        super().__init__(
            "there is no model: pass llm=... or set Settings.llm; without one, say extract_facts=False, and leave out "
            "summarize"
        )


class SummaryReplyError(MemoryExtError, ValueError):
    """A model's answer that is no summary, for this ``reason``. Its text is in ``reply``, never in the message."""

    def __init__(self, reply: str, reason: str) -> None:
        super().__init__(
            f"Expected the text of a summary; saw {len(reply)} characters and did not take them: {reason}. "
            "The summary before stays. `reply` of this error holds the answer."
        )
        self.reply = reply
        self.reason = reason


# The statuses with which a provider refuses a request for what is in it, and the one
# that names its length.
REQUEST_STATUSES = frozenset({400, 413, 422})
TOO_LARGE = 413
# How it says that it is the words. A request can also be refused for its settings,
# which no other words would change.
_ABOUT_WORDS = re.compile(
    r"(?i)context.{0,20}(?:length|window|size)|content.{0,20}(?:filter|polic|management)|moderation|flagged|safety"
    r"|(?:prompt|input|messages?|string|request)\b.{0,20} too (?:long|large)"
)
# The errors of clients that got no answer: of OpenAI, Anthropic and others, of httpx,
# and of botocore, ...
_NO_ANSWER = frozenset({"APIConnectionError", "TransportError", "HTTPClientError"})
# ... of these, the ones for which it came too late, and the ones for which nobody
# listened.
_TIMEOUTS = frozenset({"APITimeoutError", "TimeoutException", "ReadTimeoutError"})
_NOBODY = frozenset({"ConnectTimeout", "ConnectTimeoutError", "PoolTimeout"})


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status in a provider's error, wherever its client has put it; None if there is none."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        metadata = response.get("ResponseMetadata", {})
    else:
        metadata = {}
    found = [
        getattr(error, "status_code", None),
        getattr(response, "status_code", None),
    ]
    found += [metadata.get("HTTPStatusCode"), getattr(error, "code", None)]
    return next(
        (int(status) for status in found if isinstance(status, int) and status >= 100),
        None,
    )


def is_about_words(error: BaseException) -> bool:
    """Return whether a provider has refused a request for its words: their number, or what they say."""
    status = status_of(error)
    return status == TOO_LARGE or (
        status in REQUEST_STATUSES and _ABOUT_WORDS.search(str(error)) is not None
    )


def is_about_request(error: BaseException) -> bool:
    """Return whether another request, with less in it, might be answered."""
    return status_of(error) in REQUEST_STATUSES or is_timeout(error)


def is_timeout(error: BaseException) -> bool:
    """Return whether an answer did not come in time, though somebody was there: less to read may help."""
    names = _names(error) | (_names(error.__cause__) if error.__cause__ else set())
    in_time = (
        isinstance(error, asyncio.TimeoutError | TimeoutError) or names & _TIMEOUTS
    )
    return bool(in_time and not names & _NOBODY) or status_of(error) in {408, 504}


def is_no_answer(error: BaseException) -> bool:
    """Return whether nobody has answered, or one of our own errors says that nobody could."""
    return isinstance(error, OSError | asyncio.TimeoutError | MemoryExtError) or bool(
        _NO_ANSWER & _names(error)
    )


def _names(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


# What a failure of a model comes from: the words that it was asked about, how long they
# take, the model, or it is not known.
Blame: TypeAlias = Literal["turns", "length", "unknown", "model"]


def blame_of(error: Exception) -> Blame:
    """Return what a failure comes from."""
    if isinstance(
        error, FactReplyError | TruncatedReplyError | VerificationError
    ) or is_about_words(error):
        return "turns"
    if is_timeout(error):
        return "length"
    status = status_of(error)
    # Without a status nobody has answered, or it is an error of the client's own code.
    if status in REQUEST_STATUSES or (status is None and not is_no_answer(error)):
        return "unknown"
    return "model"
