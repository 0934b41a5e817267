"""The messages of LlamaIndex: their roles, tool calls and times, and the form in which they are stored."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone, tzinfo
from math import isfinite
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from llama_index.core.base.llms.types import (
    ChatMessage,
    ContentBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from pydantic import Field, TypeAdapter

from llama_index_memory_ext.errors import MessageError, SettingError

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


M = TypeVar("M", bound=HasRole)


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
    for key in CALL_KEYS:
        values = message.additional_kwargs.get(key) or []
        if not isinstance(values, list):
            values = [values]
        calls += map(_parse_call, values)
    return calls


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


def times_in(
    values: Mapping[str, object], zone: tzinfo | None = None
) -> dict[str, datetime]:
    """Return the times among the ``TIME_KEYS`` of an object, each by its key, in the order of the keys.

    A time is a ``datetime``, an ISO text, or a Unix time in seconds or milliseconds. It
    keeps its offset; without an offset it is in UTC, but a day alone is in the ``zone``.
    Other values are left out.

    >>> times_in({"date": "2023-05-08", "created_at": 1_683_554_400, "timestamp": "soon"})["created_at"].isoformat()
    '2023-05-08T14:00:00+00:00'
    """
    times = {}
    for key in TIME_KEYS:
        value = values.get(key)
        # A message seldom has any of the keys, and raising errors takes long.
        if value is None:
            continue
        with suppress(ValueError, OverflowError):
            time = _TIME.validate_python(value)
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
        f"Expected additional_kwargs[{key!r}] to be a str of 1 to {_MOST_ID_CHARACTERS} characters, without spaces "
        f"around it, or a number; got {seen}. Write str(...) around an id of another type."
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
    stored_kwargs = stored.get("additional_kwargs") or {}
    if ID_KEY not in kwargs:
        ignored.add(ID_KEY)
    if (SPEAKER_KEY in kwargs) != (SPEAKER_KEY in stored_kwargs):
        ignored.add(SPEAKER_KEY)

    def compared(kwargs: dict[str, Json]) -> dict[str, Json]:
        return {key: value for key, value in kwargs.items() if key not in ignored}

    return {**stored, "additional_kwargs": compared(stored_kwargs)} == {
        **message,
        "additional_kwargs": compared(kwargs),
    }


def checked_messages(messages: Json) -> list[ChatMessage]:
    """Return the messages of an iterable as a list.

    Raises a MessageError if it is not an iterable of messages, or a message has a wrong id.
    """
    is_list = isinstance(messages, Iterable) and not isinstance(
        messages, ChatMessage | str | dict
    )
    entries = list(messages) if is_list else [messages]
    for entry in entries:
        if not (is_list and isinstance(entry, ChatMessage)):
            raise MessageError(
                f"Expected a list of ChatMessage objects; got {type(entry).__name__}. {how_to_put(entry)}"
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
        got = f"one that raises a {type(error).__name__}"
    else:
        got = f"one that returns a {type(result).__name__}"
    if isinstance(result, str):
        return result
    # Within the handler, the program's error would be the context of this one, and its
    # message may hold the text.
    raise SettingError(
        f"redact must be a function that returns a text for each text; got {got}. Nothing was stored."
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
