"""The rules of prompt caches find what the providers' guides say; servers of tests, and benchmarks, rely on them."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

caches = import_module("benchmarks.prompt_caches")
Part, Usage = caches.Part, caches.Usage


def words(name: str, tokens: int) -> str:
    """A line of so many tokens, the first of which is the name."""
    text = name + " a" * (tokens - 2) + "\n"
    assert len(caches.o200k().encode_ordinary(text)) == tokens
    return text


RECORD, OLD, NEW = words("record", 2000), words("old", 500), words("new", 700)
WORD = words("word", 2)


def growing(mark: bool) -> list[list[object]]:
    """Two prompts of one user message each: a record that grows, in parts, and a question."""
    first = [Part(RECORD, marked=mark), Part(OLD, ends_message=True)]
    second = [
        Part(RECORD, marked=mark),
        Part(NEW, marked=mark),
        Part(WORD, ends_message=True),
    ]
    return [first, second]


def test_a_token_prefix_is_found_in_steps_of_128_from_1024_tokens_on() -> None:
    cache = caches.TokenPrefix()
    assert cache.serve([Part(words("x", 1023))]) == Usage(1023, 0, 1023)
    assert cache.serve([Part(words("x", 1023))]) == Usage(1023, 0, 1023)
    assert cache.serve([Part(words("x", 1500))]) == Usage(1500, 0, 1500)
    assert cache.serve([Part(words("x", 1400) + "end")]).found == 1024 + 2 * 128
    assert (
        cache.serve([Part("x" + " a" * 900), Part(" a" * 600)]).found == 1024 + 3 * 128
    )


def test_a_list_of_messages_is_found_up_to_the_newest_one_of_the_request_before() -> (
    None
):
    """Not within one message that grows, without marks."""
    cache, growing_one = caches.NewestMessage(), growing(mark=False)
    assert [cache.serve(one).found for one in growing_one] == [0, 0]
    cache = caches.NewestMessage()
    asked, answer = (
        [Part(RECORD, ends_message=True), Part(OLD, ends_message=True)],
        Part(NEW),
    )
    assert cache.serve(asked) == Usage(2500, 0, 2500)
    assert cache.serve([*asked, answer, Part(WORD, ends_message=True)]) == Usage(
        3202, 2500, 702
    )
    assert cache.serve([*asked[:1], Part(NEW, ends_message=True)]).found == 0


def test_a_mark_is_found_where_an_earlier_request_had_one() -> None:
    cache = caches.Marks(managed=False)
    first, second = growing(mark=True)
    assert cache.serve(first) == Usage(2500, 0, 2000)
    assert cache.serve(second) == Usage(2702, 2000, 700)
    assert cache.serve([Part(RECORD), *second[1:]]) == Usage(2702, 2700, 0)
    assert cache.serve([Part(RECORD), Part(NEW), Part(WORD, marked=True)]).found == 0


def test_a_request_writes_at_its_four_latest_marks_and_the_managed_one_is_one_of_them() -> (
    None
):
    parts = [Part(words(str(i), 1024), marked=True) for i in range(5)]
    for managed, oldest in ((False, 1), (True, 2)):
        cache = caches.Marks(managed=managed)
        assert (
            cache.serve([*parts, Part(WORD, ends_message=True)]).written
            == 5120 + 2 * managed
        )
        assert cache.serve(parts[:oldest]).found == 0
        assert cache.serve(parts[: oldest + 1]).found == 1024 * (oldest + 1)


def test_a_block_mark_looks_back_over_twenty_blocks_and_less_than_1024_tokens_are_not_written() -> (
    None
):
    cache = caches.Blocks()
    blocks = [Part(RECORD, marked=True), *[Part(WORD)] * 30]
    cache.serve(blocks)
    for more, found in ((18, 2000), (19, 2000), (20, 0)):
        prompt = [Part(RECORD), *[Part(WORD)] * more]
        prompt[-1] = Part(words("last", 5), marked=True)
        assert cache.serve(prompt).found == found
    with pytest.raises(ValueError, match="Found 5"):
        cache.serve([Part(WORD, marked=True)] * 5)
    short = [Part(words("short", 1023), marked=True)]
    for small in (caches.Marks(managed=False), caches.Blocks()):
        assert [small.serve(short) for _ in range(2)] == [Usage(1023, 0, 0)] * 2


def test_a_unit_is_found_whole_and_a_common_beginning_from_the_third_request_on() -> (
    None
):
    cache = caches.Units()
    assert cache.serve([Part(RECORD), Part(OLD)], answer=Part(WORD)).found == 0
    assert cache.serve([Part(RECORD), Part(NEW)]).found == 0
    assert cache.serve([Part(RECORD), Part(WORD)]) == Usage(2002, 2000, 2)
    assert cache.serve([Part(RECORD), Part(OLD), Part(WORD), Part(NEW)]).found == 2502


def test_a_write_costs_more_where_the_provider_says_so() -> None:
    usage = Usage(prompt=1000, found=600, written=300)
    assert caches.paid(usage, caches.TokenPrefix()) == pytest.approx(60 + 400)
    assert caches.paid(usage, caches.Marks(managed=False)) == pytest.approx(
        60 + 375 + 100
    )
    assert caches.paid(usage, caches.Blocks(ttl="1h")) == pytest.approx(60 + 600 + 100)


def test_the_tokens_of_a_part_are_those_of_its_whole_text() -> None:
    text = "<a>\n</a>\n\n/b\n  c\n_d 1\n²\r\ne😀f\n" * 3
    usage = caches.TokenPrefix().serve([Part(text)])
    assert usage.prompt == len(caches.o200k().encode_ordinary(text))
    assert caches.Marks(managed=False).serve([Part(text)]).prompt == usage.prompt


@given(st.text("ab \n\r\t/<>'1.é要🙂", max_size=60))
def test_the_tokens_of_lines_are_those_of_the_whole_text(text: str) -> None:
    assert caches.count_tokens(text) == len(caches.o200k().encode_ordinary(text))


@given(st.lists(st.lists(st.integers(0, 1), max_size=6), min_size=1, max_size=6))
def test_the_longest_beginning_that_earlier_prompts_have_is_found(
    prompts: list[list[int]],
) -> None:
    tokens, *sent = [np.array(prompt, np.int32) for prompt in prompts]
    longest = max((caches._shared(tokens, one) for one in sent), default=0)
    assert caches._most_shared(tokens, sent) == longest
