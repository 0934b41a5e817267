"""The errors of this package: one base class, and each says what was expected, what was seen and what to do."""


class MemoryExtError(Exception):
    """Base of every error that this package raises on purpose."""


class LimitError(MemoryExtError, ValueError):
    """Token limits that contradict each other, or that leave no room for a block."""


class StoreError(MemoryExtError, ValueError):
    """A database, a store or a session id that cannot keep the conversation."""


class MessageError(MemoryExtError, TypeError):
    """Something that is not a LlamaIndex ``ChatMessage`` was handed to a memory."""


class TurnError(MemoryExtError):
    """A turn was opened inside itself and would wait for its own end for ever."""
