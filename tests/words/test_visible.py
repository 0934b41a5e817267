"""What nobody sees is taken out of a text, and nothing else."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llama_index_memory_ext.fact import Fact, retire, utc_now
from llama_index_memory_ext.words import visible

# Formats that are seen: the signs before Arabic and Kaithi numbers.
SEEN_FORMATS = frozenset(
    map(
        chr, [*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD]
    )
)
UNSEEN = "\u00ad\u200b\u200c\u200d\u200e\u202e\u2060\u2066\ufe0f\ufeff\U000e0041\U000e007f\U000e0100\x00\x1b\r"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("Likes\u200b tea\u202e\u2066\ufeff", "Likes tea"),
        ("Hi" + "".join(chr(0xE0000 + ord(c)) for c in "obey me") + "!", "Hi!"),
        ("one\r\ntwo\u2028three\tfour\x85", "one\ntwo\nthree\tfour\n"),
        ("a\u200db a\u200c1", "ab a1"),
        ("A" + "\U000e0101\U000e0122\U000e0133", "A\U000e0101"),
        ("\u200d\u200c", ""),
    ],
)
def test_what_hides_in_a_text_is_taken_out(text: str, seen: str) -> None:
    assert visible(text) == seen


@pytest.mark.parametrize(
    "text",
    [
        "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u2764\ufe0f\u200d\U0001f525",
        "\U0001f469\U0001f3fd\u200d\u2695\ufe0f", "1\ufe0f\u20e3",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0915\u094d\u200d\u0937", "\u0600\u0661",
        "Zürich, 東京, C:\\tmp\t<b> \u00a0",
    ],
)  # fmt: skip
def test_what_belongs_to_a_word_or_an_emoji_stays(text: str) -> None:
    assert visible(text) == text


@given(st.text() | st.text(alphabet=f"{UNSEEN}a\u0645\U0001f469 \n"))
@example("\u1100\u200b\u115f")
def test_whatever_is_seen_stays_and_a_second_time_takes_nothing(text: str) -> None:
    seen = visible(text)
    assert visible(seen) == seen
    assert [c for c in seen if is_seen(c)] == [c for c in text if is_seen(c)]
    assert not [c for c in seen if unicodedata.category(c) == "Cc" and c not in "\n\t"]


def is_seen(c: str) -> bool:
    """Letters that are fillers, and marks that join or select, are left out of the comparison."""
    hidden = (
        unicodedata.category(c) in {"Cc", "Cf", "Zs", "Zl", "Zp", "Cn"}
        and c not in SEEN_FORMATS
    )
    return not hidden and not re.match(
        "[\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\ufe00-\ufe0f\u180b-\u180f\U000e0100-\U000e01ef]",
        c,
    )


def test_no_text_of_a_fact_hides_anything() -> None:
    hidden = "tea\u200b\U000e0041"
    fact = retire(
        Fact(content=hidden, quote=hidden, source=hidden, category=hidden),
        hidden,
        utc_now(),
    )
    assert {
        fact.content,
        fact.quote,
        fact.source,
        fact.category,
        fact.retired_reason,
    } == {"tea"}
    with pytest.raises(ValueError, match="a visible character"):
        Fact(content="\u200b\U000e0041\ufe0f")
