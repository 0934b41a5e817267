"""Renders messages as text, and tells by what a message is known and when it was said."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import lru_cache
from html import escape
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from llama_index.core.base.llms.types import (
    ChatMessage,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from pydantic import TypeAdapter, ValidationError

from llama_index_memory_ext.errors import MessageError, SettingError
from llama_index_memory_ext.language.words import CONTROLS
from llama_index_memory_ext.text.tool_calls import (
    ARGUMENTS_KEYS,
    ASSISTANT_ROLES,
    CALL_KEYS,
    HIDDEN,
    RESULT_ROLES,
    calls_of,
    fields_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from llama_index.core.base.llms.types import ContentBlock

    from llama_index_memory_ext.text.tokens import TokenCounter
    from llama_index_memory_ext.text.tool_calls import Counted, Json


# The first one with a time counts. They are the names of many programs, of OpenAI's
# API, and of ChatGPT's exports.
TIME_KEYS = ("timestamp", "created_at", "create_time", "date")
_TIME = TypeAdapter(datetime)


def times_in(values: Mapping[str, object]) -> dict[str, datetime]:
    """Return the times (UTC) among the ``TIME_KEYS`` of an object, each by its key, in the order of the keys.

    A time is a ``datetime``, an ISO text, a text as mails have it (RFC 2822), or a Unix
    time in seconds or milliseconds; without a zone it is in UTC. Everything else is
    left out.

    >>> times_in({"date": "2023-05-08", "created_at": 1_683_554_400, "timestamp": "soon"})["created_at"].isoformat()
    '2023-05-08T14:00:00+00:00'
    """
    found: dict[str, datetime] = {}
    for key in TIME_KEYS:
        # Of a strange text the reader of mails raises the others.
        with suppress(ValueError, OverflowError, IndexError, TypeError):
            time = _time_of(values.get(key))
            time = time.replace(tzinfo=time.tzinfo or timezone.utc).astimezone(
                timezone.utc
            )
            # A smaller number is no time in seconds, but a place in a list or a
            # duration.
            if time.timestamp() >= 100_000_000:  # noqa: PLR2004
                found[key] = time
    return found


def _time_of(value: object) -> datetime:
    """Return a time; a ValueError if it is none."""
    try:
        return _TIME.validate_python(value)
    except ValidationError:
        if not isinstance(value, str):
            raise
    return parsedate_to_datetime(value)


# Stands between the memory and the user's message. benchmarks/one_message.py measures
# what it does.
HINT = "Use the conversation above to answer this:"
# Where a program writes the id into ``additional_kwargs``.
ID_KEY = "message_id"
# Where it writes who has said it, in a session of several users.
SPEAKER_KEY = "user_id"
# LlamaIndex writes it into messages that it hands to blocks.
_HOSTS_KEY = "session_id"
# Longer ones would not fit into the index of a server.
_MOST_CHARACTERS = 255


def message_id_of(kwargs: Mapping[str, Json], key: str = ID_KEY) -> str | None:
    """Return the id in a message's ``additional_kwargs``, a number as its text; None if it has none.

    With another ``key``, the id of something else.

    Raises a MessageError for one that is neither a text nor a number, is blank, or has
    more than 255 characters.

    >>> message_id_of({"message_id": 7}), message_id_of({"tool_call_id": "c1"})
    ('7', None)
    """
    value = kwargs.get(key)
    if value is None:
        return None
    # The text of a longer integer is refused by Python.
    is_short = type(value) is int and value.bit_length() < _MOST_CHARACTERS
    is_number = is_short or (type(value) is float and isfinite(value))
    if is_number or isinstance(value, str):
        text = str(value)
    else:
        text = ""
    if (
        not text.strip()
        or len(text) > _MOST_CHARACTERS
        or (key != ID_KEY and text != text.strip())
    ):
        if isinstance(value, str):
            seen = f"{len(text)} characters"
        else:
            seen = f"a {type(value).__name__}"
        raise MessageError(
            f"Expected additional_kwargs[{key!r}] to be a text of 1 to {_MOST_CHARACTERS} characters, without blanks "
            f"around it, or a number; saw {seen}. Write str(...) around an id of another type."
        )
    return text


def is_same(stored: Json, given: Mapping[str, Json]) -> bool:
    """Return whether a stored message, as JSON, is the given one.

    What LlamaIndex itself adds does not count, nor does an id that the given one leaves
    out.
    """
    if ID_KEY in (given.get("additional_kwargs") or {}):
        ignored = {_HOSTS_KEY}
    else:
        ignored = {_HOSTS_KEY, ID_KEY}
    if not isinstance(stored, dict):
        return False
    both = [dict(stored), dict(given)]
    for data in both:
        if isinstance(kwargs := data.get("additional_kwargs"), dict):
            data["additional_kwargs"] = {
                key: value for key, value in kwargs.items() if key not in ignored
            }
    return both[0] == both[1]


INSTRUCTION_ROLES: frozenset[str] = frozenset(
    {MessageRole.SYSTEM, MessageRole.DEVELOPER}
)
OUR_TAGS = frozenset(
    {
        "memory",
        "condensed_memory",
        "relevant_facts",
        "message",
        "fact",
        "conversation_summary",
        "earlier_messages",
    }
)
CLOSING = "</message>\n"
# What LlamaIndex's Memory counts for a block that is not text.
MEDIA_TOKENS = {"image": 256, "audio": 256, "video": 256, "document": 2048}

# Where ``additional_kwargs`` hold words, besides tool calls. Providers add numbers and
# signatures under other keys.
_REFUSAL_KEY = "refusal"
_SOURCES_KEYS = ("citations", "annotations")
# What a reader wants to know of a source, by the names of several providers.
_SOURCE_FIELDS = ("title", "document_title", "filename", "url", "cited_text")
# Where a message holds what was said, or thought, or asked of a tool.
_SAID_KEYS = frozenset(
    {"text", "content", "tool_kwargs", *ARGUMENTS_KEYS, _REFUSAL_KEY, *_SOURCES_KEYS}
)

_ROLE = "<message role="
_SHOWN_ROLE = re.compile(r'<message (?:role=")?(\w+)')
_UNSEEN = f"[\u200c\u200d{CONTROLS}]"
# What a CodeActAgent runs of an answer.
_CODE = re.compile(r"<execute>(.*?)</execute>", re.DOTALL)
_UNSTORABLE = re.compile("[\ud800-\udfff\x00]")
# A message of a ReActAgent, with its last answer if there is one.
_REACT = re.compile(
    r"\s*(?:Thought|Action|Action Input|Observation):(?:.*\sAnswer:(?P<answer>.*))?",
    re.DOTALL,
)


# The role of what another user has said, in a session of several.
OTHER_ROLE = "other user"


class Utterance(NamedTuple):
    """What ``spoken`` returns for a message, with the message's row in the log and its role (user or assistant).

    The row is 0 for what stands in no log. ``speaker`` is the user whose turn it is in,
    in a session of several.
    """

    row_id: int
    role: str
    text: str
    speaker: str = ""

    @property
    def is_users(self) -> bool:
        """Whether the user wrote it."""
        return self.role == MessageRole.USER.value


@dataclass(frozen=True, slots=True)
class Entry:
    """One message as the record shows it: ``<message role="user">the text</message>`` and a newline.

    Of a brief one, ``<message user>the text`` and a newline, the next tag is the end.
    ``tokens`` are those of the heading, too.
    """

    row_id: int
    text: str
    tokens: int
    has_media: bool = False
    # The day on which it was said, and what stands above it where that is another one
    # than before.
    day: str = ""
    heading: str = ""

    @property
    def tags(self) -> tuple[str, str]:
        """What stands before and after the body: the first tag, within whose attributes ">" is escaped, and the end."""
        return self.text[: self.text.index(">") + 1], CLOSING if self.text.startswith(
            _ROLE
        ) else "\n"

    @property
    def body(self) -> str:
        """The text between the tags."""
        opening, closing = self.tags
        return self.text[len(opening) : -len(closing)]

    @property
    def role(self) -> str:
        """The role of the message: "user", "assistant", ..."""
        return str(_SHOWN_ROLE.findall(self.text)[0])

    @property
    def is_result(self) -> bool:
        """Whether it is a tool's result, which is never shown without the entry before it."""
        return self.role in RESULT_ROLES


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

    The ``speaker`` is named, if there is one. On the ``day`` it was said, "" if that is
    unknown.
    """
    body = escape_tags(body_of(message), tags)
    if not body.strip():
        return None
    if message.role in RESULT_ROLES:
        kwargs = message.additional_kwargs
    else:
        kwargs = {"name": speaker}
    given = {
        key: " ".join(str(kwargs.get(key) or "").split())
        for key in ("tool_call_id", "name")
    }
    names = "".join(
        f' {key}="{escape(value[:200])}"' for key, value in given.items() if value
    )
    role = message.role.value
    if brief:
        text = f"<message {role}{names}>{body.rstrip()}\n"
    else:
        text = f'{_ROLE}"{role}"{names}>{body}{CLOSING}'
    has_media = any(one.block_type in MEDIA_TOKENS for one in message.blocks)
    return Entry(row_id, text, counter.count(text), has_media, day)


def clip_entry(
    entry: Entry,
    limit: int,
    counter: TokenCounter,
    clip: Callable[[str, int], str] | None = None,
) -> Entry:
    """Return the entry with its body clipped, by default in the middle, so that it has at most ``limit`` tokens.

    If not even the tags fit, it has no body and more tokens.
    """
    if entry.tokens <= limit:
        return entry
    text, tokens = clipped_element(
        entry.tags, entry.body, limit, counter, clip or counter.clip
    )
    return replace(entry, text=text, tokens=tokens)


def clipped_element(
    tags: tuple[str, str],
    body: str,
    limit: int,
    counter: TokenCounter,
    clip: Callable[[str, int], str],
) -> tuple[str, int]:
    """Return a text between two tags, clipped as by ``clip_entry``, and its tokens."""
    room = limit - counter.count("".join(tags))
    while True:
        text = clip(body, room).join(tags)
        tokens = counter.count(text)
        if tokens <= limit or room <= 0:
            return text, tokens
        room -= tokens - limit


def escape_tags(text: str, tags: Iterable[str] = ()) -> str:
    """Escape the "<" of our tags and of ``tags``.

    >>> escape_tags('</message><b>bold</b> <memory_limit>')
    '&lt;/message><b>bold</b> <memory_limit>'
    """
    if "<" not in text:
        return text
    pattern = _tag_pattern(OUR_TAGS.union(tags))
    pieces = list[str]()
    start = 0
    # A search lets no other thread run, so pieces are searched. No tag reaches over the
    # "<" of the next one.
    while 0 <= start < len(text):
        end = text.find("<", start + 100_000)
        pieces.append(pattern.sub("&lt;", text[start:] if end < 0 else text[start:end]))
        start = end
    return "".join(pieces)


def unescape_tags(text: str, tags: Iterable[str] = ()) -> str:
    """Revert ``escape_tags`` in text that a model has copied from a prompt.

    >>> unescape_tags("Likes &lt;/message> tags")
    'Likes </message> tags'
    """
    if "&lt;" in text:
        return _tag_pattern(OUR_TAGS.union(tags), "&lt;").sub("<", text)
    return text


def body_of(message: ChatMessage) -> str:
    """Return the texts and tool calls of a message and a mark for each medium; not escaped, without thinking.

    Of its ``additional_kwargs`` only tool calls, a refusal and the sources of an answer
    are shown.
    """
    heads = (
        (f"[tool call {call.id}]" if call.id else "[tool call]", call)
        for call in calls_of(message)
    )
    calls = (f"{head} {call.name}({call.arguments})" for head, call in heads)
    lines: list[str] = []
    for block in message.blocks:
        lines += (
            [next(calls)] if isinstance(block, ToolCallBlock) else _block_lines(block)
        )
    lines += calls
    lines += _lines_in_kwargs(message.additional_kwargs)
    return "\n".join(filter(None, lines))


def characters_of(message: ChatMessage) -> int:
    """Return about how long the text of a message is."""
    return sum(
        len(block.text) if isinstance(block, TextBlock) else 0
        for block in message.blocks
    )


def spoken(message: ChatMessage) -> str:
    """Return the text of a user's message or a final answer (of ReAct, what follows the last ``Answer:``); else ""."""
    text: str = cleaned(message.content or "").strip()
    if message.role == MessageRole.USER:
        return text
    if message.role not in ASSISTANT_ROLES or has_calls(message) or runs_code(message):
        return ""
    thoughts = _REACT.match(text)
    if thoughts:
        return (thoughts["answer"] or "").strip()
    return text


def is_answer(message: ChatMessage) -> bool:
    """Return whether a message is a final answer: the assistant says something in it, and calls no tool."""
    return message.role in ASSISTANT_ROLES and bool(spoken(message))


def has_calls(message: ChatMessage) -> bool:
    """Return whether a message has tool calls. It is much faster than reading them."""
    in_kwargs = any(message.additional_kwargs.get(key) for key in CALL_KEYS)
    return in_kwargs or any(
        isinstance(block, ToolCallBlock) for block in message.blocks
    )


def runs_code(message: ChatMessage) -> bool:
    """Return whether a CodeActAgent runs code that the assistant has written in this message."""
    return message.role in ASSISTANT_ROLES and any(
        map(str.strip, _CODE.findall(message.content or ""))
    )


def is_printed(message: ChatMessage) -> bool:
    """Return whether a user's message reads as what a CodeActAgent stores of a program; a user may write that, too."""
    is_users = message.role == MessageRole.USER
    printed = "Result of executing the code given:"
    return is_users and (message.content or "").startswith(printed)


def as_taken(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return the messages with those that a CodeActAgent stores as the user's as a tool's results, in copies.

    They tell what the assistant's code, right before them, has printed. All other
    messages are the same objects.

    >>> code = ChatMessage("<execute>print(1)</execute>", role="assistant")
    >>> [one.role.value for one in as_taken([code, ChatMessage("Result of executing the code given: 1")])]
    ['assistant', 'tool']
    """
    taken: list[ChatMessage] = []
    ran = False
    for message in messages:
        is_result = ran and is_printed(message)
        taken.append(
            message.model_copy(update={"role": MessageRole.TOOL})
            if is_result
            else message
        )
        # The result of a call at the same time may stand between them.
        ran = runs_code(message) or (ran and taken[-1].role in RESULT_ROLES)
    return taken


def checked_messages(messages: Json) -> list[ChatMessage]:
    """Return the messages of any iterable as a list; a MessageError if it is none, or one has a wrong id."""
    is_list = isinstance(messages, Iterable) and not isinstance(
        messages, ChatMessage | str | dict
    )
    if is_list:
        found = list(messages)
    else:
        found = [messages]
    for message in found:
        if not (is_list and isinstance(message, ChatMessage)):
            raise MessageError(
                f"Expected a list of ChatMessage objects; this is a {type(message).__name__}. "
                'Wrap a text as ChatMessage(role="user", content=text).'
            )
        message_id_of(message.additional_kwargs)
    return found


def redacted(message: ChatMessage, redact: Callable[[str], str]) -> ChatMessage:
    """Return a copy of a message with each text changed by a function, and each text in the arguments of tool calls.

    Ids, names, media and other ``additional_kwargs`` stay. A SettingError if the
    function fails or returns no text.
    """

    def changed(value: Json, *, is_said: bool) -> Json:
        if isinstance(value, dict):
            return {
                key: changed(one, is_said=is_said or key in _SAID_KEYS)
                for key, one in value.items()
            }
        if isinstance(value, list):
            return [changed(one, is_said=is_said) for one in value]
        if is_said and isinstance(value, str):
            return _redacted_text(value, redact)
        return value

    return ChatMessage.model_validate(changed(storable(message), is_said=False))


def _redacted_text(text: str, redact: Callable[[str], str]) -> str:
    try:
        found: object = redact(text)
        saw = f"one that returns a {type(found).__name__}"
    except Exception as error:  # noqa: BLE001 - a function of the program's own may fail in any way
        found = None
        saw = f"one that raises a {type(error).__name__}"
    if isinstance(found, str):
        return found
    # Not where it was caught: the other error, in which the text may stand, would be
    # its context.
    raise SettingError(
        f"redact must be a function that returns a text for each text; saw {saw}. Nothing was stored."
    )


def message_tokens(
    message: ChatMessage,
    counter: TokenCounter,
    media_tokens: Mapping[str, int] = MEDIA_TOKENS,
) -> int:
    """Return the tokens of a message: exact for text and tool calls, ``media_tokens`` for blocks of other types."""
    media = sum(media_tokens.get(block.block_type, 0) for block in message.blocks)
    return counter.count(body_of(message)) + media


def tokens_by_bytes(
    message: ChatMessage, counter: TokenCounter, media_tokens: Mapping[str, int]
) -> int:
    """As ``message_tokens``, but LlamaIndex's estimate of pictures whose bytes are in the message, if it is higher.

    Of a picture elsewhere nothing is read.
    """
    tokens = message_tokens(message, counter, media_tokens)
    for picture in message.blocks:
        if isinstance(picture, ImageBlock):
            held = picture.image
            url = str(picture.url or "")
            if not isinstance(held, bytes):
                if url.startswith("data:"):
                    held = url.partition(",")[2].encode()
                else:
                    held = b""
            # Its size stands at the beginning, and the whole takes long to decode.
            # Whole groups of base64.
            beginning = picture.model_copy(update={"image": held[:65_536]})
            try:
                # Asynchronous in name alone: with the bytes at hand it waits for
                # nothing. Of no bytes it gives 0.
                beginning.aestimate_tokens().send(None)
            except StopIteration as estimated:
                tokens += max(int(estimated.value) - media_tokens["image"], 0)
    return tokens


def tokens_of(messages: Iterable[Counted]) -> int:
    """Return the tokens of all messages together."""
    return sum([message.tokens for message in messages])


def storable(message: ChatMessage) -> dict[str, Json]:
    """Return the message as ``cleaned`` JSON values. The message itself is not changed."""
    blocks = list(map(_without_bytes, message.blocks))
    return dict(
        cleaned(message.model_copy(update={"blocks": blocks}).model_dump(mode="json"))
    )


def _without_bytes(block: ContentBlock) -> ContentBlock:
    """Return a block of thinking with its signature in base64: Gemini's is bytes, which JSON cannot hold."""
    if not isinstance(block, ThinkingBlock):
        return block
    details = dict(block.additional_information)
    for name, value in details.items():
        if isinstance(value, bytes):
            details[name] = b64encode(value).decode()
    return block.model_copy(update={"additional_information": details})


def cleaned(value: Json) -> Json:
    """Return a JSON value without NUL and lone surrogates, which databases and APIs refuse: they become U+FFFD."""
    if isinstance(value, str) and _UNSTORABLE.search(value):
        return (
            value.encode("utf-16", "surrogatepass")
            .decode("utf-16", "replace")
            .replace("\x00", "\ufffd")
        )
    if isinstance(value, dict):
        return {cleaned(key): cleaned(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [cleaned(entry) for entry in value]
    return value


def turns_in(
    messages: Iterable[ChatMessage], turns_before: Iterable[list[str]] = ()
) -> list[list[str]]:
    """Return the spoken texts of each turn, oldest first. Texts before the first question are a turn of their own."""
    said = (Utterance(0, message.role, spoken(message)) for message in messages)
    return turns_of((one for one in said if one.text), turns_before)


def turns_of(
    said: Iterable[Utterance], turns_before: Iterable[list[str]] = ()
) -> list[list[str]]:
    """Return the texts of each turn of what was said, as ``turns_in``."""
    turns = [list(texts) for texts in turns_before]
    for one in said:
        if one.is_users or not turns:
            turns.append([])
        turns[-1].append(one.text)
    return turns


def question_in(
    messages: Sequence[ChatMessage], turns_before: Sequence[list[str]], max_turns: int
) -> tuple[str, list[str]]:
    """Return the newest question, or "", and the texts of up to ``max_turns - 1`` turns before it, oldest first."""
    last = max(
        (i for i, message in enumerate(messages) if message.role == MessageRole.USER),
        default=-1,
    )
    turns = [*turns_before, *turns_in(messages[: last + 1])]
    question = turns[-1][0] if turns else ""
    return question, ["\n".join(turn) for turn in turns[-max_turns:-1]]


def extract_conversation_context(
    messages: Iterable[ChatMessage], max_turns: int = 3
) -> str:
    """Return the texts of the last turns, oldest first, with a blank line between turns; "" if there are none.

    Args:
        messages: Any messages. Tool calls and results are left out.
        max_turns: Most turns, the current one included.
    """
    turns = turns_in(as_taken(messages))
    return "\n\n".join(
        " ".join(" ".join(texts).split())
        for texts in turns[max(len(turns) - max_turns, 0) :]
    )


def _lines_in_kwargs(kwargs: Mapping[str, Json]) -> Iterator[str]:
    """Yield a refusal, and a line for each source of an answer."""
    refusal = kwargs.get(_REFUSAL_KEY)
    if isinstance(refusal, str):
        yield refusal
    for key in _SOURCES_KEYS:
        sources = kwargs.get(key)
        for source in sources if isinstance(sources, list) else ():
            fields = fields_of(source)
            # OpenAI's Chat Completions have one more level.
            fields = fields_of(fields.get("url_citation") or fields)
            if isinstance(source, str):
                words = [source]
            else:
                words = [fields.get(name) for name in _SOURCE_FIELDS]
            text = " ".join(word for word in words if isinstance(word, str) and word)
            if text:
                yield f"[citation: {text}]"


@lru_cache(maxsize=64)
def _tag_pattern(tags: frozenset[str], opening: str = "<") -> re.Pattern[str]:
    # A model reads over what nobody sees. Each sign fits one place only, so that a long
    # run of them takes no longer.
    names = "|".join(f"{_UNSEEN}*".join(map(re.escape, tag)) for tag in sorted(tags))
    gap = rf"(?:\s|{_UNSEEN})*"
    return re.compile(
        rf"{opening}(?={gap}(?:/{gap})?(?:{names})(?![\w.:-]))", re.IGNORECASE
    )


def _block_lines(block: Json) -> Iterator[str]:
    """Yield the lines of a content block. A block of an unknown kind is shown by the name of its kind."""
    if isinstance(block, TextBlock):
        yield block.text
    elif block.block_type in ("citable", "citation"):
        yield f"[{block.block_type}: {block.title}]"
        for part in (
            block.content if block.block_type == "citable" else [block.cited_content]
        ):
            yield from _block_lines(part)
    elif block.block_type not in HIDDEN:
        details = map(
            str,
            filter(None, (getattr(block, "title", None), getattr(block, "url", None))),
        )
        shown = " ".join(
            " ".join(
                detail for detail in details if not detail.startswith("data:")
            ).split()
        )
        yield f"[{block.block_type}: {shown}]" if shown else f"[{block.block_type}]"
