"""The English of public names: CONTRIBUTING.md has a glossary, and words that name nothing are refused."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import llama_index_memory_ext

CONTRIBUTING = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(
    encoding="utf-8"
)
GLOSSARY = (
    "session user turn message record recall profile fact log reader cursor limit owner"
)


def refused_words() -> list[str]:
    """Return the words that CONTRIBUTING.md refuses."""
    listed = re.search(
        r"because they name nothing:\s+(.*?)\.\n", CONTRIBUTING, re.DOTALL
    )
    assert listed is not None
    return [" ".join(word.split()) for word in listed[1].split(",")]


def documented_names() -> Iterator[tuple[str, str]]:
    """Yield each public name and each public method of a public class, with its own docstring."""
    for name in llama_index_memory_ext.__all__:
        value = getattr(llama_index_memory_ext, name)
        yield name, value.__doc__ or ""
        if not inspect.isclass(value):
            continue
        for attribute, member in vars(value).items():
            if not attribute.startswith("_"):
                yield f"{name}.{attribute}", inspect.getdoc(member) or ""


def test_the_glossary_explains_each_noun() -> None:
    explained = re.findall(r"^\| (\w+) \| \S", CONTRIBUTING, re.MULTILINE)
    assert set(GLOSSARY.split()) <= set(explained)


def test_public_docstrings_use_no_word_that_names_nothing() -> None:
    pattern = re.compile(rf"\b({'|'.join(refused_words())})\b", re.IGNORECASE)
    wrong = {
        name: pattern.findall(text)
        for name, text in documented_names()
        if pattern.search(text)
    }
    assert wrong == {}


def test_examples_of_public_names_stand_under_a_heading() -> None:
    """Without it, the reference shows them as quotations."""
    wrong = [
        name
        for name, text in documented_names()
        if re.search(r"^>>>", text, re.MULTILINE) and text != inspect.getdoc(int)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "name", ["CondensedMemory", "CondensedMemory.from_defaults", "RelevantFactsBlock"]
)
def test_the_docstrings_are_read(name: str) -> None:
    assert dict(documented_names())[name]
