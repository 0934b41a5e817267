"""The texts that these tests read."""

from __future__ import annotations

from pathlib import Path

LANGUAGES = "languages.txt"


def cases(name: str) -> dict[str, list[str]]:
    """Read a file of this folder: the lines of each section, of which the first line is its name in brackets."""
    sections = Path(__file__).with_name(name).read_text("utf-8").split("\n[")[1:]
    return {
        name: lines.splitlines()
        for name, lines in (section.split("]\n", 1) for section in sections)
    }


def rows(section: str, name: str = "statements.txt") -> list[list[str]]:
    """Read the columns of each line of a section of a file of this folder."""
    return [line.split(" | ") for line in cases(name)[section]]
