"""Joins the texts of memory blocks into one message, without a template language."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock
from llama_index.core.prompts import RichPromptTemplate

from llama_index_memory_ext.log_block import LogBlock
from llama_index_memory_ext.text.messages import body_of, escape_tags
from llama_index_memory_ext.text.tokens import CountedText

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from llama_index.core.memory import BaseMemoryBlock

    from llama_index_memory_ext.text.tokens import TokenCounter

_OPENING, _CLOSING = "<memory>\n", "</memory>\n\n"


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
        _add_text(content, _OPENING)
        for name, blocks in kwargs["memory_blocks"]:
            _add_text(content, f"<{name}>\n")
            for block in blocks:
                if isinstance(block, TextBlock):
                    _add_text(content, block.text if block.text.endswith("\n") else f"{block.text}\n")
                else:
                    content.append(block)
            _add_text(content, f"</{name}>\n")
        _add_text(content, _CLOSING)
        return [ChatMessage(role=MessageRole.USER, blocks=content)]


@dataclass(frozen=True, slots=True)
class BlockFormatter:
    """Makes one message of the contents of memory blocks, within a number of tokens. ``tokens`` counts a message."""

    template: RichPromptTemplate
    blocks: Sequence[BaseMemoryBlock[Any]]
    counter: TokenCounter
    tokens: Callable[[ChatMessage], int]

    async def fit(self, contents: dict[str, Any], room: int) -> tuple[list[Any], list[ChatMessage]]:
        """The content blocks of the message and the messages that blocks gave, truncated to ``room`` if they can be.

        Args:
            contents: What each block gave, by its name; truncated contents replace longer ones.
            room: Most tokens.
        """
        # A block of ours can be truncated whatever its priority.
        truncatable = [block for block in self.blocks if isinstance(block, LogBlock) or block.priority > 0]
        while True:
            content, messages = self._formatted(contents)
            excess = 0
            # The bound is never too low; only where it is over the room the exact count decides.
            if self._most_tokens(contents) > room:
                excess = sum(map(self.tokens, [*messages, ChatMessage(blocks=content)])) - room
            blocks = [block for block in truncatable if contents.get(block.name)]
            if excess <= 0 or not blocks:
                return content, messages
            block = max(blocks, key=lambda block: block.priority)
            contents[block.name] = await block.atruncate(contents[block.name], excess)

    def _formatted(self, contents: Mapping[str, Any]) -> tuple[list[Any], list[ChatMessage]]:
        given = [(block.name, contents[block.name]) for block in self.blocks if contents.get(block.name)]
        messages = [message for _, part in given if isinstance(part[0], ChatMessage) for message in part]
        parts = [
            (name, [TextBlock(text=part)] if isinstance(part, str) else part)
            for name, part in given
            if not isinstance(part[0], ChatMessage)
        ]
        content = list(self.template.format_messages(memory_blocks=parts)[0].blocks) if parts else []
        if content and isinstance(content[-1], TextBlock) and not content[-1].text.endswith("\n\n"):
            # Some APIs join the text blocks of a message without anything between them.
            content[-1] = TextBlock(text=content[-1].text.rstrip("\n") + "\n\n")
        return content, messages

    def _most_tokens(self, contents: Mapping[str, Any]) -> float:
        """A number of tokens that the contents do not pass in our template; infinite if it is unknown."""
        texts = [content for content in contents.values() if isinstance(content, str)]
        if len(texts) < len(contents) or not isinstance(self.template, MemoryBlocksTemplate):
            return math.inf
        tags = _OPENING + _CLOSING + "".join(f"<{name}>\n</{name}>\n\n" for name in contents)
        known = sum(text.tokens if isinstance(text, CountedText) else self.counter.count(text) for text in texts)
        # No token is shorter than a byte.
        return known + len(tags.encode())


def is_last_question(question: ChatMessage, turn: list[ChatMessage]) -> bool:
    """Whether the question is the turn's own: agents hand it over a second time in each tool round."""
    asked = [message for message in turn if message.role == MessageRole.USER]
    return bool(asked) and body_of(asked[-1]) == body_of(question)


def without_our_tags(message: ChatMessage) -> ChatMessage:
    """The message with our tags escaped in a user's text, which is sent in one message with the record."""
    if message.role != MessageRole.USER:
        return message
    blocks = [
        TextBlock(text=escape_tags(block.text)) if isinstance(block, TextBlock) else block for block in message.blocks
    ]
    return ChatMessage(role=message.role, blocks=blocks, additional_kwargs=message.additional_kwargs)


def _add_text(content: list[Any], text: str) -> None:
    if content and isinstance(content[-1], TextBlock):
        content[-1] = TextBlock(text=content[-1].text + text)
    else:
        content.append(TextBlock(text=text))
