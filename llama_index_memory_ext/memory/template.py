"""Joins the texts of memory blocks into one message, without a template language."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    ContentBlock,
    MessageRole,
    TextBlock,
)
from llama_index.core.prompts import RichPromptTemplate

from llama_index_memory_ext.record.window import (
    MOST_CACHE_POINTS,
    CachePoints,
    RecordText,
    cache_point,
    cache_points_in,
)
from llama_index_memory_ext.text.messages import (
    HINT,
    ID_KEY,
    SPEAKER_KEY,
    body_of,
    cleaned,
    escape_tags,
)
from llama_index_memory_ext.text.tokens import CountedText
from llama_index_memory_ext.text.tool_calls import has_content

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from llama_index_memory_ext.text.tokens import TokenCounter


# Whose message holds the memory for a chat engine that puts its question later.
EngineRole: TypeAlias = Literal["system", "user"]


class MemoryBlocksTemplate(RichPromptTemplate):
    """Joins the blocks' texts as they are.

    No template language ever sees what users and tools have written, and nothing is
    compiled or parsed. The ``template_str`` is the same in Jinja, as documentation. A
    ``CondensedMemory`` whose record stands in front of the user's message passes a
    ``hint``, which tells the model to use it; without one there is none.
    """

    def __init__(self) -> None:
        template_str = (
            "<memory>\n{% for name, blocks in memory_blocks %}<{{ name }}>\n"
            "{% for block in blocks %}{{ block.text }}{% endfor %}</{{ name }}>\n{% endfor %}</memory>\n\n"
            "{% if hint %}{{ hint }}\n\n{% endif %}"
        )
        super().__init__(
            template_str=template_str, template_vars=["memory_blocks", "hint"]
        )

    def format_messages(self, llm: Any = None, **kwargs: Any) -> list[ChatMessage]:
        """Return one user message with the blocks of all memory blocks.

        The tags join the texts next to them. Text blocks of one memory block stay
        apart, for prompt caches.
        """
        return [
            ChatMessage(
                role=MessageRole.USER,
                blocks=_tagged(kwargs["memory_blocks"], kwargs.get("hint") or ""),
            )
        ]


def _tagged(
    memory_blocks: Sequence[tuple[str, list[ContentBlock]]], hint: str
) -> list[ContentBlock]:
    content: list[ContentBlock] = []
    text = "<memory>\n"
    for name, blocks in memory_blocks:
        text += f"<{name}>\n"
        for i, block in enumerate(blocks):
            if text and (i > 0 or not isinstance(block, TextBlock)):
                content.append(TextBlock(text=text))
                text = ""
            is_whole = not isinstance(block, TextBlock) or (
                block.text.endswith("\n") and i + 1 < len(blocks)
            )
            if is_whole and not text:
                content.append(block)
            elif isinstance(block, TextBlock) and block.text:
                text += block.text if block.text.endswith("\n") else f"{block.text}\n"
        text += f"</{name}>\n"
    closing = f"{hint}\n\n" if hint else ""
    return [*content, TextBlock(text=f"{text}</memory>\n\n{closing}")]


def with_record_in_blocks(
    contents: dict[str, Any], cache_points: CachePoints, turn: Sequence[ChatMessage]
) -> dict[str, Any]:
    """Return what each memory block gave, by its name, the record in text blocks with cache points between them.

    There are at most four together with those of the other memory blocks and of the
    ``turn``.
    """
    lists = [content for content in contents.values() if isinstance(content, list)]
    others = cache_points_in(turn) + sum(
        isinstance(block, CachePoint) for content in lists for block in content
    )
    records = {
        name: text for name, text in contents.items() if isinstance(text, RecordText)
    }
    return contents | {
        name: text.content_blocks(cache_points, others)
        for name, text in records.items()
    }


def joined(
    template: RichPromptTemplate,
    memory_blocks: list[tuple[str, list[ContentBlock]]],
    hint: str,
) -> list[ContentBlock]:
    """Return the blocks of the message that a template makes of memory blocks; [] for none.

    A text at its end ends with a blank line, because some APIs join texts without
    anything between them.
    """
    if not memory_blocks:
        return []
    if type(template) is MemoryBlocksTemplate:
        # Without a message, which would check each of the blocks.
        return _tagged(memory_blocks, hint)
    content = list(
        template.format_messages(memory_blocks=memory_blocks, hint=hint)[0].blocks
    )
    if (
        content
        and isinstance(content[-1], TextBlock)
        and not content[-1].text.endswith("\n\n")
    ):
        content[-1] = TextBlock(text=content[-1].text.rstrip("\n") + "\n\n")
    return content


def max_tokens(contents: Mapping[str, object], counter: TokenCounter) -> int:
    """Return a number of tokens that contents do not exceed in our template; a very large one if it is unknown."""
    tokens = 0
    for name, text in contents.items():
        if not isinstance(text, str):
            return sys.maxsize
        tokens += text.tokens if isinstance(text, CountedText) else counter.count(text)
        tokens += len(f"<{name}>\n</{name}>\n\n".encode())
    # No token is shorter than a byte.
    return tokens + len(f"<memory>\n</memory>\n\n{HINT}\n\n")


def with_question(
    turn: list[ChatMessage], asked: ChatMessage | None
) -> list[ChatMessage]:
    """Return the turn with the question behind it, unless it is its own: agents repeat it in each tool round."""
    if asked is None:
        return turn
    last = next(
        (message for message in reversed(turn) if message.role == MessageRole.USER),
        None,
    )
    # Of a question with an image, agents repeat the text.
    is_own = last is not None and (
        body_of(last) == body_of(asked) or last.content == cleaned(asked.content)
    )
    return turn if is_own else [*turn, asked]


def add_media(
    media: list[ContentBlock], content: list[ContentBlock], turn: list[ChatMessage]
) -> None:
    """Add media, if there are any, to what is sent: behind the memory, in front of the hint.

    Without a hint they stand in front of the question of the turn, as where the content
    becomes a system's message, which has no media.
    """
    if not media:
        return
    last = content[-1]
    end = f"{HINT}\n\n"
    if isinstance(last, TextBlock) and last.text.endswith(end):
        content[-1:] = [
            TextBlock(text=last.text.removesuffix(end)),
            *media,
            TextBlock(text=end),
        ]
    else:
        question = next(
            message for message in reversed(turn) if message.role == MessageRole.USER
        )
        question.blocks = [*media, *question.blocks]


# Follows the memory in a user's message, so that user and assistant take turns.
_ACKNOWLEDGED = ChatMessage(
    role=MessageRole.ASSISTANT, content="I have read the conversation so far."
)


def before_question(content: list[ContentBlock], role: EngineRole) -> list[ChatMessage]:
    """Return the content as messages that stand in front of a question that is still to come; [] for none."""
    if not content:
        return []
    memory = ChatMessage(role=role, blocks=content)
    if role == MessageRole.USER.value:
        return [memory, _ACKNOWLEDGED]
    return [memory]


def tokens_of_role(role: EngineRole, tokens: Callable[[ChatMessage], int]) -> int:
    """Return the tokens that ``before_question`` adds to the content."""
    if role == MessageRole.USER.value:
        return tokens(_ACKNOWLEDGED)
    return 0


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


def without_our_tags(message: ChatMessage) -> ChatMessage:
    """Return the message with our tags escaped in a user's text, which is sent in one message with the record.

    It has no ``message_id`` and ``user_id``, which some integrations would send.
    """
    kwargs = message.additional_kwargs
    blocks = message.blocks
    if message.role == MessageRole.USER:
        blocks = [
            TextBlock(text=escape_tags(one.text)) if isinstance(one, TextBlock) else one
            for one in blocks
        ]
    elif not kwargs.keys() & {ID_KEY, SPEAKER_KEY}:
        return message
    # A provider takes no name of any form, and it stands in the record.
    unsent = {ID_KEY, SPEAKER_KEY, *(["name"] if SPEAKER_KEY in kwargs else [])}
    kwargs = {key: value for key, value in kwargs.items() if key not in unsent}
    return ChatMessage(role=message.role, blocks=blocks, additional_kwargs=kwargs)


def with_cache_points(
    messages: list[ChatMessage],
    session_id: str,
    cache_points: CachePoints,
    *,
    goes_on: bool,
) -> list[ChatMessage]:
    """Return the messages, those with cache points with the name of the session: OpenAI finds its cache by it.

    If the turn ``goes_on``, because the model has asked for tools or will, its question
    gets a cache point for the rest of it. One of the four is left: Anthropic takes it
    where a request asks it to mark the end of the prompt itself.
    """
    if not cache_points:
        return messages
    if goes_on and cache_points_in(messages) < MOST_CACHE_POINTS - 1:
        question = next(
            (
                message
                for message in reversed(messages)
                if message.role == MessageRole.USER
            ),
            None,
        )
        if (
            question
            and question.blocks
            and not isinstance(question.blocks[-1], CachePoint)
        ):
            question.blocks = [*question.blocks, cache_point(cache_points)]
    for i, message in enumerate(messages):
        if cache_points_in([message]):
            kwargs = {**message.additional_kwargs, "session_id": session_id}
            messages[i] = message.model_copy(update={"additional_kwargs": kwargs})
    return messages
