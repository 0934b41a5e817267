"""Derives the limits of a memory from the context window of its model, and checks the settings of its store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_index.core.memory.memory import generate_chat_store_key

from llama_index_memory_ext.errors import LayoutError, LimitError, SettingError, StoreError
from llama_index_memory_ext.memory.template import MemoryBlocksTemplate
from llama_index_memory_ext.models.ask import context_window as window_of
from llama_index_memory_ext.models.prompt_caches import name_of, warn_without_cache_points
from llama_index_memory_ext.reader_block import llm_of_settings
from llama_index_memory_ext.record.text import MIN_ROOM
from llama_index_memory_ext.settings import check_id, shown
from llama_index_memory_ext.store import DEFAULT_TABLE_NAME, MemoryStore

if TYPE_CHECKING:
    from llama_index.core.llms.llm import LLM

    from llama_index_memory_ext.record.window import CachePoints


DEFAULT_TOKEN_LIMIT = 60_000
_CONDENSED_LIMIT, _FACTS_LIMIT = 50_000, 2_000
# What is left of a window is for instructions, tools, the answer, and for the tokens of another tokenizer.
_WINDOW_SHARE = 0.75
# The current turn has a quarter of the limit for itself, or so many tokens.
_TURN_TOKENS = 8_000
# With less, a quarter for the turn and an eighth for the facts leave no room for a record.
_LEAST = 80

_LIMITS = ("context_window", "token_limit", "condensed_token_limit", "facts_token_limit")


def model_window(llm: LLM | None, given: int | None) -> tuple[int | None, str]:
    """Returns the window that is given or that of the model, by default of ``Settings.llm``; and the model's name.

    The window is None and the name "" if they are unknown.
    """
    model = llm_of_settings() if llm is None else llm
    if model is None:
        return given, ""
    return window_of(model) if given is None else given, name_of(model)


def limits_for(
    window: int | None,
    model: str = "",
    token_limit: int | None = None,
    condensed: int | None = None,
    facts: int | None = None,
) -> tuple[int, int, int]:
    """Returns the limits of a memory, of its record and of its facts.

    Those that are None follow from the others and from the window of the model.

    Raises:
        LimitError: Given limits do not fit into the window or into each other.

    Examples:
        >>> limits_for(8_192)
        (6144, 3840, 768)
        >>> limits_for(None)
        (60000, 50000, 2000)
    """
    for name, limit in zip(_LIMITS, (window, token_limit, condensed, facts), strict=True):
        if type(limit) not in {int, type(None)}:
            saw = shown(limit, with_text=True)
            raise LimitError(f"{name} must be a whole number of tokens; saw {saw}. Leave it out for the default.")
    total, source = _total_limit(window, model, token_limit)
    wider = "context_window" if source else "token_limit"
    if total < _LEAST:
        raise LimitError(f"token_limit={total}{source} leaves a record no room: raise {wider}, to {_LEAST} at least.")
    if facts is None:
        facts = min(_FACTS_LIMIT, total // 8)
        # A given limit of the record may leave them less.
        facts = min(facts, total - condensed) if condensed is not None and condensed < total else facts
    record = min(_CONDENSED_LIMIT, total - facts - min(_TURN_TOKENS, total // 4)) if condensed is None else condensed
    if record < MIN_ROOM or facts < 0 or record + facts > total:
        raise LimitError(
            f"The blocks' limits must be at least {MIN_ROOM} (0 for no facts) and fit into token_limit={total}"
            f"{source}; condensed_token_limit={record} and facts_token_limit={facts} make {record + facts}. "
            f"Lower them, or raise {wider}."
        )
    return total, record, facts


def _total_limit(window: int | None, model: str, given: int | None) -> tuple[int, str]:
    """Returns the limit of the memory, and where it comes from if the window has lowered it."""
    whose = f"the context window of {model or 'the model'}, {window} tokens"
    usual = DEFAULT_TOKEN_LIMIT if window is None else min(DEFAULT_TOKEN_LIMIT, int(window * _WINDOW_SHARE))
    if given is None:
        return usual, f" (three quarters of {whose})" if usual < DEFAULT_TOKEN_LIMIT else ""
    if window is not None and given > window:
        raise LimitError(
            f"token_limit={given} does not fit into {whose}: a model refuses such prompts. Leave token_limit "
            f"out, which gives {usual}, or say context_window=... if the model has a larger one."
        )
    return given, ""


def check_cache_points(cache_points: CachePoints, memory_blocks_template: object, llm: LLM | None) -> None:
    """Raises a LayoutError if the template cannot keep cache points; warns if there are none and a model needs them."""
    if not cache_points:
        warn_without_cache_points(llm)
    if cache_points and not isinstance(memory_blocks_template, MemoryBlocksTemplate | None):
        raise LayoutError(
            "cache_points=True needs the record in text blocks of its own, which only MemoryBlocksTemplate keeps; "
            f"memory_blocks_template is a {type(memory_blocks_template).__name__}. Leave one of the two out."
        )


def store_of(chat_store: MemoryStore | None, **place: Any) -> MemoryStore:
    """Returns the store that is given, or a new one at this place; a SettingError for both.

    A StoreError for a store without cursors.
    """
    if chat_store is None:
        return MemoryStore(**place)
    if given := [name for name, value in place.items() if value not in (None, DEFAULT_TABLE_NAME)]:
        raise SettingError(
            f"chat_store has a database and tables of its own; saw {', '.join(given)} beside it. Leave out one of them."
        )
    if not isinstance(chat_store, MemoryStore):
        raise StoreError(
            f"chat_store must be a MemoryStore, which keeps the cursors of the blocks; it is a "
            f"{type(chat_store).__name__}. Use MemoryStore(async_database_uri)."
        )
    return chat_store


def session_of(store: MemoryStore, session_id: str | None) -> str:
    """Returns the name of the session, by default a new one; a SettingError for what is no id.

    A StoreError if the store outlives a session without a name.
    """
    check_id("session_id", session_id)
    if session_id is None and not store.database.in_memory:
        raise StoreError(
            f"{store!r} outlives this process, but without a session_id nobody could find the conversation "
            "again. Give it one: CondensedMemory.from_defaults(session_id=...)."
        )
    return generate_chat_store_key() if session_id is None else session_id
