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


# A value of JSON, or what a provider or a program has put where LlamaIndex allows any
# object.
Json: TypeAlias = Any

# A MessageRole is equal to its plain name and has its hash, so these sets contain both.
ASSISTANT_ROLES: frozenset[str] = frozenset(
    {MessageRole.ASSISTANT, MessageRole.CHATBOT, MessageRole.MODEL}
)
RESULT_ROLES: frozenset[str] = frozenset({MessageRole.TOOL, MessageRole.FUNCTION})
CALL_KEYS = ("tool_calls", "function_call")
# The kinds of blocks that are never shown.
HIDDEN = frozenset({"thinking", "cache"})
# Of OpenAI's two APIs, and of Bedrock.
_ID_KEYS = ("id", "call_id", "toolUseId")
ARGUMENTS_KEYS = ("arguments", "args", "input", "parameters")
# More of an answer about a conversation is not read: the longest that was asked for has
# a tenth of it. To read much more would hold the interpreter's lock, and so every
# thread, for longer than a tenth of a second.
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
    blocks = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    calls = [
        ToolCall(block.tool_call_id or "", block.tool_name, to_json(block.tool_kwargs))
        for block in blocks
    ]
    # In the format of any provider; a value in no known format becomes the name.
    for _, value in [] if calls else _calls_in_kwargs(message):
        fields = fields_of(value)
        function = fields_of(fields.get("function") or fields.get("custom") or fields)
        arguments: Json = next(
            (function[key] for key in ARGUMENTS_KEYS if key in function), {}
        )
        call_id = next(filter(None, map(fields.get, _ID_KEYS)), "")
        name = function.get("name") or ""
        calls.append(ToolCall(str(call_id), str(name), to_json(arguments)))
    return calls


def to_json(value: Json) -> str:
    """Return a text as it is, any other value as JSON on one line. Objects that JSON does not know become texts."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=_plain)


def is_longer(value: Json, most: int) -> bool:
    """Return whether a value has more than ``most`` characters and entries. It is looked at no further than that.

    >>> is_longer({"a": ["bcd"]}, 5), is_longer({"a": ["bcd"]}, 6)
    (True, False)
    """
    waiting = [value]
    length = 0
    while waiting and length <= most:
        part = waiting.pop()
        length += len(part) if isinstance(part, str | dict | list) else 0
        if length <= most and isinstance(part, dict):
            waiting += [*part.keys(), *part.values()]
        elif length <= most and isinstance(part, list):
            waiting += part
    return length > most


def has_content(message: ChatMessage) -> bool:
    """Return whether a message has a call or a block other than thinking and blank text."""
    return bool(calls_of(message)) or any(
        block.text.strip()
        if isinstance(block, TextBlock)
        else block.block_type not in HIDDEN
        for block in message.blocks
    )


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
    complete: list[ChatMessage] = []
    for caller, *results in tool_call_groups(messages):
        calls = calls_of(caller)
        if caller.role in ASSISTANT_ROLES:
            pairs = _pairs(calls, results)
        else:
            pairs = {}
        kept = caller
        if len(pairs) < len(calls):
            # The calls with a result, which are the same in blocks and kwargs.
            places = count()
            known = set(pairs.values())
            blocks = [
                one
                for one in caller.blocks
                if not isinstance(one, ToolCallBlock) or next(places) in known
            ]
            kwargs = {
                key: value
                for key, value in caller.additional_kwargs.items()
                if key not in CALL_KEYS
            }
            for i, (key, value) in enumerate(_calls_in_kwargs(caller)):
                if i in known:
                    if key == "tool_calls":
                        kwargs[key] = [*kwargs.get(key, []), value]
                    else:
                        kwargs[key] = value
            kept = caller.model_copy(
                update={"blocks": blocks, "additional_kwargs": kwargs}
            )
        if caller.role not in RESULT_ROLES and (kept is caller or has_content(kept)):
            complete += [
                kept,
                *(result for i, result in enumerate(results) if i in pairs),
            ]
    return complete


def _pairs(calls: Sequence[ToolCall], results: Sequence[ChatMessage]) -> dict[int, int]:
    """Return the index of the call for the index of each result: first by equal ids, then where one has no id."""
    ids = [
        str(result.additional_kwargs.get("tool_call_id") or "") for result in results
    ]
    waiting = list(range(len(calls)))
    pairs = dict[int, int]()
    for is_pair in (
        lambda call, result: call == result != "",
        lambda call, result: not (call and result),
    ):
        for i, result_id in enumerate(ids):
            place = next(
                (place for place in waiting if is_pair(calls[place].id, result_id)),
                None,
            )
            if place is not None and i not in pairs:
                pairs[i] = place
                waiting.remove(place)
    return pairs


def _calls_in_kwargs(message: ChatMessage) -> Iterator[tuple[str, Json]]:
    """Yield the key and the value of each call in ``additional_kwargs``."""
    calls = message.additional_kwargs.get("tool_calls") or []
    for call in calls if isinstance(calls, list) else [calls]:
        yield "tool_calls", call
    if message.additional_kwargs.get("function_call"):
        yield "function_call", message.additional_kwargs["function_call"]


def fields_of(value: Json) -> dict[str, Json]:
    """Return the fields of an object or a dict; any other value is its ``name``."""
    if isinstance(value, dict):
        plain = value
    else:
        plain = _plain(value)
    if isinstance(plain, dict):
        return plain
    return {"name": value}


def _plain(value: Json) -> Json:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump()
    return str(value)
