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
from llama_index_instrumentation.event_handlers import NullEventHandler
from llama_index_instrumentation.span import active_span_id
from pydantic import Field

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
    """Base of the events of this package; all fields can be written as JSON."""

    session_id: str = Field(description="The conversation.")

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the event."""
        return cls.__name__


class HistoryCondensedEvent(MemoryEvent):
    """Messages have left the record, by a cut or into a summary. They are still in the database."""

    messages: int = Field(description="Messages that have left.")
    tokens_before: int = Field(
        description="Tokens of the record before, without recalled messages."
    )
    tokens_after: int = Field(description="Tokens of the record afterwards.")
    summarised: bool = Field(description="Whether the messages went into the summary.")
    summary_tokens: int = Field(
        description="Tokens of the summary in the record; 0 if there is none."
    )
    position: int = Field(description="The row of the last message that has left.")
    seconds: float = Field(
        description="Seconds of the work, the call of the model included."
    )
    prompt_tokens: int = Field(
        default=0, description="Tokens of the prompts, cached tokens included."
    )
    completion_tokens: int = Field(
        default=0, description="Tokens of the model's answers."
    )


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
    """Facts were extracted from a part of the conversation, and stored."""

    user_id: str = Field(
        description="The owner of the facts; the session's id if it has no user."
    )
    agent_id: str | None = Field(
        default=None,
        description="The agent that owns the new facts; None: all agents share them.",
    )
    messages: int = Field(description="Messages that were read.")
    new: list[str] = Field(description="Ids of the new facts.")
    confirmed: list[str] = Field(description="Ids of the facts that were confirmed.")
    retired: list[str] = Field(description="Ids of the facts that were retired.")
    pending: list[str] = Field(
        default=[], description="Ids of the facts that are not yet approved."
    )
    rejections: dict[str, int] = Field(
        description="Entries of the reply that were not stored, by reason."
    )
    not_stored: tuple[Rejection, ...] = Field(
        default=(),
        exclude=True,
        repr=False,
        description="Those entries with their texts, for a page of the user; no dump has them.",
    )
    seconds: float = Field(
        description="Seconds of the model's calls; 0 if it was not called."
    )
    prompt_tokens: int = Field(
        default=0, description="Tokens of the prompts, cached tokens included."
    )
    completion_tokens: int = Field(
        default=0, description="Tokens of the model's answers."
    )


class FactsInjectedEvent(MemoryEvent):
    """Facts are shown: sent for each ``aget`` that shows facts, more than once in a turn with tools."""

    user_id: str = Field(
        description="The owner of the facts; the session's id if it has no user."
    )
    agent_id: str | None = Field(
        default=None,
        description="The agent that sees the facts; None: shared facts.",
    )
    fact_ids: list[str] = Field(
        description="Ids of the facts that are shown, in their order."
    )
    known: int = Field(description="Active facts, shown or not.")
    profile_fact_ids: list[str] = Field(
        default=[],
        description="Ids of those facts that stand in front of the record.",
    )
    tokens: int = Field(description="Tokens of the facts that are shown.")
    profile_tokens: int = Field(
        default=0, description="Tokens of the facts in front of the record."
    )
    token_limit: int = Field(description="Most tokens of the facts.")
    cached: bool = Field(
        description="Whether the facts were ranked before, for the same question."
    )
    seconds: float = Field(description="Seconds of the work.")


class MessagesRecalledEvent(MemoryEvent):
    """Earlier messages are shown for the question: sent for each ``aget`` that shows recalled messages."""

    row_ids: list[int] = Field(
        description="The first row of each message, in their order."
    )
    scores: list[float] = Field(
        description="Similarity of each message to the question, 0..1; 1 for the best."
    )
    tokens: int = Field(
        description="Tokens of the messages that are shown, with the tags around them."
    )
    token_limit: int = Field(
        description="Most tokens of the messages; some questions may use four tenths more."
    )
    cached: bool = Field(
        description="Whether the messages were selected before, for the same question."
    )
    seconds: float = Field(
        description="Seconds of the work, reading the record included."
    )


class JobFailedEvent(MemoryEvent):
    """Work in the background has failed. Nothing is lost, and it is tried again."""

    error: str = Field(
        description="The type of the error; its text may quote messages."
    )
    failures: int = Field(description="Failures in a row, in this process.")
    retry_seconds: float | None = Field(
        description="The pause; None: the next start tries again."
    )


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
        handler(failure)
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


def has_listeners() -> bool:
    """Return whether there is a handler for events; some events need queries to build them."""
    current = dispatcher
    while all(
        isinstance(handler, NullEventHandler) for handler in current.event_handlers
    ):
        if not current.propagate:
            return False
        current = current.parent
    return True


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
