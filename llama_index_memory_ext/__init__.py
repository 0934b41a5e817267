"""Memory for LlamaIndex agents: what was said before comes back as one condensed message."""

from llama_index_memory_ext.condensed_block import CondensedMemoryBlock
from llama_index_memory_ext.errors import (
    LimitError,
    MemoryExtError,
    MessageError,
    StoreError,
    TurnError,
)
from llama_index_memory_ext.preset import CondensedMemory
from llama_index_memory_ext.store import MemoryStore
from llama_index_memory_ext.tokens import TokenCounter

__all__ = [
    "CondensedMemory",
    "CondensedMemoryBlock",
    "LimitError",
    "MemoryExtError",
    "MemoryStore",
    "MessageError",
    "StoreError",
    "TokenCounter",
    "TurnError",
]
