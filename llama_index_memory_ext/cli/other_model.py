"""A model of any name, of a server that speaks OpenAI's protocol, with or without tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import LLMMetadata
from llama_index.core.bridge.pydantic import Field
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW
from openai import APIStatusError

from llama_index_memory_ext.asking.options import refuses_tools, remember, takes
from llama_index_memory_ext.caching_openai import CachingOpenAI

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from llama_index.core.base.llms.types import ChatMessage, ChatResponse

_OF_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")


class OtherOpenAI(CachingOpenAI):
    """``CachingOpenAI`` for the models of others; each is taken for a chat model that may call tools.

    A server that refuses tools is asked without them from then on.
    """

    context_window: int | None = Field(default=None, description="Tokens; None: as LlamaIndex says, if it knows.")

    @property
    def metadata(self) -> LLMMetadata:
        """What is known of the model: LlamaIndex's class refuses names that it does not know."""
        try:
            known = super().metadata.context_window
        except ValueError:
            known = DEFAULT_CONTEXT_WINDOW
        return LLMMetadata(
            context_window=self.context_window or known,
            num_output=self.max_tokens or -1,
            is_chat_model=True,
            is_function_calling_model=True,
            model_name=self.model,
        )

    async def _achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        parent = super()._achat
        if not self._offers_tools(kwargs):
            return await parent(messages, **_without_tools(kwargs))
        try:
            return await parent(messages, **kwargs)
        except APIStatusError as error:
            if not refuses_tools(self, error):
                raise
        answer = await parent(messages, **_without_tools(kwargs))
        remember(self, ["tools"], taken=False)
        return answer

    async def _astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        parent = super()._astream_chat
        if not self._offers_tools(kwargs):
            return await parent(messages, **_without_tools(kwargs))
        offered = await parent(messages, **kwargs)

        async def responses() -> AsyncIterator[ChatResponse]:
            # A server refuses a stream when it is opened: before its first response.
            try:
                async for response in offered:
                    yield response
            except APIStatusError as error:
                if not refuses_tools(self, error):
                    raise
            else:
                return
            async for response in await parent(messages, **_without_tools(kwargs)):
                remember(self, ["tools"], taken=False)
                yield response

        return responses()

    def _offers_tools(self, kwargs: Mapping[str, Any]) -> bool:
        return bool(kwargs.get("tools")) and takes(self, "tools") is not False


def _without_tools(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in _OF_TOOLS}
