"""Says what a memory has done, on LlamaIndex's dispatcher: ids, counts, tokens and seconds, never what was said."""

from __future__ import annotations

import inspect
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.dispatcher import active_instrument_tags, instrument_tags
from llama_index_instrumentation.event_handlers import NullEventHandler
from llama_index_instrumentation.span import active_span_id
from pydantic import Field

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

# Whoever wants these events alone adds a handler to the dispatcher of this name; the root's are given them, too.
dispatcher = get_dispatcher("llama_index_memory_ext")

# Workflows tag each step with its input, which is what the user has said; the run's id is all that we need of theirs.
_HOSTS_TAGS, _RUN_ID = "llamaindex.", "llamaindex.run_id"
_NO_ARGUMENTS = inspect.signature(lambda: None).bind()


class MemoryEvent(BaseEvent):
    """Base of the events of this package; all of their fields can be written as JSON."""

    session_id: str = Field(description="The conversation.")

    @classmethod
    def class_name(cls) -> str:
        """The name of the event."""
        return cls.__name__


class HistoryCondensedEvent(MemoryEvent):
    """Messages have left the record, by a cut or into a stored summary. They are still in the database."""

    messages: int = Field(description="Messages that have left.")
    tokens_before: int = Field(description="Tokens of the record before, without what is recalled for a question.")
    tokens_after: int = Field(description="The same afterwards.")
    summarised: bool = Field(description="Whether they went into the summary.")
    summary_tokens: int = Field(description="Tokens of the summary as it is shown now; 0 if there is none.")
    position: int = Field(description="The row of the last message that has left.")
    seconds: float = Field(description="How long it took, with the call of the model.")


class FactsExtractedEvent(MemoryEvent):
    """A part of the conversation was read for facts, and what was found is stored."""

    user_id: str = Field(description="Whose facts they are; the session's own if it belongs to no user.")
    messages: int = Field(description="Messages that were read.")
    new: list[str] = Field(description="Ids of the facts that were not known.")
    confirmed: list[str] = Field(description="Ids of the facts that were said again.")
    retired: list[str] = Field(description="Ids of the facts that hold no longer.")
    rejections: dict[str, int] = Field(description="Replies of the model that were not stored, for each reason.")
    seconds: float = Field(description="How long the model took; 0 if there was nothing to ask it.")


class FactsInjectedEvent(MemoryEvent):
    """Facts are shown: once for each ``aget`` with any, and so more than once in a turn with tools."""

    user_id: str = Field(description="Whose facts they are; the session's own if it belongs to no user.")
    fact_ids: list[str] = Field(description="Ids of the facts that are shown, in their order.")
    known: int = Field(description="Facts that hold, shown or not.")
    tokens: int = Field(description="Tokens of what is shown.")
    token_limit: int = Field(description="What it may have.")
    cached: bool = Field(description="Whether the same was shown for the same question before: nothing was ranked.")
    seconds: float = Field(description="How long it took.")


class JobFailedEvent(MemoryEvent):
    """Work beside the conversation has failed. Nothing is lost, and it is tried again."""

    error: str = Field(description="The type of the error; its text may hold what was said.")
    failures: int = Field(description="How often it has failed in a row, in this process.")
    retry_seconds: float | None = Field(description="The pause; None: no pause, whoever comes next tries again.")


class ExtractionFailedEvent(JobFailedEvent):
    """Facts were not extracted."""


class SummaryFailedEvent(JobFailedEvent):
    """Messages were not summarised; until they are, those that have no room are not shown."""


def send(event: MemoryEvent) -> None:
    """Give an event to whoever listens. What their handlers raise is no concern of a turn.

    The dispatcher passes over what a handler raises; this is for all else, such as tags that are none.
    """
    try:
        with instrument_tags(tags_without_words()):
            dispatcher.event(event)
    except Exception as error:  # noqa: BLE001 - whatever it is, an answer is worth more than an event
        logger.warning("%s was not sent (%s).", event.class_name(), type(error).__name__)


def is_heard() -> bool:
    """Whether anybody listens: an event is built in microseconds, but what it tells may have to be asked for."""
    here = dispatcher
    while True:
        if any(not isinstance(listener, NullEventHandler) for listener in here.event_handlers):
            return True
        if not here.propagate:
            return False
        here = here.parent


def tags_without_words() -> dict[str, Any]:
    """The tags of the dispatcher that an event may carry: the caller's own, and the id of a workflow's run."""
    tags = active_instrument_tags.get()
    return {key: value for key, value in tags.items() if key == _RUN_ID or not key.startswith(_HOSTS_TAGS)}


@contextmanager
def span(name: str) -> Iterator[None]:
    """A span without a parent around work beside the conversation, whose turn may have ended before.

    Handlers attach events and calls of models to the span that is open: that of the turn may not be any more.
    """
    id_ = f"{name}-{uuid4()}"
    token = active_span_id.set(id_)
    dispatcher.span_enter(id_=id_, bound_args=_NO_ARGUMENTS, tags=tags_without_words())
    try:
        yield
    finally:
        dispatcher.span_exit(id_=id_, bound_args=_NO_ARGUMENTS)
        active_span_id.reset(token)
