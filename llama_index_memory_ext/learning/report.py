"""Asks a model for facts, by a tool or in words, and reads its answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.tools import FunctionTool
from llama_index.core.types import PydanticProgramMode
from pydantic import BaseModel, ConfigDict, Field, create_model

from llama_index_memory_ext.errors import FactReplyError
from llama_index_memory_ext.fact import CATEGORIES
from llama_index_memory_ext.learning.budget import RequestBudget
from llama_index_memory_ext.learning.reply import (
    TOO_LONG,
    ExtractionReply,
    NewFact,
    read_facts,
    read_statement,
    reply_of,
    without_thoughts,
)
from llama_index_memory_ext.models.ask import (
    ask_with,
    refuses_tools,
    remember,
    takes,
    was_refused,
    was_truncated,
)
from llama_index_memory_ext.text.messages import MOST_CHARACTERS, calls_of, is_longer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from llama_index.core.llms import LLM

    from llama_index_memory_ext.learning.categories import Categories


class _Form(BaseModel):
    """A part of the form of a reply, as the tool's schema shows it to the model."""

    @staticmethod
    def _as_sent(schema: dict[str, Any]) -> None:
        """Leave out the titles, which say no more than the names."""
        schema.pop("title", None)
        for part in schema["properties"].values():
            part.pop("title", None)

    model_config = ConfigDict(json_schema_extra=_as_sent)


class _FactForm(_Form):
    message: int = Field(description="The number of the message.")
    quote: str = Field(description="The exact words of the user.")
    fact: str = Field(description="A short statement of it, in the user's language.")
    category: str = ""
    confidence: float = Field(0.9, description="0 to 1")
    ends: int = Field(0, description="The number of a known fact that it makes untrue.")


@lru_cache(maxsize=8)
def tool_of(categories: tuple[str, ...]) -> FunctionTool:
    """Return the tool by which a model reports facts of these categories."""
    category = Annotated[str, Field(json_schema_extra={"enum": list(categories)})]
    fact = create_model("Fact", __base__=_FactForm, __doc__="", category=(category, ""))
    facts: Any = (list[fact], ...)  # type: ignore[valid-type]
    report = create_model("Report", __base__=_Form, __doc__="", facts=facts)
    return FunctionTool.from_defaults(
        fn=report,
        name="report_facts",
        description="Report the facts of the transcript.",
        fn_schema=report,
    )


class _Answer(NamedTuple):
    """A response, and whether the model was asked by a tool."""

    response: ChatResponse
    by_tool: bool

    @property
    def has_calls(self) -> bool:
        blocks = self.response.message.blocks
        return self.by_tool and any(
            isinstance(block, ToolCallBlock) for block in blocks
        )


@dataclass(frozen=True)
class _Request:
    """A request for facts: its model, its tool and its limit; all responses are added to ``responses``."""

    llm: Any
    tool: FunctionTool
    answer_tokens: int
    responses: list[ChatResponse]

    async def send(self, messages: Sequence[ChatMessage], *, by_tool: bool) -> _Answer:
        """Return the answer, in words if the server refuses tools."""
        if by_tool:
            chat = partial(
                self.llm.achat_with_tools,
                [self.tool],
                chat_history=list(messages),
                tool_required=True,
                # Else the host drops all calls but the first.
                allow_parallel_tool_calls=True,
            )
            try:
                return _Answer(await self._chat(chat), by_tool=True)
            except Exception as error:
                if not refuses_tools(self.llm, error):
                    raise
        chat = partial(self.llm.achat, list(messages))
        return _Answer(await self._chat(chat), by_tool=False)

    async def _chat(self, chat: Callable[..., Awaitable[ChatResponse]]) -> ChatResponse:
        return await ask_with(self.llm, chat, self.answer_tokens, self.responses)


def can_call(llm: LLM) -> bool:
    """Return whether a model may be asked by a tool."""
    is_in_words = llm.pydantic_program_mode == PydanticProgramMode.LLM
    if is_in_words or takes(llm, "tools") is False:
        return False
    return (
        isinstance(llm, FunctionCallingLLM) and llm.metadata.is_function_calling_model
    )


async def ask_for_facts(
    llm: LLM,
    messages: Sequence[ChatMessage],
    *,
    categories: Categories = CATEGORIES,
    answer_tokens: int = RequestBudget().answer,
    responses: list[ChatResponse] | None = None,
) -> tuple[ExtractionReply, ChatResponse]:
    """Return the reply of a model to an ``extraction_prompt``, and the response.

    A function-calling model replies through a tool, and any other model in JSON. So
    does a model with ``pydantic_program_mode="llm"``. If the answer cannot be read, the
    model is asked once more: in words if it has called no tool so far, else with the
    reason. A model that answers only in words, or whose server refuses tools, is asked
    in words from then on. The answer by a tool is read as raw text: the host turns
    arguments that it cannot parse into {}, which means "nothing new".

    Raises:
        FactReplyError: Neither answer can be read, or the first was refused or cut. Its
            ``response`` is the last answer.
        Exception: Any error of the model.
    """
    names = tuple(categories)
    request = _Request(
        llm, tool_of(names), answer_tokens, [] if responses is None else responses
    )
    takes_tools = can_call(llm)
    answer = await request.send(messages, by_tool=takes_tools)
    if answer.has_calls:
        remember(llm, "tools", accepted=True)
    try:
        reply = await asyncio.to_thread(_read_answer, answer, names)
    except FactReplyError as error:
        ignores_tool = answer.by_tool and not takes(llm, "tools")
        if _is_final(answer.response, ignores_tool=ignores_tool):
            raise
        if not ignores_tool:
            messages = _with_correction(messages, error)
        answer = await request.send(
            messages, by_tool=answer.by_tool and not ignores_tool
        )
        reply = await asyncio.to_thread(_read_answer, answer, names)
    if takes_tools and not answer.by_tool:
        remember(llm, "tools", accepted=False)
    return reply, answer.response


def _is_final(response: ChatResponse, *, ignores_tool: bool) -> bool:
    """Return whether a second answer would be like the first.

    A refusal stays a refusal, and an answer that was cut would be cut again.
    """
    return was_refused(response) or (was_truncated(response) and not ignores_tool)


def _with_correction(
    messages: Sequence[ChatMessage], error: FactReplyError
) -> list[ChatMessage]:
    """Return messages that ask for a readable answer, without any word of the last one."""
    content = f"{messages[-1].content}\n\nYour last answer could not be read: {error.problem}. Answer again."
    return [*messages[:-1], ChatMessage(role=messages[-1].role, content=content)]


def _read_answer(answer: _Answer, categories: Sequence[str]) -> ExtractionReply:
    """Return the facts of all calls of an answer, or else of its words, as one reply.

    No facts do not mean "nothing new" if a text cannot be read or the answer was cut:
    this raises a FactReplyError.
    """
    try:
        return _read_response(answer, categories)
    except FactReplyError as error:
        error.response = answer.response
        raise


def _read_response(answer: _Answer, categories: Sequence[str]) -> ExtractionReply:
    response = answer.response
    facts: list[NewFact] = []
    errors = []
    texts = _texts_of(response.message, may_be_blank=not answer.by_tool)
    for text in texts:
        try:
            facts += read_facts(text, categories)
        except FactReplyError as error:  # noqa: PERF203 - each call is read apart
            errors.append(error)
    if not facts:
        if errors:
            raise errors[0]
        if was_truncated(response) or was_refused(response):
            raise FactReplyError("".join(texts[:1]), "it was cut")
    return reply_of(with_contents(facts, by_tool=answer.by_tool))


def with_contents(facts: list[NewFact], *, by_tool: bool) -> list[NewFact]:
    """Return the facts of a model; without tools their quotes are their contents.

    Models without tools quote exactly, but many of their statements leave out the point.
    """
    if by_tool:
        return facts
    return [
        fact.model_copy(update={"content": read_statement(fact.quote)})
        for fact in facts
    ]


def _texts_of(message: ChatMessage, *, may_be_blank: bool) -> list[str]:
    """Return the texts to read: the arguments of the calls, or else the words.

    Raises a FactReplyError for blank words that ``may_be_blank`` forbids.
    """
    words = message.content or ""
    calls = _arguments_of(message)
    if not (calls or may_be_blank or without_thoughts(words)):
        raise FactReplyError(words, "it is empty")
    return calls or [words]


def _arguments_of(message: ChatMessage) -> list[str]:
    """Return the arguments of the calls of an answer, each as one text."""
    words = message.content or ""
    blocks = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    if is_longer([block.tool_kwargs for block in blocks], MOST_CHARACTERS):
        raise FactReplyError(words, TOO_LONG)
    try:
        return [call.arguments for call in calls_of(message)]
    except (RecursionError, ValueError):
        raise FactReplyError(words, "its arguments are no JSON") from None
