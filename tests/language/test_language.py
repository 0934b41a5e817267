"""In which language a text is, and whether two are in different ones."""

# ruff: noqa: RUF001 - texts come in many scripts, with their own marks

from __future__ import annotations

import pytest

from llama_index_memory_ext.language.stems import is_translation, language_of, script_of


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("I live here", "latin"),
        ("我用Python写代码", "cjk"),
        ("저는 서울에 살아요", "cjk"),
        ("Я из Москвы", "other"),
        ("גרה בברלין", "other"),
        ("12:30", ""),
        ("", ""),
    ],
)
def test_the_script_is_that_of_most_letters(text: str, script: str) -> None:
    assert script_of(text) == script


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("I moved to the city last year", "en"),
        ("Ich wohne seit drei Jahren in Köln", "de"),
        ("Je suis infirmière à Lyon", "fr"),
        ("Tengo tres hermanos y una hermana", "es"),
        ("Der Nutzer sucht eine Wohnung in Leipzig.", "de"),
        ("Пользователь ищет ноутбук.", "ru"),
        ("我在一家银行上班", "zh"),
        ("用户Ann计划去里斯本旅行，住在Hotel Tejo附近。", "zh"),
        ("犬を飼っています", "ja"),
        ("저는 서울에 살아요", "ko"),
        ("", None),
        ("Hi Logan!", None),
        ("42 502 1.29 8080", None),
        ("你好！", None),
    ],
)
def test_a_sentence_tells_its_language_and_a_word_does_not(text: str, code: str | None) -> None:
    assert language_of(text) == code


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("Has two dogs", "Ich habe zwei Hunde.", True),
        ("Is a vegetarian", "我是素食者。", True),
        ("Likes tea", "I like tea", False),
        ("Hat zwei Hunde", "Ich habe zwei Hunde.", False),
        ("猫が好き", "猫が好きです", False),
        ("Likes tea", "12:30", False),
    ],
)
def test_a_translation_is_told_where_it_is_sure(one: str, other: str, expected: bool) -> None:
    assert is_translation(one, other) is expected
    assert is_translation(other, one) is expected
