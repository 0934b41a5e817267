"""Asks a model for facts, by a tool or in words, and reads its answer."""

from __future__ import annotations

import asyncio
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.tools import FunctionTool
from llama_index.core.types import PydanticProgramMode
from pydantic import BaseModel, ConfigDict, Field

from llama_index_memory_ext.errors import FactReplyError
from llama_index_memory_ext.learning.reply import (
    TOO_LONG,
    NewFact,
    read_facts,
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
    from collections.abc import Sequence

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


class _Fact(_Form):
    # Not read: it makes the model go through the messages one by one.
    message: int = Field(description="The number of the message.")
    quote: str = Field(description="The exact words of the user.")
    fact: str = Field(description="A short statement of it, in the user's language.")
    category: str = Field("", description="One of the categories.")
    confidence: float = Field(0.9, description="0 to 1")
    ends: int = Field(0, description="The number of a known fact that it makes untrue.")


class _Report(_Form):
    facts: list[_Fact]


@cache
def report_tool() -> FunctionTool:
    """Return the tool by which a model reports facts."""
    return FunctionTool.from_defaults(
        fn=_Report,
        name="report_facts",
        description="Report the facts of the transcript.",
        fn_schema=_Report,
    )


def can_call(llm: LLM) -> bool:
    """Return whether a model may be asked by a tool."""
    return (
        llm.pydantic_program_mode != PydanticProgramMode.LLM
        and takes(llm, "tools") is not False
        and isinstance(llm, FunctionCallingLLM)
        and llm.metadata.is_function_calling_model
    )


async def ask_for_facts(
    llm: LLM,
    messages: Sequence[ChatMessage],
    *,
    categories: Categories,
    answer_tokens: int,
    responses: list[ChatResponse],
) -> list[NewFact]:
    """Return the entries of a model's reply to an ``extraction_prompt``.

    A function-calling model replies through a tool, and any other model in JSON. So
    does a model with ``pydantic_program_mode="llm"``. If the answer cannot be read, the
    model is asked once more: in words if it has called no tool so far, else with the
    reason. A model that answers only in words, or whose server refuses tools, is asked
    in words from then on. All responses are added to ``responses``. The answer by a tool
    is read as raw text: the host turns arguments that it cannot parse into {}, which
    means "nothing new".

    Raises:
        FactReplyError: Neither answer can be read, or the first was refused or cut.
        Exception: Any error of the model.
    """
    send = partial(_send, llm, answer_tokens, responses)
    response = await send(messages, by_tool=can_call(llm))
    # The server may have refused the tool.
    by_tool = can_call(llm)
    read = partial(_read_response, categories)
    try:
        return await asyncio.to_thread(read, response, by_tool)
    except FactReplyError as error:
        ignores_tool = by_tool and not takes(llm, "tools")
        # A refusal stays a refusal, and an answer that was cut would be cut again.
        if was_refused(response) or (was_truncated(response) and not ignores_tool):
            raise
        if ignores_tool:
            by_tool = False
        else:
            # Without any word of the last answer.
            content = f"{messages[-1].content}\n\nYour last answer could not be read: {error.problem}. Answer again."
            correction = ChatMessage(role=messages[-1].role, content=content)
            messages = [*messages[:-1], correction]
    response = await send(messages, by_tool=by_tool)
    reply = await asyncio.to_thread(read, response, by_tool)
    if not by_tool:
        remember(llm, "tools", accepted=False)
    return reply


async def _send(
    llm: Any,
    answer_tokens: int,
    responses: list[ChatResponse],
    messages: Sequence[ChatMessage],
    *,
    by_tool: bool,
) -> ChatResponse:
    """Return the response to a request by a tool; in words if the server refuses it."""
    if by_tool:
        chat = partial(
            llm.achat_with_tools,
            [report_tool()],
            chat_history=list(messages),
            tool_required=True,
            # Else the host drops all calls but the first.
            allow_parallel_tool_calls=True,
        )
        try:
            response = await ask_with(llm, chat, answer_tokens, responses)
        except Exception as error:
            if not refuses_tools(llm, error):
                raise
            remember(llm, "tools", accepted=False)
        else:
            blocks = response.message.blocks
            if any(isinstance(block, ToolCallBlock) for block in blocks):
                remember(llm, "tools", accepted=True)
            return response
    chat = partial(llm.achat, list(messages))
    return await ask_with(llm, chat, answer_tokens, responses)


def _read_response(
    categories: Categories,
    response: ChatResponse,
    by_tool: bool,
) -> list[NewFact]:
    """Return the facts of all calls of an answer, or else of its words, as one reply.

    No facts do not mean "nothing new" if a text cannot be read or the answer was cut:
    this raises a FactReplyError.
    """
    facts: list[NewFact] = []
    problem = ""
    texts = _texts_of(response.message)
    for text in texts:
        try:
            facts += read_facts(text, categories, by_tool=by_tool)
        except FactReplyError as error:  # noqa: PERF203 - each call is read apart
            problem = error.problem
    if by_tool and not any(map(without_thoughts, texts)):
        problem = "it is empty"
    elif was_truncated(response) or was_refused(response):
        problem = problem or "it was cut"
    if problem and not facts:
        raise FactReplyError(texts[0], problem)
    return facts


def _texts_of(message: ChatMessage) -> list[str]:
    """Return the texts to read: the arguments of the calls, or else the words.

    Raises a FactReplyError if the arguments are too long or no JSON.
    """
    words = message.content or ""
    blocks = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    if is_longer([block.tool_kwargs for block in blocks], MOST_CHARACTERS):
        raise FactReplyError(words, TOO_LONG)
    try:
        calls = [call.arguments for call in calls_of(message)]
    except (RecursionError, ValueError):
        raise FactReplyError(words, "its arguments are not JSON") from None
    return calls or [words]
