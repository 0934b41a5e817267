"""From settings to parts of a memory: limits that follow from the context window, the store, and the blocks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.memory import BaseMemoryBlock
from llama_index.core.memory.memory import generate_chat_store_key

from llama_index_memory_ext.errors import (
    LayoutError,
    LimitError,
    SettingError,
    StoreError,
)
from llama_index_memory_ext.facts.ranking import PROFILE_NAME
from llama_index_memory_ext.memory.template import MemoryBlocksTemplate
from llama_index_memory_ext.models.ask import context_window as window_of
from llama_index_memory_ext.models.ask import (
    llm_of_settings,
    name_of,
    warn_of_server_history,
    warn_without_cache_points,
)
from llama_index_memory_ext.record.text import MIN_ROOM
from llama_index_memory_ext.settings import check_id, describe_value
from llama_index_memory_ext.store import DEFAULT_TABLE_NAME, MemoryStore
from llama_index_memory_ext.text.limits import DEFAULT_TOKEN_LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index.core.llms.llm import LLM
    from pydantic import BaseModel
    from sqlalchemy.ext.asyncio import AsyncEngine

    from llama_index_memory_ext.blocks import LogBlock
    from llama_index_memory_ext.blocks.record import CondensedMemoryBlock
    from llama_index_memory_ext.record.cache_points import CachePoints
    from llama_index_memory_ext.store.address import Address
    from llama_index_memory_ext.store.encryption import EncryptionKey

logger = logging.getLogger(__name__)

_CONDENSED_LIMIT = 50_000
_FACTS_LIMIT = 2_000
# The rest of a window is for instructions, tools and the answer, and covers the
# difference between two tokenizers.
_WINDOW_SHARE = 0.75
# The current turn keeps a quarter of the limit, at most this number of tokens.
_TURN_TOKENS = 8_000
# Below this limit, a quarter for the turn and an eighth for the facts leave no room
# for a record.
_LEAST = 80


class MemoryLimits(NamedTuple):
    """Most tokens of a memory, of its record and of its facts."""

    total: int
    record: int
    facts: int


class StorePlace(NamedTuple):
    """Where a new store keeps its tables; the arguments of a ``MemoryStore``."""

    async_database_uri: Address
    table_name: str
    async_engine: AsyncEngine | None
    db_schema: str | None
    encryption_key: EncryptionKey


def limits_for(
    window: int | None,
    token_limit: int | None = None,
    condensed: int | None = None,
    facts: int | None = None,
    llm: LLM | None = None,
) -> MemoryLimits:
    """Return the limits of a memory.

    A limit that is None follows from the other limits and from the window. A window
    that is None is the window of ``llm`` or of ``Settings.llm``, if the model knows it.

    Raises:
        LimitError: The limits do not fit into the window or into each other.

    Examples:
        >>> limits_for(8_192)
        MemoryLimits(total=6144, record=3840, facts=768)
        >>> limits_for(None)
        MemoryLimits(total=60000, record=50000, facts=2000)
    """
    _check_whole_number("context_window", window)
    _check_whole_number("token_limit", token_limit)
    _check_whole_number("condensed_token_limit", condensed)
    _check_whole_number("facts_token_limit", facts)
    model = llm_of_settings() if llm is None else llm
    if window is None and model is not None:
        window = window_of(model)
    described = _describe_window(window, model)
    total = _total_limit(window, token_limit, described)
    if total < _LEAST:
        raise LimitError(
            f"token_limit={total}{described} leaves no room for a record: it must be at least {_LEAST}, three quarters "
            "of the window. Raise token_limit or context_window."
        )
    if facts is None:
        facts = _facts_limit(total, condensed)
    if condensed is None:
        turn = min(_TURN_TOKENS, total // 4)
        condensed = max(0, min(_CONDENSED_LIMIT, total - facts - turn))
    if condensed < MIN_ROOM or facts < 0 or condensed + facts > total:
        raise LimitError(
            f"The blocks' limits must be at least {MIN_ROOM} (0 for no facts) and fit into token_limit={total}"
            f"{described}; condensed_token_limit={condensed} and facts_token_limit={facts} make "
            f"{condensed + facts}. Lower them, or raise token_limit."
        )
    return MemoryLimits(total, condensed, facts)


def _check_whole_number(name: str, limit: object) -> None:
    if type(limit) not in {int, type(None)}:
        raise LimitError(
            f"{name} must be a whole number of tokens; got {describe_value(limit, with_text=True)}. "
            "Leave it out for the default."
        )


def _describe_window(window: int | None, model: LLM | None) -> str:
    if window is None:
        return ""
    owner = (model and name_of(model)) or "the model"
    return f" (the context window of {owner} has {window} tokens)"


def _total_limit(window: int | None, token_limit: int | None, described: str) -> int:
    default = DEFAULT_TOKEN_LIMIT
    if window is not None:
        default = min(default, int(window * _WINDOW_SHARE))
    if token_limit is None:
        return default
    if window is not None and token_limit > window:
        raise LimitError(
            f"token_limit={token_limit} is too large for the model{described}. Leave token_limit out, which gives "
            f"{default}, or pass context_window=... if the model has a larger window."
        )
    return token_limit


def _facts_limit(total: int, condensed: int | None) -> int:
    limit = min(_FACTS_LIMIT, total // 8)
    if condensed is None or condensed >= total:
        return limit
    return min(limit, total - condensed)


def check_cache_points(
    cache_points: CachePoints, memory_blocks_template: object, llm: LLM | None
) -> None:
    """Raise a LayoutError if the template cannot keep cache points.

    Without cache points, warn if the model needs them.
    """
    if not cache_points:
        warn_without_cache_points(llm)
    elif not isinstance(memory_blocks_template, MemoryBlocksTemplate | None):
        raise LayoutError(
            "cache_points=True needs the record in separate text blocks, which only MemoryBlocksTemplate keeps; "
            f"memory_blocks_template is a {type(memory_blocks_template).__name__}. Leave one of the two out."
        )


def store_for(chat_store: MemoryStore | None, place: StorePlace) -> MemoryStore:
    """Return the store of the program, or a new store at this place.

    Raises:
        SettingError: The program passes both a store and a place.
        StoreError: ``chat_store`` is not a ``MemoryStore``.
    """
    if chat_store is None:
        return MemoryStore(**place._asdict())
    names = [
        name
        for name, value in place._asdict().items()
        if value not in (None, DEFAULT_TABLE_NAME)
    ]
    if names:
        raise SettingError(
            f"chat_store already has a database and tables; got {', '.join(names)} beside it. Leave out one of them."
        )
    if not isinstance(chat_store, MemoryStore):
        raise StoreError(
            f"chat_store must be a MemoryStore, which keeps the cursors of the blocks; got "
            f"{type(chat_store).__name__}. Use MemoryStore(async_database_uri)."
        )
    return chat_store


def session_id_for(session_id: str | None, store: MemoryStore) -> str:
    """Return the name of the session; a new name for None.

    Raises:
        SettingError: ``session_id`` is not an id.
        StoreError: The store outlives the process, and the session has no name.
    """
    check_id("session_id", session_id)
    if session_id is not None:
        return session_id
    if not store.database.in_memory:
        raise StoreError(
            f"{store!r} outlives this process, but without a session_id the program could not find the conversation "
            "again. Pass CondensedMemory.from_defaults(session_id=...)."
        )
    return generate_chat_store_key()


def check_history(chat_history: object) -> None:
    """Raise a SettingError for a text as the history."""
    if isinstance(chat_history, str):
        raise SettingError(
            "The second argument is chat_history, a list of messages; got a str. Pass a user by name: user_id=..."
        )


def warn_of_model(record_block: CondensedMemoryBlock) -> None:
    """Log a warning if a record with summaries has no model, or the server of the model keeps a history."""
    llm = record_block.known_llm()
    if record_block.summarize and llm is None:
        logger.warning(
            "summarize=True has no model, so messages that leave the record are not summarised. Pass llm=..., such "
            'as llm=OpenAI(model="gpt-4o-mini"), or set Settings.llm.'
        )
    warn_of_server_history(llm)


def settings_of(kind: type[BaseModel], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are fields of a class."""
    fields = kind.model_fields
    return {name: value for name, value in settings.items() if name in fields}


def with_further_blocks(
    blocks: list[LogBlock], further_blocks: Any
) -> list[BaseMemoryBlock[Any]]:
    """Return the record and the facts, and behind them the blocks of the program; a SettingError for anything else."""
    further = further_blocks or []
    if not isinstance(further, list | tuple):
        further = [further]
    all_blocks = [*blocks, *further]
    names = {block.name for block in all_blocks if isinstance(block, BaseMemoryBlock)}
    if len(names) < len(all_blocks) or PROFILE_NAME in names:
        seen = [str(getattr(block, "name", describe_value(block))) for block in further]
        raise SettingError(
            "memory_blocks must be a list of LlamaIndex's memory blocks with different names; "
            f"got {', '.join(seen)}. The memory makes {' and '.join(block.name for block in blocks)} itself, and "
            f"{PROFILE_NAME} is the name of the profile: leave them out."
        )
    return all_blocks
