"""A message as an entry of the record: its text with tags, counted and clipped."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from llama_index.core.base.llms.types import (
    ChatMessage,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)

from llama_index_memory_ext.text.messages import (
    CALL_KEYS,
    HIDDEN,
    REFUSAL_KEY,
    RESULT_ROLES,
    Counted,
    Json,
    calls_of,
)
from llama_index_memory_ext.text.parts import Part
from llama_index_memory_ext.words import CONTROLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from llama_index_memory_ext.text.tokens import TokenCounter


# The keys of ``additional_kwargs`` that an entry shows.
_SHOWN_KEYS = frozenset({*CALL_KEYS, REFUSAL_KEY})
INSTRUCTION_ROLES: frozenset[str] = frozenset(
    {MessageRole.SYSTEM, MessageRole.DEVELOPER}
)
OUR_TAGS = frozenset(
    {
        "memory",
        "condensed_memory",
        "relevant_facts",
        "user_profile",
        "message",
        "fact",
        "conversation_summary",
        "earlier_messages",
    }
)
CLOSING = "</message>\n"
# Tokens of a block that is not text; of a picture, LlamaIndex's estimate.
MEDIA_TOKENS = {"image": 2_125, "audio": 256, "video": 256, "document": 2048}

_NAME_CHARACTERS = 200
_ROLE = "<message role="
_UNSEEN = f"[\u200c\u200d{CONTROLS}]"


class ClippedText(NamedTuple):
    """A text within a limit, and its tokens."""

    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Entry(Part):
    """One message as the record shows it: ``<message role="user">the text</message>`` and a newline.

    A brief entry is ``<message user>the text`` and a newline; the next tag is its end.

    ``tokens``: with the heading of its day.
    ``role``: the role of the message: "user", "assistant", ...
    ``heading_tokens``: the tokens of the heading; 0 if the day begins with another entry.
    """

    role: str = ""
    has_media: bool = False
    heading_tokens: int = 0

    @property
    def tags(self) -> tuple[str, str]:
        """The opening and the closing tag, as ``clipped_element`` takes them."""
        # Attributes hold no ">": it is escaped there.
        opening = self.text[: self.text.index(">") + 1]
        return opening, CLOSING if self.text.startswith(_ROLE) else "\n"

    @property
    def body(self) -> str:
        """The text between the tags."""
        opening, closing = self.tags
        return self.text[len(opening) : -len(closing)]


def entry_of(
    row_id: int,
    message: ChatMessage,
    counter: TokenCounter,
    tags: Iterable[str] = (),
    *,
    speaker: str = "",
    day: str = "",
    brief: bool = False,
) -> Entry | None:
    """Return the entry of a message; None if there is nothing to show. No text can forge our tags or ``tags``.

    Args:
        row_id: The row of the message in the log.
        message: The message.
        counter: Counts the tokens.
        tags: Names of further tags to escape in the text.
        speaker: A name to show with the message; "" for none.
        day: The day of the message; "" if unknown.
        brief: Whether the entry has no closing tag.
    """
    body = escape_tags(body_of(message), tags)
    if not body.strip():
        return None
    is_result = message.role in RESULT_ROLES
    if is_result:
        kwargs = message.additional_kwargs
        attributes = _attribute("tool_call_id", kwargs.get("tool_call_id"))
        attributes += _attribute("name", kwargs.get("name"))
    else:
        attributes = _attribute("name", speaker)
    role = message.role.value
    if brief:
        text = _brief(role, attributes, body)
    else:
        text = f'{_ROLE}"{role}"{attributes}>{body}{CLOSING}'
    has_media = any(block.block_type in MEDIA_TOKENS for block in message.blocks)
    return Entry(
        "message",
        text,
        counter.count(text),
        day,
        row_id=row_id,
        is_result=is_result,
        role=role,
        has_media=has_media,
    )


def plain_entry(
    row_id: int,
    stored: Mapping[str, Json],
    tokens: int,
    tags: Iterable[str],
    *,
    speaker: str,
) -> Entry | None:
    """Return the brief entry of a stored message with text alone, as ``entry_of``; None for any other message.

    ``entry_of`` takes much longer: it needs a parsed message, and counts the tokens.
    """
    kwargs = stored.get("additional_kwargs") or {}
    if stored["role"] in RESULT_ROLES or not _SHOWN_KEYS.isdisjoint(kwargs):
        return None
    texts = []
    for block in stored.get("blocks") or ():
        if block.get("block_type") != "text":
            return None
        texts.append(block["text"])
    body = escape_tags("\n".join(filter(None, texts)), tags)
    text = _brief(stored["role"], _attribute("name", speaker), body)
    return Entry("message", text, tokens, row_id=row_id, role=stored["role"])


def _brief(role: str, attributes: str, body: str) -> str:
    return f"<message {role}{attributes}>{body.rstrip()}\n"


def _attribute(name: str, value: Json) -> str:
    """Return an attribute of a tag, on one line and of a limited length; "" for no value."""
    text = " ".join(str(value or "").split())
    if not text:
        return ""
    return f' {name}="{escape(text[:_NAME_CHARACTERS])}"'


def clip_entry(
    entry: Entry,
    limit: int,
    counter: TokenCounter,
    clip: Callable[[str, int], str] | None = None,
) -> Entry:
    """Return the entry with its body clipped, by default in the middle, so that it has at most ``limit`` tokens.

    If not even the tags fit, the entry has no body, and more tokens than ``limit``.
    """
    if entry.tokens <= limit:
        return entry
    clipped = clipped_element(
        entry.tags, entry.body, limit, counter, clip or counter.clip
    )
    return replace(entry, text=clipped.text, tokens=clipped.tokens)


def clipped_element(
    tags: tuple[str, str],
    body: str,
    limit: int,
    counter: TokenCounter,
    clip: Callable[[str, int], str],
) -> ClippedText:
    """Return a text between two tags, clipped as by ``clip_entry``."""
    body_limit = limit - counter.count("".join(tags))
    while True:
        text = clip(body, body_limit).join(tags)
        tokens = counter.count(text)
        if tokens <= limit or body_limit <= 0:
            return ClippedText(text, tokens)
        body_limit -= tokens - limit


def escape_tags(text: str, tags: Iterable[str] = ()) -> str:
    """Escape the "<" of our tags and of ``tags``.

    >>> escape_tags('</message><b>bold</b> <memory_limit>')
    '&lt;/message><b>bold</b> <memory_limit>'
    """
    if "<" in text:
        return _tag_pattern(OUR_TAGS.union(tags)).sub("&lt;", text)
    return text


def unescape_tags(text: str, tags: Iterable[str] = ()) -> str:
    """Revert ``escape_tags`` in text that a model has copied from a prompt.

    >>> unescape_tags("Likes &lt;/message> tags")
    'Likes </message> tags'
    """
    if "&lt;" in text:
        return _tag_pattern(OUR_TAGS.union(tags), "&lt;").sub("<", text)
    return text


@lru_cache(maxsize=64)
def _tag_pattern(tags: frozenset[str], opening: str = "<") -> re.Pattern[str]:
    """Return a pattern of the ``opening`` of each tag, also with invisible signs within the tag: models ignore them."""
    names = "|".join(f"{_UNSEEN}*".join(map(re.escape, tag)) for tag in sorted(tags))
    # Each sign fits one place only, so that a long run of them takes no longer.
    gap = rf"(?:\s|{_UNSEEN})*"
    return re.compile(
        rf"{opening}(?={gap}(?:/{gap})?(?:{names})(?![\w.:-]))", re.IGNORECASE
    )


def body_of(message: ChatMessage) -> str:
    """Return the texts and tool calls of a message and a mark for each medium; not escaped, without thinking.

    Of its ``additional_kwargs`` only tool calls and a refusal are shown.
    """
    calls = []
    for call in calls_of(message):
        head = f"[tool call {call.id}]" if call.id else "[tool call]"
        calls.append(f"{head} {call.name}({call.arguments})")
    lines = []
    for block in message.blocks:
        if isinstance(block, ToolCallBlock):
            lines.append(calls.pop(0))
        else:
            lines += _block_lines(block)
    # The calls in ``additional_kwargs`` have no blocks.
    lines += calls
    refusal = message.additional_kwargs.get(REFUSAL_KEY)
    if isinstance(refusal, str):
        lines.append(refusal)
    return "\n".join(filter(None, lines))


def _block_lines(block: Json) -> Iterator[str]:
    """Yield the lines of a content block. A block of an unknown kind is shown by the name of its kind."""
    kind = block.block_type
    if isinstance(block, TextBlock):
        yield block.text
    elif kind == "citable":
        yield f"[{kind}: {block.title}]"
        for part in block.content:
            yield from _block_lines(part)
    elif kind == "citation":
        yield f"[{kind}: {block.title}]"
        yield from _block_lines(block.cited_content)
    elif kind not in HIDDEN:
        details = _medium_details(block)
        yield f"[{kind}: {details}]" if details else f"[{kind}]"


def _medium_details(block: Json) -> str:
    """Return the title and the address of a medium on one line, "" for neither.

    An address that holds the data is left out.
    """
    details = []
    for name in ("title", "url"):
        detail = str(getattr(block, name, None) or "")
        if not detail.startswith("data:"):
            details += detail.split()
    return " ".join(details)


def characters_of(message: ChatMessage) -> int:
    """Return the approximate length of the text of a message, in characters."""
    return sum(
        len(block.text) for block in message.blocks if isinstance(block, TextBlock)
    )


def message_tokens(
    message: ChatMessage,
    counter: TokenCounter,
    media_tokens: Mapping[str, int] = MEDIA_TOKENS,
) -> int:
    """Return the tokens of a message: exact for text and tool calls, ``media_tokens`` for blocks of other types."""
    media = sum(media_tokens.get(block.block_type, 0) for block in message.blocks)
    return counter.count(body_of(message)) + media


def tokens_of(messages: Iterable[Counted]) -> int:
    """Return the tokens of all messages together."""
    return sum([message.tokens for message in messages])
