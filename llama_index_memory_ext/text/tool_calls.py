"""Reads the tool calls of messages and pairs them with their results."""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from llama_index.core.base.llms.types import (
    ChatMessage,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


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
# The names of OpenAI's two APIs, and of Bedrock.
_ID_KEYS = ("id", "call_id", "toolUseId")
ARGUMENTS_KEYS = ("arguments", "args", "input", "parameters")
# Providers write a refusal and the sources of an answer under these keys of
# ``additional_kwargs``. Their other keys hold numbers and signatures.
REFUSAL_KEY = "refusal"
SOURCES_KEYS = ("citations", "annotations")
# The most characters of an answer about a conversation that are read: ten times the
# longest answer that the package asks for. Reading more would hold the interpreter's
# lock, and so every thread, for longer than a tenth of a second.
MOST_CHARACTERS = 400_000


class Counted(Protocol):
    """A message with its tokens."""

    @property
    def role(self) -> str:
        """Its role."""

    @property
    def tokens(self) -> int:
        """Its tokens."""


M = TypeVar("M", bound=ChatMessage | Counted)


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
    """Return whether a value has more than ``most`` characters and entries. The rest is not read.

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
    """Return the index of the call for the index of each result: first by equal ids, then where one has no id."""
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
    """Return a copy of a message with some of its calls. Blocks and ``additional_kwargs`` hold the same calls."""
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
