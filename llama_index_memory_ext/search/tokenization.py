"""Splits a text into the terms under which it is indexed."""

from __future__ import annotations

import re
import threading
import unicodedata
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import snowballstemmer  # type: ignore[import-untyped]  # the package has no type hints

from llama_index_memory_ext.search.days import (
    MONTH_PATTERN,
    day_words,
    with_english_months,
    with_named_months,
    without_verb_may,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date

WEEKDAYS = str.split("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_BELOW_TWENTY = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen"""
TENS = {word: 10 * i for i, word in enumerate(str.split("twenty thirty forty fifty sixty seventy eighty ninety"), 2)}
_OTHER_NUMBERS = {"first": 1, "second": 2, "third": 3, "twice": 2, "dozen": 12, "hundred": 100, "thousand": 1000}
NUMBER_WORDS = {word: i for i, word in enumerate(_BELOW_TWENTY.split())} | TENS | _OTHER_NUMBERS
CHINESE_DIGITS = {"两": 2, "兩": 2} | {character: i for i, character in enumerate("零一二三四五六七八九")}

# Katakana is apart from the other Japanese characters, because a word ends where it begins or ends.
_KATAKANA = "\u30a0-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
# Scripts without spaces between words, and Hangul, whose words include their particles.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u309f"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
# Vowel signs and accents belong to the word, but are no letters to Python.
_SIGNS = "\u0300-\u036f\u0900-\u0963\u0980-\u0dff"
_WORD = re.compile(
    rf"(?P<unspaced>[{_KATAKANA}]+|[{_UNSPACED}]+)"
    rf"|[a-z](?:\+\+|#)(?!\w)"
    rf"|(?:[^\W_{_KATAKANA}{_UNSPACED}]|[{_SIGNS}]){{2,}}"
)
_DAY = re.compile(
    rf"(?<!\d)([0-3]?\d)(?:st|nd|rd|th)?(?: of)? ({MONTH_PATTERN})\b"
    rf"|\b({MONTH_PATTERN})\.? ([0-3]?\d)(?:st|nd|rd|th)?\b"
)

# Unlike scikit-learn's list, this one leaves out words with a meaning: "system", "next", "fire", "move".
_STOP_WORD_LIST = """a an the this that these those such i me my mine myself we us our ours ourselves you your yours
    yourself yourselves he him his himself she her hers herself it its itself they them their theirs themselves who whom
    whose which what when where why how and or but nor so if then else than as because while until unless although
    though whether of at by for with about against between into through during before after above below to from up down
    in out on off over under again once here there all any both each few more most other some no not only own same too
    very just also even still yet ever never am is are was were be been being have has had having do does did doing done
    can could will would shall should might must ought let upon within without across toward towards via per something
    anything everything nothing someone anyone please tell ll re ve don doesn didn isn aren wasn weren haven hasn hadn
    won wouldn shouldn couldn mustn mightn needn ain shan im ive id dont didnt doesnt cant cannot thats whats etc"""
STOP_WORDS = frozenset(_STOP_WORD_LIST.split())
# A pair of these characters has no meaning of its own.
STOP_CHARACTERS = frozenset(
    "的了吗嗎呢吧啊呀嘛我你您他她它们們是在有和与與就都也很这這那哪个個么麼什怎为為之而及或把被给給让讓对對从從到还還些样樣"
)
_STOP_PAIR_LIST = """です ます した して する ない ある いる から まで より など たい てい てる だっ った って んで
    ので のは のが のを のに のか のと では には とは へは での との への もの こと この その あの どの どこ どう なに
    なん いつ だれ れる られ せる ため よう まし せん でし しょ ょう うか すか たか とい いう てき はど はな はい がい
    にい にな なる いて えて ます いま なの だと なぜ いい さい くだ ださ"""
_STOP_PAIRS = frozenset(_STOP_PAIR_LIST.split())
# Most texts have none of these.
_MAY_NAME_DAYS = re.compile("[0-9][-./][0-9]|月|[Mm][Aa][Yy]")
# "Uses Docker" and "it uses FastAPI" have nothing in common.
_ANY_VERB = "use"
# Each base form with its irregular forms.
_FORMS = """become became | begin began begun | bite bit bitten | blow blew blown | break broke broken | bring brought
    | build built | burn burnt | buy bought | catch caught | choose chose chosen | come came | deal dealt | dig dug |
    draw drew drawn | dream dreamt | drink drank drunk | drive drove driven | eat ate eaten | fall fell fallen | feed
    fed | feel felt | fight fought | find found | fly flew flown | forget forgot forgotten | forgive forgave forgiven |
    freeze froze frozen | get got gotten | give gave given | go went gone | grow grew grown | hang hung | hear heard |
    hide hid hidden | hold held | keep kept | know knew known | lay laid | lead led | learn learnt | leave left | lend
    lent | lie lain lying | light lit | lose lost | make made | mean meant | meet met | pay paid | ride rode ridden |
    ring rang rung | rise rose risen | run ran | say said | see saw seen | seek sought | sell sold | send sent | shake
    shook shaken | shine shone | shoot shot | show shown | sing sang sung | sink sank sunk | sit sat | sleep slept |
    slide slid | speak spoke spoken | spend spent | spin spun | stand stood | steal stole stolen | stick stuck | strike
    struck | sweep swept | swim swam swum | swing swung | take took taken | teach taught | tear tore torn | tell told |
    think thought | throw threw thrown | understand understood | wake woke woken | wear wore worn | weep wept | win won
    | write wrote written | child children | man men | woman women | person people | foot feet | tooth teeth | mouse
    mice | goose geese | wife wives | knife knives | shelf shelves"""
IRREGULAR = {form: base for base, *forms in map(str.split, _FORMS.split("|")) for form in forms}

# The stemmer stores the word that it works on in itself, so threads must take turns. Its time grows with the square of
# the length; no English word is longer than the limit.
_STEMMER = snowballstemmer.stemmer("english")
_stemmer_lock = threading.Lock()
LONGEST_STEMMED = 50


class Word(NamedTuple):
    """A word as it is written (in lower case), and the term under which it is indexed."""

    written: str
    term: str


def words_of(text: str) -> Iterator[Word]:
    """Yields the words of a text that are indexed; none for stop words, single characters, punctuation or emoji.

    Scripts with spaces give words of at least two characters; their terms are stems without accents, of the base form
    of irregular English words. Scripts without spaces, such as Chinese, and Korean give pairs of neighbouring
    characters. Days follow at the end: "8 May", "May 8th", "5月8日" and "2026-05-08" all give the term "may8". The verb
    "may" is a stop word, the month is not.
    """
    plain = _with_days(unicodedata.normalize("NFKC", text)).casefold()
    for match in _WORD.finditer(plain):
        found = match.group()
        if match.lastgroup == "unspaced":
            for pair in map("".join, pairwise(found)):
                if pair not in _STOP_PAIRS and not STOP_CHARACTERS.issuperset(pair):
                    yield Word(pair, pair)
        elif found not in STOP_WORDS:
            yield _word(found) if len(found) <= LONGEST_STEMMED else Word(found, found)
    for match in _DAY.finditer(plain):
        day, month = sorted(filter(None, match.groups()), key=str.isalpha)
        yield Word(match.group(), f"{month[:3]}{int(day)}")


# An index keeps the words of its documents: each is one object.
@lru_cache(maxsize=100_000)
def _word(written: str) -> Word:
    return Word(written, term_of(written))


# A text is analyzed as a document, and then as the context of its neighbours.
@lru_cache(maxsize=32)
def indexed_words(text: str) -> tuple[Word, ...]:
    """Returns the words of a text in their order, with repetitions; without "use", which any text may have."""
    return tuple(word for word in words_of(text) if word.term != _ANY_VERB)


@lru_cache(maxsize=32)
def terms_of(text: str) -> tuple[str, ...]:
    """Returns the terms of ``indexed_words``."""
    return tuple(word.term for word in indexed_words(text))


def date_words(day: date) -> str:
    """Returns a day as people write it, "8 May, 2023", so that it is found by its day, its month and its year."""
    return day_words(day.year, day.month, day.day)


def without_accents(word: str) -> str:
    """Returns a word without the accents on its letters: "cafe" for "café"."""
    if word.isascii():
        return word
    return unicodedata.normalize("NFC", re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFD", word)))


def _with_days(text: str) -> str:
    if not _MAY_NAME_DAYS.search(text):
        return text
    return with_english_months(with_named_months(without_verb_may(text, IRREGULAR)))


@lru_cache(maxsize=100_000)
def term_of(word: str) -> str:
    """Returns the term of a word in lower case: its English stem without accents, whatever language it is of."""
    word = without_accents(word)
    with _stemmer_lock:
        stemmed: str = _STEMMER.stemWord(IRREGULAR.get(word, word))
    return stemmed
