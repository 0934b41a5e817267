"""Answers a prompt by a few rules."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from llama_index_memory_ext.cli.offline_prompt import Prompt, Reply, ToolCall, answered, asks, elements_of, read_prompt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

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
_KNOWN_FACT = re.compile(r"^(\d+)\. (.*)$", re.MULTILINE)

_Step: TypeAlias = "tuple[str, float, float]"


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
    prompt = read_prompt(messages, tool_names)
    rules = (_report_facts, _sum_up, _work_out_sum, _tell_calls, _tell_topic, _tell_questions, _take_note)
    answers = (rule(prompt) for rule in rules)
    return next((answer for answer in answers if answer is not None), Reply(ABOUT))


def _sum_up(prompt: Prompt) -> Reply | None:
    """The summary so far, and the first sentence of what each speaker says after it."""
    found = _SUMMARY_SO_FAR.search(prompt.question)
    if found is None:
        return None
    said = [one for one in elements_of(prompt.question) if one.role in {"user", "assistant"} and not one.calls]
    told = (f"The {one.role}: {_SENTENCE_END.split(one.text)[0].strip()}" for one in said)
    return Reply("\n".join([*filter(None, [found[1].replace("(none)", "")]), *told]))


def _work_out_sum(prompt: Prompt) -> Reply | None:
    """One call for each operation, the inner ones first; when all are done, the sum and its value."""
    found = next(filter(None, map(_sum_in, _SENTENCE_END.split(prompt.question))), None)
    if found is None:
        return None
    calls = answered(prompt.turn)
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


def _tell_calls(prompt: Prompt) -> Reply | None:
    """How the last answer that needed tools came about."""
    if not asks(prompt, "how did you"):
        return None
    last = max((i for i, one in enumerate(prompt.past) if one.calls), default=None)
    if last is None:
        return Reply("I cannot see any tool call in what I was shown.")
    starts = [i for i, one in enumerate(prompt.past) if one.role == "user"]
    first = max((i for i in starts if i < last), default=0)
    end = min((i for i in starts if i > last), default=None)
    return Reply(f"I called {', then '.join(_told(*call) for call in answered(prompt.past[first:end]))}.")


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


def _report_facts(prompt: Prompt) -> Reply | None:
    """What the user says of himself in a transcript, and the known facts that hold no longer."""
    if "report_facts" not in prompt.tools:
        return None
    known_facts, _, transcript = prompt.question.partition("<transcript>")
    texts = [one.text for one in elements_of(transcript) if one.role == "user"]
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


def _tell_topic(prompt: Prompt) -> Reply | None:
    """What the user has said of himself last; if that is not in the conversation, what is known of it."""
    texts = [prompt.question, *(one.text for one in reversed(prompt.past) if one.role == "user")]
    facts = [one.text for one in prompt.past if one.role == "fact"]
    for topic in _TOPICS:
        if asks(prompt, *topic.questions):
            answers = [told for text in texts for _, told in reversed(_statements(topic, text))]
            answers += [fact.removeprefix(topic.noted).strip() for fact in facts if fact.startswith(topic.noted)]
            return Reply(f"{topic.echo.capitalize()} {answers[0]}." if answers else NOT_SEEN)
    return None


def _tell_questions(prompt: Prompt) -> Reply | None:
    """All that the user has said, in its order."""
    if not asks(prompt, "what did i ask", "what have we talked about", "what did we talk about"):
        return None
    texts = [f'"{one.text}"' for one in prompt.past if one.role == "user"]
    return Reply(f"First you said {', then '.join(texts)}." if texts else NOT_SEEN)


def _take_note(prompt: Prompt) -> Reply | None:
    notes = [f"{topic.echo} {told}" for topic in _TOPICS for _, told in _statements(topic, prompt.question)]
    return Reply(f"Noted: {', '.join(notes)}.") if notes else None


def _number(text: str) -> float | str:
    try:
        return int(text) if text.lstrip("-").isdecimal() else float(text)
    except ValueError:
        return text


def _shown(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
