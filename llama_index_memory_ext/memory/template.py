"""The message that shows the memory: joins the texts of memory blocks, without a template language."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    ContentBlock,
    MessageRole,
    TextBlock,
)
from llama_index.core.prompts import RichPromptTemplate

from llama_index_memory_ext.facts.ranking import PROFILE_NAME
from llama_index_memory_ext.record.cache_points import (
    MOST_CACHE_POINTS,
    CachePoints,
    cache_point,
    cache_points_in,
    content_blocks,
)
from llama_index_memory_ext.text.entries import body_of, escape_tags
from llama_index_memory_ext.text.messages import ID_KEY, SPEAKER_KEY, clean, has_content
from llama_index_memory_ext.text.parts import Section

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_index_memory_ext.text.tokens import TokenCounter


class MemoryBlocksTemplate(RichPromptTemplate):
    """Joins the blocks' texts as they are.

    No template language ever sees the texts of users and tools, and no text is compiled
    or parsed. The ``template_str`` documents the same layout in Jinja.
    """

    def __init__(self) -> None:
        template_str = (
            "<memory>\n{% for name, blocks in memory_blocks %}<{{ name }}>\n"
            "{% for block in blocks %}{{ block.text }}{% endfor %}</{{ name }}>\n{% endfor %}</memory>\n\n"
        )
        super().__init__(template_str=template_str, template_vars=["memory_blocks"])

    def format_messages(self, llm: Any = None, **kwargs: Any) -> list[ChatMessage]:
        """Return one user message with the blocks of all memory blocks.

        The tags join the texts next to them. Text blocks of one memory block stay
        apart, for prompt caches.
        """
        content: list[ContentBlock] = []
        text = "<memory>\n"
        for name, blocks in kwargs["memory_blocks"]:
            text += f"<{name}>\n"
            for i, block in enumerate(blocks):
                if text and (i > 0 or not isinstance(block, TextBlock)):
                    content.append(TextBlock(text=text))
                    text = ""
                if isinstance(block, TextBlock):
                    text += block.text
                    if block.text and not text.endswith("\n"):
                        text += "\n"
                else:
                    content.append(block)
            text += f"</{name}>\n"
        text += "</memory>\n\n"
        content.append(TextBlock(text=text))
        return [ChatMessage(role=MessageRole.USER, blocks=content)]


def with_cache_points(
    contents: Mapping[str, Any],
    cache_points: CachePoints,
    messages: Sequence[ChatMessage],
) -> dict[str, Any]:
    """Return the content of each memory block for LlamaIndex: sections as text blocks with cache points.

    A prompt has at most four cache points; further memory blocks and the ``messages``
    may have some already. A cache point follows the profile, if the points of the record
    leave two: a request may mark its end, too.
    """
    used_points = cache_points_in(messages)
    for content in contents.values():
        if isinstance(content, list):
            used_points += sum(isinstance(block, CachePoint) for block in content)
    split_contents = dict(contents)
    points = used_points
    for name, content in contents.items():
        if not (content and isinstance(content, Section)):
            continue
        split_contents[name] = content_blocks(content, cache_points, used_points)
        points += list(content.cache_marks.values()).count("point")
    has_profile = bool(contents.get(PROFILE_NAME))
    if cache_points and has_profile and points < MOST_CACHE_POINTS - 1:
        split_contents[PROFILE_NAME].append(cache_point(cache_points))
    return split_contents


def joined(
    template: RichPromptTemplate, memory_blocks: list[tuple[str, list[ContentBlock]]]
) -> list[ContentBlock]:
    """Return the blocks of the message that a template makes of memory blocks; [] for no memory block.

    A text at the end ends with a blank line, because some APIs join texts without a
    separator.
    """
    if not memory_blocks:
        return []
    messages = template.format_messages(memory_blocks=memory_blocks)
    content = list(messages[0].blocks)
    last = content[-1] if content else None
    if isinstance(last, TextBlock) and not last.text.endswith("\n\n"):
        content[-1] = TextBlock(text=last.text.rstrip("\n") + "\n\n")
    return content


def max_tokens(contents: Mapping[str, object], counter: TokenCounter) -> int:
    """Return a number of tokens that contents do not exceed in our template.

    ``sys.maxsize`` stands for contents other than sections and texts, whose tokens are unknown.
    """
    tokens = 0
    for name, content in contents.items():
        if isinstance(content, Section):
            tokens += content.tokens
        elif isinstance(content, str):
            tokens += counter.count(content)
        else:
            return sys.maxsize
        tokens += len(f"<{name}>\n</{name}>\n\n".encode())
    # No token is shorter than a byte.
    return tokens + len("<memory>\n</memory>\n\n")


def last_question(messages: Sequence[ChatMessage]) -> ChatMessage | None:
    """Return the newest message of the user; None if there is none."""
    newest_first = reversed(messages)
    return next((m for m in newest_first if m.role == MessageRole.USER), None)


def holds_question(messages: Sequence[ChatMessage], question: ChatMessage) -> bool:
    """Return whether the newest message of the user is this question.

    Agents repeat the question in each tool round. Of a question with an image, they
    repeat the text.
    """
    last = last_question(messages)
    return last is not None and (
        body_of(last) == body_of(question) or last.content == clean(question.content)
    )


# Follows the memory in a user's message, so that user and assistant take turns. Some
# models refuse a second system message.
ACKNOWLEDGED = ChatMessage(
    role=MessageRole.ASSISTANT, content="I have read the conversation so far."
)


def without_blank_texts(message: ChatMessage) -> ChatMessage:
    """Return the message without blank texts beside its other blocks: Anthropic refuses them."""
    blocks = [
        block
        for block in message.blocks
        if not (isinstance(block, TextBlock) and not block.text.strip())
    ]
    if len(blocks) == len(message.blocks) or not has_content(message):
        return message
    return message.model_copy(update={"blocks": blocks})


def prepare_to_send(message: ChatMessage) -> ChatMessage:
    """Return the message without ``message_id`` and ``user_id``, which some integrations would send.

    In a user's text our tags are escaped, because the record stands in the same
    message.
    """
    kwargs = message.additional_kwargs
    blocks = message.blocks
    if message.role == MessageRole.USER:
        blocks = [_with_escaped_tags(block) for block in blocks]
    elif not kwargs.keys() & {ID_KEY, SPEAKER_KEY}:
        return message
    unsent = {ID_KEY, SPEAKER_KEY}
    if SPEAKER_KEY in kwargs:
        # Providers restrict the form of a name. The record shows the name.
        unsent.add("name")
    kwargs = {key: value for key, value in kwargs.items() if key not in unsent}
    return ChatMessage(role=message.role, blocks=blocks, additional_kwargs=kwargs)


def _with_escaped_tags(block: ContentBlock) -> ContentBlock:
    if isinstance(block, TextBlock):
        return TextBlock(text=escape_tags(block.text))
    return block


def mark_for_cache(
    messages: list[ChatMessage],
    session_id: str,
    cache_points: CachePoints,
    *,
    expects_tools: bool,
) -> None:
    """Give each message with a cache point the session's name, by which OpenAI finds its cache.

    If the turn ``expects_tools``, end its question with a cache point. Anthropic needs
    a free cache point of the four where a request marks the end of the prompt.
    """
    if not cache_points:
        return
    if expects_tools and cache_points_in(messages) < MOST_CACHE_POINTS - 1:
        question = last_question(messages)
        blocks = question.blocks if question else []
        if question and blocks and not isinstance(blocks[-1], CachePoint):
            question.blocks = [*blocks, cache_point(cache_points)]
    for i, message in enumerate(messages):
        if cache_points_in([message]):
            kwargs = {**message.additional_kwargs, "session_id": session_id}
            messages[i] = message.model_copy(update={"additional_kwargs": kwargs})
