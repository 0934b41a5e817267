"""What of a prompt a provider's prompt cache finds, by the rule of each provider, over real conversations.

    python -m benchmarks.cached_prefix [LOCOMO_JSON] [--by-default]

The conversations are LoCoMo's. Each message of the user starts a turn: it is put, and what ``aget`` gives then is sent
through LlamaIndex's own model classes to a server on this machine. What goes over the wire is given to the rules of
``prompt_caches.py``, R1 to R5; of each conversation the first prompt finds an empty cache, and nothing expires. Then
the messages that follow are put. Tokens are those of o200k_base, for every rule. Nothing is timed, so the in-memory
database serves, and for LlamaIndex's ``Memory`` a list. Only counts are kept: the texts are not free for every use.

- R1, R2 and R5 are measured on requests of ``OpenAI`` without marks. R3 is measured with ``CachingOpenAI`` where a side
  has marks; without marks it is R2.
- R4 is measured on requests of ``Anthropic``. Where a side has no marks the provider is asked to mark the last block
  itself (``cache_control`` of the request).

All sides but the plain list have a limit of 8,000 tokens for the newest messages. With recall there are 2,000 tokens
more, which change with each question, or by default 1,000 of the 8,000: there, what stands before them is looked at
for itself, too. What is recalled by default, and all defaults with facts, have results of their own,
``results/cached_prefix_by_default.json``, which ``--by-default`` measures alone. The facts are LoCoMo's observations;
before each message of the user, those of the messages so far are learned, as in ``equal_room.py``. Beside all defaults
stand two plain lists: one with the limit of the record, and one whose prompts are as long. The plain list is
LlamaIndex's ``Memory`` with such a limit that its prompts are as long in the mean as ours. What is paid is relative to
it: the price of all prompt tokens under each rule's own prices, divided by that of as many of its prompt tokens. Ours
is also measured with limits of 4,000 and 50,000 tokens; no conversation is as long as the second.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.memory import BaseMemory, ChatSummaryMemoryBuffer

from benchmarks.command import NOT_MEASURED, shown
from benchmarks.contenders import (
    AddingBuffer,
    RememberingRecipeBlock,
    in_process,
    kept_in_process,
    remembering_tokenizer,
)
from benchmarks.equal_room import learn
from benchmarks.locomo import Conversation, load_conversations, messages_of, prompt_text
from benchmarks.prompt_caches import (
    Blocks,
    Marks,
    NewestMessage,
    Part,
    Rule,
    TokenPrefix,
    Units,
    Usage,
    count_tokens,
    paid,
)
from benchmarks.recipe import IN_MEMORY, host_memory, plain_memory
from benchmarks.report import Measure, Promise, publish
from benchmarks.stand_in import StandInModel
from benchmarks.wire import Wire, listening, messages_as_they_are, parts_of
from llama_index_memory_ext import CondensedMemory

LIMIT, RECALLED, OTHER_LIMITS = 8_000, 2_000, (4_000, 50_000)
MOST_TRIES = 5
RECALL_TAG = '<earlier_messages note="said before the messages above'

OURS, HOST, RECIPE = "CondensedMemory", "LlamaIndex's Memory", "the recipe"
BUFFER, SUMMARY_BUFFER = "ChatMemoryBuffer", "ChatSummaryMemoryBuffer"
WITH_RECALL, WITH_MARKS, BEFORE_RECALL = (
    " with recall",
    ", marked",
    ", before what is recalled",
)
BY_DEFAULT, ALL_DEFAULTS = ", recall by default", ", all defaults, facts known"
SAME_LIMIT, SAME_LENGTH = ", the same limit", ", as long as all defaults"

Open = Callable[[], AbstractAsyncContextManager[BaseMemory]]
RULES: dict[str, Callable[[], Rule]] = {
    "R1": TokenPrefix,
    "R2": NewestMessage,
    "R3": partial(Marks, managed=False),
    "R4": Blocks,
    "R5": Units,
}
UNMARKED, MARKED = ("R1", "R2", "R4", "R5"), ("R3", "R4")


@dataclass
class Total:
    """What a rule finds, writes and charges, over all prompts of a side."""

    prompts: int = 0
    tokens: int = 0
    found: int = 0
    written: int = 0
    paid: float = 0.0

    def add(self, usage: Usage, rule: Rule) -> None:
        self.prompts += 1
        self.tokens += usage.prompt
        self.found += usage.found
        self.written += usage.written
        self.paid += paid(usage, rule)

    @property
    def share_found(self) -> float:
        return self.found / self.tokens

    @property
    def price(self) -> float:
        return self.paid / self.tokens


@dataclass
class Side:
    """A memory, what each rule has counted of it, and the tokens of its prompts: 0 before it has been replayed."""

    opened: Open
    marked: bool = False
    learns: bool = False
    prompt_tokens: int = 0
    totals: dict[str, Total] = field(default_factory=lambda: defaultdict(Total))
    before_recall: dict[str, Total] = field(default_factory=lambda: defaultdict(Total))

    @property
    def rules(self) -> tuple[str, ...]:
        return MARKED if self.marked else UNMARKED


def ours(limit: int, *, recall: int | None = 0, marked: bool = False) -> Side:
    """Our memory, without facts; what it recalls has tokens besides, or with None the share that it has by default."""
    opened = partial(
        CondensedMemory.from_defaults,
        token_limit=limit + (recall or 0) + 10_000,
        condensed_token_limit=limit + (recall or 0),
        recall_token_limit=recall,
        extract_facts=False,
        cache_points=marked,
    )
    return Side(opened, marked)


def all_defaults(*, marked: bool = False) -> Side:
    """Our memory with facts, and with a record within the limit."""
    opened = partial(
        CondensedMemory.from_defaults,
        condensed_token_limit=LIMIT,
        extract_facts=False,
        cache_points=marked,
    )
    return Side(opened, marked, learns=True)


def plain_list(limit: int) -> Side:
    """LlamaIndex's memory, which counts by its own tokenizer."""
    return Side(lambda: in_process(plain_memory(IN_MEMORY, token_limit=limit)))


def sides_at(limit: int) -> dict[str, Side]:
    """Ours and what is told to keep to the same limit."""
    buffer = partial(kept_in_process, AddingBuffer.from_defaults, "", token_limit=limit)
    summarized = {"token_limit": limit, "llm": StandInModel()}
    summaries = partial(
        kept_in_process,
        ChatSummaryMemoryBuffer.from_defaults,
        "",
        tokenizer_fn=remembering_tokenizer(),
        **summarized,
    )
    recipe = RememberingRecipeBlock
    return {
        OURS: ours(limit),
        OURS + WITH_MARKS: ours(limit, marked=True),
        OURS + WITH_RECALL: ours(limit, recall=RECALLED),
        OURS + WITH_RECALL + WITH_MARKS: ours(limit, recall=RECALLED, marked=True),
        BUFFER: Side(buffer),
        SUMMARY_BUFFER: Side(summaries),
        RECIPE: Side(
            lambda: in_process(host_memory(IN_MEMORY, recipe(token_limit=limit)))
        ),
    }


async def prompts_of(
    side: Side, conversation: Conversation
) -> AsyncIterator[list[ChatMessage]]:
    """The prompt of each turn."""
    waiting = list(conversation["pools"]["observations"])
    rows: dict[str, int] = {}
    async with side.opened() as memory:
        for turn, message in zip(
            conversation["pools"]["turns"], messages_of(conversation), strict=True
        ):
            is_question = message.role == MessageRole.USER
            if is_question and side.learns and isinstance(memory, CondensedMemory):
                waiting = await learn(memory, waiting, rows)
            await memory.aput(message)
            # A new database counts its rows from 1.
            rows[turn["id"]] = len(rows) + 1
            if is_question:
                yield await memory.aget()


async def measure(
    side: Side, conversations: Iterable[Conversation], wire: Wire
) -> None:
    """Count by each rule what it finds of the prompts of all conversations."""
    anthropic = wire.anthropic(
        **{} if side.marked else {"cache_control": {"type": "ephemeral"}}
    )
    openai = wire.caching_openai() if side.marked else wire.openai()
    side.prompt_tokens = 0
    for conversation in conversations:
        whole = {name: RULES[name]() for name in side.rules}
        before = {name: RULES[name]() for name in side.rules}
        async for prompt in prompts_of(side, conversation):
            side.prompt_tokens += count_tokens(prompt_text(prompt))
            for model in (openai, anthropic):
                await model.achat(prompt)
                parts = parts_of(wire.body)
                for name in side.rules:
                    if (name == "R4") == (model is anthropic):
                        side.totals[name].add(whole[name].serve(parts), whole[name])
                        side.before_recall[name].add(
                            before[name].serve(without_recall(parts)), before[name]
                        )


def without_recall(parts: Sequence[Part]) -> list[Part]:
    """The prompt up to what is recalled, or up to the question where nothing is."""
    found = next((i for i, part in enumerate(parts) if RECALL_TAG in part.text), None)
    if found is None:
        return list(parts)
    text = parts[found].text.partition(RECALL_TAG)[0]
    return [*parts[:found], *([Part(text)] if text else [])]


async def plain_list_like(
    side: Side, conversations: Sequence[Conversation], limit: int
) -> Side:
    """The plain list, of a few with different limits, whose prompts are most nearly as long as those of a side."""
    wanted = await tokens_of_prompts(side, conversations)
    tried: dict[int, int] = {}
    while limit not in tried and len(tried) < MOST_TRIES:
        tried[limit] = await tokens_of_prompts(plain_list(limit), conversations)
        limit = round(limit * wanted / tried[limit])
    return plain_list(min(tried, key=lambda limit: abs(tried[limit] - wanted)))


async def tokens_of_prompts(side: Side, conversations: Iterable[Conversation]) -> int:
    """The tokens of all prompts; a side that was measured is not replayed for them."""
    if not side.prompt_tokens:
        for conversation in conversations:
            async for prompt in prompts_of(side, conversation):
                side.prompt_tokens += count_tokens(prompt_text(prompt))
    return side.prompt_tokens


async def measure_by_default(conversations: list[Conversation]) -> dict[str, Side]:
    """The sides that recall by default or have all defaults, and the plain lists beside them.

    Prices are relative to the plain list that is as long as ours without recall and facts.
    """
    with_all = all_defaults()
    with listening() as wire, messages_as_they_are():
        await measure(with_all, conversations, wire)
        others = {
            OURS + ALL_DEFAULTS + WITH_MARKS: all_defaults(marked=True),
            HOST + SAME_LIMIT: plain_list(LIMIT),
            HOST + SAME_LENGTH: await plain_list_like(with_all, conversations, LIMIT),
            OURS + BY_DEFAULT: ours(LIMIT, recall=None),
            OURS + BY_DEFAULT + WITH_MARKS: ours(LIMIT, recall=None, marked=True),
            HOST: await plain_list_like(ours(LIMIT), conversations, LIMIT),
        }
        for side in shown(others.values(), "sides by default"):
            await measure(side, conversations, wire)
    return {OURS + ALL_DEFAULTS: with_all, **others}


async def measure_all(
    conversations: list[Conversation], host: Side
) -> dict[int, dict[str, Side]]:
    """All sides, by the limit and by name; ``host`` is the plain list at ``LIMIT``, as it was measured."""
    measured: dict[int, dict[str, Side]] = {}
    with listening() as wire, messages_as_they_are():
        for limit in (LIMIT, *OTHER_LIMITS):
            sides = sides_at(limit)
            if limit != LIMIT:
                sides = {name: sides[name] for name in (OURS, OURS + WITH_MARKS)}
            for side in shown(sides.values(), f"sides at {limit:,} tokens"):
                await measure(side, conversations, wire)
            sides[HOST] = host
            if limit != LIMIT:
                sides[HOST] = await plain_list_like(sides[OURS], conversations, limit)
                await measure(sides[HOST], conversations, wire)
            measured[limit] = sides
    return measured


def measures_of(measured: dict[int, dict[str, Side]]) -> list[Measure]:
    """What was found, written and paid, of each side by each rule."""
    measures = []
    for limit, sides in measured.items():
        for side_name, side in sides.items():
            for rule, total in sorted(side.totals.items()):
                what = f"{rule}, {side_name}, {limit:,}"
                measures += [
                    Measure(f"share found, {what}", total.share_found),
                    Measure(f"share written, {what}", total.written / total.tokens),
                    Measure(
                        f"price relative to the plain list, {what}",
                        relative_price(sides, side_name, rule),
                    ),
                ]
            tokens = next(iter(side.totals.values()))
            measures.append(
                Measure(
                    f"tokens of a prompt, {side_name}, {limit:,}",
                    tokens.tokens / tokens.prompts,
                )
            )
    return measures


def measures_before_recall(sides: dict[str, Side]) -> list[Measure]:
    """What is found of what stands before the recalled messages."""
    return [
        Measure(f"share found, {rule}, {name}{BEFORE_RECALL}", total.share_found)
        for name, side in sides.items()
        if name.startswith(OURS)
        for rule, total in sorted(side.before_recall.items())
    ]


def prices_of_turns(sides: dict[str, Side]) -> list[Measure]:
    """What a turn with all defaults costs, relative to a turn with each plain list."""
    measures = []
    for name in (OURS + ALL_DEFAULTS, OURS + ALL_DEFAULTS + WITH_MARKS):
        for rule, total in sorted(sides[name].totals.items()):
            for host in (HOST, HOST + SAME_LIMIT, HOST + SAME_LENGTH):
                of_host = sides[host].totals["R2" if rule == "R3" else rule]
                measures.append(
                    Measure(
                        f"price of a turn, {rule}, {name}, to {host}",
                        total.paid / of_host.paid,
                    )
                )
    return measures


def relative_price(sides: dict[str, Side], name: str, rule: str) -> float:
    """What a token of a prompt costs in the mean, relative to one of the plain list, which sets no marks."""
    of_host = sides[HOST].totals["R2" if rule == "R3" else rule]
    return sides[name].totals[rule].price / of_host.price


def promises_of(measured: dict[int, dict[str, Side]]) -> list[Promise]:
    """What must be found, and may be paid."""
    promises = []
    for limit, sides in measured.items():
        for rule, least in (("R1", 0.93), ("R3", 0.93), ("R4", 0.93), ("R5", 0.9)):
            name = OURS + WITH_MARKS if rule in MARKED else OURS
            found = sides[name].totals[rule].share_found
            promises.append(
                Promise(
                    f"share found, {rule}, {name}, {limit:,}",
                    least,
                    found,
                    at_least=True,
                )
            )
        for rule in MARKED:
            name = OURS + WITH_MARKS
            what = f"price relative to the plain list, {rule}, {name}, {limit:,}"
            promises.append(Promise(what, 1.1, relative_price(sides, name, rule)))
    for rule in ("R1", *MARKED):
        name = OURS + WITH_RECALL + (WITH_MARKS if rule in MARKED else "")
        side = measured[LIMIT][name]
        for what, least, total in (
            ("", 0.75, side.totals),
            (BEFORE_RECALL, 0.9, side.before_recall),
        ):
            found = total[rule].share_found
            promises.append(
                Promise(
                    f"share found, {rule}, {name}{what}", least, found, at_least=True
                )
            )
    return promises


def main() -> int:
    """Measure, publish, and return the exit code."""
    conversations = load_conversations("cached_prefix")
    if not conversations:
        return NOT_MEASURED
    by_default = asyncio.run(measure_by_default(conversations))
    measures = [
        *measures_of({LIMIT: by_default}),
        *measures_before_recall(by_default),
        *prices_of_turns(by_default),
    ]
    code = publish("cached_prefix", measures, [], part="by_default")
    if "--by-default" in sys.argv:
        return code
    measured = asyncio.run(measure_all(conversations, by_default[HOST]))
    prompts = measured[LIMIT][OURS].totals["R1"].prompts
    measures = [
        Measure("conversations", len(conversations)),
        Measure("prompts of each side", prompts),
    ]
    return publish(
        "cached_prefix", [*measures, *measures_of(measured)], promises_of(measured)
    )


if __name__ == "__main__":
    sys.exit(main())
