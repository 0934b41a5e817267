"""A model for trying things out: it answers from the prompt alone, by rules, without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection

from llama_index_memory_ext.cli.offline_prompt import arguments_of
from llama_index_memory_ext.cli.offline_rules import reply

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterable, Sequence

    from llama_index.core.base.llms.types import (
        ChatResponseAsyncGen,
        ChatResponseGen,
        CompletionResponseAsyncGen,
        CompletionResponseGen,
    )
    from llama_index.core.tools import BaseTool


def as_dicts(messages: Iterable[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as LlamaIndex sends them to OpenAI's Chat Completions."""
    # Imported here: it takes as long as all the rest, and not every user of the rules needs it.
    from llama_index.llms.openai.utils import to_openai_message_dict

    return [dict(to_openai_message_dict(message)) for message in messages]


class OfflineModel(FunctionCallingLLM):
    """A LlamaIndex model for trying things out: no network, no key, no state between calls.

    It answers by the rules of ``reply``, from the messages of the very call. A stream has one part.

    >>> OfflineModel().complete("My name is Logan.").text
    'Noted: your name is Logan.'
    """

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex serialises this model."""
        return "OfflineModel"

    @property
    def metadata(self) -> LLMMetadata:
        """A chat model that calls tools."""
        return LLMMetadata(
            context_window=128_000, is_chat_model=True, is_function_calling_model=True, model_name="offline"
        )

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return _answer(messages, **kwargs)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return _answer(messages, **kwargs)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        return _stream(_answer(messages, **kwargs))

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        return _astream(_answer(messages, **kwargs))

    @llm_completion_callback()
    def complete(self, prompt: str, *_: Any, **__: Any) -> CompletionResponse:
        return _completion(prompt)

    @llm_completion_callback()
    async def acomplete(self, prompt: str, *_: Any, **__: Any) -> CompletionResponse:
        return _completion(prompt)

    @llm_completion_callback()
    def stream_complete(self, prompt: str, *_: Any, **__: Any) -> CompletionResponseGen:
        return _stream(_completion(prompt))

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, *_: Any, **__: Any) -> CompletionResponseAsyncGen:
        return _astream(_completion(prompt))

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        *_: Any,
        **__: Any,
    ) -> dict[str, Any]:
        asked = ChatMessage(content=user_msg) if isinstance(user_msg, str) else user_msg
        messages = [*(chat_history or []), *([asked] if asked else [])]
        return {"messages": messages, "tools": [tool.metadata.get_name() for tool in tools]}

    def get_tool_calls_from_response(
        self,
        response: ChatResponse,
        error_on_no_tool_call: bool = True,
        **_: Any,
    ) -> list[ToolSelection]:
        """The tools that the answer wants called; a ``ValueError`` if none is and ``error_on_no_tool_call``."""
        blocks = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if not blocks and error_on_no_tool_call:
            raise ValueError("The answer was expected to call a tool; it calls none.")
        return [
            ToolSelection(
                tool_id=block.tool_call_id or "", tool_name=block.tool_name, tool_kwargs=arguments_of(block.tool_kwargs)
            )
            for block in blocks
        ]


def _answer(messages: Sequence[ChatMessage], tools: Sequence[str] = (), **_: Any) -> ChatResponse:
    answer = reply(as_dicts(messages), tools)
    blocks = [
        ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=call.arguments)
        for call in answer.tool_calls
    ]
    message = ChatMessage(role="assistant", blocks=blocks or [TextBlock(text=answer.text)])
    return ChatResponse(message=message, delta=answer.text)


def _completion(prompt: str) -> CompletionResponse:
    text = reply([{"role": "user", "content": prompt}]).text
    return CompletionResponse(text=text, delta=text)


def _stream(response: Any) -> Generator[Any, None, None]:
    yield response


async def _astream(response: Any) -> AsyncGenerator[Any, None]:
    yield response
