"""The offline model: answers by rules from the prompt alone, without a network."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import (
    ChatMessage,
    LLMMetadata,
    ToolCallBlock,
)
from llama_index.core.llms.mock import MockFunctionCallingLLM

from llama_index_memory_ext.text.entries import body_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from llama_index.core.tools import BaseTool


ABOUT = "I answer by rules: what you said about yourself, and which tools were called."
NOT_SEEN = "I cannot see that in what I was shown."
NO_CALL = "I called no tool for that. I answered from what I was shown."

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
# Recalled messages, which are older than the others, have no end tag and no "role=".
_ELEMENT = re.compile(
    r"^<(?:fact|message (?P<newer>role=.)?(?P<role>user|assistant|tool))\b[^>]*>"
    r"(?P<text>.*?)(?=</(?:message|fact)>$|\n<(?:message|/earlier_messages)\b)",
    re.MULTILINE | re.DOTALL,
)
_CALL = re.compile(r"^\[tool call ?[^\]]*\] (.*)$", re.MULTILINE)
_KNOWN_FACT = re.compile(r"^(\d+)\. (.*)$", re.MULTILINE)
_NUMBERED_MESSAGE = re.compile(r"^(\d+)\. user: (.*)$", re.MULTILINE)


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
    """A message or a fact of the prompt."""

    role: str
    text: str


class _Prompt(NamedTuple):
    """The last question, the entries ``before`` it, and the names of the tools."""

    question: str
    before: Sequence[_Entry]
    tools: Collection[str]


class _Statement(NamedTuple):
    """A statement about a topic: the user's words ("I like tea"), and the value in them ("tea")."""

    quote: str
    value: str


def reply(
    messages: Iterable[ChatMessage], tool_names: Collection[str] = ()
) -> ChatMessage:
    """Return the answer of the first rule that fits, a text or a call of ``report_facts`` where that is offered.

    The past is read from the messages, and from the record and the facts within
    ``<memory>``; the question follows ``</memory>``.

    >>> reply([ChatMessage("My name is Logan.")]).content
    'Noted: your name is Logan.'
    """
    entries: list[_Entry] = []
    last = 0
    for message in messages:
        memory, _, text = body_of(message).rpartition("</memory>")
        entries += _elements(memory)
        entries.append(_Entry(message.role.value, text.strip()))
        if message.role == "user":
            last = len(entries) - 1
    prompt = _Prompt(entries[last].text, entries[:last], tool_names)
    answer = next(filter(None, (rule(prompt) for rule in _RULES)))
    if isinstance(answer, str):
        return ChatMessage(answer, role="assistant")
    return ChatMessage(role="assistant", blocks=[answer])


def _elements(text: str) -> list[_Entry]:
    """Return the messages and facts of a memory; recalled messages, which are older, come first."""
    matches = list(_ELEMENT.finditer(text))
    matches.sort(key=lambda match: not match["role"] or bool(match["newer"]))
    return [_Entry(match["role"] or "fact", match["text"].strip()) for match in matches]


def _texts_of(role: str, entries: Iterable[_Entry]) -> list[str]:
    return [entry.text for entry in entries if entry.role == role]


def _statements(beginning: str, text: str) -> list[_Statement]:
    """Return the statements of a text with this beginning, each up to the next topic; questions are left out."""
    pattern = (
        rf"\b((?i:{beginning})\s+(.+?))"
        r"(?=,? now\b|,? and (?i:i|my)\b|[\s.!\"]*$)"
    )
    statements: list[_Statement] = []
    for sentence in _SENTENCE_END.split(text):
        if not sentence.endswith("?"):
            statements += map(_Statement._make, re.findall(pattern, sentence))
    return statements


def _report_facts(prompt: _Prompt) -> ToolCallBlock | None:
    """Report the facts of a transcript, each with the number of the known fact that it contradicts."""
    if "report_facts" not in prompt.tools:
        return None
    known_facts, _, transcript = prompt.question.partition("<transcript>")
    facts: list[dict[str, Any]] = []
    for topic in _TOPICS:
        of_topic = []
        for number, text in _NUMBERED_MESSAGE.findall(transcript):
            for quote, value in _statements(topic.statement, text):
                fact = {
                    "message": int(number),
                    "quote": quote,
                    "fact": f"{topic.fact} {value}",
                    "category": topic.category,
                    "ends": _contradicted(topic, value, known_facts),
                }
                of_topic.append(fact)
        facts += of_topic[-1:] if topic.single else of_topic
    return ToolCallBlock(
        tool_call_id="call_1", tool_name="report_facts", tool_kwargs={"facts": facts}
    )


def _contradicted(topic: _Topic, value: str, known_facts: str) -> int:
    """Return the number of the known fact that another value contradicts; 0 if there is none."""
    for number, fact in _KNOWN_FACT.findall(known_facts):
        is_about_topic = topic.single and fact.startswith(topic.fact)
        if is_about_topic and fact.casefold() != f"{topic.fact} {value}".casefold():
            return int(number)
    return 0


def _tell_calls(prompt: _Prompt) -> str:
    """Tell the calls and results of the last turn whose question has the numbers of this question."""
    if "how did you" not in prompt.question.casefold():
        return ""
    numbers = set(_NUMBER.findall(prompt.question))
    answer = NOT_SEEN
    is_matching = False
    steps: list[str] = []
    for entry in prompt.before:
        if entry.role == "user":
            is_matching = numbers <= set(_NUMBER.findall(entry.text))
            steps = []
        elif entry.role == "assistant":
            steps += [f"called {call}" for call in _CALL.findall(entry.text)]
        elif entry.role == "tool":
            steps.append(f"got {entry.text}")
        if is_matching:
            answer = f"I {', '.join(steps)}." if steps else NO_CALL
    return answer


def _answer_question(prompt: _Prompt) -> str:
    """Answer a question about a topic."""
    for topic in _TOPICS:
        if re.search(topic.question, prompt.question, re.IGNORECASE):
            values = _values(topic, prompt)
            return f"{topic.answer.capitalize()} {values[-1]}." if values else NOT_SEEN
    return ""


def _note(prompt: _Prompt) -> str:
    """Note the statements of the user."""
    notes = []
    for topic in _TOPICS:
        statements = _statements(topic.statement, prompt.question)
        notes += [f"{topic.answer} {statement.value}" for statement in statements]
    return f"Noted: {', '.join(notes)}." if notes else ABOUT


def _values(topic: _Topic, prompt: _Prompt) -> list[str]:
    """Return the values of a topic: of the facts, and then of the user's words."""
    texts = [*_texts_of("fact", prompt.before), *_texts_of("user", prompt.before)]
    text = "\n".join([*texts, prompt.question])
    statements = _statements(f"{topic.statement}|{topic.fact}", text)
    return [statement.value for statement in statements]


# The first rule with an answer counts.
_RULES = (
    _report_facts,
    _tell_calls,
    _answer_question,
    _note,
)


class OfflineModel(MockFunctionCallingLLM):
    """A LlamaIndex model for a first try that answers by rules, without a network, a key or a state between calls.

    The rules answer questions about a few topics, such as names, places, allergies,
    likes and work, and about earlier tool calls. They report facts. They call no other
    tools, and a stream has one part.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(response_generator=_respond, is_chat_model=True, **kwargs)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            model_name="offline model that answers by rules",
            context_window=128_000,
            is_chat_model=True,
            is_function_calling_model=True,
        )


def _respond(
    messages: Sequence[ChatMessage], *, tools: Iterable[BaseTool] = (), **_: object
) -> ChatMessage:
    return reply(messages, [tool.metadata.get_name() for tool in tools])
