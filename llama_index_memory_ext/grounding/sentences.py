"""Measures how much of a text, and which of its sentences, stand on what was said."""

from __future__ import annotations

import re
import unicodedata
from difflib import SequenceMatcher
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.grounding.language import language_of
from llama_index_memory_ext.grounding.names import missing_names
from llama_index_memory_ext.grounding.numbers import missing_numbers
from llama_index_memory_ext.grounding.words import comparable
from llama_index_memory_ext.search.days import MONTH_PATTERN, MONTHS
from llama_index_memory_ext.search.tokenization import terms_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Who speaks, in the languages in which summaries are written most.
_ROLES = """user assistant Nutzer Nutzerin Benutzer Benutzerin Assistent Assistentin utilisateur utilisatrice assistante
    usuario usuaria asistente usuário assistente utente gebruiker пользователь ассистент 用户 用戶 助手 ユーザー
    アシスタント 사용자 어시스턴트"""
_ROLE_TERMS = frozenset(terms_of(_ROLES))
# The least said of 268 summaries of other people's words had 0.67 of its words from them, the least said of 2,600
# sentences 0.44; of a refusal or an error message after a short conversation few have more than a tenth.
_SHARE = 0.4
# Of pairs of characters, by which scripts without spaces are compared, fewer are the same.
_UNSPACED_SHARE = 0.5
_SHORT_SENTENCE, _LONGEST_SENTENCE = 3, 5_000
# Among many words that were said are those of a refusal. Then a text about them has more of them than a refusal has,
# one for each so many, and a name or a number.
_WORDS_FOR_ONE, _MOST_NEEDED = 50, 4
# What a text in another language must have of the names, the numbers and the speakers.
_FEWEST_ANCHORS = 2
# Languages that write every noun like a name.
_CAPITAL_NOUNS = frozenset({"de", "lb"})

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3"
_TOKEN = re.compile(rf"[{_UNSPACED}]|(?:(?![{_UNSPACED}])\w)+")
_UNSPACED_GAP = re.compile(rf"(?<=[{_UNSPACED}]) (?=[{_UNSPACED}])")
_PIECE_END = re.compile(
    "\n\\s*|(?<=[.!?])[\"'\u201d\u2019)\\]*]*\\s+(?=[^\\sa-z])|(?<=[\u3002\uff01\uff1f])[\u300d\u300f\uff09]*"
)
_TERMINAL = re.compile("[.!?\u2026\u3002\uff01\uff1f\u0964\u061f][\"'\u201d\u2019)\\]*_`\u300d\u300f\uff09]*\\s*$")
# A heading, a label, or a mark in front of a sentence: "## Open Tasks", "1. ", "- **Budget:** ".
_LABEL = re.compile(
    r"\s*#+ .*|\s*(?:[-*\u2022>]\s+|\d{1,3}[.)]\s+)*"
    r"(?:\*\*[^*\n]{1,60}\*\*:?|[^\W\d]{1,30}(?: [^\W\d]{1,30}){0,3}:(?!\S))?"
)
_MONTH = re.compile(rf"(?i)\b(?:{MONTH_PATTERN})\b|(?<=\d)月")
_ISO_DATE = re.compile(r"(?<![\d-])(\d{4})-(\d\d)-(\d\d)(?![\d-])")
_THOUSANDS = re.compile(r"(?<=\d)[.,'\u2019_ \u00a0\u202f](?=\d{3}(?!\d))")
_ADDRESS = re.compile(r"(?<!\w)\w{1,20}://[^\s<>\"')]+|(?<![\w.+-])[\w.+-]{1,64}@[\w-]+\.\w+")
_TAG = re.compile(r"<(?P<name>[A-Za-z][\w:.-]{0,40})>(?P<inside>[^<>]{0,2000})</(?P=name)>|</?[A-Za-z][\w:.-]{0,40}>")
_GRAM, _FEWEST_GRAMS, _MOST_REPEATED = 4, 20, 0.5
# So many words at the end are looked at alone: a model that begins well may still end in a circle.
_END_WORDS = 150
# Numbers of a list, by which its entries differ though they are the same.
_LIST_NUMBER = re.compile(r"(?m)(?:^\s*(?:[-*\u2022]\s+)?|(?<=[.!?\u3002]))\s*\d{1,4}[.):\u3001]\s*")
# A single digit may be that of a date in another form.
_FEWEST_DIGITS = 2
# A sentence so similar to an earlier one is a copy of it; what has changed is looked at with so many words around it.
_COPY, _WORDS_AROUND = 0.8, 2


def pieces_of(text: str) -> list[str]:
    r"""Splits a text into its sentences and lines, each with the white space behind it; joined, they are the text.

    >>> pieces_of("Ann has 1.5 euros. She wants tea.\n- Leo")
    ['Ann has 1.5 euros. ', 'She wants tea.\n', '- Leo']
    """
    ends = sorted({0, len(text), *(match.end() for match in _PIECE_END.finditer(text))})
    return [text[start:end] for start, end in pairwise(ends)]


def is_finished(piece: str) -> bool:
    """Returns whether a piece ends as a sentence does."""
    return _TERMINAL.search(piece) is not None


def is_repetitive(text: str) -> bool:
    """Returns whether more than half of the sequences of four words, or characters without spaces, occur again.

    In all of the text, or among its last 150 words. The numbers of a list do not count.
    """
    words = _TOKEN.findall(_LIST_NUMBER.sub(" ", text).casefold())
    return _repeats(words) or _repeats(words[-_END_WORDS:])


def _repeats(words: Sequence[str]) -> bool:
    grams = [tuple(words[i : i + _GRAM]) for i in range(len(words) - _GRAM + 1)]
    return len(grams) >= _FEWEST_GRAMS and 1 - len(set(grams)) / len(grams) > _MOST_REPEATED


def share_kept(before: str, after: str) -> float:
    """Returns how many of the telling words of a text are in another one, 0..1; 1 if there are none."""
    terms = _terms(before)
    return len(terms & _terms(after)) / len(terms) if terms else 1.0


class Said:
    """What was said, to be compared with a text that tells it: the ``messages``, and what was ``known`` before."""

    def __init__(self, messages: str, known: str) -> None:
        self._messages, self._known = messages, known
        self._message_terms = _terms(messages)
        self._terms = self._message_terms | _terms(known)
        self._numbers = frozenset(_numbers(self._text))
        self._names = frozenset(_names(self._text))

    @cached_property
    def _text(self) -> str:
        return f"{self._messages}\n{self._known}"

    @cached_property
    def _evidence(self) -> str:
        """What numbers and names are looked for in."""
        months = " ".join(str(i) for i, month in enumerate(MONTHS, 1) if re.search(rf"\b{month[:3]}", self._text))
        return _plain(f"{self._text}\n{_ROLES} {months}")

    def is_told_by(self, text: str) -> bool:
        """Returns whether a text tells what was said.

        It does if enough of its telling words were said, or, in another language, some names and numbers.
        """
        terms = _terms(text)
        found, anchors = terms & self._terms - _ROLE_TERMS, self._anchors(text)
        has_role = not _ROLE_TERMS.isdisjoint(terms)
        if self.is_translated(text) and len(anchors) + has_role >= _FEWEST_ANCHORS:
            return True
        needed = min(len(self._terms) // _WORDS_FOR_ONE, _MOST_NEEDED)
        is_particular = not needed or has_role or bool(anchors) or text == text.lower()
        return self._share(terms) >= _required(terms) and len(found) >= needed and is_particular

    def is_translated(self, text: str) -> bool:
        """Returns whether a text is in another language than the messages and what was known."""
        languages = {language_of(self._messages), language_of(self._known), None}
        return language_of(self._messages) is not None and language_of(text) not in languages

    def supports(self, piece: str, *, is_translated: bool = False) -> bool:
        """Returns whether a sentence has no number, name or address that nobody said, and enough words that were."""
        if piece.strip() in self._known:
            return True
        if len(piece) > _LONGEST_SENTENCE or self._unsaid(piece, with_names=not is_translated):
            return False
        terms = _terms(piece)
        is_short = is_translated or len(terms) <= _SHORT_SENTENCE or len(self._anchors(piece)) >= _FEWEST_ANCHORS
        return is_short or self._share(terms) >= _required(terms)

    def adds(self, piece: str) -> bool:
        """Returns whether a sentence has something of the messages that was not known before."""
        if _is_within(piece, self._known):
            return False
        terms, known = _terms(piece) - _ROLE_TERMS, _terms(self._known)
        new, said = terms - known, terms & self._message_terms
        return not self._messages or bool(new & self._message_terms) or 2 * len(said) >= max(len(terms), 1)

    def settled(self, piece: str, earlier: Sequence[str]) -> str:
        """Returns a sentence, or the earlier one of which it is a copy with changes that no message is about."""
        words = _TOKEN.findall(piece.casefold())
        matcher = SequenceMatcher(None, b=words, autojunk=False)
        for other in earlier:
            before = _TOKEN.findall(other.casefold())
            matcher.set_seq1(before)
            if matcher.real_quick_ratio() >= _COPY and matcher.quick_ratio() >= _COPY and matcher.ratio() >= _COPY:
                changed = _changed_terms(before, words, matcher.get_opcodes())
                return piece if self._message_terms & changed else other.rstrip() + piece[len(piece.rstrip()) :]
        return piece

    def loses(self, earlier: Sequence[str], text: str) -> bool:
        """Returns whether names or numbers of earlier sentences are not in a text, though no message is about them."""
        words = frozenset(_TOKEN.findall(_plain(text).casefold()))
        has_names = language_of(self._text) not in _CAPITAL_NOUNS
        for piece in map(_plain, earlier):
            names = (name.casefold() for name in _names(piece)) if has_names else ()
            lost = {*names, *(one for one in _numbers(piece) if len(one) >= _FEWEST_DIGITS)} - words
            before = _TOKEN.findall(piece.casefold())
            for i in (i for i, word in enumerate(before) if word in lost):
                around = before[max(i - _WORDS_AROUND, 0) : i + _WORDS_AROUND + 1]
                if not self._message_terms & (frozenset(terms_of(" ".join(around))) - _ROLE_TERMS):
                    return True
        return False

    def without_foreign_tags(self, text: str) -> str:
        """Returns a text without the tags that nobody said, and without what stands in them if nobody said that."""

        def replaced(match: re.Match[str]) -> str:
            if match.group() in self._text or f"<{match['name']}>" in self._text:
                return match.group()
            inside = match["inside"] or ""
            return inside if self._share(_terms(inside)) >= _SHARE else ""

        return _TAG.sub(replaced, text)

    def _share(self, terms: frozenset[str]) -> float:
        return len(terms & (self._terms | _ROLE_TERMS)) / len(terms) if terms else 0.0

    def _anchors(self, text: str) -> frozenset[str]:
        """The names and the numbers of a text that were said."""
        # Among characters without spaces, a name in another script is a word, too.
        words = frozenset([*re.findall(r"\w+", text), *re.findall("[A-Za-z][A-Za-z0-9]+", text)])
        return words & self._names | self._numbers.intersection(_numbers(text))

    def _unsaid(self, piece: str, *, with_names: bool) -> bool:
        text = _LABEL.sub("", _plain(piece), count=1)
        if missing_numbers(_MONTH.sub(" ", text), self._evidence):
            return True
        if any(address not in self._text for address in _ADDRESS.findall(piece)):
            return True
        is_told = not with_names or language_of(self._text) in _CAPITAL_NOUNS
        return not is_told and bool(missing_names(text.replace("*", "").replace("`", ""), self._evidence))


def _required(terms: frozenset[str]) -> float:
    unspaced = sum(re.match(f"[{_UNSPACED}]", term) is not None for term in terms)
    return _SHARE * _UNSPACED_SHARE if 2 * unspaced > len(terms) else _SHARE


def _terms(text: str) -> frozenset[str]:
    return frozenset(terms_of(_plain(text)))


def _plain(text: str) -> str:
    """The text with ISO dates in words, numbers without a zero in front and without thousands separators."""
    dated = _ISO_DATE.sub(lambda day: f"{day[1]} {int(day[2])} {int(day[3])}", unicodedata.normalize("NFKC", text))
    return re.sub(r"(?<![\d.,])0+(?=\d)", "", _THOUSANDS.sub("", dated))


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d+", _plain(text))


def _names(text: str) -> Iterator[str]:
    """The words with a capital behind another word or a comma, if they have it everywhere; and those with a digit."""
    small = frozenset(re.findall(r"\w+", text))
    for match in re.finditer(r"(?:(?<=[\w,;] )(?P<inner>))?(?P<word>\w{2,})", text):
        word = match["word"]
        is_name = match["inner"] is not None and word[0].isupper() and word.lower() not in small
        if is_name or not (word.isdigit() or word.isalpha()):
            yield word


def _is_within(piece: str, text: str) -> bool:
    return comparable(piece).rstrip(" .!?;,\u3002") in comparable(text)


def _changed_terms(before: list[str], after: list[str], opcodes: Sequence[Any]) -> frozenset[str]:
    """The terms of what differs between two sentences, and of the words around it."""
    changed = []
    for kind, start, end, new_start, new_end in opcodes:
        if kind != "equal":
            changed += before[max(start - _WORDS_AROUND, 0) : end + _WORDS_AROUND]
            changed += ["\n", *after[max(new_start - _WORDS_AROUND, 0) : new_end + _WORDS_AROUND], "\n"]
    return frozenset(terms_of(_UNSPACED_GAP.sub("", " ".join(changed)))) - _ROLE_TERMS
