"""Which questions ask about the user's past, and about which time of it."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.facts.history import period_asked
from llama_index_memory_ext.language.dates import Period

TODAY = date(2026, 11, 20)
EVER = Period(date.min, TODAY)


@pytest.mark.parametrize(
    "question",
    [
        "What did I use before?",
        "Could you tell me what I used before?",
        "Which editor did I use before Vim?",
        "What was my previous job?",
        "What did I use to drink?",
        "Where did we live back then?",
        "Where had I worked?",
        "Which language did I previously prefer?",
        "Wo habe ich früher gewohnt?",
        "Welches Auto hatte ich vorher?",
        "Wo wohnte ich damals?",
        "我以前住在哪里?",
        "我之前用什么编辑器\uff1f",
        "我曾经养过什么宠物?",
        "前はどこに住んでいましたか",
        "以前はどこで働いていましたか\uff1f",
        "前の仕事は何でしたか",
    ],
)
def test_words_for_the_past_ask_about_all_of_it(question: str) -> None:
    assert period_asked(question, TODAY) == EVER


@pytest.mark.parametrize(
    ("question", "start", "end"),
    [
        ("Where did I live in 2023?", "2023-01-01", "2023-12-31"),
        ("Who was my manager in March 2024?", "2024-03-01", "2024-03-31"),
        ("What did I use on May 3, 2023?", "2023-05-03", "2023-05-03"),
        ("Where was I on 2023-05-03T10:00?", "2023-05-03", "2023-05-03"),
        ("Where was I on 5/31/2023?", "2023-05-31", "2023-05-31"),
        ("Where was I on 31/05/2023?", "2023-05-31", "2023-05-31"),
        ("Where was I on 5/3/2023?", "2023-03-05", "2023-05-03"),
        ("Where did I live before 05-31-2023?", "0001-01-01", "2023-05-30"),
        ("Where have I lived since 2023-05?", "2023-05-01", "2026-11-20"),
        ("And 14.03.2024?", "2024-03-14", "2024-03-14"),
        ("我2023/5/3住在哪里?", "2023-05-03", "2023-05-03"),
        ("2023-05-03之前我住在哪里?", "0001-01-01", "2023-05-02"),
        ("What was I using in 2025-03?", "2025-03-01", "2025-03-31"),
        ("Where was I living in March?", "2026-03-01", "2026-03-31"),
        ("Where was I living in December?", "2025-12-01", "2025-12-31"),
        ("Remind me where I lived in 2019 and 2021", "2019-01-01", "2021-12-31"),
        ("Where did I live before 2020?", "0001-01-01", "2019-12-31"),
        ("Where have I lived since 2020?", "2020-01-01", "2026-11-20"),
        ("What did we use last year?", "2025-01-01", "2025-12-31"),
        ("Where did I work two years ago?", "2024-05-22", "2025-05-21"),
        ("And 2023?", "2023-01-01", "2023-12-31"),
        ("Wo habe ich 2023 gewohnt?", "2023-01-01", "2023-12-31"),
        ("Wo habe ich im März 2023 gewohnt?", "2023-03-01", "2023-03-31"),
        ("Wo war ich am 3.5.2023?", "2023-05-03", "2023-05-03"),
        ("Wo habe ich vor drei Monaten gearbeitet?", "2026-08-07", "2026-09-06"),
        ("2023年5月我住在哪里?", "2023-05-01", "2023-05-31"),
        ("我去年住在哪里?", "2025-01-01", "2025-12-31"),
        ("三年前我在哪里工作?", "2023-05-23", "2024-05-21"),
        ("2023年はどこに住んでいましたか", "2023-01-01", "2023-12-31"),
        ("先月は何を使っていた?", "2026-10-01", "2026-10-31"),
    ],
)
def test_a_time_that_is_named_is_the_time_asked_for(question: str, start: str, end: str) -> None:
    assert period_asked(question, TODAY) == Period(date.fromisoformat(start), date.fromisoformat(end))


@pytest.mark.parametrize(
    "question",
    [
        "",
        "Where do I live?",
        "What did you say?",
        "What did you say before?",
        "What did I say about tests?",
        "What did you tell me in 2023?",
        "As I said before, I like tea.",
        "What was your previous answer?",
        "Fix my previous message.",
        "Where were we?",
        "What did I do wrong?",
        "Was I clear?",
        "Read the file before you answer.",
        "What should I check before the release?",
        "What must I do before?",
        "Can I come earlier?",
        "What is the knife used to cut? I'm used to Vim.",
        "Who won the World Cup in 2018?",
        "How do I use Windows Server 2019?",
        "Is my router 10.5.20.19, and may I use 1.2.3?",
        "What is my plan for 2026? And for next March?",
        "What will I do in 2027?",
        "What's my last name?",
        "2023-05-01 12:00 ERROR failed\n" * 200,
        "Wo wohne ich?",
        "Kann ich früher gehen? Was soll ich vorher testen?",
        "Was habe ich gesagt?",
        "Welche Haustiere habe ich?",
        "我住在哪里?",
        "你之前说了什么?",
        "上线之前要检查什么?",
        "どこに住んでいますか",
        "寝る前に何をすればいい? 教えていただけますか",
        "リリース前に何を確認する?",
    ],
)
def test_no_other_question_asks_about_the_past(question: str) -> None:
    assert period_asked(question, TODAY) is None


def test_a_question_behind_a_long_paste_is_heard() -> None:
    assert period_asked("x " * 50_000 + "\nWhere did I live in 2023?", TODAY) == Period(
        date(2023, 1, 1), date(2023, 12, 31)
    )


WORDS = st.sampled_from(
    str.split(
        "did I was my before ago two 99 years last year 2023 31 February 13.13.2024 May 2月 年 前 以前 vor seit ? ."
    )
)


@given(st.text() | st.lists(WORDS, max_size=12).map(" ".join), st.dates(date(1950, 1, 1), date(2100, 1, 1)))
def test_any_text_can_be_asked(text: str, today: date) -> None:
    period = period_asked(text, today)
    assert period is None or period.start <= period.end
