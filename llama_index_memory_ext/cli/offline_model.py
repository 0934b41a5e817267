"""A model for trying things out: it answers from the prompt alone, by rules, without a network."""

from __future__ import annotations

import ast
import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection

from llama_index_memory_ext.text.messages import body_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from llama_index.core.base.llms.types import ChatResponseGen, CompletionResponseGen
    from llama_index.core.tools import BaseTool

ABOUT = (
    "I am a small offline model that answers by rules. I can work out sums with calculator tools, and tell from "
    "what I was shown what you said about yourself, what you asked, and which tools I called."
)
NOT_SEEN = "I cannot see that in what I was shown."

_OPERATIONS = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}
_SUM_NODES = (ast.BinOp, ast.UnaryOp, ast.USub, ast.Constant, *_OPERATIONS)
_SUM = re.compile(
    r"(?:.*\b(?:what is|what's|how much is|calculate|compute) )?([-+*/().\d ]{1,300}?)[ ?.!=]*", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_ELEMENT = re.compile(r'^<(?:message role="(\w+)"|fact )([^>]*)>(.*?)</(?:message|fact)>$', re.MULTILINE | re.DOTALL)
_CALL_ID = re.compile(r'tool_call_id="([^"]*)"')
_CALL = re.compile(r"^\[tool call ?([^\]]*)\] ([\w.-]+)\((.*)\)$", re.MULTILINE)
_KNOWN_FACT = re.compile(r"^(\d+)\. (.*)$", re.MULTILINE)
_SUMMARY_SO_FAR = re.compile(r"<summary_so_far>\n(.*?)\n</summary_so_far>", re.DOTALL)
_ABOUT_THE_PAST = re.compile("what did i ask|what have we talked about|what did we talk about", re.IGNORECASE)

# The values are any that JSON has.
Arguments: TypeAlias = dict[str, Any]


class ToolCall(NamedTuple):
    """A call of a tool."""

    id: str
    name: str
    arguments: Arguments


class Reply(NamedTuple):
    """An answer: a text, or the tools to be called first (the text is empty then)."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class _Entry(NamedTuple):
    """A message or a fact of the prompt; ``call_id`` is the call that a tool's message answers."""

    role: str
    text: str
    call_id: str = ""

    @property
    def calls(self) -> list[ToolCall]:
        """The tool calls in the text of the assistant; another's text may only look like one."""
        found = _CALL.findall(self.text) if self.role == "assistant" else []
        return [ToolCall(id_, name, _arguments(arguments)) for id_, name, arguments in found]


class _Topic(NamedTuple):
    """Something that users say of themselves: as a pattern, in an answer, as a fact; and how they ask for it."""

    said: str
    echo: str
    noted: str
    category: str
    question: str

    @property
    def is_single(self) -> bool:
        """Whether only the last statement is true."""
        return self.noted in ("Is called", "Lives in")

    def statements(self, text: str) -> list[tuple[str, str]]:
        """Returns what a text says of the topic, up to the next topic: ("I like tea", "tea") for each statement."""
        pattern = rf"\b((?i:{self.said})\s+(.+?))(?=,? now\b|,? and (?i:i|my)\b|[\s.!]*$)"
        sentences = (sentence for sentence in _SENTENCE_END.split(text) if not sentence.endswith("?"))
        found = [statement for sentence in sentences for statement in re.findall(pattern, sentence)]
        return found[-1:] if self.is_single else found


_TOPICS = (
    _Topic("my name is", "your name is", "Is called", "knowledge", "what(?: i|['\u2019])s my name|who am i"),
    _Topic("i (?:now )?(?:live in|moved to)", "you live in", "Lives in", "context", "where do i live"),
    _Topic("i like", "you like", "Likes", "preference", "what do i like"),
    _Topic("i(?:['\u2019]m| am)? work(?:ing)? on", "you work on", "Works on", "context", "what (?:do|am) i work"),
    _Topic("i use", "you use", "Uses", "context", "what do i use"),
    _Topic("i prefer", "you prefer", "Prefers", "preference", "what do i prefer"),
)


def reply(messages: Iterable[ChatMessage], tool_names: Collection[str] = ()) -> Reply:
    """Returns the answer to messages, by the first rule that fits.

    The past is read from the messages, and from the record and the facts within ``<memory>``; the question is what
    follows the end of that. Of the tools ``add``, ``subtract``, ``multiply``, ``divide`` and ``report_facts`` are used.

    >>> reply([ChatMessage("What is 12 + 30?")], ["add"]).tool_calls
    (ToolCall(id='call_1', name='add', arguments={'a': 12, 'b': 30}),)
    >>> reply([ChatMessage("My name is Logan.")]).text
    'Noted: your name is Logan.'
    """
    entries = [entry for message in messages for entry in _entries(message)]
    asked = max((i for i, entry in enumerate(entries) if entry.role == "user"), default=len(entries))
    question, past = "".join(entry.text for entry in entries[asked : asked + 1]), entries[:asked]
    if "report_facts" in tool_names:
        return Reply(tool_calls=(ToolCall("call_1", "report_facts", _facts_in(question)),))
    if summary := _SUMMARY_SO_FAR.search(question):
        return Reply(_summarize(summary[1], question))
    for sentence in _SENTENCE_END.split(question):
        if (found := _SUM.fullmatch(sentence)) and (tree := _parse_sum(found[1])):
            return _calculate(found[1].strip(), tree, entries[asked:], tool_names)
    rules = (_tell_calls, _tell_topic, _tell_questions, _take_note)
    return Reply(next(filter(None, (rule(question, past) for rule in rules)), ABOUT))


# ---- reading the prompt ----------------------------------------------------------------------------------


def _entries(message: ChatMessage) -> Iterator[_Entry]:
    """Yields what is in the memory of a message, and the message itself with its calls as the record shows them."""
    text = body_of(message)
    if message.role in ("system", "user"):
        memory, _, text = text.rpartition("</memory>")
        yield from _elements(memory)
    yield _Entry(message.role.value, text.strip(), message.additional_kwargs.get("tool_call_id") or "")


def _elements(text: str) -> list[_Entry]:
    """Returns the messages and facts of a memory or a transcript."""
    found = _ELEMENT.findall(text)
    return [_Entry(role or "fact", body.strip(), "".join(_CALL_ID.findall(more))) for role, more, body in found]


def _texts_of(role: str, entries: Iterable[_Entry]) -> list[str]:
    return [entry.text for entry in entries if entry.role == role]


def _arguments(text: str) -> Arguments:
    """Returns the arguments of a call; {} if its JSON is cut."""
    with suppress(ValueError):
        if isinstance(arguments := json.loads(text), dict):
            return arguments
    return {}


def _results(entries: Sequence[_Entry]) -> list[tuple[ToolCall, str | None]]:
    """Returns the calls of a turn, each with the text of its result, or None."""
    results = {entry.call_id: entry.text for entry in entries if entry.role == "tool"}
    return [(call, results.get(call.id)) for entry in entries for call in entry.calls]


# ---- facts and summaries ---------------------------------------------------------------------------------


def _facts_in(question: str) -> Arguments:
    """Reports what the user says of himself in a transcript, and the known facts that it contradicts."""
    known, _, transcript = question.partition("<transcript>")
    text = "\n".join(_texts_of("user", _elements(transcript)))
    new: list[Arguments] = []
    retired: list[Arguments] = []
    for topic in _TOPICS:
        for quote, value in topic.statements(text):
            content, label = f"{topic.noted} {value}", f"n{len(new) + 1}"
            fact = {"label": label, "content": content, "category": topic.category, "confidence": 0.9, "quote": quote}
            new.append(fact)
            for number, other in _KNOWN_FACT.findall(known) if topic.is_single else ():
                if other.startswith(topic.noted) and other.casefold() != content.casefold():
                    reason = {"reason": f"The user said: {quote}", "replaced_by": label, "quote": quote}
                    retired.append({"number": int(number), **reason})
    return {"new_facts": new, "confirmed": [], "retired": retired}


def _summarize(so_far: str, question: str) -> str:
    """Adds the first sentence of each message to the summary so far."""
    said = [entry for entry in _elements(question) if entry.role in {"user", "assistant"} and not entry.calls]
    lines = [f"The {entry.role}: {_SENTENCE_END.split(entry.text)[0].strip()}" for entry in said]
    return "\n".join(filter(None, [so_far.replace("(none)", ""), *lines]))


# ---- sums ------------------------------------------------------------------------------------------------


def _parse_sum(text: str) -> ast.BinOp | None:
    """Returns the syntax tree of a sum; None if the text is none."""
    with suppress(SyntaxError):
        tree = ast.parse(text.strip(), mode="eval").body
        if isinstance(tree, ast.BinOp) and all(isinstance(node, _SUM_NODES) for node in ast.walk(tree)):
            return tree
    return None


def _calculate(written: str, tree: ast.BinOp, turn: Sequence[_Entry], tools: Collection[str]) -> Reply:
    """Calls a tool for each operation, the inner ones first; then tells the sum and its value."""
    calls = _results(turn)
    results = {(call.name, *call.arguments.values()): result for call, result in calls if result is not None}
    try:
        return Reply(f"{written} = {_shown(_evaluate(tree, results))}")
    except ValueError as failed:
        return Reply(f"A tool could not do it: {failed}")
    except KeyError as missing:
        tool, a, b = missing.args[0]
    if tool not in tools:
        return Reply(f"I work out sums with tools only, and there is none named {tool!r}.")
    return Reply(tool_calls=(ToolCall(f"call_{len(calls) + 1}", tool, {"a": a, "b": b}),))


def _evaluate(node: Any, results: Mapping[tuple[Any, ...], str]) -> float:
    """Returns the value of a sum.

    Raises:
        KeyError: The first operation that has no result yet.
        ValueError: The result of an operation that is not a number.
    """
    if isinstance(node, ast.Constant):
        return float(node.value) if isinstance(node.value, float) else int(node.value)
    if isinstance(node, ast.UnaryOp):
        return -_evaluate(node.operand, results)
    operation = _OPERATIONS[type(node.op)], _evaluate(node.left, results), _evaluate(node.right, results)
    result = results[operation]
    try:
        return int(result) if result.lstrip("-").isdecimal() else float(result)
    except ValueError:
        raise ValueError(result) from None


def _shown(value: object) -> str:
    """Returns a number without a fraction that is zero, and any other value as it is."""
    return re.sub(r"^(-?\d+)\.0$", r"\1", str(value))


# ---- questions about the past ----------------------------------------------------------------------------


def _tell_calls(question: str, past: Sequence[_Entry]) -> str:
    """Tells the calls of the last turn that had any."""
    if "how did you" not in question.casefold():
        return ""
    turns: list[list[_Entry]] = [[]]
    for entry in past:
        turns += [[]] if entry.role == "user" else []
        turns[-1].append(entry)
    calls = next(filter(None, map(_results, reversed(turns))), None)
    if calls is None:
        return "I cannot see any tool call in what I was shown."
    told = []
    for call, result in calls:
        arguments = ", ".join(f"{name}={_shown(value)}" for name, value in call.arguments.items()) or "no arguments"
        outcome = "was shown no result" if result is None else f"got {_shown(result)}"
        told.append(f"{call.name} with {arguments} and {outcome}")
    return f"I called {', then '.join(told)}."


def _tell_topic(question: str, past: Sequence[_Entry]) -> str:
    """Tells what the user has said of himself last; if that is not in the conversation, what is known of it."""
    said = "\n".join([*_texts_of("user", past), question])
    for topic in _TOPICS:
        if re.search(topic.question, question, re.IGNORECASE):
            answers = [value for _, value in topic.statements(said)][-1:]
            known = [fact for fact in _texts_of("fact", past) if fact.startswith(topic.noted)]
            answers += [fact.removeprefix(topic.noted).strip() for fact in known]
            return f"{topic.echo.capitalize()} {answers[0]}." if answers else NOT_SEEN
    return ""


def _tell_questions(question: str, past: Sequence[_Entry]) -> str:
    """Tells all that the user has said, in its order."""
    texts = [f'"{text}"' for text in _texts_of("user", past)]
    answer = f"First you said {', then '.join(texts)}." if texts else NOT_SEEN
    return answer if _ABOUT_THE_PAST.search(question) else ""


def _take_note(question: str, _: Sequence[_Entry]) -> str:
    notes = [f"{topic.echo} {value}" for topic in _TOPICS for _, value in topic.statements(question)]
    return f"Noted: {', '.join(notes)}." if notes else ""


# ---- the model -------------------------------------------------------------------------------------------


class OfflineModel(CustomLLM, FunctionCallingLLM):
    """A LlamaIndex model for trying things out: no network, no key, no state between calls.

    It answers by the rules of ``reply``, from the messages of the call. A stream has one part.

    >>> OfflineModel().complete("My name is Logan.").text
    'Noted: your name is Logan.'
    """

    @classmethod
    def class_name(cls) -> str:
        return "OfflineModel"

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            context_window=128_000, is_chat_model=True, is_function_calling_model=True, model_name="offline"
        )

    def chat(self, messages: Sequence[ChatMessage], *, tools: Collection[str] = (), **_: object) -> ChatResponse:
        answer = reply(messages, tools)
        calls = [ToolCallBlock(tool_call_id=id_, tool_name=name, tool_kwargs=kw) for id_, name, kw in answer.tool_calls]
        message = ChatMessage(role="assistant", blocks=calls or [TextBlock(text=answer.text)])
        return ChatResponse(message=message, delta=answer.text)

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        yield self.chat(messages, **kwargs)

    def complete(self, prompt: str, *_: object, **__: object) -> CompletionResponse:
        text = reply([ChatMessage(prompt)]).text
        return CompletionResponse(text=text, delta=text)

    def stream_complete(self, prompt: str, *_: object, **__: object) -> CompletionResponseGen:
        yield self.complete(prompt)

    def _prepare_chat_with_tools(
        self, tools: Sequence[BaseTool], user_msg: Any = None, chat_history: Any = None, *_: object, **__: object
    ) -> dict[str, Any]:
        asked = ChatMessage(user_msg) if isinstance(user_msg, str) else user_msg
        messages = [*(chat_history or []), *([asked] if asked else [])]
        return {"messages": messages, "tools": [tool.metadata.get_name() for tool in tools]}

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **_: object
    ) -> list[ToolSelection]:
        calls = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if not calls and error_on_no_tool_call:
            raise ValueError("The answer was expected to call a tool; it calls none.")
        fields = ({"tool_id": call.tool_call_id, **call.model_dump()} for call in calls)
        return [ToolSelection.model_validate(field) for field in fields]
