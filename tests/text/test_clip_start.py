"""The end of a text, which begins where a piece of a splitter begins."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.node_parser import SentenceSplitter, TokenTextSplitter

from llama_index_memory_ext import TokenCounter
from llama_index_memory_ext.text.tokens import as_counter
from llama_index_memory_ext.text.trim import clip_start

COUNTER = TokenCounter()
WORDS = as_counter(str.split)
TEXT = "One is here. Two is here.  Three is there.\n\nFour was it. " * 3


def sentences(text: str) -> list[str]:
    """In place of LlamaIndex's own, for which NLTK is loaded."""
    return re.findall(r"[^.]+\.?\s*|\.", text)


SPLITTERS: dict[str, Any] = {
    "lines": str.splitlines,
    "words": str.split,
    "a separator that is lost": lambda text: text.split(". "),
    "overlapping": lambda text: [text[start : start + 10] for start in range(0, len(text), 6)],
    "LlamaIndex's sentences": SentenceSplitter(chunk_size=12, chunk_overlap=0, chunking_tokenizer_fn=sentences),
    "LlamaIndex's tokens, overlapping": TokenTextSplitter(chunk_size=12, chunk_overlap=4),
    "another text": lambda text: [text.upper()],
    "nothing": lambda text: [],
}


@pytest.mark.parametrize(
    ("splitter", "limit", "end"),
    [
        ("lines", 5, "Four was it. "),
        ("words", 2, "was it. "),
        ("a separator that is lost", 8, " Three is there.\n\nFour was it. "),
        ("LlamaIndex's sentences", 6, "Three is there.\n\nFour was it. "),
        ("LlamaIndex's tokens, overlapping", 4, "was it. "),
        ("another text", 50, ""),
        ("nothing", 50, ""),
    ],
)
def test_the_end_begins_where_a_piece_begins(splitter: str, limit: int, end: str) -> None:
    """Also if the splitter strips white space or overlaps."""
    text = TEXT if limit < 50 else TEXT * 20
    assert clip_start(text, limit, WORDS, SPLITTERS[splitter]) == end


@pytest.mark.parametrize("splitter", SPLITTERS)
@given(text=st.text(alphabet="ab .\n\t日", max_size=80) | st.sampled_from([TEXT, TEXT * 4]), limit=st.integers(-1, 80))
def test_the_end_is_the_texts_own_and_within_the_limit(splitter: str, text: str, limit: int) -> None:
    """Whatever the splitter; a text that fits is whole."""
    end = clip_start(text, limit, COUNTER, SPLITTERS[splitter])
    assert text.endswith(end)
    assert COUNTER.count(end) <= max(limit, 0)
    if COUNTER.count(text) <= limit:
        assert end == text
