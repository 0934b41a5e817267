"""The texts that these tests read."""

from __future__ import annotations

from pathlib import Path


def rows(name: str, section: str) -> list[list[str]]:
    """Read the columns of each line of a section of a file of this folder."""
    text = Path(__file__).with_name(name).read_text("utf-8")
    lines = text.split(f"[{section}]\n")[1].split("\n[")[0].splitlines()
    return [line.split(" | ") for line in lines if line]
