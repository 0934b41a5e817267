"""The share of the prompt tokens that a provider's prompt cache can serve, over real conversations.

    python -m benchmarks.cached_prefix [LOCOMO_JSON]

The conversations are LoCoMo's. Each message of the user starts a turn: it is put, the prompt is what ``aget`` gives
then, and the messages that follow are put. All sides have a limit of 8,000 tokens for the newest messages. One of them
recalls earlier ones besides, within 2,000 tokens more, which change with each question. What stands before them must
be served as well as without them, so that part of each prompt is looked at for itself, too; the question, which stands
behind them, is no part of it where something is recalled.

A prompt is the texts of its messages with their roles before them, in tokens of o200k_base. What a cache can
serve is the longest prefix that it shares with the prompt before it: nothing below 1,024 tokens, and then in
steps of 128, as the large providers do it. The first prompt of a conversation finds an empty cache. Nothing is
timed, so the in-memory database serves. Only counts are kept: the texts are not free for every use.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import takewhile

from llama_index.core.base.llms.types import MessageRole
from llama_index.core.memory import Memory

from benchmarks.command import shown
from benchmarks.locomo import Conversation, load_conversations, messages_of, prompt_text
from benchmarks.recipe import IN_MEMORY, RecipeBlock, host_memory, o200k
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext import CondensedMemory

LIMIT, RECALLED = 8_000, 2_000
CACHE_FROM, CACHE_STEP = 1_024, 128
RECALL_TAG = "<earlier_messages"

OURS, RECIPE = "CondensedMemory", "the recipe"
RECALL, BEFORE_RECALL = "CondensedMemory with recall", "CondensedMemory with recall, before what is recalled"

Counts = list[tuple[int, int]]
SIDES: dict[str, Callable[[], AbstractAsyncContextManager[Memory]]] = {
    OURS: partial(CondensedMemory.from_defaults, condensed_token_limit=LIMIT, extract_facts=False),
    RECALL: partial(
        CondensedMemory.from_defaults,
        condensed_token_limit=LIMIT + RECALLED,
        recall_token_limit=RECALLED,
        extract_facts=False,
    ),
    RECIPE: lambda: host_memory(IN_MEMORY, RecipeBlock(token_limit=LIMIT)),
}


def cacheable(prompt: list[int], previous: list[int]) -> int:
    """How many tokens of a prompt the cache has from the prompt before it."""
    return served(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, previous, strict=False))))


def served(shared: int) -> int:
    """How many tokens the cache serves of a prefix of so many tokens."""
    return 0 if shared < CACHE_FROM else shared - (shared - CACHE_FROM) % CACHE_STEP


async def prompts_of(opened: AbstractAsyncContextManager[Memory], conversation: Conversation) -> list[str]:
    """The prompt of each turn."""
    prompts = []
    async with opened as memory:
        for message in messages_of(conversation):
            await memory.aput(message)
            if message.role == MessageRole.USER:
                prompts.append(prompt_text(await memory.aget()))
    return prompts


def counts_of(prompts: list[str]) -> Counts:
    """Cacheable and all tokens of each prompt of one conversation."""
    counts, previous = [], list[int]()
    for text in prompts:
        prompt = o200k().encode_ordinary(text)
        counts.append((cacheable(prompt, previous), len(prompt)))
        previous = prompt
    return counts


async def measure(conversations: list[Conversation]) -> dict[str, Counts]:
    """Cacheable and all tokens of each prompt of all conversations, for each side."""
    counts: dict[str, Counts] = {side: [] for side in (*SIDES, BEFORE_RECALL)}
    for conversation in shown(conversations, "conversations"):
        for side, opened in SIDES.items():
            prompts = await prompts_of(opened(), conversation)
            counts[side] += counts_of(prompts)
            if side == RECALL:
                counts[BEFORE_RECALL] += counts_of([prompt.partition(RECALL_TAG)[0] for prompt in prompts])
    return counts


def main() -> int:
    """Measure, publish, and return the exit code."""
    conversations = load_conversations("cached_prefix")
    if not conversations:
        return 2
    counts = asyncio.run(measure(conversations))
    measures = [Measure("conversations", len(conversations))]
    shares = {}
    for side, prompts in counts.items():
        shares[side] = sum(cached for cached, _ in prompts) / sum(tokens for _, tokens in prompts)
        measures.append(Measure(f"prompts, {side}", len(prompts)))
        measures.append(Measure(f"tokens of all prompts, {side}", sum(tokens for _, tokens in prompts)))
    measures += [Measure(f"share from the cache, {side}", shares[side]) for side in (RECALL, RECIPE)]
    promises = [
        Promise(f"share from the cache, {side}", 0.93, shares[side], at_least=True) for side in (OURS, BEFORE_RECALL)
    ]
    return publish("cached_prefix", measures, promises)


if __name__ == "__main__":
    sys.exit(main())
