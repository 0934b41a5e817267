"""Words in the languages that are read: their lists, visible text, sentences, and forms of the same word."""

from __future__ import annotations

import re
import unicodedata
from difflib import SequenceMatcher
from functools import cache
from html import unescape
from importlib.resources import files
from itertools import chain, pairwise


@cache
def _sections(name: str) -> dict[str, list[str]]:
    """Return the lines of ``data/<name>.txt`` by section.

    A line such as ``[de]`` begins a section; "#" begins a comment.
    """
    sections: dict[str, list[str]] = {"": []}
    lines = sections[""]
    text = (files(__name__) / "data" / f"{name}.txt").read_text("utf-8")
    for line in text.splitlines():
        if re.fullmatch(r"\[[a-z_]+\]", line):
            lines = []
            sections[line.strip("[]")] = lines
        elif line.strip() and not line.startswith("#"):
            lines.append(line)
    return sections


@cache
def word_lists(name: str) -> dict[str, list[list[str]]]:
    """Return the words of each line of ``data/<name>.txt``, by section."""
    return {
        section: [line.split() for line in lines]
        for section, lines in _sections(name).items()
    }


@cache
def words_of_section(name: str, section: str) -> frozenset[str]:
    """Return all words of a section of ``data/<name>.txt``."""
    return frozenset(chain(*word_lists(name)[section]))


@cache
def phrases(name: str, section: str) -> re.Pattern[str]:
    """Return a section of ``data/<name>.txt`` as a regular expression, in any case.

    Each line is an alternative. ``{section}`` in a line stands for the alternatives
    of that section.

    >>> phrases("past", "was").findall("I used to sing in those days")
    ['in those days']
    """

    def alternatives(section_name: str) -> str:
        lines = "|".join(_sections(name)[section_name])
        return re.sub(
            r"\{([a-z_]+)\}", lambda match: f"(?:{alternatives(match[1])})", lines
        )

    return re.compile(alternatives(section), re.IGNORECASE)


def ends_of(text: str, characters: int) -> str:
    r"""Return a text, or of a long text so many characters at each end: between them is pasted text.

    >>> ends_of("one two three", 3)
    'one\nree'
    """
    if len(text) <= 2 * characters:
        return text
    return f"{text[:characters]}\n{text[-characters:]}"


@cache
def pattern(text: str) -> re.Pattern[str]:
    """Return a regular expression, compiled at its first use.

    Importing the package compiles none, which keeps the import fast.

    >>> pattern("[a-z]+").findall("a 1 bc")
    ['a', 'bc']
    """
    return re.compile(text)


# ---- visible text, and sentences ----

# Controls that end a line, and the two separators that do the same.
_LINE_ENDS = "\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]"
# Controls, and the characters that Unicode calls default ignorable, without joiners and
# variation selectors. The Arabic and other signs for numbers (U+0600..U+0605, ...) are
# format characters too, but visible. A Hangul filler is visible beside another letter.
CONTROLS = (
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
_UNSEEN = (
    f"[{CONTROLS}]|(?<![\u1100-\u115e\u1161-\u11ff])[\u115f\u1160](?![\u1161-\u11ff])"
)
_SELECTORS = "\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
_SUSPECT = f"[\x0b-\x0d\x1c-\x1f\x85\u115f\u1160\u200c\u200d\u2028\u2029{CONTROLS}{_SELECTORS}]"
# One selector changes how the character before it looks. Several selectors, or a
# selector after nothing, hide a message.
_STRAY_SELECTOR = rf"(?<![^\s\u200c\u200d{_SELECTORS}])[{_SELECTORS}]+|(?<=[{_SELECTORS}])[{_SELECTORS}]+"
# Scripts whose letters change their form beside a joiner: Arabic, Syriac, N'Ko, and
# the scripts of India, Tibet and Indochina.
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
    r"""Return the text without invisible characters.

    Removed are controls, zero-width and bidirectional characters, and tags. Line
    breaks of all kinds become "\n"; tabs stay. A joiner stays between two letters of a
    script that needs it, and between emoji. A variation selector stays behind its
    character.

    >>> visible("Likes\u200b tea\U000e0049\U000e0067\u202e")
    'Likes tea'
    >>> len(visible("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"))
    8
    """
    # Most texts are plain ASCII, for which this check is ten times as fast.
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    if not pattern(_SUSPECT).search(text):
        return text
    text = pattern(_LINE_ENDS).sub("\n", text)
    text = text.replace("\x1f", " ")
    text = pattern(_UNSEEN).sub("", text)
    text = pattern(_STRAY_SELECTOR).sub("", text)
    return pattern(_STRAY_JOINER).sub("", text)


_SENTENCE_END = (
    "\n\\s*|(?<=[.!?])[\"'\u201d\u2019)\\]*]*\\s+(?=[^\\sa-z])"
    "|(?<=[\u3002\uff01\uff1f])[\u300d\u300f\uff09]*"
)


def sentences_in(text: str) -> list[str]:
    r"""Split a text into sentences and lines, each with the white space behind it.

    Joined, the parts are the text.

    >>> sentences_in("Ann has 1.5 euros. She wants tea.\n- Leo")
    ['Ann has 1.5 euros. ', 'She wants tea.\n', '- Leo']
    """
    bounds = {0, len(text)}
    for match in pattern(_SENTENCE_END).finditer(text):
        bounds.add(match.end())
    return [text[start:end] for start, end in pairwise(sorted(bounds))]


FUNCTION_WORDS = {
    code: frozenset(chain(*lines))
    for code, lines in word_lists("function_words").items()
}
STOP_WORDS = FUNCTION_WORDS["en"]
STOP_CHARACTERS = FUNCTION_WORDS["zh"]
STOP_PAIRS = FUNCTION_WORDS["ja"]
# Each irregular form of an English word with its base form.
IRREGULAR = {
    form: base for base, *forms in word_lists("irregular_forms")["en"] for form in forms
}
_STRAIGHT = str.maketrans(
    "\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d\u300e\u300f",
    '\'\'\'"""""""""',
)
# Chinese characters have a meaning each; words of kana are compared by pairs.
_UNSPACED = "[\u3040-\u30ff\u3400-\u9fff]"
CHARACTER = "[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
# Two words with this many first letters in common are forms of one word. A word inside
# a longer word is a part of a compound.
_SHARED_LETTERS = 4
_SHORTEST_PART = 4
# How similar two longer words are that differ by a typing error (0..1).
_SHORTEST_MISSPELT = 5
_LEAST_LIKENESS = 0.8


def comparable(text: str) -> str:
    """Return the text with normalized entities, width, case, quotation marks and spaces.

    >>> comparable("It\u2019s  &lt;b> \uff34ea")
    "it's <b> tea"
    """
    folded = unicodedata.normalize("NFKC", unescape(text)).casefold()
    return " ".join(folded.translate(_STRAIGHT).split())


def are_forms(first: str, second: str) -> bool:
    """Return whether two words are equal, forms of one word, or a word and its misspelling.

    A word inside a longer word counts as a form: a part of a compound.
    """
    if first == second:
        return True
    shorter, longer = sorted((first, second), key=len)
    if len(shorter) < _SHORTEST_PART:
        return False
    is_part = shorter[:_SHARED_LETTERS] == longer[:_SHARED_LETTERS] or shorter in longer
    may_be_misspelt = len(shorter) >= _SHORTEST_MISSPELT and shorter[0] == longer[0]
    if not is_part and not may_be_misspelt:
        return False
    # The expensive checks come last: most pairs of words never reach them.
    if not (first + second).isalpha() or pattern(CHARACTER).search(first + second):
        return False
    if is_part:
        return True
    likeness = SequenceMatcher(None, first, second, autojunk=False).ratio()
    return likeness >= _LEAST_LIKENESS


def relations_in(text: str) -> set[str]:
    """Return the relations to the user that a text names.

    "mother" stands for mom, Mutter and 妈妈.

    >>> sorted(relations_in("My mom and my hubby's boss"))
    ['boss', 'husband', 'mother']
    """
    words = set(pattern(r"[^\W\d_]+(?:-[^\W\d_]+)*").findall(text.casefold()))
    relations = set()
    for names in word_lists("relations")[""]:
        for name in names:
            is_part = not name.isascii() and pattern(_UNSPACED).match(name)
            is_word = name in words or f"{name}s" in words
            if is_word or (is_part and name in text):
                relations.add(names[0])
    return relations
