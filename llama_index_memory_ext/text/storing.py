"""The form in which messages are stored: their ids, redaction, and values that databases take."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from math import isfinite
from typing import TYPE_CHECKING

from llama_index.core.base.llms.types import ChatMessage, ThinkingBlock

from llama_index_memory_ext.errors import MessageError, SettingError
from llama_index_memory_ext.text.messages import (
    ARGUMENTS_KEYS,
    REFUSAL_KEY,
    SOURCES_KEYS,
    cleaned,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from llama_index.core.base.llms.types import ContentBlock

    from llama_index_memory_ext.text.messages import Json


# Programs write the id of a message into ``additional_kwargs`` under this key.
ID_KEY = "message_id"
# In a session of several users, programs write the user_id of the author here.
SPEAKER_KEY = "user_id"
# LlamaIndex writes it into messages that it hands to blocks.
_HOSTS_KEY = "session_id"
# Longer ids would not fit into the index of a server.
_MOST_CHARACTERS = 255

# The keys of a message under which a text can be the words of a user or a model.
_WORDS_KEYS = frozenset(
    {"text", "content", "tool_kwargs", *ARGUMENTS_KEYS, REFUSAL_KEY, *SOURCES_KEYS}
)


def message_id_of(kwargs: Mapping[str, Json], key: str = ID_KEY) -> str | None:
    """Return the id in a message's ``additional_kwargs``, a number as its text; None if it has none.

    Another ``key`` names another id, which has no blanks around it.

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
    if bare and len(text) <= _MOST_CHARACTERS and (key == ID_KEY or text == bare):
        return text
    if isinstance(value, str):
        seen = f"{len(text)} characters"
    else:
        seen = f"a {type(value).__name__}"
    raise MessageError(
        f"Expected additional_kwargs[{key!r}] to be a text of 1 to {_MOST_CHARACTERS} characters, without blanks "
        f"around it, or a number; saw {seen}. Write str(...) around an id of another type."
    )


def _id_text(value: Json) -> str:
    """Return a text, or a number as a text; "" for other values."""
    if isinstance(value, str):
        return value
    # Python refuses to write a longer integer as text.
    if type(value) is int and value.bit_length() < _MOST_CHARACTERS:
        return str(value)
    if type(value) is float and isfinite(value):
        return str(value)
    return ""


def is_same(stored: Json, message: Mapping[str, Json]) -> bool:
    """Return whether a stored message equals a message, both as JSON.

    The key that LlamaIndex adds does not count, nor does an id that ``message`` leaves
    out.
    """
    ignored = {_HOSTS_KEY}
    if ID_KEY not in (message.get("additional_kwargs") or {}):
        ignored.add(ID_KEY)
    if not isinstance(stored, dict):
        return False
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
                f"Expected a list of ChatMessage objects; this is a {type(entry).__name__}. "
                'Wrap a text as ChatMessage(role="user", content=text).'
            )
        message_id_of(entry.additional_kwargs)
    return entries


def redacted(message: ChatMessage, redact: Callable[[str], str]) -> ChatMessage:
    """Return a copy of a message with each text changed by a function, and each text in the arguments of tool calls.

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

    return ChatMessage.model_validate(redact_value(storable(message), is_words=False))


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
    """Return the message as ``cleaned`` JSON values. The message itself is not changed."""
    blocks = [_without_bytes(block) for block in message.blocks]
    copy = message.model_copy(update={"blocks": blocks})
    return dict(cleaned(copy.model_dump(mode="json")))


def _without_bytes(block: ContentBlock) -> ContentBlock:
    """Return a block of thinking with its signature in base64: Gemini's is bytes, which JSON cannot hold."""
    if not isinstance(block, ThinkingBlock):
        return block
    details = dict(block.additional_information)
    for name, value in details.items():
        if isinstance(value, bytes):
            details[name] = b64encode(value).decode()
    return block.model_copy(update={"additional_information": details})
