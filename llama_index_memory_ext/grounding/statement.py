"""Tells whether the words around a quote say what a statement says, in earnest: not asked, supposed, denied or past."""

from __future__ import annotations

import re
from itertools import pairwise
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
from llama_index_memory_ext.search.tokenization import IRREGULAR, STOP_CHARACTERS, STOP_WORDS, term_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
# What is so since now, with the speaker.
_SINCE_NOW = re.compile(
    r"(?i)(?=.*(?:\b(?:i|we|me|my|ich|wir|mich|je|moi|yo|mi|eu)\b|我))"
    r".*(?:\b(?:now|no longer|any ?more|jetzt|mehr|maintenant|plus|ahora|ya no|adesso|agora)\b|了|现在|現在)"
)
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
_LEAST_QUOTED, _SHORTEST_VERB = 3, 3
_KANJI_OR_KATAKANA = re.compile("[\u3400-\u9fff]|[\u30a1-\u30fa\u30fc]+")
# 我妹妹是, 兄は
_KINS = re.compile(f"(?:^|我的?)[^我]{{0,3}}[{_KIN}][さはが是]{{0,3}}(?:[是在]|$)")


class _Passage(NamedTuple):
    """The sentences of a message in which a quote lies, and the others."""

    sentences: tuple[str, ...]
    others: tuple[str, ...]


class _Compared(NamedTuple):
    """The words of a clause and of a statement, the places of those they share, and the telling ones it misses."""

    words: list[str]
    said: list[str]
    places: list[int]
    missing: list[str]


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
    if reason := _mood_reason(statement, passage, may_presuppose=may_presuppose):
        return reason
    if _is_quoted(text, span):
        return "quoted"
    clauses = (clause for sentence in passage.sentences for clause in _CLAUSE.split(sentence))
    return next(filter(None, (_clause_reason(statement, clause) for clause in clauses)), "")


def _mood_reason(statement: str, passage: _Passage, *, may_presuppose: bool) -> str:
    """Whether the sentences of a quote only ask ("question") or suppose ("hypothesis") what a statement says."""
    if _is_told(statement, passage):
        return ""
    is_asked = bool(passage.sentences) and all(map(_is_question, passage.sentences))
    if is_asked and not (may_presuppose and _is_presupposed(statement, passage.sentences)):
        return "question"
    is_supposed = any(map(_is_supposed, passage.sentences)) and not _CONDITIONAL.search(statement)
    return "hypothesis" if is_supposed else ""


def _passage(text: str, span: Span) -> _Passage:
    inside, outside = list[str](), list[str]()
    for match in _SENTENCE.finditer(text):
        if match.group().strip():
            (inside if match.start() < span.end and span.start < match.end() else outside).append(match.group().strip())
    return _Passage(tuple(inside), tuple(outside))


def _is_told(statement: str, passage: _Passage) -> bool:
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
    if not telling or denies(statement):
        return False
    owned = (words for sentence in sentences for words in _owned(sentence, len(telling)))
    return any(all(_is_among(word, words) for word in telling) for words in owned)


def _owned(sentence: str, length: int) -> list[list[str]]:
    """So many words behind each "my" of a sentence."""
    words = words_in(sentence)
    return [words[i : i + length] for i, word in enumerate(words, 1) if word in _OWN]


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
    both = _compared(statement, clause)
    if not both.places:
        return ""
    is_past = _is_put_in_past(statement, clause)
    if _is_opposite(both, denies_it=denies(statement), is_past=is_past):
        return "negated"
    # The verb may be another form of the one that was said: "war" and "ist".
    if both.missing not in ([], both.said[:1]):
        return ""
    if is_past or _is_past(both.words, both.said):
        return "past"
    return "other_subject" if _has_other_subject(both.words, both.said) else ""


def _compared(statement: str, clause: str) -> _Compared:
    words, said = words_in(clause), words_in(statement)
    telling = [word for word in said if word not in LIGHT and not negates(word)]
    places = [i for i, word in enumerate(words) if _is_among(word, telling)]
    return _Compared(words, said, places, [word for word in telling if not _is_among(word, words)])


def _is_opposite(both: _Compared, *, denies_it: bool, is_past: bool) -> bool:
    """Whether a clause denies what a statement affirms, or affirms what it denies."""
    if denies_it:
        return not both.missing and not is_past and is_affirmed(both.words, both.places)
    return is_negated(both.words, both.places, both.missing, both.said[0])


def _is_put_in_past(statement: str, clause: str) -> bool:
    """Whether a clause says that something is over, and a statement does not: "used to", "no longer"."""
    return bool(_PAST.search(clause)) and not _PAST.search(statement)


def _is_among(word: str, others: Iterable[str]) -> bool:
    return any(_are_one(word, other) for other in others)


def _are_one(one: str, other: str) -> bool:
    return one == other or not keywords(one).isdisjoint(keywords(other)) or are_forms(one, other)


def sentences_at(text: str, span: Span) -> tuple[str, ...]:
    """The sentences of a text in which a part of it lies."""
    return _passage(text, span).sentences


def _is_past(words: Sequence[str], said: Sequence[str]) -> bool:
    """Whether a statement has in the present ("Lives in Rome") what a clause has in the past ("I lived in Rome")."""
    if was := _WAS.get(said[0]):
        return any(before in SPEAKERS and word in was for before, word in pairwise(words))
    places = _past_places(words, said[0])
    return bool(places) and all(i and words[i - 1] not in _AUXILIARIES for i in places)


def tells_change(text: str) -> bool:
    """Whether a text says that something of the speaker's has become otherwise.

    >>> [tells_change(text) for text in ("I have moved to Rome", "Call me Bo from now on", "I love Rome", "Hi there")]
    [True, True, False, False]
    """
    words = [word.removesuffix("'ve") for word in words_in(text) if word not in ("have", "had")]
    acted = (word for before, word in pairwise(words) if before in SPEAKERS and _may_be_past(word))
    return any(term_of(word) != word for word in acted) or bool(_SINCE_NOW.search(text))


def _past_places(words: Sequence[str], verb: str) -> list[int]:
    """Where words are forms of the past of a verb in the present: "lived" of "lives"."""
    if not verb.endswith("s") or len(verb) < _SHORTEST_VERB:
        return []
    # "need" is no form of the past.
    present = (verb, verb[:-1])
    return [i for i, word in enumerate(words) if _may_be_past(word) and word not in present and _are_one(word, verb)]


def _may_be_past(word: str) -> bool:
    return word.endswith("ed") or (word in IRREGULAR and not word.endswith("n"))


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
    """The same for a clause in a script without spaces."""
    telling = set(_KANJI_OR_KATAKANA.findall(statement)) - STOP_CHARACTERS - set(CHINESE_NEGATION.findall(statement))
    if not telling or any(part not in clause for part in telling):
        return ""
    before = clause[: min(map(clause.index, telling))]
    if _is_opposite_in_characters(statement, clause, before):
        return "negated"
    if _KINS.search(before) and set(_KIN).isdisjoint(statement):
        return "other_subject"
    return "past" if _is_put_in_past(statement, clause) else ""


def _is_opposite_in_characters(statement: str, clause: str, before: str) -> bool:
    """Whether a clause denies what a statement affirms, or the reverse, where "I" stands ``before`` the shared part."""
    for negation in (CHINESE_NEGATION, JAPANESE_NEGATION):
        if negation.search(clause) and not negation.search(statement):
            return True
    return bool(CHINESE_NEGATION.search(statement)) and not denies(clause) and before.endswith(("我", "我们"))
