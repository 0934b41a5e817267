"""CONTRIBUTING.md lists each tuned constant once, with the value that it has."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

import llama_index_memory_ext

PACKAGE = Path(llama_index_memory_ext.__file__).parent
PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
# Files of which each fraction is a tuned constant, apart from those about time and memory.
TUNED_FILES = (
    "fact.py",
    "facts/concern.py",
    "facts/ranking.py",
    "record/index.py",
    "record/recall.py",
    "search/embeddings.py",
    "search/tfidf.py",
)
UNTUNED = {"_CALL_SECONDS", "_GROWTH", "_INDEX_SECONDS", "_RETRY_SECONDS"}


class Constant(NamedTuple):
    """A row of the table: a name, its file in the package, its value, the data that it was chosen on, its gain."""

    name: str
    file: str
    value: str
    chosen_on: str
    gain_elsewhere: str


def table() -> str:
    """Return the last section of the page."""
    page = PAGE.read_text(encoding="utf-8")
    return page.split("\n## Tuned constants\n")[1]


def constants() -> list[Constant]:
    """Return the rows of the table."""
    rows = re.findall(
        r"^\| `(\w+)` \| `([\w/.]+)` \| `(.+?)` \| (.+?) \| (.+?) \|$",
        table(),
        re.MULTILINE,
    )
    return [Constant(*row) for row in rows]


@pytest.mark.parametrize(
    "constant", constants(), ids=lambda row: f"{row.file}-{row.name}"
)
def test_a_constant_has_the_value_that_the_page_says(constant: Constant) -> None:
    name = constant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    module = import_module(f"llama_index_memory_ext.{name}")
    assert getattr(module, constant.name) == ast.literal_eval(constant.value)


def test_each_constant_is_listed_once() -> None:
    listed = [(row.file, row.name) for row in constants()]
    assert len(listed) == len(set(listed))
    # The heading and the line below it.
    assert table().count("\n|") == len(listed) + 2


def test_no_tuned_constant_is_missing() -> None:
    listed = {(row.file, row.name) for row in constants()}
    missing = []
    for file in TUNED_FILES:
        for statement in ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body:
            if not isinstance(statement, ast.Assign):
                continue
            (target,) = statement.targets
            is_fraction = isinstance(statement.value, ast.Constant) and isinstance(
                statement.value.value, float
            )
            name = ast.unparse(target)
            if is_fraction and name not in UNTUNED and (file, name) not in listed:
                missing.append(f"{file}: {name}")
    assert missing == []
