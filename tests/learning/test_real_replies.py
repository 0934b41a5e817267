"""What a model of 1.5 billion parameters really answered, and made-up replies with the same faults."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from time import process_time
from typing import Any

import pytest

from llama_index_memory_ext.fact import Fact
from llama_index_memory_ext.learning.validation import ValidatedReply, validate_reply
from llama_index_memory_ext.text.turns import Utterance
from tests.learning.learning import parse_reply
from tests.words import rows

NOW = datetime(2026, 11, 24, 12, tzinfo=timezone.utc)


def learned(said: str, answer: str, reply: str, *known: str) -> ValidatedReply:
    """What is stored of a reply, as the model wrote it, to a message and its answer."""
    lines = [Utterance(1, "user", said), Utterance(2, "assistant", answer)]
    facts = [Fact(content=content, confidence=0.8) for content in known]
    return validate_reply(parse_reply(reply), lines, facts, now=NOW)


def reported(content: str, quote: str = "", **fields: Any) -> str:
    """A reply as the model writes it, with fields that nothing asks for."""
    told = {
        "message": 1,
        "quote": quote or content,
        "said_as": "user",
        "about": "user",
        "fact": content,
        "valid_until": "2026-11-24",
        **fields,
    }
    return json.dumps([told], ensure_ascii=False)


NURSE = "I'm a nurse at St Mary's hospital and mostly work nights."
RECORDED = (
    '{"new_facts": [{"label": "n1", "quote": "I\'m a nurse at St Mary\'s hospital and mostly work nights.", '
    '"said_as": "user", "about": "user", '
    '"content": "I\'m a nurse at St Mary\'s hospital and mostly work nights.", '
    '"category": "goal or correction", "confidence": 0.9, "valid_from": "2026-11-24", "valid_until": "2026-11-24"}],\n'
    ' "confirmed": [1],\n "retired": []}'
)


def test_of_a_recorded_reply_neither_labels_nor_invented_days_are_read() -> None:
    outcome = learned(f"{NURSE} Any tips?", "Dark curtains.", RECORDED, "Has two cats")
    (fact,) = outcome.accepted
    assert (fact.content, fact.category) == (NURSE, "knowledge")
    assert (fact.valid_until, fact.said_as) == (None, "stated")
    assert (outcome.confirmed, outcome.rejections) == ((), {})


@pytest.mark.parametrize(
    ("said", "answer", "content"),
    [
        (
            "If I had a dog, I would call him Bruno. What breeds stay small?",
            "Chihuahuas and Maltese stay small.",
            "Chihuahuas and Maltese stay small.",
        ),
        (
            "I need a quiet keyboard for my flat.",
            "Rubber domes need no special care and make no noise.",
            "Rubber domes need no special care",
        ),
    ],
)
def test_a_copy_of_the_assistants_words_is_not_the_users(
    said: str, answer: str, content: str
) -> None:
    outcome = learned(said, answer, reported(content, said))
    assert (outcome.accepted, outcome.rejections) == ((), {"not_the_users_words": 1})


def test_an_answer_that_repeats_the_users_words_takes_nothing_from_them() -> None:
    said = "I play the viola in an orchestra."
    content = "Plays the viola in an orchestra"
    assert learned(said, f"Noted: {content}.", reported(content, said)).accepted


@pytest.mark.parametrize(
    ("said", "answer", "content", "quote"),
    [
        (
            "昔はタバコを吸っていましたが、三年前にやめました。",
            "歯科でのクリーニングがおすすめです。",
            "昔はタバコを吸っていましたが、三年前にやめました。",
            "歯科でのクリーニングがおすすめです。",
        ),
        ("I keep bees on the roof.", "Lovely.", "I keep bees on the roof", "Lovely."),
    ],
)
def test_a_content_in_the_users_words_is_its_own_quote(
    said: str, answer: str, content: str, quote: str
) -> None:
    (fact,) = learned(said, answer, reported(content, quote)).accepted
    assert fact.quote.strip("。.") == content.strip("。.")


@pytest.mark.parametrize(("content", "said"), rows("another person", "people.txt"))
def test_what_another_person_does_is_stored_in_words_that_say_whom(
    content: str, said: str
) -> None:
    outcome = learned(said, "I see.", reported(content, said))
    assert [fact.content for fact in outcome.accepted] == [said]


@pytest.mark.parametrize("said", [row[0] for row in rows("a stranger", "people.txt")])
def test_a_person_whom_the_words_do_not_name_is_not_the_users(said: str) -> None:
    outcome = learned(said, "I see.", reported("Lives in Porto", said))
    assert (outcome.accepted, outcome.rejections) == ((), {"other": 1})


@pytest.mark.parametrize(("content", "said"), rows("the listener's name", "people.txt"))
def test_a_name_with_which_the_user_speaks_to_somebody_is_not_the_users(
    content: str, said: str
) -> None:
    name = content.rsplit(maxsplit=1)[-1]
    outcome = learned(said, "I see.", reported(content, said))
    assert name not in " ".join(fact.content for fact in outcome.accepted)


@pytest.mark.parametrize(("content", "said"), rows("the user's name", "people.txt"))
def test_the_name_below_or_within_the_users_own_words_is_the_users(
    content: str, said: str
) -> None:
    lines = said.replace(" / ", "\n")
    outcome = learned(lines, "I see.", reported(content, lines))
    assert [fact.content for fact in outcome.accepted] == [content]


@pytest.mark.parametrize(("content", "said"), rows("the user", "people.txt"))
def test_what_the_user_does_beside_another_person_is_stored(
    content: str, said: str
) -> None:
    outcome = learned(said, "I see.", reported(content, said))
    assert [fact.content for fact in outcome.accepted] == [content]


@pytest.mark.parametrize("said", [row[0] for row in rows("small talk", "people.txt")])
def test_small_talk_and_questions_are_no_facts(said: str) -> None:
    assert learned(said, "I see.", reported(said)).accepted == ()


@pytest.mark.parametrize(("content", "said"), rows("no small talk", "people.txt"))
def test_a_short_fact_is_no_small_talk(content: str, said: str) -> None:
    outcome = learned(said, "I see.", reported(content, said))
    assert [fact.content for fact in outcome.accepted] == [content]


@pytest.mark.parametrize(
    "said",
    [
        "Oh sure, I just love waiting at the dentist's.",
        "Na toll, ich liebe es, im Regen zu warten.",
        "Sí, claro, me encanta limpiar el horno.",
    ],
)
def test_irony_is_not_meant(said: str) -> None:
    assert learned(said, "I see.", reported(said)).rejections == {"quoted": 1}


@pytest.mark.parametrize(
    ("statement", "question"),
    [
        ("My brother Tom lives in Dubai.", "What time is it there now?"),
        ("Voy en bici a todas partes.", "¿Qué candado compro?"),
        ("我住在上海,喜欢打羽毛球。", "有什么好的球馆推荐吗?"),
    ],
)
def test_questions_beside_a_statement_are_no_part_of_the_fact(
    statement: str, question: str
) -> None:
    """Also where the content is the question alone."""
    for said in (f"{statement} {question}", f"{question} {statement}"):
        for content in (said, question):
            (fact,) = learned(said, "Fine.", reported(content, said)).accepted
            assert fact.content == statement


def test_a_question_about_words_of_the_assistant_is_no_fact() -> None:
    answer = "I was trained until 2025. Do you like jazz?"
    outcome = learned("Why do you ask?", answer, reported("Do you like jazz?", answer))
    assert outcome.accepted == ()


@pytest.mark.parametrize(
    ("said", "content"),
    [
        (
            "I live in Paris. Sorry, no: I lived in Paris until 2021. Now it's Lyon.",
            "I live in Paris",
        ),
        ("My daughter is six, no, seven since Monday.", "Daughter is six"),
        ("I work at a bank. Scratch that, I left in May.", "Works at a bank"),
        ("Ich wohne in Bonn. Quatsch, seit März in Köln.", "Wohnt in Bonn"),
        ("Tengo dos perros. Perdón, no: tres.", "Tiene dos perros"),
        ("J'ai deux chats. Non, attends, trois.", "A deux chats"),
        ("我住在北京。说错了,我住在天津。", "住在北京"),
        ("犬を二匹飼っています。間違えました、三匹です。", "犬を二匹飼っている"),
    ],
)
def test_a_statement_that_is_taken_back_at_once_is_denied(
    said: str, content: str
) -> None:
    quote = re.split(r"\. |。|, ", said)[0]
    outcome = learned(said, "Fine.", reported(content, quote))
    assert outcome.rejections == {"denied": 1}


@pytest.mark.parametrize(
    ("said", "content"),
    [
        ("I live in Paris. No, I do not own a car there.", "Lives in Paris"),
        ("It is not true that I smoke.", "It is not true that I smoke"),
        ("It is not true that I smoke. I own a boat.", "Owns a boat"),
        ("I live in Paris. Sorry, no: in Lyon.", "I live in Paris. Sorry, no: in Lyon"),
        ("I live in Paris. Sorry, no: I moved to Lyon.", "Moved to Lyon"),
        ("My boss lives in Rome, no pets. I row.", "Boss lives in Rome"),
        ("I don't have a car, I ride a bike.", "Rides a bike"),
    ],
)
def test_what_stands_beside_a_denial_is_stated(said: str, content: str) -> None:
    (fact,) = learned(said, "Fine.", reported(content, said)).accepted
    assert fact.content == content


@pytest.mark.parametrize(
    ("said", "content", "quote"),
    [
        (
            "Summarise this for me:\n\nAbout the author. I started at nine, I have four children, and I row.",
            "Has four children",
            "I have four children",
        ),
        (
            "Here is the mail I got:\nHi Tom, I am moving to Berlin. Anna",
            "Is moving to Berlin",
            "I am moving to Berlin",
        ),
        ("My friend says: I hate Mondays.", "Hates Mondays", "I hate Mondays"),
        ("润色这段话:我叫王芳,在银行工作。", "在银行工作", "在银行工作"),
    ],
)
def test_a_text_behind_a_colon_is_somebody_elses(
    said: str, content: str, quote: str
) -> None:
    outcome = learned(said, "Fine.", reported(content, quote))
    assert outcome.rejections == {"quoted": 1}


@pytest.mark.parametrize(
    ("said", "content"),
    [
        ("Make a note: I am allergic to nuts.", "Is allergic to nuts"),
        ("My situation: I live in Rome.", "Lives in Rome"),
        ("My boss says: work more. I like tea.", "Likes tea"),
        ("I said: I live in Rome.", "Lives in Rome"),
        ("Edit: I live in Rome.", "Lives in Rome"),
        ("Polish food: I love soup.", "Loves soup"),
    ],
)
def test_the_users_own_words_may_stand_behind_a_colon(said: str, content: str) -> None:
    quote = re.split(r"[:.] ", said.rstrip("."))[-1]
    (fact,) = learned(said, "Fine.", reported(content, quote)).accepted
    assert fact.content == content


@pytest.mark.parametrize("said", ["Summarise this for me:", "帮我润色这段话:"])
def test_an_announcement_is_no_fact(said: str) -> None:
    outcome = learned(f"{said} I have two cats.", "Fine.", reported(said))
    assert outcome.accepted == ()


@pytest.mark.parametrize("said", [", I row.", "— I row.", "¿I row.", "...", "I row"])
def test_a_message_may_begin_with_a_mark(said: str) -> None:
    reply = json.dumps([{"quote": f"{said} ", "fact": "Sails"}], ensure_ascii=False)
    outcome = learned(said, "Fine.", reply)
    assert all(fact.content == said.strip() for fact in outcome.accepted)


@pytest.mark.parametrize("mark", ["!", "\n", "no, "])
def test_long_runs_of_marks_take_little_time(mark: str) -> None:
    said = f"{mark * 8_000} I live in Rome. {mark * 8_000}"
    reply = reported("Lives in Rome", "I live in Rome")
    learned("I live in Rome.", "Fine.", reply)
    started = process_time()
    learned(said, "Fine.", reply)
    assert process_time() - started < 5
