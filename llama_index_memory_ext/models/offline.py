"""The offline model: answers from the prompt alone, by rules, without a network."""

from __future__ import annotations

import ast
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseGen,
    LLMMetadata,
    ToolCallBlock,
)
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection

from llama_index_memory_ext.text.messages import body_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from llama_index.core.tools import BaseTool


ABOUT = "I answer by rules: sums with calculator tools, what you said about yourself, and which tools I called."
NOT_SEEN = "I cannot see that in what I was shown."
NO_CALL = "I called no tool for that. I answered from what I was shown."

_OPERATIONS = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
}
_SUM = re.compile(
    r"(?:.*\b(?:what is|what's|how much is|calculate|compute) )?((?:[-+*/() ]|\d+(?:\.\d+)?){1,300}?)[ ?.!=]*",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
# Recalled messages have no end tag.
_ELEMENT = re.compile(
    r'^<(?:message role="(\w+)"|fact )([^>]*)>(.*?)</(?:message|fact)>$'
    r"|^<message (user|assistant|tool)\b([^>]*)>(.*?)(?=\n<(?:message|/earlier_messages)\b)",
    re.MULTILINE | re.DOTALL,
)
_CALL_ID = re.compile(r'tool_call_id="([^"]*)"')
_CALL = re.compile(r"^\[tool call ?([^\]]*)\] ([\w.-]+)\((\{.*\})\)$", re.MULTILINE)
_KNOWN_FACT = re.compile(r"^(\d+)\. (.*)$", re.MULTILINE)
_NUMBERED_MESSAGE = re.compile(r"^(\d+)\. user: (.*)$", re.MULTILINE)
_SUMMARY_SO_FAR = re.compile(r"<summary_so_far>\n(.*?)\n</summary_so_far>", re.DOTALL)


class _Topic(NamedTuple):
    """A topic that users tell about themselves.

    ``statement``: how the user says it, a regular expression.
    ``answer``, ``fact``: the words of an answer and of a fact.
    ``category``: the category of the fact.
    ``question``: how the user asks for it, a regular expression.
    ``single``: whether only the last statement is true.
    """

    statement: str
    answer: str
    fact: str
    category: str
    question: str
    single: bool = False


_TOPICS_FILE = Path(__file__).with_name("offline_topics.json")
_TOPICS = [_Topic(**fields) for fields in json.loads(_TOPICS_FILE.read_bytes())]


class _Entry(NamedTuple):
    """A message or a fact of the prompt; ``call_id`` is the call that a tool's message answers."""

    role: str
    text: str
    call_id: str = ""


class _Call(NamedTuple):
    """A tool call with its result."""

    name: str
    arguments: dict[str, Any]
    result: str


class _Statement(NamedTuple):
    """A statement about a topic: the user's words ("I like tea"), and the value in them ("tea")."""

    quote: str
    value: str


def reply(
    messages: Iterable[ChatMessage], tool_names: Collection[str] = ()
) -> ChatMessage:
    """Return the answer to messages, by the first rule that fits: a text, or a tool call.

    The past is read from the messages, and from the record and the facts within
    ``<memory>``; the question follows ``</memory>``. The tools ``add``, ``subtract``,
    ``multiply``, ``divide`` and ``report_facts`` are used.

    >>> reply([ChatMessage("What is 12 + 30?")], ["add"]).blocks[0].tool_kwargs
    {'a': 12, 'b': 30}
    >>> reply([ChatMessage("My name is Logan.")]).content
    'Noted: your name is Logan.'
    """
    entries: list[_Entry] = []
    for message in messages:
        entries += _entries(message)
    question = ""
    start = len(entries)
    for i, entry in enumerate(entries):
        if entry.role == "user":
            question = entry.text
            start = i
    answer = _answer(question, entries[:start], entries[start:], tool_names)
    if isinstance(answer, str):
        return ChatMessage(answer, role="assistant")
    return ChatMessage(role="assistant", blocks=[answer])


def _answer(
    question: str,
    past: Sequence[_Entry],
    turn: Sequence[_Entry],
    tool_names: Collection[str],
) -> str | ToolCallBlock:
    if "report_facts" in tool_names:
        facts = _facts_in(question)
        return ToolCallBlock(
            tool_call_id="call_1", tool_name="report_facts", tool_kwargs=facts
        )
    summary_so_far = _SUMMARY_SO_FAR.search(question)
    if summary_so_far:
        return _summarize(summary_so_far[1], question)
    if "how did you" in question.casefold():
        return _tell_calls(question, past)
    answer = _calculate(_longest_sum(question), _calls(turn), tool_names)
    return answer or _tell_topic(question, past)


def _entries(message: ChatMessage) -> Iterator[_Entry]:
    """Yield the entries of the memory in a message, and then the message with its calls in the record's form."""
    text = body_of(message)
    if message.role in ("system", "user"):
        memory, _, text = text.rpartition("</memory>")
        yield from _elements(memory)
    call_id = message.additional_kwargs.get("tool_call_id") or ""
    yield _Entry(message.role.value, text.strip(), call_id)


def _elements(text: str) -> list[_Entry]:
    """Return the messages and facts of a memory or a transcript; recalled messages, which are older, come first."""
    recalled = []
    listed = []
    for match in _ELEMENT.finditer(text):
        role, attributes, body, recalled_role, recalled_attributes, recalled_body = (
            part or "" for part in match.groups()
        )
        call_id = "".join(_CALL_ID.findall(attributes + recalled_attributes))
        if recalled_role:
            recalled.append(_Entry(recalled_role, recalled_body.strip(), call_id))
        else:
            listed.append(_Entry(role or "fact", body.strip(), call_id))
    return recalled + listed


def _texts_of(role: str, entries: Iterable[_Entry]) -> list[str]:
    return [entry.text for entry in entries if entry.role == role]


def _calls(entries: Sequence[_Entry]) -> list[_Call]:
    """Return the assistant's calls with their results; the text of another role may only look like a call."""
    results = {entry.call_id: entry.text for entry in entries if entry.role == "tool"}
    text = "\n".join(_texts_of("assistant", entries))
    calls = []
    for call_id, name, arguments in _CALL.findall(text):
        result = results.get(call_id, "no result")
        # The record may have cut the JSON.
        with suppress(ValueError):
            calls.append(_Call(name, json.loads(arguments), result))
    return calls


def _statements(topic: _Topic, text: str, *, latest_only: bool) -> list[_Statement]:
    """Return the statements of a text about a topic, each up to the next topic; questions are left out."""
    pattern = (
        rf"\b((?i:{topic.statement})\s+(.+?))"
        r"(?=,? now\b|,? and (?i:i|my)\b|[\s.!]*$)"
    )
    statements: list[_Statement] = []
    for sentence in _SENTENCE_END.split(text):
        if not sentence.endswith("?"):
            statements += map(_Statement._make, re.findall(pattern, sentence))
    return statements[-1:] if latest_only else statements


def _facts_in(question: str) -> dict[str, Any]:
    """Return the reply to an extraction: the facts of the transcript, each with the known fact that it contradicts."""
    known_facts, _, transcript = question.partition("<transcript>")
    messages = _NUMBERED_MESSAGE.findall(transcript)
    facts: list[dict[str, Any]] = []
    for topic in _TOPICS:
        of_topic = []
        for number, text in messages:
            for quote, value in _statements(topic, text, latest_only=False):
                content = f"{topic.fact} {value}"
                fact = {
                    "message": int(number),
                    "quote": quote,
                    "fact": content,
                    "category": topic.category,
                    "ends": _contradicted(topic, content, known_facts),
                }
                of_topic.append(fact)
        facts += of_topic[-1:] if topic.single else of_topic
    return {"facts": facts}


def _contradicted(topic: _Topic, content: str, known_facts: str) -> int:
    """Return the number of the known fact that a new fact contradicts; 0 if there is none."""
    if topic.single:
        for number, fact in _KNOWN_FACT.findall(known_facts):
            if fact.startswith(topic.fact) and fact.casefold() != content.casefold():
                return int(number)
    return 0


def _summarize(summary_so_far: str, request: str) -> str:
    """Return the summary so far, and the first sentence of each message in the request."""
    lines = [summary_so_far.replace("(none)", "")]
    for entry in _elements(request):
        if entry.role in {"user", "assistant"} and not _calls([entry]):
            sentence = _SENTENCE_END.split(entry.text)[0].strip()
            lines.append(f"The {entry.role}: {sentence}")
    return "\n".join(filter(None, lines))


def _longest_sum(question: str) -> str:
    matches = filter(None, map(_SUM.fullmatch, _SENTENCE_END.split(question)))
    return max((match[1].strip() for match in matches), key=len, default="")


def _calculate(
    written: str, calls: Sequence[_Call], tools: Collection[str]
) -> str | ToolCallBlock:
    """Return the next tool call of a sum, inner operations first, and at last its value; "" for any other text."""
    results = {(call.name, *call.arguments.values()): call.result for call in calls}

    # The nodes of a syntax tree have no common type with these fields.
    def value_of(node: Any) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp):
            return -value_of(node.operand)
        operation = _OPERATIONS.get(type(node.op), "power")
        # Raises a KeyError at the first operation without a result, and a ValueError if
        # the result is the text of an error.
        return json.loads(results[operation, value_of(node.left), value_of(node.right)])

    try:
        tree = ast.parse(written, mode="eval").body
        if not isinstance(tree, ast.BinOp):
            return ""
        value = value_of(tree)
    except (SyntaxError, AttributeError):
        return ""
    except ValueError:
        return f"A tool could not do it: {calls[-1].result}"
    except KeyError as missing:
        tool, a, b = missing.args[0]
    else:
        return f"{written} = {_as_number(value)}"
    if tool not in tools:
        return f"I work out sums with tools only, and there is none named {tool!r}."
    return ToolCallBlock(
        tool_call_id=f"call_{len(calls) + 1}",
        tool_name=tool,
        tool_kwargs={"a": a, "b": b},
    )


def _as_number(value: object) -> str:
    """Return a number without a fraction that is zero, and any other value as it is."""
    return re.sub(r"^(-?\d+)\.0$", r"\1", str(value))


def _tell_calls(question: str, past: Sequence[_Entry]) -> str:
    """Describe the calls of the last turn whose question has the numbers of this question.

    Without numbers, describe the calls of the last turn.
    """
    turns = _turns(past)
    numbers = set(_NUMBER.findall(question))
    if numbers:
        turns = [turn for turn in turns if _asks_with(numbers, turn[0].text)]
    if not turns:
        return NOT_SEEN
    descriptions = []
    for call in _calls(turns[-1]):
        items = call.arguments.items()
        arguments = ", ".join(f"{name}={_as_number(value)}" for name, value in items)
        result = _as_number(call.result)
        descriptions.append(f"{call.name} with {arguments} and got {result}")
    if not descriptions:
        return NO_CALL
    return f"I called {', then '.join(descriptions)}."


def _turns(entries: Iterable[_Entry]) -> list[list[_Entry]]:
    turns = []
    for entry in entries:
        if entry.role == "user":
            turns.append([entry])
        elif turns:
            turns[-1].append(entry)
    return turns


def _asks_with(numbers: set[str], question: str) -> bool:
    if "how did you" in question.casefold():
        return False
    return numbers <= set(_NUMBER.findall(question))


def _tell_topic(question: str, past: Sequence[_Entry]) -> str:
    """Answer from the user's last statement, else from a fact; note new statements of the question."""
    text = "\n".join([*_texts_of("user", past), question])
    facts = _texts_of("fact", past)
    notes = []
    for topic in _TOPICS:
        values = _values(topic, text, facts)
        if re.search(topic.question, question, re.IGNORECASE):
            return f"{topic.answer.capitalize()} {values[0]}." if values else NOT_SEEN
        if topic.fact == "Is allergic to" and question.endswith("?"):
            for value in values:
                if value.casefold().removesuffix("s") in question.casefold():
                    return f"Take care: {topic.answer} {value}."
        statements = _statements(topic, question, latest_only=topic.single)
        notes += [f"{topic.answer} {statement.value}" for statement in statements]
    return f"Noted: {', '.join(notes)}." if notes else ABOUT


def _values(topic: _Topic, text: str, facts: Iterable[str]) -> list[str]:
    """Return the values of a topic: from the text, the last statement first, and then from the facts."""
    statements = _statements(topic, text, latest_only=False)
    values = [statement.value for statement in reversed(statements)]
    about_topic = [fact for fact in facts if fact.startswith(topic.fact)]
    values += [fact.removeprefix(topic.fact).strip() for fact in about_topic]
    return values


class OfflineModel(CustomLLM, FunctionCallingLLM):
    """A LlamaIndex model for a first try, without a network, a key or a state between calls.

    It answers by the rules of ``reply``, from the messages of the call. A stream has
    one part.
    """

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            context_window=128_000, is_chat_model=True, is_function_calling_model=True
        )

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Collection[str] = (),
        **_: object,
    ) -> ChatResponse:
        message = reply(messages, tools)
        return ChatResponse(message=message, delta=message.content or "")

    def stream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponseGen:
        yield self.chat(messages, **kwargs)

    def complete(self, prompt: str, *_: object, **__: object) -> CompletionResponse:
        text = reply([ChatMessage(prompt)]).content or ""
        return CompletionResponse(text=text, delta=text)

    def stream_complete(
        self, prompt: str, *_: object, **__: object
    ) -> CompletionResponseGen:
        yield self.complete(prompt)

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        *_: object,
        **__: object,
    ) -> dict[str, Any]:
        messages = list(chat_history or [])
        if isinstance(user_msg, str):
            user_msg = ChatMessage(user_msg)
        if user_msg:
            messages.append(user_msg)
        names = [tool.metadata.get_name() for tool in tools]
        return {"messages": messages, "tools": names}

    def get_tool_calls_from_response(
        self, response: ChatResponse, *_: object, **__: object
    ) -> list[ToolSelection]:
        calls = []
        for block in response.message.blocks:
            if isinstance(block, ToolCallBlock):
                fields = {"tool_id": block.tool_call_id, **block.model_dump()}
                calls.append(ToolSelection.model_validate(fields))
        return calls
