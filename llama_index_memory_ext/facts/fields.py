"""Reads the fields of a model's entries, however the model names and writes them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any

from llama_index_memory_ext.fact import CATEGORIES, DEFAULT_CATEGORY
from llama_index_memory_ext.text.messages import unescape_tags

if TYPE_CHECKING:
    from llama_index_memory_ext.text.tool_calls import Json

# The tags around what a model reads. It copies quotes from there, where these are escaped.
TAGS = ("transcript", "known_facts", "said_before", "candidates")
# A model that gives no confidence at all means what it reports.
DEFAULT_CONFIDENCE = 0.8

# Of each field the words that stand for it in a key, the surest first. A key stands for the first field that it fits.
FACT_WORDS: Mapping[str, Sequence[str]] = {
    "label": ("label", "id", "ref"),
    "category": ("category", "type", "kind"),
    "confidence": ("confidence", "certainty", "probability", "score"),
    "valid_from": ("from", "since", "start"),
    "valid_until": ("until", "to", "end", "ended"),
    "quote": ("quote", "quotation", "evidence", "citation", "verbatim", "source", "original"),
    "content": ("content", "statement", "fact", "claim", "memory", "text", "description"),
}
RETIREMENT_WORDS: Mapping[str, Sequence[str]] = {
    "replaced_by": ("replaced", "replacement", "superseded", "successor", "new"),
    "quote": FACT_WORDS["quote"],
    "valid_until": FACT_WORDS["valid_until"],
    "reason": ("reason", "why", "explanation"),
    "number": ("number", "index", "id", "no", "fact"),
}
_WORD_IN_KEY = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_]+")
_MOST_KEYS = 50
_PLURALS = {"facts", "items", "memories", "statements"}
_NEW = {"new", "user", "extracted", "learned", "added", "fact", "item", "memory", "statement"}
_CONFIRMED, _RETIRED = ("confirm", "reconfirm", "reaffirm"), ("retire", "outdate", "obsolete", "invalidate")

_SUBJECT = re.compile(
    r"(?i)^(?:(?:the )?user(?:['\u2019]s | (?!interface|experience|stor|account|manual|group|name\b|id\b))"
    r"|用户(?!名|体验|界面|组))"
)
NOTHING = re.compile(
    r"(?i)(?:(?:there (?:is|are|were)|i (?:found|see|have)|found) )?"
    r"(?:no (?:(?:new|additional|relevant|further|lasting) )*(?:facts?|information|changes?)(?: [\w ]{0,60})?"
    r"|nothing(?: new| (?:new )?to \w+)?|none|null|n/a)[.! ]*"
    r"|(?:没有|无)(?:任何)?(?:新的?)?(?:事实|信息|内容)?[。. ]*|(?:新しい)?(?:事実|情報)は?(?:ありません|なし)[。. ]*"
)
_NO_CONTENT = re.compile(
    r"(?i)[^\w]*(?:(?:is |are )?(?:unknown|undefined|unspecified|nil|nan|tbd|n\.?/?a\.?|empty|nothing"
    r"|not (?:known|specified|stated|mentioned|provided|given|available|applicable))|未知|不明)?[^\w]*"
)
_LONGEST_NOTHING = 60
_CONFIDENCES = {"high": 0.9, "medium": 0.6, "moderate": 0.6, "low": 0.3}
_CONFIDENCE = re.compile(
    r"(?:(?:confidence|about|approx\.?|[\u2265>=~\u2248:])\s*)*"
    r"(?:(?P<number>\d+(?:[.,]\d+)?|[.,]\d+)(?:\s*(?P<percent>%)|\s*(?:/|out of)\s*(?P<of>[1-9]\d*))?"
    rf"|(?:(?:very|quite|extremely)[ -])?(?P<word>{'|'.join(_CONFIDENCES)}))"
    r"(?:[ -](?:confidence|certainty))?(?:\s*\([^()]*\))?[.!]?"
)
_PERCENT = 100
_DAY = re.compile(r"\d{4}(?:-\d\d){0,2}", re.ASCII)


def words_of(key: Json) -> list[str]:
    """Returns the words of a key in lower case and the singular: of "replacedBy", "Source Quotes".

    >>> words_of("newFacts"), words_of("source_quotes"), words_of("Memories")
    (['new', 'fact'], ['source', 'quote'], ['memory'])
    """
    words = [word.lower() for word in _WORD_IN_KEY.findall(str(key)[:100])]
    return [re.sub(r"ies$", "y", word) if word.endswith("ies") else re.sub(r"(?<=\w\w)s$", "", word) for word in words]


def section_of(key: Json) -> str:
    """Returns which of the three lists of a reply a key names; "" for none.

    >>> section_of("newFacts"), section_of("items"), section_of("confirmations"), section_of("known_facts")
    ('new_facts', 'new_facts', 'confirmed', '')
    """
    words = words_of(key)
    for section, starts in (("confirmed", _CONFIRMED), ("retired", _RETIRED)):
        if any(word.startswith(starts) for word in words):
            return section
    is_plural = "new" in words or re.sub(r".*[_\W]", "", _snake(str(key)[:100])) in _PLURALS
    return "new_facts" if words and is_plural and set(words) <= _NEW else ""


def fields_by_name(entry: Mapping[str, Json], words: Mapping[str, Sequence[str]]) -> dict[str, Json]:
    """Returns the fields of an entry that has them under these names, or under others that mean the same.

    >>> fields_by_name({"statement": "Likes tea", "sourceQuote": "I like tea"}, FACT_WORDS)
    {'quote': 'I like tea', 'content': 'Likes tea'}
    """
    fields = {name: entry[name] for name in words if name in entry}
    words_in = {key: words_of(key) for key in islice(entry, _MOST_KEYS) if key not in words}
    for name, others in words.items():
        key = None if name in fields else _key_with(others, words_in)
        if key is not None:
            fields[name] = entry[key]
            del words_in[key]
    return fields


def read_text(value: Json) -> str:
    """Returns the text of a quote or a reason; of several quotes one with "..." between them."""
    if isinstance(value, Mapping):
        value = fields_by_name(value, FACT_WORDS)
        value = value.get("quote") or value.get("content")
    if isinstance(value, list):
        return " ... ".join(read_text(part) for part in value if isinstance(part, str))
    return unescape_tags(value, TAGS) if isinstance(value, str) else ""


def read_statement(value: Json) -> str:
    """Returns the text on one line, "Prefers tea" where the model writes that the user prefers tea.

    A text that says nothing is "".

    >>> read_statement("The user prefers tea"), read_statement("N/A"), read_statement(" \u200b")
    ('Prefers tea', '', '')
    """
    content = " ".join(value.split()) if isinstance(value, str) else ""
    rest = _SUBJECT.sub("", content)
    content = content if rest == content else rest[:1].upper() + rest[1:]
    seen = "".join(character for character in content if unicodedata.category(character) != "Cf")
    return "" if NOTHING.fullmatch(seen) or _says_nothing(seen) else content


def read_category(value: Json, categories: Sequence[str] = CATEGORIES) -> str:
    """Returns one of the categories, the first of a list and of "habits|goals"; "knowledge" or the first for none."""
    known = {name.casefold(): name for name in categories}
    values = value if isinstance(value, list) else [value]
    texts = [part[:200] for part in values[:10] if isinstance(part, str)]
    names = [name.strip().casefold() for text in texts for name in re.split(r"[|,;/]", text)]
    for name in names:
        if found := get_close_matches(name, known, n=1, cutoff=0.85):
            return known[found[0]]
    return known.get(DEFAULT_CATEGORY, categories[0])


def read_label(value: Json) -> str:
    """Returns one spelling for "n1", "N1", "1" and 1; other labels in lower case, and "" for none."""
    text = str(value).strip().lower() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    number = re.fullmatch(r"(?:n|new|new fact)?[ #.]*(\d{1,9})", text, re.ASCII)
    if number:
        return f"n{int(number.group(1))}"
    return "" if text in {"none", "null", "n/a", "-"} else text


def read_number(value: Json) -> int:
    """Returns the number of a known fact; 0 for anything else."""
    if isinstance(value, Mapping):
        value = fields_by_name(value, RETIREMENT_WORDS).get("number")
    text = str(value).strip() if isinstance(value, str | int | float) else ""
    found = re.fullmatch(r"(?!-)\D{0,10}?(\d{1,9})(?:\.0*)?", text, re.ASCII)
    return int(found.group(1)) if found else 0


def read_confidence(value: Json) -> float:
    """Returns 0..1 from a number, a percentage, a fraction or a word; 0 for anything else, the default for None.

    >>> [read_confidence(value) for value in ("9/10", "0,95", "\u2265 .9", "95%", "high confidence", True, "NaN")]
    [0.9, 0.95, 0.9, 0.95, 0.9, 0.0, 0.0]
    """
    if value is None:
        return DEFAULT_CONFIDENCE
    number, scale = _number_and_scale(value)
    if scale == 1 and 1 < number <= _PERCENT:
        scale = _PERCENT
    return number / scale if 0 <= number <= scale else 0.0


def read_day(value: Json) -> str:
    """Returns a year, a month or a day as "2023", "2023-05" or "2023-05-17"; "" for anything else."""
    text = str(value).strip() if isinstance(value, str | int) else ""
    if _DAY.fullmatch(text):
        with suppress(ValueError):
            date.fromisoformat(f"{text}-01-01"[:10] if len(text) < len("2023-05") else f"{text}-01"[:10])
            return text
    return ""


def _key_with(words: Sequence[str], words_in: Mapping[str, Sequence[str]]) -> str | None:
    return next((key for word in words for key in words_in if word in words_in[key]), None)


def _snake(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()


def _says_nothing(text: str) -> bool:
    """Whether a text without invisible characters names nothing. A text of nothing but symbols may say something."""
    if len(text) > _LONGEST_NOTHING or not _NO_CONTENT.fullmatch(text):
        return False
    return not any(unicodedata.category(character).startswith("S") for character in text)


def _number_and_scale(value: Any) -> tuple[float, float]:
    if isinstance(value, str):
        match = _CONFIDENCE.fullmatch(value.strip().lower()[:200])
        if match is None:
            return -1, 1
        if match["word"]:
            return _CONFIDENCES[match["word"]], 1
        return float(match["number"].replace(",", ".")), _PERCENT if match["percent"] else float(match["of"] or 1)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _PERCENT
    return (float(value), 1) if is_number else (-1, 1)
