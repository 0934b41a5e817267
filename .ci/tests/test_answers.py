"""The benchmark of right answers makes the conversations that it says, and judges answers as a reader would."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from llama_index.core.base.llms.types import ChatMessage, MessageRole

from tests.openai_server import serve

# Modules, of which some show what they import.
answer_talks = import_module("benchmarks.answer_talks")
answer_model = import_module("benchmarks.answer_model")
answers = import_module("benchmarks.answers")
answers_locomo = import_module("benchmarks.answers_locomo")
asked_model = import_module("benchmarks.asked_model")
live_agent = import_module("benchmarks.live_agent")

KINDS = (answer_talks.FACT, answer_talks.CHANGED, answer_talks.OTHER, answer_talks.TOOL)


REPLY = {"role": "assistant", "content": "In Porto."}


def text_of(turn: list[ChatMessage]) -> str:
    return "\n".join(str(message.content) for message in turn)


@pytest.mark.parametrize("language", answer_talks.LANGUAGES)
def test_what_is_asked_is_told_long_before_the_end(language: str) -> None:
    """In every conversation the value of each question is told, and so many tokens of other things follow."""
    for seed in answers.SEEDS[language]:
        talk = answer_talks.make_talk(seed, language, answers.TOKENS_BEHIND)
        tokens = 0
        end = len(talk.turns)
        while tokens < answers.TOKENS_BEHIND:
            end -= 1
            tokens += sum(
                answer_talks.tokens_in(str(message.content))
                for message in talk.turns[end]
            )
        told = "\n".join(map(text_of, talk.turns[:end]))
        for question in talk.questions:
            if question.kind in KINDS:
                assert answer_talks.has_word(told, question.gold)


@pytest.mark.parametrize("language", answer_talks.LANGUAGES)
def test_a_seed_makes_the_same_conversation_with_all_kinds_of_questions(
    language: str,
) -> None:
    first = answer_talks.make_talk(0, language, 100)
    assert first == answer_talks.make_talk(0, language, 100)
    assert first != answer_talks.make_talk(1, language, 100)
    everything = answer_talks.make_talk(0, language, 100, all_asked=True)
    kinds = {question.kind for question in everything.questions}
    assert kinds == {*KINDS, answer_talks.UNKNOWN, answer_talks.CONTROL}


def test_each_memory_has_100_questions_and_20_controls() -> None:
    questions = []
    for talk in answers.talks_for(answers.HOST):
        questions += [question.kind for question in talk.questions]
    assert sum(kind in KINDS for kind in questions) >= 100
    assert questions.count(answer_talks.CONTROL) >= 20
    assert questions.count(answer_talks.UNKNOWN) >= 20


def test_a_changed_value_replaces_the_sentence_that_a_program_adds() -> None:
    talk = answer_talks.make_talk(0, "en", 100, all_asked=True)
    added = "\n".join(talk.told)
    changed = [one for one in talk.questions if one.kind == answer_talks.CHANGED]
    assert changed
    for question in changed:
        assert answer_talks.has_word(added, question.gold)
        assert not answer_talks.has_word(added, question.outdated)


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ("You live in Porto.", True),
        ("PORTO", True),
        ("You lived in Ghent and now live in Porto.", False),
        ("In Ghent.", False),
        ("I do not know.", False),
        ("Importantly, in Oporto.", False),
    ],
)
def test_an_answer_needs_the_new_value_alone(answer: str, is_right: bool) -> None:
    question = answer_talks.Question("changed fact", "Where?", ("Porto",), ("Ghent",))
    assert question.is_right(answer) == is_right


@pytest.mark.parametrize(
    "answer",
    [
        "I don\u2019t know which school you went to.",
        "Your blood type is not mentioned.",
        "The information provided does not mention the age of the brother.",
        "No se proporciona información sobre el perfume utilizado.",
        "Das weiß ich nicht.",
        "No tengo esa información.",
    ],
)
def test_an_answer_that_says_that_it_does_not_know_is_read(answer: str) -> None:
    assert answer_talks.says_unknown(answer)
    assert not answer_talks.says_unknown("It is called Fluffy.")


@pytest.mark.parametrize(
    ("prompt", "text", "problem"),
    [
        ("I live in Porto.", "Porto.", ""),
        ("It rains.", "In Ghent.", answers.NOT_RECALLED),
        ("I live in Porto.", "I do not know.", answers.OVERLOOKED),
        ("I live in Porto.", "In Ghent.", answers.NOT_UNDERSTOOD),
    ],
)
def test_a_wrong_answer_has_its_problem(prompt: str, text: str, problem: str) -> None:
    talk = answer_talks.make_talk(0, "en", 100)
    question = answer_talks.Question("fact", "Where do I live?", ("Porto",))
    assert answers.Answer(talk, question, prompt, text).problem == problem


async def test_a_memory_gets_the_limit_for_prompts_of_a_length() -> None:
    talks = [answer_talks.make_talk(0, "en", 400)]
    limit = await answers.limit_for(answers.WITHOUT_FACTS, 400, talks)
    (prompt,) = await answers.prompts_of(
        answers.WITHOUT_FACTS,
        limit,
        talks[0],
        answers.StandInModel(),
        talks[0].questions[:1],
    )
    tokens = answer_talks.tokens_in(answers.prompt_text(prompt[1:]))
    assert tokens == pytest.approx(400, rel=0.25)


async def test_replies_are_asked_for_once_and_counted(tmp_path: Path) -> None:
    """A second model with the same file asks the server nothing."""
    file = tmp_path / "replies.jsonl"
    question = [ChatMessage("Where do I live?")]
    with serve(lambda messages, tools: REPLY) as server:
        for _ in range(2):
            llm = asked_model.AskedModel(
                model="gpt-4o-mini", api_base=server.api_base, api_key="k", file=file
            )
            llm.read_file()
            assert await llm.answer(question) == "In Porto."
            assert llm.tokens_of_learning() == (0, 0)
            reply = await llm.achat(question)
            assert str(llm.chat(question).message.content) == "In Porto."
            assert reply.message.role == MessageRole.ASSISTANT
            assert llm.tokens_of_learning() == (1, 1)
            if llm._aclient:
                await llm._aclient.close()
        assert len(server.requests) == 2


def test_an_excerpt_of_locomo_ends_and_asks_what_has_gold_words() -> None:
    turns = [
        {"speaker": "Ann", "text": f"word {i} " * 100}
        for i in range(answers_locomo.TOKENS // 100)
    ]
    conversation = {
        "id": "c",
        "speakers": ["Ann", "Ben"],
        "pools": {"turns": turns},
        "questions": [{"id": "c-1", "text": "What?"}, {"id": "c-2", "text": "Who?"}],
    }
    talk = answers_locomo.excerpt_of(conversation, {"c-2": ["Ben"]})
    assert [question.text for question in talk.questions] == ["Who?"]
    tokens = sum(answer_talks.tokens_in(text_of(turn)) for turn in talk.turns)
    assert 0 < tokens <= answers_locomo.TOKENS


def test_tags_and_tools_without_need_are_counted() -> None:
    replies = [
        live_agent.Reply(live_agent.SAME, "Porto", right=True, tools=()),
        live_agent.Reply(
            live_agent.TELLING, "Fine <fact>", right=False, tools=("add",)
        ),
        live_agent.Reply(live_agent.TOOL, "12", right=True, tools=("add",)),
    ]
    values = {
        line.what: (line.value, line.unit) for line in live_agent.measures_of(replies)
    }
    assert values["turns with a tool that was not needed"] == (1, "of 2")
    assert values["answers with tags"] == (1, "of 3")
    assert values[f"right answers, {live_agent.TOOL}"] == (1, "of 1")
