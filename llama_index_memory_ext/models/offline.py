"""The offline model, for trials: it answers from the prompt alone, by rules, without a network."""

from __future__ import annotations

import ast
import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    ToolCallBlock,
)
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection

from llama_index_memory_ext.text.messages import HINT, body_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from llama_index.core.base.llms.types import ChatResponseGen, CompletionResponseGen
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
# A recalled message has no closing tag.
_ELEMENT = re.compile(
    r'^<(?:message role="(\w+)"|fact )([^>]*)>(.*?)</(?:message|fact)>$'
    r"|^<message (user|assistant|tool)\b([^>]*)>(.*?)(?=\n<(?:message|/earlier_messages)\b)",
    re.MULTILINE | re.DOTALL,
)
_CALL_ID = re.compile(r'tool_call_id="([^"]*)"')
_CALL = re.compile(r"^\[tool call ?([^\]]*)\] ([\w.-]+)\((\{.*\})\)$", re.MULTILINE)
_KNOWN_FACT = re.compile(r"^(\d+)\. (.*)$", re.MULTILINE)
_SUMMARY_SO_FAR = re.compile(r"<summary_so_far>\n(.*?)\n</summary_so_far>", re.DOTALL)

_HOW = "how did you"
_ALLERGY = "Is allergic to"


class _Topic(NamedTuple):
    """A topic that users talk about.

    ``statement``: a pattern of the user's words.
    ``echo``: the words of an answer.
    ``fact``: the words of a fact.
    ``category``: the category of the fact.
    ``question``: a pattern of a question about it.
    ``is_single``: whether only the last statement is true.
    """

    statement: str
    echo: str
    fact: str
    category: str
    question: str
    is_single: bool = False


_FAMILY = "(?:son|daughter|child|children|kid|brother|sister|wife|husband|partner|dog|cat|pet)s?"
_TOPICS = (
    _Topic(
        "my name is|call me",
        "your name is",
        "Is called",
        "knowledge",
        "what(?: i|['\u2019])s my name|who am i",
        is_single=True,
    ),
    _Topic(
        "i (?:now )?(?:live in|moved to)",
        "you live in",
        "Lives in",
        "context",
        "where do i live",
        is_single=True,
    ),
    _Topic(
        "i(?:['\u2019]m| am) allergic to",
        "you are allergic to",
        _ALLERGY,
        "context",
        r"(?:what|do|am|any|have)\b.*allerg",
    ),
    _Topic(
        rf"i have(?=\s+\S+ (?:\w+ )?{_FAMILY}\b)",
        "you have",
        "Has",
        "context",
        rf"do i have .*{_FAMILY}|my family",
    ),
    _Topic(
        "i (?:like|love)", "you like", "Likes", "preference", "what do i (?:like|love)"
    ),
    _Topic(
        "i work as",
        "you work as",
        "Works as",
        "knowledge",
        "what do i do|my (?:job|profession)",
    ),
    _Topic(
        "i work (?:at|for)",
        "you work at",
        "Works at",
        "knowledge",
        "where do i work|who do i work for",
    ),
    _Topic(
        "i(?:['\u2019]m| am)? work(?:ing)? on",
        "you work on",
        "Works on",
        "context",
        "what (?:do|am) i work",
    ),
    _Topic("i use", "you use", "Uses", "context", "what do i use"),
    _Topic("i prefer", "you prefer", "Prefers", "preference", "what do i prefer"),
    _Topic("i bought", "you bought", "Bought", "context", "what did i buy"),
    _Topic(
        "i plan to",
        "you planned to",
        "Plans to",
        "goal",
        "what did i (?:plan|say|tell)",
    ),
)


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
    """The user's words about a topic, "I like tea", and the ``value`` in them, "tea"."""

    quote: str
    value: str


def reply(
    messages: Iterable[ChatMessage], tool_names: Collection[str] = ()
) -> ChatMessage:
    """Return the answer to messages, by the first rule that fits: a text, or a tool call.

    The past is read from the messages, and from the record and the facts within
    ``<memory>``; the question is the text behind them. Of the tools ``add``,
    ``subtract``, ``multiply``, ``divide`` and ``report_facts`` are used.

    >>> reply([ChatMessage("What is 12 + 30?")], ["add"]).blocks[0].tool_kwargs
    {'a': 12, 'b': 30}
    >>> reply([ChatMessage("My name is Logan.")]).content
    'Noted: your name is Logan.'
    """
    entries: list[_Entry] = []
    for message in messages:
        entries += _entries(message)
    start = len(entries)
    for i, entry in enumerate(entries):
        if entry.role == "user":
            start = i
    answer = _answer(entries[:start], entries[start:], tool_names)
    if isinstance(answer, str):
        return ChatMessage(answer, role="assistant")
    return ChatMessage(role="assistant", blocks=[answer])


def _answer(
    past: Sequence[_Entry], turn: Sequence[_Entry], tool_names: Collection[str]
) -> str | ToolCallBlock:
    question = turn[0].text if turn else ""
    if "report_facts" in tool_names:
        return ToolCallBlock(
            tool_call_id="call_1",
            tool_name="report_facts",
            tool_kwargs=_facts_in(question),
        )
    summary = _SUMMARY_SO_FAR.search(question)
    if summary:
        return _summarize(summary[1], question)
    if _HOW in question.casefold():
        return _tell_calls(question, past)
    calculation = _calculate(_longest_sum(question), _calls(turn), tool_names)
    return calculation or _tell_topic(question, past)


def _entries(message: ChatMessage) -> Iterator[_Entry]:
    """Yield the messages and facts in the memory of a message, then the message with its calls."""
    text = body_of(message)
    if message.role in ("system", "user"):
        memory, _, text = text.rpartition("</memory>")
        text = text.strip().removeprefix(HINT)
        yield from _elements(memory)
    call_id = message.additional_kwargs.get("tool_call_id") or ""
    yield _Entry(message.role.value, text.strip(), call_id)


def _elements(text: str) -> list[_Entry]:
    """Return the messages and facts of a memory or a transcript, recalled messages first, which are older."""
    recalled = []
    elements = []
    for match in _ELEMENT.finditer(text):
        if match[4]:
            recalled.append(_parse_element(*match.group(4, 5, 6)))
        else:
            elements.append(_parse_element(*match.group(1, 2, 3)))
    return recalled + elements


def _parse_element(role: str | None, attributes: str, body: str) -> _Entry:
    call_id = "".join(_CALL_ID.findall(attributes))
    return _Entry(role or "fact", body.strip(), call_id)


def _texts_of(role: str, entries: Iterable[_Entry]) -> list[str]:
    return [entry.text for entry in entries if entry.role == role]


def _calls(entries: Sequence[_Entry]) -> list[_Call]:
    """Return the assistant's calls in a turn. The text of another role may only look like a call."""
    results = {entry.call_id: entry.text for entry in entries if entry.role == "tool"}
    calls = []
    text = "\n".join(_texts_of("assistant", entries))
    for call_id, name, arguments in _CALL.findall(text):
        result = results.get(call_id, "no result")
        # The JSON may be cut.
        with suppress(ValueError):
            calls.append(_Call(name, json.loads(arguments), result))
    return calls


def _statements(topic: _Topic, text: str) -> list[_Statement]:
    """Return the true statements about a topic in a text, outside of questions. The next statement ends a value."""
    pattern = (
        rf"\b((?i:{topic.statement})\s+(.+?))(?=,? now\b|,? and (?i:i|my)\b|[\s.!]*$)"
    )
    statements: list[_Statement] = []
    for sentence in _SENTENCE_END.split(text):
        if not sentence.endswith("?"):
            statements += map(_Statement._make, re.findall(pattern, sentence))
    return statements[-1:] if topic.is_single else statements


def _summarize(summary: str, question: str) -> str:
    """Return the summary so far, and the first sentence of each message that follows it."""
    lines = [summary.replace("(none)", "")]
    for message in _elements(question):
        if message.role in {"user", "assistant"} and not _calls([message]):
            sentence = _SENTENCE_END.split(message.text)[0].strip()
            lines.append(f"The {message.role}: {sentence}")
    return "\n".join(filter(None, lines))


def _facts_in(question: str) -> dict[str, Any]:
    """Report the user's statements in a transcript, and the numbered facts that they contradict."""
    numbered_facts, _, transcript = question.partition("<transcript>")
    text = "\n".join(_texts_of("user", _elements(transcript)))
    new: list[dict[str, Any]] = []
    retired = []
    for topic in _TOPICS:
        for quote, value in _statements(topic, text):
            content = f"{topic.fact} {value}"
            label = f"n{len(new) + 1}"
            new.append(
                {
                    "label": label,
                    "content": content,
                    "category": topic.category,
                    "confidence": 0.9,
                    "quote": quote,
                }
            )
            if not topic.is_single:
                continue
            for number, fact in _KNOWN_FACT.findall(numbered_facts):
                if (
                    fact.startswith(topic.fact)
                    and fact.casefold() != content.casefold()
                ):
                    retired.append(
                        {
                            "number": int(number),
                            "reason": f"The user said: {quote}",
                            "replaced_by": label,
                            "quote": quote,
                        }
                    )
    return {"new_facts": new, "confirmed": [], "retired": retired}


def _longest_sum(question: str) -> str:
    """Return the longest sum that is a sentence of the question; "" for none."""
    sums = []
    for sentence in _SENTENCE_END.split(question):
        match = _SUM.fullmatch(sentence)
        if match:
            sums.append(match[1].strip())
    return max(sums, key=len, default="")


def _calculate(
    text: str, calls: Sequence[_Call], tools: Collection[str]
) -> str | ToolCallBlock:
    """Call a tool for each operation of a sum, the inner ones first, then tell its value; "" for any other text."""
    results: dict[tuple[object, ...], str] = {
        (call.name, *call.arguments.values()): call.result for call in calls
    }

    # The nodes of a syntax tree have no type in common that has their fields.
    def value_of(node: Any) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp):
            return -value_of(node.operand)
        tool = _OPERATIONS.get(type(node.op), "power")
        # Raises a KeyError for an operation without a result, and a ValueError for the
        # text of an error.
        return json.loads(results[tool, value_of(node.left), value_of(node.right)])

    try:
        tree = ast.parse(text, mode="eval").body
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
        return f"{text} = {_format_number(value)}"
    if tool not in tools:
        return f"I work out sums with tools only, and there is none named {tool!r}."
    return ToolCallBlock(
        tool_call_id=f"call_{len(calls) + 1}",
        tool_name=tool,
        tool_kwargs={"a": a, "b": b},
    )


def _format_number(value: object) -> str:
    """Return a number without a fraction that is zero, and any other value as it is."""
    return re.sub(r"^(-?\d+)\.0$", r"\1", str(value))


def _tell_calls(question: str, past: Sequence[_Entry]) -> str:
    """Tell the calls of the last turn that began with the numbers of the question; without numbers the last turn's."""
    turns: list[list[_Entry]] = []
    for entry in past:
        if entry.role == "user":
            turns.append([])
        if turns:
            turns[-1].append(entry)
    numbers = set(_NUMBER.findall(question))
    if numbers:
        turns = [turn for turn in turns if _asks_for(turn[0].text, numbers)]
    if not turns:
        return NOT_SEEN
    calls = ", then ".join(map(_describe, _calls(turns[-1])))
    return f"I called {calls}." if calls else NO_CALL


def _describe(call: _Call) -> str:
    arguments = ", ".join(
        f"{name}={_format_number(value)}" for name, value in call.arguments.items()
    )
    return f"{call.name} with {arguments} and got {_format_number(call.result)}"


def _asks_for(question: str, numbers: set[str]) -> bool:
    return _HOW not in question.casefold() and numbers <= set(_NUMBER.findall(question))


def _tell_topic(question: str, past: Sequence[_Entry]) -> str:
    """Tell the user's last statement about the topic of a question, else a fact; notes new statements."""
    text = "\n".join([*_texts_of("user", past), question])
    facts = _texts_of("fact", past)
    notes = []
    for topic in _TOPICS:
        values = _values_of(topic, text, facts)
        if re.search(topic.question, question, re.IGNORECASE):
            return f"{topic.echo.capitalize()} {values[0]}." if values else NOT_SEEN
        if topic.fact == _ALLERGY and question.endswith("?"):
            for value in values:
                if value.casefold().removesuffix("s") in question.casefold():
                    return f"Take care: {topic.echo} {value}."
        statements = _statements(topic, question)
        notes += [f"{topic.echo} {statement.value}" for statement in statements]
    if notes:
        return f"Noted: {', '.join(notes)}."
    return ABOUT


def _values_of(topic: _Topic, text: str, facts: Sequence[str]) -> list[str]:
    """Return the values of the statements in a text, the last one first, then the values of the facts."""
    values = [statement.value for statement in reversed(_statements(topic, text))]
    matching_facts = [fact for fact in facts if fact.startswith(topic.fact)]
    values += [fact.removeprefix(topic.fact).strip() for fact in matching_facts]
    return values


class OfflineModel(CustomLLM, FunctionCallingLLM):
    """A LlamaIndex model for trials: no network, no key, no state between calls.

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
        *_: object,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        messages = list(kwargs.get("chat_history") or [])
        user_msg = kwargs.get("user_msg")
        if isinstance(user_msg, str):
            user_msg = ChatMessage(user_msg)
        if user_msg:
            messages.append(user_msg)
        return {
            "messages": messages,
            "tools": [tool.metadata.get_name() for tool in tools],
        }

    def get_tool_calls_from_response(
        self, response: ChatResponse, *_: object, **__: object
    ) -> list[ToolSelection]:
        selections = []
        for block in response.message.blocks:
            if isinstance(block, ToolCallBlock):
                fields = block.model_dump()
                fields["tool_id"] = block.tool_call_id
                selections.append(ToolSelection.model_validate(fields))
        return selections
