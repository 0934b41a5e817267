"""Finds the time in the past that a question is about."""

from __future__ import annotations

import re
import unicodedata
from calendar import monthrange
from datetime import date, timedelta
from typing import TYPE_CHECKING, NamedTuple

from llama_index_memory_ext.search.days import MONTH_PATTERN, MONTHS, with_named_months
from llama_index_memory_ext.search.tokenization import CHINESE_DIGITS, NUMBER_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Characters at each end of a long text, which is a question with something pasted.
_END = 1_000


class Period(NamedTuple):
    """A time from one day to another, both included."""

    start: date
    end: date


# A text is normalised first: all commas and question marks are those of ASCII.
_SENTENCE_END = re.compile(r"(?<=[?!])\s*|(?<=[^\d\s]\.)\s+|[\n。]+")
_CLAUSE_END = r"\s*(?:[?!.,;:)]|$)"
# What was said in the conversation is no fact of the past.
_TALK = re.compile(
    r"\b(?:did|have|had) you\b|\byou(?:'ve| have| had)? (?:just |already |also )?"
    r"(?:said|told|mentioned|wrote|suggested|recommended|gave|showed|explained|answered|asked)\b"
    r"|\b(?:i|we)(?:'ve| have| had)? (?:just |already |also )?(?:said|told|mentioned|asked|wrote|discussed|talked)\b"
    r"|\b(?:did|have|had|was|were) (?:i|we) (?:just |already |ever )?"
    r"(?:sa[iy]\w*|t[eo]l[ld]\w*|mention\w*|ask\w*|discuss\w*|talk\w*|mean\w*)\b"
    r"|\b(?:as|like|than|same as) (?:i said )?(?:before|earlier|previously)\b"
    r"|\b(?:gesagt|erzählt|erwähnt|gefragt|geschrieben|gemeint|besprochen)\b|\bhast du\b"
    r"|[你您我][们們]?[^,。]{0,6}[说說讲講问問]|提到|提过|告诉|告訴|言った|言い|言って|話し|話した|聞いた"
)
_OUR_TALK = (
    "message|question|answer|request|prompt|reply|change|command|commit|code|example|point|comment|one|step|edit|email|"
    "attempt|version|sentence|conversation|chat|session"
)
# Each mark says that the user asks about a past of their own.
_OWN_PAST = re.compile(
    r"\b(?:did|was|were|had) (?:i|we)\b(?! (?:just |even |really |already )?(?:sa[iy]|tell|ask|mean|mention|miss|forg|"
    r"get\b|discuss|talk|right\b|wrong\b|clear|correct|go wrong|(?:do|make) (?:it|this|that|wrong|right|an?\b|any\b)))"
    rf"(?!{_CLAUSE_END})"
    rf"|\b(?:was|were) (?:my|our)\b(?! (?:\w+ )?(?:{_OUR_TALK})s?\b)(?!.*\bagain\b)"
    rf"|\b(?:my|our) (?:previous|former|old|earlier|past) (?!(?:{_OUR_TALK})s?\b)"
    r"|\b(?:i|we) used to\b|(?<!\bis )(?<!\bare )(?<!\bbe )(?<!\bam )(?<!'m )(?<!\bget )(?<!\bgot )"
    r"\bused to (?:be|live|work|have|own|prefer|like|love|drive|play|drink|eat)\b"
    r"|\bhave (?:i|we) (?:ever|lived|worked|owned|used|had)\b"
    r"|\b(?:i|we) (?!need)(?:\w{2,}ed|had|was|were|drank|drove|ate|wore|kept|went|did)\b[^.?!]*"
    rf"\b(?:before(?: that| then)?{_CLAUSE_END}|earlier{_CLAUSE_END}|previously|back then)"
    r"|\b(?:hatten?|waren?|wohnten?|arbeiteten?|benutzten?|hießen?|hieß|mochten?) (?:ich|wir)\b"
    r"|\b(?:habe?|bin|haben|sind) (?:ich|wir)\b[^.?!]*\b(?!(?:gesagt|gefragt|gemeint)\b)"
    rf"(?:\w*ge\w{{2,}}(?:t|en)|benutzt|verwendet|besucht|\w+iert){_CLAUSE_END}"
    r"|\b(?:mein|unser)e?[nrsm]? (?:früher|ehemalig|vorig|vorherig|alt)e?[nrsm]?\b"
    r"|我[们們]?[^,。]{0,4}[住用养養做当當学學读讀][过過]|[てで]い(?:ました|た(?!だ))|[んっ][てで]た(?=[?っのか]|$)"
)
# A mark of the past in general, where nobody speaks of what was said, or of what to do.
_PAST = re.compile(
    r"\b(?:previously|formerly|back then|back when|in the past|in those days|(?:years?|months?|long|ages) ago)\b"
    r"|\b(?:damals|ehemals|einst|vor (?:einigen|ein paar|vielen) (?:jahren|monaten)|in der vergangenheit)\b"
    r"|(?:^|[\s,、私僕俺はが们們我])(?:以前|之前|从前|從前)(?!に?[说說])|曾[经經]|我[们們]?(?:[过過]去(?=[的曾常都是用住在])|原[来來先])"
    r"|[当當]时|[当當]時|那[时時]|昔|かつて|(?:あの|その)(?:頃|ころ)|(?:^|[\s,、私僕俺は])前(?:は|に|の(?=仕事|会社|家|職|住|学校|車|名前))"
)
_PAST_OR_PLAN = re.compile(
    rf"\b(?:before(?: that| then)?|earlier){_CLAUSE_END}|\bbefore (?:now|today)\b|\b(?:früher|vorher|zuvor)\b"
)
_PLAN = re.compile(
    r"\b(?:can|could|should|shall|will|would|may|might|must|need|let|do|does|please|kann|können|könnten?|sollt?e?n?|muss|"
    r"müssen|darf|dürfen|werden?|wird|möchten?|bitte)\b"
)
_OWN = re.compile(r"\b(?:i|me|my|mine|we|us|our|ich|mir|mich|wir|uns|(?:mein|unser)(?:e[nrsm]?)?)\b|[我咱私僕俺]")
# "And in 2023?"
_FEW_WORDS = 3

_GERMAN_MONTHS = {"mär": 3, "mae": 3, "mai": 5, "okt": 10, "dez": 12, "jän": 1}
_MONTH = rf"{MONTH_PATTERN}|januar|jänner|februar|märz|maerz|mai|juni|juli|oktober|okt|dezember|dez"
_YEAR = r"(?P<y>(?:19|20)\d\d)"
_BEFORE = r"(?P<before>\b(?:before|until|till|by|bis|vor)(?: the| end of| zum| dem)? )?"
_SINCE = r"(?P<since>\b(?:since|after|seit|nach|ab)(?: dem)? )?"
_DATES = tuple(
    re.compile(f"{_BEFORE}{_SINCE}{pattern}(?P<before_cjk>(?:之|以)?前)?")
    for pattern in (
        rf"(?<!\d){_YEAR}[-/.](?P<m>\d{{1,2}})(?:[-/.](?P<d>\d{{1,2}}))?(?![\d.])",
        rf"(?<!\d)(?P<d>\d{{1,2}})\.(?P<m>\d{{1,2}})\.{_YEAR}(?!\d)",
        rf"(?<![a-z0-9])(?P<d>[0-3]?\d)(?:st|nd|rd|th|\.)? (?:of )?(?P<m>{_MONTH})\b\.?(?:,? {_YEAR}(?!\d))?",
        rf"\b(?P<m>{_MONTH})\b\.? (?P<d>[0-3]?\d)(?:st|nd|rd|th)?\b(?!\d)(?:,? {_YEAR}(?!\d))?",
        rf"\b(?P<m>{_MONTH})\b\.?,? (?:of )?{_YEAR}(?!\d)",
        rf"\b(?:in|im|last|letzten|during|until|before|since) (?P<m>{_MONTH})\b(?!,? \d)",
        rf"{_YEAR}年(?:の?(?P<m>\d{{1,2}})月(?:(?P<d>\d{{1,2}})[日号號])?)?",
        r"(?<![\d年])(?P<m>\d{1,2})月(?:(?P<d>\d{1,2})[日号號])?",
        rf"(?<![\w.,$€£#:/-]){_YEAR}(?![\w%€]|[.,:/-]\d)",
    )
)
_BARE_YEAR = _DATES[-1]
_YEAR_WORD = re.compile(
    r"\b(?:in|during|since|until|till|before|after|by|from|of|early|late|mid|and|to|summer|winter|spring|autumn|fall|"
    r"jahre?|seit|bis|von|und|sommer|herbst|frühjahr|anfang|ende|back in) $"
)
_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365, "tag": 1, "woche": 7, "monat": 30, "jahr": 365}
_DAYS |= {"天": 1, "日": 1, "周": 7, "星期": 7, "週": 7, "月": 30, "年": 365}
_GERMAN_NUMBERS = str.split("null ein zwei drei vier fünf sechs sieben acht neun zehn")
_NUMBERS = (
    NUMBER_WORDS | CHINESE_DIGITS | {word: i for i, word in enumerate(_GERMAN_NUMBERS)} | {"a": 1, "an": 1, "十": 10}
)
_AGO = re.compile(
    r"\b(?P<n>\d{1,2}|[a-z]+) (?P<unit>day|week|month|year)s? ago\b"
    r"|\bvor (?P<n2>\d{1,2}|ein|[a-zü]+?)(?:e[mrn])? (?P<unit2>tag|woche|monat|jahr)(?:en?|n)?\b"
    r"|(?<!\d)(?P<n3>\d{1,2}|[一二两兩三四五六七八九十])\s?[个個かヶカケ]?(?P<unit3>天|日|周|星期|週|月|年)[间間]?(?:之|以)?前"
)
_LAST = re.compile(
    r"\b(?:last|letzte[nrsm]?|vorige[nrsm]?|vergangene[nrsm]?) (?P<unit>year|month|week|jahr|monat|woche)\b"
    r"|(?P<year>去年|昨年)|(?P<year2>前年|一昨年|おととし)|(?P<month>上个月|上個月|先月)|(?P<week>上周|上星期|先週)"
    r"|\b(?P<day>yesterday|gestern)\b|(?P<day2>昨天|昨日)"
)


def period_asked(question: str, today: date) -> Period | None:
    """The time that a question about the user's past asks for; None if it asks for no past.

    A year, a month or a day, in English, German, Chinese or Japanese, is that time; "before", "used to" or "did I"
    alone stand for all time until today. A time of somebody else's ("the World Cup of 2018"), what was said in the
    conversation, and what is still to come are no past of the user's.

    >>> period_asked("Where did I live in 2023?", date(2026, 11, 20))
    Period(start=datetime.date(2023, 1, 1), end=datetime.date(2023, 12, 31))
    >>> period_asked("Where do I live?", date(2026, 11, 20))
    """
    text = question if len(question) <= 2 * _END else f"{question[:_END]}\n{question[-_END:]}"
    normal = unicodedata.normalize("NFKC", text.translate({0x2019: "'"}))
    is_short = len(normal.split()) <= _FEW_WORDS
    plain = with_named_months(normal).casefold()
    sentences = (part.strip(" ?!.") for part in _SENTENCE_END.split(plain))
    return _spanned([period for one in sentences if (period := _asked_in(one, today, is_short=is_short))])


def _spanned(periods: Sequence[Period]) -> Period | None:
    """The time from the first day of all periods to the last one; None for none."""
    return Period(min(one.start for one in periods), max(one.end for one in periods)) if periods else None


def _asked_in(sentence: str, today: date, *, is_short: bool) -> Period | None:
    is_talk = _TALK.search(sentence) is not None
    marked = _is_marked(sentence, is_talk=is_talk)
    period = _spanned(list(_times_in(sentence, today, marked=marked or is_short)))
    if period is None:
        return Period(date.min, today) if marked else None
    if marked:
        return period if period.start <= today else None
    is_own = is_short or _OWN.search(sentence)
    return period if period.end < today and is_own and not is_talk else None


def _is_marked(sentence: str, *, is_talk: bool) -> bool:
    """Whether a sentence asks about the past by its words, whatever time it names."""
    if _OWN_PAST.search(sentence):
        return True
    is_past = _PAST.search(sentence) or (_PAST_OR_PLAN.search(sentence) and not _PLAN.search(sentence))
    return bool(is_past) and not is_talk


def _times_in(sentence: str, today: date, *, marked: bool) -> Iterator[Period]:
    """Yields the times that a sentence names; without a mark of the past only those that say their year."""
    yield from _relative_times(sentence, today)
    for pattern in _DATES:
        for match in pattern.finditer(sentence):
            if (marked or _says_year(match)) and (period := _period_of(match.groupdict(), today)):
                yield period
        # Nothing of it is read again by the patterns that say less.
        sentence = pattern.sub(" , ", sentence)


def _says_year(match: re.Match[str]) -> bool:
    """Whether a match has a year. A number alone is one if a word before it says so."""
    parts = match.groupdict()
    if match.re is _BARE_YEAR and not (parts["before"] or parts["since"]):
        return _YEAR_WORD.search(match.string[: match.start()]) is not None
    return bool(parts.get("y"))


def _period_of(parts: dict[str, str | None], today: date) -> Period | None:
    """The time of a match: a year, a month or a day, or all before or since it; None if there is no such day."""
    named = _named_time(parts, today)
    if named is None:
        return None
    before = (parts.get("before") or parts.get("before_cjk") or "").split()
    if before:
        is_whole = before[0] in {"until", "till", "by", "bis"}
        return Period(date.min, named.end if is_whole else named.start - timedelta(days=1))
    return named._replace(end=max(named.end, today)) if parts.get("since") else named


def _named_time(parts: dict[str, str | None], today: date) -> Period | None:
    month, day = _month(parts.get("m")), int(parts.get("d") or 0)
    year = int(parts.get("y") or today.year)
    if not parts.get("y") and (month, day) > (today.month, today.day):
        year -= 1
    try:
        start = date(year, month or 1, day or 1)
    except ValueError:
        return None
    last_month = month or len(MONTHS)
    return Period(start, start if day else date(year, last_month, monthrange(year, last_month)[1]))


def _month(text: str | None) -> int:
    if not text or text.isdigit():
        return int(text or 0)
    starts = {month[:3].lower(): i for i, month in enumerate(MONTHS, 1)} | _GERMAN_MONTHS
    return starts[text[:3]]


def _relative_times(sentence: str, today: date) -> Iterator[Period]:
    for match in _AGO.finditer(sentence):
        number, unit = (match[match.lastindex - 1], match[match.lastindex]) if match.lastindex else ("", "")
        count = int(number) if number.isdecimal() else _NUMBERS.get(number, 0)
        if count:
            middle, half = today - timedelta(days=count * _DAYS[unit]), timedelta(days=_DAYS[unit] // 2)
            yield Period(middle - half, middle + half)
    for match in _LAST.finditer(sentence):
        yield _last(match, today)


def _last(match: re.Match[str], today: date) -> Period:
    """The year, the month, the week or the day before this one."""
    unit = match["unit"] or str(match.lastgroup).rstrip("2")
    if unit in ("year", "jahr"):
        year = today.year - (2 if match["year2"] else 1)
        return Period(date(year, 1, 1), date(year, 12, 31))
    if unit in ("month", "monat"):
        end = today.replace(day=1) - timedelta(days=1)
        return Period(end.replace(day=1), end)
    if unit == "day":
        return Period(today - timedelta(days=1), today - timedelta(days=1))
    monday = today - timedelta(days=today.weekday() + 7)
    return Period(monday, monday + timedelta(days=6))
