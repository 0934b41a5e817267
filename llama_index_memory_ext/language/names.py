"""Finds the names of a statement that its source does not have."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from itertools import product
from typing import TYPE_CHECKING

from llama_index_memory_ext.language import pattern, phrases, word_lists
from llama_index_memory_ext.language.detection import (
    HAN,
    KANA,
    is_translation,
    language_of,
    script_of,
)
from llama_index_memory_ext.language.quotes import tokens_in
from llama_index_memory_ext.language.said_dates import without_dates
from llama_index_memory_ext.language.tokens import keywords, overlaps
from llama_index_memory_ext.language.words import (
    STOP_CHARACTERS,
    STOP_WORDS,
    comparable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# Scripts with capitals.
_LETTER = "A-Za-z\u00aa-\u024f\u0370-\u052f\u0531-\u0587\u1e00-\u1fff"
_WORD = rf"[{_LETTER}](?:[{_LETTER}0-9'+#.]*[{_LETTER}0-9+#])?"
_SENTENCE_START = "(?:^|[.!?:;\n\u3002\uff01\uff1f])[\\s\"'(\u201c\u2018\\[]*$"
_VOWELS = frozenset("aeiouyäöü")
# "I", and things that everybody calls by two letters: TV.
_LONGEST_COMMON = 2
# Initials, and words with capitals in a row.
_ACRONYM = r"\b[A-Z](?:[a-z]?[A-Z]){1,4}\b"
_LONGEST_ACRONYM = 5
_CAPITALS = r"\b[A-Z][^\W_]*(?:(?: (?:of|the|and|de|der))* [A-Z][^\W_]*)+"
# A name in which a source's abbreviation begins; "k8s" leaves eight letters out.
_SHORTEST_BEGINNING = 3
_SHORTEST_STEM = 3
_LONGEST_ENDING = 2
# How alike two names of some length are that differ by a slip.
_SHORTEST_MENDED = 6
_LEAST_LIKENESS = 0.85
_NUMERONYM = r"[a-z](\d{1,2})([a-z])"
# After these words comes a name, also where names have no capitals.
_NAMED = r"(?:名叫|名字叫|叫做|叫作|叫|名字是|名前は|という名前)([\u3400-\u9fff\u3040-\u30ff]{1,4})"
# Before these a word in katakana is the name of a place or a company.
_KATAKANA_NAME = "([\u30a1-\u30fa\u30fc]{2,})(?:に住|で働|に勤|で勤|の社員|出身|という)"
_DOTTED = r"\b(?:[A-Z]\.){2,}"
# How far from a word the mark that ends a sentence may be.
_NEAR = 10
# The least run of new Chinese characters, and their share of a statement, that is taken for a name.
_NEW_RUN = 2
_NEW_SHARE = 0.35
# In so many words or characters a statement names its subject.
_SUBJECT = 2


def missing_names(statement: str, source: str, known: str = "") -> list[str]:
    """Return the names of a statement that neither the source nor what is ``known`` has.

    A name is a word with a capital that does not begin a sentence. The source may have it with another ending or
    misspelt, as its initials (NYC), or abbreviated (js, utd, k8s). Nothing is missing where the source is in another
    language, in which names may be written in another way.

    >>> missing_names("Lives in New York with Bob", "I live in NYC")
    ['Bob']
    """
    if is_translation(statement, source):
        return []
    statement = _undotted(statement)
    source = _undotted(source)
    missing = _missing(statement, source)
    if missing and known:
        return _missing(statement, f"{source}\n{known}")
    return missing


def _undotted(text: str) -> str:
    return pattern(_DOTTED).sub(lambda match: match.group().replace(".", ""), text)


def has_subject(statement: str, text: str) -> bool:
    """Return whether a statement begins with a name that stands in a text.

    >>> has_subject("Ann is a nurse", "My sister Ann is one"), has_subject("Is a nurse in Rome", "She lives in Rome")
    (True, False)
    """
    if script_of(statement) == "cjk":
        name = statement[:_SUBJECT]
        return name in text and STOP_CHARACTERS.isdisjoint(name)
    said = set(tokens_in(text))
    first = [
        word
        for word in tokens_in(statement)[:_SUBJECT]
        if word.casefold() not in STOP_WORDS
    ]
    return any(word[:1].isupper() and word in said for word in first)


def has_other_order(statement: str, text: str) -> bool:
    """Return whether the first name of a statement stands in a text only behind a later one: who does what to whom.

    >>> has_other_order("Ann helps Bob", "Bob: I help Ann"), has_other_order("Ann helps Bob", "Ann helps me. Bob, too")
    (True, False)
    """
    places = [text.find(name) for name in dict.fromkeys(_by_capital(f"x {statement}"))]
    return any(0 <= place < places[0] for place in places[1:])


def relations_in(text: str) -> set[str]:
    """Return whom a text names by their relation to the user: "mother" for mom, Mutter and 妈妈.

    >>> sorted(relations_in("My mom and my hubby's boss"))
    ['boss', 'husband', 'mother']
    """
    words = set(tokens_in(text.casefold().replace("\u2019", "'").replace("'s", "")))
    is_spaced = script_of(text) != "cjk"
    return {
        relation
        for relation, *others in word_lists("relations")[""]
        for one in (relation, *others)
        if (one in words if is_spaced or one.isascii() else one in text)
    }


def shares_word(statement: str, text: str) -> bool:
    """Return whether a text has a telling word or a name of a statement in some form."""
    return overlaps(keywords(statement), keywords(text)) or shares_name(statement, text)


def shares_name(statement: str, text: str) -> bool:
    """Return whether a name of a statement is in a text in some form, also that of another language: Geneva, Genf."""
    names = list(_by_capital(without_dates(statement)))
    words = _words(text)
    beginnings = {name[:_SHORTEST_BEGINNING] for name in _by_capital(text)}
    found = (
        name[:_SHORTEST_BEGINNING] in beginnings or _has_name(name, words)
        for name in names
    )
    return any(found) or bool(_shortened(names, text, words))


def _missing(statement: str, evidence: str) -> list[str]:
    words = _words(evidence)
    plain = without_dates(statement)
    # German nouns have capitals as well, but only at their beginning.
    is_german = "de" in (language_of(statement), language_of(evidence))
    names = [
        name
        for name in _by_capital(plain)
        if not is_german or name[1:] != name[1:].lower()
    ]
    found = _shortened(names, evidence, words) | _named_by_nouns(statement, evidence)
    relations = relations_in(evidence)
    missing = [
        name for name in names if name not in found and not _has_name(name, words)
    ]
    missing = [name for name in missing if not relations_in(name) & relations]
    return [*dict.fromkeys(missing), *_missing_in_characters(plain, evidence)]


def _words(text: str) -> frozenset[str]:
    folded = comparable(text)
    words = {word.replace("'", "") for word in tokens_in(folded)} | set(
        pattern(_WORD).findall(folded)
    )
    parts = {part for word in words for part in re.split(r"[^\w+#]+", word)}
    return frozenset((words | parts) - {""})


def _by_capital(text: str) -> Iterator[str]:
    """Yield the words with capitals; compounds in their parts (Berlin-based, R&D)."""
    for match in pattern(_WORD).finditer(text.replace("\u2019", "'")):
        # A letter stands for what is further away, so that it is no beginning.
        before = text[max(match.start() - _NEAR, 0) : match.start()]
        starts_sentence = pattern(_SENTENCE_START).search(
            before if match.start() <= _NEAR else f"x{before}"
        )
        word = re.sub("'(?:s|m|d|ve|ll)?$", "", match.group())
        capitals = word[1:] if starts_sentence else word
        is_common = len(word) <= _LONGEST_COMMON and word.isupper()
        if capitals != capitals.lower() and not is_common:
            yield word


def _has_name(name: str, words: frozenset[str]) -> bool:
    folded = comparable(name)
    if folded in words or folded in STOP_WORDS:
        return True
    return any(
        _have_one_stem(folded, word) or _is_abbreviation(word, folded)
        for word in words - STOP_WORDS
    )


def _is_word_of(name: str, words: frozenset[str]) -> bool:
    folded = comparable(name)
    return folded in STOP_WORDS or overlaps([folded], words)


def _have_one_stem(name: str, word: str) -> bool:
    """Return whether two words differ only by an ending or a slip: German and Germans, Москве and Москвы, Xeonoblade.

    In ASCII one must be the beginning of the other: Anns, Boxes; Ed is not Eddy, nor Eve every.
    """
    shorter, longer = sorted((len(name), len(word)))
    alike = next((i for i in range(shorter) if name[i] != word[i]), shorter)
    fits = alike == shorter or not (name.isascii() and word.isascii())
    if (
        fits
        and alike >= _SHORTEST_STEM
        and longer - alike <= min(_LONGEST_ENDING, alike - 2)
    ):
        return True
    if shorter < _SHORTEST_MENDED or not alike:
        return False
    return SequenceMatcher(None, name, word, autojunk=False).ratio() >= _LEAST_LIKENESS


def _is_abbreviation(word: str, name: str) -> bool:
    """Return whether a word of the source abbreviates a name: vw, utd, man, k8s, js of JavaScript."""
    if not word[:1].isalpha() or len(word) >= len(name) or word[0] != name[0]:
        return False
    if numeronym := pattern(_NUMERONYM).fullmatch(word):
        return len(name) == int(numeronym[1]) + 2 and name.endswith(numeronym[2])
    if len(word) >= _SHORTEST_BEGINNING and name.startswith(word):
        return True
    # A letter, and then consonants of the name in their order.
    letters = iter(name)
    has_no_vowels = len(word) > 1 and word.isalpha() and _VOWELS.isdisjoint(word[1:])
    return has_no_vowels and all(letter in letters for letter in word)


def _shortened(names: Sequence[str], evidence: str, words: frozenset[str]) -> set[str]:
    """Return the names whose initials the evidence has (HP, GoT, nyc), and the initials of names that it has."""
    # Words of capitals, and short ones without a vowel, also with a letter left out: GoT has one too many.
    short = {
        word for word in words if word.isalpha() and 1 < len(word) <= _LONGEST_ACRONYM
    }
    acronyms = {word for word in short if _VOWELS.isdisjoint(word)}
    acronyms |= {word.casefold() for word in pattern(_ACRONYM).findall(evidence)}
    acronyms |= {
        word[:i] + word[i + 1 :]
        for word in acronyms
        for i in range(len(word))
        if len(word) > len("HP")
    }
    found = set[str]()
    for i, length in product(range(len(names)), range(2, _LONGEST_ACRONYM + 1)):
        some = names[i : i + length]
        if (
            len(some) == length
            and "".join(name[0] for name in some).casefold() in acronyms
        ):
            found.update(some)
    runs = pattern(_CAPITALS).findall(evidence)
    initials = "\n".join(
        "".join(re.findall(r"\b[^\W\d_]", run)) for run in runs
    ).casefold()
    return found | {name for name in names if name.casefold() in initials}


def _named_by_nouns(statement: str, evidence: str) -> set[str]:
    """Return the names of which another part is a word of the evidence: Smoky, for "the Smoky Mountains"."""
    nouns = frozenset(re.findall(r"(?<![^\W_])[a-z]{4,}", evidence)) - STOP_WORDS
    runs = [
        pattern(_WORD).findall(run) for run in pattern(_CAPITALS).findall(statement)
    ]
    return {
        name
        for run in runs
        if any(_is_word_of(name, nouns) for name in run[1:])
        for name in run
    }


def _missing_in_characters(statement: str, evidence: str) -> list[str]:
    """Return names in scripts without capitals: what follows "is called", and runs of new Chinese characters.

    Such a run makes a good part of a statement. Numbers are checked elsewhere.
    """
    named = [
        *pattern(_NAMED).findall(statement),
        *pattern(_KATAKANA_NAME).findall(statement),
    ]
    missing = [name for name in named if not set(name[:2]) <= set(evidence)]
    if not HAN.search(evidence):
        return missing
    numbers = "".join(phrases("numbers", "chinese").findall(statement))
    characters = [
        character
        for character in statement
        if HAN.match(character) or KANA.match(character)
    ]
    ordinary = {*evidence, *numbers, *filter(KANA.match, characters)} | STOP_CHARACTERS
    least = max(_NEW_RUN, _NEW_SHARE * len(characters))
    new = "".join(" " if one in ordinary else one for one in characters)
    return missing + [run for run in new.split() if len(run) >= least]
