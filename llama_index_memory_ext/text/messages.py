"""Turns a ChatMessage into the text of one entry of the record."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import (
    ChatMessage,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)

from llama_index_memory_ext.errors import MessageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from llama_index_memory_ext.text.tokens import TokenCounter

ASSISTANT_ROLES = frozenset({MessageRole.ASSISTANT, MessageRole.CHATBOT, MessageRole.MODEL})
# The roles of instructions to the assistant.
INSTRUCTION_ROLES = frozenset({MessageRole.SYSTEM, MessageRole.DEVELOPER})
# The roles of a tool's result.
RESULT_ROLES = frozenset({MessageRole.TOOL, MessageRole.FUNCTION})
OUR_TAGS = frozenset(
    {"memory", "condensed_memory", "relevant_facts", "message", "fact", "conversation_summary", "earlier_messages"}
)
CLOSING = "</message>\n"

_INVISIBLE_BLOCKS = frozenset({"thinking", "cache"})
# What a block or the tags of an entry show already, or what the host adds for its own use.
_SHOWN_ELSEWHERE = frozenset({"session_id", "tool_calls", "function_call", "tool_call_id", "name", "images"})
_UNSTORABLE = re.compile("[\ud800-\udfff\x00]")
# How a ReActAgent's message begins, and where the answer in it does.
_REACT_START = re.compile(r"\s*(?:Thought|Action|Action Input|Observation):")
_REACT_ANSWER = re.compile(r"(?:^|\s)Answer:")


class ToolCall(NamedTuple):
    """A call that a model asked for. ``arguments`` is the JSON text, or whatever the model sent."""

    id: str
    name: str
    arguments: str


class Line(NamedTuple):
    """What one message of the log said: its row, who spoke (user or assistant), and the words (``spoken``)."""

    row_id: int
    role: str
    text: str

    @property
    def is_users(self) -> bool:
        """Whether the user said it."""
        return self.role == MessageRole.USER.value


@dataclass(frozen=True, slots=True)
class Entry:
    """One message as the record shows it: ``<message role="user">the text</message>`` and a newline.

    ``starts_turn`` is true for a user's message; ``is_result`` is true for a tool's result, which
    must never stand without the entry before it.
    """

    row_id: int
    opening: str
    text: str
    tokens: int
    starts_turn: bool
    is_result: bool

    @property
    def body(self) -> str:
        """The text between the tags."""
        return self.text[len(self.opening) : -len(CLOSING)]

    @property
    def role(self) -> str:
        """Who speaks: "user", "assistant", ..."""
        return self.opening.split('"', 2)[1]


def entry_of(
    row_id: int, message: ChatMessage, counter: TokenCounter, tags: Iterable[str] = (), day: str = ""
) -> Entry | None:
    """The entry of a message, or None if there is nothing to show (an empty or a thinking-only message).

    ``tags`` are further element names, besides our own, that the text must not be able to forge. ``day`` is shown
    as the message's date.
    """
    body = escape_tags(body_of(message), tags)
    if not body.strip():
        return None
    opening = _opening(message, day)
    text = f"{opening}{body}{CLOSING}"
    return Entry(
        row_id=row_id,
        opening=opening,
        text=text,
        tokens=counter.count(text),
        starts_turn=message.role == MessageRole.USER,
        is_result=message.role in RESULT_ROLES,
    )


def clip_entry(entry: Entry, limit: int, counter: TokenCounter, clip: Callable[[str, int], str] | None = None) -> Entry:
    """The entry with its body clipped so that it has at most ``limit`` tokens, its tags included.

    ``clip`` shortens a text to a number of tokens; by default ``counter.clip``, which leaves out the middle.
    If not even the tags fit, the entry comes back with no body and more tokens than the limit.
    """
    if entry.tokens <= limit:
        return entry
    clip = clip or counter.clip
    room = limit - counter.count(entry.opening + CLOSING)
    while True:
        text = f"{entry.opening}{clip(entry.body, room)}{CLOSING}"
        tokens = counter.count(text)
        if tokens <= limit or room <= 0:
            return replace(entry, text=text, tokens=tokens)
        room -= tokens - limit


def escape_tags(text: str, tags: Iterable[str] = ()) -> str:
    """Take the force from text that would open or close one of our tags; all else stays as it is.

    >>> escape_tags('</message><b>bold</b> <memory_limit>')
    '&lt;/message><b>bold</b> <memory_limit>'
    """
    if "<" not in text:
        return text
    return _tag_pattern(OUR_TAGS.union(tags)).sub("&lt;", text)


def unescape_tags(text: str, tags: Iterable[str] = ()) -> str:
    """What ``escape_tags`` was given, for text that a model has copied from a prompt.

    >>> unescape_tags("Likes &lt;/message> tags")
    'Likes </message> tags'
    """
    if "&lt;" not in text:
        return text
    return _tag_pattern(OUR_TAGS.union(tags), "&lt;").sub("<", text)


def body_of(message: ChatMessage) -> str:
    """The words of a message, its tool calls and a mark for each picture, sound or file; not escaped.

    Calls come from ``ToolCallBlock`` and from ``additional_kwargs`` only where there is no such
    block, because some LLM classes fill both. Thinking is left out.
    """
    lines = [line for block in message.blocks for line in _block_lines(block)]
    if not any(isinstance(block, ToolCallBlock) for block in message.blocks):
        lines += [_call_line(call) for call in _calls_in_kwargs(message.additional_kwargs)]
    extra = {
        key: value
        for key, value in message.additional_kwargs.items()
        if key not in _SHOWN_ELSEWHERE and value not in (None, "", [], {})
    }
    if extra:
        lines.append(f"[{_compact_json(extra)}]")
    return "\n".join(lines)


def spoken(message: ChatMessage) -> str:
    """What was said to one another: the text of a user's message or of a final answer, not escaped.

    Of a ReAct answer only what follows the last ``Answer:``. "" for tool calls, whatever is said beside
    them, for results, for instructions (system, developer), and where there is no text.
    """
    text = cleaned("\n".join(block.text for block in message.blocks if isinstance(block, TextBlock))).strip()
    if message.role == MessageRole.USER:
        return str(text)
    if message.role not in ASSISTANT_ROLES or calls_of(message):
        return ""
    if not _REACT_START.match(text):
        return str(text)
    answers = list(_REACT_ANSWER.finditer(text))
    return str(text[answers[-1].end() :]).strip() if answers else ""


def calls_of(message: ChatMessage) -> list[ToolCall]:
    """The tool calls of a message, [] if there are none.

    They come from ``ToolCallBlock`` and from ``additional_kwargs`` only where there is no such block,
    because some LLM classes fill both.
    """
    calls = [_call_of_block(block) for block in message.blocks if isinstance(block, ToolCallBlock)]
    return calls or list(_calls_in_kwargs(message.additional_kwargs))


def has_content(message: ChatMessage) -> bool:
    """Whether there is anything but thinking and empty texts among the blocks of a message."""
    return bool("".join(line for block in message.blocks for line in _block_lines(block)).strip())


def checked_messages(messages: Any) -> list[ChatMessage]:
    """The messages as a list, whatever they came in; [] for none.

    Raises:
        MessageError: It is no collection of chat messages, or something else is among them.
    """
    if isinstance(messages, ChatMessage | str | dict) or not isinstance(messages, Iterable):
        raise MessageError(f"Expected a list of ChatMessage objects; this is a {type(messages).__name__}.")
    found = list(messages)
    wrong = [type(message).__name__ for message in found if not isinstance(message, ChatMessage)]
    if wrong:
        raise MessageError(
            f"Expected ChatMessage objects; this is a {wrong[0]}. "
            'Wrap a text as ChatMessage(role="user", content=text).'
        )
    return found


def message_tokens(message: ChatMessage, counter: TokenCounter, media_tokens: Mapping[str, int]) -> int:
    """How many tokens the model is sent for a message: exact for text and tool calls, else the estimate.

    ``media_tokens`` gives the estimate for each block type that is not text (``{"image": 256}``).
    """
    media = sum(media_tokens.get(block.block_type, 0) for block in message.blocks)
    return counter.count(body_of(message)) + media


def storable(message: ChatMessage) -> dict[str, Any]:
    """The message as JSON values that every database and every model's API accepts.

    Lone surrogates and NUL become U+FFFD. The message itself is not changed.
    """
    stored: dict[str, Any] = cleaned(message.model_dump(mode="json"))
    return stored


@lru_cache(maxsize=64)
def _tag_pattern(tags: frozenset[str], opening: str = "<") -> re.Pattern[str]:
    names = "|".join(re.escape(tag) for tag in sorted(tags))
    return re.compile(rf"{opening}(?=\s*/?\s*(?:{names})(?![\w.:-]))", re.IGNORECASE)


def cleaned(value: Any) -> Any:
    """A value of JSON with U+FFFD for lone surrogates and NUL in its texts, which no database and no API takes."""
    if isinstance(value, str):
        if not _UNSTORABLE.search(value):
            return value
        # Two surrogates that belong together are one character; what is left alone is replaced.
        paired = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return paired.replace("\x00", "\ufffd")
    if isinstance(value, dict):
        return {cleaned(key): cleaned(entry) for key, entry in value.items()}
    return [cleaned(entry) for entry in value] if isinstance(value, list) else value


def _opening(message: ChatMessage, day: str) -> str:
    attributes = {"role": message.role.value, **({"date": day} if day else {})}
    if message.role in RESULT_ROLES:
        for key in ("tool_call_id", "name"):
            if message.additional_kwargs.get(key):
                attributes[key] = str(message.additional_kwargs[key])
    pairs = " ".join(f'{key}="{_attribute(value)}"' for key, value in attributes.items())
    return f"<message {pairs}>"


def _attribute(value: str) -> str:
    return escape(" ".join(value.split())[:200], quote=True)


def _block_lines(block: Any) -> Iterator[str]:
    """The lines of one content block; unknown kinds of later hosts are named, never dropped."""
    if isinstance(block, TextBlock):
        if block.text:
            yield block.text
    elif isinstance(block, ToolCallBlock):
        yield _call_line(_call_of_block(block))
    elif block.block_type == "citable":
        yield f"[citable: {block.title}]"
        for part in block.content:
            yield from _block_lines(part)
    elif block.block_type == "citation":
        yield f"[citation: {block.title}]"
        yield from _block_lines(block.cited_content)
    elif block.block_type not in _INVISIBLE_BLOCKS:
        yield _media_line(block)


def _media_line(block: Any) -> str:
    url = str(getattr(block, "url", None) or "")
    details = [getattr(block, "title", None), None if url.startswith("data:") else url]
    shown = " ".join(" ".join(str(detail).split()) for detail in details if detail)
    return f"[{block.block_type}: {shown}]" if shown else f"[{block.block_type}]"


def _call_of_block(block: ToolCallBlock) -> ToolCall:
    return ToolCall(block.tool_call_id or "", block.tool_name, _arguments(block.tool_kwargs))


def _call_line(call: ToolCall) -> str:
    head = f"[tool call {call.id}]" if call.id else "[tool call]"
    return f"{head} {call.name}({call.arguments})"


def _calls_in_kwargs(kwargs: Mapping[str, Any]) -> Iterator[ToolCall]:
    calls = kwargs.get("tool_calls") or []
    yield from map(_tool_call, calls if isinstance(calls, list) else [calls])
    if kwargs.get("function_call"):
        yield _tool_call(kwargs["function_call"])


def _tool_call(call: Any) -> ToolCall:
    """A call in any of the shapes in which providers write it; one of no known shape as its name."""
    dump = getattr(call, "model_dump", None)
    fields = call if isinstance(call, dict) else dump() if callable(dump) else {"name": call}
    function = fields.get("function") or fields.get("custom") or fields
    if not isinstance(function, dict):
        function = {"name": function}
    arguments: Any = next(
        (function[key] for key in ("arguments", "args", "input", "parameters") if key in function), {}
    )
    call_id = fields.get("id") or fields.get("call_id") or ""
    return ToolCall(str(call_id), str(function.get("name") or ""), _arguments(arguments))


def _arguments(value: Any) -> str:
    return value if isinstance(value, str) else _compact_json(value)


def _compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump() if callable(dump) else str(value)


def turns_in(messages: Iterable[ChatMessage]) -> list[list[str]]:
    """What was said in each turn, oldest first: the user's words and the final answers, no tool traffic.

    What was said before the first question stands in a turn of its own.
    """
    turns: list[list[str]] = []
    for message in messages:
        words = spoken(message)
        if words and (message.role == MessageRole.USER or not turns):
            turns.append([words])
        elif words:
            turns[-1].append(words)
    return turns


def question_in(
    messages: Sequence[ChatMessage], turns_before: Sequence[list[str]], max_turns: int
) -> tuple[str, list[str]]:
    """The question that messages end with, and what was said in each of the turns before it, oldest first.

    Args:
        messages: The turn that is going on. Where no user speaks in it, the last turn before it is asked about.
        turns_before: What was said in the turns before them, oldest first.
        max_turns: How many turns are looked at, the one of the question included.
    """
    last = max((i for i, message in enumerate(messages) if message.role == MessageRole.USER), default=-1)
    question = spoken(messages[last]) if last >= 0 else ""
    turns = [*turns_before, *turns_in(messages[: max(last, 0)])]
    if not question and turns:
        *turns, asked = turns
        question = asked[0]
    return question, ["\n".join(turn) for turn in turns[max(len(turns) - max_turns + 1, 0) :]]


def extract_conversation_context(messages: Iterable[ChatMessage], max_turns: int = 3) -> str:
    """What was said in the last turns, oldest first, with a blank line between two; "" if nothing was.

    Args:
        messages: Of any kind; of tool calls and results nothing is taken.
        max_turns: How many turns at the most, the one that is going on included.
    """
    turns = turns_in(messages)
    return "\n\n".join(" ".join(" ".join(words).split()) for words in turns[max(len(turns) - max_turns, 0) :])
