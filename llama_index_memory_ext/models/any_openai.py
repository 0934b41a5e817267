"""A model of any name behind OpenAI's protocol, such as one of another server."""

from __future__ import annotations

from llama_index.core.base.llms.types import LLMMetadata
from pydantic import Field

from llama_index_memory_ext.models.caching_openai import CachingOpenAI


class AnyOpenAI(CachingOpenAI):
    """``CachingOpenAI`` for models of any name, including other servers' models; each may call tools."""

    context_window: int | None = Field(None, alias="OPENAI_CONTEXT_WINDOW", gt=0)

    @property
    def metadata(self) -> LLMMetadata:
        """The metadata of the model. A model that LlamaIndex's class does not know counts as a chat model."""
        try:
            metadata = super().metadata
        except ValueError:
            metadata = LLMMetadata(is_chat_model=True, model_name=self.model)
        window = self.context_window or metadata.context_window
        return metadata.model_copy(
            update={"context_window": window, "is_function_calling_model": True}
        )
