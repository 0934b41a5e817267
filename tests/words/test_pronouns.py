"""A question with "I" asks for the user's messages, and a question with "you" for the assistant's."""

from __future__ import annotations

import pytest

from llama_index_memory_ext.words import word_lists
from llama_index_memory_ext.words.pronouns import speaker_asked_for
from llama_index_memory_ext.words.tokens import LANGUAGES, languages_of


@pytest.mark.parametrize(
    "question",
    [
        "Where do I live?",
        "Can you tell me when I moved?",
        "What did I tell you about my brother?",
        "Remind me of my new address.",
        "Do you remember what I'm allergic to?",
        "Wo wohne ich?",
        "Kannst du mir sagen, wie mein Hund heißt?",
        "Où est-ce que j'habite maintenant, et où travaille ma sœur ?",
        "¿Cómo se llama mi perro?",
        "Come si chiama il mio cane?",
        "Onde fica a minha casa?",
        "Hoe heet mijn hond?",
        "Vad heter min hund?",
        "Hvad hedder min hund?",
        "Hva heter hunden min?",
        "Mikä on minun koirani nimi?",
        "Как зовут мою собаку?",
        "你记得我住在哪里吗?",
        "告诉我,我的狗叫什么?",
        "私はどこに住んでいますか",
    ],
)
def test_a_question_with_i_asks_for_the_users_messages(question: str) -> None:
    assert speaker_asked_for(question, languages_of(question)) == "user"


@pytest.mark.parametrize(
    "question",
    [
        "What did you recommend?",
        "Which restaurant was your favourite?",
        "What did you tell me about the museum?",
        "Was hast du mir empfohlen?",
        "Que m'as-tu conseillé pour le dîner ?",
        "¿Qué me recomendaste para la cena?",
        "Cosa mi hai consigliato per la cena?",
        "O que você me recomendou para o jantar?",
        "Wat heb je mij aangeraden voor het eten?",
        "Vad tyckte du om den där boken?",
        "Hvad synes du om den bog?",
        "Hva syntes du om den boken?",
        "Mitä sinä suosittelit minulle?",
        "Что ты мне посоветовал?",
        "你推荐了哪家餐厅?",
        "あなたのおすすめは?",
    ],
)
def test_a_question_with_you_asks_for_the_assistants_messages(question: str) -> None:
    assert speaker_asked_for(question, languages_of(question)) == "assistant"


@pytest.mark.parametrize(
    "question",
    [
        "",
        "?",
        "Where does Emma live?",
        "Can you tell me where Emma lives?",
        "Did you like my brother?",
        "Weißt du noch, wo Emma wohnt?",
        "你能告诉我价格吗?",
        "\U0001f600",
    ],
)
def test_a_question_with_both_or_neither_asks_for_all_messages(question: str) -> None:
    assert speaker_asked_for(question, languages_of(question)) == ""


@pytest.mark.parametrize("code", LANGUAGES)
def test_each_language_has_pronouns_of_both_persons(code: str) -> None:
    """A word of one list is in no other list of the language."""
    first, second = word_lists("pronouns")[code]
    assert first
    assert second
    assert set(first).isdisjoint(second)
