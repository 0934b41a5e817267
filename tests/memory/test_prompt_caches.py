"""Which models need cache points, and what is said to a program that does not set them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.llms import MockLLM
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.openai import OpenAI

from llama_index_memory_ext.models import prompt_caches
from llama_index_memory_ext.models.prompt_caches import needs_cache_points, warn_without_cache_points
from tests.memories import OpenMemory

GPT, CLAUDE, NOVA = "OpenAI's GPT-5.6 and later", "Anthropic's Claude", "Amazon's Nova"
gateways = st.sampled_from(["", "openai/", "azure/", "openrouter/openai/", "ft:"])
regions = st.sampled_from(["", "us.", "eu.", "apac.", "us-gov.", "global.", "bedrock/us."])
suffixes = st.sampled_from(
    ["", "-sol", "-mini", "-chat-latest", "-2026-11-13", "-sol-2026-11-13", ":acme::x1", "@20261113"]
)


@given(gateways, st.integers(0, 34), st.none() | st.integers(0, 40), suffixes)
def test_a_gpt_needs_cache_points_from_5_6_on(gateway: str, major: int, minor: int | None, suffix: str) -> None:
    name = f"gpt-{major}" if minor is None else f"gpt-{major}.{minor}"
    needed = GPT if (major, minor or 0) >= (5, 6) else None
    assert needs_cache_points(f"{gateway}{name}{suffix}") == needs_cache_points(f"{gateway}{name}{suffix}".upper())
    assert needs_cache_points(f"{gateway}{name}{suffix}") == needed


@given(
    st.sampled_from(["", "anthropic/", "openrouter/anthropic/", "vertex_ai/"]) | regions.map("{}anthropic.".format),
    st.sampled_from(
        ["claude-sonnet-4-5", "claude-3-5-haiku", "claude-opus-5-5", "claude-fable-5", "claude-4-opus", "claude-next"]
    ),
    st.sampled_from(["", "-20250929", "@20250929", "-20250929-v1:0", "-latest", "-v1"]),
)
def test_every_claude_with_a_cache_needs_cache_points(provider: str, name: str, suffix: str) -> None:
    assert needs_cache_points(f"{provider}{name}{suffix}") == CLAUDE


@given(regions, st.sampled_from(["micro", "lite", "pro", "premier"]), st.sampled_from(["", "-v1:0"]))
def test_every_nova_that_bedrock_documents_needs_cache_points(region: str, size: str, suffix: str) -> None:
    assert needs_cache_points(f"{region}amazon.nova-{size}{suffix}") == NOVA


@given(
    gateways,
    st.sampled_from(
        [
            "gpt-4o",
            "gpt-4o-mini",
            "chatgpt-4o-latest",
            "gpt-35-turbo-16k",
            "gpt-oss-120b",
            "o3",
            "o4-mini",
            "deepseek-chat",
            "deepseek-v4",
            "gemini-3.0-pro",
            "llama3.3:70b",
            "qwen3-32b",
            "claude-2.1",
            "claude-instant-1.2",
            "anthropic.claude-v2:1",
            "supernova-pro",
            "amazon.nova-sonic-v1:0",
            "amazon.titan-text-lite-v1",
            "my-gpt-6",
            "openai.gpt-6-sol",
            "unknown",
        ]
    ),
)
def test_no_other_model_does(gateway: str, name: str) -> None:
    assert needs_cache_points(f"{gateway}{name}") is None


@given(st.text())
def test_any_text_may_be_a_name(name: str) -> None:
    assert needs_cache_points(name) in (None, GPT, CLAUDE, NOVA)


@pytest.fixture
def warnings_of_a_new_process(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What a process logs whose first memory is built in the test."""
    prompt_caches._warn.cache_clear()
    yield caplog
    prompt_caches._warn.cache_clear()


def test_each_family_is_warned_of_once(warnings_of_a_new_process: pytest.LogCaptureFixture) -> None:
    """Whatever its models are called, and also if the model's class does not know the name."""
    for _ in range(2):
        for model in ("gpt-5.6-sol", "gpt-6-luna"):
            warn_without_cache_points(OpenAI(model=model, api_key="sk-secret"))
        for model in ("claude-sonnet-4-5", "claude-sonnet-99"):
            warn_without_cache_points(Anthropic(model=model, api_key="sk-secret"))
    records = warnings_of_a_new_process.records
    assert {record.levelno for record in records} == {logging.WARNING}
    gpt, claude = (record.getMessage() for record in records)
    assert GPT in gpt
    assert "CachingOpenAI" in gpt
    assert CLAUDE in claude
    assert "from_defaults(cache_points=True)" in claude
    assert "sk-secret" not in warnings_of_a_new_process.text


def test_other_models_and_no_model_are_not_warned_of(warnings_of_a_new_process: pytest.LogCaptureFixture) -> None:
    for llm in (None, MockLLM(), OpenAI(model="gpt-5.5", api_key="sk-secret")):
        warn_without_cache_points(llm)
    assert warnings_of_a_new_process.records == []


async def test_a_memory_without_cache_points_warns_for_the_model_that_it_is_given(
    open_memory: OpenMemory, warnings_of_a_new_process: pytest.LogCaptureFixture
) -> None:
    llm = OpenAI(model="gpt-5.6-sol", api_key="sk-secret")
    open_memory(llm=llm, cache_points=True)
    assert warnings_of_a_new_process.records == []
    open_memory(llm=llm)
    assert len(warnings_of_a_new_process.records) == 1
