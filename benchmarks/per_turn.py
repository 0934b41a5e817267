"""The tokens of the prompt at each turn of a long conversation, and how many of them a provider's cache can serve.

The conversation is made of plain words: 400 turns of 200 tokens in the mean, 80,000 in all. A turn is a question,
which is put, and an answer; the prompt is what ``aget`` gives between them. All memories of ``contenders.py`` are
measured, as they come and with a limit of 8,000 tokens. Ours learns a fact from each question: its first ten words.
Tokens are those of o200k_base, and what a cache serves is counted as the rule R1 of ``prompt_caches.py`` does it. A
series has the tokens of every second prompt, and the share from the cache over each ten prompts. Where a model is
needed it is the one of ``stand_in.py``. Nothing is timed, so the in-memory database serves, and
for LlamaIndex's ``Memory`` a list.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache, partial
from itertools import takewhile

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.memory import BaseMemory, Memory

from benchmarks.command import shown
from benchmarks.contenders import (
    BUFFER,
    AddingBuffer,
    Open,
    as_they_come,
    keep_in_process,
    kept_in_process,
    put,
    remembering_tokenizer,
    within,
)
from benchmarks.locomo import prompt_text, text_of
from benchmarks.messages import conversation
from benchmarks.prompt_caches import served
from benchmarks.recipe import IN_MEMORY, o200k
from benchmarks.report import Measure, Series, publish
from llama_index_memory_ext import CondensedMemory

Counts = list[tuple[int, int]]

LIMIT = 8_000
TURNS, EVERY, WINDOW, FACT_WORDS = 400, 2, 10, 10
DEFAULTS, LIMITED = "as they come", f"a limit of {LIMIT:,} tokens"

# Between the end of a line and "<" no token of o200k_base reaches from one side to the other.
_PIECE_START = re.compile(r"(?<=\n)(?=<)")


@cache
def tokens_of(piece: str) -> list[int]:
    """The tokens of a piece of a prompt; most pieces are in the next prompt, too."""
    return o200k().encode_ordinary(piece)


def pieces_of(prompt: str) -> list[str]:
    """The parts whose tokens make the tokens of the whole."""
    return _PIECE_START.split(prompt)


def shared_tokens(pieces: list[str], previous: list[str]) -> int:
    """The length of the longest prefix that two prompts have in common."""
    same = sum(
        1
        for _ in takewhile(
            lambda pair: pair[0] == pair[1], zip(pieces, previous, strict=False)
        )
    )
    whole = sum(len(tokens_of(piece)) for piece in pieces[:same])
    if same == min(len(pieces), len(previous)):
        return whole
    pairs = zip(tokens_of(pieces[same]), tokens_of(previous[same]), strict=False)
    return whole + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


async def counts_of(
    opened: AbstractAsyncContextManager[BaseMemory], messages: list[ChatMessage]
) -> Counts:
    """Tokens from the cache, and all tokens, of each prompt."""
    counts: Counts = []
    previous: list[str] = []
    async with opened as memory:
        for row, message in enumerate(messages, 1):
            await put(memory, [message])
            if message.role == MessageRole.USER:
                pieces = pieces_of(prompt_text(await memory.aget()))
                tokens = sum(len(tokens_of(piece)) for piece in pieces)
                counts.append((served(shared_tokens(pieces, previous)), tokens))
                previous = pieces
                if isinstance(memory, CondensedMemory):
                    words = " ".join(str(message.content).split()[:FACT_WORDS])
                    await memory.facts.aadd(
                        words, session_id=memory.session_id, message_ids=[row]
                    )
        if isinstance(memory, CondensedMemory):
            for block in (memory.condensed_block, memory.facts_block):
                failures = block.failures_of(memory.session_id)
                if failures:
                    raise RuntimeError(f"The model's answers were rejected: {failures}")
    return counts


@asynccontextmanager
async def in_process_if_host(opened: Open, uri: str) -> AsyncIterator[BaseMemory]:
    """The same memory; LlamaIndex's Memory keeps its messages in the process."""
    async with opened(uri) as memory:
        if isinstance(memory, Memory) and not isinstance(memory, CondensedMemory):
            keep_in_process(memory)
        yield memory


def contenders() -> dict[tuple[str, str], Open]:
    """How to open each side in each setting. None counts a text twice, which would take hours."""
    of_host = {"tokenizer_fn": remembering_tokenizer()}
    settings = {DEFAULTS: as_they_come(**of_host), LIMITED: within(LIMIT, **of_host)}
    sides: dict[tuple[str, str], Open] = {}
    for setting, of_setting in settings.items():
        for side, opened in of_setting.items():
            sides[setting, side] = partial(in_process_if_host, opened)
    adding = partial(kept_in_process, AddingBuffer.from_defaults)
    return {
        **sides,
        (DEFAULTS, BUFFER): adding,
        (LIMITED, BUFFER): partial(adding, token_limit=LIMIT),
    }


def series_of(setting: str, side: str, counts: Counts) -> list[Series]:
    """The two lines of one side."""
    tokens = tuple(
        (turn, counts[turn - 1][1]) for turn in range(EVERY, len(counts) + 1, EVERY)
    )
    shares = []
    for last in range(WINDOW, len(counts) + 1, WINDOW):
        window = counts[last - WINDOW : last]
        shares.append(
            (
                last,
                100
                * sum(cached for cached, _ in window)
                / sum(all_ for _, all_ in window),
            )
        )
    return [
        Series("tokens of the prompt", setting, side, "turn", "tokens", tokens),
        Series(
            "share of the prompt from the cache",
            setting,
            side,
            "turn",
            "%",
            tuple(shares),
        ),
    ]


def main() -> int:
    """Measure, publish, and return the exit code."""
    said = sum(len(tokens_of(text_of(message))) for message in conversation(TURNS))
    measures = [Measure("turns", TURNS), Measure("tokens of the conversation", said)]
    series = []
    for (setting, side), opened in shown(contenders().items(), "memories"):
        # Anew for each: LlamaIndex's Memory writes into the messages that it is given.
        counts = asyncio.run(counts_of(opened(IN_MEMORY), conversation(TURNS)))
        cached, tokens = (sum(column) for column in zip(*counts, strict=True))
        measures.append(
            Measure(f"tokens of a prompt, {side}, {setting}", tokens / TURNS)
        )
        measures.append(
            Measure(f"share from the cache, {side}, {setting}", cached / tokens)
        )
        series += series_of(setting, side, counts)
    return publish("per_turn", measures, [], series)


if __name__ == "__main__":
    sys.exit(main())
