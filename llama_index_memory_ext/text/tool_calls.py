"""Groups messages into what must not be parted: a call with its results, or one message by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock

from llama_index_memory_ext.text.cutting import with_results
from llama_index_memory_ext.text.messages import ASSISTANT_ROLES, RESULT_ROLES, calls_of, has_content

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_index_memory_ext.text.messages import ToolCall

Unit: TypeAlias = list[ChatMessage]

_CALL_KEYS = ("tool_calls", "function_call")


def units_of(messages: Iterable[ChatMessage]) -> list[Unit]:
    """The messages in groups, oldest first, with neither an orphaned result nor an unanswered call.

    A result that answers no call of the message right in front of it (and of the results between them) is
    left out. A call without a result, or by somebody else than an assistant, is taken out of a copy of its
    message, and a message of which nothing is left is left out. All other messages are the same objects.
    Calls and results are paired by their ids, and where one of them has none, by their order.

    >>> [[message.role.value for message in unit] for unit in units_of([
    ...     ChatMessage(role="tool", content="of a call that is not here"),
    ...     ChatMessage(role="user", content="Hello"),
    ... ])]
    [['user']]
    """
    groups = with_results(messages, lambda message: message.role in RESULT_ROLES)
    mended = (_mended(first, results) for first, *results in groups if first.role not in RESULT_ROLES)
    return [unit for unit in mended if unit]


def without_calls(message: ChatMessage) -> ChatMessage:
    """The message itself if it has no calls, else a copy without them."""
    return _with_calls(message, set()) if calls_of(message) else message


def _mended(caller: ChatMessage, results: Sequence[ChatMessage]) -> Unit:
    calls = calls_of(caller)
    pairs = _pairs(calls, results) if caller.role in ASSISTANT_ROLES else {}
    answered = set(pairs.values())
    if len(answered) < len(calls):
        caller = _with_calls(caller, answered)
        if not answered and not has_content(caller):
            return []
    return [caller, *(without_calls(result) for i, result in enumerate(results) if i in pairs)]


def _pairs(calls: Sequence[ToolCall], results: Sequence[ChatMessage]) -> dict[int, int]:
    """Which call each result answers, both by their places: first by equal ids, then by order where one has none."""
    waiting = list(range(len(calls)))
    pairs: dict[int, int] = {}
    ids = [str(result.additional_kwargs.get("tool_call_id") or "") for result in results]
    for by_id in (True, False):
        for i, result_id in enumerate(ids):
            fitting = [call for call in waiting if _fits(calls[call].id, result_id, by_id=by_id)]
            if i not in pairs and fitting:
                pairs[i] = fitting[0]
                waiting.remove(fitting[0])
    return pairs


def _fits(call_id: str, result_id: str, *, by_id: bool) -> bool:
    return bool(result_id) and call_id == result_id if by_id else not (call_id and result_id)


def _with_calls(message: ChatMessage, kept: set[int]) -> ChatMessage:
    """A copy with no other calls than those at these places of ``calls_of(message)``."""
    places = [i for i, block in enumerate(message.blocks) if isinstance(block, ToolCallBlock)]
    dropped = {place for call, place in enumerate(places) if call not in kept}
    blocks = [block for i, block in enumerate(message.blocks) if i not in dropped]
    calls = calls_of(message)
    stays = [call in kept for call in range(len(calls))]
    if places:
        # The blocks are the calls, and what else there is repeats them.
        ids, names = {calls[i].id for i in kept}, {calls[i].name for i in kept}
        repeated = calls_of(ChatMessage(additional_kwargs=_call_kwargs(message)))
        stays = [call.id in ids if call.id else call.name in names for call in repeated]
    others = {key: value for key, value in message.additional_kwargs.items() if key not in _CALL_KEYS}
    kwargs = {**others, **_staying(_call_kwargs(message), stays)}
    return message.model_copy(update={"blocks": blocks, "additional_kwargs": kwargs})


def _call_kwargs(message: ChatMessage) -> dict[str, Any]:
    return {key: message.additional_kwargs[key] for key in _CALL_KEYS if message.additional_kwargs.get(key)}


def _staying(kwargs: dict[str, Any], stays: Sequence[bool]) -> dict[str, Any]:
    """Of the calls in ``additional_kwargs``, in the order of ``calls_of``, those that stay."""
    listed = kwargs.get("tool_calls") or []
    listed = listed if isinstance(listed, list) else [listed]
    left = [call for call, stay in zip(listed, stays, strict=False) if stay]
    staying: dict[str, Any] = {"tool_calls": left} if left else {}
    if "function_call" in kwargs and stays[len(listed)]:
        staying["function_call"] = kwargs["function_call"]
    return staying
