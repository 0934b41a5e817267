"""Tells why a model has given no answer, whatever client it was asked with."""

from __future__ import annotations

import asyncio
import re

from llama_index_memory_ext.errors import MemoryExtError

# The statuses with which a provider refuses a request for what is in it, and the one that names its length.
REQUEST_STATUSES, TOO_LARGE = frozenset({400, 413, 422}), 413
# How it says that it is the words. A request can also be refused for its settings, which no other words would change.
_ABOUT_WORDS = re.compile(
    r"(?i)context.{0,20}(?:length|window|size)|content.{0,20}(?:filter|polic|management)|moderation|flagged|safety"
    r"|(?:prompt|input|messages?|string|request)\b.{0,20} too (?:long|large)"
)
# The errors of clients that got no answer: of OpenAI, Anthropic and others, of httpx, and of botocore, ...
_NO_ANSWER = frozenset({"APIConnectionError", "TransportError", "HTTPClientError"})
# ... of these, the ones for which it came too late, and the ones for which nobody listened.
_TIMEOUTS, _NOBODY = (
    frozenset({"APITimeoutError", "TimeoutException", "ReadTimeoutError"}),
    frozenset({"ConnectTimeout", "ConnectTimeoutError", "PoolTimeout"}),
)
_TIMEOUT_STATUSES = frozenset({408, 504})


def status_of(error: BaseException) -> int | None:
    """The HTTP status in a provider's error, wherever its client has put it; None if there is none."""
    response = getattr(error, "response", None)
    metadata = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    found = (
        getattr(error, "status_code", None),
        getattr(response, "status_code", None),
        metadata.get("HTTPStatusCode"),
        getattr(error, "code", None),
    )
    return next((int(status) for status in found if isinstance(status, int) and status >= 100), None)  # noqa: PLR2004 - the lowest


def is_about_words(error: BaseException) -> bool:
    """Whether a provider has refused a request for its words: their number, or what they say."""
    status = status_of(error)
    return status == TOO_LARGE or (status in REQUEST_STATUSES and _ABOUT_WORDS.search(str(error)) is not None)


def is_about_request(error: BaseException) -> bool:
    """Whether another request, with less in it, might be answered."""
    return status_of(error) in REQUEST_STATUSES or is_timeout(error)


def is_timeout(error: BaseException) -> bool:
    """Whether an answer did not come in time, though somebody was there: less to read may help."""
    names = _names(error) | (_names(error.__cause__) if error.__cause__ else set())
    in_time = isinstance(error, asyncio.TimeoutError | TimeoutError) or names & _TIMEOUTS
    return bool(in_time and not names & _NOBODY) or status_of(error) in _TIMEOUT_STATUSES


def is_no_answer(error: BaseException) -> bool:
    """Whether nobody has answered, or one of our own errors says that nobody could."""
    return isinstance(error, OSError | asyncio.TimeoutError | MemoryExtError) or bool(_NO_ANSWER & _names(error))


def _names(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}
