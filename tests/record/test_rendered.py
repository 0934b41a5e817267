"""A record that is rendered bit by bit is the one that is rendered at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.record.window import Rendered
from llama_index_memory_ext.text.messages import Entry

LENGTHS = st.lists(st.integers(1, 9), max_size=30)


@given(lengths=LENGTHS, first=st.integers(0, 30), dropped=st.integers(0, 3))
def test_entries_are_added_to_those_before(lengths: list[int], first: int, dropped: int) -> None:
    """If the oldest have left since, or the last ones have changed, all of it is rendered."""
    entries = tuple(Entry(i, f"{i}{'x' * length}\n", length) for i, length in enumerate(lengths))
    at_once = Rendered().of(entries, 5 * 256)
    assert Rendered().of(entries[:first], 5 * 256).of(entries, 5 * 256) == at_once
    assert at_once.of(entries[dropped:], 5 * 256) == Rendered().of(entries[dropped:], 5 * 256)
    assert at_once.text == "".join(entry.text for entry in entries)
