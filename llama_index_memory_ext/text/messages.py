"""Messages: their tool calls, times, stored form, text in the record, and turns."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone, tzinfo
from email.utils import parsedate_to_datetime
from functools import lru_cache
from html import escape
from itertools import count
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from llama_index.core.base.llms.types import (
    ChatMessage,
    ContentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from pydantic import Field, TypeAdapter, ValidationError

from llama_index_memory_ext.errors import MessageError, SettingError
from llama_index_memory_ext.words import CONTROLS

if TYPE_CHECKING:
    from llama_index_memory_ext.text.tokens import TokenCounter


# A function that returns how many of the oldest messages leave short-term memory.
Plan: TypeAlias = "Callable[[Sequence[ChatMessage]], int]"
# A value of JSON, or any object where LlamaIndex allows one.
Json: TypeAlias = Any

# A MessageRole is equal to its plain name and has its hash, so these sets contain both.
ASSISTANT_ROLES: frozenset[str] = frozenset(
    {MessageRole.ASSISTANT, MessageRole.CHATBOT, MessageRole.MODEL}
)
RESULT_ROLES: frozenset[str] = frozenset({MessageRole.TOOL, MessageRole.FUNCTION})
CALL_KEYS = ("tool_calls", "function_call")
# The kinds of blocks that are never shown.
HIDDEN = frozenset({"thinking", "cache"})
# The keys of a call's id in OpenAI's two APIs, and in Bedrock.
_ID_KEYS = ("id", "call_id", "toolUseId")
ARGUMENTS_KEYS = ("arguments", "args", "input", "parameters")
# Providers write a refusal and the sources of an answer under these keys of
# ``additional_kwargs``. Their other keys hold numbers and signatures.
REFUSAL_KEY = "refusal"
SOURCES_KEYS = ("citations", "annotations")
# The most characters that are read of a model's answer: ten times the longest answer
# that the package asks for. Reading more would hold the interpreter's lock, and so
# every thread, for longer than a tenth of a second.
MOST_CHARACTERS = 400_000


class HasRole(Protocol):
    """A message in any form."""

    @property
    def role(self) -> str:
        """The role of the message."""


class Counted(HasRole, Protocol):
    """A message with its tokens."""

    @property
    def tokens(self) -> int:
        """The tokens of the message."""


M = TypeVar("M", bound=ChatMessage | HasRole)


class MovedMessage(ChatMessage):
    """A message on its way from one database to another, with the time at which it was stored first."""

    stored_at: datetime = Field(exclude=True)


# ---- tool calls ----


class ToolCall(NamedTuple):
    """A call that a model asked for. ``arguments`` is JSON, or the text that the model sent."""

    id: str
    name: str
    arguments: str


def calls_of(message: ChatMessage) -> list[ToolCall]:
    """Return the calls in the blocks of a message, else those in ``additional_kwargs``: some LLM classes fill both."""
    calls = []
    for block in message.blocks:
        if isinstance(block, ToolCallBlock):
            arguments = to_json(block.tool_kwargs)
            calls.append(ToolCall(block.tool_call_id or "", block.tool_name, arguments))
    if calls:
        return calls
    return [_parse_call(value) for _, value in _calls_in_kwargs(message)]


def _parse_call(value: Json) -> ToolCall:
    """Return a call in the format of any provider. A value in no known format becomes the name."""
    fields = fields_of(value)
    function = fields_of(fields.get("function") or fields.get("custom") or fields)
    arguments: Json = next(
        (function[key] for key in ARGUMENTS_KEYS if key in function), {}
    )
    call_id = next(filter(None, map(fields.get, _ID_KEYS)), "")
    name = function.get("name") or ""
    return ToolCall(str(call_id), str(name), to_json(arguments))


def to_json(value: Json) -> str:
    """Return a text as it is, any other value as JSON on one line. Objects that JSON does not know become texts."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=_plain)


def is_longer(value: Json, most: int) -> bool:
    """Return whether a value has more than ``most`` characters and entries together. The rest is not read.

    >>> is_longer({"a": ["bcd"]}, 5), is_longer({"a": ["bcd"]}, 6)
    (True, False)
    """
    waiting = [value]
    length = 0
    while waiting and length <= most:
        part = waiting.pop()
        if isinstance(part, str | dict | list):
            length += len(part)
        if length <= most and isinstance(part, dict):
            waiting += [*part.keys(), *part.values()]
        elif length <= most and isinstance(part, list):
            waiting += part
    return length > most


def has_content(message: ChatMessage) -> bool:
    """Return whether a message has a call or a block other than thinking and blank text."""
    if calls_of(message):
        return True
    for block in message.blocks:
        if isinstance(block, TextBlock):
            if block.text.strip():
                return True
        elif block.block_type not in HIDDEN:
            return True
    return False


def tool_call_groups(messages: Iterable[M]) -> list[list[M]]:
    """Return the messages in groups: each message with the tool results that directly follow it."""
    groups: list[list[M]] = []
    for message in messages:
        if message.role in RESULT_ROLES and groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups


def complete_calls(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return the messages without results that have no call and calls that have no result.

    A call is removed from a copy of its message, and a message that is then empty is
    left out. All other messages are the same objects. Only assistants make calls.
    """
    complete = []
    for caller, *results in tool_call_groups(messages):
        if caller.role in RESULT_ROLES:
            continue
        calls = calls_of(caller)
        pairs = {}
        if caller.role in ASSISTANT_ROLES:
            pairs = _pair_results(calls, results)
        if len(pairs) == len(calls):
            complete.append(caller)
        else:
            copy = _with_calls(caller, set(pairs.values()))
            if not has_content(copy):
                continue
            complete.append(copy)
        complete += [result for i, result in enumerate(results) if i in pairs]
    return complete


def _pair_results(
    calls: Sequence[ToolCall], results: Sequence[ChatMessage]
) -> dict[int, int]:
    """Return the index of the call of each result, by the index of the result.

    Calls and results with equal ids are paired first. Then each remaining result gets
    the next call, if the call or the result has no id.
    """
    result_ids = [
        str(result.additional_kwargs.get("tool_call_id") or "") for result in results
    ]
    unanswered = list(range(len(calls)))
    pairs = {}
    for is_pair in (_have_same_id, _lack_an_id):
        for i, result_id in enumerate(result_ids):
            if i in pairs:
                continue
            matching = (
                index for index in unanswered if is_pair(calls[index].id, result_id)
            )
            index = next(matching, None)
            if index is not None:
                pairs[i] = index
                unanswered.remove(index)
    return pairs


def _have_same_id(call_id: str, result_id: str) -> bool:
    return call_id == result_id != ""


def _lack_an_id(call_id: str, result_id: str) -> bool:
    return not (call_id and result_id)


def _with_calls(message: ChatMessage, indexes: set[int]) -> ChatMessage:
    """Return a copy with the calls at ``indexes`` only. Blocks and ``additional_kwargs`` hold the same calls."""
    places = count()
    blocks = []
    for block in message.blocks:
        if isinstance(block, ToolCallBlock) and next(places) not in indexes:
            continue
        blocks.append(block)
    kwargs = {
        key: value
        for key, value in message.additional_kwargs.items()
        if key not in CALL_KEYS
    }
    for i, (key, value) in enumerate(_calls_in_kwargs(message)):
        if i in indexes and key == "tool_calls":
            kwargs.setdefault(key, []).append(value)
        elif i in indexes:
            kwargs[key] = value
    return message.model_copy(update={"blocks": blocks, "additional_kwargs": kwargs})


def _calls_in_kwargs(message: ChatMessage) -> Iterator[tuple[str, Json]]:
    """Yield the key and the value of each call in ``additional_kwargs``."""
    calls = message.additional_kwargs.get("tool_calls") or []
    for call in calls if isinstance(calls, list) else [calls]:
        yield "tool_calls", call
    if message.additional_kwargs.get("function_call"):
        yield "function_call", message.additional_kwargs["function_call"]


def fields_of(value: Json) -> dict[str, Json]:
    """Return the fields of an object or a dict; any other value is its ``name``."""
    plain = value if isinstance(value, dict) else _plain(value)
    return plain if isinstance(plain, dict) else {"name": value}


def _plain(value: Json) -> Json:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump()
    return str(value)


# ---- times ----

# The keys of many programs, of OpenAI's API, and of ChatGPT's exports. The first key
# with a time counts.
TIME_KEYS = ("timestamp", "created_at", "create_time", "date")
# A smaller number of seconds is no time, but a place in a list or a duration.
_LEAST_SECONDS = 100_000_000
_TIME = TypeAdapter(datetime)

# The keys of ``additional_kwargs`` that an entry shows.
_SHOWN_KEYS = frozenset({*CALL_KEYS, REFUSAL_KEY, *SOURCES_KEYS})


def times_in(
    values: Mapping[str, object], zone: tzinfo | None = None
) -> dict[str, datetime]:
    """Return the times among the ``TIME_KEYS`` of an object, each by its key, in the order of the keys.

    A time is a ``datetime``, an ISO text, a text as mails have it (RFC 2822), or a Unix
    time in seconds or milliseconds. It keeps its offset; without an offset it is in UTC,
    but a day alone is in the ``zone``. Other values are left out.

    >>> times_in({"date": "2023-05-08", "created_at": 1_683_554_400, "timestamp": "soon"})["created_at"].isoformat()
    '2023-05-08T14:00:00+00:00'
    """
    times = {}
    for key in TIME_KEYS:
        value = values.get(key)
        # A message seldom has any of the keys, and raising errors takes long.
        if value is None:
            continue
        # Some texts make the reader of mails raise an IndexError or a TypeError.
        with suppress(ValueError, OverflowError, IndexError, TypeError):
            time = _parse_time(value)
            if time.tzinfo is None:
                is_day = time.time() == datetime.min.time()
                default = zone if zone and is_day else timezone.utc
                time = time.replace(tzinfo=default)
            if time.astimezone(timezone.utc).timestamp() >= _LEAST_SECONDS:
                times[key] = time
    return times


def now_in(zone: tzinfo | None = None) -> datetime:
    """Return the current time in a time zone; without a zone, in UTC."""
    return in_zone(datetime.now(timezone.utc), zone)


def in_zone(moment: datetime, zone: tzinfo | None = None) -> datetime:
    """Return a moment with its offset in a time zone; None: with the offset that it has.

    The offset is a number of minutes. Datetimes that share a zone with daylight saving
    compare by their clocks, and can be in a wrong order.

    >>> in_zone(datetime(2026, 7, 1, 12, tzinfo=timezone.utc), timezone(timedelta(hours=13))).isoformat()
    '2026-07-02T01:00:00+13:00'
    """
    try:
        local = moment.astimezone(zone) if zone else moment
        minutes = (local.utcoffset() or timedelta()) // timedelta(minutes=1)
        return moment.astimezone(timezone(timedelta(minutes=minutes)))
    except OverflowError:
        # The first hours of the year 1, or the last hours of the year 9999.
        return moment


def _parse_time(value: object) -> datetime:
    """Return a time; a ValueError if the value is none."""
    try:
        return _TIME.validate_python(value)
    except ValidationError:
        if not isinstance(value, str):
            raise
    return parsedate_to_datetime(value)


_UNSTORABLE = re.compile("[\ud800-\udfff\x00]")


def clean(value: Json) -> Json:
    """Return a JSON value without NUL and lone surrogates, which databases and APIs refuse: they become U+FFFD."""
    if isinstance(value, str) and _UNSTORABLE.search(value):
        return (
            value.encode("utf-16", "surrogatepass")
            .decode("utf-16", "replace")
            .replace("\x00", "\ufffd")
        )
    if isinstance(value, dict):
        return {clean(key): clean(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [clean(entry) for entry in value]
    return value


# ---- the stored form ----

# Programs write the id of a message into ``additional_kwargs`` under this key.
ID_KEY = "message_id"
# In a session of several users, programs write the user_id of the author here.
SPEAKER_KEY = "user_id"
# LlamaIndex writes this key into messages that it hands to blocks.
_HOSTS_KEY = "session_id"
# Longer ids would not fit into the index of a server.
_MOST_ID_CHARACTERS = 255

# The keys of a message under which a text can be the words of a user or a model.
_WORDS_KEYS = frozenset(
    {"text", "content", "tool_kwargs", *ARGUMENTS_KEYS, REFUSAL_KEY, *SOURCES_KEYS}
)


def message_id_of(kwargs: Mapping[str, Json], key: str = ID_KEY) -> str | None:
    """Return the id in a message's ``additional_kwargs``, a number as its text; None if it has none.

    ``key``: where the id stands. Only a ``message_id`` may have blanks around it.

    Raises a MessageError for an id that is neither a text nor a number, is blank, or
    has more than 255 characters.

    >>> message_id_of({"message_id": 7}), message_id_of({"tool_call_id": "c1"})
    ('7', None)
    """
    value = kwargs.get(key)
    if value is None:
        return None
    text = _id_text(value)
    bare = text.strip()
    if bare and len(text) <= _MOST_ID_CHARACTERS and (key == ID_KEY or text == bare):
        return text
    if isinstance(value, str):
        seen = f"{len(text)} characters"
    else:
        seen = f"a {type(value).__name__}"
    raise MessageError(
        f"Expected additional_kwargs[{key!r}] to be a text of 1 to {_MOST_ID_CHARACTERS} characters, without blanks "
        f"around it, or a number; saw {seen}. Write str(...) around an id of another type."
    )


def speaker_of(message: ChatMessage) -> str | None:
    """Return the user whom a message of a user names as its speaker; None if it names none."""
    if message.role != MessageRole.USER:
        return None
    return message_id_of(clean(message.additional_kwargs), SPEAKER_KEY)


def _id_text(value: Json) -> str:
    """Return a text, or a number as a text; "" for other values."""
    if isinstance(value, str):
        return value
    # Python refuses to write a longer integer as text.
    if type(value) is int and value.bit_length() < _MOST_ID_CHARACTERS:
        return str(value)
    if type(value) is float and isfinite(value):
        return str(value)
    return ""


def is_same(stored: Json, message: Mapping[str, Json]) -> bool:
    """Return whether a stored message equals a message, both as JSON.

    The key that LlamaIndex adds does not count, nor does an id that ``message`` leaves
    out. Nor does a speaker that only one of them names: an export adds it.
    """
    if not isinstance(stored, dict):
        return False
    ignored = {_HOSTS_KEY}
    kwargs = message.get("additional_kwargs") or {}
    if ID_KEY not in kwargs:
        ignored.add(ID_KEY)
    if (SPEAKER_KEY in kwargs) != (
        SPEAKER_KEY in (stored.get("additional_kwargs") or {})
    ):
        ignored.add(SPEAKER_KEY)
    return _without_kwargs(stored, ignored) == _without_kwargs(message, ignored)


def _without_kwargs(message: Mapping[str, Json], keys: set[str]) -> dict[str, Json]:
    """Return the message, as JSON, without some keys of its ``additional_kwargs``."""
    fields = dict(message)
    kwargs = fields.get("additional_kwargs")
    if isinstance(kwargs, dict):
        fields["additional_kwargs"] = {
            key: value for key, value in kwargs.items() if key not in keys
        }
    return fields


def checked_messages(messages: Json) -> list[ChatMessage]:
    """Return the messages of an iterable as a list.

    Raises a MessageError if it is no iterable of messages, or a message has a wrong id.
    """
    is_list = isinstance(messages, Iterable) and not isinstance(
        messages, ChatMessage | str | dict
    )
    entries = list(messages) if is_list else [messages]
    for entry in entries:
        if not (is_list and isinstance(entry, ChatMessage)):
            raise MessageError(
                f"Expected a list of ChatMessage objects; this is a {type(entry).__name__}. {how_to_put(entry)}"
            )
        message_id_of(entry.additional_kwargs)
    return entries


def how_to_put(value: object) -> str:
    """Return the advice for a value that was put in place of a message, or of a list of messages."""
    if isinstance(value, ChatMessage):
        return "Pass a list: [message]."
    if isinstance(value, dict):
        return (
            "Build a message, ChatMessage(**d), or read JSON with messages_from_json."
        )
    if isinstance(value, list):
        return "Put several messages with aput_messages."
    return 'Wrap a text as ChatMessage(role="user", content=text).'


def redact_message(message: ChatMessage, redact: Callable[[str], str]) -> ChatMessage:
    """Return a copy of a message in which a function has changed each text, also in the arguments of tool calls.

    Ids, names, media and other ``additional_kwargs`` stay. A SettingError if the
    function fails or returns no text.
    """

    def redact_value(value: Json, *, is_words: bool) -> Json:
        if isinstance(value, dict):
            return {
                key: redact_value(entry, is_words=is_words or key in _WORDS_KEYS)
                for key, entry in value.items()
            }
        if isinstance(value, list):
            return [redact_value(entry, is_words=is_words) for entry in value]
        if is_words and isinstance(value, str):
            return _redact_text(value, redact)
        return value

    values = redact_value(storable(message), is_words=False)
    redacted = ChatMessage.model_validate(values)
    if isinstance(message, MovedMessage):
        return message.model_copy(update=dict(redacted))
    return redacted


def _redact_text(text: str, redact: Callable[[str], str]) -> str:
    try:
        result: object = redact(text)
    except Exception as error:  # noqa: BLE001 - a function of the program's own may fail in any way
        result = None
        saw = f"one that raises a {type(error).__name__}"
    else:
        saw = f"one that returns a {type(result).__name__}"
    if isinstance(result, str):
        return result
    # Within the handler, the program's error would be the context of this one, and its
    # message may hold the text.
    raise SettingError(
        f"redact must be a function that returns a text for each text; saw {saw}. Nothing was stored."
    )


def storable(message: ChatMessage) -> dict[str, Json]:
    """Return the message as ``clean`` JSON values. The message itself is not changed."""
    blocks = [_without_bytes(block) for block in message.blocks]
    copy = message.model_copy(update={"blocks": blocks})
    return dict(clean(copy.model_dump(mode="json")))


def _without_bytes(block: ContentBlock) -> ContentBlock:
    """Return a block of thinking with its bytes in base64, as JSON cannot hold bytes. Gemini's signatures are bytes."""
    if not isinstance(block, ThinkingBlock):
        return block
    details = dict(block.additional_information)
    for name, value in details.items():
        if isinstance(value, bytes):
            details[name] = b64encode(value).decode()
    return block.model_copy(update={"additional_information": details})


# ---- text in the record ----

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
# LlamaIndex's Memory counts these for a block that is not text.
MEDIA_TOKENS = {"image": 256, "audio": 256, "video": 256, "document": 2048}

# The fields of a source that a reader wants, by the names of several providers.
_SOURCE_FIELDS = ("title", "document_title", "filename", "url", "cited_text")
_NAME_CHARACTERS = 200
_ROLE = "<message role="
_ROLE_OF_ENTRY = re.compile(r'<message (?:role=")?(\w+)')
_UNSEEN = f"[\u200c\u200d{CONTROLS}]"
# A longer search would keep other threads waiting: it does not release the
# interpreter's lock.
_SEARCHED_CHARACTERS = 100_000
# A picture's size stands at its beginning. Whole groups of base64.
_PICTURE_BYTES = 65_536


class ClippedText(NamedTuple):
    """A text within a limit, and its tokens."""

    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One message as the record shows it: ``<message role="user">the text</message>`` and a newline.

    A brief entry is ``<message user>the text`` and a newline; the next tag is its end.

    ``tokens``: with the heading.
    ``day``: the day of the message, "" if unknown.
    ``heading``: a line above the first entry of a day.
    """

    row_id: int
    text: str
    tokens: int
    has_media: bool = False
    day: str = ""
    heading: str = ""

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

    @property
    def role(self) -> str:
        """The role of the message: "user", "assistant", ..."""
        return str(_ROLE_OF_ENTRY.findall(self.text)[0])

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
    if message.role in RESULT_ROLES:
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
    return Entry(row_id, text, counter.count(text), has_media, day)


def plain_entry(
    row_id: int,
    stored: Mapping[str, Json],
    tokens: int,
    tags: Iterable[str] = (),
    *,
    speaker: str = "",
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
    return Entry(row_id, text, tokens)


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
    if "<" not in text:
        return text
    pattern = _tag_pattern(OUR_TAGS.union(tags))
    pieces = []
    start = 0
    # No tag reaches over the "<" of the next one.
    while 0 <= start < len(text):
        end = text.find("<", start + _SEARCHED_CHARACTERS)
        piece = text[start:] if end < 0 else text[start:end]
        pieces.append(pattern.sub("&lt;", piece))
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

    Of its ``additional_kwargs`` only tool calls, a refusal and the sources of an answer
    are shown.
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
    lines += _lines_in_kwargs(message.additional_kwargs)
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


def _lines_in_kwargs(kwargs: Mapping[str, Json]) -> Iterator[str]:
    """Yield a refusal, and a line for each source of an answer."""
    refusal = kwargs.get(REFUSAL_KEY)
    if isinstance(refusal, str):
        yield refusal
    for key in SOURCES_KEYS:
        sources = kwargs.get(key)
        if not isinstance(sources, list):
            continue
        for source in sources:
            text = _source_text(source)
            if text:
                yield f"[citation: {text}]"


def _source_text(source: Json) -> str:
    """Return a text as it is, or the texts in the known fields of a source; "" if there are none."""
    if isinstance(source, str):
        return source
    fields = fields_of(source)
    # OpenAI's Chat Completions have one more level.
    fields = fields_of(fields.get("url_citation") or fields)
    values = [fields.get(name) for name in _SOURCE_FIELDS]
    return " ".join(value for value in values if isinstance(value, str) and value)


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


def tokens_with_pictures(
    message: ChatMessage, counter: TokenCounter, media_tokens: Mapping[str, int]
) -> int:
    """Return ``message_tokens``, but with LlamaIndex's estimate of pictures whose bytes are in the message.

    The higher number counts for each picture. A picture elsewhere is not read.
    """
    tokens = message_tokens(message, counter, media_tokens)
    for block in message.blocks:
        if isinstance(block, ImageBlock):
            tokens += max(_estimate_tokens(block) - media_tokens["image"], 0)
    return tokens


def _estimate_tokens(picture: ImageBlock) -> int:
    """Return LlamaIndex's estimate of a picture whose bytes are in the block; 0 for a picture elsewhere."""
    url = str(picture.url or "")
    if isinstance(picture.image, bytes):
        data = picture.image
    elif url.startswith("data:"):
        data = url.partition(",")[2].encode()
    else:
        return 0
    # The whole takes long to decode.
    beginning = picture.model_copy(update={"image": data[:_PICTURE_BYTES]})
    try:
        # The estimate is asynchronous in name alone: with the bytes at hand it waits
        # for nothing.
        beginning.aestimate_tokens().send(None)
    except StopIteration as estimated:
        return int(estimated.value)
    return 0


def tokens_of(messages: Iterable[Counted]) -> int:
    """Return the tokens of all messages together."""
    return sum([message.tokens for message in messages])


# ---- turns ----

# The role of a line by another user, in a session of several users.
OTHER_ROLE = "other user"

# A CodeActAgent runs the code within these tags, and stores the output behind this
# heading, as a message of the user.
_CODE = re.compile(r"<execute>(.*?)</execute>", re.DOTALL)
_OUTPUT_HEADING = "Result of executing the code given:"
# A message of a ReActAgent, with its last answer if there is one.
_REACT = re.compile(
    r"\s*(?:Thought|Action|Action Input|Observation):(?:.*\sAnswer:(?P<answer>.*))?",
    re.DOTALL,
)


class Utterance(NamedTuple):
    """The spoken text of a message, with its role (user or assistant) and its row in the log.

    ``row_id``: 0 for a message that is not in the log.
    ``speaker``: in a session of several users, the user whose turn it is.
    """

    row_id: int
    role: str
    text: str
    speaker: str = ""

    @property
    def is_users(self) -> bool:
        """Whether the user wrote it."""
        return self.role == MessageRole.USER.value


class Question(NamedTuple):
    """The newest question of a conversation, "" if there is none, and the texts of earlier turns, oldest first."""

    text: str
    context: list[str]


def spoken(message: ChatMessage) -> str:
    """Return the text of a user's message or of a final answer; "" for any other message.

    Of a final answer of ReAct, return the text after the last ``Answer:``.
    """
    text: str = clean(message.content or "").strip()
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
    """Return whether a message has tool calls, without reading the calls, which takes much longer."""
    return any(message.additional_kwargs.get(key) for key in CALL_KEYS) or any(
        isinstance(block, ToolCallBlock) for block in message.blocks
    )


def runs_code(message: ChatMessage) -> bool:
    """Return whether a CodeActAgent runs code that the assistant has written in this message."""
    return message.role in ASSISTANT_ROLES and any(
        code.strip() for code in _CODE.findall(message.content or "")
    )


def is_code_output(message: ChatMessage) -> bool:
    """Return whether a user's message reads like the output that a CodeActAgent stores; a user may write that, too."""
    return message.role == MessageRole.USER and (message.content or "").startswith(
        _OUTPUT_HEADING
    )


def with_code_results(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return the messages, with the output of a CodeActAgent's programs as results of a tool instead of the user's.

    Output directly follows the assistant's code. Its messages are copies; all other
    messages are the same objects.

    >>> code = ChatMessage("<execute>print(1)</execute>", role="assistant")
    >>> result = ChatMessage("Result of executing the code given: 1")
    >>> [message.role.value for message in with_code_results([code, result])]
    ['assistant', 'tool']
    """
    conversation = []
    awaits_output = False
    for message in messages:
        if awaits_output and is_code_output(message):
            result = message.model_copy(update={"role": MessageRole.TOOL})
            conversation.append(result)
        else:
            conversation.append(message)
        # The result of a call at the same time may stand between code and output.
        awaits_output = runs_code(message) or (
            awaits_output and conversation[-1].role in RESULT_ROLES
        )
    return conversation


def turns_in(
    messages: Iterable[ChatMessage], turns_before: Iterable[list[str]] = ()
) -> list[list[str]]:
    """Return the spoken texts of each turn, oldest first, behind ``turns_before``.

    Texts before the first question form a turn, or belong to the last turn before.
    """
    lines = []
    for message in messages:
        text = spoken(message)
        if text:
            lines.append(Utterance(0, message.role, text))
    return turns_of(lines, turns_before)


def turns_of(
    lines: Iterable[Utterance], turns_before: Iterable[list[str]] = ()
) -> list[list[str]]:
    """Return the texts of each turn of spoken lines, as ``turns_in``."""
    turns = [list(texts) for texts in turns_before]
    for line in lines:
        if line.is_users or not turns:
            turns.append([])
        turns[-1].append(line.text)
    return turns


def question_in(
    messages: Sequence[ChatMessage], turns_before: Sequence[list[str]], max_turns: int
) -> Question:
    """Return the newest question, and the texts of up to ``max_turns - 1`` turns before it."""
    end = len(messages)
    while end and messages[end - 1].role != MessageRole.USER:
        end -= 1
    turns = [*turns_before, *turns_in(messages[:end])]
    context = ["\n".join(turn) for turn in turns[-max_turns:-1]]
    return Question(turns[-1][0] if turns else "", context)


def count_leaving(
    messages: Sequence[ChatMessage],
    limit: int = 0,
    tokens: Callable[[ChatMessage], int] = lambda _: 1,
) -> int:
    """Return how many of the oldest messages leave, so that the rest fits into a limit.

    Only whole turns leave. ``tokens`` counts the tokens of a message. The newest turn
    always stays; by default, every other turn leaves.
    """
    starts = [
        i for i, message in enumerate(messages) if message.role == MessageRole.USER
    ]
    counts = [tokens(message) for message in messages]
    remaining = sum(counts)
    if remaining <= limit or not starts:
        return 0
    position = 0
    for start in starts:
        remaining -= sum(counts[position:start])
        position = start
        if remaining <= limit:
            break
    return position


def ends_with_answer(turn: Sequence[ChatMessage]) -> bool:
    """Return whether a turn ends with an answer; False for no messages."""
    return bool(turn) and turn[-1].role in ASSISTANT_ROLES and not has_calls(turn[-1])


def leaving_at_end(messages: Sequence[ChatMessage]) -> int:
    """Return how many of the oldest messages leave when a memory is closed: all but an open turn."""
    if ends_with_answer(messages):
        return len(messages)
    return count_leaving(messages)


def extract_conversation_context(
    messages: Iterable[ChatMessage], max_turns: int = 3
) -> str:
    """Return the texts of the last turns, oldest first, with a blank line between turns; "" if there are none.

    Args:
        messages: Any messages. Tool calls and results are left out.
        max_turns: Most turns, the current one included.

    Examples:
        >>> chat = [ChatMessage("I live in Rome."), ChatMessage("Noted.", role="assistant")]
        >>> extract_conversation_context(chat)
        'I live in Rome. Noted.'
    """
    turns = turns_in(with_code_results(messages))
    first = max(len(turns) - max_turns, 0)
    return "\n\n".join(" ".join(" ".join(texts).split()) for texts in turns[first:])
