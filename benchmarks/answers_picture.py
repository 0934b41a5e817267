"""The picture of the README: right answers against the tokens of a prompt.

``figures.py`` writes it as SVG. ``.ci/tests/test_pictures.py`` checks that its texts fit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.evidence_picture import Point, draw_points
from benchmarks.measured import RESULTS

NAME = "answers-and-tokens.svg"
OURS_KIND, HOST_KIND = "ours", "theirs"
TICK_TOKENS = 250
_LOW = 4
# The label of a longer prompt stands above its point.
MIDDLE_TOKENS = 1_000
# A memory with its length, and its label.
POINTS = {
    "CondensedMemory with added facts, 600 tokens": "added facts",
    "CondensedMemory without facts, 600 tokens": "no facts",
    "CondensedMemory without facts, 1,500 tokens": "no facts",
    "VectorMemoryBlock, 600 tokens": "vector block",
    "LlamaIndex's Memory, 600 tokens": "Memory",
    "LlamaIndex's Memory, 1,500 tokens": "Memory",
}


def draw(results: Path = RESULTS) -> str:
    """Return the picture as SVG: a point for each memory and length that was measured."""
    lines: dict[str, dict[str, Any]] = {}
    for file in ("answers_slow.json", "answers_host.json", "answers.json"):
        result = json.loads((results / file).read_text(encoding="utf-8"))
        lines.update((line["what"], line) for line in result["measures"])
    model = result["command"].partition("--model=")[2].split()[0]
    points = []
    for name, label in POINTS.items():
        right = lines.get(f"{name}: right answers")
        if right is None:
            continue
        count = int(right["unit"].removeprefix("of "))
        share = 100 * right["value"] / count
        kind = OURS_KIND if name.startswith("Condensed") else HOST_KIND
        tokens = lines[f"{name}: a prompt"]["value"]
        text = f"{label}: {share:.0f} %"
        if tokens > MIDDLE_TOKENS:
            points.append(
                Point(tokens, share, text, kind, anchor="middle", right=0, down=-12)
            )
            continue
        # A label on the lower axis could not be read.
        down = 5 if share > _LOW else -6
        points.append(
            Point(tokens, share, text, kind, anchor="end", right=-12, down=down)
        )
    return draw_points(
        "Right answers against the tokens of a prompt, for this package and LlamaIndex's Memory.",
        "Right answers about earlier messages",
        f"{model}; best is top left",
        "tokens of a prompt",
        points,
        TICK_TOKENS,
    )
