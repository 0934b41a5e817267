"""Reads the facts in a model's answer."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated

import json_repair
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
)

from llama_index_memory_ext.errors import FactReplyError
from llama_index_memory_ext.fact import DEFAULT_CATEGORY
from llama_index_memory_ext.learning.categories import read_category
from llama_index_memory_ext.text.entries import unescape_tags
from llama_index_memory_ext.text.messages import MOST_CHARACTERS, Json, clean
from llama_index_memory_ext.words import phrases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_index_memory_ext.learning.categories import Categories


# The tags around the texts that a model reads. It copies quotes from there, where these
# tags are escaped.
TAGS = ("transcript", "known_facts", "rejected_facts")
# No honest reply has more entries, and each takes time to check. Broken JSON with more
# braces or characters is not mended: that may take seconds.
_MOST_ENTRIES = 200
_MOST_MENDED = 8_000

TOO_LONG = f"it has more than {MOST_CHARACTERS:,} characters, which are not read"

# The names that models give to the parts of an entry, ours first.
_CONTENTS = str.split("fact content statement claim memory text")
_QUOTES = str.split("quote quotes source_quote quotation evidence source")
# The quotes of the form. A model that repeats its prompt repeats them.
EXAMPLE_QUOTE = "the exact words of the user"
_EXAMPLES = (EXAMPLE_QUOTE, "...")
# A model that gives no confidence is sure of its report.
_CONFIDENCES = {"none": 0.9, "high": 0.9, "medium": 0.6, "low": 0.3}
_PERCENT = 100


def without_thoughts(answer: str) -> str:
    """Return an answer without the thoughts and the white space around it."""
    plain = answer.strip()
    # A quote of the user may have this tag.
    if plain.startswith(("[", "{")):
        return plain
    return plain.rpartition("</think>")[2].strip()


def read_json(text: str) -> Json:
    """Return the JSON of an answer, mended if it is broken.

    Text around the JSON is left out, and so is an entry at the end that was cut.
    Raises a ValueError for an answer without JSON.

    >>> read_json('Sure: [{"quote": "I ski"}, {"quote": "I sw')
    [{'quote': 'I ski'}]
    """
    start = re.search(r"[\[{]", text)
    end = max(text.rfind("}"), text.rfind("]")) + 1
    part = text[start.start() : end] if start else ""
    for written in (text, part):
        with suppress(ValueError):
            return json.loads(written, strict=False)
    if not part or len(part) > _MOST_MENDED or part.count("{") > _MOST_ENTRIES:
        raise ValueError("It has no JSON that can be read.")
    return json_repair.loads(part, skip_json_loads=True)


def _entries_in(value: Json) -> Iterator[dict[str, Json]]:
    """Yield the facts in a JSON value, also those written in a string."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str) and part.lstrip()[:1] in ("{", "[", '"'):
            with suppress(ValueError):
                waiting.append(read_json(part))
        if isinstance(part, dict):
            if _is_fact(part):
                yield part
                continue
            part = list(part.values())
        if isinstance(part, list):
            waiting += reversed(part)


def _is_fact(entry: dict[str, Json]) -> bool:
    """Return whether an object is an entry; a list of entries may have a text beside it."""
    lists = [value for value in entry.values() if isinstance(value, list)]
    if any(isinstance(part, dict) for part in chain(*lists)):
        return False
    texts = [entry[name] for name in (*_QUOTES, *_CONTENTS) if name in entry]
    return any(isinstance(text, str) for text in texts) and texts[0] not in _EXAMPLES


def _is_nothing(value: Json) -> bool:
    """Return whether a value says that there is nothing new, as [], {"facts": null} or "none"."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return all(map(_is_nothing, value))
    if isinstance(value, str):
        return phrases("replies", "nothing").fullmatch(value) is not None
    return value is None


def _read_quote(value: Json) -> str:
    if isinstance(value, list):
        value = " ... ".join(map(str, value))
    return unescape_tags(value, TAGS) if isinstance(value, str) else ""


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
    return "" if _is_nothing(content) else content


def read_confidence(value: Json) -> float:
    """Return 0..1 from a number, a percentage or a word; 0.9 for no value, and 0 for any other.

    >>> [read_confidence(value) for value in (0.8, "95%", "low", None, "?")]
    [0.8, 0.95, 0.3, 0.9, 0.0]
    """
    text = str(value).strip(" %").lower()
    if text in _CONFIDENCES:
        return _CONFIDENCES[text]
    try:
        number = float(text.replace(",", "."))
    except ValueError:
        return 0.0
    if number > 1:
        number /= _PERCENT
    return number if 0 <= number <= 1 else 0.0


def _read_number(value: Json) -> int:
    """Return the number of a known fact; 0 for anything else."""
    return int(value) if re.fullmatch(r"[0-9]{1,9}", str(value)) else 0


class NewFact(BaseModel):
    """An entry of a reply: a new fact, or the end of a known one, or both.

    ``content``: "" if the entry only ends a known fact.
    ``ends``: the number of the known fact that it makes untrue, from 1; 0 for none.
    """

    model_config = ConfigDict(frozen=True, validate_default=True)

    quote: Annotated[str, BeforeValidator(_read_quote)] = Field(
        "", validation_alias=AliasChoices(*_QUOTES)
    )
    content: Annotated[str, BeforeValidator(read_statement)] = Field(
        "", validation_alias=AliasChoices(*_CONTENTS)
    )
    category: str = DEFAULT_CATEGORY
    confidence: Annotated[float, BeforeValidator(read_confidence)] = 0.9
    ends: Annotated[int, BeforeValidator(_read_number)] = 0


def read_facts(text: str, categories: Categories, *, by_tool: bool) -> list[NewFact]:
    """Return the facts in an answer, without the text before and after its JSON.

    The list is empty for an empty text and for "no new facts". ``read_category`` reads
    the category of each fact. A fact without a statement has its quote as content, unless
    it only ends a known fact.

    Args:
        text: The answer.
        categories: The categories of facts.
        by_tool: Whether the statements become the contents. With False the quotes do:
            models without tools quote exactly, but many of their statements leave out
            the point.

    Raises:
        FactReplyError: The answer has no JSON that can be read, or other JSON.

    >>> read_facts('Sure! [{"message": 1, "quote": "I prefer tea"}]', ["goal"], by_tool=True)[0].content
    'I prefer tea'
    """
    answer = without_thoughts(text)
    if len(answer) > MOST_CHARACTERS:
        raise FactReplyError(text, TOO_LONG)
    answer = clean(answer)
    if not answer or _is_nothing(answer):
        return []
    try:
        value = read_json(answer)
        entries = list(islice(_entries_in(value), _MOST_ENTRIES))
        is_reply = entries or _is_nothing(value)
    except (ValueError, RecursionError):
        is_reply = False
    if not is_reply:
        raise FactReplyError(text, "it is not a list of facts in valid JSON")
    return [_fact_of(entry, categories, by_tool=by_tool) for entry in entries]


def _fact_of(
    entry: dict[str, Json], categories: Categories, *, by_tool: bool
) -> NewFact:
    category = read_category(entry.get("category"), categories)
    fact = NewFact.model_validate({**entry, "category": category})
    if by_tool and (fact.content or fact.ends):
        return fact
    return fact.model_copy(update={"content": read_statement(fact.quote)})
