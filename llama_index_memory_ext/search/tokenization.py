"""Turns a text into the words by which it is found."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import date

_KATAKANA = "\u30a0-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
# Other scripts without spaces between words, and Hangul, whose words carry their particles.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u309f"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
# A word of these goes on across its vowel signs, which Python does not take for letters.
_SIGNS = "\u0300-\u036f\u0900-\u0963\u0980-\u0dff"
_WORD = re.compile(
    rf"(?P<unspaced>[{_KATAKANA}]+|[{_UNSPACED}]+)"
    rf"|[a-z](?:\+\+|#)(?!\w)"
    rf"|(?:[^\W_{_KATAKANA}{_UNSPACED}]|[{_SIGNS}])+"
)
_ACCENTS = re.compile("[\u0300-\u036f]")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_CHINESE_DATE = re.compile(r"(?<!\d)(1[0-2]|0?[1-9])\s?月(?:\s?([0-3]?\d)\s?[日号號])?")
_NAMES = "|".join(f"{month[:3]}(?:{month[3:]})?" for month in _MONTHS).lower()
_DAY = re.compile(
    rf"(?<!\d)(?P<day>[0-3]?\d)(?:st|nd|rd|th)?(?: of)? (?P<month>{_NAMES})\b"
    rf"|\b(?P<month_first>{_NAMES})\.? (?P<day_after>[0-3]?\d)(?:st|nd|rd|th)?\b"
)

# Words that say nothing about what is asked. scikit-learn's own list also has "system", "next", "fire" and "move".
STOP_WORDS = frozenset(
    """
    a an the this that these those such i me my mine myself we us our ours ourselves you your yours yourself
    yourselves he him his himself she her hers herself it its itself they them their theirs themselves who whom
    whose which what when where why how and or but nor so if then else than as because while until unless
    although though whether of at by for with about against between into through during before after above
    below to from up down in out on off over under again once here there all any both each few more most other
    some no not only own same too very just also even still yet ever never am is are was were be been being have
    has had having do does did doing done can could will would shall should might must ought let upon within
    without across toward towards via per something anything everything nothing someone anyone please tell
    ll re ve don doesn didn isn aren wasn weren haven hasn hadn won wouldn shouldn couldn mustn mightn needn ain shan
    im ive id dont didnt doesnt cant cannot thats whats etc
    """.split()  # noqa: SIM905 - a list of words is read and mended more easily without 200 quotation marks
)
# Two of these characters side by side are grammar.
_STOP_CHARACTERS = frozenset(
    "的了吗嗎呢吧啊呀嘛我你您他她它们們是在有和与與就都也很这這那哪个個么麼什怎为為之而及或把被给給让讓对對从從到还還些样樣"
)
_STOP_PAIRS = frozenset(
    """
    です ます した して する ない ある いる から まで より など たい てい てる だっ った って んで ので のは のが
    のを のに のか のと では には とは へは での との への もの こと この その あの どの どこ どう なに なん いつ だれ
    れる られ せる ため よう まし せん でし しょ ょう うか すか たか とい いう てき はど はな はい がい にい にな なる
    いて えて ます いま なの だと なぜ いい さい くだ ださ
    """.split()  # noqa: SIM905 - the same
)
_FORMS = """
    become became | begin began begun | bite bit bitten | blow blew blown | break broke broken | bring brought |
    build built | burn burnt | buy bought | catch caught | choose chose chosen | come came | deal dealt | dig dug |
    draw drew drawn | dream dreamt | drink drank drunk | drive drove driven | eat ate eaten | fall fell fallen |
    feed fed | feel felt | fight fought | find found | fly flew flown | forget forgot forgotten | forgive forgave
    forgiven | freeze froze frozen | get got gotten | give gave given | go went gone | grow grew grown | hang hung |
    hear heard | hide hid hidden | hold held | keep kept | know knew known | lay laid | lead led | learn learnt |
    leave left | lend lent | lie lain lying | light lit | lose lost | make made | mean meant | meet met | pay paid |
    ride rode ridden | ring rang rung | rise rose risen | run ran | say said | see saw seen | seek sought | sell
    sold | send sent | shake shook shaken | shine shone | shoot shot | show shown | sing sang sung | sink sank sunk
    | sit sat | sleep slept | slide slid | speak spoke spoken | spend spent | spin spun | stand stood | steal stole
    stolen | stick stuck | strike struck | sweep swept | swim swam swum | swing swung | take took taken | teach
    taught | tear tore torn | tell told | think thought | throw threw thrown | understand understood | wake woke
    woken | wear wore worn | weep wept | win won | write wrote written | child children | man men | woman women |
    person people | foot feet | tooth teeth | mouse mice | goose geese | life lives | wife wives | knife knives |
    leaf leaves | shelf shelves
"""
_IRREGULAR = {form: base for base, *forms in map(str.split, _FORMS.split("|")) for form in forms}


class Word(NamedTuple):
    """A word as it was written (in lower case), and the term under which it is indexed."""

    written: str
    term: str


def words_of(text: str, stem: Callable[[str], str]) -> Iterator[Word]:
    """The words of a text in order; none for a text of stop words, single characters, marks or emoji.

    The text is taken in NFKC and lower case. Spaced scripts give words of two or more characters, without stop
    words and accents, irregular forms led back to their base, and stemmed. Chinese, Japanese, Korean and other scripts
    without spaces give pairs of neighbouring characters, without pairs that are grammar. "8 May", "May 8th" and
    "5月8日" give one word more, for the day.

    Args:
        text: Any string.
        stem: Leads a lower-case word to its stem.
    """
    plain = _CHINESE_DATE.sub(_in_english, unicodedata.normalize("NFKC", text)).casefold()
    for match in _WORD.finditer(plain):
        found = match.group()
        if match.lastgroup:
            for i in range(len(found) - 1):
                pair = found[i : i + 2]
                if not _is_grammar(pair):
                    yield Word(pair, pair)
        elif len(found) > 1 and found not in STOP_WORDS:
            base = found if found.isascii() else _without_accents(found)
            yield Word(found, stem(_IRREGULAR.get(base, base)))
    for match in _DAY.finditer(plain):
        day, month = match["day"] or match["day_after"], match["month"] or match["month_first"]
        yield Word(match.group(), f"{month[:3]}{int(day)}")


def date_words(day: date) -> str:
    """A day as people write it: ``"8 May, 2023"``; found by its day, its month and its year.

    >>> from datetime import date
    >>> date_words(date(2023, 5, 8))
    '8 May, 2023'
    """
    return f"{day.day} {_MONTHS[day.month - 1]}, {day.year}"


def _in_english(match: re.Match[str]) -> str:
    return f" {_MONTHS[int(match[1]) - 1]} {match[2] or ''} "


@lru_cache(maxsize=10_000)
def _without_accents(word: str) -> str:
    decomposed = _ACCENTS.sub("", unicodedata.normalize("NFD", word))
    return unicodedata.normalize("NFC", decomposed)


def _is_grammar(pair: str) -> bool:
    return pair in _STOP_PAIRS or (pair[0] in _STOP_CHARACTERS and pair[1] in _STOP_CHARACTERS)
