"""Memory for LlamaIndex agents: the earlier conversation comes back as one condensed message."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from llama_index_memory_ext.errors import EncryptionError as EncryptionError
from llama_index_memory_ext.errors import FactError as FactError
from llama_index_memory_ext.errors import FactReplyError as FactReplyError
from llama_index_memory_ext.errors import LayoutError as LayoutError
from llama_index_memory_ext.errors import LimitError as LimitError
from llama_index_memory_ext.errors import MemoryExtError as MemoryExtError
from llama_index_memory_ext.errors import MessageError as MessageError
from llama_index_memory_ext.errors import SessionOwnerError as SessionOwnerError
from llama_index_memory_ext.errors import SettingError as SettingError
from llama_index_memory_ext.errors import StoreError as StoreError
from llama_index_memory_ext.errors import StoreTimeoutError as StoreTimeoutError
from llama_index_memory_ext.errors import TurnError as TurnError

if TYPE_CHECKING:
    from llama_index_memory_ext.agents.contexts import (
        restore_context as restore_context,
    )
    from llama_index_memory_ext.agents.retriever import (
        MemoryRetriever as MemoryRetriever,
    )
    from llama_index_memory_ext.agents.tools import MemoryToolSpec as MemoryToolSpec
    from llama_index_memory_ext.blocks.facts import FactsOptions as FactsOptions
    from llama_index_memory_ext.blocks.facts import (
        RelevantFactsBlock as RelevantFactsBlock,
    )
    from llama_index_memory_ext.blocks.record import (
        CondensedMemoryBlock as CondensedMemoryBlock,
    )
    from llama_index_memory_ext.blocks.record import (
        CondensedOptions as CondensedOptions,
    )
    from llama_index_memory_ext.checks.secrets import redact_secrets as redact_secrets
    from llama_index_memory_ext.fact import Fact as Fact
    from llama_index_memory_ext.facts.book import FactBook as FactBook
    from llama_index_memory_ext.facts.explanation import format_facts as format_facts
    from llama_index_memory_ext.formats import messages_from_json as messages_from_json
    from llama_index_memory_ext.formats import messages_to_json as messages_to_json
    from llama_index_memory_ext.memory.backfill import Backfilled as Backfilled
    from llama_index_memory_ext.memory.condensed_memory import (
        CondensedMemory as CondensedMemory,
    )
    from llama_index_memory_ext.memory.condensed_memory import (
        MemoryOptions as MemoryOptions,
    )
    from llama_index_memory_ext.memory.preview import PromptPreview as PromptPreview
    from llama_index_memory_ext.memory.preview import preview_prompt as preview_prompt
    from llama_index_memory_ext.memory.template import (
        MemoryBlocksTemplate as MemoryBlocksTemplate,
    )
    from llama_index_memory_ext.models.caching_openai import AnyOpenAI as AnyOpenAI
    from llama_index_memory_ext.models.caching_openai import (
        CachingOpenAI as CachingOpenAI,
    )
    from llama_index_memory_ext.models.caching_openai import (
        CachingOpenAIResponses as CachingOpenAIResponses,
    )
    from llama_index_memory_ext.models.offline import OfflineModel as OfflineModel
    from llama_index_memory_ext.search.tfidf import FactRanker as FactRanker
    from llama_index_memory_ext.search.tfidf import TfidfRanker as TfidfRanker
    from llama_index_memory_ext.store import MemoryStore as MemoryStore
    from llama_index_memory_ext.store import SessionInfo as SessionInfo
    from llama_index_memory_ext.store.tables import display_name as display_name
    from llama_index_memory_ext.text.entries import body_of as body_of
    from llama_index_memory_ext.text.tokens import TokenCounter as TokenCounter
    from llama_index_memory_ext.text.trim import trim as trim
    from llama_index_memory_ext.text.turns import (
        extract_conversation_context as extract_conversation_context,
    )

    __version__: str

# Each name is imported at its first use: LlamaIndex takes a second or two to start, and
# some commands do not need it.
_NAMES = {
    "agents.contexts": ["restore_context"],
    "agents.retriever": ["MemoryRetriever"],
    "agents.tools": ["MemoryToolSpec"],
    "fact": ["Fact"],
    "memory.backfill": ["Backfilled"],
    "blocks.facts": ["FactsOptions", "RelevantFactsBlock"],
    "facts.book": ["FactBook"],
    "facts.explanation": ["format_facts"],
    "formats": ["messages_from_json", "messages_to_json"],
    "checks.secrets": ["redact_secrets"],
    "memory.condensed_memory": ["CondensedMemory", "MemoryOptions"],
    "memory.preview": ["PromptPreview", "preview_prompt"],
    "memory.template": ["MemoryBlocksTemplate"],
    "models.caching_openai": ["AnyOpenAI", "CachingOpenAI", "CachingOpenAIResponses"],
    "models.offline": ["OfflineModel"],
    "blocks.record": ["CondensedMemoryBlock", "CondensedOptions"],
    "search.tfidf": ["FactRanker", "TfidfRanker"],
    "store": ["MemoryStore", "SessionInfo"],
    "store.tables": ["display_name"],
    "text.tokens": ["TokenCounter"],
    "text.trim": ["trim"],
    "text.entries": ["body_of"],
    "text.turns": ["extract_conversation_context"],
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

# The errors are light, and imported already.
_PUBLIC = sorted([*_MODULE_OF, *(name for name in globals() if name.endswith("Error"))])
__all__ = list(_PUBLIC)

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
