"""Words in several languages: their lists, visible text, sentences, forms of a word, and the language of a text."""

from __future__ import annotations

import re
import unicodedata
from difflib import SequenceMatcher
from functools import cache, lru_cache
from html import unescape
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.background.locks import import_lock

if TYPE_CHECKING:
    from collections.abc import Mapping


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
def phrases(name: str, section: str, *, folded: bool = False) -> re.Pattern[str]:
    """Return a section of ``data/<name>.txt`` as a regular expression, in any case.

    Each line is an alternative. ``{section}`` in a line stands for the alternatives
    of that section. ``folded``: for texts that ``str.casefold`` has returned; a search
    takes a fifth of the time.

    >>> phrases("past", "was").findall("I used to sing in those days")
    ['in those days']
    """

    def alternatives(section_name: str) -> str:
        lines = "|".join(_sections(name)[section_name])
        return re.sub(
            r"\{([a-z_]+)\}", lambda match: f"(?:{alternatives(match[1])})", lines
        )

    return re.compile(alternatives(section), 0 if folded else re.IGNORECASE)


def has_phrase(name: str, section: str, plain: str) -> bool:
    """Return whether a text of ``str.casefold`` has a phrase of a section of ``data/<name>.txt``."""
    return phrases(name, section, folded=True).search(plain) is not None


def ends_of(text: str, characters: int = 2_000) -> str:
    r"""Return a text; of a long text, only this number of ``characters`` at each end.

    The middle of a long text is mostly pasted.

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


# A sentence ends behind its marks, of any script. A mark before a letter or a digit, and
# the dot of a title, ends none. ``(?=.)`` keeps an empty part from the end.
_MARKS = ".!?\u3002\uff01\uff1f\u061f\u055e\u1367\u2047\u2048\u2049\u203d"
_NO_END = r"(?<=\b(?:St|Mr|Ms|Dr))\.|(?<=\b(?:Mrs|Str))\.|(?<=\bProf)\.|[.!?](?=\w)"
_SENTENCE = rf"(?s)(?=.)(?:[^{_MARKS}\n]|{_NO_END})*[{_MARKS}]*\s*"


def sentences_in(text: str) -> list[str]:
    r"""Split a text into sentences and lines, each with the white space behind it.

    Joined, the parts are the text.

    >>> sentences_in("Ann has 1.5 euros. She wants tea.\n- Leo")
    ['Ann has 1.5 euros. ', 'She wants tea.\n', '- Leo']
    >>> sentences_in("i live in rome. is it far?")
    ['i live in rome. ', 'is it far?']
    """
    return pattern(_SENTENCE).findall(text)


# ---- function words, and the forms of a word ----

FUNCTION_WORDS = {
    code: words_of_section("function_words", code)
    for code in word_lists("function_words")
}
STOP_WORDS = FUNCTION_WORDS["en"]
STOP_CHARACTERS = FUNCTION_WORDS["zh"]
STOP_PAIRS = FUNCTION_WORDS["ja"]
_STRAIGHT = str.maketrans(
    "\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d\u300e\u300f",
    '\'\'\'"""""""""',
)
# Scripts in which particles or vowel signs belong to the name of a relation.
_JOINED_NAMES = "[\u0900-\u097f\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]"
# Chinese characters, which have a meaning each.
CHARACTER = "[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
# Two words with this many first letters in common are forms of one word. A word inside
# a longer word is a part of a compound.
_SHARED_LETTERS = 4
_SHORTEST_PART = 4
# Two words that differ by a typing error have at least so many letters, and are more
# similar than this (0..1), as "Tuesday" is to "Thursday".
_SHORTEST_MISSPELT = 5
_LIKENESS_OF_OTHERS = 0.8


# A word with its apostrophes, or one character of a script without spaces.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
TOKEN = rf"[{UNSPACED}]|[^\W_{UNSPACED}]+(?:['\u2019`\u00b4][^\W_{UNSPACED}]+)*[+#]*"


def tokens_in(text: str) -> list[str]:
    """Return the words of a text with their apostrophes, and each character of a script without spaces.

    >>> tokens_in("Don't! 不要")
    ["Don't", '不', '要']
    """
    return pattern(TOKEN).findall(text)


def plain_words(text: str) -> list[str]:
    """Return the runs of letters in a text.

    >>> plain_words("Don't eat 2nd-hand")
    ['Don', 't', 'eat', 'nd', 'hand']
    """
    return re.findall(r"[^\W\d_]+", text)


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
    return likeness > _LIKENESS_OF_OTHERS


def relations_in(text: str) -> set[str]:
    """Return the relations to the user that a text names.

    "mother" stands for mom, Mutter and 妈妈.

    >>> sorted(relations_in("My mom and my hubby's boss"))
    ['boss', 'husband', 'mother']
    """
    folded = text.casefold()
    words = set(pattern(r"[^\W\d_]+(?:-[^\W\d_]+)*").findall(folded))
    relations = set()
    for names in word_lists("relations")[""]:
        for name in names:
            is_part = "_" in name or pattern(_JOINED_NAMES).match(name)
            is_word = name in words or f"{name}s" in words
            if is_word or (is_part and name.replace("_", " ") in folded):
                relations.add(names[0])
    return relations


# ---- the script and the language of a statement ----

HAN = re.compile("[\u3400-\u9fff\uf900-\ufaff]")
KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa]")
_HANGUL = re.compile("[\uac00-\ud7af]")
# The language of a text with fewer words or characters is unclear. A text of this many
# characters without any kana is not Japanese.
_LEAST_WORDS = 3
_LEAST_CHARACTERS = 4
_LEAST_WITHOUT_KANA = 8
# Only the beginning of a longer text is read.
_MOST_CHARACTERS = 2_000
# How much likelier (in nats) a text must be in its language than in the language of the
# text that it is compared with.
_MARGIN = 6.0


def script_of(text: str) -> str:
    """Return the script that most of a text is written in: "latin", "cjk" or "other"; "" without letters.

    >>> script_of("我用Python写代码"), script_of("I live in 北京"), script_of("12:30")
    ('cjk', 'latin', '')
    """
    letters = "".join(re.findall(r"[^\W\d_]", text[:_MOST_CHARACTERS]))
    cjk = sum(len(script.findall(letters)) for script in (HAN, KANA, _HANGUL))
    latin = len(re.findall("[A-Za-z\u00aa\u00ba\u00c0-\u024f\u1e00-\u1eff]", letters))
    # One such character stands for about three Latin letters.
    counts = {"cjk": 3 * cjk, "latin": latin, "other": len(letters) - cjk - latin}
    if letters:
        return max(counts, key=counts.__getitem__)
    return ""


# Many sentences are compared with the same source, so its language is cached.
@lru_cache(maxsize=64)
def language_of(text: str) -> str | None:
    """Return the ISO 639-1 code of the language of a statement, such as "en".

    None if the statement is too short to tell.

    >>> language_of("Ich esse kein Fleisch"), language_of("猫を飼っている"), language_of("Thanks!")
    ('de', 'ja', None)
    """
    if script_of(text) == "cjk":
        if _HANGUL.search(text):
            return "ko"
        if KANA.search(text):
            return "ja"
        if len(HAN.findall(text)) >= _LEAST_CHARACTERS:
            return "zh"
        return None
    if len(plain_words(text)) >= _LEAST_WORDS:
        return next(iter(_likelihoods(text)))
    return None


def is_translation(first: str, second: str) -> bool:
    """Return whether two texts are in different languages; False if that is unclear.

    >>> is_translation("Drives a Tesla", "Ich fahre einen Tesla."), is_translation("Likes tea", "I like tea")
    (True, False)
    """
    first_script = script_of(first)
    second_script = script_of(second)
    if not first_script or not second_script:
        return False
    if first_script != second_script:
        return True
    if first_script == "cjk":
        languages = {language_of(first), language_of(second)} - {None}
        if len(languages) < 2:  # noqa: PLR2004 - two texts
            return False
        # Short Japanese may have no kana.
        return "ko" in languages or min(len(first), len(second)) >= _LEAST_WITHOUT_KANA
    first_scores = _likelihoods(first)
    second_scores = _likelihoods(second)
    first_language = next(iter(first_scores))
    second_language = next(iter(second_scores))
    return (
        first_scores[first_language] - first_scores[second_language] >= _MARGIN
        and second_scores[second_language] - second_scores[first_language] >= _MARGIN
    )


@lru_cache(maxsize=256)
def _likelihoods(text: str) -> Mapping[str, float]:
    """Return how likely a text is in each language, as logarithms, the likeliest first."""
    return {
        language: float(score)
        for language, score in _detector().rank(text[:_MOST_CHARACTERS])
    }


_loading = import_lock()


@cache
def _detector() -> Any:
    # Imported at first use: it takes most of a second and 100 MiB, and only background
    # jobs need it.
    with _loading:
        from py3langid import langid  # type: ignore[import-untyped]

        # A separate detector, because the program may use the shared one with other
        # languages.
        detector = langid.LanguageIdentifier.from_model_file(
            Path(langid.__file__).parent / langid.MODEL_FILE
        )
    detector.set_languages(list(chain(*word_lists("languages")["detected"])))
    return detector
