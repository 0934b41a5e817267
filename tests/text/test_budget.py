"""What fits into a number of tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext import TokenCounter
from llama_index_memory_ext.text.budget import FIRST_SHARE, fit, put_first
from llama_index_memory_ext.text.tokens import as_counter

COUNTER = TokenCounter()
LINES = st.lists(st.text(alphabet=st.sampled_from("ab \t<>/=.1\u00a0日"), max_size=20).map("<f>{}</f>\n".format))


@given(lines=LINES, limit=st.integers(-5, 120))
def test_the_whole_text_is_within_the_limit(lines: list[str], limit: int) -> None:
    """And has exactly the tokens that are said, and nothing that was dropped would have fitted at its turn."""
    fitted = fit(lines, limit, COUNTER)
    assert COUNTER.count("".join(lines[i] for i in fitted.kept)) == fitted.tokens <= max(limit, 0)
    assert sorted(fitted.kept + fitted.dropped) == list(range(len(lines)))
    for i in fitted.dropped:
        before = sum(COUNTER.count(lines[j]) for j in fitted.kept if j < i)
        assert before + COUNTER.count(lines[i]) > limit


@given(lines=LINES, limit=st.integers(-5, 120))
def test_a_tokenizer_whose_counts_do_not_add_up_keeps_to_the_limit_too(lines: list[str], limit: int) -> None:
    counter = as_counter(lambda text: [0, 0, 0, *text.replace("\n<", "")])
    fitted = fit(lines, limit, counter)
    assert not fitted.kept or counter.count("".join(lines[i] for i in fitted.kept)) == fitted.tokens <= limit


def test_what_does_not_fit_is_skipped_and_the_next_is_tried() -> None:
    lines = ["<f>one</f>\n", "<f>" + "long " * 50 + "</f>\n", "<f>two</f>\n"]
    fitted = fit(lines, 20, COUNTER)
    assert (fitted.kept, fitted.dropped) == ((0, 2), (1,))


def test_nothing_is_counted_once_no_line_can_fit() -> None:
    counted: list[str] = []

    def tokenizer(text: str) -> list[int]:
        counted.append(text)
        return [0] * len(text)

    counter = as_counter(tokenizer)
    counted.clear()
    fitted = fit(["<aaaaaaa>\n"] * 100, 25, counter, least=6)
    assert (fitted.kept, len(fitted.dropped), len(counted)) == ((0, 1), 98, 2)


def test_marked_entries_come_first_up_to_their_share() -> None:
    """One that is too large for what is left of the share keeps its place."""
    assert put_first([10] * 5, [False, False, True, False, True], limit=80) == [2, 4, 0, 1, 3]
    assert put_first([10, 30, 10], [False, True, True], limit=80) == [2, 0, 1]
    assert put_first([10, 10], [False, True], limit=0) == [0, 1]
    assert put_first([], [], limit=80) == []


@given(entries=st.lists(st.tuples(st.integers(1, 30), st.booleans())), limit=st.integers(0, 200))
def test_the_order_is_otherwise_kept(entries: list[tuple[int, bool]], limit: int) -> None:
    """Whatever overtakes an unmarked entry is marked, and all that do are within the share."""
    order = put_first([tokens for tokens, _ in entries], [marked for _, marked in entries], limit)
    place = {i: at for at, i in enumerate(order)}
    assert sorted(order) == list(range(len(entries)))
    unmarked = [i for i, (_, marked) in enumerate(entries) if not marked]
    assert unmarked == sorted(unmarked, key=place.__getitem__)
    moved = [i for i in range(len(entries)) if any(j < i and place[j] > place[i] for j in unmarked)]
    assert sum(entries[i][0] for i in moved) <= FIRST_SHARE * limit
