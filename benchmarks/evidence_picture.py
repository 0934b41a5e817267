"""The picture of docs/prompt-caches.md: the evidence in a prompt against the price of the prompt.

``figures.py`` writes it as SVG, without a library for drawing.
``.ci/tests/test_pictures.py`` checks that its texts fit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measured import RESULTS

NAME = "evidence-and-price.svg"
# The picture and the axes within it, in pixels.
WIDTH, HEIGHT = 520, 494
LEFT, RIGHT, TOP, BOTTOM = 70, 490, 124, 424
TICK_TOKENS = 500
# A line leads to a label that stands further below its point.
NEAR = 12
# The frame, the styles of both color schemes and the heading.
_BEGINNING = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" \
aria-label="{about}">
  <style>
    text {{ font: 15px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1f2328; }}
    text {{ stroke: #ffffff; stroke-width: 5px; stroke-linejoin: round; paint-order: stroke; }}
    .head {{ font-size: 19px; font-weight: 600; }}
    .small {{ font-size: 15px; fill: #59636e; }}
    .page {{ fill: #ffffff; stroke: #d1d9e0; }}
    .ours {{ fill: #0969da; }}
    .theirs {{ fill: #59636e; }}
    .ours, .theirs {{ stroke: #ffffff; stroke-width: 1.5px; }}
    .lead {{ stroke: #59636e; }}
    .line {{ stroke: #d1d9e0; fill: none; }}
    @media (prefers-color-scheme: dark) {{
      text {{ fill: #e6edf3; stroke: #0d1117; }}
      .small {{ fill: #9198a1; }}
      .page {{ fill: #0d1117; stroke: #3d444d; }}
      .ours {{ fill: #58a6ff; }}
      .theirs {{ fill: #9198a1; }}
      .ours, .theirs {{ stroke: #0d1117; }}
      .lead {{ stroke: #9198a1; }}
      .line {{ stroke: #3d444d; }}
    }}
  </style>
  <rect class="page" x="1" y="1" width="{inner_width}" height="{inner_height}" rx="12"/>
  <text x="24" y="36" class="head">{head}</text>
  <text x="24" y="62" class="small">{data}</text>
  {ours}
  <text x="44" y="90" class="small">CondensedMemory</text>
  {theirs}
  <text x="230" y="90" class="small">LlamaIndex's Memory</text>
"""


@dataclass(frozen=True)
class Point:
    """A point with a share of 0 to 100 %, and how far its label stands from it."""

    tokens: float
    share: float
    label: str
    kind: str
    anchor: str = "start"
    right: int = 12
    down: int = 5


@dataclass(frozen=True)
class Side:
    """A memory of ``equal_room``: its label, and how far the label stands from the point."""

    name: str
    label: str
    kind: str
    anchor: str = "start"
    right: int = 12
    down: int = 5


SIDES = (
    Side("with all defaults", "recall and facts", "ours"),
    Side("without facts", "no facts", "ours", "end", right=-12),
    Side("without facts and recall", "no facts, no recall", "ours", down=26),
    Side("LlamaIndex's Memory, as long when asked", "prompts as long", "theirs"),
    Side(
        "LlamaIndex's Memory, as long as the record",
        "as much conversation",
        "theirs",
        right=20,
    ),
)


def draw(results: Path = RESULTS) -> str:
    """Return the picture as SVG: a point for each side, and its share beside it."""
    result = json.loads((results / "equal_room.json").read_text(encoding="utf-8"))
    values = {line["what"]: line["value"] for line in result["measures"]}
    points = []
    for side in SIDES:
        paid = values[f"paid for a prompt, {side.name}"]
        share = values[f"mean over the questions, {side.name}"]
        label = f"{side.label}: {share:.0f} %"
        place = (side.anchor, side.right, side.down)
        points.append(Point(paid, share, label, side.kind, *place))
    return draw_points(
        "The share of the needed messages in the prompt against the price of the prompt, for five memories.",
        "Needed messages in the prompt",
        f"{values['questions']:,} questions of LoCoMo; best is top left",
        "price of a prompt, in tokens at the full price",
        points,
        TICK_TOKENS,
    )


def draw_points(
    about: str,
    head: str,
    data: str,
    axis: str,
    points: Sequence[Point],
    tick_tokens: int,
) -> str:
    """Return a picture of points as SVG, with a number on the lower axis at every second tick."""
    # Labels stand to the right of their points.
    most_tokens = max(point.tokens for point in points)
    most = int(tick_tokens * (2 + most_tokens // tick_tokens))
    beginning = _BEGINNING.format(
        about=about,
        head=head,
        data=data,
        width=WIDTH,
        height=HEIGHT,
        inner_width=WIDTH - 2,
        inner_height=HEIGHT - 2,
        ours=_mark("ours", 30, 85),
        theirs=_mark("theirs", 216, 85),
    )
    marks, labels = [], []
    for point in points:
        x = round(LEFT + (RIGHT - LEFT) * point.tokens / most)
        y = _height_of(point.share)
        if point.down > NEAR:
            end = f"{x + point.right - 2} {y + point.down - 6}"
            marks.append(f'  <path class="lead" d="M{x} {y}L{end}"/>')
        marks.append(f"  {_mark(point.kind, x, y)}")
        place = (
            f'x="{x + point.right}" y="{y + point.down}" text-anchor="{point.anchor}"'
        )
        labels.append(f"  <text {place}>{point.label}</text>")
    parts = [*_axes(axis, most, tick_tokens), *marks, *labels]
    return beginning + "\n".join([*parts, "</svg>", ""])


def _mark(kind: str, x: int, y: int) -> str:
    """Return the sign of a point: another shape for each kind, for readers who see no colors."""
    if kind == "ours":
        return f'<circle class="{kind}" cx="{x}" cy="{y}" r="6"/>'
    return f'<path class="{kind}" d="M{x - 5} {y - 5}h10v10h-10z"/>'


def _height_of(share: float) -> int:
    """Return how far down a share of 0 to 100 % stands."""
    return round(BOTTOM - (BOTTOM - TOP) * share / 100)


def _axes(axis: str, most: int, tick_tokens: int) -> list[str]:
    """Return the lines of the grid, the numbers of both axes and the name of the lower one."""
    parts = []
    for share in range(0, 101, 25):
        y = _height_of(share)
        parts.append(f'  <path class="line" d="M{LEFT} {y}H{RIGHT}"/>')
        place = f'x="{LEFT - 8}" y="{y + 5}" text-anchor="end"'
        parts.append(f'  <text class="small" {place}>{share} %</text>')
    for tokens in range(0, most + 1, 2 * tick_tokens):
        x = round(LEFT + (RIGHT - LEFT) * tokens / most)
        place = f'x="{x}" y="{BOTTOM + 24}" text-anchor="middle"'
        parts.append(f'  <text class="small" {place}>{tokens:,}</text>')
    place = f'x="{(LEFT + RIGHT) // 2}" y="{BOTTOM + 50}" text-anchor="middle"'
    parts.append(f'  <text class="small" {place}>{axis}</text>')
    return parts
