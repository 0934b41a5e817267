"""The prices of 1,000 turns in dollars: tokens of the results, at the list prices of three models.

Prompts are those of ``cached_prefix``, and the calls those of ``background_calls``. The answer costs the same with each
memory and is left out. Each comparison is with LlamaIndex's ``Memory`` whose prompts are as long as with all defaults.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from benchmarks.measured import RESULTS, changed_since

TURNS = 1_000
MILLION = 1_000_000


@dataclass(frozen=True)
class ListPrice:
    """The prices of a model for a million tokens, in dollars.

    ``rule``: how its cache finds a prompt; see ``prompt_caches.py``. For R4 the memory sends marks.
    """

    model: str
    rule: str
    sent: float
    cached: float
    written: float
    received: float


# OpenAI's page of models, June 2026. Anthropic's page of prices, 24 October 2026.
LIST_PRICES = (
    ListPrice("GPT-5.5", "R1", 5.00, 0.50, 5.00, 30.00),
    ListPrice("GPT-5.4 mini", "R1", 0.75, 0.075, 0.75, 4.50),
    ListPrice("Claude Sonnet 5.5", "R4", 2.00, 0.10, 2.50, 10.00),
)
SOURCES = (
    "cached_prefix",
    "cached_prefix_by_default",
    "background_calls",
)
HOST = "LlamaIndex's Memory"
RECORD = "CondensedMemory"
RECALL = "CondensedMemory, recall by default"
DEFAULTS = "CondensedMemory, all defaults, facts known"
HOST_AS_LONG = f"{HOST}, as long as all defaults"
RECORD_ALONE = "`recall_token_limit=0`, `facts_token_limit=0`, `extract_facts=False`"


@cache
def _measures(name: str) -> dict[str, float]:
    """Return the numbers of a file of results, by what was measured."""
    result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return {one["what"]: one["value"] for one in result["measures"]}


def prompt_price(price: ListPrice, name: str, side: str) -> float:
    """Return the price of the prompt of a turn, in dollars."""
    measures = _measures(name)
    if price.rule == "R4" and not side.startswith(HOST):
        side = f"{side}, marked"
    tokens = measures[f"tokens of a prompt, {side}, 8,000"]
    found = measures[f"share found, {price.rule}, {side}, 8,000"]
    written = measures[f"share written, {price.rule}, {side}, 8,000"]
    other = 1 - found - written
    mean = found * price.cached + written * price.written + other * price.sent
    return tokens * mean / MILLION


def whole_price(price: ListPrice = LIST_PRICES[0]) -> float:
    """Return the price of a turn with all defaults and the calls that learn facts, relative to a ``Memory`` as long.

    For OpenAI's models it is the same; its cache (R1) serves the prompts of both.
    """
    host = prompt_price(price, "cached_prefix_by_default", HOST_AS_LONG)
    prompt = prompt_price(price, "cached_prefix_by_default", DEFAULTS)
    return (prompt + background_price(price, "facts")) / host


def learning_share() -> float:
    """Return the tokens that learning facts sends in a turn, as a share of the tokens of a prompt."""
    sent = _measures("background_calls")["tokens sent in a turn, facts"]
    prompts = _measures("cached_prefix_by_default")
    return sent / prompts[f"tokens of a prompt, {DEFAULTS}, 8,000"]


def background_price(price: ListPrice, kind: str) -> float:
    """Return the price of the background calls of a turn, in dollars, nothing of them cached."""
    measures = _measures("background_calls")
    sent = measures[f"tokens sent in a turn, {kind}"]
    received = measures[f"tokens received in a turn, {kind}"]
    return (sent * price.sent + received * price.received) / MILLION


def _length(name: str, side: str) -> str:
    """Return the mean length of the prompts of a side, as a row of the table says it."""
    tokens = _measures(name)[f"tokens of a prompt, {side}, 8,000"]
    return f"prompts of {tokens:,.0f} tokens"


def cost_rows() -> dict[str, list[float]]:
    """Return the prices of 1,000 turns, by row of the table, for each model."""
    rows: dict[str, list[float]] = {}
    for price in LIST_PRICES:
        host = prompt_price(price, "cached_prefix_by_default", HOST_AS_LONG)
        record = prompt_price(price, "cached_prefix", RECORD)
        with_recall = prompt_price(price, "cached_prefix_by_default", RECALL)
        with_facts = prompt_price(price, "cached_prefix_by_default", DEFAULTS)
        learning = background_price(price, "facts")
        parts = {
            f"LlamaIndex's `Memory`, {_length('cached_prefix_by_default', HOST_AS_LONG)}": host,
            f"the record alone, {_length('cached_prefix', RECORD)} ({RECORD_ALONE})": record,
            "+ recall": with_recall - record,
            "+ facts in the prompt": with_facts - with_recall,
            "+ learning facts": learning,
            f"= **in all**, {_length('cached_prefix_by_default', DEFAULTS)}": with_facts
            + learning,
            "+ summaries (`summarize=True`, off by default)": background_price(
                price, "summaries"
            ),
        }
        for label, dollars in parts.items():
            rows.setdefault(label, []).append(TURNS * dollars)
    return rows


def _dollars(price: float) -> str:
    """Return a price with its cents, or with all its digits if it has parts of a cent."""
    cents = f"{price:.2f}"
    return f"${cents}" if float(cents) == price else f"${price:g}"


def stale_sources() -> str:
    """Return the results behind the prices that are older than the code that they measure."""
    names = [f"`{name}`" for name in SOURCES if changed_since(name)]
    return ", ".join(names) or "none of them"


def _table(heads: Iterable[str], rows: Iterable[tuple[str, Iterable[str]]]) -> str:
    """Return a table in Markdown."""
    names = list(heads)
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    lines += [f"| {label} | {' | '.join(cells)} |" for label, cells in rows]
    return "\n" + "\n".join(lines) + "\n"


def cost_table() -> str:
    """Return the table of the prices of 1,000 turns."""
    heads = [
        "1,000 turns, a record of at most 8,000 tokens",
        *(price.model for price in LIST_PRICES),
    ]
    rows = [
        (label, [f"${dollars:.2f}" for dollars in row])
        for label, row in cost_rows().items()
    ]
    return _table(heads, rows)


def list_price_table() -> str:
    """Return the table of the list prices."""
    heads = ("per million tokens", "sent", "cached", "written", "received")
    rows = []
    for price in LIST_PRICES:
        cells = (price.sent, price.cached, price.written, price.received)
        rows.append((price.model, [_dollars(cell) for cell in cells]))
    return _table(heads, rows)
