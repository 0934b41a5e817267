"""JSON as language models write it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.text.loose_json import loose_values

plain = st.text("abc 1.,'\u4f60\\n")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | plain,
    # A key of more than 60 characters is taken for none.
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc_", min_size=1, max_size=60), inner, max_size=4)
    ),
    max_leaves=12,
)
containers = json_values.filter(lambda value: isinstance(value, (dict, list)))


@given(containers)
def test_what_is_json_is_read_as_json(value: Any) -> None:
    (found,) = loose_values(json.dumps(value))
    assert (found.value, found.clean, found.cut) == (value, True, False)


@given(containers)
def test_what_python_shows_is_read_as_json(value: Any) -> None:
    (found,) = loose_values(repr(value))
    assert (found.value, found.clean) == (value, True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a: 1, 'b': [True, None], /* c */ \u201cd\u201d: \u201cx\u201d}", {"a": 1, "b": [True, None], "d": "x"}),
        ('{"a": "x"  // one\n "b": "y" # two\n}', {"a": "x", "b": "y"}),
        ('{"a": "He said "hi", then left", "b": "x"}', {"a": 'He said "hi", then left', "b": "x"}),
        ('["a" , "the "b" of it", ]', ["a", 'the "b" of it']),
        ("{'a': 'don't', 'b': 'O\\'Neill'}", {"a": "don't", "b": "O'Neill"}),
        ('{"a"\uff1a"x"\uff0c"b"\uff1a2}', {"a": "x", "b": 2}),
        ('{"a": [{"b": 1} {"b": 2}]}', {"a": [{"b": 1}, {"b": 2}]}),
        (r'["\ud83c\udf75 \u00e9\t\"q\""]', ['\U0001f375 \u00e9\t"q"']),
    ],
)
def test_other_marks_and_missing_ones_are_read(text: str, value: Any) -> None:
    (found,) = loose_values(text)
    assert (found.value, found.clean) == (value, True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": oops, "b": 0..1, "c": 2}', {"a": None, "b": None, "c": 2}),
        ('{"a": "no end, "b": "x", "c": 2}', {"a": None, "c": 2}),
        ('{"a": , "b": 1, ...}', {"a": None, "b": 1}),
        ('{"a": [{"b": 1]}', {"a": [{"b": 1}]}),
    ],
)
def test_what_cannot_be_read_is_none_and_costs_only_itself(text: str, value: Any) -> None:
    (found,) = loose_values(text)
    assert found.value == value
    assert not found.cut


@given(containers, st.data())
def test_of_what_was_cut_off_nothing_is_invented(value: Any, data: st.DataObject) -> None:
    text = json.dumps([value, value])
    (found,) = loose_values(text[: data.draw(st.integers(1, len(text) - 1))])
    assert found.cut
    assert strings(found.value) <= strings(value)


def strings(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {text for part in value.values() for text in strings(part)}
    if isinstance(value, list):
        return {text for part in value for text in strings(part)}
    return {value} if isinstance(value, str) else set()


@given(st.text("{}[]\"',:\\/*# \nab1\u201c\u201d") | st.text())
def test_any_text_is_read(text: str) -> None:
    for found in loose_values(text):
        assert isinstance(found.value, (dict, list))
