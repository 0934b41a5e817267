"""Writes the days that a text names in one way, and tells the month of May from the verb."""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

MONTHS = str.split("January February March April May June July August September October November December")
# Matches the English names of the months and their first three letters, in lower case.
MONTH_PATTERN = "|".join(f"{month[:3]}(?:{month[3:]})?" for month in MONTHS).replace("(?:)?", "").lower()

# Searching for these first is much faster where there is no date.
_SEPARATED = re.compile("[0-9][-./][0-9]")
_MAY = re.compile(r"[Mm][Aa][Yy]\b(?<=\b...)")
# A part of a longer number, an address, an id, a phone number or a path is no date.
_NUMERIC_DATE = re.compile(
    r"(?<![\w.+#/-])(\d{1,4})([-./])(\d{1,2})(?:\2(\d{1,4}))?(?:T(?=\d\d)|(?!\w|[-./]\d))", re.ASCII
)
_CHINESE_DATE = re.compile(r"(?<!\d)(1[0-2]|0?[1-9])\s?月(?:\s?([0-3]?\d)\s?[日号號])?")
_YEARS = range(1800, 2200)

# How much of a text on each side of a "may" is looked at.
_NEAR = 40
_OTHER_MONTHS = MONTH_PATTERN.replace("|may|", "|")
_MONTH_BEFORE = re.compile(
    r"(?:\b(?:in|of|since|until|till|by|during|before|after|from|to|through|on|for|at|with|around|about|last|next|early|"
    r"mid|late|every|the|an?|my|your|his|her|our|their|is|was|does|did)|\b\d+(?:st|nd|rd|th)?"
    rf"|\b(?:{_OTHER_MONTHS})(?:,| and| or| to))[\s-]+$"
)
_MONTH_AFTER = re.compile(rf"[\s,'-]+\d|(?:\s?[,/-]\s?|\s(?:and|or|to|until)\s)(?:{_OTHER_MONTHS})\b")
_AFTER_VERB = frozenset(("be", "have", "not"))
_SUBJECTS = frozenset(str.split("i you he she it we they who what which that there these those"))
# What follows a verb that stands before its subject.
_SUBJECT_BEGINS = _SUBJECTS | frozenset(str.split("this a an the my your his her our their any some anyone someone"))
# Also the end of a clause.
_AFTER_NOUN = re.compile(r"(?:|is|was|has|had|does|did|will|would|can|could|\w*[^\We]ed)$")
_WORD_BEFORE, _WORD_AFTER = re.compile(r"(\w+)[\s\"(-]*$"), re.compile(r"[\s\"-]*(\w+)")


def day_words(year: int, month: int, day: int) -> str:
    """Returns a day, "8 May, 2023", or with day 0 a month, "May 2023"."""
    name = MONTHS[month - 1]
    return f"{day} {name}, {year}" if day else f"{name} {year}"


def with_named_months(text: str) -> str:
    """Returns a text in which "2026-03-14", "14.03.2026" and "3/14/2026" are "14 March, 2026", "2026-03" "March 2026".

    With "/" or "-" and the year at the end, the day or the month may come first: what can be both is written as both.

    >>> with_named_months("Since 03/04/2026, as 192.168.1.1")
    'Since 3 April, 2026, 4 March, 2026, as 192.168.1.1'
    """
    return _NUMERIC_DATE.sub(_named, text) if _SEPARATED.search(text) else text


def with_english_months(text: str) -> str:
    """Returns a text in which Chinese and Japanese months are English: "May 8" for "5月8日"."""
    if "月" not in text:
        return text
    return _CHINESE_DATE.sub(lambda found: f" {MONTHS[int(found[1]) - 1]} {int(found[2]) if found[2] else ''} ", text)


def without_verb_may(text: str, past_forms: Container[str] = ()) -> str:
    """Returns a text without each "may" that is no month and no name, by the words beside it.

    ``past_forms`` are irregular forms of verbs, such as "bought", which follow a name but no "may".

    >>> without_verb_may("May I go in May? It may rain.")
    ' I go in May? It  rain.'
    """
    if not _MAY.search(text):
        return text
    return _MAY.sub(lambda may: may.group() if _is_noun(may, past_forms) else "", text)


def _named(found: re.Match[str]) -> str:
    days = _named_days(*found.groups())
    if not days:
        return found.group()
    return f"{days} " if found.group().endswith("T") else days


# Many lines of a text name the same day.
@lru_cache(maxsize=1_000)
def _named_days(first: str, separator: str, second: str, third: str | None) -> str:
    days = _readings(first, separator, second, third or "")
    return ", ".join(dict.fromkeys(day_words(*day) for day in days if _exists(*day)))


def _readings(first: str, separator: str, second: str, third: str) -> Iterator[tuple[int, int, int]]:
    """Yields the year, the month and the day that three numbers may mean; day 0 for a month."""
    match len(first), separator, len(second), len(third):
        case 4, "-", 2, 0:
            yield int(first), int(second), 0
        # "2026.1.2" is rather a version.
        case (4, "-" | "/", _, 1 | 2) | (4, ".", 2, 2):
            yield int(first), int(second), int(third)
        case 1 | 2, _, _, 4:
            yield int(third), int(second), int(first)
            if separator != ".":
                yield int(third), int(first), int(second)


def _exists(year: int, month: int, day: int) -> bool:
    try:
        return date(year, month, day or 1).year in _YEARS
    except ValueError:
        return False


def _is_noun(may: re.Match[str], past_forms: Container[str]) -> bool:
    text, written = may.string, may.group()
    before, after = text[max(may.start() - _NEAR, 0) : may.start()], text[may.end() : may.end() + _NEAR]
    left, right = _word(_WORD_BEFORE.search(before)), _word(_WORD_AFTER.match(after))
    next_word = right.casefold()
    if next_word in _AFTER_VERB:
        return False
    if _MONTH_BEFORE.search(before.casefold()) or _MONTH_AFTER.match(after.casefold()):
        return True
    if left.casefold() in _SUBJECTS or next_word in _SUBJECT_BEGINS:
        return (left, written) == ("this", "May")
    if next_word in past_forms or _AFTER_NOUN.match(next_word):
        return True
    return written == "May" and _is_capital_told(left, right)


def _word(found: re.Match[str] | None) -> str:
    return found[1] if found else ""


def _is_capital_told(left: str, right: str) -> bool:
    """Whether a capital letter between these words tells a name: not in a title, nor where a sentence begins."""
    is_title = all(word[0].isupper() for word in (left, right) if word)
    is_inflected = right.endswith("s") and not right.endswith(("ss", "us"))
    return not is_title and (bool(left) or is_inflected)
