"""Answers from the prompt alone, by a few rules, without a network."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Generator, Iterator, Mapping, Sequence

    from llama_index.core.base.llms.types import (
        ChatResponseAsyncGen,
        ChatResponseGen,
        CompletionResponseAsyncGen,
        CompletionResponseGen,
    )
    from llama_index.core.tools import BaseTool

ABOUT = (
    "I am a small offline model that answers by rules. I can work out sums with calculator tools, and tell from "
    "the prompt what you said about yourself, what you asked and which tools I called. Nothing else, sorry."
)
NOT_SEEN = "I cannot see that in what I was shown."

_OPERATIONS = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}
_SUM_WORDS = re.compile(r"(?:(?:so|and|now|please)[, ]+)*(?:what is|what's|how much is|calculate|compute) +", re.IGNORECASE)
# Nothing that Python would warn about can be written in these.
_SUM_CHARACTERS = frozenset("0123456789.+-*/() ")
_LONGEST_SUM = 300
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_ELEMENT = re.compile(r'^<message role="(\w+)"([^>]*)>(.*?)</message>$', re.MULTILINE | re.DOTALL)
_CALL_ID = re.compile(r'tool_call_id="([^"]*)"')
_CALL_LINE = re.compile(r"^\[tool call ?([^\]]*)\] ([\w.-]+)\((.*)\)$", re.MULTILINE)


class ToolCall(NamedTuple):
    """A call of a tool; ``arguments`` are plain JSON values by name."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model answers: a text, or the tools that it wants called first (the text is empty then)."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class _Said(NamedTuple):
    """One message of the prompt, or one element of the record in it. ``result_of`` is the id of a call."""

    role: str
    text: str
    calls: tuple[ToolCall, ...]
    result_of: str


class _Prompt(NamedTuple):
    """The newest question, what was said before it, and what has followed it already."""

    question: str
    past: list[_Said]
    turn: list[_Said]
    tools: frozenset[str]


class _Step(NamedTuple):
    tool: str
    a: float
    b: float


class _Topic(NamedTuple):
    """What a user may say about himself, how it is said back, and how he asks for it."""

    statement: re.Pattern[str]
    echo: str
    questions: tuple[str, ...]


def reply(messages: Sequence[Mapping[str, Any]], tool_names: Collection[str] = ()) -> Reply:
    """The answer to messages in the form of OpenAI's Chat Completions, by the first rule that fits.

    Args:
        messages: Each with ``role`` and ``content`` (a string, None, or parts of type ``text``), and where
            they apply ``tool_calls`` and ``tool_call_id``. The record of a conversation is read from
            ``<memory>``; the question is what follows its end.
        tool_names: The tools on offer; ``add``, ``subtract``, ``multiply`` and ``divide`` are made use of.

    >>> reply([{"role": "user", "content": "What is 12 + 30?"}], ["add"]).tool_calls
    (ToolCall(id='call_1', name='add', arguments={'a': 12, 'b': 30}),)
    >>> reply([{"role": "user", "content": "My name is Logan."}]).text
    'Noted: your name is Logan.'
    """
    prompt = _read(messages, tool_names)
    answers = (rule(prompt) for rule in (_work_out_sum, _tell_calls, _tell_topic, _tell_questions, _take_note))
    return next((answer for answer in answers if answer is not None), Reply(ABOUT))


def as_dicts(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages in the form of OpenAI's Chat Completions; text blocks are joined without a separator, as there."""
    dicts: list[dict[str, Any]] = []
    for message in messages:
        fields: dict[str, Any] = {"role": message.role.value, "content": message_text(message)}
        calls = [_call_dict(block) for block in message.blocks if isinstance(block, ToolCallBlock)]
        if calls:
            fields["tool_calls"] = calls
        if "tool_call_id" in message.additional_kwargs:
            fields["tool_call_id"] = message.additional_kwargs["tool_call_id"]
        dicts.append(fields)
    return dicts


def message_text(message: ChatMessage) -> str:
    """The text of a message as the model is sent it."""
    return "".join(block.text for block in message.blocks if isinstance(block, TextBlock))


# ---- reading the prompt ----------------------------------------------------------------------------------


def _read(messages: Sequence[Mapping[str, Any]], tool_names: Collection[str]) -> _Prompt:
    said: list[_Said] = []
    for message in messages:
        role, text = str(message.get("role")), _text(message.get("content"))
        if role in {"system", "user"}:
            record, _, text = text.rpartition("</memory>")
            said += _elements(record)
        calls = tuple(_call(call) for call in message.get("tool_calls") or ())
        said.append(_Said(role, text.strip(), calls, str(message.get("tool_call_id") or "")))
    asked = max((i for i, one in enumerate(said) if one.role == "user"), default=None)
    if asked is None:
        return _Prompt("", said, [], frozenset(tool_names))
    return _Prompt(said[asked].text, said[:asked], said[asked + 1 :], frozenset(tool_names))


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if part.get("type") == "text")
    return content or ""


def _elements(record: str) -> Iterator[_Said]:
    for role, attributes, body in _ELEMENT.findall(record):
        # A user may write whatever looks like a call; only the model's own calls are any.
        lines = _CALL_LINE.findall(body) if role == "assistant" else []
        calls = tuple(ToolCall(call_id, name, _arguments(text)) for call_id, name, text in lines)
        result_of = _CALL_ID.search(attributes)
        yield _Said(role, body.strip(), calls, result_of[1] if result_of else "")


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function") or {}
    return ToolCall(str(call.get("id") or ""), str(function.get("name")), _arguments(function.get("arguments")))


def _arguments(text: Any) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _answered(said: Sequence[_Said]) -> list[tuple[ToolCall, str | None]]:
    """The calls in their order, each with its result; None where there is none."""
    calls: list[tuple[ToolCall, str | None]] = []
    for one in said:
        calls += [(call, None) for call in one.calls]
        if one.role == "tool":
            waiting = (i for i, (call, result) in enumerate(calls) if result is None and call.id == one.result_of)
            for i in waiting:
                calls[i] = (calls[i][0], one.text)
                break
    return calls


def _sentences(text: str) -> list[str]:
    return [sentence for sentence in _SENTENCE_END.split(text.strip()) if sentence]


def _asks(text: str, openings: Collection[str]) -> bool:
    plain = text.casefold().replace("\u2019", "'")
    return any(opening in plain for opening in openings)


# ---- the rules -------------------------------------------------------------------------------------------


def _work_out_sum(prompt: _Prompt) -> Reply | None:
    """One call for each operation, the inner ones first, and the result when all are done."""
    found = next(filter(None, map(_sum_in, _sentences(prompt.question))), None)
    if found is None:
        return None
    calls = _answered(prompt.turn)
    results = {_step(call): _number(result) for call, result in calls if result is not None}
    outcome = _next_step(found[1], results)
    if isinstance(outcome, str):
        return Reply(f"A tool could not do it: {outcome}")
    if not isinstance(outcome, _Step):
        return Reply(f"{found[0]} = {_shown(outcome)}")
    if outcome.tool not in prompt.tools:
        return Reply(f"I work out sums with tools only, and was offered none that is named {outcome.tool!r}.")
    return Reply(tool_calls=(ToolCall(f"call_{len(calls) + 1}", outcome.tool, {"a": outcome.a, "b": outcome.b}),))


def _sum_in(sentence: str) -> tuple[str, ast.expr] | None:
    """The sum as it was written, and its syntax tree; None if the sentence asks for something else."""
    written = _SUM_WORDS.sub("", sentence, count=1).strip(" ?.!=")
    if not _SUM_CHARACTERS.issuperset(written) or len(written) > _LONGEST_SUM:
        return None
    try:
        tree = ast.parse(written, mode="eval").body
    except SyntaxError:
        return None
    is_sum = isinstance(tree, ast.BinOp) and all(map(_is_known, ast.walk(tree)))
    return (written, tree) if is_sum else None


def _is_known(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub)
    if isinstance(node, ast.BinOp):
        return type(node.op) in _OPERATIONS
    return isinstance(node, ast.Constant | ast.operator | ast.unaryop)


def _next_step(node: Any, results: Mapping[_Step, float | str]) -> float | str | _Step:
    """The value of a sum, or the first step without a result, or what a tool has complained about."""
    if isinstance(node, ast.Constant):
        return node.value  # type: ignore[return-value]  # nothing but digits was let through
    if isinstance(node, ast.UnaryOp):
        value = _next_step(node.operand, results)
        return -value if isinstance(value, int | float) else value
    a, b = _next_step(node.left, results), None
    if isinstance(a, int | float):
        b = _next_step(node.right, results)
    if not isinstance(a, int | float) or not isinstance(b, int | float):
        return a if b is None else b
    step = _Step(_OPERATIONS[type(node.op)], a, b)
    return results.get(step, step)


def _step(call: ToolCall) -> _Step:
    return _Step(call.name, call.arguments.get("a", 0), call.arguments.get("b", 0))


def _tell_calls(prompt: _Prompt) -> Reply | None:
    """How the last answer that needed tools came about."""
    if not _asks(prompt.question, ["how did you"]):
        return None
    past = prompt.past
    last = max((i for i, one in enumerate(past) if one.calls), default=None)
    if last is None:
        return Reply("I cannot see any tool call in what I was shown.")
    starts = [i for i, one in enumerate(past) if one.role == "user"]
    first = max((i for i in starts if i < last), default=0)
    end = min((i for i in starts if i > last), default=len(past))
    return Reply(f"I called {', then '.join(_told(*call) for call in _answered(past[first:end]))}.")


def _told(call: ToolCall, result: str | None) -> str:
    arguments = ", ".join(f"{name}={_shown(value)}" for name, value in call.arguments.items())
    outcome = "was shown no result" if result is None else f"got {_shown(_number(result))}"
    return f"{call.name} with {arguments or 'no arguments'} and {outcome}"


def _topic(statement: str, echo: str, *questions: str) -> _Topic:
    # What is said ends with the sentence, or where the user goes on to say something else.
    told = rf"\b{statement}\s+(.+?)(?=,? and (?:i|my) |[\s.!]*$)"
    return _Topic(re.compile(told, re.IGNORECASE), echo, questions)


_TOPICS = (
    _topic("my name is", "your name is", "what is my name", "what's my name", "who am i"),
    _topic("i live in", "you live in", "where do i live"),
    _topic("i like", "you like", "what do i like"),
    _topic("i work on", "you work on", "what do i work on", "what am i working on"),
)


def _tell_topic(prompt: _Prompt) -> Reply | None:
    """What the user has said about himself last."""
    topic = next((topic for topic in _TOPICS if _asks(prompt.question, topic.questions)), None)
    if topic is None:
        return None
    texts = [one.text for one in prompt.past if one.role == "user"] + [prompt.question]
    found = next((told for text in reversed(texts) for told in reversed(_statements(topic, text))), None)
    return Reply(NOT_SEEN if found is None else f"{topic.echo.capitalize()} {found}.")


def _statements(topic: _Topic, text: str) -> list[str]:
    sentences = (sentence for sentence in _sentences(text) if not sentence.endswith("?"))
    return [told for sentence in sentences for told in topic.statement.findall(sentence)]


def _tell_questions(prompt: _Prompt) -> Reply | None:
    """All that the user has said, in its order."""
    if not _asks(prompt.question, ["what did i ask", "what have we talked about", "what did we talk about"]):
        return None
    texts = [one.text for one in prompt.past if one.role == "user"]
    return Reply("First you said: " + ", then: ".join(f'"{text}"' for text in texts) if texts else NOT_SEEN)


def _take_note(prompt: _Prompt) -> Reply | None:
    told = [f"{topic.echo} {one}" for topic in _TOPICS for one in _statements(topic, prompt.question)]
    return Reply(f"Noted: {', '.join(told)}.") if told else None


def _number(text: str) -> float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _shown(value: Any) -> str:
    """A value for the eye: no ".0" behind whole numbers."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


# ---- the same as a model of LlamaIndex -------------------------------------------------------------------


class OfflineModel(FunctionCallingLLM):
    """A LlamaIndex model with tools for trying things out: no network, no key, no state between calls.

    It answers by the rules of ``reply`` from the messages of the very call, so what it knows is what it was shown.

    >>> OfflineModel().complete("My name is Logan.").text
    'Noted: your name is Logan.'
    """

    @classmethod
    def class_name(cls) -> str:
        """The name under which LlamaIndex serialises this model."""
        return "OfflineModel"

    @property
    def metadata(self) -> LLMMetadata:
        """A chat model that calls tools."""
        return LLMMetadata(
            context_window=128_000, is_chat_model=True, is_function_calling_model=True, model_name="offline"
        )

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """The answer to the messages."""
        return ChatResponse(message=_answer(messages, kwargs))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """The answer to the messages."""
        return ChatResponse(message=_answer(messages, kwargs))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """The answer to the messages, word by word."""
        return _streamed(_answer(messages, kwargs))

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """The answer to the messages, word by word."""
        return _astreamed(_streamed(_answer(messages, kwargs)))

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """The answer to the prompt as a user's message."""
        return CompletionResponse(text=_completion(prompt))

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """The answer to the prompt as a user's message."""
        return CompletionResponse(text=_completion(prompt))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """The answer to the prompt as a user's message, word by word."""
        return _streamed_completion(_completion(prompt))

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        """The answer to the prompt as a user's message, word by word."""
        return _astreamed(_streamed_completion(_completion(prompt)))

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        asked = ChatMessage(content=user_msg) if isinstance(user_msg, str) else user_msg
        messages = [*(chat_history or []), *([asked] if asked else [])]
        return {"messages": messages, "tools": [tool.metadata.get_name() for tool in tools]}

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """The tools that the answer wants called.

        Raises:
            ValueError: There is none, and ``error_on_no_tool_call`` is set.
        """
        blocks = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if not blocks and error_on_no_tool_call:
            raise ValueError("The answer was expected to call a tool; it calls none.")
        return [
            ToolSelection(tool_id=block.tool_call_id or "", tool_name=block.tool_name, tool_kwargs=block.tool_kwargs)
            for block in blocks
        ]
