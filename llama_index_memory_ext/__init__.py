"""Memory for LlamaIndex agents: the earlier conversation comes back as one condensed message."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llama_index_memory_ext.agents.retriever import MemoryRetriever
    from llama_index_memory_ext.agents.tools import MemoryToolSpec
    from llama_index_memory_ext.errors import (
        FactError,
        FactReplyError,
        LayoutError,
        LimitError,
        MemoryExtError,
        MessageError,
        RoleError,
        SplitterError,
        StoreError,
        TurnError,
    )
    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.facts.backfill import Backfilled
    from llama_index_memory_ext.facts.block import RelevantFactsBlock
    from llama_index_memory_ext.facts.ranking import format_facts
    from llama_index_memory_ext.formats import messages_from_json, messages_to_json
    from llama_index_memory_ext.memory.condensed_memory import CondensedMemory
    from llama_index_memory_ext.record.block import CondensedMemoryBlock
    from llama_index_memory_ext.search.tfidf import FactRanker, TfidfRanker
    from llama_index_memory_ext.store import MemoryStore
    from llama_index_memory_ext.text.messages import extract_conversation_context
    from llama_index_memory_ext.text.tokens import TokenCounter
    from llama_index_memory_ext.text.trim import trim

__all__ = [
    "Backfilled",
    "CondensedMemory",
    "CondensedMemoryBlock",
    "Fact",
    "FactError",
    "FactRanker",
    "FactReplyError",
    "LayoutError",
    "LimitError",
    "MemoryExtError",
    "MemoryRetriever",
    "MemoryStore",
    "MemoryToolSpec",
    "MessageError",
    "RelevantFactsBlock",
    "RoleError",
    "SplitterError",
    "StoreError",
    "TfidfRanker",
    "TokenCounter",
    "TurnError",
    "extract_conversation_context",
    "format_facts",
    "messages_from_json",
    "messages_to_json",
    "trim",
]

# Each name is imported at its first use: LlamaIndex takes a second or two to start, and some commands do not need it.
_NAMES = {
    "agents.retriever": ["MemoryRetriever"],
    "agents.tools": ["MemoryToolSpec"],
    "errors": [name for name in __all__ if name.endswith("Error")],
    "fact": ["Fact"],
    "facts.backfill": ["Backfilled"],
    "facts.block": ["RelevantFactsBlock"],
    "facts.ranking": ["format_facts"],
    "formats": ["messages_from_json", "messages_to_json"],
    "memory.condensed_memory": ["CondensedMemory"],
    "record.block": ["CondensedMemoryBlock"],
    "search.tfidf": ["FactRanker", "TfidfRanker"],
    "store": ["MemoryStore"],
    "text.messages": ["extract_conversation_context"],
    "text.tokens": ["TokenCounter"],
    "text.trim": ["trim"],
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # With this function, a type checker would accept any name.

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
