"""Exact counts, texts clipped to them, and what fits into a number of tokens."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import subprocess
import sys
import time

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext import TokenCounter
from llama_index_memory_ext.text.entries import CLOSING
from llama_index_memory_ext.text.tokens import as_counter, take_fitting

COUNTER = TokenCounter()
MEGABYTE = 1_000_000


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
@given(text=st.text())
def test_counts_are_those_of_tiktoken(name: str, text: str) -> None:
    """Special tokens count as the plain text that they are."""
    counter = TokenCounter(name)
    counter.count(
        ""
    )  # tiktoken finds the vocabulary only after the counter has found it offline.
    assert counter(text) == tiktoken.get_encoding(name).encode_ordinary(text)


@pytest.mark.parametrize("separator", [" ", "\n", " and ", ". Then, "])
def test_a_long_text_is_counted_in_pieces_that_add_up(separator: str) -> None:
    """Only a text without any word boundary may count differently."""
    text = separator.join(["Word's", "3214", "été", "日本"] * 12_000)
    counter = TokenCounter()
    assert len(text) > 200_000
    assert counter.count(text) == len(
        tiktoken.get_encoding("o200k_base").encode_ordinary(text)
    )


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
@given(
    texts=st.lists(
        st.text(alphabet=st.sampled_from("ab \n\t<>/=.1\u00a0日"), max_size=20),
        max_size=6,
    )
)
def test_lines_in_angle_brackets_add_up(name: str, texts: list[str]) -> None:
    """So a record need not be counted again as a whole."""
    counter = TokenCounter(name)
    entries = [f'<message role="user">{text}{CLOSING}' for text in texts]
    whole = "<memory>\n" + "".join(entries) + "</memory>\n"
    assert counter.count(whole) == sum(
        map(counter.count, ["<memory>\n", *entries, "</memory>\n"])
    )


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "中",
        "\n",
        " ",
        "\t",
        "😀",
        ".",
        "\x00",
        "\ud83d",
        "Aa",
        "\u3000",
        "<|endoftext|>",
        "a ",
        "</message>",
    ],
)
def test_a_megabyte_of_anything_takes_less_than_a_second(text: str) -> None:
    """And never raises; the bound is loose because machines differ."""
    counter = TokenCounter()
    counter.count("")
    started = time.process_time()
    assert counter.count(text * (MEGABYTE // len(text))) > 0
    assert time.process_time() - started < 3


# Any function from a text to its tokens can count; this one gives each text a token more than it has bytes.
PER_BYTE = as_counter(lambda text: [0, *text.encode("utf-8", "surrogatepass")])


@given(
    text=st.text(max_size=300),
    limit=st.integers(-2, 60),
    counter=st.sampled_from([COUNTER, PER_BYTE]),
)
def test_a_clipped_text_keeps_to_the_limit(
    text: str, limit: int, counter: TokenCounter
) -> None:
    """A text that fits is not touched."""
    clipped = counter.clip(text, limit)
    assert clipped == "" or counter.count(clipped) <= limit
    if counter.count(text) <= limit:
        assert clipped == text


def test_a_clipped_text_keeps_its_head_and_its_tail_and_says_what_is_missing() -> None:
    counter = TokenCounter()
    text = "first " + "middle " * 500 + "last"
    clipped = counter.clip(text, 100)
    head, _, tail = clipped.partition("\n[... ")
    assert head.startswith("first middle")
    assert tail.endswith("middle last")
    left_out = int(tail.split()[0])
    assert counter.count(text) - 100 <= left_out <= counter.count(text) - 60


def test_models_and_encodings_are_found_without_a_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even where the cache folder that tiktoken is told to use is empty."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "/nowhere")
    assert TokenCounter("gpt-4o").count("Hello, world") == 3
    assert TokenCounter("gpt-4").count("Hello, world") == 3
    assert os.environ["TIKTOKEN_CACHE_DIR"] == "/nowhere"


SEES_VARIABLES = """
import sys
changed = []
sys.addaudithook(lambda event, given: changed.append(given[0]) if event in ("os.putenv", "os.unsetenv") else None)
from llama_index_memory_ext import TokenCounter
assert TokenCounter().count("Hello, world") == 3
assert b"TIKTOKEN_CACHE_DIR" not in changed, changed
"""


def test_loading_a_vocabulary_leaves_the_variable_alone_that_llama_index_sets_and_deletes() -> (
    None
):
    """Its own vocabulary may be loaded by another thread at that moment, which would go to the network without it."""
    unset = {
        name: value
        for name, value in os.environ.items()
        if name != "TIKTOKEN_CACHE_DIR"
    }
    subprocess.run(
        [sys.executable, "-c", SEES_VARIABLES], env=unset, check=True, timeout=60
    )


def test_an_unknown_encoding_warns_once_and_estimates(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The estimate knows that a Chinese character is about a token."""
    counter = TokenCounter("no-such-model")
    with caplog.at_level(logging.WARNING):
        assert counter.count("日本語") == 3
        assert counter.count("abcdef") == 2
        assert len(counter("abcdef")) == 2
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "no-such-model" in warning
    assert "o200k_base" in warning
    assert counter.count(counter.clip("word " * 300, 50)) <= 50


def test_a_counter_can_be_copied_and_pickled() -> None:
    for twin in (
        copy.deepcopy(TokenCounter("gpt-4")),
        pickle.loads(pickle.dumps(TokenCounter("gpt-4"))),
    ):
        assert repr(twin) == "TokenCounter('gpt-4')"
        assert twin.count("Hello, world") == 3


# ---- what fits -----------------------------------------------------------------------------------------

LINES = st.lists(
    st.text(alphabet=st.sampled_from("ab \t<>/=.1\u00a0日"), max_size=20).map(
        "<f>{}</f>\n".format
    )
)


@given(lines=LINES, limit=st.integers(-5, 120))
def test_the_whole_text_is_within_the_limit(lines: list[str], limit: int) -> None:
    """And nothing that was skipped would have fitted at its turn."""
    kept = take_fitting(range(len(lines)), lambda i: COUNTER.count(lines[i]), limit)
    assert COUNTER.count("".join(lines[i] for i in kept)) <= max(limit, 0)
    for i in set(range(len(lines))) - set(kept):
        before = sum(COUNTER.count(lines[j]) for j in kept if j < i)
        assert before + COUNTER.count(lines[i]) > limit


@pytest.mark.skipif(not hasattr(os, "fork"), reason="There is no fork here.")
def test_a_child_that_is_forked_while_the_vocabulary_is_loaded_counts() -> None:
    """As by a server that makes a memory and then its workers."""
    code = """
import os, signal, threading
from llama_index_memory_ext.text.tokens import TokenCounter
threading.Thread(target=TokenCounter().count, args=["Hello"]).start()
child = os.fork()
if child == 0:
    signal.alarm(60)
    os._exit(TokenCounter().count("Hello, world"))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == TokenCounter().count("Hello, world") == 3
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


async def test_a_vocabulary_that_is_loaded_is_waited_for_once() -> None:
    """Of a function that counts there is nothing to load."""
    for counter in (TokenCounter("cl100k_base"), TokenCounter("words", str.split)):
        await counter.load()
        await counter.load()
        assert counter.count("some words") == 2
