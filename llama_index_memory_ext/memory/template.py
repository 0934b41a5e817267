"""Joins the texts of memory blocks into one message, without a template language."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatMessage, ContentBlock, MessageRole, TextBlock
from llama_index.core.prompts import RichPromptTemplate

from llama_index_memory_ext.text.messages import body_of, escape_tags
from llama_index_memory_ext.text.tokens import CountedText

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_memory_ext.text.tokens import TokenCounter

_OPENING, _CLOSING = "<memory>\n", "</memory>\n\n"


class MemoryBlocksTemplate(RichPromptTemplate):
    """Joins the blocks' texts as they are.

    No template language ever sees what users and tools have written, and nothing is compiled or parsed. The
    ``template_str`` is the same in Jinja, as documentation.
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
        """Returns one user message with a text block, or with several around the blocks of other types."""
        parts: list[str | ContentBlock] = [_OPENING]
        for name, blocks in kwargs["memory_blocks"]:
            parts += [f"<{name}>\n", *map(_line_of, blocks), f"</{name}>\n"]
        content: list[Any] = []
        for is_text, run in groupby([*parts, _CLOSING], lambda part: isinstance(part, str)):
            if is_text:
                content.append(TextBlock(text="".join(map(str, run))))
            else:
                content += run
        return [ChatMessage(role=MessageRole.USER, blocks=content)]


def formatted(
    template: RichPromptTemplate, memory_blocks: Sequence[tuple[str, list[ContentBlock]]]
) -> list[ContentBlock]:
    """Returns the blocks of the message that a template makes of memory blocks; [] for none.

    A text at their end ends with a blank line, because some APIs join texts without anything between them.
    """
    content = list(template.format_messages(memory_blocks=memory_blocks)[0].blocks) if memory_blocks else []
    if content and isinstance(content[-1], TextBlock) and not content[-1].text.endswith("\n\n"):
        content[-1] = TextBlock(text=content[-1].text.rstrip("\n") + "\n\n")
    return content


def max_tokens(template: RichPromptTemplate, contents: Mapping[str, object], counter: TokenCounter) -> float:
    """Returns a number of tokens that contents do not exceed in our template; infinite if it is unknown."""
    texts = [content for content in contents.values() if isinstance(content, str)]
    if len(texts) < len(contents) or not isinstance(template, MemoryBlocksTemplate):
        return math.inf
    tags = _OPENING + _CLOSING + "".join(f"<{name}>\n</{name}>\n\n" for name in contents)
    tokens = sum(text.tokens if isinstance(text, CountedText) else counter.count(text) for text in texts)
    # No token is shorter than a byte.
    return tokens + len(tags.encode())


def is_last_question(question: ChatMessage, turn: list[ChatMessage]) -> bool:
    """Returns whether the question is the turn's own: agents repeat it in each tool round."""
    asked = [message for message in turn if message.role == MessageRole.USER]
    return bool(asked) and body_of(asked[-1]) == body_of(question)


def without_our_tags(message: ChatMessage) -> ChatMessage:
    """Returns the message with our tags escaped in a user's text, which is sent in one message with the record."""
    if message.role != MessageRole.USER:
        return message
    blocks = [
        TextBlock(text=escape_tags(block.text)) if isinstance(block, TextBlock) else block for block in message.blocks
    ]
    return ChatMessage(role=message.role, blocks=blocks, additional_kwargs=message.additional_kwargs)


def _line_of(block: ContentBlock) -> str | ContentBlock:
    return block.text.removesuffix("\n") + "\n" if isinstance(block, TextBlock) else block
