"""Finds the time in the past that a question is about."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from datetime import date, timedelta
from typing import TYPE_CHECKING

from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.language import pattern
from llama_index_memory_ext.language.dates import Period, dates_in, period_of, relative_periods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from llama_index_memory_ext.fact import Fact, RetiredBy


# Characters at each end of a long text, which is a question with something pasted.
_END = 1_000


# A text is normalised first: all commas and question marks are those of ASCII.
_SENTENCE_END = r"(?<=[?!])\s*|(?<=[^\d\s]\.)\s+|[\n。]+"
_CLAUSE_END = r"\s*(?:[?!.,;:)]|$)"
# What was said in the conversation is no fact of the past.
_TALK = (
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
_OWN_PAST = (
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
_PAST = (
    r"\b(?:previously|formerly|back then|back when|in the past|in those days|(?:years?|months?|long|ages) ago)\b"
    r"|\b(?:damals|ehemals|einst|vor (?:einigen|ein paar|vielen) (?:jahren|monaten)|in der vergangenheit)\b"
    r"|(?:^|[\s,、私僕俺はが们們我])(?:以前|之前|从前|從前)(?!に?[说說])|曾[经經]|我[们們]?(?:[过過]去(?=[的曾常都是用住在])|原[来來先])"
    r"|[当當]时|[当當]時|那[时時]|昔|かつて|(?:あの|その)(?:頃|ころ)|(?:^|[\s,、私僕俺は])前(?:は|に|の(?=仕事|会社|家|職|住|学校|車|名前))"
)
_PAST_OR_PLAN = (
    rf"\b(?:before(?: that| then)?|earlier){_CLAUSE_END}|\bbefore (?:now|today)\b|\b(?:früher|vorher|zuvor)\b"
)
_PLAN = (
    r"\b(?:can|could|should|shall|will|would|may|might|must|need|let|do|does|please|kann|können|könnten?|sollt?e?n?|muss|"
    r"müssen|darf|dürfen|werden?|wird|möchten?|bitte)\b"
)
_OWN = r"\b(?:i|me|my|mine|we|us|our|ich|mir|mich|wir|uns|(?:mein|unser)(?:e[nrsm]?)?)\b|[我咱私僕俺]"
# "And in 2023?"
_FEW_WORDS = 3

# What stands before a date that is all time until it, or since it; before a year that stands alone; and before a month.
_BEFORE = r"\b(before|until|till|by|bis|vor)(?: the| end of| zum| dem)? $"
_SINCE = r"\b(?:since|after|seit|nach|ab)(?: dem)? $"
_YEAR_WORD = (
    r"\b(?:in|during|since|until|till|before|after|by|from|of|early|late|mid|and|to|summer|winter|spring|autumn|fall|"
    r"jahre?|seit|bis|von|und|sommer|herbst|frühjahr|anfang|ende|back in) $"
)
_MONTH_WORD = r"\b(?:in|im|last|letzten|during|until|before|since) $"
_BEFORE_IN_CHARACTERS = ("前", "之前", "以前")


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
    sentences = (part.strip(" ?!.") for part in pattern(_SENTENCE_END).split(normal))
    return _spanned([period for one in sentences if (period := _asked_in(one, today, is_short=is_short))])


def _spanned(periods: Sequence[Period]) -> Period | None:
    """The time from the first day of all periods to the last one; None for none."""
    return Period(min(one.start for one in periods), max(one.end for one in periods)) if periods else None


def _asked_in(sentence: str, today: date, *, is_short: bool) -> Period | None:
    plain = sentence.casefold()
    is_talk = pattern(_TALK).search(plain) is not None
    marked = _is_marked(plain, is_talk=is_talk)
    times = [*relative_periods(plain, today), *_times_in(sentence, today, marked=marked or is_short)]
    period = _spanned(times)
    if period is None:
        return Period(date.min, today) if marked else None
    if marked:
        return period if period.start <= today else None
    is_own = is_short or pattern(_OWN).search(plain)
    return period if period.end < today and is_own and not is_talk else None


def _is_marked(sentence: str, *, is_talk: bool) -> bool:
    """Whether a sentence asks about the past by its words, whatever time it names."""
    if pattern(_OWN_PAST).search(sentence):
        return True
    is_past = pattern(_PAST).search(sentence) or (
        pattern(_PAST_OR_PLAN).search(sentence) and not pattern(_PLAN).search(sentence)
    )
    return bool(is_past) and not is_talk


def _times_in(sentence: str, today: date, *, marked: bool) -> Iterator[Period]:
    """Yields the dates that a sentence names; without a mark of the past only those that say their year."""
    for found in dates_in(sentence):
        written = sentence[found.start : found.end]
        ahead, behind = sentence[: found.start].casefold(), sentence[found.end :]
        before, since = pattern(_BEFORE).search(ahead), pattern(_SINCE).search(ahead)
        for day in found.readings:
            named = period_of(day, today)
            if day.month is None:
                # A number alone is a year if a word before it says so.
                is_told = before or since or pattern(_YEAR_WORD).search(ahead)
                is_time = written.endswith("年") or (written.isdigit() and (marked or is_told is not None))
            else:
                is_whole = bool(day.day) or "月" in written or pattern(_MONTH_WORD).search(ahead) is not None
                is_time = day.year is not None or (marked and is_whole)
            if named is None or not is_time:
                continue
            if before and before[1] in ("until", "till", "by", "bis"):
                yield Period(date.min, named.end)
            elif before or behind.startswith(_BEFORE_IN_CHARACTERS):
                yield Period(date.min, named.start - timedelta(days=1))
            else:
                yield named._replace(end=max(named.end, today)) if since else named


# The user wants it gone: then it is nothing to be told about the past.
_FORGET = (
    r"(?i)\b(?:forget|(?:delete|erase|remove) (?:that|this|it|what|all|everything|from|the (?:fact|note)s?)|"
    r"(?:do not|don'?t|stop) (?:remember|stor|keep|mention)\w*|vergiss|vergessen|lösch(?:e|en)?)\b"
    r"|忘[记記掉了]|[删刪]除|别[再]?(?:记|提)|忘れ[てろ]|消[しせ]|削除"
)
# It was never true, other than what has changed.
_NEVER_TRUE = (
    r"(?i)\bnever (?:was|were|did|had|has|have|lived|worked|said|been|true)\b|\bi(?:'ve| have)? never\b"
    r"|\b(?:mistaken?|mistakenly|misheard|misunderst\w+|misspelled|mistyped|typo|incorrect|wrong)\b"
    r"|\b(?:ich|war|habe?|hatte) (?:\w+ )?(?:nie|niemals)\b|\b(?:falsch|irrtum|missverständnis|vertippt)\b"
    r"|从[来來]没|從來沒|[说說记記][错錯]|不[对對]|[误誤][会會解]|間違|誤解|一度も"
)


def why_retired(text: str) -> RetiredBy:
    """By what a fact was ended, from the user's words and the reason that a model gives.

    >>> why_retired("I moved to Rome"), why_retired("I never lived in Oslo"), why_retired("Forget where I live")
    ('change', 'correction', 'request')
    """
    straight = text.replace("\u2019", "'")
    if pattern(_FORGET).search(straight):
        return "request"
    return "correction" if pattern(_NEVER_TRUE).search(straight) else "change"


def past_facts(facts: Mapping[str, Fact], now: datetime) -> Iterator[Fact]:
    """Yield the facts that were true before, by id: without those whose successor the user wants forgotten."""
    for fact in facts.values():
        if fact.state(now) == "past":
            after = _reached(fact.id, lambda one: _successors(facts[one]) if one in facts else ())
            if all(facts[one].retired_by != "request" for one in after if one in facts):
                yield fact


def true_in(fact: Fact, period: Period) -> bool:
    """Return whether a past fact was true on a day of a period; without a known beginning it was true ever before."""
    end = fact.ends or date.max
    # It became known only later.
    start = fact.began if fact.began <= end else date.min
    return start <= period.end and end >= period.start


def history_of(facts: Iterable[Fact], fact_id: str, namespace: str) -> list[Fact]:
    """Return the fact with all that it has replaced and all that has replaced it, oldest first.

    A replacement that was undone counts, too. Raises a FactError if there is no such fact.
    """
    known = {fact.id: fact for fact in facts}
    if fact_id not in known:
        raise FactError(f"There is no fact {fact_id!r} of {namespace!r} among {len(known)}. List them first.")
    replaced = defaultdict[str, list[str]](list)
    for fact in known.values():
        for successor in _successors(fact):
            replaced[successor].append(fact.id)
    before = _reached(fact_id, lambda one: replaced[one])
    after = _reached(fact_id, lambda one: _successors(known[one]) if one in known else ())
    chain = dict.fromkeys([*reversed(before), fact_id, *after])
    return sorted((known[one] for one in chain if one in known), key=lambda one: one.created_at)


def _reached(start: str, links: Callable[[str], Iterable[str]]) -> list[str]:
    """Return the ids that are reached from one, link by link, nearest first."""
    found = [start]
    for one in found:
        found += [other for other in dict.fromkeys(links(one)) if other not in found]
    return found[1:]


def _successors(fact: Fact) -> list[str]:
    """Return the ids of what has replaced a fact, also of what did so once."""
    return [one for one in (*(past.replaced_by for past in fact.past_retirements), fact.replaced_by) if one]
