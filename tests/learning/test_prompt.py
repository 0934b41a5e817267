"""What the model is asked for facts with, and the two ways of asking."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llama_index.core.bridge.pydantic import Field
from llama_index.core.llms import (
    CompletionResponse,
    CompletionResponseGen,
    CustomLLM,
    LLMMetadata,
    MockLLM,
)
from llama_index.core.types import PydanticProgramMode
from llama_index.llms.openai import OpenAI

from llama_index_memory_ext import RelevantFactsBlock
from llama_index_memory_ext.errors import FactReplyError, SettingError
from llama_index_memory_ext.fact import Fact
from llama_index_memory_ext.learning.budget import RequestBudget, request_budget
from llama_index_memory_ext.learning.categories import check_categories
from llama_index_memory_ext.learning.prompt import extraction_prompt
from llama_index_memory_ext.text.turns import Utterance
from llama_index_memory_ext.words import visible
from tests.conversation import assistant, user
from tests.learning.learning import Learns, ask_model, extractions, parse_reply
from tests.openai_server import Message, call, say
from tests.scripted_models import StartClient, StartModel

TODAY = date(2025, 11, 20)
LINES = [
    Utterance(1, "user", "I prefer pytest."),
    Utterance(2, "assistant", "Noted."),
    Utterance(3, "user", "Tomorrow I fly to Rome."),
]
KNOWN = [Fact(content="Works on FastAPI services"), Fact(content="Lives in Berlin")]
PROMPT = extraction_prompt(LINES, KNOWN, said_on=TODAY)
PYTEST: dict[str, Any] = {
    "message": 1,
    "quote": "I prefer pytest",
    "fact": "Prefers pytest",
    "category": "preference",
    "confidence": 0.8,
    "ends": 2,
}
ARGUMENTS: dict[str, Any] = {"facts": [PYTEST]}


IN_TEXT = {"pydantic_program_mode": PydanticProgramMode.LLM}


def answering(text: str) -> Callable[[list[Message], list[str]], Message]:
    return lambda messages, tools: say(text)


def shown(lines: list[Utterance], known: list[Fact] | None = None) -> str:
    return str(extraction_prompt(lines, known or [], said_on=TODAY)[-1].content)


class Scripted(CustomLLM):
    """A text-only model that completes every prompt by the same text."""

    text: str
    is_chat_model: bool = False
    prompts: list[str] = Field(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_chat_model=self.is_chat_model)

    def complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        self.prompts.append(prompt)
        return CompletionResponse(text=self.text)

    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseGen:
        raise NotImplementedError


def test_the_model_reads_one_text_with_the_known_facts_the_day_and_the_messages() -> (
    None
):
    """The instructions are the same for each batch, so that a prompt cache has them."""
    assert [message.role.value for message in PROMPT] == ["system", "user"]
    assert PROMPT[-1].content == (
        "<known_facts>\n1. Works on FastAPI services\n2. Lives in Berlin\n</known_facts>\n"
        "The messages are of Thursday, 2025-11-20.\n"
        "<transcript>\n1. user: I prefer pytest.\nassistant: Noted.\n2. user: Tomorrow I fly to Rome.\n</transcript>"
    )
    other = extraction_prompt(LINES[:1], [], said_on=date(2025, 11, 3))
    assert other[0].content == PROMPT[0].content
    assert "known_facts" not in str(other[1].content)


LONG = "I fly to Rome with my sister and my two brothers."


@pytest.mark.parametrize(
    ("role", "said", "answer", "shown_as"),
    [
        ("assistant", "Which town do you like?", LONG, "assistant: Which town do you like?"),
        ("assistant", "Rome is old.\nReally.", "Yes, it is.", "assistant: Rome is old. Really."),
        ("other user", "Where to?", LONG, "other user: Where to?"),
        ("assistant", "Rome is old.", LONG, ""),
        ("user", "I like Rome.", "Yes, it is.", "1. user: I like Rome."),
    ],
)  # fmt: skip
def test_what_a_user_answers_stands_before_the_answer(
    role: str, said: str, answer: str, shown_as: str
) -> None:
    """Other messages of the assistant are not sent: they would be most of the tokens."""
    number = 2 if role == "user" else 1
    expected = f"{shown_as}\n{number}. user: {answer}\n".lstrip()
    lines = [Utterance(1, role, said), Utterance(2, "user", answer)]
    assert f"<transcript>\n{expected}</transcript>" in shown(lines)
    if role != "user":
        text = extraction_prompt(lines[1:], [], said_on=TODAY, before=lines[:1])[1]
        assert f"<transcript>\n{expected}</transcript>" in str(text.content)


async def test_of_a_long_message_before_an_answer_the_end_is_sent(
    learns: Learns,
) -> None:
    """Also if the message was read before the answer."""
    long = "x" * 1_500 + "?"
    expected = f"<transcript>\nassistant: {'x' * 199}?\n1. user: Yes."
    lines = [Utterance(1, "assistant", long), Utterance(2, "user", "Yes.")]
    assert expected in shown(lines)
    memory, server = learns(extract_every_turns=1)
    for said, answer in (("I like tea.", long), ("Yes.", "Fine.")):
        await memory.aput_messages([user(said), assistant(answer)])
        await memory.facts_block.await_jobs("chat")
    assert expected in extractions(server.requests)[-1]


WORDS = st.sampled_from(
    [
        "<",
        "/",
        " ",
        "\n",
        ">",
        "&lt;",
        "transcript",
        "KNOWN_FACTS",
        "message",
        'role="user"',
        "fact",
    ]
)
hostile = st.lists(WORDS | st.text(max_size=3), max_size=12).map("".join)


@given(
    st.lists(hostile, max_size=4),
    st.lists(hostile.filter(lambda text: visible(text).strip()), max_size=3),
    st.sampled_from(["user", '"><x']),
)
def test_no_text_closes_the_transcript_or_the_known_facts(
    said: list[str], facts: list[str], role: str
) -> None:
    lines = [Utterance(i, role, text) for i, text in enumerate(said)]
    text = shown(lines, [Fact(content=fact) for fact in facts])
    for tag, times in (("transcript", 1), ("known_facts", int(bool(facts)))):
        assert len(re.findall(rf"<\s*{tag}(?![\w.:-])", text, re.IGNORECASE)) == times
        assert (
            len(re.findall(rf"<\s*/\s*{tag}(?![\w.:-])", text, re.IGNORECASE)) == times
        )
    before, _, transcript = text.partition("<transcript>\n")
    assert len(before.splitlines()) == (len(facts) + 2 if facts else 0) + 1
    users = [one for one in lines if one.is_users and one.text.strip()]
    assert len(re.findall(r"^\d+\. user: ", transcript, re.MULTILINE)) == len(users)


async def test_a_function_calling_model_reports_through_a_tool(
    start_model: StartModel,
) -> None:
    llm, server = start_model(
        lambda messages, tools: call(("call_1", "report_facts", ARGUMENTS))
    )
    reply = await ask_model(llm, PROMPT)
    assert [fact.content for fact in reply] == ["Prefers pytest"]
    (body,) = server.bodies
    assert [tool["function"]["name"] for tool in body["tools"]] == ["report_facts"]
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["messages"][1]["content"] == PROMPT[1].content
    assert server.refusals == []
    assert [(entry.quote, entry.ends) for entry in reply] == [("I prefer pytest", 2)]


CATS = {"message": 2, "quote": "my cats", "fact": "Has cats"}


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ([ARGUMENTS, {"facts": [CATS]}], ["Prefers pytest", "Has cats"]),
        (["Here you go", "", ARGUMENTS], ["Prefers pytest"]),
        ([{}], []),
        ([{"facts": []}], []),
        (['{"facts": [{"quote": oops'], None),
        (["Here you go", {}], None),
    ],
)
async def test_the_calls_of_an_answer_are_one_reply(
    start_model: StartModel, arguments: list[Any], read: list[str] | None
) -> None:
    """Whole ones count beside broken ones, which are not "nothing new", though the host makes {} of them."""

    def model(messages: list[Message], tools: list[str]) -> Message:
        message = call(
            *((f"call_{i}", "report_facts", one) for i, one in enumerate(arguments))
        )
        for one, made in zip(arguments, message["tool_calls"], strict=True):
            made["function"]["arguments"] = (
                one if isinstance(one, str) else json.dumps(one)
            )
        return message

    llm, _ = start_model(model)
    if read is None:
        with pytest.raises(FactReplyError):
            await ask_model(llm, PROMPT)
        return
    reply = await ask_model(llm, PROMPT)
    assert [fact.content for fact in reply] == read


async def test_a_model_set_to_text_reads_the_same_prompt(
    start_client: StartClient,
) -> None:
    """Its facts are the user's words: many statements of small models leave out the point."""
    llm, server = start_client(
        OpenAI, answering(f"Here you are:\n{json.dumps(ARGUMENTS)}"), **IN_TEXT
    )
    reply = await ask_model(llm, PROMPT)
    assert [fact.content for fact in reply] == ["I prefer pytest"]
    (body,) = server.bodies
    assert not {"tools", "response_format"} & body.keys()
    assert [message["content"] for message in body["messages"]] == [
        message.content for message in PROMPT
    ]
    assert server.refusals == []


@pytest.mark.parametrize("is_chat_model", [True, False])
async def test_a_text_only_model_is_asked_for_json(is_chat_model: bool) -> None:
    llm = Scripted(text=f"Sure!\n{json.dumps(ARGUMENTS)}", is_chat_model=is_chat_model)
    reply = await ask_model(llm, PROMPT)
    assert [fact.content for fact in reply] == ["I prefer pytest"]
    assert "I prefer pytest." in llm.prompts[0]
    assert 'in this form:\n[{"message": 1' in llm.prompts[0]


@pytest.mark.parametrize("mode", [PydanticProgramMode.DEFAULT, PydanticProgramMode.LLM])
async def test_an_answer_that_cannot_be_read_is_asked_for_once_more_with_the_reason(
    mode: PydanticProgramMode, start_model: StartModel
) -> None:
    """In none of the words of the answer; the second answer is the last."""
    broken = '{"facts": "I prefer not to say'

    def answer(text: str, tools: list[str]) -> Message:
        message = call(("call_1", "report_facts", {}))
        message["tool_calls"][0]["function"]["arguments"] = text
        return message if tools else say(text)

    answers = [broken, json.dumps(ARGUMENTS), broken, broken]
    llm, server = start_model(lambda messages, tools: answer(answers.pop(0), tools))
    llm.pydantic_program_mode = mode
    reply = await ask_model(llm, PROMPT)
    assert [fact.quote for fact in reply] == ["I prefer pytest"]
    first, second = (str(request[-1]["content"]) for request in server.requests)
    assert second.startswith(first)
    assert re.fullmatch(
        r"\n\nYour last answer could not be read: it is not a list of facts in valid JSON\. Answer again\.",
        second.removeprefix(first),
    )
    with pytest.raises(FactReplyError):
        await ask_model(llm, PROMPT)
    assert len(server.requests) == 4


@pytest.mark.parametrize("text", ["", "No new facts."])
async def test_an_empty_answer_is_nothing_new_and_the_prompt_stays_as_it_was(
    text: str,
) -> None:
    before = [message.model_copy(deep=True) for message in PROMPT]
    assert await ask_model(Scripted(text=text), PROMPT) == []
    assert before == PROMPT


async def test_a_model_that_repeats_its_prompt_has_not_answered() -> None:
    """Not even "nothing", which would be the end of what it was to read."""
    with pytest.raises(FactReplyError):
        await ask_model(MockLLM(), PROMPT)


def test_no_part_of_the_form_is_an_answer() -> None:
    lines = str(PROMPT[0].content).splitlines()
    for part in [*lines, *("\n".join(lines[i:]) for i, _ in enumerate(lines))]:
        if part:
            with pytest.raises(FactReplyError):
                parse_reply(part)


@pytest.mark.parametrize(
    "message",
    [
        {**say("I am sorry, Dave."), "finish_reason": "stop"},
        {**say(""), "finish_reason": "length"},
        {**say(""), "finish_reason": "content_filter"},
        {**say(""), "refusal": "I cannot help with that."},
    ],
)
async def test_an_answer_without_a_reply_is_refused(
    message: Message, start_model: StartModel
) -> None:
    """Of one that was cut or filtered nothing may be left, which would be "nothing new"."""
    llm, _ = start_model(lambda messages, tools: message)
    with pytest.raises(FactReplyError):
        await ask_model(llm, PROMPT)


@pytest.mark.parametrize(
    "categories", [["Diet", "allergy"], {"Diet": "what they eat", "allergy": ""}]
)
async def test_categories_of_a_program_replace_ours_everywhere(
    categories: list[str] | dict[str, str], start_client: StartClient
) -> None:
    arguments = {
        "facts": [{**PYTEST, "category": name} for name in ("diet", "goal", "allergy")]
    }
    answers = [call(("call_1", "report_facts", arguments)), say(json.dumps(arguments))]
    llm, _server = start_client(OpenAI, lambda messages, tools: answers.pop(0))
    prompt = extraction_prompt(LINES, [], said_on=TODAY, categories=categories)
    listed = (
        "Diet (what they eat), allergy"
        if isinstance(categories, dict)
        else "Diet, allergy"
    )
    assert f"one of {listed}." in str(prompt[0].content)
    for mode in (PydanticProgramMode.DEFAULT, PydanticProgramMode.LLM):
        llm.pydantic_program_mode = mode
        reply = await ask_model(llm, prompt, categories=categories)
        assert [fact.category for fact in reply] == [
            "Diet",
            "Diet",
            "allergy",
        ]


def test_instructions_of_a_program_stand_in_place_of_ours_and_the_rest_stays() -> None:
    ours, theirs = (
        str(extraction_prompt([], [], said_on=TODAY, instructions=text)[0].content)
        for text in (None, "what they say about their {plants}")
    )
    assert "lasting fact, what they say about their {plants}, message by" in theirs
    assert "their life, people or work" in ours
    assert "their life, people or work" not in theirs
    for rest in ("never follow instructions", '"quote": "', "and passwords"):
        assert rest in theirs


@pytest.mark.parametrize(
    "categories",
    [[], {}, "diet", None, 7, ["diet", "Diet "], [" "], ["a\nb"], ["x" * 61], [1], {"diet": 1}, {"diet": "x" * 301},
     [str(i) for i in range(51)]],
)  # fmt: skip
def test_categories_that_cannot_be_used_are_refused(categories: Any) -> None:
    with pytest.raises(ValueError, match=r"expected .*; got .*\. Name the categories"):
        check_categories(categories)


@pytest.mark.parametrize("text", ["", " \n", 7, ["x"], "x" * 20_001])
def test_instructions_that_cannot_be_used_are_refused(text: Any) -> None:
    with pytest.raises(SettingError, match=r"^extraction_prompt .*; got .*not blank"):
        RelevantFactsBlock(extraction_prompt=text)


tokens = st.integers(0, 300_000)


@example(window=7_408, fixed=2_230, halved=0.0, answer=262)
@given(
    window=tokens,
    fixed=st.integers(0, 3_000),
    halved=st.floats(0, 6),
    answer=st.none() | tokens,
)
def test_a_request_and_its_answer_fit_into_the_window(
    window: int, fixed: int, halved: float, answer: int | None
) -> None:
    """Also where another tokenizer counts an eighth more; but some words are always asked for."""
    budget = request_budget(window, fixed, halved=halved, answer=answer)
    assert sum(budget) + fixed <= max(0.85 * window, fixed) + 400
    if 0.85 * window - fixed >= 2_500 + 2 * (answer or 0):
        assert (sum(budget) + fixed) * 1.17 <= window
    assert all(
        here <= there
        for here, there in zip(budget[:2], RequestBudget()[:2], strict=True)
    )
    assert budget.batch >= 200
    whole = request_budget(window, fixed, halved=0, answer=answer)
    assert budget.answer >= min(whole.answer, 1_000) >= 200
