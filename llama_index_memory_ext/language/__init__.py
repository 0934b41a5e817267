"""The words of a text: its language, terms, numbers, dates, names and secrets."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files


@cache
def _sections(name: str) -> dict[str, list[str]]:
    """Read ``data/<name>.txt``: the lines of each section. A line such as ``[de]`` begins one; "#" begins a comment."""
    sections: dict[str, list[str]] = {"": []}
    lines = sections[""]
    for line in (files(__name__) / "data" / f"{name}.txt").read_text("utf-8").splitlines():
        if re.fullmatch(r"\[[a-z_]+\]", line):
            lines = sections[line.strip("[]")] = []
        elif line.strip() and not line.startswith("#"):
            lines.append(line)
    return sections


@cache
def word_lists(name: str) -> dict[str, list[list[str]]]:
    """Return the words of each line of ``data/<name>.txt``, by the section in which the line stands."""
    return {section: [line.split() for line in lines] for section, lines in _sections(name).items()}


@cache
def phrases(name: str, section: str) -> re.Pattern[str]:
    """Return the regular expression of a section of ``data/<name>.txt``: each line is an alternative, in any case.

    ``{other}`` in a line stands for the alternatives of the section ``other``.

    >>> phrases("past", "was").findall("I used to sing in those days")
    ['in those days']
    """

    def joined(one: str) -> str:
        lines = "|".join(_sections(name)[one])
        return re.sub(r"\{([a-z_]+)\}", lambda match: f"(?:{joined(match[1])})", lines)

    return re.compile(joined(section), re.IGNORECASE)


@cache
def pattern(text: str) -> re.Pattern[str]:
    """Return a regular expression, compiled at its first use: importing the package compiles none of them.

    >>> pattern("[a-z]+").findall("a 1 bc")
    ['a', 'bc']
    """
    return re.compile(text)
