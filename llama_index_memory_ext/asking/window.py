"""Says how much a model can read, and how much of that is left for the parts of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW

if TYPE_CHECKING:
    from llama_index.core.llms import LLM

# The share of a window that our tokenizer may fill: 4,000 tokens of o200k_base were 4,531 of SmolLM2's.
_FILLED = 0.85


def context_window(llm: LLM) -> int | None:
    """The tokens of a model's window; None if it does not say, or says what LlamaIndex says for those that do not."""
    try:
        window = llm.metadata.context_window
    except Exception:  # noqa: BLE001 - LlamaIndex's classes refuse names that they do not know, each in its way
        return None
    return window if window > 0 and window != DEFAULT_CONTEXT_WINDOW else None


def tokens_left(window: int | None, fixed: int) -> int | None:
    """The tokens of a window that are left beside ``fixed`` ones, by any tokenizer; None for an unknown window.

    >>> tokens_left(8_192, 1_000)
    5963
    """
    return None if window is None else max(int(window * _FILLED) - fixed, 0)
