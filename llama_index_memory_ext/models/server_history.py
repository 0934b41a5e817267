"""Asks a model whose server keeps the conversation as if it kept none."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index_memory_ext.models.prompt_caches import name_of

if TYPE_CHECKING:
    from llama_index.core.llms import LLM


logger = logging.getLogger(__name__)

# By these fields of a request OpenAI's server puts an earlier conversation in front of
# it.
_EARLIER = frozenset({"previous_response_id", "conversation"})


class _Copy(NamedTuple):
    """A copy of a model, and the fields that the model had."""

    model: LLM
    fields: dict[str, Any]


# By the ids of the models, because models have no hash.
_copies: dict[int, _Copy] = {}
_warned: set[str] = set()


def without_history(llm: LLM) -> LLM:
    """Return a copy of a model whose requests neither go on from earlier ones nor are gone on from; it is kept.

    Any other model is returned itself. A question about facts in the chain of an
    agent's responses would be shown to the agent, and its tool call, which has no
    result, makes the server refuse the agent's next request.
    """
    options = getattr(llm, "additional_kwargs", None) or {}
    previous = getattr(llm, "_previous_response_id", None)
    if not (_tracks(llm) or previous or _EARLIER & options.keys()):
        return llm
    kept = _copies.get(id(llm))
    if kept and kept.fields == vars(llm):
        return kept.model
    plain = {name: value for name, value in options.items() if name not in _EARLIER}
    changes: dict[str, Any] = {"additional_kwargs": plain}
    if _tracks(llm):
        # Tracking has switched on that the server stores responses.
        changes |= {"track_previous_responses": False, "store": False}
    copy: Any = llm.model_copy(update=changes)
    if previous:
        copy._previous_response_id = None  # noqa: SLF001 - it is no field
    if kept is None:
        weakref.finalize(llm, _copies.pop, id(llm), None)
    _copies[id(llm)] = _Copy(copy, dict(vars(llm)))
    return _copies[id(llm)].model


def warn_of_server_history(llm: LLM | None) -> None:
    """Log one warning in a process for each model whose server keeps the conversation, too."""
    name = "" if llm is None else name_of(llm)
    if llm is not None and _tracks(llm) and name not in _warned:
        _warned.add(name)
        logger.warning(
            "With track_previous_responses=True the server of %s keeps the conversation, too: each prompt has it "
            "twice, and nothing that a CondensedMemory forgets or deletes is deleted there. Leave "
            "track_previous_responses out.",
            name,
        )


def _tracks(llm: LLM) -> bool:
    """Return whether a model goes on from its last response: it is a switch of LlamaIndex's ``OpenAIResponses``."""
    return bool(getattr(llm, "track_previous_responses", False))
