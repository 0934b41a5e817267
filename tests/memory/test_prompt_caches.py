"""Which models need cache points, and what is said to a program that does not set them."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_memory_ext.models.prompt_caches import needs_cache_points
from tests.forked import run_forked

GPT, CLAUDE, NOVA = "OpenAI's GPT-5.6 and later", "Anthropic's Claude", "Amazon's Nova"
GATEWAYS = ["", "openai/", "azure/", "openrouter/openai/", "ft:"]
REGIONS = ["", "us.", "eu.", "apac.", "us-gov.", "global.", "bedrock/us."]
ANTHROPIC = ["", "anthropic/", "openrouter/anthropic/", "vertex_ai/", *(f"{region}anthropic." for region in REGIONS)]
GPT_ENDINGS = ["", "-sol", "-mini", "-chat-latest", "-2026-11-13", "-sol-2026-11-13", ":acme::x1", "@20261113"]
CLAUDE_ENDINGS = ["", "-20250929", "@20250929", "-20250929-v1:0", "-latest", "-v1"]
CLAUDES = ["claude-sonnet-4-5", "claude-3-5-haiku", "claude-opus-5-5", "claude-fable-5", "claude-4-opus", "claude-next"]
NOVAS = [f"amazon.nova-{size}" for size in ("micro", "lite", "pro", "premier")]
OTHERS = re.findall(
    r"\S+",
    """gpt-4o gpt-4o-mini chatgpt-4o-latest gpt-35-turbo-16k gpt-oss-120b o3 o4-mini deepseek-chat deepseek-v4
    gemini-3.0-pro llama3.3:70b qwen3-32b claude-2.1 claude-instant-1.2 anthropic.claude-v2:1 supernova-pro
    amazon.nova-sonic-v1:0 amazon.titan-text-lite-v1 my-gpt-6 openai.gpt-6-sol unknown""",
)


@given(st.sampled_from(GATEWAYS), st.integers(0, 34), st.none() | st.integers(0, 40), st.sampled_from(GPT_ENDINGS))
def test_a_gpt_needs_cache_points_from_5_6_on(gateway: str, major: int, minor: int | None, ending: str) -> None:
    name = f"{gateway}gpt-{major}{'' if minor is None else f'.{minor}'}{ending}"
    needed = GPT if (major, minor or 0) >= (5, 6) else None
    assert needs_cache_points(name) == needs_cache_points(name.upper()) == needed


@pytest.mark.parametrize(
    ("family", "places", "names", "endings"),
    [
        (CLAUDE, ANTHROPIC, CLAUDES, CLAUDE_ENDINGS),
        (NOVA, REGIONS, NOVAS, ["", "-v1:0"]),
        (None, GATEWAYS, OTHERS, [""]),
    ],
)
def test_every_claude_and_nova_with_a_cache_needs_cache_points_and_no_other_model(
    family: str | None, places: list[str], names: list[str], endings: list[str]
) -> None:
    full_names = ["".join(parts) for parts in product(places, names, endings)]
    assert [name for name in full_names if needs_cache_points(name) != family] == []


PROGRAM = """
import logging
from llama_index.core.llms import MockLLM
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.openai import OpenAI
from llama_index_memory_ext import CondensedMemory

logging.basicConfig(format="%(levelname)s %(message)s")
gpts = [OpenAI(model=name, api_key="sk-secret") for name in ("gpt-5.5", "gpt-5.6-sol", "gpt-6-luna")]
claudes = [Anthropic(model=name, api_key="sk-secret") for name in ("claude-sonnet-4-5", "claude-sonnet-99")]
CondensedMemory.from_defaults(llm=gpts[1], cache_points=True)
for llm in [MockLLM(), *gpts, *claudes, *gpts]:
    CondensedMemory.from_defaults(llm=llm)
"""


def test_a_memory_without_cache_points_warns_once_for_each_family(tmp_path: Path) -> None:
    """Whatever its models are called, and also if the model's class does not know the name."""
    done = run_forked(PROGRAM, folder=tmp_path)
    gpt, claude = done.stderr.splitlines()
    assert gpt.startswith("WARNING ")
    assert GPT in gpt
    assert "CachingOpenAI" in gpt
    assert CLAUDE in claude
    assert "from_defaults(cache_points=True)" in claude
    assert "sk-secret" not in done.stderr
