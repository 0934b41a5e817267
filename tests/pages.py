"""The pages of the repository, and the blocks of code on them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def texts_of(files: list[Path]) -> dict[str, str]:
    """Return the text of each file by its name."""
    return {path.name: path.read_text(encoding="utf-8") for path in files}


PAGES = texts_of([ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
RECIPES = texts_of(sorted((ROOT / "docs" / "recipes").glob("*.md")))


def blocks(kind: str, text: str = "") -> list[str]:
    """Return the blocks of code of a kind, on all pages or in a text."""
    pattern = rf"^```{kind}\n(.*?)^```$"
    return re.findall(
        pattern, text or "\n".join(PAGES.values()), flags=re.DOTALL | re.MULTILINE
    )
