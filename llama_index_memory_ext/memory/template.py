"""Joins the texts of memory blocks into one message, without a template language."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock
from llama_index.core.prompts import RichPromptTemplate

MEMORY_OPENING, MEMORY_CLOSING = "<memory>\n", "</memory>\n\n"


class MemoryBlocksTemplate(RichPromptTemplate):
    """Joins the blocks' texts as they are.

    No template language ever sees what users and tools have written, and nothing is compiled or parsed.
    ``template_str`` says the same in Jinja, for people who look it up.
    """

    def __init__(self) -> None:
        super().__init__(
            template_str=(
                "<memory>\n{% for name, blocks in memory_blocks %}<{{ name }}>\n"
                "{% for block in blocks %}{{ block.text }}{% endfor %}</{{ name }}>\n{% endfor %}</memory>\n\n"
            ),
            template_vars=["memory_blocks"],
        )

    def format_messages(self, llm: Any = None, **kwargs: Any) -> list[ChatMessage]:
        """One user message: a text block, and between its parts whatever is not text."""
        content: list[Any] = []
        _add_text(content, MEMORY_OPENING)
        for name, blocks in kwargs["memory_blocks"]:
            _add_text(content, f"<{name}>\n")
            for block in blocks:
                if isinstance(block, TextBlock):
                    _add_text(content, block.text if block.text.endswith("\n") else f"{block.text}\n")
                else:
                    content.append(block)
            _add_text(content, f"</{name}>\n")
        _add_text(content, MEMORY_CLOSING)
        return [ChatMessage(role=MessageRole.USER, blocks=content)]


def _add_text(content: list[Any], text: str) -> None:
    if content and isinstance(content[-1], TextBlock):
        content[-1] = TextBlock(text=content[-1].text + text)
    else:
        content.append(TextBlock(text=text))
