"""Compares the outputs that a notebook is stored with to those that it has when it runs."""

import re
from difflib import unified_diff
from typing import Any

Cell = dict[str, Any]

# What is another one in each run, and what stands in its place when outputs are compared.
MASKS = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)"), "TIME"),
    (
        re.compile(r'(?<=date=")\d{4}-\d\d-\d\d|(?<=<message date>)\d{4}-\d\d-\d\d'),
        "DATE",
    ),
    (re.compile(r"\b[0-9a-f]{32}\b"), "ID"),
)
# The key of an output's metadata that has the digest of what a picture shows; the bytes change with each Matplotlib.
DRAWN = "drawn"


def shown_lines(cell: Cell) -> list[str]:
    """What a reader sees below a cell, line by line, without what changes in each run; empty if nothing.

    A picture is a line with the digest of what it shows.
    """
    lines = [f"[{cell['id']}]"]
    for output in cell.get("outputs", ()):
        if output["output_type"] == "stream":
            lines += [
                f"{output['name']}: {line}"
                for line in _text(output["text"]).splitlines()
            ]
        elif "image/png" in output.get("data", {}):
            lines.append(f"image/png: {output['metadata'].get(DRAWN)}")
        else:
            for kind, content in sorted(
                output.get("data", {"error": output.get("ename", "")}).items()
            ):
                lines += [f"{kind}: {line}" for line in _text(content).splitlines()]
    return lines[:1] + [_masked(line) for line in lines[1:]] if lines[1:] else []


def difference(stored: list[Cell], now: list[Cell]) -> str:
    """A unified diff of what is stored and what the cells show now; empty if they show the same."""
    before, after = (
        [line for cell in cells for line in shown_lines(cell)]
        for cells in (stored, now)
    )
    return "\n".join(
        unified_diff(before, after, "as stored", "as it runs", lineterm="")
    )


def refresh(stored: list[Cell], now: list[Cell]) -> None:
    """Give the stored cells the outputs of those that were run, and number them.

    Outputs that show the same stay as they are, so that a time or the bytes of a picture alone change no file.
    """
    number = 0
    for cell, run in zip(stored, now, strict=True):
        if cell["cell_type"] != "code":
            continue
        number += 1
        cell["execution_count"] = number
        if shown_lines(cell) != shown_lines(run):
            cell["outputs"] = run["outputs"]
        for output in cell["outputs"]:
            if output["output_type"] == "execute_result":
                output["execution_count"] = number


def _text(content: Any) -> str:
    """Notebooks keep a text as one, or as a list of its lines; each row of a table on a line of its own."""
    return "".join(content).replace("</tr>", "</tr>\n")


def _masked(line: str) -> str:
    for pattern, mask in MASKS:
        line = pattern.sub(mask, line)
    return line
