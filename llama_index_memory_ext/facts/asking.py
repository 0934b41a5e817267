"""Asks a model for an answer in a form: by a tool where it can call one, else in JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.types import PydanticProgramMode

from llama_index_memory_ext.text.tool_calls import calls_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index.core.base.llms.types import ChatResponse
    from llama_index.core.llms import LLM
    from llama_index.core.tools import FunctionTool


class Answer(NamedTuple):
    """The texts of an answer: the arguments of each call, or what was said; and the whole response."""

    texts: Sequence[str]
    response: ChatResponse


async def ask(llm: LLM, messages: Sequence[ChatMessage], tool: FunctionTool, form: str) -> Answer:
    """The answer of one request, in this ``form`` where there are no tools. What the model raises is not caught."""
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
