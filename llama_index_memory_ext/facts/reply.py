"""Reads what a model answers when it is asked for facts, also where that is not quite valid JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from itertools import islice
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from llama_index_memory_ext.errors import FactReplyError
from llama_index_memory_ext.fact import CATEGORIES
from llama_index_memory_ext.facts.fields import (
    FACT_WORDS,
    NOTHING,
    RETIREMENT_WORDS,
    fields_by_name,
    read_category,
    read_confidence,
    read_day,
    read_label,
    read_number,
    read_statement,
    read_text,
    section_of,
    words_of,
)
from llama_index_memory_ext.text.loose_json import Found, loose_values, unescaped

if TYPE_CHECKING:
    from llama_index_memory_ext.text.tool_calls import Json

_EMPTY = re.compile(r"[^\[{]*(?:\[\s*\]|\{\s*\})")
_OPENING_BRACKET = re.compile(r"[\[{]")
# The first key or string of a reply that is written as a string.
_STARTS_JSON = re.compile(r'\s*"?\s*[\[{]')
_IS_ESCAPED = re.compile(r"[^\[{]*[\[{](?:\\+[nrt]|[\s\[{])*\\+[\"']")
_MOST_LAYERS = 3
# Each attempt to decode what begins with a bracket may go on to the end of the text.
_MAX_ATTEMPTS = 50
# No reply has as many.
_MOST_ENTRIES, _MOST_KEYS = 1_000, 50
_NAME_BEFORE = re.compile(r"[^\W\d]+")
_NAME_CHARACTERS = 80
# Words between the name of a list and the list, in the tags of models and in headings.
_FILLING = {"parameter", "arg", "key", "value", "json"}

_Label = Annotated[str, BeforeValidator(read_label)]
_Number = Annotated[int, BeforeValidator(read_number)]
_Quote = Annotated[str, BeforeValidator(read_text)]
_Day = Annotated[str, BeforeValidator(read_day)]


def _without_titles(schema: dict[str, Json]) -> None:
    for part in (schema, *schema["properties"].values()):
        part.pop("title", None)


# They say nothing that the names do not say, and are paid for with each turn.
_CONFIG = ConfigDict(frozen=True, json_schema_extra=_without_titles)


class _Entry(BaseModel):
    """Any value can be read: a number alone is that of a known fact, and what is missing is None."""

    model_config = _CONFIG
    words: ClassVar[Mapping[str, Sequence[str]]]

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Json) -> dict[str, Json]:
        fields = fields_by_name(value, cls.words) if isinstance(value, Mapping) else {"number": value}
        return {name: fields.get(name) for name in cls.model_fields}


# The docstrings and descriptions of these classes are sent to the model, in the schema of the tool.
class NewFact(_Entry):
    """Something new about the user."""

    # An unusable one has no content.

    words = FACT_WORDS

    label: _Label = Field(description="n1, n2, ...")
    content: Annotated[str, BeforeValidator(read_statement)] = Field(
        description="One statement, in the third person and without a subject."
    )
    category: str
    confidence: Annotated[float, BeforeValidator(read_confidence)] = Field(description="0 to 1")
    quote: _Quote = Field(description="The user's own words, verbatim.")
    valid_from: _Day = Field(description="A date or empty.")
    valid_until: _Day = Field(description="A date or empty.")

    @field_validator("category", mode="before")
    @classmethod
    def _one_category(cls, value: Json, info: ValidationInfo) -> str:
        return read_category(value, (info.context or {}).get("categories", CATEGORIES))


class Retirement(_Entry):
    """A known fact that is true no longer."""

    # The number of an unusable one is 0.

    words = RETIREMENT_WORDS

    number: _Number = Field(description="The number of the known fact.")
    reason: Annotated[str, BeforeValidator(lambda value: " ".join(read_text(value).split()))]
    replaced_by: _Label = Field(description="The label of the new fact that holds instead, or empty.")
    quote: _Quote = Field(description="The user's own words, verbatim.")
    valid_until: _Day = Field(description="A date or empty.")


class ExtractionReply(BaseModel):
    """What the conversation says about the user. ``ExtractionReply.model_validate({})`` is "nothing new".

    Whatever JSON value stands in a list becomes an entry of it, so that one bad entry does not spoil the rest. The
    context of the validation may name the ``categories`` that there are, and ``labels_by_place=False`` a reply in which
    a fact without a label may stand at a wrong place.
    """

    model_config = _CONFIG

    new_facts: list[NewFact]
    confirmed: list[_Number] = Field(description="Numbers of known facts that the user says again.")
    retired: list[Retirement]

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Mapping[str, Json], info: ValidationInfo) -> dict[str, Json]:
        sections: dict[str, list[Json]] = {"new_facts": [], "confirmed": [], "retired": []}
        for key, part in value.items():
            if section := section_of(key):
                sections[section] += _entries(part)
        first = "n" if (info.context or {}).get("labels_by_place", True) else "torn"
        sections = {section: entries[:_MOST_ENTRIES] for section, entries in sections.items()}
        new_facts = [_labelled(entry, f"{first}{i}") for i, entry in enumerate(sections["new_facts"], 1)]
        return {**sections, "new_facts": new_facts}

    @property
    def usable(self) -> int:
        """The number of entries that say something."""
        facts, retired = (fact.content for fact in self.new_facts), (entry.number for entry in self.retired)
        return sum(map(bool, (*facts, *retired, *self.confirmed)))

    @property
    def is_empty(self) -> bool:
        """Whether nothing was reported."""
        return not (self.new_facts or self.confirmed or self.retired)


def parse_reply(text: str, *, categories: Sequence[str] = CATEGORIES) -> ExtractionReply:
    """Returns the reply in a text, with any other text before and after it.

    Of a truncated or broken reply the complete entries are returned. An empty text and "no new facts" give a reply
    without entries. A category that is none of ``categories`` becomes "knowledge" if that is one, else the first of
    them. Raises a FactReplyError if there is text, but no reply in it.

    >>> parse_reply('Sure! {"confirmed": [2],}').confirmed
    [2]
    >>> parse_reply("No new facts.").new_facts
    []
    """
    answer, nothing = _unwrapped(text), ExtractionReply.model_validate({})
    if not answer or NOTHING.fullmatch(answer):
        return nothing
    exact = _reading(_exact(answer), answer, categories)
    loose = _reading(loose_values(answer), answer, categories)
    # Of two that say equally much, what is valid JSON is surer.
    best = max(exact, loose, key=lambda reading: (reading.reply.usable, reading.is_reply))
    is_whole = best.is_reply and not (exact.cut or loose.cut)
    if best.reply.usable or (is_whole and (best is exact or best.reply.is_empty)):
        return best.reply
    if _EMPTY.match(answer):
        return nothing
    raise FactReplyError(text)


def merge_replies(replies: Sequence[ExtractionReply]) -> ExtractionReply:
    """Returns all replies as one. A label refers to the facts of its own reply only."""
    if len(replies) == 1:
        return replies[0]
    new_facts, retired = [], []
    for i, reply in enumerate(replies):
        new_facts += [fact.model_copy(update={"label": f"{fact.label}.{i}"}) for fact in reply.new_facts]
        retired += [
            entry.model_copy(update={"replaced_by": entry.replaced_by and f"{entry.replaced_by}.{i}"})
            for entry in reply.retired
        ]
    confirmed = [number for reply in replies for number in reply.confirmed]
    return ExtractionReply.model_construct(new_facts=new_facts, confirmed=confirmed, retired=retired)


def objects_in(values: Sequence[Json]) -> Iterator[dict[str, Json]]:
    """Yields the objects in JSON values, outermost first, but not those within an object that is a reply."""
    waiting = [*reversed(values)]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += [] if _is_reply(part) else reversed(part.values())
        elif isinstance(part, list):
            waiting += reversed(part)
        elif _is_json(part):
            # Some models wrap the whole reply in a string.
            waiting += reversed(_in_string(part))


@dataclass(frozen=True)
class _Reading:
    """What the values of a text say. It is a reply if one of the three lists is named, and may be cut in one."""

    reply: ExtractionReply
    is_reply: bool
    cut: bool


def _unwrapped(text: str) -> str:
    """Returns an answer without the thoughts before it, and without the escapes of a text within a text."""
    answer = text.rpartition("</think>")[2].strip()
    if '"' not in answer and "&quot;" in answer:
        answer = unescape(answer)
    for _ in range(_MOST_LAYERS):
        answer = unescaped(answer) if _IS_ESCAPED.match(answer) else answer
    return answer


def _reading(found: Iterable[Found], text: str, categories: Sequence[str]) -> _Reading:
    values = list(found)
    objects = list(islice(objects_in(_with_names(values, text)), _MOST_ENTRIES))
    parts = list(filter(_is_reply, objects))
    # Outside of a reply, no retirement can name the label of a fact that had none.
    by_place = bool(parts) and all(value.clean for value in values)
    context = {"categories": categories, "labels_by_place": by_place}
    if not parts:
        pieces = {"new_facts": list(filter(_is_fact, objects)), "retired": [one for one in objects if "number" in one]}
        return _Reading(ExtractionReply.model_validate(pieces, context=context), is_reply=False, cut=False)
    replies = [ExtractionReply.model_validate(part, context=context) for part in parts]
    cut = any(value.cut for value in values) or any(map(_has_cut_text, objects))
    return _Reading(merge_replies(replies), is_reply=True, cut=cut)


def _with_names(values: Sequence[Found], text: str) -> list[Json]:
    """Returns the values; lists with the names before them, as in the tags of a call, become one object."""
    named: dict[str, Json] = {}
    others, end = [], 0
    for value in values:
        before = text[max(end, value.start - _NAME_CHARACTERS) : value.start]
        names = [name for name in _NAME_BEFORE.findall(before) if not _FILLING.issuperset(words_of(name))]
        section, end = section_of(names[-1]) if names else "", value.end
        if section and isinstance(value.value, list):
            named[section] = [*named.get(section, []), *value.value]
        else:
            others.append(value.value)
    return [named, *others] if named else others


def _exact(text: str) -> Iterator[Found]:
    """Yields the outermost values of a text that are valid JSON."""
    decoder, position = json.JSONDecoder(strict=False), 0
    for _ in range(_MAX_ATTEMPTS):
        start = _OPENING_BRACKET.search(text, position)
        if start is None:
            return
        try:
            value, position = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            position = start.end()
        else:
            yield Found(value, start.start(), position, clean=True, cut=False)


def _has_cut_text(part: Mapping[str, Json]) -> bool:
    """Returns whether JSON that is written in a string of an object was cut off."""
    return any(found.cut for value in part.values() if _is_json(value) for found in loose_values(value))


def _in_string(text: str) -> list[Json]:
    """Returns the values that are written in a string."""
    try:
        return [json.loads(text, strict=False)]
    except (ValueError, RecursionError):
        return [found.value for found in loose_values(text)]


def _is_json(value: Json) -> bool:
    return isinstance(value, str) and _STARTS_JSON.match(value) is not None


def _is_reply(part: Mapping[str, Json]) -> bool:
    return any(section_of(key) for key in islice(part, _MOST_KEYS))


def _is_fact(part: Mapping[str, Json]) -> bool:
    fields = fields_by_name(part, FACT_WORDS)
    return isinstance(fields.get("content"), str) and not fields.keys().isdisjoint({"quote", "category", "confidence"})


def _entries(value: Json, layers: int = _MOST_LAYERS) -> list[Json]:
    """Returns the entries of one of the lists, in whatever the model has put them."""
    if isinstance(value, str):
        return _entries_of_text(value, layers)
    if isinstance(value, dict):
        return _entries_of_object(value, layers)
    if value is None:
        return []
    parts = value if isinstance(value, list) else [value]
    return [entry for part in parts for entry in (part if isinstance(part, list) and part else [part])]


def _entries_of_text(text: str, layers: int) -> list[Json]:
    if _is_json(text) and layers:
        return [entry for part in _in_string(text) for entry in _entries(part, layers - 1)]
    return [] if not text.strip() or NOTHING.fullmatch(text.strip()) else [text]


def _entries_of_object(value: dict[str, Json], layers: int) -> list[Json]:
    if _is_reply(value) and layers:
        return [entry for key, part in value.items() if section_of(key) for entry in _entries(part, layers - 1)]
    if fields_by_name(value, FACT_WORDS) or fields_by_name(value, RETIREMENT_WORDS):
        return [value]
    return [entry for key, part in value.items() for entry in _entries_under(key, part)]


def _entries_under(key: str, part: Json) -> list[Json]:
    """Returns the entry under its label or number, or the list of entries under their category."""
    group = part if isinstance(part, list) else []
    if grouped := [{"category": key, **entry} for entry in group if isinstance(entry, dict)]:
        return grouped
    fields = part if isinstance(part, dict) else {"content": part, "reason": part}
    return [{"label": key, "number": key, **fields}]


def _labelled(entry: Json, label: str) -> dict[str, Json]:
    """Returns the fields of a new fact, with the label if it has none."""
    fields = fields_by_name(entry, FACT_WORDS) if isinstance(entry, Mapping) else {"content": entry}
    return {**fields, "label": fields.get("label") or label}
