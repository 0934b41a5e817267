"""Questions in many languages find the words that are meant, whatever form they have."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from llama_index_memory_ext import TfidfRanker
from llama_index_memory_ext.fact import Fact
from llama_index_memory_ext.search.tfidf import Document
from llama_index_memory_ext.words.tokens import languages_of
from tests.facts.ranked import rank
from tests.words import LANGUAGES, cases, rows


def known(lines: list[str]) -> tuple[list[str], dict[str, int]]:
    """Return the facts of a language, and the questions with the number of the fact that each is about."""
    facts = [line for line in lines if not line[0].isdigit()]
    return facts, {line[2:]: int(line[0]) for line in lines if line[0].isdigit()}


KNOWN = {code: known(lines) for code, lines in cases("questions.txt").items()}
QUESTIONS = [
    (code, question) for code, (_, questions) in KNOWN.items() for question in questions
]


def facts_in(*codes: str) -> list[Fact]:
    return [Fact(content=one) for code in codes for one in KNOWN[code][0]]


def first_of(
    facts: list[Fact], question: str, languages: Sequence[str] | None = None
) -> str:
    ranker = TfidfRanker(languages=languages)
    ranker.add(Document(fact.id, fact.content) for fact in facts)
    return rank(facts, question, ranker=ranker)[0].fact.content


@pytest.mark.parametrize(("code", "question"), QUESTIONS)
def test_a_question_finds_the_fact_with_other_forms_of_its_words(
    code: str, question: str
) -> None:
    """So it does among facts in all languages, and if the language is fixed."""
    facts = facts_in(code)
    wanted = facts[KNOWN[code][1][question]].content
    assert first_of(facts, question) == wanted
    assert first_of(facts, question, languages=[code]) == wanted


@pytest.mark.parametrize(
    ("code", "question"),
    [
        ("de", "Wo wohne ich?"),
        ("en", "What is my cat called?"),
        ("fr", "Où est-ce que j'habite ?"),
    ],
)
def test_facts_in_several_languages_stand_side_by_side(
    code: str, question: str
) -> None:
    known = facts_in("en", "fr", "de")
    assert first_of(known, question) == facts_in(code)[KNOWN[code][1][question]].content


@pytest.mark.parametrize(
    "question",
    [
        "Wer wohnt in München?",
        "Who lives in Munchen?",
        "Qui habite à Muenchen ?",
        "München",
    ],
)
def test_names_and_numbers_are_found_across_languages(question: str) -> None:
    facts = [*facts_in("de"), Fact(content="Mag die 4711")]
    assert "München" in first_of(facts, question) or "Muenchen" in question
    assert first_of(facts, "What was 4711?") == "Mag die 4711"


@pytest.mark.parametrize("name", ["3", "7", "B", "x"])
def test_a_name_of_one_character_is_found(name: str) -> None:
    facts = [Fact(content=f"The code of flat {other} is lost") for other in "123BCDX78"]
    question = f"What is the code of flat {name}?"
    assert first_of(facts, question) == f"The code of flat {name.upper()} is lost"


def test_the_documents_tell_the_language_of_a_question_without_function_words() -> None:
    facts = [*facts_in("de"), Fact(content="Renoviert alte Häuser")]
    assert first_of(facts, "Haus?") == "Renoviert alte Häuser"


def test_function_words_find_nothing() -> None:
    facts = [
        Fact(content="Ich weiß nicht, ob ich das bin"),
        Fact(content="Wohnt in Bonn"),
    ]
    assert first_of(facts, "Wo wohne ich?") == "Wohnt in Bonn"
    ranker = TfidfRanker()
    ranker.add(Document(fact.id, fact.content) for fact in facts)
    assert not ranker.similarities("Was bin ich und wo?")


@pytest.mark.parametrize(
    ("fact", "same", "other"),
    [*rows("whole words", LANGUAGES), ("Renoviert alte Häuser", "Häuser?", "Haus?")],
)
def test_a_language_without_a_stemmer_is_found_by_whole_words(
    fact: str, same: str, other: str
) -> None:
    """So are documents that are too few to tell their language."""
    ranker = TfidfRanker()
    ranker.add([Document("1", fact)])
    assert ranker.similarities(same)
    assert not ranker.similarities(other)


def test_a_script_without_spaces_is_found_by_pairs_of_characters() -> None:
    ranker = TfidfRanker(languages=["de"])
    ranker.add([Document("th", "อาศัยอยู่ในกรุงเทพ"), Document("zh", "住在上海")])
    assert max(ranker.similarities("กรุงเทพเป็นอย่างไร")) == "th"
    assert set(ranker.similarities("上海怎么样?")) == {"zh"}


@pytest.mark.parametrize(
    ("codes", "text"), [("none", ""), *rows("question", LANGUAGES)]
)
def test_the_language_of_a_question_is_told_by_its_function_words(
    text: str, codes: str
) -> None:
    assert (" ".join(languages_of(text)) or "none") == codes


def test_fixed_languages_are_the_only_ones() -> None:
    assert languages_of("Wo wohne ich?", ("en", "fr")) == ("en", "fr")
    assert languages_of("Hvor bor jeg?", ("de", "no")) == ("no",)


@pytest.mark.parametrize("codes", [["xx"], ["de", "zh"], [], "german"])
def test_a_language_that_is_not_known_is_refused(codes: list[str]) -> None:
    with pytest.raises(
        ValueError,
        match=r"languages: da, de, en, es, fi, fr, it, nl, no, pt, ru, sv; got .*Pass None to detect",
    ):
        TfidfRanker(languages=codes)
