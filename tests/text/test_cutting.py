"""Where the record and short-term memory are cut."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.text.cutting import plan_cut, plan_flush, share_out

KINDS = st.lists(st.tuples(st.sampled_from("uart"), st.integers(1, 30)), max_size=25)


def cut(kinds: str, tokens: list[int], **limits: Any) -> int:
    """u: a user's message, a: an assistant's, t: a tool's result."""
    return plan_cut(
        tokens,
        turn_starts=[kind == "u" for kind in kinds],
        results=[kind == "t" for kind in kinds],
        **{"token_limit": 100, "keep_tokens": 75, **limits},
    )


def test_nothing_is_cut_within_the_limit() -> None:
    assert cut("uaua", [25, 25, 25, 25]) == 0
    assert cut("", []) == 0


def test_a_cut_goes_down_to_the_share_that_is_kept() -> None:
    assert cut("uauaua", [20] * 6) == 4
    assert cut("uauaua", [17] * 6) == 2


def test_a_cut_in_front_of_a_turn_is_preferred_unless_it_costs_too_much() -> None:
    """A long turn is cut within itself rather than lost whole."""
    assert cut("uaaaaau", [11] + [15] * 6) == 2
    assert cut("uauaaau", [40, 10, 20, 15, 15, 15, 5]) == 2


def test_a_cut_can_be_made_at_starts_only() -> None:
    """Whatever that costs; where none of them fits, the limit still holds."""
    limits = {"token_limit": 100, "keep_tokens": 100}
    assert cut("uaua", [90, 70, 5, 5], **limits, only_at_starts=True) == 2
    assert cut("uaua", [90, 70, 50, 60], **limits, only_at_starts=True) == 3


def test_a_result_is_never_parted_from_its_call() -> None:
    assert cut("uattua", [60, 20, 20, 20, 10, 10]) in (1, 4)
    assert cut("uattt", [60, 30, 20, 20, 20]) == 1


def test_the_newest_message_stays_even_if_it_is_over_what_is_kept() -> None:
    assert cut("ua", [90, 90]) == 1


def test_a_number_of_messages_is_a_limit_too() -> None:
    assert cut("uauaua", [1] * 6, max_messages=6, keep_messages=2) == 0
    assert cut("uauauau", [1] * 7, max_messages=6, keep_messages=2) == 6
    assert cut("uauauaua", [1] * 8, max_messages=6, keep_messages=2) == 6


@given(kinds=KINDS, limit=st.integers(1, 200))
def test_a_cut_keeps_the_newest_within_the_limits(kinds: list[tuple[str, int]], limit: int) -> None:
    """Whatever the messages: no result first, nothing lost without need, not over the limit but for one unit."""
    names = "".join(kind for kind, _ in kinds)
    tokens = [count for _, count in kinds]
    keep = limit * 3 // 4
    start = cut(names, tokens, token_limit=limit, keep_tokens=keep)
    if sum(tokens) <= limit:
        assert start == 0
        return
    assert start < len(tokens)
    assert start == 0 or names[start] != "t"
    if sum(tokens[start:]) > keep:
        assert not any(name != "t" for name in names[start + 1 :])


@given(kinds=KINDS, limit=st.integers(0, 100), flush_size=st.integers(0, 50))
def test_a_flush_takes_whole_turns_and_never_the_newest(
    kinds: list[tuple[str, int]], limit: int, flush_size: int
) -> None:
    names = "".join(kind for kind, _ in kinds)
    tokens = [count for _, count in kinds]
    starts = [name == "u" for name in names]
    flushed = plan_flush(tokens, turn_starts=starts, limit=limit, flush_size=flush_size)
    if sum(tokens) <= limit or "u" not in names:
        assert flushed == 0
        return
    assert names[flushed] == "u"
    assert sum(tokens[flushed:]) <= limit or flushed == names.rindex("u")


def test_short_turns_are_flushed_at_a_limit_of_nothing() -> None:
    assert plan_flush([1, 1, 1], turn_starts=[True, False, True], limit=0) == 2


@given(tokens=st.lists(st.integers(0, 100), max_size=8), limit=st.integers(-5, 300))
def test_shares_keep_to_the_common_limit(tokens: list[int], limit: int) -> None:
    shares = share_out(tokens, limit)
    assert sum(shares) <= max(limit, 0)
    assert all(0 <= share <= wanted for share, wanted in zip(shares, tokens, strict=True))
    if sum(tokens) <= limit:
        assert shares == tokens
