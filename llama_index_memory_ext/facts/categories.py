"""Checks what a program says that facts should be about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from llama_index_memory_ext.errors import SettingError
from llama_index_memory_ext.fact import CATEGORIES

# The names of the categories, or the names with what each is for.
Categories: TypeAlias = Sequence[str] | Mapping[str, str]

_MOST_CATEGORIES, _NAME_CHARACTERS, _DESCRIPTION_CHARACTERS, _PROMPT_CHARACTERS = 50, 60, 300, 20_000


def check_categories(value: Any) -> Categories:
    """Returns categories as they were given: names, or a dict of names with what each is for.

    Raises a SettingError for anything else, no category at all, more than 50, and a name that is blank, longer than 60
    characters, on several lines, or given twice.

    >>> check_categories(["diet", "allergy"]), check_categories({"diet": "what they eat"})
    (('diet', 'allergy'), {'diet': 'what they eat'})
    """
    if isinstance(value, Mapping):
        _check_descriptions(value)
    elif isinstance(value, str) or not isinstance(value, Sequence):
        raise _unexpected("a list of names or a dict of names and descriptions", f"a {type(value).__name__}")
    if not 0 < len(value) <= _MOST_CATEGORIES:
        raise _unexpected(f"1 to {_MOST_CATEGORIES} names", str(len(value)))
    seen = set[str]()
    for name in value:
        if not _is_name(name):
            raise _unexpected(f"names of 1 to {_NAME_CHARACTERS} characters on one line", repr(name)[:100])
        if name.strip().casefold() in seen:
            raise _unexpected("each name once", f"{name!r} twice")
        seen.add(name.strip().casefold())
    return dict(value) if isinstance(value, Mapping) else tuple(value)


def check_extraction_prompt(value: Any) -> str | None:
    """Returns what a program wants a model to look for, as it was given; None stands for our own words.

    Raises a SettingError for anything but a text, and one that is blank or has more than 20,000 characters.
    """
    if value is None or (isinstance(value, str) and value.strip() and len(value) <= _PROMPT_CHARACTERS):
        return value
    seen = f"{len(value):,} characters" if isinstance(value, str) else f"a {type(value).__name__}"
    raise SettingError(
        f"extraction_prompt: expected a text of 1 to {_PROMPT_CHARACTERS:,} characters that says what to look for, "
        f"saw {seen}. Pass None for the text of this package."
    )


def _is_name(value: Any) -> bool:
    if not isinstance(value, str) or not value.strip():
        return False
    return len(value) <= _NAME_CHARACTERS and len(value.splitlines()) == 1


def _check_descriptions(value: Mapping[Any, Any]) -> None:
    for name, description in value.items():
        if not isinstance(description, str) or len(description) > _DESCRIPTION_CHARACTERS:
            raise _unexpected(f"descriptions of at most {_DESCRIPTION_CHARACTERS} characters", f"another for {name!r}")


def _unexpected(expected: str, seen: str) -> SettingError:
    return SettingError(
        f"categories: expected {expected}, saw {seen}. Name the categories that facts should have, as in "
        f'["diet", "allergy"] or {{"diet": "what they eat"}}, or leave them out for {", ".join(CATEGORIES)}.'
    )
