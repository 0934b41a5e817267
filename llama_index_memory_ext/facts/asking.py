"""Asks a model for an answer in a form: by a tool where it can call one, else in JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.types import PydanticProgramMode

from llama_index_memory_ext.errors import FactReplyError
from llama_index_memory_ext.facts import reply
from llama_index_memory_ext.text.tool_calls import calls_of
from llama_index_memory_ext.text.usage import field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.base.llms.types import ChatResponse
    from llama_index.core.llms import LLM
    from llama_index.core.tools import FunctionTool

_TRUNCATED, _FILTERED = ("length", "max_tokens", "MAX_TOKENS"), ("content_filter", "refusal")


class Answer(NamedTuple):
    """The texts of an answer: the arguments of each call, or what was said; and the whole response."""

    texts: Sequence[str]
    response: ChatResponse


class FactAnswer(NamedTuple):
    """A reply, and the response in which it came."""

    reply: reply.ExtractionReply
    response: ChatResponse

    @property
    def truncated(self) -> bool:
        """Whether the answer has reached the model's limit of tokens."""
        return finish_reason(self.response) in _TRUNCATED


async def ask(llm: LLM, messages: Sequence[ChatMessage], tool: FunctionTool, form: str) -> Answer:
    """The answer of one request. What the model raises is not caught."""
    calls = []
    wants_text = llm.pydantic_program_mode == PydanticProgramMode.LLM
    if isinstance(llm, FunctionCallingLLM) and llm.metadata.is_function_calling_model and not wants_text:
        response = await llm.achat_with_tools(
            [tool], chat_history=list(messages), tool_required=True, allow_parallel_tool_calls=True
        )
        calls = calls_of(response.message)
    else:
        question = ChatMessage(role=messages[-1].role, content=f"{messages[-1].content}\n\n{form}")
        response = await llm.achat([*messages[:-1], question])
    return Answer([call.arguments for call in calls] or [response.message.content or ""], response)


async def ask_for_facts(llm: LLM, messages: Sequence[ChatMessage]) -> FactAnswer:
    """The model's reply to an ``extraction_prompt``; a FactReplyError, with the ``response``, if it cannot be read."""
    answer = await ask(llm, messages, reply._TOOL, reply._FORM)  # noqa: SLF001 - one room
    try:
        return FactAnswer(reply.merge_replies([reply.parse_reply(text) for text in answer.texts]), answer.response)
    except FactReplyError as error:
        error.response = answer.response  # type: ignore[attr-defined]
        raise


def was_refused(response: ChatResponse) -> bool:
    """Whether the provider says that the model has refused, or that it has filtered the answer."""
    choices = field(response.raw, "choices")
    message = field(choices[0], "message") if isinstance(choices, list) and choices else None
    return finish_reason(response) in _FILTERED or bool(field(message, "refusal"))


def finish_reason(response: ChatResponse) -> Any:
    """Why the model has stopped, in the provider's word; None if that is not told."""
    raw = response.raw
    choices = field(raw, "choices")
    reason = field(choices[0], "finish_reason") if isinstance(choices, list) and choices else None
    return reason or field(raw, "stop_reason") or field(raw, "stopReason") or field(raw, "done_reason")
