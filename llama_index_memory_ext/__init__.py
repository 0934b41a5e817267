"""Memory for LlamaIndex agents: what was said before comes back as one condensed message."""

from llama_index_memory_ext.condensed_block import CondensedMemoryBlock
from llama_index_memory_ext.errors import (
    FactError,
    FactReplyError,
    LimitError,
    MemoryExtError,
    MessageError,
    RoleError,
    SplitterError,
    StoreError,
    TurnError,
)
from llama_index_memory_ext.facts import Fact
from llama_index_memory_ext.facts_block import RelevantFactsBlock
from llama_index_memory_ext.preset import CondensedMemory
from llama_index_memory_ext.ranking import FactRanker, TfidfRanker, format_facts
from llama_index_memory_ext.retriever import MemoryRetriever
from llama_index_memory_ext.store import MemoryStore
from llama_index_memory_ext.tokens import TokenCounter
from llama_index_memory_ext.tool_spec import MemoryToolSpec
from llama_index_memory_ext.transcript import extract_conversation_context
from llama_index_memory_ext.trimming import trim

__all__ = [
    "CondensedMemory",
    "CondensedMemoryBlock",
    "Fact",
    "FactError",
    "FactRanker",
    "FactReplyError",
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
    "trim",
]
