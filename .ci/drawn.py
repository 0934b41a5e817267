"""Notes what the pictures of a notebook show, in the kernel that draws them.

Runs before the first cell. The bytes of a picture change with the versions of Matplotlib and of its fonts; what is
noted are the points, bars, colours and words.
"""

import sys
from hashlib import sha256
from typing import Any

# A digest of each picture, by the cells in the order in which they ran.
DIGESTS: list[list[str]] = []


def digest(figure: Any) -> str:
    """The same for figures of the same size that show the same data in the same colours, and the same words."""
    shown = [_numbers(figure.get_size_inches() * figure.dpi)]
    for axes in figure.axes:
        shown += [axes.get_title(loc) for loc in ("left", "center", "right")] + [
            axes.get_xlabel(),
            axes.get_ylabel(),
        ]
        shown += [text.get_text() for text in axes.texts]
        shown += [
            f"{line.get_color()} {_numbers(line.get_xydata().ravel())}"
            for line in axes.lines
        ]
        shown += [
            f"{_numbers(bar.get_facecolor())} {_numbers(bar.get_bbox().bounds)}"
            for bar in axes.patches
        ]
    shown += [text.get_text() for text in figure.texts]
    return sha256("\n".join(shown).encode()).hexdigest()[:16]


def note() -> None:
    """Called after each cell, before its figures are shown and closed."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    DIGESTS.append(
        [digest(pyplot.figure(number)) for number in pyplot.get_fignums()]
        if pyplot
        else []
    )


def _numbers(values: Any) -> str:
    return " ".join(f"{value:.6g}" for value in values)


def begin(events: Any) -> None:
    """From now on, note the pictures of each cell; ``events`` are those of the kernel's IPython."""
    events.register("post_execute", note)
