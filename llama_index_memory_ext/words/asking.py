"""Whether a text asks for something, or is only a statement."""

from __future__ import annotations

from functools import lru_cache, partial

from llama_index_memory_ext.words import (
    FUNCTION_WORDS,
    ends_of,
    has_phrase,
    pattern,
    phrases,
    plain_words,
    sentences_in,
    word_lists,
    words_of_section,
)

# A text with more words such as "the" and "that" continues a subject. Chosen on three
# users of RealMem and three conversations of LoCoMo; see CONTRIBUTING.md.
_MOST_REFERENCES = 2
_CONTINUING_SHARE = 0.5
# At least this share of the words of a text are function words of its language.
_LEAST_FUNCTION_WORDS = 0.3
_LANGUAGES = FUNCTION_WORDS.keys() - {"fi", "ja", "zh"}
_CHINESE_OR_JAPANESE = "[\u3041-\u30fa\u3400-\u9fff]"
_SENTENCE_END = r"[.!;:\n\u3002\uff01]"
_CLAUSE_END = r"[.!?;:,\n\u2026\u3002\uff01\uff0c]"
_REFERENCES = words_of_section("asking", "references")
_has = partial(has_phrase, "asking")


def asks(text: str) -> bool:
    """Return whether a text has a question, with or without a question mark.

    >>> asks("Hello! Where do I live"), asks("I live in Graz.")
    (True, False)
    """
    text = ends_of(text)
    marks = phrases("asking", "questions_in_characters")
    if marks.search(text) or phrases("clauses", "question_marks").search(text):
        return True
    sentences = pattern(_SENTENCE_END).split(text)
    return any(map(phrases("clauses", "asks").search, sentences))


# Each prompt reads the same messages of its record again.
@lru_cache(maxsize=2_000)
def tells_change(text: str) -> bool:
    """Return whether a text tells that something has changed.

    >>> tells_change("We have moved to Ghent."), tells_change("I live in Ghent.")
    (True, False)
    """
    return _has("changed", ends_of(text).casefold())


def change_words(text: str) -> str:
    """Return words of a change that a text may ask about, in its language; "" for none.

    >>> change_words("Where do I live?").split()[:4]
    ['moved', 'move', 'moving', 'relocated']
    """
    plain = ends_of(text).casefold()
    # The Chinese and Japanese words of the list are single characters.
    words = {*plain_words(plain), *plain}
    changes: list[str] = []
    for line in word_lists("asking")["changes"]:
        bar = line.index("|")
        if not words.isdisjoint(line[:bar]):
            changes += line[bar + 1 :]
    return " ".join(changes)


# A turn reads the same question up to six times.
@lru_cache(maxsize=64)
def is_statement(text: str) -> bool:
    """Return whether a text is only a statement: it asks for nothing, and continues no subject.

    False for a text in a language without rules.

    >>> is_statement("I went for a walk with my sister."), is_statement("Show me my walks.")
    (True, False)
    """
    plain = ends_of(text).casefold()
    words = plain_words(plain)
    references = sum(word in _REFERENCES for word in words)
    if pattern(_CHINESE_OR_JAPANESE).search(plain):
        in_characters = phrases("asking", "references_in_characters")
        references += len(in_characters.findall(plain))
    elif not _have_rules(words):
        return False
    return not (references > _MOST_REFERENCES or asks(text) or _requests(plain))


def asking_share(text: str) -> float:
    """Return the share of a text in sentences that ask for something, 0..1; 0 for a statement.

    A text that asks for nothing, but continues a subject, has 0.5; in Chinese, Japanese,
    Finnish and languages without rules, 1.

    >>> round(asking_share("I went for a walk. Where do I live?"), 2)
    0.46
    """
    if is_statement(text):
        return 0.0
    read = ends_of(text)
    asking = 0
    for sentence in sentences_in(read):
        if asks(sentence) or _requests(sentence.casefold()):
            asking += len(sentence)
    if asking:
        return asking / len(read)
    if _have_rules(plain_words(read.casefold())):
        return _CONTINUING_SHARE
    return 1.0


def _have_rules(words: list[str]) -> bool:
    """Return whether the words are in a language with rules, by the share of its function words."""
    least = max(_LEAST_FUNCTION_WORDS * len(words), 1)
    return any(
        sum(word in FUNCTION_WORDS[code] for word in words) >= least
        for code in _LANGUAGES
    )


def _requests(plain: str) -> bool:
    """Return whether a text in lower case has an order or a wish."""
    clauses = pattern(_CLAUSE_END).split(plain)
    if any(map(phrases("asking", "orders", folded=True).match, clauses)):
        return True
    return _has("requests", plain)
