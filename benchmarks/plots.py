"""Draws the results of the benchmarks, and puts them in tables, for ``notebooks/benchmarks.ipynb``.

Each drawing function takes what ``read_results`` gives and returns a figure of Matplotlib, which ``pip install -e
".[notebooks]"`` installs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from benchmarks.measured import RESULTS

NAMES = (
    "per_turn",
    "cached_prefix",
    "recall",
    "recall_e5",
    "growing",
    "evidence_in_prompt",
    "evidence_in_prompt_e5",
    "history_cost",
)
OURS = "CondensedMemory"
# The same colour and the same line for the same side in all figures; they differ without colour, too.
STYLES = {
    OURS: ("#0072B2", "-", "o"),
    f"{OURS} with recall": ("#3A9BD9", "-", "s"),
    f"{OURS} with summary": ("#009E73", "-", "D"),
    f"{OURS} with recall and E5": ("#009E73", "-", "D"),
    "LlamaIndex's Memory": ("#000000", "--", "^"),
    "ChatMemoryBuffer": ("#7F7F7F", ":", "v"),
    "ChatSummaryMemoryBuffer": ("#C27C00", "-.", "<"),
    "the recipe": ("#D55E00", "--", "x"),
    "VectorMemoryBlock": ("#B8588F", "-.", "P"),
    "FactExtractionMemoryBlock": ("#8C510A", ":", "*"),
    # Orders of facts and messages; what is dropped first in the one is last in the other.
    "words": ("#0072B2", "-", "o"),
    "words and confidence": ("#3A9BD9", "-", "s"),
    "as the block ranks": ("#3A9BD9", "-", "s"),
    "words and E5": ("#009E73", "-", "D"),
    "newest first": ("#D55E00", "--", "x"),
    "confidence alone": ("#7F7F7F", ":", "v"),
}
GREY = "#BBBBBB"
# Inches and dots per inch, for a page of about a thousand dots.
WIDTH, DPI = 11, 90

AS_THEY_COME, LIMITED, LIMIT = "as they come", "a limit of 8,000 tokens", 8_000
TOKENS, SHARE, TIME = (
    "tokens of the prompt",
    "share of the prompt from the cache",
    "time of a turn",
)
# What each figure of recall shows: what, in which setting, of which files, by what.
RECALLS = (
    (
        "recall of the evidence",
        "extracted facts",
        ("recall", "recall_e5"),
        "budget in tokens",
    ),
    (
        "recall of the evidence",
        "messages as they were said",
        ("recall", "recall_e5"),
        "budget in tokens",
    ),
    ("recall of the evidence", "facts that grow", ("growing",), "budget in tokens"),
    (
        "evidence in the prompt",
        "half of the limit recalls",
        ("evidence_in_prompt", "evidence_in_prompt_e5"),
        "limit of the memory in tokens",
    ),
)
# Whose rule it is, in as few words as fit under an axis.
RULES = {
    "R1": "OpenAI up to GPT-5.5,\nvLLM, llama.cpp",
    "R2": "GPT-5.6 and later,\nno marks",
    "R3": "GPT-5.6 and later,\nmarks",
    "R4": "Anthropic,\nBedrock",
    "R5": "DeepSeek",
}
# The sides whose prices are drawn, with the name of the same side without marks, if it has marks.
PRICED = {
    f"{OURS}, marked": OURS,
    f"{OURS} with recall, marked": f"{OURS} with recall",
    "LlamaIndex's Memory": None,
    "ChatMemoryBuffer": None,
    "ChatSummaryMemoryBuffer": None,
    "the recipe": None,
}

Results = dict[str, Any]
Points = list[tuple[float, float]]


def read_results(folder: Path = RESULTS) -> Results:
    """The content of each file of results that is shown, by its name."""
    return {
        name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for name in NAMES
    }


def lines(
    results: Results, what: str, setting: str, names: Iterable[str]
) -> dict[str, Points]:
    """The points of each side, from these files of results."""
    return {
        line["side"]: line["points"]
        for name in names
        for line in results[name]["series"]
        if (line["what"], line["setting"]) == (what, setting)
    }


def mean_of(results: Results, what: str, setting: str) -> dict[str, float]:
    """What was measured over all turns, by side."""
    start, end = f"{what}, ", f", {setting}"
    return {
        one["what"].removeprefix(start).removesuffix(end): one["value"]
        for one in results["per_turn"]["measures"]
        if one["what"].startswith(start) and one["what"].endswith(end)
    }


def conditions(results: Results) -> str:
    """A table of the commands that made the results, and a list of the machines, in Markdown."""
    environments = list(dict.fromkeys(map(_environment, results.values())))
    table = ["| results | command | date | took | on |", "|---|---|---|---:|---:|"]
    for name, result in results.items():
        where = environments.index(_environment(result)) + 1
        table.append(
            f"| {name} | `{result['command']}` | {result['date'][:10]} | {result['seconds']} s | {where} |"
        )
    return "\n".join(
        [*table, "", *(f"{i}. {where}" for i, where in enumerate(environments, 1))]
    )


def _environment(result: Any) -> str:
    """The machine and the versions that a file of results was made with."""
    machine, versions = result["machine"], result["versions"]
    hardware = f"{machine['processor']}, {machine['cpus']} cores, {machine['memory_gb']} GB, {machine['system']}"
    named = ", ".join(f"{package} {version}" for package, version in versions.items())
    return f"{hardware}, Python {machine['python']}, {named}"


def paid_in_full(results: Results) -> str:
    """A table of the tokens that no cache serves, in Markdown."""
    table = [
        "| setting | side | tokens of a prompt, mean | from the cache | not from the cache |"
    ]
    table.append("|---|---|---:|---:|---:|")
    for setting in (AS_THEY_COME, LIMITED):
        shares = mean_of(results, "share from the cache", setting)
        for side, mean in mean_of(results, "tokens of a prompt", setting).items():
            share = shares[side]
            table.append(
                f"| {setting} | {side} | {mean:,.0f} | {share:.0%} | {mean * (1 - share):,.0f} |"
            )
    return "\n".join(table)


def tokens_per_turn(results: Results, setting: str) -> Figure:
    """The tokens of each prompt, with a small axis for each side; dashed is the limit, if all have the same."""
    means = mean_of(results, "tokens of a prompt", setting)
    figure, axes = _small_multiples(
        lines(results, TOKENS, setting, ["per_turn"]),
        {side: f"mean {mean:,.0f}" for side, mean in means.items()},
    )
    for ax in axes:
        ax.yaxis.set_major_formatter(_thousands)
        if setting == LIMITED:
            ax.axhline(LIMIT, color="black", linewidth=0.6, linestyle=(0, (4, 4)))
            ax.yaxis.set_major_locator(MultipleLocator(LIMIT / 2))
    figure.supylabel(TOKENS, fontsize=10)
    return figure


def cached_share(results: Results, setting: str) -> Figure:
    """The share of each prompt that a cache can serve, in %, with a small axis for each side."""
    shares = mean_of(results, "share from the cache", setting)
    figure, axes = _small_multiples(
        lines(results, SHARE, setting, ["per_turn"]),
        {side: f"all turns {share:.0%}" for side, share in shares.items()},
    )
    axes[0].set(ylim=(0, 100))
    figure.supylabel(f"{SHARE}, %", fontsize=10)
    return figure


def _small_multiples(
    sides: dict[str, Points], notes: dict[str, str]
) -> tuple[Figure, list[Axes]]:
    """A small axis for each side, and its mean next to its name; behind the others stands ours, in grey."""
    columns = 3 if len(sides) % 3 == 0 else 4
    rows = -(-len(sides) // columns)
    figure, axes = _axes(rows, columns, 2.5 * rows)
    for ax, (side, points) in zip(axes, sides.items(), strict=False):
        ax.plot(*zip(*sides[OURS], strict=True), color=GREY, linewidth=0.8)
        _draw(ax, side, points, linewidth=1.2, linestyle="-", marker="")
        ax.set_title(
            f"{side}\n{notes[side]}", fontsize=9.5, color=STYLES[side][0], loc="left"
        )
    axes[0].set(
        xlim=(0, max(x for points in sides.values() for x, _ in points)), ylim=(0, None)
    )
    for ax in axes[len(sides) :]:
        ax.axis("off")
    for ax in axes[max(len(sides) - columns, 0) : len(sides)]:
        ax.tick_params(labelbottom=True)
    figure.supxlabel("turn", fontsize=10)
    return figure, axes[: len(sides)]


def prices(results: Results) -> Figure:
    """What is found of a prompt by the rule of each provider, and what a token costs there."""
    figure, axes = _axes(2, 1, 7)
    panels = (
        ("share found", "share of the prompt that is found"),
        ("price relative to the plain list", "price"),
    )
    found = _found(results)
    for ax, (what, label) in zip(axes, panels, strict=True):
        for i, (side, unmarked) in enumerate(PRICED.items()):
            name, values = unmarked or side, list(_by_rule(found, what, side, unmarked))
            places = [place + (i - 2.5) * 0.14 for place in range(len(RULES))]
            bars = ax.bar(places, values, 0.13, color=STYLES[name][0], label=name)
            # A bar of nothing would look like one that was not measured.
            ax.bar_label(
                bars,
                ["" if value else "0" for value in values],
                fontsize=9,
                color=STYLES[name][0],
            )
        ax.set(ylabel=label)
        ax.grid(visible=True, axis="y", linewidth=0.3)
        ax.set_axisbelow(True)
    axes[0].set(ylim=(0, 1))
    axes[1].axhline(1, color="black", linewidth=0.8)
    axes[1].set_xticks(
        range(len(RULES)), [f"{rule}\n{whose}" for rule, whose in RULES.items()]
    )
    axes[1].set_ylabel("price of a token\n(the plain list: 1)")
    figure.legend(
        *axes[0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=3,
        frameon=False,
    )
    return figure


def _found(results: Results) -> dict[str, float]:
    """Each figure of the prompt caches, by its name."""
    lists = results["cached_prefix"]["measures"], results["cached_prefix"]["promises"]
    return {
        one["what"]: one.get("value", one.get("measured"))
        for ones in lists
        for one in ones
    }


def _by_rule(
    found: dict[str, float], what: str, side: str, unmarked: str | None
) -> Iterator[float]:
    """The figure of each rule; where marks change nothing it is that without marks, and R3 without marks is R2."""
    for rule in RULES:
        names = (side, unmarked) if unmarked else (side,)
        rules = ("R3", "R2") if rule == "R3" else (rule,)
        yield next(
            found[key]
            for name in names
            for one in rules
            if (key := f"{what}, {one}, {name}, 8,000") in found
        )


def recall(results: Results) -> Figure:
    """How much of the evidence is found within a limit, in %."""
    figure, axes = _axes(2, 2, 7.5, sharex=False)
    for ax, (what, setting, names, xlabel) in zip(axes, RECALLS, strict=True):
        sides = lines(results, what, setting, names)
        ticks = [x for x, _ in next(iter(sides.values()))]
        ax.set_xscale("log")
        ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        ax.minorticks_off()
        ax.tick_params(labelleft=True)
        ax.grid(visible=True, axis="y", linewidth=0.3)
        ax.set(ylim=(0, 100), ylabel=f"{what}, %", xlabel=xlabel)
        ax.set_title(setting, loc="left")
        _draw_labelled(ax, sides)
    return figure


def time_of_turns(results: Results) -> Figure:
    """How long a turn takes, in milliseconds, by the messages that are stored."""
    figure, (ax,) = _axes(1, 1, 5.5)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="messages stored in the session",
        ylabel=f"{TIME}, median, ms",
    )
    ax.xaxis.set_major_formatter(_thousands)
    ax.yaxis.set_major_formatter(_thousands)
    ax.grid(visible=True, axis="y", linewidth=0.3)
    ax.set(xlim=(80, 60_000))
    _draw_labelled(ax, lines(results, TIME, AS_THEY_COME, ["history_cost"]))
    return figure


def _axes(
    rows: int, columns: int, height: float, *, sharex: bool = True
) -> tuple[Figure, list[Axes]]:
    """An empty figure and its axes, row by row, which have the same y in each row of several columns."""
    figure = plt.figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    grid = figure.subplots(
        rows, columns, sharex=sharex, sharey=columns > 1, squeeze=False
    )
    for ax in grid.flat:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, list(grid.flat)


def _draw(ax: Axes, side: str, points: Points, **style: Any) -> None:
    color, dashes, marker = STYLES[side]
    xs, ys = zip(*points, strict=True)
    ax.plot(
        xs,
        ys,
        color=color,
        **{
            "linestyle": dashes,
            "marker": marker,
            "markersize": 4,
            "linewidth": 1.4,
            **style,
        },
    )


def _draw_labelled(ax: Axes, sides: dict[str, Points]) -> None:
    """Draw the lines, with a label at the end of each."""
    for side, points in sides.items():
        _draw(ax, side, points)
    ax.autoscale_view()
    to_axes = ax.transData + ax.transAxes.inverted()
    ends = {side: to_axes.transform(points[-1]) for side, points in sides.items()}
    for x in {x for x, _ in ends.values()}:
        for side, place in _spread(
            {side: y for side, (its_x, y) in ends.items() if its_x == x}
        ).items():
            color = STYLES[side][0]
            ax.annotate(
                side,
                xy=sides[side][-1],
                xytext=(x + 0.05, place),
                textcoords="axes fraction",
                color=color,
                va="center",
                arrowprops={
                    "arrowstyle": "-",
                    "color": color,
                    "linewidth": 0.5,
                    "shrinkA": 0,
                    "relpos": (0, 0.5),
                },
            )


def _spread(places: dict[str, float], gap: float = 0.055) -> dict[str, float]:
    """The places, moved apart as little as it takes for each two to be a gap apart."""
    order = sorted(places, key=places.__getitem__)
    for _ in range(100):
        for low, high in pairwise(order):
            missing = (gap - (places[high] - places[low])) / 2
            if missing > 0:
                places[low], places[high] = (
                    places[low] - missing,
                    places[high] + missing,
                )
    return places


def _thousands(value: float, _position: float) -> str:
    return f"{value:,.0f}"
