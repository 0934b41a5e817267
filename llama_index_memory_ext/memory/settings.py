"""Derives the limits of a memory from the context window of its model, and checks the settings of its store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_index.core.memory.memory import generate_chat_store_key

from llama_index_memory_ext.errors import (
    LayoutError,
    LimitError,
    SettingError,
    StoreError,
)
from llama_index_memory_ext.memory.template import MemoryBlocksTemplate
from llama_index_memory_ext.models.ask import context_window as window_of
from llama_index_memory_ext.models.prompt_caches import (
    name_of,
    warn_without_cache_points,
)
from llama_index_memory_ext.reader_block import llm_of_settings
from llama_index_memory_ext.record.text import MIN_ROOM
from llama_index_memory_ext.settings import check_id, shown
from llama_index_memory_ext.store import DEFAULT_TABLE_NAME, MemoryStore

if TYPE_CHECKING:
    from llama_index.core.llms.llm import LLM

    from llama_index_memory_ext.record.window import CachePoints


DEFAULT_TOKEN_LIMIT = 60_000
_CONDENSED_LIMIT = 50_000
_FACTS_LIMIT = 2_000
# What is left of a window is for instructions, tools, the answer, and for the tokens of
# another tokenizer.
_WINDOW_SHARE = 0.75
# The current turn has a quarter of the limit for itself, or so many tokens.
_TURN_TOKENS = 8_000
# With less, a quarter for the turn and an eighth for the facts leave no room for a
# record.
_LEAST = 80


def limits_for(
    window: int | None,
    token_limit: int | None = None,
    condensed: int | None = None,
    facts: int | None = None,
    llm: LLM | None = None,
) -> tuple[int, int, int]:
    """Return the limits of a memory, of its record and of its facts.

    Those that are None follow from the others and from the window, by default that of
    the ``llm`` or of ``Settings.llm``; that may be unknown.

    Raises:
        LimitError: Given limits do not fit into the window or into each other.

    Examples:
        >>> limits_for(8_192)
        (6144, 3840, 768)
        >>> limits_for(None)
        (60000, 50000, 2000)
    """
    asked = {"context_window": window, "token_limit": token_limit}
    for name, limit in {
        **asked,
        "condensed_token_limit": condensed,
        "facts_token_limit": facts,
    }.items():
        if type(limit) not in {int, type(None)}:
            saw = shown(limit, with_text=True)
            raise LimitError(
                f"{name} must be a whole number of tokens; saw {saw}. Leave it out for the default."
            )
    model = llm_of_settings() if llm is None else llm
    if window is None and model is not None:
        window = window_of(model)
    whose = f"the context window of {(model and name_of(model)) or 'the model'}, {window} tokens"
    if window is None:
        total = DEFAULT_TOKEN_LIMIT
    else:
        total = min(DEFAULT_TOKEN_LIMIT, int(window * _WINDOW_SHARE))
    if token_limit is None and total < DEFAULT_TOKEN_LIMIT:
        source = f" (three quarters of {whose})"
    else:
        source = ""
    if token_limit is not None and window is not None and token_limit > window:
        raise LimitError(
            f"token_limit={token_limit} does not fit into {whose}: a model refuses such prompts. Leave token_limit "
            f"out, which gives {total}, or say context_window=... if the model has a larger one."
        )
    if token_limit is None:
        total = total
    else:
        total = token_limit
    if source:
        wider = "context_window"
    else:
        wider = "token_limit"
    if total < _LEAST:
        raise LimitError(
            f"token_limit={total}{source} leaves a record no room: raise {wider}, to {_LEAST} at least."
        )
    if facts is None:
        facts = min(_FACTS_LIMIT, total // 8)
        # A given limit of the record may leave them less.
        if condensed is not None and condensed < total:
            facts = min(facts, total - condensed)
    if condensed is None:
        record = min(_CONDENSED_LIMIT, total - facts - min(_TURN_TOKENS, total // 4))
    else:
        record = condensed
    if record < MIN_ROOM or facts < 0 or record + facts > total:
        raise LimitError(
            f"The blocks' limits must be at least {MIN_ROOM} (0 for no facts) and fit into token_limit={total}"
            f"{source}; condensed_token_limit={record} and facts_token_limit={facts} make {record + facts}. "
            f"Lower them, or raise {wider}."
        )
    return total, record, facts


def check_cache_points(
    cache_points: CachePoints, memory_blocks_template: object, llm: LLM | None
) -> None:
    """Raise a LayoutError if the template cannot keep cache points; warns if there are none and a model needs them."""
    if not cache_points:
        warn_without_cache_points(llm)
    if cache_points and not isinstance(
        memory_blocks_template, MemoryBlocksTemplate | None
    ):
        raise LayoutError(
            "cache_points=True needs the record in text blocks of its own, which only MemoryBlocksTemplate keeps; "
            f"memory_blocks_template is a {type(memory_blocks_template).__name__}. Leave one of the two out."
        )


def place_of(
    chat_store: MemoryStore | None, session_id: str | None, **place: Any
) -> tuple[MemoryStore, str]:
    """Return the store that is given, or a new one at this place; and the name of the session, by default a new one.

    A SettingError for both a store and a place, or for what is no id. A StoreError for
    a store without cursors, or one that outlives a session without a name.
    """
    check_id("session_id", session_id)
    if chat_store is None:
        store = MemoryStore(**place)
    else:
        store = chat_store
    given = [
        name for name, value in place.items() if value not in (None, DEFAULT_TABLE_NAME)
    ]
    if given and chat_store is not None:
        raise SettingError(
            f"chat_store has a database and tables of its own; saw {', '.join(given)} beside it. Leave out one of them."
        )
    if not isinstance(store, MemoryStore):
        raise StoreError(
            f"chat_store must be a MemoryStore, which keeps the cursors of the blocks; it is a "
            f"{type(store).__name__}. Use MemoryStore(async_database_uri)."
        )
    if session_id is None and not store.database.in_memory:
        raise StoreError(
            f"{store!r} outlives this process, but without a session_id nobody could find the conversation "
            "again. Give it one: CondensedMemory.from_defaults(session_id=...)."
        )
    return store, generate_chat_store_key() if session_id is None else session_id
