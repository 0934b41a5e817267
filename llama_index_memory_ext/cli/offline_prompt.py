"""Reads what was said, and what is known, from the messages of a prompt."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

_ELEMENT = re.compile(r'^<message role="(\w+)"([^>]*)>(.*?)</message>$', re.MULTILINE | re.DOTALL)
_CALL_ID = re.compile(r'tool_call_id="([^"]*)"')
_FACT = re.compile(r"^<fact [^>]*>(.*)</fact>$", re.MULTILINE)
_CALL_LINE = re.compile(r"^\[tool call ?([^\]]*)\] ([\w.-]+)\((.*)\)$", re.MULTILINE)


class ToolCall(NamedTuple):
    """A call of a tool; the arguments are JSON values by name."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model answers: a text, or the tools that it wants called first (the text is empty then)."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class Said(NamedTuple):
    """A message of the prompt, or a message or fact of the memory in it; ``result_of`` is the id of a call."""

    role: str
    text: str
    calls: tuple[ToolCall, ...] = ()
    result_of: str = ""


class Prompt(NamedTuple):
    """The newest question, what was said before it, and what has followed it already."""

    question: str
    past: list[Said]
    turn: list[Said]
    tools: frozenset[str]


def read_prompt(messages: Sequence[Mapping[str, Any]], tool_names: Collection[str]) -> Prompt:
    """Take apart messages in the form of OpenAI's Chat Completions."""
    said: list[Said] = []
    for message in messages:
        role, text = str(message.get("role")), _text(message.get("content"))
        if role in {"system", "user"}:
            memory, _, text = text.rpartition("</memory>")
            said += elements_of(memory)
            said += [Said("fact", fact) for fact in _FACT.findall(memory)]
        calls = tuple(_call(call) for call in message.get("tool_calls") or ())
        said.append(Said(role, text.strip(), calls, str(message.get("tool_call_id") or "")))
    asked = max((i for i, one in enumerate(said) if one.role == "user"), default=None)
    question, asked = ("", len(said)) if asked is None else (said[asked].text, asked)
    return Prompt(question, said[:asked], said[asked + 1 :], frozenset(tool_names))


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") == "text")
    return content or ""


def elements_of(text: str) -> Iterator[Said]:
    """The messages of a record or a transcript."""
    for role, attributes, body in _ELEMENT.findall(text):
        # A user may write what looks like a call; only the model's own calls are any.
        lines = _CALL_LINE.findall(body) if role == "assistant" else []
        calls = tuple(ToolCall(call_id, name, arguments_of(arguments)) for call_id, name, arguments in lines)
        yield Said(role, body.strip(), calls, "".join(_CALL_ID.findall(attributes)))


def _call(call: Mapping[str, Any]) -> ToolCall:
    return ToolCall(str(call.get("id")), call["function"]["name"], arguments_of(call["function"].get("arguments")))


def arguments_of(value: Any) -> dict[str, Any]:
    """The arguments of a call, which may be JSON; {} if they are neither that nor an object."""
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def answered(said: Iterable[Said]) -> list[tuple[ToolCall, str | None]]:
    """The calls in their order, each with its result; None where there is none."""
    calls: list[tuple[ToolCall, str | None]] = []
    for one in said:
        calls += [(call, None) for call in one.calls]
        if one.role == "tool":
            waiting = (i for i, (call, result) in enumerate(calls) if result is None and call.id == one.result_of)
            i = next(waiting, None)
            if i is not None:
                calls[i] = (calls[i][0], one.text)
    return calls


def asks(prompt: Prompt, *openings: str) -> bool:
    """Whether one of these is in the question, whatever its case and its apostrophes."""
    question = prompt.question.casefold().replace("\u2019", "'")
    return any(opening in question for opening in openings)
