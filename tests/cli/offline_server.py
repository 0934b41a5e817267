"""The offline model behind OpenAI's protocol."""

from __future__ import annotations

from llama_index.core.base.llms.types import ToolCallBlock

from llama_index_memory_ext import messages_from_json
from llama_index_memory_ext.models.offline import reply
from tests.openai_server import Message, call, say


def model(messages: list[Message], tools: list[str]) -> Message:
    """The answer to a request, for ``serve``."""
    answer = reply(messages_from_json(messages), tools)
    calls = [
        (str(block.tool_call_id), block.tool_name, block.tool_kwargs)
        for block in answer.blocks
        if isinstance(block, ToolCallBlock) and isinstance(block.tool_kwargs, dict)
    ]
    return call(*calls) if calls else say(answer.content or "")
