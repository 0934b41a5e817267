"""The share of the prompt tokens that a provider's prompt cache can serve, over real conversations.

    python -m benchmarks.cached_prefix [LOCOMO_JSON]

The file holds LoCoMo conversations as ``conversations -> pools -> turns``. The first speaker is the user, the
second the assistant, and each message of the user starts a turn: it is put, the prompt is what ``aget`` gives
then, and the messages that follow are put. Both sides have a limit of 8,000 tokens for the record.

A prompt is the texts of its messages with their roles before them, in tokens of o200k_base. What a cache can
serve is the longest prefix that it shares with the prompt before it: nothing below 1,024 tokens, and then in
steps of 128, as the large providers do it. The first prompt of a conversation finds an empty cache. Nothing is
timed, so the in-memory database serves. Only counts are kept: the texts are not free for every use.
"""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock

from benchmarks.recipe import IN_MEMORY, RecipeBlock, host_memory, o200k
from benchmarks.report import Measure, Promise, publish
from llama_index_memory_ext import CondensedMemory

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from llama_index.core.memory import Memory

DEFAULT_FILE = Path("../shared/recall/locomo_dev.json")
LIMIT = 8_000
CACHE_FROM, CACHE_STEP = 1_024, 128


def cacheable(prompt: list[int], previous: list[int]) -> int:
    """How many tokens of a prompt the cache has from the prompt before it."""
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, previous, strict=False)))
    return 0 if shared < CACHE_FROM else shared - (shared - CACHE_FROM) % CACHE_STEP


def prompt_tokens(messages: list[ChatMessage]) -> list[int]:
    """The prompt as the model gets it."""
    texts = ("".join(block.text for block in message.blocks if isinstance(block, TextBlock)) for message in messages)
    marked = (f"<|{message.role.value}|>\n{text}\n" for message, text in zip(messages, texts, strict=True))
    return o200k().encode_ordinary("".join(marked))


async def replay(opened: AbstractAsyncContextManager[Memory], conversation: dict[str, Any]) -> list[tuple[int, int]]:
    """Cacheable and all tokens of each prompt."""
    counts, previous = [], list[int]()
    async with opened as memory:
        for said in conversation["pools"]["turns"]:
            is_user = said["speaker"] == conversation["speakers"][0]
            role = MessageRole.USER if is_user else MessageRole.ASSISTANT
            await memory.aput(ChatMessage(role=role, content=said["text"]))
            if is_user:
                prompt = prompt_tokens(await memory.aget())
                counts.append((cacheable(prompt, previous), len(prompt)))
                previous = prompt
    return counts


async def measure(conversations: list[dict[str, Any]]) -> dict[str, list[tuple[int, int]]]:
    """Cacheable and all tokens of each prompt of all conversations, for each side."""
    counts: dict[str, list[tuple[int, int]]] = {"CondensedMemory": [], "the recipe": []}
    for conversation in conversations:
        ours = CondensedMemory.from_defaults(condensed_token_limit=LIMIT, extract_facts=False)
        counts["CondensedMemory"] += await replay(ours, conversation)
        recipe = host_memory(IN_MEMORY, RecipeBlock(token_limit=LIMIT))
        counts["the recipe"] += await replay(recipe, conversation)
    return counts


def main() -> int:
    """Measure, publish, and return the exit code."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FILE
    if not file.is_file():
        print(f"There is no {file}. Name the file: python -m benchmarks.cached_prefix LOCOMO_JSON", file=sys.stderr)
        return 2
    conversations = json.loads(file.read_text(encoding="utf-8"))["conversations"]
    counts = asyncio.run(measure(conversations))
    measures = [Measure("conversations", len(conversations))]
    shares = {}
    for side, prompts in counts.items():
        shares[side] = sum(cached for cached, _ in prompts) / sum(tokens for _, tokens in prompts)
        measures.append(Measure(f"prompts, {side}", len(prompts)))
        measures.append(Measure(f"tokens of all prompts, {side}", sum(tokens for _, tokens in prompts)))
    measures.append(Measure("share from the cache, the recipe", shares["the recipe"]))
    promises = [Promise("share from the cache, CondensedMemory", 0.93, shares["CondensedMemory"], at_least=True)]
    return publish("cached_prefix", measures, promises)


if __name__ == "__main__":
    sys.exit(main())
