"""Builds the two blocks of a memory from the settings of both."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeAlias

from llama_index.core.memory import BaseMemoryBlock

from llama_index_memory_ext.errors import LimitError, SettingError
from llama_index_memory_ext.facts.block import RelevantFactsBlock
from llama_index_memory_ext.facts.options import FactsOptions
from llama_index_memory_ext.record.block import CondensedMemoryBlock, CondensedOptions
from llama_index_memory_ext.refusals import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NAMES = [kind.model_fields["name"].default for kind in (CondensedMemoryBlock, RelevantFactsBlock)]
_LIMITS = ("context_window", "token_limit", "condensed_token_limit", "facts_token_limit")
Block: TypeAlias = BaseMemoryBlock[Any]


class MemoryOptions(CondensedOptions, FactsOptions, total=False):
    """The settings of both blocks that ``CondensedMemory.from_defaults`` takes by name.

    ``CondensedMemoryBlock`` and ``RelevantFactsBlock`` document them, and so does ``help`` of that function.
    """

    languages: Sequence[str] | None
    retry_seconds: float


def blocks_for(
    settings: Mapping[str, Any], condensed: int, facts: int, user_id: str, **shared: Any
) -> tuple[CondensedMemoryBlock, RelevantFactsBlock]:
    """Returns the record and the facts with limits of so many tokens; ``shared`` is given to both.

    Raises a SettingError for a setting of a wrong type or range, and what the checks of the record raise.
    """
    of = {
        options: {name: settings[name] for name in settings if name not in other.__annotations__}
        for options, other in ((CondensedOptions, FactsOptions), (FactsOptions, CondensedOptions))
    }
    record = CondensedMemoryBlock(token_limit=condensed, **of[CondensedOptions], **shared)
    return record, RelevantFactsBlock(token_limit=facts, user_id=user_id, **of[FactsOptions], **shared)


def check_tokens(*limits: object) -> None:
    """Raises a LimitError if the window, or a limit of the memory, its record or its facts, is no whole number."""
    for name, limit in zip(_LIMITS, limits, strict=True):
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise LimitError(
                f"{name} must be a whole number of tokens; saw {shown(limit, with_text=True)}. Leave it out for the "
                "default."
            )


def further_blocks(blocks: Sequence[Block] | None) -> list[Block]:
    """Returns the further blocks of a memory; a SettingError for what is no list of blocks."""
    if blocks is None:
        return []
    wrong = next((one for one in blocks if not isinstance(one, BaseMemoryBlock)), None) if _is_list(blocks) else blocks
    if wrong is not None:
        raise SettingError(
            f"memory_blocks must be a list of LlamaIndex's memory blocks; saw {shown(wrong)}. The record and the facts "
            "are there without it."
        )
    names = [*_NAMES, *(block.name for block in blocks)]
    if len(set(names)) < len(names):
        raise SettingError(
            f"memory_blocks must have a name each, and none that the record or the facts have; saw {', '.join(names)}. "
            "Name them otherwise."
        )
    return list(blocks)


def warn_of_flush_size(size: object) -> None:
    """Warns that ``token_flush_size`` is not used, in the name of whoever calls ``from_defaults``."""
    if size is not None:
        warnings.warn(
            f"token_flush_size={shown(size)} does nothing in a CondensedMemory: whole turns are moved into the record, "
            "as many as are over chat_history_token_ratio. Leave it out.",
            UserWarning,
            stacklevel=3,
        )


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)
