"""Whether the words around a quote say a statement in earnest, of the user and of now."""

from __future__ import annotations

import pytest

from llama_index_memory_ext.facts.checks import denies, unsaid_reason
from llama_index_memory_ext.language.quotes import Span, find_quote


def reason(statement: str, text: str, quote: str = "") -> str:
    span = find_quote(quote or text, text)
    assert span is not None
    return unsaid_reason(statement, text, span)


@pytest.mark.parametrize(
    ("statement", "text", "expected"),
    [
        ("Likes coffee", "I don't like coffee.", "negated"),
        ("Eats gluten", "I can't eat gluten.", "negated"),
        ("Has a car", "I don't have a car.", "negated"),
        ("Hat ein Auto", "Ich habe kein Auto.", "negated"),
        ("Raucht", "Ich rauche nicht.", "negated"),
        ("Trinkt Bier", "Bier trinke ich nie.", "negated"),
        ("Come carne", "No como carne.", "negated"),
        ("Fume", "Je ne fume pas.", "negated"),
        ("吃辣", "我不吃辣。", "negated"),
        ("肉を食べる", "肉を食べません。", "negated"),
        ("Does not like cilantro", "I like cilantro a lot.", "negated"),
        ("不喜欢猫", "我喜欢猫。", "negated"),
        ("Is learning Rust", "Should I learn Rust?", "question"),
        ("学日语", "我应该学日语吗?", "question"),
        ("Has a dog", "If I had a dog, I would walk more.", "hypothesis"),
        ("Owns a boat", "I wish I owned a boat.", "hypothesis"),
        ("Vive en Madrid", "Si viviera en Madrid, iría al Prado.", "hypothesis"),
        ("住在巴黎", "如果我有钱,我就住在巴黎。", "hypothesis"),
        ("Lives in Leeds", "I lived in Leeds as a child.", "past"),
        ("Plays football", "I used to play football.", "past"),
        ("Is a smoker", "I was a smoker.", "past"),
        ("Ist Student", "Ich war Student.", "past"),
        ("大阪に住んでいる", "大阪に住んでいました。", "past"),
        ("Is a pilot", "My brother is a pilot.", "other_subject"),
        ("Lives in Toronto", "My best friend lives in Toronto.", "other_subject"),
        ("Es médico", "Mi padre es médico.", "other_subject"),
        ("是律师", "我妹妹是律师。", "other_subject"),
        ("医者である", "兄は医者です。", "other_subject"),
    ],
)
def test_what_is_asked_supposed_denied_past_or_of_others_does_not_say_it(
    statement: str, text: str, expected: str
) -> None:
    assert reason(statement, text) == expected


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("Does not eat pork", "I don't eat pork."),
        ("Avoids gluten", "I don't eat gluten."),
        ("Hates olives", "I don't like olives."),
        ("Likes tea", "I like tea but not coffee."),
        ("Trinkt Tee", "Ich trinke Tee und keinen Kaffee."),
        ("Cycles to work", "I don't have a car so I cycle to work."),
        ("Needs glasses", "I can't read without glasses."),
        ("Does not drink alcohol", "I avoid drinking alcohol."),
        ("Needs a vegan recipe", "I need a vegan recipe, can you help?"),
        ("喜欢茶", "我不喝咖啡,喜欢茶。"),
        ("Lived in Leeds", "I lived in Leeds as a child."),
        ("Has lived in Leeds since 2010", "I have lived in Leeds since 2010."),
        ("Husband is a surgeon", "My husband is a surgeon."),
        ("Loves hiking", "My wife and I love hiking."),
        ("Native language is Finnish", "My native language is Finnish."),
        ("女儿喜欢画画", "我女儿喜欢画画。"),
        ("妻と京都に住んでいる", "妻と京都に住んでいます。"),
        ("Has two kids", "I have two kids, how much tax do I pay?"),
        ("Has two cats", "What do my two cats eat?"),
        ("Hat eine Katze", "Was darf meine Katze essen?"),
        ("Would move to Spain", "If I could, I would move to Spain."),
        ('Calls the dog "Captain"', 'We call our dog "Captain".'),
    ],
)
def test_what_is_said_is_said(statement: str, text: str) -> None:
    assert reason(statement, text) == ""


def test_a_quotation_is_somebody_elses() -> None:
    assert reason("Loves jazz", "He said: 'I love jazz'.", "I love jazz") == "quoted"
    assert reason("Hates Mondays", "> I hate Mondays\nHe wrote that.", "I hate Mondays") == "quoted"


def test_a_question_about_what_one_has_ends_nothing() -> None:
    text = "Should I sell my car?"
    assert unsaid_reason("Has a car", text, Span(0, len(text), 1.0)) == ""
    assert unsaid_reason("Has a car", text, Span(0, len(text), 1.0), may_presuppose=False) == "question"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("No.", True), ("dont", True), ("Ich mag keinen Fisch", True), ("不喝酒", True), ("いいえ", True), ("Yes", False)],
)
def test_a_denial_is_a_word_a_form_or_a_character(text: str, expected: bool) -> None:
    assert denies(text) is expected
