"""What caches are said to serve, against the providers' rules as the benchmarks know them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import prompt_caches as rules
from llama_index_memory_ext import MemoryStore
from llama_index_memory_ext.inspector.prompt import Limits, show
from llama_index_memory_ext.inspector.served import Part
from llama_index_memory_ext.store.read_only import read_only
from tests.inspector.example import SESSION


def as_sent(parts: list[Part]) -> list[rules.Part]:
    """The parts as a cache gets them, without the answer of the turn."""
    while parts[-1].role == "assistant":
        parts = parts[:-1]
    return [rules.Part(part.text, part.marked) for part in parts]


@pytest.mark.parametrize("limits", [Limits(), Limits(token_limit=9_000, condensed_token_limit=4_000)])
async def test_what_is_served_is_what_the_rules_of_the_providers_find(filled: Path, limits: Limits) -> None:
    """With the smaller limits the question cuts the record, and next to nothing is found."""
    store = MemoryStore(f"sqlite+aiosqlite:///{filled}")
    async with read_only(store) as reader:
        before = await show(reader, SESSION, "mia", "", limits)
        now = await show(reader, SESSION, "mia", "What do I eat?", limits)
    assert now.served
    assert before.served is None
    for rule, found in ((rules.TokenPrefix(), now.served.prefix), (rules.Blocks(), now.served.marks)):
        rule.serve(as_sent(list(before.parts)))
        usage = rule.serve(as_sent(list(now.parts)))
        assert (usage.prompt, usage.found) == (now.served.prompt, found)
