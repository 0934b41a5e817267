"""Events about memories for LlamaIndex's dispatcher: ids, counts, tokens and seconds; no dump has texts."""

from __future__ import annotations

import inspect
import logging
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.dispatcher import (
    active_instrument_tags,
    instrument_tags,
)
from llama_index_instrumentation.span import active_span_id
from pydantic import ConfigDict, Field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

# A handler of this dispatcher gets these events only; a handler of the root dispatcher
# gets the events of LlamaIndex, too.
dispatcher = get_dispatcher("llama_index_memory_ext")

# Workflows tag each step with its input, the user's text. Of their tags, events keep
# only the id of the run.
_HOSTS_TAGS = "llamaindex."
_RUN_ID = "llamaindex.run_id"
_NO_ARGUMENTS = inspect.signature(lambda: None).bind()


class MemoryEvent(BaseEvent):
    """Base of the events of this package; all fields can be written as JSON.

    ``session_id``: the conversation.
    """

    # Only the events that a handler gets are validated.
    model_config = ConfigDict(defer_build=True)

    session_id: str

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the event."""
        return cls.__name__


class HistoryCondensedEvent(MemoryEvent):
    """Messages have left the record, by a cut or into a summary. They are still in the database.

    ``messages``: the number of messages that have left.
    ``tokens_before``: tokens of the record before, without recalled messages.
    ``tokens_after``: tokens of the record afterwards.
    ``summarised``: whether the messages went into the summary.
    ``summary_tokens``: tokens of the summary in the record; 0 if there is none.
    ``position``: the row of the last message that has left.
    ``seconds``: of the work, the call of the model included.
    ``prompt_tokens``: tokens of the prompts, cached tokens included.
    ``completion_tokens``: tokens of the model's answers.
    """

    messages: int
    tokens_before: int
    tokens_after: int
    summarised: bool
    summary_tokens: int
    position: int
    seconds: float
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why an entry of a model's reply is not stored. ``repr`` leaves out the texts.

    ``reason``: as in ``rejections``.
    ``detail``: a sentence, which may quote the user.
    ``content``: the statement; "" for an entry about a known fact, a secret and a text
    that is too long.
    """

    reason: str
    detail: str = field(repr=False)
    content: str = field(default="", repr=False)


class FactsExtractedEvent(MemoryEvent):
    """Facts were extracted from a part of the conversation, and stored.

    ``user_id``: the owner of the facts; the session's id if it has no user.
    ``agent_id``: the agent that owns the new facts; None: all agents share them.
    ``messages``: the number of messages that were read.
    ``new``, ``confirmed``, ``retired``, ``pending``: ids of facts; pending facts are not
    yet approved.
    ``rejections``: entries of the reply that were not stored, by reason.
    ``not_stored``: those entries with their texts, for a page of the user; no dump has
    them.
    ``seconds``: of the model's calls; 0 if it was not called.
    ``prompt_tokens``: tokens of the prompts, cached tokens included.
    ``completion_tokens``: tokens of the model's answers.
    """

    user_id: str
    agent_id: str | None = None
    messages: int
    new: list[str]
    confirmed: list[str]
    retired: list[str]
    pending: list[str] = Field(default=[])
    rejections: dict[str, int]
    not_stored: tuple[Rejection, ...] = Field(default=(), exclude=True, repr=False)
    seconds: float
    prompt_tokens: int = 0
    completion_tokens: int = 0


class FactsInjectedEvent(MemoryEvent):
    """Facts are shown: sent for each ``aget`` that shows facts, more than once in a turn with tools.

    ``user_id``: the owner of the facts; the session's id if it has no user.
    ``agent_id``: the agent that sees the facts; None: shared facts.
    ``fact_ids``: the facts that are shown, in their order.
    ``known``: the number of active facts, shown or not.
    ``profile_fact_ids``: the facts before the record; they are also in ``fact_ids``.
    ``tokens``: tokens of the facts that are shown.
    ``profile_tokens``: tokens of the facts before the record.
    ``token_limit``: most tokens of the facts.
    ``seconds``: of the work.
    """

    user_id: str
    agent_id: str | None = None
    fact_ids: list[str]
    known: int
    profile_fact_ids: list[str] = Field(default=[])
    tokens: int
    profile_tokens: int = 0
    token_limit: int
    seconds: float


class MessagesRecalledEvent(MemoryEvent):
    """Earlier messages are shown for the question: sent for each ``aget`` that shows recalled messages.

    ``row_ids``: the first row of each message, in their order.
    ``scores``: similarity of each message to the question, 0..1; 1 for the best.
    ``tokens``: tokens of the messages that are shown, with the tags around them.
    ``token_limit``: most tokens of the messages; some questions may use four tenths
    more.
    ``cached``: whether the messages were selected before, for the same question.
    ``seconds``: of the work, reading the record included.
    """

    row_ids: list[int]
    scores: list[float]
    tokens: int
    token_limit: int
    cached: bool
    seconds: float


class JobFailedEvent(MemoryEvent):
    """Work in the background has failed. Nothing is lost, and the work is retried.

    ``error``: the type of the error; its text may quote messages.
    ``failures``: failures in a row, in this process.
    ``retry_seconds``: the pause; None: the next start retries it.
    ``prompt_tokens``, ``completion_tokens``: tokens of the calls that no other event
    counts, as the provider reports them.
    """

    error: str
    failures: int
    retry_seconds: float | None
    prompt_tokens: int = 0
    completion_tokens: int = 0


class ExtractionFailedEvent(JobFailedEvent):
    """Facts were not extracted."""


class SummaryFailedEvent(JobFailedEvent):
    """Messages were not summarised; until they are, the record leaves out messages that do not fit."""


class MemoryFailure(NamedTuple):
    """A failure of work of a memory, for ``on_error``. Nothing is lost by it.

    ``failed``: the work, as "Facts were not extracted".
    ``error``: the type of the error; its text may quote messages.
    ``outcome``: the next step, as "trying again in 2 s".
    ``session_id``: the session; "" if the work was for no single session.
    """

    failed: str
    error: str
    outcome: str
    session_id: str = ""


# The function ``on_error`` of the memory whose call is running, or has started this task.
failure_handler: ContextVar[Callable[[MemoryFailure], object] | None] = ContextVar(
    "failure_handler", default=None
)


def is_handled(failure: MemoryFailure) -> bool:
    """Call ``on_error`` of the memory with a failure; return False without such a function, or if it fails."""
    handler = failure_handler.get()
    if handler is None:
        return False
    try:
        result = handler(failure)
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError  # noqa: TRY301 - logged like each failure of the function
    except Exception as error:  # noqa: BLE001 - a turn must not fail by it
        logger.warning("on_error has failed (%s).", type(error).__name__)
        return False
    return True


def send(event: MemoryEvent) -> None:
    """Send an event; log an error, because a turn must not fail by it.

    The dispatcher ignores errors of handlers, but refuses some tags.
    """
    try:
        with instrument_tags(_tags_without_texts()):
            dispatcher.event(event)
    except Exception as error:  # noqa: BLE001 - a failed event must not cost an answer
        logger.warning(
            "%s was not sent (%s).", event.class_name(), type(error).__name__
        )


@contextmanager
def span(name: str) -> Iterator[None]:
    """Open a span without a parent around work in the background.

    Handlers attach events and calls of models to the open span. The span of the turn
    may be closed already.
    """
    id_ = f"{name}-{uuid4()}"
    token = active_span_id.set(id_)
    dispatcher.span_enter(id_=id_, bound_args=_NO_ARGUMENTS, tags=_tags_without_texts())
    try:
        yield
    finally:
        dispatcher.span_exit(id_=id_, bound_args=_NO_ARGUMENTS)
        active_span_id.reset(token)


def _tags_without_texts() -> dict[str, object]:
    """Return the tags that an event may carry: the program's own, and the id of a workflow's run."""
    tags = active_instrument_tags.get()
    return {
        key: value
        for key, value in tags.items()
        if key == _RUN_ID or not key.startswith(_HOSTS_TAGS)
    }
