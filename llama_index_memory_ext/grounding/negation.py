"""Tells whether a text denies something, and whether a clause denies what a statement says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from unicodedata import normalize

from llama_index_memory_ext.grounding.language import script_of
from llama_index_memory_ext.grounding.quotes import TOKEN
from llama_index_memory_ext.search.tokenization import STOP_WORDS

if TYPE_CHECKING:
    from collections.abc import Sequence

# Function words, of which each language has few.
_NEGATIONS = frozenset(
    str.split(
        "not no nope never nor neither without cannot hardly stopped quit nein nicht kein keine keinen keinem keiner"
        " nie niemals ne pas jamais nunca jam\u00e1s n\u00e3o non geen niet nooit \u043d\u0435 \u043d\u0435\u0442"
    )
)
CHINESE_NEGATION, JAPANESE_NEGATION = re.compile("[不没沒别別未无無]"), re.compile("ません|ない|なく|なかった|ず$")
ARTICLES = frozenset(str.split("a an the ein eine einen einem einer der die das den dem"))
_WITHOUT = frozenset(["without"])
# Who speaks of themselves: what is denied stands behind.
SPEAKERS = frozenset(str.split("i we ich wir je yo"))
# Words that may stand between a negation and what it denies.
_ADVERBS = frozenset(str.split("gern gerne gar sehr \u00fcberhaupt auch mehr mehrere so de un une"))
LIGHT = (STOP_WORDS | ARTICLES | _ADVERBS) - SPEAKERS
# A verb is known by so many letters; a negation may be so many words before what it denies.
_SHORTEST_FORM, _NEAR = 2, 2


def words_in(text: str) -> list[str]:
    """The words of a text in lower case, with straight apostrophes."""
    return [match.group().replace("\u2019", "'") for match in TOKEN.finditer(text.lower())]


def denies(text: str) -> bool:
    """Whether a text has a negation: a word, a form such as "don't", or a character.

    >>> denies("Does not drink"), denies("No."), denies("不喝酒"), denies("Drinks tea")
    (True, True, True, False)
    """
    if script_of(text) == "cjk":
        return bool(CHINESE_NEGATION.search(text) or JAPANESE_NEGATION.search(text) or text.startswith("いいえ"))
    return any(map(negates, words_in(text)))


def negates(word: str) -> bool:
    """Whether a word denies: a negation, or a form with one such as "don't" and "dont"."""
    return word in _NEGATIONS or word.endswith("n't") or (word.endswith("nt") and word in STOP_WORDS)


def is_negated(words: Sequence[str], places: Sequence[int], missing: Sequence[str], verb: str) -> bool:
    """Whether what a statement shares with a clause is denied there.

    The negation stands among the shared words, close before them, or ends the clause ("Bier trinke ich nie"); where a
    word of the statement is missing, right before one of them or before a form of its verb.
    """
    # "not without" affirms.
    affirms = not _WITHOUT.isdisjoint(words) and sum(map(negates, words)) > 1
    if len(missing) > 1 or affirms:
        return False
    if _is_denied_behind(words[places[-1] + 1 :], verb):
        return True
    if missing:
        said_verb = verb if missing[0] == verb else ""
        return any(_is_denied(words, i, said_verb) for i in places)
    return _is_denied(words, places[0]) or any(map(negates, words[max(places[0] - _NEAR, 0) : places[-1]]))


def _is_denied_behind(rest: Sequence[str], verb: str) -> bool:
    """Whether the rest of a clause is a negation, with no other telling words than forms of a verb."""
    telling = [word for word in rest if word not in LIGHT and word not in SPEAKERS]
    is_last = bool(telling) and negates(telling[-1])
    return is_last and all(negates(word) or _may_be_forms(word, verb) for word in telling)


def _is_denied(words: Sequence[str], place: int, verb: str = "") -> bool:
    """Whether only light words, and a form of a verb, stand between a word and a negation before it."""
    for word in reversed(words[:place]):
        if negates(word):
            return True
        if _may_be_forms(word, verb):
            verb = ""
        elif word not in LIGHT:
            return False
    return False


def _may_be_forms(word: str, verb: str) -> bool:
    """Whether a word begins as a verb does: come and como, fährt and fahre; False without a verb."""
    one, other = (normalize("NFD", some)[:_SHORTEST_FORM] for some in (word, verb))
    return one == other != ""


def is_affirmed(words: Sequence[str], places: Sequence[int]) -> bool:
    """Whether a clause says of the speaker what a statement denies: "I like olives"."""
    return places[0] > 0 and words[places[0] - 1] in SPEAKERS and not any(map(negates, words))
