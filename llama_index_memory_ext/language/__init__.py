"""The words of a text: its language, terms, numbers, dates, names and secrets."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files


@cache
def word_lists(name: str) -> dict[str, list[list[str]]]:
    """Read ``data/<name>.txt``; return the words of each line, by the section in which the line stands.

    A line such as ``[de]`` begins a section; lines before the first one are in the section "". Empty lines and those
    that begin with "#" are left out.
    """
    sections: dict[str, list[list[str]]] = {"": []}
    lines = sections[""]
    for line in (files(__name__) / "data" / f"{name}.txt").read_text("utf-8").splitlines():
        if line.startswith("["):
            lines = sections[line.strip("[]")] = []
        elif line.strip() and not line.startswith("#"):
            lines.append(line.split())
    return sections


@cache
def pattern(text: str) -> re.Pattern[str]:
    """Return a regular expression, compiled at its first use: importing the package compiles none of them.

    >>> pattern("[a-z]+").findall("a 1 bc")
    ['a', 'bc']
    """
    return re.compile(text)
