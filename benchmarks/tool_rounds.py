"""What the prompts of an agent cost that asks for tools three times in each turn, by the rule of each provider.

    python -m benchmarks.tool_rounds

A scripted agent does what LlamaIndex's ``FunctionAgent`` does: it puts the question, asks the memory before each of its
four requests, keeps calls and results to itself, and puts them with the answer. Questions have 40 tokens in the mean,
results and answers 160. The requests go through LlamaIndex's own model classes to a server on this machine, and the
rules of ``prompt_caches.py`` count them, as in ``cached_prefix.py``. A record has 8,000 tokens; one that recalls has
2,000 more, with which the end of each prompt changes.

What is paid for a token of the prompt is relative to LlamaIndex's ``Memory`` with prompts as long, of which Anthropic
is asked to mark the end. Ours is measured with cache points alone, and with such a request besides. Nothing is timed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from llama_index.core.base.llms.types import ChatMessage, MessageRole, ToolCallBlock
from llama_index.core.llms.llm import LLM

from benchmarks.cached_prefix import (
    LIMIT,
    RECALLED,
    RULES,
    WITH_RECALL,
    Open,
    Total,
    ours,
    plain_list,
)
from benchmarks.command import shown
from benchmarks.messages import conversation
from benchmarks.prompt_caches import Marks
from benchmarks.report import Measure, Promise, publish
from benchmarks.wire import Wire, listening, messages_as_they_are, parts_of

TURNS, ROUNDS = 100, 3
OURS, HOST, ENDED = (
    "CondensedMemory, marked",
    "LlamaIndex's Memory",
    ", end of the prompt too",
)


async def prompts_of(opened: Open) -> AsyncIterator[list[ChatMessage]]:
    """The messages of each request."""
    said = iter(conversation(TURNS * (ROUNDS + 1)))
    async with opened() as memory:
        for _ in range(TURNS):
            questions, texts = zip(
                *((next(said), next(said)) for _ in range(ROUNDS + 1)), strict=True
            )
            await memory.aput(questions[0])
            kept: list[ChatMessage] = []
            for i in range(ROUNDS):
                yield [*await memory.aget(), *kept]
                call = ToolCallBlock(
                    tool_call_id=f"call_{i}", tool_name="look", tool_kwargs={"place": i}
                )
                of_call = {"tool_call_id": call.tool_call_id}
                result = ChatMessage(
                    role=MessageRole.TOOL,
                    content=texts[i].content,
                    additional_kwargs=of_call,
                )
                kept += [ChatMessage(role=MessageRole.ASSISTANT, blocks=[call]), result]
            yield [*await memory.aget(), *kept]
            await memory.aput_messages([*kept, texts[-1]])


async def measure(opened: Open, models: dict[str, LLM], wire: Wire) -> dict[str, Total]:
    """What rules count of a memory, each with a model."""
    totals, caches = (
        {rule: Total() for rule in models},
        {rule: RULES[rule]() for rule in models},
    )
    async for messages in prompts_of(opened):
        for rule, model in models.items():
            await model.achat(messages)
            cache = caches[rule]
            if isinstance(cache, Marks):
                # OpenAI sets a mark of its own, unless a request says that it has all of them.
                cache.managed = "prompt_cache_options" not in wire.body
            totals[rule].add(cache.serve(parts_of(wire.body)), cache)
    return totals


async def measure_all() -> tuple[list[Measure], list[Promise]]:
    """What is found of each side, and what is paid for it."""
    sides = {
        OURS: ours(LIMIT, marked=True),
        OURS + WITH_RECALL: ours(LIMIT, recall=RECALLED, marked=True),
    }
    measured: dict[str, dict[str, Total]] = {}
    with listening() as wire, messages_as_they_are():
        ended: dict[str, LLM] = {
            "R4": wire.anthropic(cache_control={"type": "ephemeral"})
        }
        marked: dict[str, LLM] = {"R3": wire.caching_openai(), "R4": wire.anthropic()}
        for name, side in shown(sides.items(), "sides"):
            measured[name] = await measure(side.opened, marked, wire)
            measured[name + ENDED] = await measure(side.opened, ended, wire)
        wanted = measured[OURS]["R4"].tokens
        as_long = await measure(plain_list(LIMIT).opened, ended, wire)
        host = plain_list(round(LIMIT * wanted / as_long["R4"].tokens))
        measured[HOST] = await measure(
            host.opened, {"R2": wire.openai(), **ended}, wire
        )
    measures, promises = list[Measure](), list[Promise]()
    for name, totals in measured.items():
        for rule, total in totals.items():
            what = f"{rule}, {name}"
            price = total.price / measured[HOST]["R2" if rule == "R3" else rule].price
            measures.append(Measure(f"share found, {what}", total.share_found))
            measures.append(Measure(f"price relative to the plain list, {what}", price))
            if rule == "R3" or ENDED in name:
                promises.append(
                    Promise(
                        f"price, {what}", 1.5 if WITH_RECALL in name else 1.15, price
                    )
                )
        measures.append(
            Measure(f"tokens of a prompt, {name}", total.tokens / total.prompts)
        )
    return measures, promises


def main() -> int:
    """Measure, publish, and return the exit code."""
    return publish("tool_rounds", *asyncio.run(measure_all()))


if __name__ == "__main__":
    sys.exit(main())
