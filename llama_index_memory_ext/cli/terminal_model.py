"""Chooses the model that answers at a terminal: OpenAI's with a key, else the offline one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from llama_index.llms.openai import OpenAI

from llama_index_memory_ext.cli.offline_model import OfflineModel
from llama_index_memory_ext.cli.reasons import TerminalError

if TYPE_CHECKING:
    from httpx import AsyncClient
    from llama_index.core.llms.function_calling import FunctionCallingLLM

DEFAULT_MODEL = "gpt-4o-mini"


def terminal_model(name: str | None = None, *, async_http_client: AsyncClient | None = None) -> FunctionCallingLLM:
    """The model of this name (default: ``OPENAI_MODEL``), or the offline one without ``OPENAI_API_KEY``.

    Its connections are those of ``async_http_client``, which is its owner's to close.

    Raises:
        TerminalError: LlamaIndex does not know the model, or it cannot call tools.
    """
    if not os.environ.get("OPENAI_API_KEY"):
        return OfflineModel()
    name = name or os.environ.get("OPENAI_MODEL") or DEFAULT_MODEL
    model = OpenAI(
        model=name,
        api_base=os.environ.get("OPENAI_API_BASE"),
        timeout=30.0,
        max_retries=1,
        async_http_client=async_http_client,
    )
    try:
        calls_tools = model.metadata.is_function_calling_model
    except ValueError:
        calls_tools = None
    if not calls_tools:
        problem = "is not known to LlamaIndex's OpenAI class" if calls_tools is None else "cannot call tools"
        raise TerminalError(
            f"the model {name!r} {problem}. Set OPENAI_MODEL to another one, such as {DEFAULT_MODEL!r}."
        )
    return model
