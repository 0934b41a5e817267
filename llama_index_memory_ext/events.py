"""Sends events about memories to LlamaIndex's dispatcher: ids, counts, tokens and seconds, never texts."""

from __future__ import annotations

import inspect
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING
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
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

# A handler of the dispatcher of this name gets these events alone; those of the root
# dispatcher get them, too.
dispatcher = get_dispatcher("llama_index_memory_ext")

# Workflows tag each step with its input, which is the user's text; of their tags only
# the run's id is kept.
_HOSTS_TAGS = "llamaindex."
_RUN_ID = "llamaindex.run_id"
_NO_ARGUMENTS = inspect.signature(lambda: None).bind()


class MemoryEvent(BaseEvent):
    """Base of the events of this package; all of their fields can be written as JSON."""

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
    summarised: bool = Field(description="Whether they went into the summary.")
    summary_tokens: int = Field(
        description="Tokens of the summary that is shown now; 0 if there is none."
    )
    position: int = Field(description="The row of the last message that has left.")
    seconds: float = Field(
        description="How long it took, including the call of the model."
    )
    prompt_tokens: int = Field(
        default=0, description="Tokens of the prompts for it; cached ones count."
    )
    completion_tokens: int = Field(
        default=0, description="Tokens of the model's answers for it."
    )


class FactsExtractedEvent(MemoryEvent):
    """Facts were extracted from a part of the conversation, and stored."""

    user_id: str = Field(
        description="Whose facts they are; the session's id if it has no user."
    )
    agent_id: str | None = Field(
        default=None,
        description="Whose the new facts are; None: all agents share them.",
    )
    messages: int = Field(description="Messages that were read.")
    new: list[str] = Field(description="Ids of the new facts.")
    confirmed: list[str] = Field(description="Ids of the facts that were confirmed.")
    retired: list[str] = Field(description="Ids of the facts that were retired.")
    pending: list[str] = Field(
        default=[], description="Ids of those that wait for somebody's yes."
    )
    rejections: dict[str, int] = Field(
        description="Entries of the reply that were not stored, by reason."
    )
    seconds: float = Field(
        description="How long the model took; 0 if it was not called."
    )
    prompt_tokens: int = Field(
        default=0, description="Tokens of the prompts for it; cached ones count."
    )
    completion_tokens: int = Field(
        default=0, description="Tokens of the model's answers for it."
    )


class FactsInjectedEvent(MemoryEvent):
    """Facts are shown: sent for each ``aget`` with any, and so more than once in a turn with tools."""

    user_id: str = Field(
        description="Whose facts they are; the session's id if it has no user."
    )
    agent_id: str | None = Field(
        default=None,
        description="The agent that sees its own facts; None: shared ones.",
    )
    fact_ids: list[str] = Field(
        description="Ids of the facts that are shown, in their order."
    )
    known: int = Field(description="Active facts, shown or not.")
    tokens: int = Field(description="Tokens of the facts that are shown.")
    token_limit: int = Field(description="Most tokens that they may have.")
    cached: bool = Field(
        description="Whether they were ranked before, for the same question."
    )
    seconds: float = Field(description="How long it took.")


class MessagesRecalledEvent(MemoryEvent):
    """Earlier messages are shown for the question: sent for each ``aget`` with any, as ``FactsInjectedEvent`` is."""

    row_ids: list[int] = Field(
        description="The messages, in their order: of each the row with which it begins."
    )
    scores: list[float] = Field(
        description="Their similarity to the question, 0..1; 1 for the best one."
    )
    tokens: int = Field(
        description="Tokens of the messages that are shown, with the tags around them."
    )
    token_limit: int = Field(
        description="Most tokens that they may have, but for three tenths more of a question."
    )
    cached: bool = Field(
        description="Whether they were found before, for the same question."
    )
    seconds: float = Field(description="How long it took, with reading the record.")


class JobFailedEvent(MemoryEvent):
    """Work in the background has failed. Nothing is lost, and it is tried again."""

    error: str = Field(
        description="The type of the error; its text may quote messages."
    )
    failures: int = Field(
        description="How often it has failed in a row, in this process."
    )
    retry_seconds: float | None = Field(
        description="The pause; None: the next start tries again."
    )


class ExtractionFailedEvent(JobFailedEvent):
    """Facts were not extracted."""


class SummaryFailedEvent(JobFailedEvent):
    """Messages were not summarised; those that do not fit are not shown until they are."""


def send(event: MemoryEvent) -> None:
    """Send an event. An error is logged, because a turn must not fail by it.

    The dispatcher ignores what handlers raise; other causes are tags that it does not
    accept.
    """
    try:
        with instrument_tags(_tags_without_texts()):
            dispatcher.event(event)
    except Exception as error:  # noqa: BLE001 - an answer is worth more than an event, whatever fails
        logger.warning(
            "%s was not sent (%s).", event.class_name(), type(error).__name__
        )


def is_heard() -> bool:
    """Return whether there is a handler for events; some events need queries to build them."""
    here = dispatcher
    while all(isinstance(handler, NullEventHandler) for handler in here.event_handlers):
        if not here.propagate:
            return False
        here = here.parent
    return True


@contextmanager
def span(name: str) -> Iterator[None]:
    """Open a span without a parent around work in the background, whose turn may have ended before.

    Handlers attach events and calls of models to the open span, and the span of the
    turn may be closed already.
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
