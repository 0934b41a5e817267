"""Draws what two memories show a model, for ``condensed_memory.ipynb``."""  # noqa: INP001 - it is imported from there

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.ticker import StrMethodFormatter

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours that readers who are colour-blind can tell apart, and lines that differ without colour.
COLORS = {"LlamaIndex Memory": "#D55E00", "CondensedMemory": "#0072B2"}
LINES = {"LlamaIndex Memory": "--", "CondensedMemory": "-"}


@dataclass
class Prompts:
    """What a memory put into the prompt of each turn.

    ``has_answer``: whether the message with the answer is in the prompt.
    ``tokens``: the tokens of the prompt.
    """

    has_answer: list[bool] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


def draw(sides: dict[str, Prompts], limit: int) -> Figure:
    """Draw a row of boxes for each memory, filled where the prompt has the answer, and the tokens below."""
    figure, (answers, tokens) = plt.subplots(
        2,
        1,
        figsize=(6, 5.6),
        dpi=120,
        sharex=True,
        height_ratios=(2, 3),
        layout="constrained",
    )
    for row, (name, prompts) in enumerate(sides.items()):
        color = COLORS[name]
        turns = range(1, len(prompts.tokens) + 1)
        fills = [color if has_answer else "white" for has_answer in prompts.has_answer]
        answers.bar(
            turns,
            0.5,
            width=0.62,
            bottom=row,
            color=fills,
            edgecolor=color,
            linewidth=0.8,
        )
        answers.text(
            0.6,
            row + 0.57,
            f"{name}: {sum(prompts.has_answer)} of {len(turns)}",
            color=color,
            fontsize=12,
        )
        tokens.plot(
            turns,
            prompts.tokens,
            color=color,
            linestyle=LINES[name],
            linewidth=2,
            label=name,
        )
    answers.set_title(
        "Is the message with the answer in the prompt?\n(one box for each turn; filled: yes)",
        loc="left",
    )
    answers.set(ylim=(-0.05, len(sides)))
    answers.yaxis.set_visible(False)
    answers.tick_params(bottom=False)
    answers.spines[:].set_visible(False)
    tokens.set_title("Tokens of the prompt", loc="left")
    tokens.axhline(
        limit,
        color="dimgray",
        linewidth=1.2,
        linestyle=":",
        label=f"limit of both: {limit:,}",
    )
    tokens.set(
        xlim=(0, len(turns) + 1), ylim=(0, 1.6 * limit), yticks=[0, limit / 2, limit]
    )
    tokens.set_xlabel("turn", fontsize=12)
    tokens.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    tokens.tick_params(labelsize=11)
    tokens.spines[["top", "right"]].set_visible(False)
    tokens.legend(loc="upper left", ncols=2, frameon=False, fontsize=11)
    return figure
