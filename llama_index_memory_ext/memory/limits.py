"""Derives the token limits of a memory from the context window of its model."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index_memory_ext.asking.window import context_window as window_of
from llama_index_memory_ext.errors import LimitError
from llama_index_memory_ext.log_block import llm_of_settings
from llama_index_memory_ext.memory.prompt_caches import name_of
from llama_index_memory_ext.record.block import MIN_ROOM, check_room
from llama_index_memory_ext.text.tokens import is_openai_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index.core.llms.llm import LLM

logger = logging.getLogger(__name__)

DEFAULT_TOKEN_LIMIT = 60_000
_CONDENSED_LIMIT, _FACTS_LIMIT = 50_000, 2_000
# What is left of a window is for instructions, tools, the answer, and for the tokens of another tokenizer.
_WINDOW_SHARE = 0.75
# The current turn has a quarter of the limit for itself, or so many tokens.
_TURN_TOKENS = 8_000
# With less, a quarter for the turn and an eighth for the facts leave no room for a record.
_LEAST = 80
# 4,000 tokens of o200k_base were 4,531 of SmolLM2's.
_OTHER_TOKENIZER = 1.13

_warned: set[str] = set()


class ModelWindow(NamedTuple):
    """Most tokens of a model's prompt and answer together, None if unknown, and the model's name, "" if unknown."""

    tokens: int | None = None
    model: str = ""

    def __str__(self) -> str:
        return f"the context window of {self.model or 'the model'}, {self.tokens} tokens"


class TokenLimits(NamedTuple):
    """The limits of a memory, of its record and of its facts; ``source`` says where the first one comes from."""

    token_limit: int
    condensed: int
    facts: int
    source: str = ""


def model_window(llm: LLM | None, given: int | None) -> ModelWindow:
    """Returns the window that is given, else that of the model, by default of ``Settings.llm`` if one is set."""
    model = llm_of_settings() if llm is None else llm
    if model is None:
        return ModelWindow(given)
    return ModelWindow(window_of(model) if given is None else given, name_of(model))


def limits_for(
    window: ModelWindow, token_limit: int | None = None, condensed: int | None = None, facts: int | None = None
) -> TokenLimits:
    """Returns limits in which those that are None follow from the others and from the window.

    Raises:
        LimitError: Given limits do not fit into the window or into each other.

    Examples:
        >>> limits_for(ModelWindow(8_192))[:3]
        (6144, 3840, 768)
        >>> limits_for(ModelWindow())[:3]
        (60000, 50000, 2000)
    """
    total, source = _token_limit(window, token_limit)
    if total < _LEAST:
        wider = "context_window" if source else "it"
        raise LimitError(f"token_limit={total}{source} leaves a record no room: raise {wider}, to {_LEAST} at least.")
    if facts is None:
        facts = _facts_limit(total, condensed)
    if condensed is None:
        condensed = min(_CONDENSED_LIMIT, total - facts - min(_TURN_TOKENS, total // 4))
    if condensed < MIN_ROOM or facts < 0 or condensed + facts > total:
        raise LimitError(
            f"The blocks' limits must be at least {MIN_ROOM} (0 for no facts) and fit into token_limit={total}"
            f"{source}; condensed_token_limit={condensed} and facts_token_limit={facts} make {condensed + facts}. "
            f"Lower them, or raise {'context_window' if source else 'token_limit'}."
        )
    return TokenLimits(total, condensed, facts, source)


def _token_limit(window: ModelWindow, given: int | None) -> tuple[int, str]:
    """Returns the limit of the memory, and where it comes from if that is the window."""
    size = window.tokens
    most = DEFAULT_TOKEN_LIMIT if size is None else min(DEFAULT_TOKEN_LIMIT, int(size * _WINDOW_SHARE))
    if given is None:
        return most, f" (three quarters of {window})" if most < DEFAULT_TOKEN_LIMIT else ""
    if size is not None and given > size:
        raise LimitError(
            f"token_limit={given} does not fit into {window}: a model refuses such prompts. Leave token_limit "
            f"out, which gives {most}, or say context_window=... if the model has a larger one."
        )
    return given, ""


def _facts_limit(total: int, condensed: int | None) -> int:
    """Returns the limit of the facts; a given one of the record may leave them less."""
    usual = min(_FACTS_LIMIT, total // 8)
    return min(usual, total - condensed) if condensed is not None and condensed < total else usual


def checked_limits(
    window: ModelWindow,
    asked: tuple[int | None, int | None, int | None],
    options: Mapping[str, Any],
    *,
    counts_exactly: bool,
) -> TokenLimits:
    """Returns the limits for those that were asked for, as ``limits_for``, if the ``options`` of the record have room.

    A token limit that another tokenizer may carry over the window is logged, unless ours ``counts_exactly``.
    """
    limits, (token_limit, condensed, _) = limits_for(window, *asked), asked
    if condensed is None:
        # Options of a wrong type are the block's to refuse.
        numbers = {name: value for name, value in options.items() if isinstance(value, int)}
        check_room(limits.condensed, numbers, f", which follow from token_limit={limits.token_limit}{limits.source}")
    if token_limit is not None and not counts_exactly:
        _warn_if_close(window, token_limit)
    return limits


def _warn_if_close(window: ModelWindow, token_limit: int) -> None:
    """Log, once for each model, that its prompts may be longer than we count."""
    name, safe = window.model, int((window.tokens or token_limit * 2) / _OTHER_TOKENIZER)
    if token_limit <= safe or not name or name in _warned or is_openai_model(name):
        return
    _warned.add(name)
    logger.warning(
        "token_limit=%d is counted by OpenAI's tokenizer, and %s may have 13 %% more tokens, which do not fit into its "
        "context window of %d tokens. Take at most %d, or pass the model's own tokenizer as tokenizer_fn.",
        token_limit,
        name,
        window.tokens,
        safe,
    )
