"""Reads the JSON of a model's answer, and the facts that it reports."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import date
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import from_json

from llama_index_memory_ext.errors import FactReplyError
from llama_index_memory_ext.fact import CATEGORIES, DEFAULT_CATEGORY, About, SaidAs
from llama_index_memory_ext.text.messages import Json, clean, unescape_tags
from llama_index_memory_ext.words import phrases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


# The tags around the texts that a model reads. It copies quotes from there, where these
# tags are escaped.
TAGS = ("transcript", "known_facts", "rejected_facts", "said_before", "candidates")
# No honest reply has more entries, or more brackets around its JSON.
_MOST_ENTRIES = 1_000
_MOST_PROBLEMS = 50

# The names that models give to the parts of a reply, ours first.
_SECTIONS = [
    names.split()
    for names in (
        "new_facts facts items memories statements",
        "confirmed confirmations",
        "retired retirements outdated",
    )
]
_SECTION_NAMES = frozenset[str]().union(*_SECTIONS)
_CONTENTS = str.split("content statement fact claim memory text")
_QUOTES = str.split("quote quotes source_quote quotation evidence source")
# An object with one of these beside a statement is a fact.
_FACT_FIELDS = frozenset({*_QUOTES, "category", "confidence"})
_UNTIL = ("valid_until", "until", "to")
_OPENING = re.compile(r'[\[{]|\A"')
_NEXT_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
_CONFIDENCES = {"high": 0.9, "medium": 0.6, "moderate": 0.6, "low": 0.3}
_CONFIDENCE = re.compile(
    r"(?:very |about |[\u2265>=~\u2248 ])*"
    rf"(?:(?P<number>\d*[.,]?\d+)\s*(?:(?P<percent>%)|/\s*(?P<of>[1-9]\d*))?|(?P<word>{'|'.join(_CONFIDENCES)}))"
    r"(?: confidence)?[.!]?(?: \(.*\))?"
)
_PERCENT = 100
# A model that gives no confidence at all is sure of its report.
_DEFAULT_CONFIDENCE = 0.8
# Small models name the speaker in place of how the user says it.
_OTHER_SPEAKERS = ("assistant", "the assistant", "ai", "system", "tool", "model")
# Longer names, in characters, are not compared.
_LONGEST_NAME = 100
_LONGEST_CATEGORIES = 200
_MOST_NAMES = 10


_DECODER = json.JSONDecoder(
    strict=False,
    object_pairs_hook=lambda pairs: {
        _NEXT_WORD.sub("_", key).lower(): value for key, value in pairs
    },
)


class JsonValues(NamedTuple):
    """The JSON of an answer.

    Attributes:
        values: The outermost objects and lists.
        problem: Why the first bracket that begins no JSON cannot be read; "" if all do.
        is_cut: Whether the answer ends within a value.
    """

    values: list[Json]
    problem: str
    is_cut: bool


def json_values(text: str) -> JsonValues:
    """Read the outermost objects and lists of an answer.

    Thoughts before the answer, and text around the JSON, are left out. Of an answer
    that ends within a value, the complete parts are returned. Keys are in lower case,
    with "_" between their words.

    >>> json_values('Sure: {"newFacts": [1, 2]} Bye!')
    JsonValues(values=[{'new_facts': [1, 2]}], problem='', is_cut=False)
    >>> json_values('[{"a": 1}, {"a"')
    JsonValues(values=[[{'a': 1}]], problem='', is_cut=True)
    >>> json_values("[{'a': 1}]").problem
    'Expecting property name enclosed in double quotes: line 1 column 3 (char 2)'
    """
    answer = clean(text.rpartition("</think>")[2].strip())
    values = []
    problems: list[str] = []
    position = 0
    while len(problems) < _MOST_PROBLEMS:
        start = _OPENING.search(answer, position)
        if start is None:
            break
        try:
            value, position = _DECODER.raw_decode(answer, start.start())
            values.append(value)
        except (ValueError, RecursionError) as error:
            rest = answer[start.start() :]
            if _is_cut(rest):
                complete = rest[: rest.rfind("}") + 1]
                with suppress(ValueError):
                    values.append(from_json(complete, allow_partial=True))
                return JsonValues(values, "".join(problems[:1]), is_cut=True)
            problems.append(str(error))
            position = start.start() + 1
    return JsonValues(values, "".join(problems[:1]), is_cut=False)


def _is_cut(text: str) -> bool:
    """Return whether a text is the beginning of a JSON value."""
    try:
        from_json(text)
    except ValueError as error:
        return str(error).startswith("EOF")
    return False


def objects_in(
    values: Sequence[Json], is_wanted: Callable[[dict[str, Json]], bool]
) -> Iterator[dict[str, Json]]:
    """Yield the outermost wanted objects in JSON values, also objects written in a string."""
    waiting = [*reversed(values)]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str) and part.lstrip()[:1] in ("{", "[", '"'):
            part = json_values(part).values
        if isinstance(part, dict):
            if is_wanted(part):
                yield part
                continue
            part = list(part.values())
        if isinstance(part, list):
            waiting += reversed(part)


def _is_nothing(text: str) -> bool:
    return phrases("replies", "nothing").fullmatch(text) is not None


def read_text(value: Json) -> str:
    """Return the text of a quote or a reason; several quotes are joined by "..."."""
    if isinstance(value, list):
        return " ... ".join(read_text(part) for part in value if isinstance(part, str))
    if isinstance(value, str):
        return unescape_tags(value, TAGS)
    return ""


def read_statement(value: Json) -> str:
    """Return the text on one line, "Prefers tea" where the model writes that the user prefers tea.

    A text that says nothing is "".

    >>> read_statement("The user prefers tea"), read_statement("N/A")
    ('Prefers tea', '')
    """
    if not isinstance(value, str):
        return ""
    content = " ".join(value.split())
    rest = phrases("replies", "subject").sub("", content)
    if rest != content:
        content = rest[:1].upper() + rest[1:]
    if _is_nothing(content):
        return ""
    return content


def read_category(value: Json, categories: Sequence[str] = CATEGORIES) -> str:
    """Return the first category that a reply names, in a list or as "habits|goals".

    If it names none, return "knowledge" if that is a category, or else the first one.
    """
    spellings = {name.casefold(): name for name in categories}
    values = value if isinstance(value, list) else [value]
    texts = [
        part[:_LONGEST_CATEGORIES]
        for part in values[:_MOST_NAMES]
        if isinstance(part, str)
    ]
    names = re.split(r"[|,;/]| or ", "|".join(texts))[:_MOST_NAMES]
    for name in (*texts, *names):
        matches = get_close_matches(
            name.strip().casefold(), spellings, n=1, cutoff=0.85
        )
        if matches:
            return spellings[matches[0]]
    return spellings.get(DEFAULT_CATEGORY, categories[0])


def read_label(value: Json) -> str:
    """Return one spelling for "n1", "N1", "1" and 1.

    Other labels are returned in lower case. Return "" if there is none.
    """
    if not isinstance(value, str | int) or isinstance(value, bool):
        return ""
    text = str(value).strip().lower()
    number = re.fullmatch(r"(?:n|new|new fact)?[ #.]*(\d{1,9})", text, re.ASCII)
    if number:
        return f"n{int(number.group(1))}"
    if _is_nothing(text):
        return ""
    return text


def read_number(value: Json) -> int:
    """Return the number of a known fact; 0 for anything else."""
    if isinstance(value, dict):
        value = value.get("number")
    if not isinstance(value, str | int | float):
        return 0
    text = str(value).strip()
    match = re.fullmatch(r"(?!-)\D{0,10}?(\d{1,9})(?:\.0*)?", text, re.ASCII)
    return int(match.group(1)) if match else 0


def read_confidence(value: Json) -> float:
    """Return 0..1 from a number, a percentage, a fraction or a word.

    Return 0 for anything else, and the default for None.

    >>> [read_confidence(value) for value in ("9/10", "0,95", "\u2265 .9", "95%", "high confidence", True, "NaN")]
    [0.9, 0.95, 0.9, 0.95, 0.9, 0.0, 0.0]
    """
    if value is None:
        return _DEFAULT_CONFIDENCE
    match = _CONFIDENCE.fullmatch(str(value).strip().lower()[:_LONGEST_NAME])
    if match is None:
        return 0.0
    if match["word"]:
        return _CONFIDENCES[match["word"]]
    number = float(match["number"].replace(",", "."))
    scale = int(match["of"] or 1)
    if match["percent"] or (scale == 1 and number > 1):
        scale = _PERCENT
    return number / scale if number <= scale else 0.0


def read_said_as(value: Json, unknown: str = "stated") -> str:
    """Return how the user said a fact; ``unknown`` for anything but the terms of the prompt.

    Words of the assistant are quoted.
    """
    text = value[:_LONGEST_NAME].strip().lower() if isinstance(value, str) else ""
    if text in _OTHER_SPEAKERS:
        return "quoted"
    matches = get_close_matches(text, get_args(SaidAs), n=1, cutoff=0.8)
    return matches[0] if matches else unknown


def read_about(value: Json) -> About:
    """Return "other" for a reply that names another person, else "user"."""
    text = value.strip().lower() if isinstance(value, str) else ""
    if text in ("", "user", "the user", "self", "me", "speaker") or _is_nothing(text):
        return "user"
    return "other"


def read_day(value: Json) -> str:
    """Return a year, a month or a day as "2023", "2023-05" or "2023-05-17"; "" for anything else."""
    text = str(value).strip() if isinstance(value, str | int) else ""
    if re.fullmatch(r"\d{4}(?:-\d\d){0,2}", text, re.ASCII):
        with suppress(ValueError):
            date.fromisoformat(f"{text}-01-01"[: len("2023-05-17")])
            return text
    return ""


def _read_entries(value: Json) -> list[Json]:
    """Return the entries of one of the lists.

    They may stand as JSON in a text, or under labels or categories. Raises a ValueError
    for a text that is no JSON.
    """
    if isinstance(value, str):
        return _entries_in(value)
    if value is None:
        return []
    if isinstance(value, list):
        return value[:_MOST_ENTRIES]
    if (
        isinstance(value, dict)
        and value
        and all(isinstance(part, dict | list) for part in value.values())
    ):
        return _entries_by_key(value)
    return [value]


def _entries_in(text: str) -> list[Json]:
    answer = json_values(text)
    is_empty = not text.strip() or _is_nothing(text)
    if answer.problem or answer.is_cut or not (answer.values or is_empty):
        raise ValueError("It is no JSON.")
    entries = []
    for value in answer.values:
        entries += _read_entries(value)
    return entries


def _entries_by_key(value: dict[str, Json]) -> list[Json]:
    """Return the entries under each key, which may be a label, a number or a category."""
    entries = []
    for key, part in value.items():
        default = {"label": key, "number": key, "category": key}
        values = part if isinstance(part, list) else [part]
        entries += [default | entry for entry in values if isinstance(entry, dict)]
    return entries


def _as_form(schema: dict[str, Json]) -> None:
    """Require every field of a schema but the days, which are seldom said.

    Titles and defaults say nothing that the names do not say, and would cost tokens in
    each turn.
    """
    schema["required"] = [
        name for name in schema["properties"] if not name.startswith("valid_")
    ]
    for part in (schema, *schema["properties"].values()):
        part.pop("title", None)
        part.pop("default", None)


_CONFIG = ConfigDict(frozen=True, json_schema_extra=_as_form, validate_default=True)
_Label = Annotated[str, BeforeValidator(read_label)]
_Number = Annotated[int, BeforeValidator(read_number)]
_Quote = Annotated[str, BeforeValidator(read_text)]
_Day = Annotated[str, BeforeValidator(read_day)]
SaidAsField = Annotated[SaidAs, BeforeValidator(read_said_as)]
AboutField = Annotated[About, BeforeValidator(read_about)]


class _Entry(BaseModel):
    """An entry. A value alone is the statement of a new fact or the number of a known one."""

    model_config = _CONFIG

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Json) -> Json:
        if isinstance(value, dict):
            return value
        return {"content": value, "number": value}


def _field(default: Any, description: str | None, *names: str) -> Any:
    return Field(
        default, description=description, validation_alias=AliasChoices(*names)
    )


# The docstrings and descriptions of these classes are sent to the model, in the schema
# of the tool.
class NewFact(_Entry):
    """Something new about the user."""

    # A new fact that cannot be used has no content.

    label: _Label = _field("", "n1, n2, ...", "label", "id")
    quote: _Quote = _field("", "The user's own words, verbatim.", *_QUOTES)
    said_as: SaidAsField = _field("", "How the user says it.", "said_as")
    about: AboutField = _field("", "Whom it is about.", "about")
    content: Annotated[str, BeforeValidator(read_statement)] = _field(
        "", "One statement, in the third person and without a subject.", *_CONTENTS
    )
    category: str = _field("", None, "category", "type", "kind")
    confidence: Annotated[float, BeforeValidator(read_confidence)] = _field(
        None, "0 to 1", "confidence", "certainty", "score"
    )
    valid_from: _Day = _field(
        "", "A date, only if said.", "valid_from", "from", "since"
    )
    valid_until: _Day = _field("", "A date, only if said.", *_UNTIL)

    @field_validator("category", mode="before")
    @classmethod
    def _one_category(cls, value: Json, info: ValidationInfo) -> str:
        return read_category(value, (info.context or {}).get("categories", CATEGORIES))


class Confirmation(_Entry):
    """A known fact that the user says again."""

    number: _Number = _field(
        0, "The number of the known fact.", "number", "index", "id", "fact"
    )
    quote: _Quote = _field("", "The user's own words, verbatim.", *_QUOTES)


class Retirement(Confirmation):
    """A known fact that is true no longer."""

    # The number of a retirement that cannot be used is 0.

    reason: Annotated[
        str, BeforeValidator(lambda value: " ".join(read_text(value).split()))
    ] = ""
    replaced_by: _Label = _field(
        "",
        "The label of the new fact that holds instead, or empty.",
        "replaced_by",
        "replacement",
    )
    said_as: SaidAsField = _field(
        "", "How the user says what is in the quote.", "said_as"
    )
    valid_until: _Day = _field("", "A date, only if said.", *_UNTIL)


class ExtractionReply(BaseModel):
    """What the conversation says about the user."""

    # A reply without entries means "nothing new". Every JSON value of a list becomes an
    # entry, so that a bad entry does not spoil the rest. The context of the validation
    # may name the ``categories``.

    model_config = _CONFIG

    new_facts: Annotated[list[NewFact], BeforeValidator(_read_entries)] = _field(
        [], None, *_SECTIONS[0]
    )
    confirmed: Annotated[list[Confirmation], BeforeValidator(_read_entries)] = _field(
        [], None, *_SECTIONS[1]
    )
    retired: Annotated[list[Retirement], BeforeValidator(_read_entries)] = _field(
        [], None, *_SECTIONS[2]
    )

    @field_validator("new_facts")
    @classmethod
    def _label_by_place(cls, facts: list[NewFact]) -> list[NewFact]:
        return [
            fact.model_copy(update={"label": fact.label or f"n{i}"})
            for i, fact in enumerate(facts, 1)
        ]

    @property
    def is_empty(self) -> bool:
        """Whether the reply has no entries."""
        return not (self.new_facts or self.confirmed or self.retired)


def parse_reply(
    text: str, *, categories: Sequence[str] = CATEGORIES
) -> ExtractionReply:
    """Return the reply in a text, without the text before and after it.

    Of a reply that ends within its JSON the complete entries are returned. An empty
    text and "no new facts" give a reply without entries. A category that is not in
    ``categories`` becomes "knowledge" if that is, or else the first of them.

    Raises:
        FactReplyError: The text has no reply that can be read as a whole.

    >>> parse_reply('Sure! {"confirmed": [2]}').confirmed[0].number
    2
    >>> parse_reply("No new facts.").new_facts
    []
    """
    answer = text.rpartition("</think>")[2]
    if not answer.strip() or _is_nothing(answer):
        return ExtractionReply()
    parts = json_values(answer)
    objects = _reply_objects(parts)
    context = {"categories": categories}
    try:
        reply = merge_replies(
            [
                ExtractionReply.model_validate(value, context=context)
                for value in objects
            ]
        )
    except ValueError:
        # Its message would hold the words of the reply.
        raise FactReplyError(
            text, "one of its lists is a text that is no JSON"
        ) from None
    says_nothing = bool(objects) or _is_empty_value(parts)
    if _has_usable_entries(reply) or (says_nothing and not parts.is_cut):
        return reply
    raise FactReplyError(text, parts.problem)


def _is_empty_value(answer: JsonValues) -> bool:
    """Return whether an answer is a value without content, as {} or []."""
    return bool(answer.values) and not any(answer.values) and not answer.problem


def _reply_objects(answer: JsonValues) -> list[dict[str, Json]]:
    """Return the objects with lists of a reply.

    Facts that stand alone, in a list or one after the other, make one object.
    """
    replies = list(
        objects_in(answer.values, lambda value: not _SECTION_NAMES.isdisjoint(value))
    )
    if replies or answer.problem:
        return replies
    facts = list(objects_in(answer.values, _is_fact))
    return [{"new_facts": facts}] if facts else []


def _is_fact(value: dict[str, Json]) -> bool:
    names = value.keys()
    return not (names.isdisjoint(_CONTENTS) or names.isdisjoint(_FACT_FIELDS))


def _has_usable_entries(reply: ExtractionReply) -> bool:
    contents = (fact.content for fact in reply.new_facts)
    numbers = (entry.number for entry in (*reply.retired, *reply.confirmed))
    return any(contents) or any(numbers)


def merge_replies(replies: Sequence[ExtractionReply]) -> ExtractionReply:
    """Return all replies as one. A label refers to the facts of the same reply only."""
    if len(replies) == 1:
        return replies[0]
    new_facts = []
    retired = []
    confirmed = []
    for i, reply in enumerate(replies):
        for fact in reply.new_facts:
            label = f"{fact.label}.{i}"
            new_facts.append(fact.model_copy(update={"label": label}))
        for entry in reply.retired:
            label = f"{entry.replaced_by}.{i}" if entry.replaced_by else ""
            retired.append(entry.model_copy(update={"replaced_by": label}))
        confirmed += reply.confirmed
    return ExtractionReply.model_construct(
        new_facts=new_facts, confirmed=confirmed, retired=retired
    )
