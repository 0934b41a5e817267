"""Tells what of a text can be seen, its sentences, which words have no meaning, and which are the same."""

from __future__ import annotations

import unicodedata
from difflib import SequenceMatcher
from html import unescape
from itertools import chain, pairwise

from llama_index_memory_ext.language import pattern, word_lists

# Controls that end a line, and the two separators that do the same.
_LINE_ENDS = "\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]"
# Controls, and what Unicode calls default ignorable, without joiners and variation selectors. The Arabic and other
# signs for numbers are formats too (U+0600..U+0605, ...), but are seen. A Hangul filler is one beside another letter.
CONTROLS = (
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
_UNSEEN = f"[{CONTROLS}]|(?<![\u1100-\u115e\u1161-\u11ff])[\u115f\u1160](?![\u1161-\u11ff])"
_SELECTORS = "\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
_SUSPECT = f"[\x0b-\x0d\x1c-\x1f\x85\u115f\u1160\u200c\u200d\u2028\u2029{CONTROLS}{_SELECTORS}]"
# One selector changes how the character before it looks; more of them, or one after nothing, hide a message.
_STRAY_SELECTOR = rf"(?<![^\s\u200c\u200d{_SELECTORS}])[{_SELECTORS}]+|(?<=[{_SELECTORS}])[{_SELECTORS}]+"
# Scripts whose letters change their form beside a joiner: Arabic, Syriac, N'Ko, those of India, Tibet, Indochina.
_JOINED = (
    "\u0600-\u074f\u0750-\u07ff\u0840-\u085f\u0870-\u0dff\u0f00-\u109f\u1780-\u18af\u1a20-\u1aaf\u1b00-\u1c4f"
    "\ua840-\ua8df\ua900-\ua9df\uaa00-\uaa5f\uabc0-\uabff\ufb50-\ufdff\ufe70-\ufefc\U00010d00-\U00010d3f"
    "\U00011000-\U00011aff\U00011c00-\U00011dff\U00011f00-\U00011f5f"
)
_EMOJI = "#*0-9\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff"
_STRAY_JOINER = (
    rf"(?!(?:(?<=[{_JOINED}])[\u200c\u200d](?=[{_JOINED}]))"
    rf"|(?:(?<=[{_EMOJI}])|(?<=[{_EMOJI}]\ufe0f))\u200d(?=[{_EMOJI}]))[\u200c\u200d]"
)


def visible(text: str) -> str:
    r"""The text without what cannot be seen: controls, zero-width and bidirectional characters, tags.

    Line breaks of all kinds become "\n"; tabs stay. A joiner stays between two letters of a script that needs it, and
    between emoji; a variation selector stays behind the character that it belongs to.

    >>> visible("Likes\u200b tea\U000e0049\U000e0067\u202e")
    'Likes tea'
    >>> len(visible("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"))
    8
    """
    # The first way is ten times as fast; most texts go it.
    if (text.isascii() and text.replace("\n", "").isprintable()) or not pattern(_SUSPECT).search(text):
        return text
    text = pattern(_UNSEEN).sub("", pattern(_LINE_ENDS).sub("\n", text).replace("\x1f", " "))
    return pattern(_STRAY_JOINER).sub("", pattern(_STRAY_SELECTOR).sub("", text))


_SENTENCE_END = (
    "\n\\s*|(?<=[.!?])[\"'\u201d\u2019)\\]*]*\\s+(?=[^\\sa-z])|(?<=[\u3002\uff01\uff1f])[\u300d\u300f\uff09]*"
)


def sentences_in(text: str) -> list[str]:
    r"""Splits a text into its sentences and lines, each with the white space behind it; joined, they are the text.

    >>> sentences_in("Ann has 1.5 euros. She wants tea.\n- Leo")
    ['Ann has 1.5 euros. ', 'She wants tea.\n', '- Leo']
    """
    ends = sorted({0, len(text), *(match.end() for match in pattern(_SENTENCE_END).finditer(text))})
    return [text[start:end] for start, end in pairwise(ends)]


FUNCTION_WORDS = {code: frozenset(chain(*lines)) for code, lines in word_lists("function_words").items()}
STOP_WORDS, STOP_CHARACTERS, STOP_PAIRS = (FUNCTION_WORDS[code] for code in ("en", "zh", "ja"))
# Each irregular form of an English word with its base form.
IRREGULAR = {form: base for base, *forms in word_lists("irregular_forms")["en"] for form in forms}
_STRAIGHT = str.maketrans("\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d\u300e\u300f", '\'\'\'"""""""""')
# Chinese characters have a meaning each; words of kana are compared by pairs.
CHARACTER = "[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
# Two words with so many first letters in common are forms of one word; one in the other is a part of a compound.
_SHARED_LETTERS, _SHORTEST_PART = 4, 4
# How alike two longer words are that differ by a slip.
_SHORTEST_MENDED, _LEAST_LIKENESS = 5, 0.8


def comparable(text: str) -> str:
    """The text with entities, width, case, quotation marks and white space normalized.

    >>> comparable("It\u2019s  &lt;b> \uff34ea")
    "it's <b> tea"
    """
    folded = unicodedata.normalize("NFKC", unescape(text)).casefold()
    return " ".join(folded.translate(_STRAIGHT).split())


def are_forms(one: str, other: str) -> bool:
    """Tell whether two words are one or forms of one, or one is a part of the other, or is the other misspelt."""
    if one == other:
        return True
    shorter, longer = (one, other) if len(one) <= len(other) else (other, one)
    if len(shorter) < _SHORTEST_PART:
        return False
    is_part = shorter[:_SHARED_LETTERS] == longer[:_SHARED_LETTERS] or shorter in longer
    may_be_mended = len(shorter) >= _SHORTEST_MENDED and shorter[0] == longer[0]
    # What costs most comes last: of most pairs of words it is not asked.
    if not (is_part or may_be_mended) or not (one + other).isalpha() or pattern(CHARACTER).search(one + other):
        return False
    return is_part or SequenceMatcher(None, one, other, autojunk=False).ratio() >= _LEAST_LIKENESS
