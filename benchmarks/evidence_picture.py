"""The picture of docs/prompt-caches.md: the evidence in a prompt against the tokens that are paid in full.

``figures.py`` writes it as SVG, without a library for drawing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measured import RESULTS

NAME = "evidence-and-price.svg"
OURS, THEIRS = "#0072B2", "#333333"
# The axes, in units of the picture.
WIDTH, HEIGHT = 760, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 740, 20, 300
TICK_TOKENS = 500


@dataclass(frozen=True)
class Side:
    """A memory of ``equal_room``, with its label and how far the label stands from the point."""

    name: str
    label: str
    color: str
    anchor: str = "start"
    right: int = 12
    down: int = 5


SIDES = (
    Side("with all defaults", "all defaults", OURS, "end", right=6, down=-14),
    Side("without facts", "without facts", OURS),
    Side("without facts and recall", "without facts and recall", OURS),
    Side(
        "LlamaIndex's Memory, as long when asked",
        "LlamaIndex's Memory, prompts as long as all defaults",
        THEIRS,
    ),
    Side(
        "LlamaIndex's Memory, as long as the record",
        "LlamaIndex's Memory, as much conversation",
        THEIRS,
    ),
)


def draw(results: Path = RESULTS) -> str:
    """Return the picture as SVG: a point for each side, and its numbers beside it."""
    result = json.loads((results / "equal_room.json").read_text(encoding="utf-8"))
    values = {one["what"]: one["value"] for one in result["measures"]}
    paid = {side: values[f"paid for a prompt, {side.name}"] for side in SIDES}
    most = TICK_TOKENS * (1 + max(paid.values()) // TICK_TOKENS)
    parts = _axes(most)
    for side in SIDES:
        share = values[f"mean over the questions, {side.name}"]
        x = LEFT + (RIGHT - LEFT) * paid[side] / most
        y = _height_of(share)
        parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="6" fill="{side.color}"/>')
        parts.append(
            f'<text x="{x + side.right:.0f}" y="{y + side.down:.0f}" fill="{side.color}" text-anchor="{side.anchor}">'
            f"{side.label}: {share:.0f} %, {paid[side]:,.0f} tokens</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def _height_of(share: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * share / 100


def _axes(most: float) -> list[str]:
    """Return the beginning of the picture: the frame, the lines of the grid and the names of the axes."""
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    name = "Needed messages in the prompt against the price of the prompt"
    font = 'font-family="sans-serif" font-size="14"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{name}" {font}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
    ]
    for share in range(0, 101, 25):
        y = _height_of(share)
        parts.append(f'<path d="M{LEFT} {y:.0f}H{RIGHT}" stroke="#dddddd"/>')
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 5:.0f}" text-anchor="end" fill="#555555">{share} %</text>'
        )
    for tokens in range(0, int(most) + 1, TICK_TOKENS):
        x = LEFT + (RIGHT - LEFT) * tokens / most
        parts.append(
            f'<text x="{x:.0f}" y="{BOTTOM + 20}" text-anchor="middle" fill="#555555">{tokens:,}</text>'
        )
    middle = (TOP + BOTTOM) // 2
    parts.append(
        f'<text x="18" y="{middle}" transform="rotate(-90 18 {middle})" text-anchor="middle" fill="#555555">'
        "needed messages in the prompt</text>"
    )
    parts.append(
        f'<text x="{(LEFT + RIGHT) // 2}" y="{BOTTOM + 45}" text-anchor="middle" fill="#555555">'
        "price of a prompt, in tokens at the full price (OpenAI up to GPT-5.5)</text>"
    )
    return parts
