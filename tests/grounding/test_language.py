"""In which language a text is."""

# ruff: noqa: RUF001 - texts come in many scripts, with their own marks

import pytest

from llama_index_memory_ext.grounding.language import language_of


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The user is a baker from Porto.", "en"),
        ("Der Nutzer sucht eine Wohnung in Leipzig.", "de"),
        ("Пользователь ищет ноутбук.", "ru"),
        ("用户Ann计划去里斯本旅行，住在Hotel Tejo附近。", "zh"),
        ("ユーザーは京都出張の宿を探している。", "ja"),
        ("사용자는 제주도 여행을 준비하고 있다.", "ko"),
    ],
)
def test_a_sentence_shows_its_language(text: str, language: str) -> None:
    assert language_of(text) == language


@pytest.mark.parametrize("text", ["", "Hi Logan!", "42 502 1.29 8080", "你好！", "..."])
def test_a_few_words_show_no_language(text: str) -> None:
    assert language_of(text) is None
