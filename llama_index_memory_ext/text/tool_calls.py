"""Reads the tool calls of messages and pairs them with their results."""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock, ToolCallBlock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

# A value of JSON, or what a provider or a program has put where LlamaIndex allows any object.
Json: TypeAlias = Any

# The roles of those who make calls and of results. A MessageRole has the hash of its plain name, so a set finds both.
ASSISTANT_ROLES: frozenset[str] = frozenset({MessageRole.ASSISTANT, MessageRole.CHATBOT, MessageRole.MODEL})
RESULT_ROLES: frozenset[str] = frozenset({MessageRole.TOOL, MessageRole.FUNCTION})
CALL_KEYS = ("tool_calls", "function_call")
# Blocks that are never shown.
HIDDEN_BLOCKS = frozenset({"thinking", "cache"})


class HasRole(Protocol):
    """A message in any form."""

    @property
    def role(self) -> str:
        """Its role."""


M = TypeVar("M", bound=HasRole)


class ToolCall(NamedTuple):
    """A call that a model asked for. ``arguments`` is JSON, or the text that the model sent."""

    id: str
    name: str
    arguments: str


def calls_of(message: ChatMessage) -> list[ToolCall]:
    """Returns the calls in the blocks of a message, else those in ``additional_kwargs``: some LLM classes fill both."""
    blocks = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    calls = [ToolCall(block.tool_call_id or "", block.tool_name, _arguments(block.tool_kwargs)) for block in blocks]
    return calls or [_call(value) for _, value in _calls_in_kwargs(message)]


def to_json(value: Json) -> str:
    """Returns the JSON of a value on one line. Pydantic's models are dumped, other objects become their ``str``."""
    return json.dumps(value, ensure_ascii=False, default=_plain)


def has_content(message: ChatMessage) -> bool:
    """Returns whether a message has a call, or any block but thinking and blank texts."""
    return bool(calls_of(message)) or any(
        block.text.strip() if isinstance(block, TextBlock) else block.block_type not in HIDDEN_BLOCKS
        for block in message.blocks
    )


def tool_call_groups(messages: Iterable[M]) -> list[list[M]]:
    """Returns the messages in groups: each with the tool results that directly follow it."""
    groups: list[list[M]] = []
    for message in messages:
        if message.role in RESULT_ROLES and groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups


def complete_calls(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Returns the messages without orphaned results and unanswered calls.

    A call without a result, or by another role than an assistant's, is removed from a copy of its message. A message
    that is then empty is left out. All other messages are the same objects.

    >>> [message.role.value for message in complete_calls([
    ...     ChatMessage(role="tool", content="of a call that is not here"),
    ...     ChatMessage(role="user", content="Hello"),
    ... ])]
    ['user']
    """
    return [message for group in tool_call_groups(messages) for message in _complete(*group)]


def _complete(caller: ChatMessage, *results: ChatMessage) -> list[ChatMessage]:
    if caller.role in RESULT_ROLES:
        return []
    calls = calls_of(caller)
    pairs = _pairs(calls, results) if caller.role in ASSISTANT_ROLES else {}
    if len(pairs) < len(calls):
        caller = _with_calls(caller, pairs.values())
        if not pairs and not has_content(caller):
            return []
    return [caller, *(result for i, result in enumerate(results) if i in pairs)]


def _pairs(calls: Sequence[ToolCall], results: Sequence[ChatMessage]) -> dict[int, int]:
    """Returns the place of its call for the place of each result: first by equal ids, then where one has no id."""
    ids = [str(result.additional_kwargs.get("tool_call_id") or "") for result in results]
    waiting, pairs = list(range(len(calls))), dict[int, int]()
    for is_pair in (str.__eq__, lambda call_id, result_id: not (call_id and result_id)):
        for i, result_id in enumerate(ids):
            place = next((place for place in waiting if is_pair(calls[place].id, result_id)), None)
            if place is not None and i not in pairs:
                pairs[i] = place
                waiting.remove(place)
    return pairs


def _with_calls(message: ChatMessage, kept: Collection[int]) -> ChatMessage:
    """Returns a copy with no other calls than those at these places, which are the same in blocks and kwargs."""
    places = count()
    blocks = [block for block in message.blocks if not isinstance(block, ToolCallBlock) or next(places) in kept]
    kwargs = {key: value for key, value in message.additional_kwargs.items() if key not in CALL_KEYS}
    for i, (key, value) in enumerate(_calls_in_kwargs(message)):
        if i in kept:
            kwargs[key] = [*kwargs.get(key, []), value] if key == "tool_calls" else value
    return message.model_copy(update={"blocks": blocks, "additional_kwargs": kwargs})


def _calls_in_kwargs(message: ChatMessage) -> Iterator[tuple[str, Json]]:
    """Yields the key and the value of each call in ``additional_kwargs``."""
    calls = message.additional_kwargs.get("tool_calls") or []
    for call in calls if isinstance(calls, list) else [calls]:
        yield "tool_calls", call
    if message.additional_kwargs.get("function_call"):
        yield "function_call", message.additional_kwargs["function_call"]


def _call(value: Json) -> ToolCall:
    """Reads a call in any of the shapes in which providers write it. A value of another shape becomes its name."""
    fields = _fields(value)
    function = _fields(fields.get("function") or fields.get("custom") or fields)
    arguments: Json = next(
        (function[key] for key in ("arguments", "args", "input", "parameters") if key in function), {}
    )
    call_id, name = fields.get("id") or fields.get("call_id") or "", function.get("name") or ""
    return ToolCall(str(call_id), str(name), _arguments(arguments))


def _fields(value: Json) -> dict[str, Json]:
    plain = value if isinstance(value, dict) else _plain(value)
    return plain if isinstance(plain, dict) else {"name": value}


def _arguments(value: Json) -> str:
    return value if isinstance(value, str) else to_json(value)


def _plain(value: Json) -> Json:
    dump = getattr(value, "model_dump", None)
    return dump() if callable(dump) else str(value)
