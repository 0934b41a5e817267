"""The request for facts: the texts that a model reads, their limits, and the form of its answer."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.resources import files
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.tools import FunctionTool
from llama_index.core.types import PydanticProgramMode
from pydantic import BaseModel, ConfigDict, Field, create_model

from llama_index_memory_ext.errors import FactReplyError, SettingError
from llama_index_memory_ext.fact import CATEGORIES, Fact
from llama_index_memory_ext.learning.reply import (
    EXAMPLE_QUOTE,
    TAGS,
    ExtractionReply,
    NewFact,
    read_category,
    read_facts,
    read_statement,
    reply_of,
)
from llama_index_memory_ext.models.ask import (
    ask_with,
    refuses_tools,
    remember,
    takes,
    token_bound,
    tokens_left,
    was_refused,
    was_truncated,
)
from llama_index_memory_ext.search.tfidf import Similar, values_of
from llama_index_memory_ext.text.entries import escape_tags
from llama_index_memory_ext.text.messages import MOST_CHARACTERS, calls_of, is_longer
from llama_index_memory_ext.text.turns import OTHER_ROLE, Utterance
from llama_index_memory_ext.words.asking import asks
from llama_index_memory_ext.words.dates import WEEKDAYS

if TYPE_CHECKING:
    from datetime import date

    from llama_index.core.llms import LLM

    from llama_index_memory_ext.text.tokens import TokenCounter


# The names of the categories, or the names with a description of each.
Categories: TypeAlias = Sequence[str] | Mapping[str, str]

_MOST_CATEGORIES = 50
_NAME_CHARACTERS = 60
_DESCRIPTION_CHARACTERS = 300


def check_categories(value: Any) -> Categories:
    """Return the checked categories: names, or a dict of names and descriptions.

    There are 1 to 50 names, each once. A name has 1 to 60 characters on one line, and a
    description at most 300.

    Raises:
        SettingError: The value is not such a list or dict.

    >>> check_categories(["diet", "allergy"]), check_categories({"diet": "what they eat"})
    (('diet', 'allergy'), {'diet': 'what they eat'})
    """
    is_list = isinstance(value, Mapping | Sequence) and not isinstance(value, str)
    names = list(value) if is_list else []
    are_usable = 0 < len(names) <= _MOST_CATEGORIES and all(map(_is_name, names))
    if isinstance(value, Mapping):
        for description in value.values():
            are_usable &= _is_text(description, _DESCRIPTION_CHARACTERS)
    if not are_usable or len({name.strip().casefold() for name in names}) < len(names):
        raise SettingError(
            f"categories: expected 1 to {_MOST_CATEGORIES} names, each once, of 1 to {_NAME_CHARACTERS} characters on "
            f"one line, with descriptions of at most {_DESCRIPTION_CHARACTERS} characters, if any, saw {value!r:.100} "
            f"in a {type(value).__name__}. "
            'Name the categories that facts should have, as in ["diet", "allergy"] or {"diet": "what they eat"}, or '
            f"leave them out for {', '.join(CATEGORIES)}."
        )
    return dict(value) if isinstance(value, Mapping) else tuple(value)


def _is_name(value: Any) -> bool:
    return _is_text(value, _NAME_CHARACTERS) and len(value.strip().splitlines()) == 1


def _is_text(value: Any, longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest


# The least tokens of a request in a small window: a shorter one would say nothing.
_LEAST_BATCH = 200
_LEAST_ANSWER = 200
# An answer has this many tokens, and a token more for each token of the batch. However
# often a batch is halved, its answer may have this many.
ANSWER_TOKENS = 1_000


class RequestBudget(NamedTuple):
    """The most tokens of a request: messages, known facts, and the answer."""

    batch: int = 8_000
    facts: int = 300
    answer: int = 4_000


def request_budget(
    window: int | None, fixed: int, *, halved: float = 0, answer: int | None = None
) -> RequestBudget:
    """Return the budget in a window beside ``fixed`` tokens of instructions.

    The budget is halved ``halved`` times. If the ``window`` is unknown (None), it leaves
    the whole budget. ``answer``: the most tokens that the settings of the model allow.

    >>> request_budget(8_192, 1_000)
    RequestBudget(batch=3878, facts=145, answer=1939)
    """
    budget = RequestBudget()
    if answer:
        budget = budget._replace(answer=answer)
    share = 1.0
    left_tokens = tokens_left(window, fixed)
    if left_tokens is not None:
        # The least of an answer may be more than its share.
        left_for_texts = max(0, left_tokens - _LEAST_ANSWER)
        share = min(share, left_tokens / sum(budget), left_for_texts / sum(budget[:-1]))

    def halve(tokens: int) -> int:
        return int(tokens * share / 2**halved)

    longest_answer = int(budget.answer * share)
    return RequestBudget(
        max(halve(budget.batch), _LEAST_BATCH),
        halve(budget.facts),
        max(halve(budget.answer), min(longest_answer, ANSWER_TOKENS), _LEAST_ANSWER),
    )


def batch_end(
    starts_turn: Sequence[bool],
    tokens: Sequence[int],
    days: Sequence[date | None],
    *,
    token_limit: int,
    most_turns: int | None = None,
) -> int:
    """Return the number of messages, oldest first, that go into one request.

    The number is at least 1; 0 without messages. If possible, a batch ends before a
    turn: before it exceeds ``token_limit``, after ``most_turns``, and before the first
    turn of another day. Relative dates ("tomorrow") of a batch count from one day.
    """
    starts = [i for i, is_start in enumerate(starts_turn) if is_start]
    end = _end_of_day(starts, days, most_turns)
    total = 0
    for i in range(end):
        total += tokens[i]
        if i and total > token_limit:
            return max((start for start in starts if start <= i), default=0) or i
    return end


def _end_of_day(
    starts: Sequence[int], days: Sequence[date | None], most_turns: int | None
) -> int:
    """Return the start of the first turn of another day or beyond ``most_turns``."""
    for turns, start in enumerate(starts[1:], 1):
        if turns == most_turns or days[start] != days[starts[0]]:
            return start
    return len(days)


_THOUGHTS_END = "</think>"
_TOO_LONG = f"it has more than {MOST_CHARACTERS:,} characters, which are not read"
# The share of the budget for facts with words in common with the messages. A fact that
# the user corrects need not have any.
_MATCHING_SHARE = 0.5
# The kind of a fact is its first word that at most this share of the facts has: "lives"
# of "Ann lives in Oslo".
_COMMON_SHARE = 0.3
# Facts are compared with the newest messages of a batch.
_MOST_TEXTS = 24


def texts_in(lines: Sequence[Utterance]) -> list[str]:
    """Return the texts that facts are compared with.

    First the user's messages, newest first, then the messages that these answer.
    """
    places = [i for i, line in enumerate(lines) if line.is_users]
    newest_first = places[::-1][:_MOST_TEXTS]
    answered = [i - 1 for i in newest_first if i and not lines[i - 1].is_users]
    return [lines[i].text for i in (*newest_first, *answered)]


def select_known_facts(
    facts: Sequence[Fact],
    texts: Sequence[str],
    ranker: Similar,
    counter: TokenCounter,
    limit: int,
) -> list[Fact]:
    """Return the facts that fit about ``limit`` tokens.

    Half of the limit is for the facts most similar to the texts, the rest for facts of
    each kind. "I moved to Rome" has no word in common with "Lives in Oslo", but few facts
    are of its kind, and such facts are short.
    """
    by_id = {fact.id: fact for fact in facts}
    similar = _in_turn([most_similar(text, by_id, ranker) for text in texts])
    various = _in_turn(_kinds_of(facts))
    chosen = {}
    total = 0
    for candidates, most in ((similar, _MATCHING_SHARE * limit), (various, limit)):
        for fact in candidates:
            if fact.id in chosen:
                continue
            tokens = counter.count(f"{len(facts)}. {' '.join(fact.content.split())}\n")
            if total + tokens > most:
                break
            chosen[fact.id] = fact
            total += tokens
    return list(chosen.values())


def _in_turn(groups: Iterable[Sequence[Fact]]) -> Iterator[Fact]:
    """Yield the first fact of each group, then the second of each, and so on."""
    for facts in zip_longest(*groups):
        yield from filter(None, facts)


def _kinds_of(facts: Sequence[Fact]) -> Iterable[list[Fact]]:
    """Return the facts by kind: of each the shortest first, of equal ones the newer."""
    words_of = {fact.id: fact.content.casefold().split() for fact in facts}
    counts = Counter[str]()
    for words in words_of.values():
        counts.update(set(words))
    most = _COMMON_SHARE * len(facts)
    kinds = defaultdict[str, list[Fact]](list)
    for fact in sorted(
        facts, key=lambda fact: (len(fact.content), -fact.created_at.timestamp())
    ):
        rare_words = (word for word in words_of[fact.id] if counts[word] <= most)
        kinds[next(rare_words, "")].append(fact)
    return kinds.values()


def most_similar(text: str, facts: Mapping[str, Fact], ranker: Similar) -> list[Fact]:
    """Return the facts, given by their ids, that resemble a text, most similar first."""
    ids = list(facts)
    values = values_of(ranker.similarities(text), ids).tolist()
    similar = [pair for pair in zip(values, ids, strict=True) if pair[0]]
    return [facts[fact_id] for _, fact_id in sorted(similar, reverse=True)]


_INSTRUCTIONS = (files(__package__) / "instructions.txt").read_text("utf-8").strip()
_WHAT_TO_FIND = "what the user states about themselves, their life, people or work"
# The end of a message that a user answers, and a message that may need it, in characters.
_MOST_ANSWERED = 200
_SHORT_ANSWER = 40


def extraction_prompt(
    lines: Sequence[Utterance],
    known_facts: Sequence[Fact] = (),
    *,
    said_on: date,
    categories: Categories = CATEGORIES,
    instructions: str | None = None,
    before: Sequence[Utterance] = (),
    rejected: str = "",
) -> list[ChatMessage]:
    """Return the messages that ask for facts: the same instructions for each batch, and one text to read.

    Args:
        lines: The messages to learn from.
        known_facts: The known facts, which a reply names by their places, from 1.
        said_on: The day of the messages, from which relative dates count.
        categories: The categories of new facts.
        instructions: What to look for, in place of our own words. The rest stays, so
            that the reply can be read.
        before: The messages right before ``lines``.
        rejected: A text about facts that were rejected.
    """
    facts = "".join(
        f"{i}. {on_one_line(fact.content)}\n" for i, fact in enumerate(known_facts, 1)
    )
    text = f"<known_facts>\n{facts}</known_facts>\n" if facts else ""
    day = f"{WEEKDAYS[said_on.weekday()]}, {said_on.isoformat()}"
    text += f"{rejected}The messages are of {day}.\n<transcript>\n{_numbered(lines, before)}</transcript>"
    system = _INSTRUCTIONS.format(
        example_quote=EXAMPLE_QUOTE,
        example_category=read_category(None, tuple(categories)),
        what_to_find=(instructions or "").strip() or _WHAT_TO_FIND,
        categories=_listed(categories),
    )
    return [
        ChatMessage(role="system", content=system),
        ChatMessage(role="user", content=text),
    ]


def _listed(categories: Categories) -> str:
    """Return the categories with their descriptions: "diet (what they eat), pets"."""
    names = []
    for name in categories:
        description = ""
        if isinstance(categories, Mapping):
            description = " ".join(categories[name].split())
        names.append(f"{name} ({description})" if description else name)
    return ", ".join(names)


def _numbered(lines: Iterable[Utterance], before: Sequence[Utterance]) -> str:
    """Return the user's messages, a numbered line each.

    The end of a message that the user answers stands before the answer.
    """
    text = ""
    number = 0
    previous = before[-1] if before else None
    for line in lines:
        message = on_one_line(line.text)
        if line.is_users and message:
            number += 1
            if previous and not previous.is_users:
                answered = on_one_line(sent_part(previous))
                if len(message) <= _SHORT_ANSWER or asks(answered):
                    role = OTHER_ROLE if previous.role == OTHER_ROLE else "assistant"
                    text += f"{role}: {answered}\n"
            text += f"{number}. user: {message}\n"
        previous = line
    return text


def sent_part(line: Utterance) -> str:
    """Return the part of a message that a request may have: the user's whole, and the end of any other."""
    return line.text if line.is_users else line.text[-_MOST_ANSWERED:]


def on_one_line(text: str) -> str:
    """Return a text without line breaks and without our tags."""
    return escape_tags(" ".join(text.split()), TAGS)


class _Form(BaseModel):
    """A part of the form of a reply, as the tool's schema shows it to the model."""

    @staticmethod
    def _as_sent(schema: dict[str, Any]) -> None:
        """Leave out the titles, which say no more than the names."""
        schema.pop("title", None)
        for part in schema["properties"].values():
            part.pop("title", None)

    model_config = ConfigDict(json_schema_extra=_as_sent)


class _FactForm(_Form):
    message: int = Field(description="The number of the message.")
    quote: str = Field(description="The exact words of the user.")
    fact: str = Field(description="A short statement of it, in the user's language.")
    category: str = ""
    confidence: float = Field(0.9, description="0 to 1")
    ends: int = Field(0, description="The number of a known fact that it makes untrue.")


@lru_cache(maxsize=8)
def tool_of(categories: tuple[str, ...]) -> FunctionTool:
    """Return the tool by which a model reports facts of these categories."""
    category = Annotated[str, Field(json_schema_extra={"enum": list(categories)})]
    fact = create_model("Fact", __base__=_FactForm, __doc__="", category=(category, ""))
    facts: Any = (list[fact], ...)  # type: ignore[valid-type]
    report = create_model("Report", __base__=_Form, __doc__="", facts=facts)
    return FunctionTool.from_defaults(
        fn=report,
        name="report_facts",
        description="Report the facts of the transcript.",
        fn_schema=report,
    )


class _Answer(NamedTuple):
    """A response, and whether the model was asked by a tool."""

    response: ChatResponse
    by_tool: bool

    @property
    def has_calls(self) -> bool:
        blocks = self.response.message.blocks
        return self.by_tool and any(
            isinstance(block, ToolCallBlock) for block in blocks
        )


@dataclass(frozen=True)
class _Request:
    """A request for facts: its model, its tool and its limit; all responses are added to ``responses``."""

    llm: Any
    tool: FunctionTool
    answer_tokens: int
    responses: list[ChatResponse]

    async def send(self, messages: Sequence[ChatMessage], *, by_tool: bool) -> _Answer:
        """Return the answer, in words if the server refuses tools."""
        if by_tool:
            chat = partial(
                self.llm.achat_with_tools,
                [self.tool],
                chat_history=list(messages),
                tool_required=True,
                # Else the host drops all calls but the first.
                allow_parallel_tool_calls=True,
            )
            try:
                return _Answer(await self._chat(chat), by_tool=True)
            except Exception as error:
                if not refuses_tools(self.llm, error):
                    raise
        chat = partial(self.llm.achat, list(messages))
        return _Answer(await self._chat(chat), by_tool=False)

    async def _chat(self, chat: Callable[..., Awaitable[ChatResponse]]) -> ChatResponse:
        options = token_bound(self.llm, self.answer_tokens)
        return await ask_with(self.llm, options, chat, self.responses)


def can_call(llm: LLM) -> bool:
    """Return whether a model may be asked by a tool."""
    is_in_words = llm.pydantic_program_mode == PydanticProgramMode.LLM
    if is_in_words or takes(llm, "tools") is False:
        return False
    return (
        isinstance(llm, FunctionCallingLLM) and llm.metadata.is_function_calling_model
    )


async def ask_for_facts(
    llm: LLM,
    messages: Sequence[ChatMessage],
    *,
    categories: Categories = CATEGORIES,
    answer_tokens: int = RequestBudget().answer,
    responses: list[ChatResponse] | None = None,
) -> tuple[ExtractionReply, ChatResponse]:
    """Return the reply of a model to an ``extraction_prompt``, and the response.

    A function-calling model replies through a tool, and any other model in JSON. So
    does a model with ``pydantic_program_mode="llm"``. If the answer cannot be read, the
    model is asked once more: in words if it has called no tool so far, else with the
    reason. A model that answers only in words, or whose server refuses tools, is asked
    in words from then on. The answer by a tool is read as raw text: the host turns
    arguments that it cannot parse into {}, which means "nothing new".

    Raises:
        FactReplyError: Neither answer can be read, or the first was refused or cut. Its
            ``response`` is the last answer.
        Exception: Any error of the model.
    """
    names = tuple(categories)
    request = _Request(
        llm, tool_of(names), answer_tokens, [] if responses is None else responses
    )
    takes_tools = can_call(llm)
    answer = await request.send(messages, by_tool=takes_tools)
    if answer.has_calls:
        remember(llm, ["tools"], accepted=True)
    try:
        reply = await asyncio.to_thread(_read_answer, answer, names)
    except FactReplyError as error:
        ignores_tool = answer.by_tool and not takes(llm, "tools")
        if _is_final(answer.response, ignores_tool=ignores_tool):
            raise
        if not ignores_tool:
            messages = _with_correction(messages, error)
        answer = await request.send(
            messages, by_tool=answer.by_tool and not ignores_tool
        )
        reply = await asyncio.to_thread(_read_answer, answer, names)
    if takes_tools and not answer.by_tool:
        remember(llm, ["tools"], accepted=False)
    return reply, answer.response


def _is_final(response: ChatResponse, *, ignores_tool: bool) -> bool:
    """Return whether a second answer would be like the first.

    A refusal stays a refusal, and an answer that was cut would be cut again.
    """
    return was_refused(response) or (was_truncated(response) and not ignores_tool)


def _with_correction(
    messages: Sequence[ChatMessage], error: FactReplyError
) -> list[ChatMessage]:
    """Return messages that ask for a readable answer, without any word of the last one."""
    content = f"{messages[-1].content}\n\nYour last answer could not be read: {error.problem}. Answer again."
    return [*messages[:-1], ChatMessage(role=messages[-1].role, content=content)]


def _read_answer(answer: _Answer, categories: Sequence[str]) -> ExtractionReply:
    """Return the facts of all calls of an answer, or else of its words, as one reply.

    No facts do not mean "nothing new" if a text cannot be read or the answer was cut:
    this raises a FactReplyError.
    """
    try:
        return _read_response(answer, categories)
    except FactReplyError as error:
        error.response = answer.response
        raise


def _read_response(answer: _Answer, categories: Sequence[str]) -> ExtractionReply:
    response = answer.response
    facts: list[NewFact] = []
    errors = []
    texts = _texts_of(response.message, may_be_blank=not answer.by_tool)
    for text in texts:
        try:
            facts += read_facts(text, categories)
        except FactReplyError as error:  # noqa: PERF203 - each call is read apart
            errors.append(error)
    if not facts:
        if errors:
            raise errors[0]
        if was_truncated(response) or was_refused(response):
            raise FactReplyError("".join(texts[:1]), "it was cut")
    return reply_of(with_contents(facts, by_tool=answer.by_tool))


def with_contents(facts: list[NewFact], *, by_tool: bool) -> list[NewFact]:
    """Return the facts of a model; without tools their quotes are their contents.

    Models without tools quote exactly, but many of their statements leave out the point.
    """
    if by_tool:
        return facts
    return [
        fact.model_copy(update={"content": read_statement(fact.quote)})
        for fact in facts
    ]


def _texts_of(message: ChatMessage, *, may_be_blank: bool) -> list[str]:
    """Return the texts to read: the arguments of the calls, or else the words without thoughts before them.

    Raises a FactReplyError for an answer that is too long or too deep to be read, and
    for a blank one that ``may_be_blank`` forbids.
    """
    words = message.content or ""
    calls = _arguments_of(message)
    if calls:
        return calls
    # A very long text is measured before any part of it is copied.
    thoughts = max(words.rfind(_THOUGHTS_END), 0)
    if len(words) - thoughts > MOST_CHARACTERS:
        raise FactReplyError(words, _TOO_LONG)
    words = words[thoughts:].removeprefix(_THOUGHTS_END)
    if not may_be_blank and not words.strip():
        raise FactReplyError(words, "it is empty")
    return [words]


def _arguments_of(message: ChatMessage) -> list[str]:
    """Return the arguments of the calls of an answer, each as one text."""
    words = message.content or ""
    blocks = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    if is_longer([block.tool_kwargs for block in blocks], MOST_CHARACTERS):
        raise FactReplyError(words, _TOO_LONG)
    try:
        calls = [call.arguments for call in calls_of(message)]
    except (RecursionError, ValueError):
        raise FactReplyError(words, "its arguments are no JSON") from None
    if is_longer(calls, MOST_CHARACTERS):
        raise FactReplyError(words, _TOO_LONG)
    return calls
