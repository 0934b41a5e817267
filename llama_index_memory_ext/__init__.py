"""Memory for LlamaIndex agents: the earlier conversation comes back as one condensed message."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from llama_index_memory_ext.errors import (
    EncryptionError,
    FactError,
    FactReplyError,
    LayoutError,
    LimitError,
    MemoryExtError,
    MessageError,
    SessionOwnerError,
    SettingError,
    StoreError,
    StoreTimeoutError,
    TurnError,
)

if TYPE_CHECKING:
    from llama_index_memory_ext.agents.contexts import restore_context
    from llama_index_memory_ext.agents.retriever import MemoryRetriever
    from llama_index_memory_ext.agents.tools import MemoryToolSpec
    from llama_index_memory_ext.blocks.facts import FactsOptions, RelevantFactsBlock
    from llama_index_memory_ext.blocks.record import (
        CondensedMemoryBlock,
        CondensedOptions,
    )
    from llama_index_memory_ext.checks.secrets import redact_secrets
    from llama_index_memory_ext.fact import Fact
    from llama_index_memory_ext.facts.book import FactBook
    from llama_index_memory_ext.facts.explanation import format_facts
    from llama_index_memory_ext.formats import messages_from_json, messages_to_json
    from llama_index_memory_ext.memory.backfill import Backfilled
    from llama_index_memory_ext.memory.condensed_memory import (
        CondensedMemory,
        MemoryOptions,
    )
    from llama_index_memory_ext.memory.preview import PromptPreview, preview_prompt
    from llama_index_memory_ext.memory.template import MemoryBlocksTemplate
    from llama_index_memory_ext.models.any_openai import AnyOpenAI
    from llama_index_memory_ext.models.caching_openai import (
        CachingOpenAI,
        CachingOpenAIResponses,
    )
    from llama_index_memory_ext.models.offline import OfflineModel
    from llama_index_memory_ext.search.tfidf import FactRanker, TfidfRanker
    from llama_index_memory_ext.store import MemoryStore, SessionInfo
    from llama_index_memory_ext.store.tables import display_name
    from llama_index_memory_ext.text.entries import body_of
    from llama_index_memory_ext.text.tokens import TokenCounter
    from llama_index_memory_ext.text.trim import trim
    from llama_index_memory_ext.text.turns import extract_conversation_context

    __version__: str

# The errors are light. Each other name is imported at its first use: LlamaIndex takes a
# second or two to start, and some commands do not need it.
_MODULE_OF = {
    "AnyOpenAI": "models.any_openai",
    "Backfilled": "memory.backfill",
    "CachingOpenAI": "models.caching_openai",
    "CachingOpenAIResponses": "models.caching_openai",
    "CondensedMemory": "memory.condensed_memory",
    "CondensedMemoryBlock": "blocks.record",
    "CondensedOptions": "blocks.record",
    "Fact": "fact",
    "FactBook": "facts.book",
    "FactRanker": "search.tfidf",
    "FactsOptions": "blocks.facts",
    "MemoryBlocksTemplate": "memory.template",
    "MemoryOptions": "memory.condensed_memory",
    "MemoryRetriever": "agents.retriever",
    "MemoryStore": "store",
    "MemoryToolSpec": "agents.tools",
    "OfflineModel": "models.offline",
    "PromptPreview": "memory.preview",
    "RelevantFactsBlock": "blocks.facts",
    "SessionInfo": "store",
    "TfidfRanker": "search.tfidf",
    "TokenCounter": "text.tokens",
    "body_of": "text.entries",
    "display_name": "store.tables",
    "extract_conversation_context": "text.turns",
    "format_facts": "facts.explanation",
    "messages_from_json": "formats",
    "messages_to_json": "formats",
    "preview_prompt": "memory.preview",
    "redact_secrets": "checks.secrets",
    "restore_context": "agents.contexts",
    "trim": "text.trim",
}

__all__ = [
    "AnyOpenAI",
    "Backfilled",
    "CachingOpenAI",
    "CachingOpenAIResponses",
    "CondensedMemory",
    "CondensedMemoryBlock",
    "CondensedOptions",
    "EncryptionError",
    "Fact",
    "FactBook",
    "FactError",
    "FactRanker",
    "FactReplyError",
    "FactsOptions",
    "LayoutError",
    "LimitError",
    "MemoryBlocksTemplate",
    "MemoryExtError",
    "MemoryOptions",
    "MemoryRetriever",
    "MemoryStore",
    "MemoryToolSpec",
    "MessageError",
    "OfflineModel",
    "PromptPreview",
    "RelevantFactsBlock",
    "SessionInfo",
    "SessionOwnerError",
    "SettingError",
    "StoreError",
    "StoreTimeoutError",
    "TfidfRanker",
    "TokenCounter",
    "TurnError",
    "body_of",
    "display_name",
    "extract_conversation_context",
    "format_facts",
    "messages_from_json",
    "messages_to_json",
    "preview_prompt",
    "redact_secrets",
    "restore_context",
    "trim",
]

if not TYPE_CHECKING:  # With this function, a type checker would accept any name.

    def __getattr__(name: str) -> object:
        if name == "__version__":
            # Reading the version takes longer than the rest of this import.
            from importlib.metadata import version

            return version("llama-index-memory-ext")
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(f"{__name__}.{_MODULE_OF[name]}")
        value = getattr(module, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
