"""Related words are found by bisection in a sorted file."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files

import pytest

from llama_index_memory_ext.words.tokens import related_terms

TEXT = (files("llama_index_memory_ext.words") / "data" / "related.txt").read_text(
    "utf-8"
)
LINES = [line.split(" ", 1) for line in TEXT.splitlines() if not line.startswith("#")]


def test_the_terms_of_the_file_are_sorted_by_their_bytes_behind_the_comments() -> None:
    terms = [f"{term} ".encode() for term, _ in LINES]
    assert terms == sorted(terms)
    comments = len(TEXT.splitlines()) - len(LINES)
    assert all(line.startswith("#") for line in TEXT.splitlines()[:comments])


def test_a_line_is_found_wherever_it_stands() -> None:
    for term, related in [*LINES[::97], *LINES[:3], *LINES[-3:]]:
        assert list(related_terms(term)) == related.split()


@pytest.mark.parametrize(
    "term",
    [
        "",
        "#",
        "# Stems",
        " ",
        "a",
        "xyzzy",
        "zzzz",
        "allergi ",
        "\ud800",
        "日本",
        "\x00",
    ],
)
def test_a_term_without_a_line_has_no_related_terms(term: str) -> None:
    assert related_terms(term) == ()


def test_documents_are_indexed_without_the_file() -> None:
    """Only a question that needs related words reads it."""
    program = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from llama_index_memory_ext.search.tfidf import Document, TfidfRanker
ranker = TfidfRanker()
ranker.add([Document("a", "Is a nurse")])
assert not any("related.txt" in name for name in opened)
assert ranker.similarities("profession")["a"]
assert sum("related.txt" in name for name in opened) == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True)
