"""Reads the JSON of a model's answer, and the facts that it reports."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import date
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)
from pydantic_core import from_json

from llama_index_memory_ext.errors import FactReplyError
from llama_index_memory_ext.fact import CATEGORIES, DEFAULT_CATEGORY, About, SaidAs
from llama_index_memory_ext.language import phrases
from llama_index_memory_ext.text.messages import unescape_tags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pydantic import ValidationInfo

    from llama_index_memory_ext.text.tool_calls import Json

# The tags around what a model reads. It copies quotes from there, where these are
# escaped.
TAGS = ("transcript", "known_facts", "rejected_facts", "said_before", "candidates")
# No reply has as many entries, or as many brackets that are no JSON around it.
_MOST_ENTRIES = 1_000
_MOST_PROBLEMS = 50

# The names that models give to the parts of a reply, ours first.
_SECTIONS = (
    ("new_facts", "facts", "items", "memories", "statements"),
    ("confirmed", "confirmations"),
    ("retired", "retirements", "outdated"),
)
_CONTENTS = ("content", "statement", "fact", "claim", "memory", "text")
_QUOTES = ("quote", "quotes", "source_quote", "quotation", "evidence", "source")
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
_MOST_NAMES = 10


_DECODER = json.JSONDecoder(
    strict=False,
    object_pairs_hook=lambda pairs: {
        _NEXT_WORD.sub("_", key).lower(): value for key, value in pairs
    },
)


def json_values(text: str) -> tuple[list[Json], str, bool]:
    """Read the outermost objects and lists of an answer; return them, what is no JSON in it, and whether it was cut.

    Thoughts before the answer, and text around the JSON, are left out. Of an answer
    that ends within a value, what is complete is returned. Keys are in lower case, with
    "_" between their words.

    >>> json_values('Sure: {"newFacts": [1, 2]} Bye!')
    ([{'new_facts': [1, 2]}], '', False)
    >>> json_values('[{"a": 1}, {"a"'), json_values("[{'a': 1}]")[1]
    (([[{'a': 1}]], '', True), 'Expecting property name enclosed in double quotes: line 1 column 3 (char 2)')
    """
    answer = text.rpartition("</think>")[2].strip()
    values: list[Json] = []
    problems: list[str] = []
    position = 0
    while len(problems) < _MOST_PROBLEMS and (
        start := _OPENING.search(answer, position)
    ):
        try:
            value, position = _DECODER.raw_decode(answer, start.start())
            values.append(value)
        except (ValueError, RecursionError) as error:  # noqa: PERF203 - few of an answer's brackets are none
            rest = answer[start.start() :]
            position = start.start() + 1
            try:
                from_json(rest)
            except ValueError as found:
                if str(found).startswith("EOF"):
                    whole = rest[: rest.rfind("}") + 1]
                    values += [from_json(whole, allow_partial=True)] if whole else []
                    return values, "".join(problems[:1]), True
            problems.append(str(error))
    return values, "".join(problems[:1]), False


def objects_in(
    values: Sequence[Json], is_wanted: Callable[[dict[str, Json]], bool]
) -> Iterator[dict[str, Json]]:
    """Yield the outermost objects of this kind in JSON values, also those that are written in a string."""
    waiting = [*reversed(values)]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str) and part.lstrip()[:1] in ("{", "[", '"'):
            part = json_values(part)[0]
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
    """Return the text of a quote or a reason; of several quotes one with "..." between them."""
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
    if isinstance(value, str):
        content = " ".join(value.split())
    else:
        content = ""
    rest = phrases("replies", "subject").sub("", content)
    if rest == content:
        content = content
    else:
        content = rest[:1].upper() + rest[1:]
    return "" if _is_nothing(content) else content


def read_category(value: Json, categories: Sequence[str] = CATEGORIES) -> str:
    """Return one of the categories, the first of a list and of "habits|goals"; "knowledge" or the first for none."""
    known = {name.casefold(): name for name in categories}
    if isinstance(value, list):
        values = value
    else:
        values = [value]
    texts = [part[:200] for part in values[:10] if isinstance(part, str)]
    names = [
        name.strip().casefold() for text in texts for name in re.split(r"[|,;/]", text)
    ][:_MOST_NAMES]
    for name in names:
        if found := get_close_matches(name, known, n=1, cutoff=0.85):
            return known[found[0]]
    return known.get(DEFAULT_CATEGORY, categories[0])


def read_label(value: Json) -> str:
    """Return one spelling for "n1", "N1", "1" and 1; other labels in lower case, and "" for none."""
    if isinstance(value, str | int) and not isinstance(value, bool):
        text = str(value).strip().lower()
    else:
        text = ""
    if number := re.fullmatch(r"(?:n|new|new fact)?[ #.]*(\d{1,9})", text, re.ASCII):
        return f"n{int(number.group(1))}"
    return "" if _is_nothing(text) else text


def read_number(value: Json) -> int:
    """Return the number of a known fact; 0 for anything else."""
    if isinstance(value, dict):
        value = value.get("number")
    if isinstance(value, str | int | float):
        text = str(value).strip()
    else:
        text = ""
    found = re.fullmatch(r"(?!-)\D{0,10}?(\d{1,9})(?:\.0*)?", text, re.ASCII)
    return int(found.group(1)) if found else 0


def read_confidence(value: Json) -> float:
    """Return 0..1 from a number, a percentage, a fraction or a word; 0 for anything else, the default for None.

    >>> [read_confidence(value) for value in ("9/10", "0,95", "\u2265 .9", "95%", "high confidence", True, "NaN")]
    [0.9, 0.95, 0.9, 0.95, 0.9, 0.0, 0.0]
    """
    # A model that gives no confidence at all means what it reports.
    if value is None:
        return 0.8
    scale = 1
    if isinstance(value, str):
        match = _CONFIDENCE.fullmatch(value.strip().lower()[:_PERCENT])
        if match is None or match["word"]:
            if match:
                return _CONFIDENCES[match["word"]]
            return 0.0
        value = float(match["number"].replace(",", "."))
        if match["percent"]:
            scale = _PERCENT
        else:
            scale = int(match["of"] or 1)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    if scale == 1 and 1 < value <= _PERCENT:
        scale = _PERCENT
    if 0 <= value <= scale:
        return value / scale
    return 0.0


def read_said_as(value: Json) -> SaidAs:
    """Return how something was said; "stated" for a reply that does not tell, or in other words than asked for."""
    text = value if isinstance(value, str) else ""
    found = get_close_matches(
        text[:_PERCENT].strip().lower(), get_args(SaidAs), n=1, cutoff=0.8
    )
    return found[0] if found else "stated"


def read_about(value: Json) -> About:
    """Return whom a fact is about; "user" unless a reply tells of somebody else."""
    if isinstance(value, str):
        text = str(value).strip().lower()
    else:
        text = ""
    if text in ("", "user", "the user", "self", "me", "speaker") or _is_nothing(text):
        return "user"
    return "other"


def read_day(value: Json) -> str:
    """Return a year, a month or a day as "2023", "2023-05" or "2023-05-17"; "" for anything else."""
    if isinstance(value, str | int):
        text = str(value).strip()
    else:
        text = ""
    if re.fullmatch(r"\d{4}(?:-\d\d){0,2}", text, re.ASCII):
        with suppress(ValueError):
            date.fromisoformat(f"{text}-01-01"[: len("2023-05-17")])
            return text
    return ""


def _read_entries(value: Json) -> list[Json]:
    """Return the entries of one of the lists, also if they stand in JSON in a text, under labels or categories.

    Raises a ValueError for a text that is no JSON.
    """
    if isinstance(value, str):
        values, problem, is_cut = json_values(value)
        if (
            problem
            or is_cut
            or (value.strip() and not values and not _is_nothing(value))
        ):
            raise ValueError("It is no JSON.")
        return [entry for part in values for entry in _read_entries(part)]
    if (
        isinstance(value, dict)
        and value
        and all(isinstance(part, dict | list) for part in value.values())
    ):
        under = [
            (key, entry)
            for key, part in value.items()
            for entry in (part if isinstance(part, list) else [part])
        ]
        return [
            {"label": key, "number": key, "category": key, **entry}
            for key, entry in under
            if isinstance(entry, dict)
        ]
    if isinstance(value, list):
        entries = value
    else:
        entries = [] if value is None else [value]
    return entries[:_MOST_ENTRIES]


def _as_form(schema: dict[str, Json]) -> None:
    """Make a schema a form in which every field is asked for but the days, which are seldom said.

    Titles and defaults say nothing that the names do not say, and are paid for with
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
    """An entry that is read from any value: one alone is the statement of a new fact, or the number of a known one."""

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

    # An unusable one has no content.

    label: _Label = _field("", "n1, n2, ...", "label", "id")
    content: Annotated[str, BeforeValidator(read_statement)] = _field(
        "", "One statement, in the third person and without a subject.", *_CONTENTS
    )
    category: str = _field("", None, "category", "type", "kind")
    confidence: Annotated[float, BeforeValidator(read_confidence)] = _field(
        None, "0 to 1", "confidence", "certainty", "score"
    )
    quote: _Quote = _field("", "The user's own words, verbatim.", *_QUOTES)
    said_as: SaidAsField = _field("", "How the user says it.", "said_as")
    about: AboutField = _field("", "Whom it is about.", "about")
    valid_from: _Day = _field(
        "", "A date, only if said.", "valid_from", "from", "since"
    )
    valid_until: _Day = _field("", "A date, only if said.", *_UNTIL)

    @field_validator("category", mode="before")
    @classmethod
    def _one_category(cls, value: Json, info: ValidationInfo) -> str:
        return read_category(value, (info.context or {}).get("categories", CATEGORIES))


class Retirement(_Entry):
    """A known fact that is true no longer."""

    # The number of an unusable one is 0.

    number: _Number = _field(
        0, "The number of the known fact.", "number", "index", "id", "fact"
    )
    reason: Annotated[
        str, BeforeValidator(lambda value: " ".join(read_text(value).split()))
    ] = ""
    replaced_by: _Label = _field(
        "",
        "The label of the new fact that holds instead, or empty.",
        "replaced_by",
        "replacement",
    )
    quote: _Quote = _field("", "The user's own words, verbatim.", *_QUOTES)
    said_as: SaidAsField = _field(
        "", "How the user says what is in the quote.", "said_as"
    )
    valid_until: _Day = _field("", "A date, only if said.", *_UNTIL)


class ExtractionReply(BaseModel):
    """What the conversation says about the user."""

    # One without entries is "nothing new". Whatever JSON value stands in a list becomes
    # an entry of it, so that one bad entry does not spoil the rest. The context of the
    # validation may name the `categories` that there are.

    model_config = _CONFIG

    new_facts: Annotated[list[NewFact], BeforeValidator(_read_entries)] = _field(
        [], None, *_SECTIONS[0]
    )
    confirmed: Annotated[list[_Number], BeforeValidator(_read_entries)] = _field(
        [], "Numbers of known facts that the user says again.", *_SECTIONS[1]
    )
    retired: Annotated[list[Retirement], BeforeValidator(_read_entries)] = _field(
        [], None, *_SECTIONS[2]
    )

    @field_validator("new_facts")
    @classmethod
    def _label_by_place(cls, facts: list[NewFact]) -> list[NewFact]:
        return [
            one if one.label else one.model_copy(update={"label": f"n{i}"})
            for i, one in enumerate(facts, 1)
        ]

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing was reported."""
        return not (self.new_facts or self.confirmed or self.retired)


def parse_reply(
    text: str, *, categories: Sequence[str] = CATEGORIES
) -> ExtractionReply:
    """Return the reply in a text, with any other text before and after it.

    Of a reply that ends within its JSON the complete entries are returned. An empty
    text and "no new facts" give a reply without entries. A category that is none of
    ``categories`` becomes "knowledge" if that is one, else the first of them. Raises a
    FactReplyError if there is text, but no reply in it that can be read as a whole.

    >>> parse_reply('Sure! {"confirmed": [2]}').confirmed
    [2]
    >>> parse_reply("No new facts.").new_facts
    []
    """
    answer = text.rpartition("</think>")[2]
    if not answer.strip() or _is_nothing(answer):
        return ExtractionReply()
    values, problem, is_cut = json_values(answer)
    parts = list(
        objects_in(
            values,
            lambda part: any(name in part for names in _SECTIONS for name in names),
        )
    )
    if not (parts or problem):
        # A list of facts alone, or facts one after the other: a statement, and what no
        # other object has.
        beside = {*_QUOTES, "category", "confidence"}
        facts = list(
            objects_in(
                values,
                lambda part: bool(part.keys() & {*_CONTENTS} and part.keys() & beside),
            )
        )
        parts = [{"new_facts": facts}] if facts else []
    try:
        reply = merge_replies(
            [
                ExtractionReply.model_validate(one, context={"categories": categories})
                for one in parts
            ]
        )
    except ValueError:
        # Its message would hold the words of the reply.
        raise FactReplyError(
            text, "one of its lists is a text that is no JSON"
        ) from None
    is_nothing = bool(parts) or (bool(values) and not problem and not any(values))
    facts_said = (fact.content for fact in reply.new_facts)
    ended = (entry.number for entry in reply.retired)
    if any((*facts_said, *ended, *reply.confirmed)) or (is_nothing and not is_cut):
        return reply
    raise FactReplyError(text, problem)


def merge_replies(replies: Sequence[ExtractionReply]) -> ExtractionReply:
    """Return all replies as one. A label refers to the facts of its own reply only."""
    if len(replies) == 1:
        return replies[0]
    new_facts = []
    retired = []
    for i, reply in enumerate(replies):
        new_facts += [
            fact.model_copy(update={"label": f"{fact.label}.{i}"})
            for fact in reply.new_facts
        ]
        retired += [
            entry.model_copy(
                update={"replaced_by": entry.replaced_by and f"{entry.replaced_by}.{i}"}
            )
            for entry in reply.retired
        ]
    confirmed = [number for reply in replies for number in reply.confirmed]
    return ExtractionReply.model_construct(
        new_facts=new_facts, confirmed=confirmed, retired=retired
    )
