"""A share, a price or a number of tokens on a page comes from a result: it stands in a generated block.

``.ci/numbers_by_hand.txt`` lists the numbers that still stand outside of one. The list may only become shorter.
"""

from __future__ import annotations

import re

import pytest

from benchmarks.figures import MARKED
from tests.pages import PAGES, ROOT

LISTED = ROOT / ".ci" / "numbers_by_hand.txt"
# Code shows settings and programs, which are no results.
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"\$ ?\d[\d,.]*|\d[\d,.]*\s?(?:%|percent|tokens?\b)")


def numbers_by_hand(page: str) -> list[str]:
    """Return the shares, prices and numbers of tokens in a text, outside generated blocks and code."""
    text = CODE.sub("", MARKED.sub("", page))
    return [" ".join(number.split()) for number in NUMBER.findall(text)]


def listed_for(name: str) -> list[str]:
    """Return the numbers that the list has for a page."""
    lines = LISTED.read_text(encoding="utf-8").splitlines()
    pairs = [line.split(": ") for line in lines if not line.startswith("#")]
    return [number for page, number in pairs if page == name]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_number_by_hand_but_those_of_the_list(name: str) -> None:
    """A number that is gone leaves the list, too."""
    assert sorted(numbers_by_hand(PAGES[name])) == sorted(listed_for(name))


@pytest.mark.parametrize(
    "number", ["12 %", "0.5%", "$3", "$ 1,200.50", "1,000 tokens", "1 token"]
)
def test_a_number_counts_outside_of_generated_blocks_and_code_alone(
    number: str,
) -> None:
    block = f"<!-- figures: x -->{number}<!-- end -->"
    code = f"`{number}`\n\n```text\n{number}\n```\n"
    assert numbers_by_hand(f"{block} {code}") == []
    assert numbers_by_hand(f"It is {number}\n or more.") == [number]


def test_a_number_counts_across_two_lines() -> None:
    assert numbers_by_hand("It has 1,000\ntokens.") == ["1,000 tokens"]
