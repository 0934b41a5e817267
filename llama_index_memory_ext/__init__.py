"""Memory for LlamaIndex agents: what was said before comes back as one condensed message."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

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

# LlamaIndex takes a second or two to start, which the help of the command line need not wait for.
_MODULE_OF = {
    "Backfilled": "facts.backfill",
    "CondensedMemory": "memory.condensed_memory",
    "CondensedMemoryBlock": "record.block",
    "Fact": "fact",
    "FactError": "errors",
    "FactRanker": "search.tfidf",
    "FactReplyError": "errors",
    "LayoutError": "errors",
    "LimitError": "errors",
    "MemoryExtError": "errors",
    "MemoryRetriever": "agents.retriever",
    "MemoryStore": "store",
    "MemoryToolSpec": "agents.tools",
    "MessageError": "errors",
    "RelevantFactsBlock": "facts.block",
    "RoleError": "errors",
    "SplitterError": "errors",
    "StoreError": "errors",
    "TfidfRanker": "search.tfidf",
    "TokenCounter": "text.tokens",
    "TurnError": "errors",
    "extract_conversation_context": "text.messages",
    "format_facts": "facts.ranking",
    "messages_from_json": "formats",
    "messages_to_json": "formats",
    "trim": "text.trim",
}

if not TYPE_CHECKING:  # A type checker would take any name for granted otherwise.

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
