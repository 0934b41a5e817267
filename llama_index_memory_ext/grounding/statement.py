"""Tells whether the words around a quote say what a statement says, in earnest: not asked, supposed, denied or past."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.grounding.language import script_of
from llama_index_memory_ext.grounding.quotes import TOKEN
from llama_index_memory_ext.grounding.words import are_forms, keywords, shared
from llama_index_memory_ext.search.tokenization import IRREGULAR, STOP_CHARACTERS, STOP_WORDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.grounding.quotes import Span

_SENTENCE = re.compile(r"[^.!?\u3002\uff01\uff1f\n]*(?:[.!?\u3002\uff01\uff1f]+(?!\w)|\n|$|[.](?=\w))")
_QUESTION = re.compile(r"[?\uff1f]|か。?\s*$")
_CLAUSE = re.compile(r"[,;:\uff0c\u3001\uff1b\u2013\u2014]| - |\b(?:but|aber|though)\b|但|けど")
# Function words, of which each language has few.
_SUPPOSED = re.compile(
    r"(?i)^\W*(?:suppose|supposing|imagine|if|what if|angenommen|stell dir vor)\b"
    r"|\b(?:if i were|if i had|would happen if)\b"
    r"|\b(?:w\u00e4re|h\u00e4tte|k\u00f6nnte) ich\b|\bwenn ich .{0,30}\bw\u00e4re\b|如果|要是|假如|假设|もし|たら、"
)
_NEGATIONS = frozenset(
    str.split(
        "not no nope never nor neither without cannot stopped quit nein nicht kein keine keinen keinem keiner nie"
    )
)
_CHINESE_NEGATION, _JAPANESE_NEGATION = re.compile("[不没沒别別未无無]"), re.compile("ません|ない|なく|なかった|ず$")
_PAST = re.compile(
    r"(?i)\bused to\b|\bno longer\b|\buntil (?:19|20)\d\d\b|\bfr\u00fcher\b|\bdamals\b|以前|曾经|昔は|かつて"
)
# After these a form of the past is none: "I have lived", "is loved".
_AUXILIARIES = frozenset(str.split("have has ve i've we've be been is are was were am being get got"))
_ARTICLES = frozenset(str.split("a an the ein eine einen einem einer der die das den dem"))
_POSSESSIVES = frozenset(str.split("my our his her their mein meine unser unsere sein seine ihr ihre"))
_OTHERS = frozenset(str.split("you he she they du er sie"))
_MARKS = (("\u201c", "\u201d"), ("\u201e", "\u201c"), ("\u300c", "\u300d"), ('"', '"'), ("'", "'"))
_LEAST_QUOTED, _NEAR = 3, 2
_KANJI_OR_KATAKANA = re.compile("[\u3400-\u9fff]|[\u30a1-\u30fa\u30fc]+")


class Passage(NamedTuple):
    """The sentences of a message in which a quote lies, and the others."""

    sentences: tuple[str, ...]
    others: tuple[str, ...]


def unsaid_reason(statement: str, text: str, span: Span) -> str:
    """Why the words around a quote do not say a statement; "" if they may say it.

    >>> from llama_index_memory_ext.grounding.quotes import find_quote
    >>> text = "I don't like coffee. Should I learn Rust?"
    >>> unsaid_reason("Likes coffee", text, find_quote("like coffee", text))
    'negated'
    >>> unsaid_reason("Is learning Rust", text, find_quote("learn Rust", text))
    'question'
    """
    passage = _passage(text, span)
    if all(map(_is_question, passage.sentences)) and not _is_told(statement, passage):
        return "question"
    if any(map(_is_supposed, passage.sentences)) and not _is_told(statement, passage):
        return "hypothesis"
    if _is_quoted(text, span):
        return "quoted"
    for sentence in passage.sentences:
        for clause in _CLAUSE.split(sentence):
            if reason := _clause_reason(statement, clause):
                return reason
    return ""


def _passage(text: str, span: Span) -> Passage:
    inside, outside = list[str](), list[str]()
    for match in _SENTENCE.finditer(text):
        if match.group().strip():
            (inside if match.start() < span.end and span.start < match.end() else outside).append(match.group().strip())
    return Passage(tuple(inside), tuple(outside))


def _is_told(statement: str, passage: Passage) -> bool:
    """Whether a part of the message that neither asks nor supposes anything has a telling word of a statement."""
    told = list[str]()
    for sentence in (*passage.sentences, *passage.others):
        # "I have two kids, how much tax do I pay?": only the last part is asked.
        parts = _CLAUSE.split(sentence)[:-1] if _is_question(sentence) else [sentence]
        told += [] if _is_supposed(sentence) else parts
    return bool(shared(keywords(statement), keywords(" ".join(told))))


def _is_question(sentence: str) -> bool:
    return bool(_QUESTION.search(sentence[-2:]))


def _is_supposed(sentence: str) -> bool:
    return bool(_SUPPOSED.search(sentence))


def _is_quoted(text: str, span: Span) -> bool:
    """Whether a quote lies within quotation marks, or in a line of a mail that is answered."""
    if text[text.rfind("\n", 0, span.start) + 1 :].startswith(">"):
        return True
    if len(TOKEN.findall(span.of(text))) < _LEAST_QUOTED:
        return False
    return any(_is_between(text, span, *marks) for marks in _MARKS)


def _is_between(text: str, span: Span, opening: str, closing: str) -> bool:
    start = text.rfind(opening, 0, span.start + 1)
    is_opening = start >= 0 and not text[max(start - 1, 0) : start].isalnum()
    end = text.find(closing, max(span.end - 1, start + 1))
    return is_opening and end >= 0 and closing not in text[start + 1 : span.end - 1]


def _clause_reason(statement: str, clause: str) -> str:
    """Why a clause that has the telling words of a statement says something else; "" also for any other clause."""
    if script_of(clause) == "cjk":
        return _reason_in_characters(statement, clause)
    words, said = _words_of(clause), _words_of(statement)
    telling = [word for word in said if word not in STOP_WORDS and word not in _NEGATIONS]
    places = [i for i, word in enumerate(words) if any(_are_one(word, other) for other in telling)]
    missing = [word for word in telling if not any(_are_one(word, other) for other in words)]
    if not places:
        return ""
    if not denies(statement) and _is_negated(words, places, missing):
        return "negated"
    # The verb may be another form of the one that was said: "war" and "ist".
    if missing and missing != said[:1]:
        return ""
    if (_PAST.search(clause) and not _PAST.search(statement)) or _is_past(words, said):
        return "past"
    return "other_subject" if _has_other_subject(words, said) else ""


def _words_of(text: str) -> list[str]:
    return [match.group().replace("\u2019", "'") for match in TOKEN.finditer(text.lower())]


def _are_one(one: str, other: str) -> bool:
    return one == other or keywords(one) == keywords(other) != frozenset() or are_forms(one, other)


def sentences_at(text: str, span: Span) -> tuple[str, ...]:
    """The sentences of a text in which a part of it lies."""
    return _passage(text, span).sentences


def denies(text: str) -> bool:
    """Whether a text has a negation: a word, a form such as "don't", or a character.

    >>> denies("Does not drink"), denies("No."), denies("不喝酒"), denies("Drinks tea")
    (True, True, True, False)
    """
    if script_of(text) == "cjk":
        return bool(_CHINESE_NEGATION.search(text) or _JAPANESE_NEGATION.search(text) or text.startswith("いいえ"))
    return any(map(_negates, _words_of(text)))


def _negates(word: str) -> bool:
    return word in _NEGATIONS or word.endswith("n't") or (word.endswith("nt") and word in STOP_WORDS)


def _is_negated(words: Sequence[str], places: Sequence[int], missing: Sequence[str]) -> bool:
    """Whether what a statement shares with a clause is denied there.

    The negation stands among the shared words or close before them; where a word of the statement is missing, right
    before one of them.
    """
    if missing:
        return len(missing) == 1 and any(i and _negates(words[i - 1]) for i in places)
    return any(map(_negates, words[max(places[0] - _NEAR, 0) : places[-1]]))


def _is_past(words: Sequence[str], said: Sequence[str]) -> bool:
    """Whether a statement has in the present ("Lives in Rome") what a clause has in the past ("I lived in Rome")."""
    verb = said[0]
    if verb == "is":
        return any(word in ("was", "were") and words[i - 1 : i] in (["i"], ["we"]) for i, word in enumerate(words))
    if not verb.endswith("s") or len(verb) < _LEAST_QUOTED:
        return False
    same = [i for i, word in enumerate(words) if word != verb and _are_one(word, verb)]
    forms = [i for i in same if words[i].endswith("ed") or (words[i] in IRREGULAR and not words[i].endswith("n"))]
    return bool(forms) and all(i and words[i - 1] not in _AUXILIARIES for i in forms)


def _has_other_subject(words: Sequence[str], said: Sequence[str]) -> bool:
    """Whether a statement copies what a clause says of somebody else: "Is a surgeon" of "my husband is a surgeon"."""
    plain, wanted = ([word for word in some if word not in _ARTICLES] for some in (words, said))
    for i in range(1, len(plain) - len(wanted) + 1):
        if all(_are_one(*pair) for pair in zip(plain[i : i + len(wanted)], wanted, strict=True)):
            is_somebodys = i > 1 and plain[i - 2] in _POSSESSIVES and plain[i - 1] not in STOP_WORDS
            return is_somebodys or plain[i - 1] in _OTHERS
    return False


def _reason_in_characters(statement: str, clause: str) -> str:
    telling = {part for part in _KANJI_OR_KATAKANA.findall(statement) if part not in STOP_CHARACTERS}
    if not telling or any(part not in clause for part in telling):
        return ""
    for negation in (_CHINESE_NEGATION, _JAPANESE_NEGATION):
        if negation.search(clause) and not negation.search(statement):
            return "negated"
    return "past" if _PAST.search(clause) and not _PAST.search(statement) else ""
