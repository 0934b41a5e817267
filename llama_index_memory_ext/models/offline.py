"""A model for trying things out: it answers from the prompt alone, by rules, without a network."""

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
# Recalled messages have no end of their own.
_ELEMENT = re.compile(
    r'^<(?:message role="(\w+)"|fact )([^>]*)>(.*?)</(?:message|fact)>$'
    r"|^<message (user|assistant|tool)\b([^>]*)>(.*?)(?=\n<(?:message|/earlier_messages)\b)",
    re.MULTILINE | re.DOTALL,
)
_CALL_ID = re.compile(r'tool_call_id="([^"]*)"')
_CALL = re.compile(r"^\[tool call ?([^\]]*)\] ([\w.-]+)\((\{.*\})\)$", re.MULTILINE)
_KNOWN_FACT = re.compile(r"^(\d+)\. (.*)$", re.MULTILINE)
_SUMMARY_SO_FAR = re.compile(r"<summary_so_far>\n(.*?)\n</summary_so_far>", re.DOTALL)

# Of a topic that users tell of themselves: how they say it, how an answer and a fact
# do, the fact's category, and how they ask for it. Of the first two only the last
# statement is true.
_FAMILY = "(?:son|daughter|child|children|kid|brother|sister|wife|husband|partner|dog|cat|pet)s?"
_TOPICS = (
    (
        "my name is|call me",
        "your name is",
        "Is called",
        "knowledge",
        "what(?: i|['\u2019])s my name|who am i",
    ),
    (
        "i (?:now )?(?:live in|moved to)",
        "you live in",
        "Lives in",
        "context",
        "where do i live",
    ),
    (
        "i(?:['\u2019]m| am) allergic to",
        "you are allergic to",
        "Is allergic to",
        "context",
        r"(?:what|do|am|any|have)\b.*allerg",
    ),
    (
        rf"i have(?=\s+\S+ (?:\w+ )?{_FAMILY}\b)",
        "you have",
        "Has",
        "context",
        rf"do i have .*{_FAMILY}|my family",
    ),
    ("i (?:like|love)", "you like", "Likes", "preference", "what do i (?:like|love)"),
    (
        "i work as",
        "you work as",
        "Works as",
        "knowledge",
        "what do i do|my (?:job|profession)",
    ),
    (
        "i work (?:at|for)",
        "you work at",
        "Works at",
        "knowledge",
        "where do i work|who do i work for",
    ),
    (
        "i(?:['\u2019]m| am)? work(?:ing)? on",
        "you work on",
        "Works on",
        "context",
        "what (?:do|am) i work",
    ),
    ("i use", "you use", "Uses", "context", "what do i use"),
    ("i prefer", "you prefer", "Prefers", "preference", "what do i prefer"),
    ("i bought", "you bought", "Bought", "context", "what did i buy"),
    ("i plan to", "you planned to", "Plans to", "goal", "what did i (?:plan|say|tell)"),
)
_SINGLE = ("Is called", "Lives in")


class _Entry(NamedTuple):
    """A message or a fact of the prompt; ``call_id`` is the call that a tool's message answers."""

    role: str
    text: str
    call_id: str = ""


def reply(
    messages: Iterable[ChatMessage], tool_names: Collection[str] = ()
) -> ChatMessage:
    """Return the answer to messages, by the first rule that fits: a text, or a tool call.

    The past is read from the messages, and from the record and the facts within
    ``<memory>``; the question is what follows the end of that. Of the tools ``add``,
    ``subtract``, ``multiply``, ``divide`` and ``report_facts`` are used.

    >>> reply([ChatMessage("What is 12 + 30?")], ["add"]).blocks[0].tool_kwargs
    {'a': 12, 'b': 30}
    >>> reply([ChatMessage("My name is Logan.")]).content
    'Noted: your name is Logan.'
    """
    entries = [entry for message in messages for entry in _entries(message)]
    asked = max(
        (i for i, entry in enumerate(entries) if entry.role == "user"),
        default=len(entries),
    )
    question = "".join(entry.text for entry in entries[asked : asked + 1])
    past = entries[:asked]
    answer: str | ToolCallBlock
    if "report_facts" in tool_names:
        answer = ToolCallBlock(
            tool_call_id="call_1",
            tool_name="report_facts",
            tool_kwargs=_facts_in(question),
        )
    elif so_far := _SUMMARY_SO_FAR.search(question):
        # The first sentence of each message follows the summary so far.
        said = [
            one
            for one in _elements(question)
            if one.role in {"user", "assistant"} and not _calls([one])
        ]
        lines = [
            f"The {one.role}: {_SENTENCE_END.split(one.text)[0].strip()}"
            for one in said
        ]
        answer = "\n".join(filter(None, [so_far[1].replace("(none)", ""), *lines]))
    elif "how did you" in question.casefold():
        answer = _tell_calls(question, past)
    else:
        sums = [
            found[1].strip()
            for found in map(_SUM.fullmatch, _SENTENCE_END.split(question))
            if found
        ]
        answer = _calculate(
            max(sums, key=len, default=""), _calls(entries[asked:]), tool_names
        )
        answer = answer or _tell_topic(question, past)
    if isinstance(answer, str):
        return ChatMessage(answer, role="assistant")
    return ChatMessage(role="assistant", blocks=[answer])


def _entries(message: ChatMessage) -> Iterator[_Entry]:
    """Yield what is in the memory of a message, and the message itself with its calls as the record shows them."""
    text = body_of(message)
    if message.role in ("system", "user"):
        memory, _, text = text.rpartition("</memory>")
        text = text.strip().removeprefix(HINT)
        yield from _elements(memory)
    yield _Entry(
        message.role.value,
        text.strip(),
        message.additional_kwargs.get("tool_call_id") or "",
    )


def _elements(text: str) -> list[_Entry]:
    """Return the messages and facts of a memory or a transcript, recalled messages first: they were said before."""
    elements = sorted(_ELEMENT.findall(text), key=lambda parts: not parts[3])
    return [
        _Entry(
            role or recalled or "fact",
            (body or said).strip(),
            "".join(_CALL_ID.findall(more + of_recalled)),
        )
        for role, more, body, recalled, of_recalled, said in elements
    ]


def _texts_of(role: str, entries: Iterable[_Entry]) -> list[str]:
    return [entry.text for entry in entries if entry.role == role]


def _calls(entries: Sequence[_Entry]) -> list[tuple[str, dict[str, Any], str]]:
    """Return the calls of a turn with their results. They are the assistant's: others' text may only look like one."""
    results = {entry.call_id: entry.text for entry in entries if entry.role == "tool"}
    calls = []
    for call_id, name, arguments in _CALL.findall(
        "\n".join(_texts_of("assistant", entries))
    ):
        # Their JSON may be cut.
        with suppress(ValueError):
            calls.append(
                (name, json.loads(arguments), results.get(call_id, "no result"))
            )
    return calls


def _statements(said: str, text: str, *, single: bool) -> list[tuple[str, str]]:
    """Return what a text says of a topic, up to the next one: ("I like tea", "tea") for each statement."""
    pattern = rf"\b((?i:{said})\s+(.+?))(?=,? now\b|,? and (?i:i|my)\b|[\s.!]*$)"
    sentences = (
        sentence for sentence in _SENTENCE_END.split(text) if not sentence.endswith("?")
    )
    found = [
        statement
        for sentence in sentences
        for statement in re.findall(pattern, sentence)
    ]
    return found[-1:] if single else found


def _facts_in(question: str) -> dict[str, Any]:
    """Report what the user says of himself in a transcript, and the known facts that it contradicts."""
    known, _, transcript = question.partition("<transcript>")
    text = "\n".join(_texts_of("user", _elements(transcript)))
    new = list[dict[str, Any]]()
    retired = list[dict[str, Any]]()
    for said, _, noted, category, _ in _TOPICS:
        for quote, value in _statements(said, text, single=noted in _SINGLE):
            content = f"{noted} {value}"
            label = f"n{len(new) + 1}"
            new.append(
                {
                    "label": label,
                    "content": content,
                    "category": category,
                    "confidence": 0.9,
                    "quote": quote,
                }
            )
            for number, other in _KNOWN_FACT.findall(known) if noted in _SINGLE else ():
                if other.startswith(noted) and other.casefold() != content.casefold():
                    reason = {
                        "reason": f"The user said: {quote}",
                        "replaced_by": label,
                        "quote": quote,
                    }
                    retired.append({"number": int(number), **reason})
    return {"new_facts": new, "confirmed": [], "retired": retired}


def _calculate(
    written: str,
    calls: Sequence[tuple[str, dict[str, Any], str]],
    tools: Collection[str],
) -> str | ToolCallBlock:
    """Call a tool for each operation of a sum, the inner ones first, then tells its value; "" for what is no sum."""
    results: dict[tuple[object, ...], str] = {
        (name, *given.values()): result for name, given, result in calls
    }

    # The nodes of a syntax tree have no type in common that has their fields.
    def value_of(node: Any) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp):
            return -value_of(node.operand)
        # A KeyError has the first operation without a result, and a ValueError is for
        # the text of an error.
        return json.loads(
            results[
                _OPERATIONS.get(type(node.op), "power"),
                value_of(node.left),
                value_of(node.right),
            ]
        )

    try:
        tree = ast.parse(written, mode="eval").body
        if isinstance(tree, ast.BinOp):
            return f"{written} = {_shown(value_of(tree))}"
        return ""
    except (SyntaxError, AttributeError):
        return ""
    except ValueError:
        return f"A tool could not do it: {calls[-1][2]}"
    except KeyError as missing:
        tool, a, b = missing.args[0]
    if tool not in tools:
        return f"I work out sums with tools only, and there is none named {tool!r}."
    return ToolCallBlock(
        tool_call_id=f"call_{len(calls) + 1}",
        tool_name=tool,
        tool_kwargs={"a": a, "b": b},
    )


def _shown(value: object) -> str:
    """Return a number without a fraction that is zero, and any other value as it is."""
    return re.sub(r"^(-?\d+)\.0$", r"\1", str(value))


def _tell_calls(question: str, past: Sequence[_Entry]) -> str:
    """Tell the calls of the last turn that began with the numbers of the question; without numbers the last turn's."""
    starts = [i for i, entry in enumerate(past) if entry.role == "user"]
    turns = [
        past[start:end] for start, end in zip(starts, [*starts[1:], None], strict=False)
    ]
    if numbers := set(_NUMBER.findall(question)):
        asked = [turn for turn in turns if "how did you" not in turn[0].text.casefold()]
        turns = [
            turn for turn in asked if numbers <= set(_NUMBER.findall(turn[0].text))
        ]
    if not turns:
        return NOT_SEEN
    told = []
    for tool, arguments, result in _calls(turns[-1]):
        shown = ", ".join(
            f"{name}={_shown(value)}" for name, value in arguments.items()
        )
        told.append(f"{tool} with {shown} and got {_shown(result)}")
    if told:
        return f"I called {', then '.join(told)}."
    return NO_CALL


def _tell_topic(question: str, past: Sequence[_Entry]) -> str:
    """Tell what the user has said of himself last, else what is known of it; notes what is new in the question."""
    text = "\n".join([*_texts_of("user", past), question])
    notes = list[str]()
    for said, echo, noted, _, asked in _TOPICS:
        told = [value for _, value in reversed(_statements(said, text, single=False))]
        told += [
            fact.removeprefix(noted).strip()
            for fact in _texts_of("fact", past)
            if fact.startswith(noted)
        ]
        if re.search(asked, question, re.IGNORECASE):
            if told:
                return f"{echo.capitalize()} {told[0]}."
            return NOT_SEEN
        if noted == "Is allergic to" and question.endswith("?"):
            eaten = [
                value
                for value in told
                if value.casefold().removesuffix("s") in question.casefold()
            ]
            if eaten:
                return f"Take care: {echo} {eaten[0]}."
        notes += [
            f"{echo} {value}"
            for _, value in _statements(said, question, single=noted in _SINGLE)
        ]
    if notes:
        return f"Noted: {', '.join(notes)}."
    return ABOUT


class OfflineModel(CustomLLM, FunctionCallingLLM):
    """A LlamaIndex model for trying things out: no network, no key, no state between calls.

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
        **given: Any,
    ) -> dict[str, Any]:
        user_msg = given.get("user_msg")
        chat_history = given.get("chat_history")
        if isinstance(user_msg, str):
            asked = ChatMessage(user_msg)
        else:
            asked = user_msg
        messages = [*(chat_history or []), *([asked] if asked else [])]
        return {
            "messages": messages,
            "tools": [tool.metadata.get_name() for tool in tools],
        }

    def get_tool_calls_from_response(
        self, response: ChatResponse, *_: object, **__: object
    ) -> list[ToolSelection]:
        fields = [
            block.model_dump()
            for block in response.message.blocks
            if isinstance(block, ToolCallBlock)
        ]
        return [
            ToolSelection.model_validate({"tool_id": field["tool_call_id"], **field})
            for field in fields
        ]
