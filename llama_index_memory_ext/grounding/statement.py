"""Tells whether the words around a quote say what a statement says, in earnest: not asked, supposed, denied or past."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.grounding.language import script_of
from llama_index_memory_ext.grounding.negation import (
    ARTICLES,
    CHINESE_NEGATION,
    JAPANESE_NEGATION,
    LIGHT,
    SPEAKERS,
    denies,
    is_affirmed,
    is_negated,
    negates,
    words_in,
)
from llama_index_memory_ext.grounding.quotes import TOKEN
from llama_index_memory_ext.grounding.words import are_forms, keywords, shared
from llama_index_memory_ext.search.tokenization import IRREGULAR, STOP_CHARACTERS, STOP_WORDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_memory_ext.grounding.quotes import Span

_SENTENCE = re.compile(r"[^.!?\u3002\uff01\uff1f\n]*(?:[.!?\u3002\uff01\uff1f]+|\n|$)")
_QUESTION = re.compile(r"[?\uff1f]|か。?\s*$")
_CONDITIONAL = re.compile(r"(?i)\bwould\b|\bw\u00fcrde\b")
_CLAUSE = re.compile(r"[,;:\uff0c\u3001\uff1b\u2013\u2014]| - |\b(?:but|aber|though)\b|但|けど")
# Function words, of which each language has few.
_SUPPOSED = re.compile(
    r"(?i)^\W*(?:suppose|supposing|imagine|if|what if|angenommen|stell dir vor)\b"
    r"|\b(?:if i were|if i had|would happen if|i wish (?:i|we))\b"
    r"|^\W*si (?:yo )?\w+(?:iera|ara|era|ese)\b|^\W*si j['\u2019]\w+ais\b"
    r"|\b(?:w\u00e4re|h\u00e4tte|k\u00f6nnte) ich\b|\bwenn ich .{0,30}\bw\u00e4re\b|如果|要是|假如|假设|もし|たら、"
)
_PAST = re.compile(
    r"(?i)\bused to\b|\bno longer\b|\buntil (?:19|20)\d\d\b|\bfr\u00fcher\b|\bdamals\b|以前|曾经|昔は|かつて"
    "|[てで]いました"
)
# After these a form of the past is none: "I have lived", "is loved".
_AUXILIARIES = frozenset(str.split("have has ve i've we've be been is are was were am being get got"))
_POSSESSIVES = frozenset(
    str.split(
        "my our his her their mein meine unser unsere sein seine ihr ihre mi mis mon ma mes meu minha mio mia mijn"
    )
)
# "to be" has no stem.
_WAS = {"is": ("was", "were"), "ist": ("war", "waren")}
_MOST_SUBJECT = 4
# The last character of the words for relatives and friends, who have a subject of their own.
_KIN = "爸妈媽哥弟姐妹爷奶叔姨姑舅父母夫妻婆兄姉儿子女娘友"
_HAS = frozenset(["hat", "tiene"])
_OWN = frozenset(str.split("my our mein meine meinen meinem meiner unser unsere unseren mis mes"))
_OTHERS = frozenset(str.split("you he she they du er sie"))
_MARKS = (("\u201c", "\u201d"), ("\u201e", "\u201c"), ("\u300c", "\u300d"), ('"', '"'), ("'", "'"))
_LEAST_QUOTED = 3
_KANJI_OR_KATAKANA = re.compile("[\u3400-\u9fff]|[\u30a1-\u30fa\u30fc]+")


# 我妹妹是, 兄は
_KINS = re.compile(f"(?:^|我的?)[^我]{{0,3}}[{_KIN}][さはが是]{{0,3}}(?:[是在]|$)")


class Passage(NamedTuple):
    """The sentences of a message in which a quote lies, and the others."""

    sentences: tuple[str, ...]
    others: tuple[str, ...]


def unsaid_reason(statement: str, text: str, span: Span, *, may_presuppose: bool = True) -> str:
    """Why the words around a quote do not say a statement; "" if they may say it.

    ``may_presuppose``: "What do my two cats eat?" says that there are two cats.

    >>> from llama_index_memory_ext.grounding.quotes import find_quote
    >>> text = "I don't like coffee. Should I learn Rust?"
    >>> unsaid_reason("Likes coffee", text, find_quote("like coffee", text))
    'negated'
    >>> unsaid_reason("Is learning Rust", text, find_quote("learn Rust", text))
    'question'
    """
    passage = _passage(text, span)
    if not _is_told(statement, passage):
        is_presupposed = may_presuppose and _is_presupposed(statement, passage.sentences)
        if passage.sentences and all(map(_is_question, passage.sentences)) and not is_presupposed:
            return "question"
        if any(map(_is_supposed, passage.sentences)) and not _CONDITIONAL.search(statement):
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


def _is_presupposed(statement: str, sentences: Sequence[str]) -> bool:
    """Whether a question has all telling words of a statement as something of the user's own: "my two cats"."""
    telling = [word for word in words_in(statement) if word not in LIGHT and word not in _HAS]
    for sentence in sentences if telling and not denies(statement) else ():
        words = words_in(sentence)
        owned = [words[i + 1 : i + 1 + len(telling)] for i, word in enumerate(words) if word in _OWN]
        if any(all(any(_are_one(word, other) for other in some) for word in telling) for some in owned):
            return True
    return False


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
    words, said = words_in(clause), words_in(statement)
    telling = [word for word in said if word not in LIGHT and not negates(word)]
    places = [i for i, word in enumerate(words) if any(_are_one(word, other) for other in telling)]
    missing = [word for word in telling if not any(_are_one(word, other) for other in words)]
    if not places:
        return ""
    is_past = _PAST.search(clause) and not _PAST.search(statement)
    if denies(statement):
        is_opposite = not missing and not is_past and is_affirmed(words, places)
    else:
        is_opposite = is_negated(words, places, missing, said[0])
    if is_opposite:
        return "negated"
    # The verb may be another form of the one that was said: "war" and "ist".
    if missing and missing != said[:1]:
        return ""
    if is_past or _is_past(words, said):
        return "past"
    return "other_subject" if _has_other_subject(words, said) else ""


def _are_one(one: str, other: str) -> bool:
    return one == other or not keywords(one).isdisjoint(keywords(other)) or are_forms(one, other)


def sentences_at(text: str, span: Span) -> tuple[str, ...]:
    """The sentences of a text in which a part of it lies."""
    return _passage(text, span).sentences


def _is_past(words: Sequence[str], said: Sequence[str]) -> bool:
    """Whether a statement has in the present ("Lives in Rome") what a clause has in the past ("I lived in Rome")."""
    verb = said[0]
    if was := _WAS.get(verb):
        return any(word in was and i and words[i - 1] in SPEAKERS for i, word in enumerate(words))
    if not verb.endswith("s") or len(verb) < _LEAST_QUOTED:
        return False
    # "need" is no form of the past.
    same = [i for i, word in enumerate(words) if word not in (verb, verb[:-1]) and _are_one(word, verb)]
    forms = [i for i in same if words[i].endswith("ed") or (words[i] in IRREGULAR and not words[i].endswith("n"))]
    return bool(forms) and all(i and words[i - 1] not in _AUXILIARIES for i in forms)


def _has_other_subject(words: Sequence[str], said: Sequence[str]) -> bool:
    """Whether a statement copies what a clause says of somebody else: "Is a surgeon" of "my husband is a surgeon"."""
    plain, wanted = ([word for word in some if word not in ARTICLES] for some in (words, said))
    for i in range(1, len(plain) - len(wanted) + 1):
        if all(_are_one(*pair) for pair in zip(plain[i : i + len(wanted)], wanted, strict=True)):
            return plain[i - 1] in _OTHERS or _is_somebodys(plain[:i], is_same=plain[i] == wanted[0])
    return False


def _is_somebodys(subject: Sequence[str], *, is_same: bool) -> bool:
    """Whether words end in a possessive and a noun; a longer noun ("my best friend") needs the very verb after it."""
    for length, word in enumerate(reversed(subject[-_MOST_SUBJECT if is_same else -2 :])):
        if word in _POSSESSIVES:
            return length > 0
        if word in STOP_WORDS:
            return False
    return False


def _reason_in_characters(statement: str, clause: str) -> str:
    telling = {part for part in _KANJI_OR_KATAKANA.findall(statement) if part not in STOP_CHARACTERS}
    telling -= set(CHINESE_NEGATION.findall(statement))
    if not telling or any(part not in clause for part in telling):
        return ""
    first = min(clause.index(part) for part in telling)
    for negation in (CHINESE_NEGATION, JAPANESE_NEGATION):
        if negation.search(clause) and not negation.search(statement):
            return "negated"
    if CHINESE_NEGATION.search(statement) and not denies(clause) and clause[:first].endswith(("我", "我们")):
        return "negated"
    if _KINS.search(clause[:first]) and not any(character in statement for character in _KIN):
        return "other_subject"
    return "past" if _PAST.search(clause) and not _PAST.search(statement) else ""
