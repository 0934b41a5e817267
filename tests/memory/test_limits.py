"""What limits a memory takes where none are given, and which ones it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.base.llms.types import LLMMetadata
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW
from llama_index.core.llms import MockLLM
from llama_index.core.settings import Settings
from llama_index.llms.openai import OpenAI

from llama_index_memory_ext import CondensedMemory, LimitError
from llama_index_memory_ext.memory.settings import limits_for

GPT_4 = OpenAI(model="gpt-4", api_key="x")


class ModelWithWindow(MockLLM):
    """Says of its window what it is told to say; without one it is as a model that LlamaIndex does not know."""

    window: int | None = None

    @property
    def metadata(self) -> LLMMetadata:
        if self.window is None:
            raise ValueError("Unknown model. Please provide a valid OpenAI model name.")
        return LLMMetadata(context_window=self.window, model_name="small-model")


def model_with(window: int | None) -> MockLLM:
    model = ModelWithWindow(max_tokens=None)
    model.window = window
    return model


def limits_of(**options: Any) -> tuple[int, int, int]:
    """Those of the memory, of its record and of its facts."""
    memory = CondensedMemory.from_defaults(**options)
    return (
        memory.token_limit,
        memory.condensed_block.token_limit,
        memory.facts_block.token_limit,
    )


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "_llm", None)


# ---- what follows -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({}, (60_000, 50_000, 2_000)),
        ({"context_window": 128_000}, (60_000, 50_000, 2_000)),
        ({"context_window": 8_192}, (6_144, 3_840, 768)),
        ({"context_window": 3_900}, (2_925, 1_829, 365)),
        ({"llm": GPT_4}, (6_144, 3_840, 768)),
        ({"llm": GPT_4, "context_window": 128_000}, (60_000, 50_000, 2_000)),
        ({"llm": model_with(None)}, (60_000, 50_000, 2_000)),
        ({"llm": model_with(DEFAULT_CONTEXT_WINDOW)}, (60_000, 50_000, 2_000)),
        ({"llm": model_with(-1)}, (60_000, 50_000, 2_000)),
        ({"token_limit": 40_000}, (40_000, 30_000, 2_000)),
        ({"token_limit": 200_000}, (200_000, 50_000, 2_000)),
        ({"condensed_token_limit": 59_000}, (60_000, 59_000, 1_000)),
        ({"context_window": 8_192, "facts_token_limit": 0}, (6_144, 4_608, 0)),
        (
            {"context_window": 8_192, "condensed_token_limit": 1_000},
            (6_144, 1_000, 768),
        ),
    ],
)
def test_limits_that_are_not_given_follow_the_window(
    options: dict[str, Any], limits: tuple[int, int, int]
) -> None:
    """A quarter is left for instructions, tools, the answer, and for tokens of another tokenizer."""
    assert limits_of(**options) == limits


def test_the_model_of_the_settings_counts_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And none is made: LlamaIndex would build an OpenAI, which has no key."""
    monkeypatch.setattr(Settings, "_llm", model_with(8_192))
    assert limits_of() == (6_144, 3_840, 768)
    assert limits_of(llm=model_with(16_384))[0] == 12_288
    monkeypatch.setattr(Settings, "_llm", None)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert limits_of() == (60_000, 50_000, 2_000)
    assert Settings._llm is None


SIZES = st.integers(min_value=1, max_value=300_000)


@given(
    window=st.none() | SIZES,
    token_limit=st.none() | SIZES,
    condensed=st.none() | SIZES,
    facts=st.none() | SIZES,
)
def test_limits_fit_into_each_other_and_into_the_window_or_are_refused(
    window: int | None,
    token_limit: int | None,
    condensed: int | None,
    facts: int | None,
) -> None:
    """Those that are given stay as they are."""
    asked = (token_limit, condensed, facts)
    try:
        limits = limits_for(window, *asked)
    except LimitError:
        # Three quarters of such a window are less than the 80 tokens that a record needs.
        assert any(limit is not None for limit in asked) or (
            window is not None and window * 3 // 4 < 80
        )
        return
    assert all(
        limit in {None, taken} for limit, taken in zip(asked, limits, strict=True)
    )
    total, of_record, of_facts = limits
    assert of_record >= 50
    assert of_record + of_facts <= total <= (window or total)
    if token_limit is None and window is not None:
        assert total <= window * 3 / 4
    if condensed is None:
        # A turn has a quarter of the limit for itself, up to 8,000 tokens.
        assert total - of_record - of_facts >= min(8_000, total // 4)


# ---- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"llm": GPT_4, "token_limit": 60_000}, ["60000", "8192", "gpt-4", "6144"]),
        (
            {"context_window": 4_096, "token_limit": 5_000},
            ["5000", "4096", "context_window="],
        ),
        (
            {"llm": GPT_4, "condensed_token_limit": 50_000},
            ["=50000", "token_limit=6144", "8192", "gpt-4"],
        ),
        (
            {"token_limit": 8_000, "condensed_token_limit": 50_000},
            ["token_limit=8000", "condensed_token_limit=50000"],
        ),
        (
            {"condensed_token_limit": 60_000},
            ["token_limit=60000", "facts_token_limit="],
        ),
        (
            {"token_limit": 100, "facts_token_limit": 100},
            ["token_limit=100", "facts_token_limit=100"],
        ),
        ({"context_window": 0}, ["context_window", "0"]),
        ({"context_window": 1}, ["context window", "1"]),
        (
            {"context_window": 100},
            ["token_limit=75", "100 tokens", "at least 80", "context_window"],
        ),
        ({"token_limit": -1}, ["token_limit=-1 leaves no room for a record", "80"]),
        ({"condensed_token_limit": 20}, ["at least 50", "condensed_token_limit=20"]),
        (
            {"llm": GPT_4, "recall_token_limit": 4_000},
            ["4000 tokens", "3840 ", "condensed_token_limit"],
        ),
    ],
)
def test_limits_that_cannot_fit_are_refused_with_the_numbers_and_the_model(
    options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(LimitError) as error:
        CondensedMemory.from_defaults(**options)
    assert all(word in str(error.value) for word in words), str(error.value)
