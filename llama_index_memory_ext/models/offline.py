"""The offline model: answers by rules from the prompt alone, without a network."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import ChatMessage, LLMMetadata, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM

from llama_index_memory_ext.text.entries import body_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from llama_index.core.tools import BaseTool


ABOUT = (
    "I answer by rules: what you said about yourself, which tools I called, "
    "and a tool that you name with two numbers."
)
NOT_SEEN = "I cannot see that in what I was shown."
NO_CALL = "I called no tool for that. I answered from what I was shown."

# The arguments of a tool for two numbers.
_PARAMETERS = ("a", "b")
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
_SUMMARY_SO_FAR = re.compile(r"<summary_so_far>\n(.*?)\n</summary_so_far>", re.DOTALL)
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
    """A message of the prompt, or a fact: it counts as words of the user."""

    role: str
    text: str


class _Prompt(NamedTuple):
    """The last question, the entries ``before`` and after it, and the names of the tools."""

    question: str
    before: Sequence[_Entry]
    after: Sequence[_Entry]
    tools: Collection[str]


def reply(
    messages: Iterable[ChatMessage], tool_names: Collection[str] = ()
) -> ChatMessage:
    """Return the answer of the first rule that fits, a text or a tool call.

    The past is read from the messages, and from the record and the facts within
    ``<memory>``; the question follows ``</memory>``. A tool that the question names is
    called with two numbers, ``a`` and ``b``; ``report_facts`` is called where it is
    offered.

    >>> reply([ChatMessage("Add 12 and 30.")], ["add"]).blocks[0].tool_kwargs
    {'a': 12, 'b': 30}
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
    prompt = _Prompt(
        entries[last].text, entries[:last], entries[last + 1 :], tool_names
    )
    answer = next(filter(None, (rule(prompt) for rule in _RULES)))
    if isinstance(answer, str):
        return ChatMessage(answer, role="assistant")
    return ChatMessage(role="assistant", blocks=[answer])


def _elements(text: str) -> list[_Entry]:
    """Return the messages and facts of a memory: recalled messages, facts, and then the newer messages."""
    matches = list(_ELEMENT.finditer(text))
    matches.sort(key=lambda match: (match["newer"] or "", not match["role"]))
    return [_Entry(match["role"] or "user", match["text"].strip()) for match in matches]


def _statements(beginning: str, text: str) -> list[re.Match[str]]:
    """Return the statements of a text with this beginning, each up to the next topic; questions are left out.

    The groups are the ``quote`` ("I like tea") and the ``value`` in it ("tea").
    """
    pattern = re.compile(
        rf"\b(?P<quote>(?i:{beginning})\s+(?P<value>.+?))"
        r"(?=,? now\b|,? and (?i:i|my)\b|[\s.!\"]*$)"
    )
    statements: list[re.Match[str]] = []
    for sentence in _SENTENCE_END.split(text):
        if not sentence.endswith("?"):
            statements += pattern.finditer(sentence)
    return statements


def _words_of_user(prompt: _Prompt) -> str:
    return "\n".join(entry.text for entry in prompt.before if entry.role == "user")


def _report_facts(prompt: _Prompt) -> ToolCallBlock | None:
    """Report the facts of a transcript, each with the number of the known fact that it contradicts."""
    if "report_facts" not in prompt.tools:
        return None
    known_facts, _, transcript = prompt.question.partition("<transcript>")
    facts: list[dict[str, Any]] = []
    for topic in _TOPICS:
        of_topic = []
        for number, text in _NUMBERED_MESSAGE.findall(transcript):
            for statement in _statements(topic.statement, text):
                content = f"{topic.fact} {statement['value']}"
                fact = {
                    "message": int(number),
                    "quote": statement["quote"],
                    "fact": content,
                    "category": topic.category,
                    "ends": _contradicted(topic, content, known_facts),
                }
                of_topic.append(fact)
        facts += of_topic[-1:] if topic.single else of_topic
    return ToolCallBlock(
        tool_call_id="call_1", tool_name="report_facts", tool_kwargs={"facts": facts}
    )


def _extract_facts(prompt: _Prompt) -> str:
    """Return the facts of the messages, as LlamaIndex's ``FactExtractionMemoryBlock`` asks for them."""
    if "<existing_facts>" not in prompt.question:
        return ""
    facts = ""
    for topic in _TOPICS:
        for statement in _statements(topic.statement, _words_of_user(prompt)):
            facts += f"<fact>{topic.fact} {statement['value']}</fact>"
    return facts


def _contradicted(topic: _Topic, content: str, known_facts: str) -> int:
    """Return the number of the known fact that a new one contradicts; 0 if there is none."""
    for number, fact in _KNOWN_FACT.findall(known_facts):
        is_about_topic = topic.single and fact.startswith(topic.fact)
        if is_about_topic and fact.casefold() != content.casefold():
            return int(number)
    return 0


def _summarize(prompt: _Prompt) -> str:
    """Return the summary so far, and the first sentence of each message in the request."""
    summary_so_far = _SUMMARY_SO_FAR.search(prompt.question)
    if summary_so_far is None:
        return ""
    lines = [summary_so_far[1].replace("(none)", "")]
    for entry in _elements(prompt.question):
        if entry.role != "tool" and not _CALL.search(entry.text):
            sentence = _SENTENCE_END.split(entry.text)[0]
            lines.append(f"The {entry.role}: {sentence}")
    return "\n".join(lines).strip()


def _call_tool(prompt: _Prompt) -> str | ToolCallBlock:
    """Call a tool that the question names, with two numbers in it; then tell the result."""
    for entry in prompt.after:
        if entry.role == "tool":
            return f"The result is {entry.text}."
    numbers = _NUMBER.findall(prompt.question)
    words = prompt.question.casefold().split()
    for tool in prompt.tools:
        if tool in words and len(numbers) == len(_PARAMETERS):
            values = [float(text) if "." in text else int(text) for text in numbers]
            arguments = dict(zip(_PARAMETERS, values, strict=True))
            return ToolCallBlock(
                tool_call_id="call_1", tool_name=tool, tool_kwargs=arguments
            )
    return ""


def _tell_calls(prompt: _Prompt) -> str:
    """Tell the tool calls and results in the prompt."""
    if "how did you" not in prompt.question.casefold():
        return ""
    steps: list[str] = []
    for entry in prompt.before:
        if entry.role == "assistant":
            steps += [f"called {call}" for call in _CALL.findall(entry.text)]
        elif entry.role == "tool":
            steps.append(f"got {entry.text}")
    return f"I {', '.join(steps)}." if steps else NO_CALL


def _answer_question(prompt: _Prompt) -> str:
    """Answer a question about a topic, from the facts and the user's words."""
    text = f"{_words_of_user(prompt)}\n{prompt.question}"
    for topic in _TOPICS:
        if re.search(topic.question, prompt.question, re.IGNORECASE):
            statements = _statements(f"{topic.statement}|{topic.fact}", text)
            if not statements:
                return NOT_SEEN
            return f"{topic.answer.capitalize()} {statements[-1]['value']}."
    return ""


def _note(prompt: _Prompt) -> str:
    """Note the statements of the user."""
    notes = []
    for topic in _TOPICS:
        statements = _statements(topic.statement, prompt.question)
        notes += [f"{topic.answer} {statement['value']}" for statement in statements]
    return f"Noted: {', '.join(notes)}." if notes else ABOUT


# The first rule with an answer counts.
_RULES = (
    _report_facts,
    _extract_facts,
    _summarize,
    _tell_calls,
    _call_tool,
    _answer_question,
    _note,
)


class OfflineModel(MockFunctionCallingLLM):
    """A LlamaIndex model for a first try that answers by rules, without a network, a key or a state between calls.

    The rules answer questions about a few topics, such as names, places, allergies,
    likes and work, and about earlier tool calls. They report facts, summarise, and call
    a tool that the question names with two numbers. A stream has one part.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(response_generator=_respond, is_chat_model=True, **kwargs)

    @property
    def metadata(self) -> LLMMetadata:
        changes = {
            "model_name": "offline model that answers by rules",
            "context_window": 128_000,
        }
        return super().metadata.model_copy(update=changes)


def _respond(
    messages: Sequence[ChatMessage], *, tools: Iterable[BaseTool] = (), **_: object
) -> ChatMessage:
    return reply(messages, [tool.metadata.get_name() for tool in tools])
