"""The categories of facts: the program's names, how a request lists them, and which of them a reply means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeAlias

from llama_index_memory_ext.errors import SettingError
from llama_index_memory_ext.fact import CATEGORIES, DEFAULT_CATEGORY

if TYPE_CHECKING:
    from llama_index_memory_ext.text.messages import Json

# The names of the categories, or the names with a description of each.
Categories: TypeAlias = Sequence[str] | Mapping[str, str]

_MOST_CATEGORIES = 50
_NAME_CHARACTERS = 60
_DESCRIPTION_CHARACTERS = 300


def check_categories(value: Any) -> Categories:
    """Return the checked categories: names, or a dict of names and descriptions.

    There are 1 to 50 names, each once. A name has 1 to 60 characters on one line, and a
    description at most 300.

    Raises:
        SettingError: The value is not such a list or dict.

    >>> check_categories(["diet", "allergy"]), check_categories({"diet": "what they eat"})
    (('diet', 'allergy'), {'diet': 'what they eat'})
    """
    is_list = isinstance(value, Mapping | Sequence) and not isinstance(value, str)
    names = list(value) if is_list else []
    are_usable = 0 < len(names) <= _MOST_CATEGORIES and all(map(_is_name, names))
    if isinstance(value, Mapping):
        for description in value.values():
            are_usable &= _is_text(description, _DESCRIPTION_CHARACTERS)
    if not are_usable or len({name.strip().casefold() for name in names}) < len(names):
        raise SettingError(
            f"categories: expected 1 to {_MOST_CATEGORIES} names, each once, of 1 to {_NAME_CHARACTERS} characters on "
            f"one line, with descriptions of at most {_DESCRIPTION_CHARACTERS} characters, if any; got {value!r:.100}. "
            'Name the categories that facts should have, as in ["diet", "allergy"] or {"diet": "what they eat"}, or '
            "leave categories out for the default."
        )
    return dict(value) if isinstance(value, Mapping) else tuple(value)


def _is_name(value: Any) -> bool:
    return _is_text(value, _NAME_CHARACTERS) and len(value.strip().splitlines()) == 1


def _is_text(value: Any, longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest


def list_categories(categories: Categories) -> str:
    """Return the categories with their descriptions: "diet (what they eat), pets"."""
    names = []
    for name in categories:
        description = ""
        if isinstance(categories, Mapping):
            description = " ".join(categories[name].split())
        names.append(f"{name} ({description})" if description else name)
    return ", ".join(names)


def read_category(value: Json, categories: Categories = CATEGORIES) -> str:
    """Return the category that a reply names.

    If it names none, return "knowledge" if that is a category, or else the first one.
    """
    names = list(categories)
    spellings = {name.casefold(): name for name in names}
    name = value[:_NAME_CHARACTERS].strip().casefold() if isinstance(value, str) else ""
    for match in get_close_matches(name, spellings, n=1, cutoff=0.85):
        return spellings[match]
    return spellings.get(DEFAULT_CATEGORY, names[0])
