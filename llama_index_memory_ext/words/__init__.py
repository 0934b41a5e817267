"""The words of a text: its language, terms, numbers, dates, names and secrets."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from itertools import chain


@cache
def _sections(name: str) -> dict[str, list[str]]:
    """Return the lines of ``data/<name>.txt`` by section.

    A line such as ``[de]`` begins a section; "#" begins a comment.
    """
    sections: dict[str, list[str]] = {"": []}
    lines = sections[""]
    text = (files(__name__) / "data" / f"{name}.txt").read_text("utf-8")
    for line in text.splitlines():
        if re.fullmatch(r"\[[a-z_]+\]", line):
            lines = []
            sections[line.strip("[]")] = lines
        elif line.strip() and not line.startswith("#"):
            lines.append(line)
    return sections


@cache
def word_lists(name: str) -> dict[str, list[list[str]]]:
    """Return the words of each line of ``data/<name>.txt``, by section."""
    return {
        section: [line.split() for line in lines]
        for section, lines in _sections(name).items()
    }


@cache
def words_of_section(name: str, section: str) -> frozenset[str]:
    """Return all words of a section of ``data/<name>.txt``."""
    return frozenset(chain(*word_lists(name)[section]))


@cache
def phrases(name: str, section: str) -> re.Pattern[str]:
    """Return a section of ``data/<name>.txt`` as a regular expression, in any case.

    Each line is an alternative. ``{section}`` in a line stands for the alternatives
    of that section.

    >>> phrases("past", "was").findall("I used to sing in those days")
    ['in those days']
    """

    def alternatives(section_name: str) -> str:
        lines = "|".join(_sections(name)[section_name])
        return re.sub(
            r"\{([a-z_]+)\}", lambda match: f"(?:{alternatives(match[1])})", lines
        )

    return re.compile(alternatives(section), re.IGNORECASE)


@cache
def pattern(text: str) -> re.Pattern[str]:
    """Return a regular expression, compiled at its first use.

    Importing the package compiles none, which keeps the import fast.

    >>> pattern("[a-z]+").findall("a 1 bc")
    ['a', 'bc']
    """
    return re.compile(text)
