"""Models whose server keeps the conversation: copies that do not use it, and a warning."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index_memory_ext.models.prompt_caches import name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index.core.llms import LLM


logger = logging.getLogger(__name__)

# OpenAI's server puts the conversation that these fields name in front of a request.
_EARLIER = frozenset({"previous_response_id", "conversation"})


class _Copy(NamedTuple):
    """A copy of a model, and the fields that the model had."""

    model: LLM
    fields: dict[str, Any]


# By the ids of the models, because models have no hash.
_copies: dict[int, _Copy] = {}
_warned: set[str] = set()


def without_history(llm: LLM) -> LLM:
    """Return a copy of a model whose requests neither continue earlier ones nor are continued.

    Any other model is returned itself. An agent would see a question about facts in the
    chain of its responses. The tool call of that question has no result, so that the
    server would refuse the agent's next request. The copy is cached.
    """
    options = getattr(llm, "additional_kwargs", None) or {}
    previous = getattr(llm, "_previous_response_id", None)
    if not (_tracks(llm) or previous or _EARLIER & options.keys()):
        return llm
    cached = _copies.get(id(llm))
    if cached and cached.fields == vars(llm):
        return cached.model
    copy = _copy_without_history(llm, options)
    if cached is None:
        weakref.finalize(llm, _copies.pop, id(llm), None)
    _copies[id(llm)] = _Copy(copy, dict(vars(llm)))
    return copy


def _copy_without_history(llm: LLM, options: Mapping[str, Any]) -> LLM:
    plain = {name: value for name, value in options.items() if name not in _EARLIER}
    changes: dict[str, Any] = {"additional_kwargs": plain}
    if _tracks(llm):
        # LlamaIndex makes the server store responses when it tracks them.
        changes |= {"track_previous_responses": False, "store": False}
    copy = llm.model_copy(update=changes)
    if hasattr(copy, "_previous_response_id"):
        copy._previous_response_id = None  # noqa: SLF001 - it is no field
    return copy


def warn_of_server_history(llm: LLM | None) -> None:
    """Log one warning in a process for each model whose server keeps the conversation, too."""
    if llm is None or not _tracks(llm):
        return
    name = name_of(llm)
    if name not in _warned:
        _warned.add(name)
        logger.warning(
            "With track_previous_responses=True the server of %s keeps the conversation, too: each prompt has it "
            "twice, and nothing that a CondensedMemory forgets or deletes is deleted there. Leave "
            "track_previous_responses out.",
            name,
        )


def _tracks(llm: LLM) -> bool:
    """Return whether a model continues its last response, as LlamaIndex's ``OpenAIResponses`` can."""
    return bool(getattr(llm, "track_previous_responses", False))
