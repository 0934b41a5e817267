"""A fact, and when two say the same."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from llama_index_memory_ext.errors import FactError
from llama_index_memory_ext.fact import Fact, duplicate_key
from llama_index_memory_ext.text.messages import clean
from llama_index_memory_ext.words import visible


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"content": " \n"}, "content"),
        ({"category": " "}, "category"),
        ({"id": ""}, "id"),
        ({"confidence": -0.1}, "confidence"),
        (
            {"confidence": 7},
            r"confidence must be less than or equal to 1; got 7\. It is: .* for 1\.0\.",
        ),
        ({"created_at": datetime(2026, 11, 20)}, "created_at"),  # noqa: DTZ001
        (
            {"created_at": "my secret"},
            r"created_at must be a valid datetime or date.*; got a str\.",
        ),
        ({"confidnce": 1}, r"no argument 'confidnce'\. Did you mean 'confidence'"),
    ],
)
def test_what_no_fact_can_be_is_refused_with_the_way_out(
    wrong: dict[str, Any], said: str
) -> None:
    """A datetime without a zone too. In one line, without what pydantic writes and without the words of the fact."""
    with pytest.raises(FactError, match=said) as refused:
        Fact(**{"content": "Likes tea", **wrong})
    assert not any(
        word in str(refused.value) for word in ("\n", "pydantic", "my secret")
    )
    assert refused.value.__cause__ is refused.value.__context__ is None


def test_a_fact_without_content_is_told_what_is_missing() -> None:
    said = (
        r'content must be given; got nothing\. It is: "The fact in one sentence\." Give'
    )
    with pytest.raises(FactError, match=said):
        Fact()  # type: ignore[call-arg]


def test_times_keep_their_offset_and_so_their_day_and_a_fact_was_updated_when_it_was_created() -> (
    None
):
    created_at = datetime(2026, 11, 20, 1, tzinfo=timezone(timedelta(hours=2)))
    fact = Fact(content="Likes tea", created_at=created_at)
    assert (
        fact.created_at.isoformat()
        == fact.updated_at.isoformat()
        == "2026-11-20T01:00:00+02:00"
    )


@given(
    content=st.text(alphabet=st.characters(codec=None), min_size=1),
    source=st.text(alphabet="a\ud800\x00😀"),
)
def test_every_fact_survives_json(content: str, source: str) -> None:
    """Lone surrogates and NUL, which no database takes, become U+FFFD on the way in."""
    if not visible(clean(content)).strip():
        return
    fact = Fact(content=content, source=source)
    assert Fact.model_validate_json(fact.model_dump_json()) == fact
    assert not set(fact.content + fact.source) & {"\ud800", "\x00"}


def test_surrogates_are_read_as_in_the_transcript() -> None:
    """A pair is one character; a lone one, and NUL, become U+FFFD."""
    broken, mended = "\ud83d\ude00 \ud83d \ude00 \x00", "😀 \ufffd \ufffd \ufffd"
    fact = Fact(
        id=broken, content=broken, quote=broken, source=broken, retired_reason=broken
    )
    assert {fact.id, fact.content, fact.quote, fact.source, fact.retired_reason} == {
        mended
    }
    assert clean(broken) == mended


def test_a_fact_cannot_be_changed() -> None:
    fact = Fact(content="Likes tea")
    with pytest.raises(ValidationError, match="frozen"):
        fact.content = "Likes coffee"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Prefers pytest.", "prefers  pytest", True),
        ("\uff30\uff39test", "pytest", True),
        ("Doesn't eat meat", "Doesn\u2019t eat meat", True),
        ("喜欢茶。", "喜欢茶", True),
        ("Straße", "STRASSE", True),
        ("Likes C#", "Likes C", False),
        ("Likes C++", "Likes C", False),
        ("Earns 50%", "Earns 50", False),
        ("At -5 degrees", "At 5 degrees", False),
        ("Costs 1.5", "Costs 15", False),
        ("?", "!", False),
    ],
)
def test_how_a_thing_is_written_does_not_make_it_another_and_a_mark_that_tells_things_apart_does(
    one: str, other: str, *, same: bool
) -> None:
    assert (duplicate_key(one) == duplicate_key(other)) is same


@given(st.text())
def test_what_is_normalised_stays_as_it_is(text: str) -> None:
    assert duplicate_key(duplicate_key(text)) == duplicate_key(text)
