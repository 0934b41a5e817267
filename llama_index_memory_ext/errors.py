"""Defines the errors of this package; each says what was expected, what was seen and what to do."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llama_index.core.base.llms.types import ChatResponse


class MemoryExtError(Exception):
    """Base of all errors that this package raises on purpose."""


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

    What it has begun goes on until the database ends it. Of a write it is unknown whether it was stored.
    """

    def __init__(self, operation: str, seconds: float, *, writes: bool = True) -> None:
        outcome = " Whether it was stored is unknown: look before you repeat it." if writes else ""
        super().__init__(
            f"The database has not answered within {seconds:g} s ({operation}).{outcome} See whether it is reachable, "
            "overloaded or locked by another program, or give it more time: MemoryStore(operation_timeout=...). With "
            "an engine of your own, a synchronous call (put, get, ...) within a running event loop waits in vain for "
            "what a task of that loop holds: await aput, aget, ... there."
        )
        self.operation, self.seconds, self.writes = operation, seconds, writes

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(StoreTimeoutError, writes=self.writes), (self.operation, self.seconds)


class MessageError(MemoryExtError, TypeError):
    """An argument that is no LlamaIndex ``ChatMessage`` and cannot be read as one."""


class LayoutError(MemoryExtError, ValueError):
    """A layout of messages that is unknown, or cannot hold what was asked for."""


class RoleError(MemoryExtError, ValueError):
    """The name of an unknown message role."""


class SplitterError(MemoryExtError, ValueError):
    """A text splitter that cannot split a text."""


class FactError(MemoryExtError, ValueError):
    """A fact that does not exist, or an imported entry that is no fact."""


class TurnError(MemoryExtError):
    """A turn that is opened inside itself and would never begin."""


class FactReplyError(MemoryExtError, ValueError):
    """A model's answer in which no facts could be read. Its text is in ``reply``, never in the message of the error.

    ``response`` is the whole answer, with its tokens, or None; a copy or a pickle of the error has none.
    """

    response: ChatResponse | None = None

    def __init__(self, reply: str) -> None:
        super().__init__(
            'Expected a JSON object such as {"new_facts": [], "confirmed": [], "retired": []}, or an empty answer '
            f"for nothing new; saw {len(reply)} characters in which there is none. `reply` of this error holds them."
        )
        self.reply = reply

    def __reduce__(self) -> tuple[type[FactReplyError], tuple[str]]:
        return FactReplyError, (self.reply,)


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

    def __reduce__(self) -> tuple[type[NoModelError], tuple[()]]:
        return NoModelError, ()


class SummaryReplyError(MemoryExtError, ValueError):
    """A model's answer that is no summary, for this ``reason``. Its text is in ``reply``, never in the message."""

    def __init__(self, reply: str, reason: str) -> None:
        super().__init__(
            f"Expected the text of a summary; saw {len(reply)} characters and did not take them: {reason}. "
            "The summary before stays. `reply` of this error holds the answer."
        )
        self.reply = reply
        self.reason = reason

    def __reduce__(self) -> tuple[type[SummaryReplyError], tuple[str, str]]:
        return SummaryReplyError, (self.reply, self.reason)
