"""The errors of this package: one base class, and each says what was expected, what was seen and what to do."""

from __future__ import annotations


class MemoryExtError(Exception):
    """Base of every error that this package raises on purpose."""


class LimitError(MemoryExtError, ValueError):
    """Token limits that contradict each other, or that leave no room for a block."""


class StoreError(MemoryExtError, ValueError):
    """A database, a store or a session id that cannot keep the conversation."""


class MessageError(MemoryExtError, TypeError):
    """Something that is not a LlamaIndex ``ChatMessage``, or cannot be read as one, was handed over."""


class LayoutError(MemoryExtError, ValueError):
    """The name of a layout in which messages cannot be written."""


class RoleError(MemoryExtError, ValueError):
    """The name of a message role that LlamaIndex does not have."""


class SplitterError(MemoryExtError, ValueError):
    """Something that cannot split a text was given as a text splitter."""


class FactError(MemoryExtError, ValueError):
    """A fact that does not exist, or something to import that is none."""


class TurnError(MemoryExtError):
    """A turn was opened inside itself and would wait for its own end for ever."""


class FactReplyError(MemoryExtError, ValueError):
    """A model's answer in which no facts could be read. ``reply`` is what it said.

    The words of the answer are in ``reply`` alone, never in the message, which may end up in a log.
    """

    def __init__(self, reply: str) -> None:
        super().__init__(
            'Expected a JSON object such as {"new_facts": [], "confirmed": [], "retired": []}, or an empty answer '
            f"for nothing new; saw {len(reply)} characters in which there is none. `reply` of this error holds them."
        )
        self.reply = reply

    def __reduce__(self) -> tuple[type[FactReplyError], tuple[str]]:
        return FactReplyError, (self.reply,)


class SummaryReplyError(MemoryExtError, ValueError):
    """A model's answer that is no summary. ``reply`` is what it said, ``reason`` why it was not taken.

    The words of the answer are in ``reply`` alone, never in the message, which may end up in a log.
    """

    def __init__(self, reply: str, reason: str) -> None:
        super().__init__(
            f"Expected the text of a summary; saw {len(reply)} characters and did not take them: {reason}. "
            "The summary before stays. `reply` of this error holds the answer."
        )
        self.reply = reply
        self.reason = reason

    def __reduce__(self) -> tuple[type[SummaryReplyError], tuple[str, str]]:
        return SummaryReplyError, (self.reply, self.reason)
