"""Answers from the prompt alone, by a few rules, without a network."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Generator, Iterable, Iterator, Mapping, Sequence

    from llama_index.core.base.llms.types import (
        ChatResponseAsyncGen,
        ChatResponseGen,
        CompletionResponseAsyncGen,
        CompletionResponseGen,
    )
    from llama_index.core.tools import BaseTool

ABOUT = (
    "I am a small offline model that answers by rules. I can work out sums with calculator tools, and tell from "
    "what I was shown what you said about yourself, what you asked, and which tools I called."
)
NOT_SEEN = "I cannot see that in what I was shown."

_OPERATIONS = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}
_PARTS = (ast.BinOp, ast.UnaryOp, ast.USub, ast.Constant, *_OPERATIONS)
_SUM = re.compile(r"(?:.*\b(?:what is|what's|how much is|calculate|compute) )?([-+*/().\d ]+?)[ ?.!=]*", re.IGNORECASE)
_LONGEST_SUM = 300
_SUMMARY_SO_FAR = re.compile(r"<summary_so_far>\n(.*?)\n</summary_so_far>", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_ELEMENT = re.compile(r'^<message role="(\w+)"([^>]*)>(.*?)</message>$', re.MULTILINE | re.DOTALL)
_CALL_ID = re.compile(r'tool_call_id="([^"]*)"')
_FACT = re.compile(r"^<fact [^>]*>(.*)</fact>$", re.MULTILINE)
_KNOWN_FACT = re.compile(r"^(\d+)\. (.*)$", re.MULTILINE)
_CALL_LINE = re.compile(r"^\[tool call ?([^\]]*)\] ([\w.-]+)\((.*)\)$", re.MULTILINE)

_Step: TypeAlias = "tuple[str, float, float]"


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


class _Said(NamedTuple):
    """A message of the prompt, or a message or fact of the memory in it; ``result_of`` is the id of a call."""

    role: str
    text: str
    calls: tuple[ToolCall, ...] = ()
    result_of: str = ""


class _Prompt(NamedTuple):
    """The newest question, what was said before it, and what has followed it already."""

    question: str
    past: list[_Said]
    turn: list[_Said]
    tools: frozenset[str]


def reply(messages: Sequence[Mapping[str, Any]], tool_names: Collection[str] = ()) -> Reply:
    """The answer to messages in the form of OpenAI's Chat Completions, by the first rule that fits.

    Args:
        messages: Each with ``role`` and ``content`` (a string, None, or parts of type ``text``), and where they
            apply ``tool_calls`` and ``tool_call_id``. What was said before is read from the messages and from the
            record and the facts within ``<memory>``; the question is what follows the end of that.
        tool_names: The tools on offer; ``add``, ``subtract``, ``multiply``, ``divide`` and ``report_facts`` are
            made use of.

    >>> reply([{"role": "user", "content": "What is 12 + 30?"}], ["add"]).tool_calls
    (ToolCall(id='call_1', name='add', arguments={'a': 12, 'b': 30}),)
    >>> reply([{"role": "user", "content": "My name is Logan."}]).text
    'Noted: your name is Logan.'
    """
    prompt = _read(messages, tool_names)
    rules = (_report_facts, _sum_up, _work_out_sum, _tell_calls, _tell_topic, _tell_questions, _take_note)
    answers = (rule(prompt) for rule in rules)
    return next((answer for answer in answers if answer is not None), Reply(ABOUT))


def as_dicts(messages: Iterable[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as LlamaIndex sends them to OpenAI's Chat Completions."""
    # Imported here: it takes as long as all the rest, and not every user of the rules needs it.
    from llama_index.llms.openai.utils import to_openai_message_dict

    return [dict(to_openai_message_dict(message)) for message in messages]


# ---- reading the prompt ------------------------------------------------------------------------------


def _read(messages: Sequence[Mapping[str, Any]], tool_names: Collection[str]) -> _Prompt:
    said: list[_Said] = []
    for message in messages:
        role, text = str(message.get("role")), _text(message.get("content"))
        if role in {"system", "user"}:
            memory, _, text = text.rpartition("</memory>")
            said += _elements(memory)
            said += [_Said("fact", fact) for fact in _FACT.findall(memory)]
        calls = tuple(_call(call) for call in message.get("tool_calls") or ())
        said.append(_Said(role, text.strip(), calls, str(message.get("tool_call_id") or "")))
    asked = max((i for i, one in enumerate(said) if one.role == "user"), default=None)
    question, asked = ("", len(said)) if asked is None else (said[asked].text, asked)
    return _Prompt(question, said[:asked], said[asked + 1 :], frozenset(tool_names))


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") == "text")
    return content or ""


def _elements(text: str) -> Iterator[_Said]:
    for role, attributes, body in _ELEMENT.findall(text):
        # A user may write what looks like a call; only the model's own calls are any.
        lines = _CALL_LINE.findall(body) if role == "assistant" else []
        calls = tuple(ToolCall(call_id, name, _arguments(arguments)) for call_id, name, arguments in lines)
        yield _Said(role, body.strip(), calls, "".join(_CALL_ID.findall(attributes)))


def _call(call: Mapping[str, Any]) -> ToolCall:
    return ToolCall(str(call.get("id")), call["function"]["name"], _arguments(call["function"].get("arguments")))


def _arguments(value: Any) -> dict[str, Any]:
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _answered(said: Iterable[_Said]) -> list[tuple[ToolCall, str | None]]:
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


def _asks(prompt: _Prompt, *openings: str) -> bool:
    question = prompt.question.casefold().replace("\u2019", "'")
    return any(opening in question for opening in openings)


# ---- the rules ---------------------------------------------------------------------------------------


def _sum_up(prompt: _Prompt) -> Reply | None:
    """The summary so far, and the first sentence of what each speaker says after it."""
    found = _SUMMARY_SO_FAR.search(prompt.question)
    if found is None:
        return None
    said = [one for one in _elements(prompt.question) if one.role in {"user", "assistant"} and not one.calls]
    told = (f"The {one.role}: {_SENTENCE_END.split(one.text)[0].strip()}" for one in said)
    return Reply("\n".join([*filter(None, [found[1].replace("(none)", "")]), *told]))


def _work_out_sum(prompt: _Prompt) -> Reply | None:
    """One call for each operation, the inner ones first; when all are done, the sum and its value."""
    found = next(filter(None, map(_sum_in, _SENTENCE_END.split(prompt.question))), None)
    if found is None:
        return None
    calls = _answered(prompt.turn)
    outcome = _next_step(found[1], _results(calls))
    if isinstance(outcome, str):
        return Reply(f"A tool could not do it: {outcome}")
    if isinstance(outcome, int | float):
        return Reply(f"{found[0]} = {_shown(outcome)}")
    tool, a, b = outcome
    if tool not in prompt.tools:
        return Reply(f"I work out sums with tools only, and there is none named {tool!r}.")
    return Reply(tool_calls=(ToolCall(f"call_{len(calls) + 1}", tool, {"a": a, "b": b}),))


def _results(calls: Iterable[tuple[ToolCall, str | None]]) -> dict[_Step, float | str]:
    results: dict[_Step, float | str] = {}
    for call, text in calls:
        a, b = call.arguments.get("a"), call.arguments.get("b")
        if text is not None and isinstance(a, int | float) and isinstance(b, int | float):
            results[call.name, a, b] = _number(text)
    return results


def _sum_in(sentence: str) -> tuple[str, ast.expr] | None:
    """A sum as it was written, and its syntax tree; None if the sentence is about something else."""
    found = _SUM.fullmatch(sentence) if len(sentence) <= _LONGEST_SUM else None
    written = found[1].strip() if found else ""
    try:
        tree = ast.parse(written, mode="eval").body
    except SyntaxError:
        return None
    is_sum = isinstance(tree, ast.BinOp) and all(isinstance(node, _PARTS) for node in ast.walk(tree))
    return (written, tree) if is_sum else None


def _next_step(node: Any, results: Mapping[Any, float | str]) -> float | str | _Step:
    """The value of a sum, or its first step without a result, or what a tool has answered instead."""
    if isinstance(node, ast.Constant):
        return node.value  # type: ignore[return-value]  # the characters that were let through make numbers only
    values: list[float] = []
    for side in [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]:
        value = _next_step(side, results)
        if not isinstance(value, int | float):
            return value
        values.append(value)
    if isinstance(node, ast.UnaryOp):
        return -values[0]
    step = (_OPERATIONS[type(node.op)], *values)
    return results.get(step, step)  # type: ignore[arg-type]  # two sides, two values


def _tell_calls(prompt: _Prompt) -> Reply | None:
    """How the last answer that needed tools came about."""
    if not _asks(prompt, "how did you"):
        return None
    last = max((i for i, one in enumerate(prompt.past) if one.calls), default=None)
    if last is None:
        return Reply("I cannot see any tool call in what I was shown.")
    starts = [i for i, one in enumerate(prompt.past) if one.role == "user"]
    first = max((i for i in starts if i < last), default=0)
    end = min((i for i in starts if i > last), default=None)
    return Reply(f"I called {', then '.join(_told(*call) for call in _answered(prompt.past[first:end]))}.")


def _told(call: ToolCall, result: str | None) -> str:
    arguments = ", ".join(f"{name}={_shown(value)}" for name, value in call.arguments.items())
    outcome = "was shown no result" if result is None else f"got {_shown(_number(result))}"
    return f"{call.name} with {arguments or 'no arguments'} and {outcome}"


class _Topic(NamedTuple):
    """Something that a user may say of himself, how it is said back and noted as a fact, and how he asks for it."""

    said: str
    echo: str
    noted: str
    category: str
    questions: tuple[str, ...]


_TOPICS = (
    _Topic("my name is", "your name is", "Is called", "knowledge", ("what is my name", "what's my name", "who am i")),
    _Topic("i (?:now )?(?:live in|moved to)", "you live in", "Lives in", "context", ("where do i live",)),
    _Topic("i like", "you like", "Likes", "preference", ("what do i like",)),
    _Topic(
        "i(?: work|['\u2019]m working| am working) on",
        "you work on",
        "Works on",
        "context",
        ("what do i work on", "what am i working on"),
    ),
    _Topic("i use", "you use", "Uses", "context", ("what do i use",)),
    _Topic("i prefer", "you prefer", "Prefers", "preference", ("what do i prefer",)),
)
# Of these only what is said last holds.
_SINGLE = frozenset({"Is called", "Lives in"})


def _statements(topic: _Topic, text: str) -> list[tuple[str, str]]:
    """What is said of a topic up to where the sentence ends or turns to something else: ("I like tea", "tea")."""
    pattern = re.compile(rf"\b({topic.said}\s+(.+?))(?=,? now\b|,? and (?:i|my)\b|[\s.!]*$)", re.IGNORECASE)
    sentences = (sentence for sentence in _SENTENCE_END.split(text) if not sentence.endswith("?"))
    return [statement for sentence in sentences for statement in pattern.findall(sentence)]


def _report_facts(prompt: _Prompt) -> Reply | None:
    """What the user says of himself in a transcript, and the known facts that hold no longer."""
    if "report_facts" not in prompt.tools:
        return None
    known_facts, _, transcript = prompt.question.partition("<transcript>")
    texts = [one.text for one in _elements(transcript) if one.role == "user"]
    new: list[dict[str, Any]] = []
    retired: list[dict[str, Any]] = []
    for topic in _TOPICS:
        statements = [statement for text in texts for statement in _statements(topic, text)]
        for quote, told in statements[-1 if topic.noted in _SINGLE else 0 :]:
            content, label = f"{topic.noted} {told}", f"n{len(new) + 1}"
            new.append(
                {"label": label, "content": content, "category": topic.category, "confidence": 0.9, "quote": quote}
            )
            retired += [
                {"number": int(number), "reason": f"The user said: {quote}", "replaced_by": label, "quote": quote}
                for number, fact in _KNOWN_FACT.findall(known_facts)
                if topic.noted in _SINGLE and fact.startswith(topic.noted) and fact.casefold() != content.casefold()
            ]
    report = {"new_facts": new, "confirmed": [], "retired": retired}
    return Reply(tool_calls=(ToolCall("call_1", "report_facts", report),))


def _tell_topic(prompt: _Prompt) -> Reply | None:
    """What the user has said of himself last; if that is not in the conversation, what is known of it."""
    texts = [prompt.question, *(one.text for one in reversed(prompt.past) if one.role == "user")]
    facts = [one.text for one in prompt.past if one.role == "fact"]
    for topic in _TOPICS:
        if _asks(prompt, *topic.questions):
            answers = [told for text in texts for _, told in reversed(_statements(topic, text))]
            answers += [fact.removeprefix(topic.noted).strip() for fact in facts if fact.startswith(topic.noted)]
            return Reply(f"{topic.echo.capitalize()} {answers[0]}." if answers else NOT_SEEN)
    return None


def _tell_questions(prompt: _Prompt) -> Reply | None:
    """All that the user has said, in its order."""
    if not _asks(prompt, "what did i ask", "what have we talked about", "what did we talk about"):
        return None
    texts = [f'"{one.text}"' for one in prompt.past if one.role == "user"]
    return Reply(f"First you said {', then '.join(texts)}." if texts else NOT_SEEN)


def _take_note(prompt: _Prompt) -> Reply | None:
    notes = [f"{topic.echo} {told}" for topic in _TOPICS for _, told in _statements(topic, prompt.question)]
    return Reply(f"Noted: {', '.join(notes)}.") if notes else None


def _number(text: str) -> float | str:
    try:
        return int(text) if text.lstrip("-").isdecimal() else float(text)
    except ValueError:
        return text


def _shown(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


# ---- as a model of LlamaIndex ------------------------------------------------------------------------


class OfflineModel(FunctionCallingLLM):
    """A LlamaIndex model for trying things out: no network, no key, no state between calls.

    It answers by the rules of ``reply``, from the messages of the very call. A stream has one part.

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
        return _answer(messages, **kwargs)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return _answer(messages, **kwargs)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        return _stream(_answer(messages, **kwargs))

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        return _astream(_answer(messages, **kwargs))

    @llm_completion_callback()
    def complete(self, prompt: str, *_: Any, **__: Any) -> CompletionResponse:
        return _completion(prompt)

    @llm_completion_callback()
    async def acomplete(self, prompt: str, *_: Any, **__: Any) -> CompletionResponse:
        return _completion(prompt)

    @llm_completion_callback()
    def stream_complete(self, prompt: str, *_: Any, **__: Any) -> CompletionResponseGen:
        return _stream(_completion(prompt))

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, *_: Any, **__: Any) -> CompletionResponseAsyncGen:
        return _astream(_completion(prompt))

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        *_: Any,
        **__: Any,
    ) -> dict[str, Any]:
        asked = ChatMessage(content=user_msg) if isinstance(user_msg, str) else user_msg
        messages = [*(chat_history or []), *([asked] if asked else [])]
        return {"messages": messages, "tools": [tool.metadata.get_name() for tool in tools]}

    def get_tool_calls_from_response(
        self,
        response: ChatResponse,
        error_on_no_tool_call: bool = True,
        **_: Any,
    ) -> list[ToolSelection]:
        """The tools that the answer wants called; a ``ValueError`` if none is and ``error_on_no_tool_call``."""
        blocks = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if not blocks and error_on_no_tool_call:
            raise ValueError("The answer was expected to call a tool; it calls none.")
        return [
            ToolSelection(
                tool_id=block.tool_call_id or "", tool_name=block.tool_name, tool_kwargs=_arguments(block.tool_kwargs)
            )
            for block in blocks
        ]


def _answer(messages: Sequence[ChatMessage], tools: Sequence[str] = (), **_: Any) -> ChatResponse:
    answer = reply(as_dicts(messages), tools)
    blocks = [
        ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=call.arguments)
        for call in answer.tool_calls
    ]
    message = ChatMessage(role="assistant", blocks=blocks or [TextBlock(text=answer.text)])
    return ChatResponse(message=message, delta=answer.text)


def _completion(prompt: str) -> CompletionResponse:
    text = reply([{"role": "user", "content": prompt}]).text
    return CompletionResponse(text=text, delta=text)


def _stream(response: Any) -> Generator[Any, None, None]:
    yield response


async def _astream(response: Any) -> AsyncGenerator[Any, None]:
    yield response
