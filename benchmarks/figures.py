"""Writes the figures of the README and of the pages from the files of results.

    python -m benchmarks.figures [--check]

What stands in a page between ``<!-- figures: NAME -->`` and ``<!-- end -->`` is the text of that name in
``published.py``, with each ``{FILE|MEASURE|HOW}`` in it replaced by what ``results/FILE.json`` has measured. With
``--check`` nothing is written: the differences are printed, and the exit code is 1 if there are any.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from functools import cache
from math import exp
from pathlib import Path

from benchmarks import answers_picture, evidence_picture
from benchmarks.measured import RESULTS, stale
from benchmarks.published import TEXTS

ROOT = Path(__file__).parents[1]
STALE = "stale"
PICTURES = {
    evidence_picture.NAME: evidence_picture.draw,
    answers_picture.NAME: answers_picture.draw,
}
REFERENCE = re.compile(r"\{([^{}|]+)\|([^{}|]+)\|([^{}|]+)\}")
MARKED = re.compile(r"(<!-- figures: ([\w-]+) -->)(.*?)(<!-- end -->)", re.DOTALL)


class FigureError(Exception):
    """A text names what no file of results has."""


@cache
def _measured(file: Path) -> dict[str, tuple[float, str]]:
    if not file.is_file():
        raise FigureError(
            f"There is no {file}, which published.py refers to: run the benchmark that writes it."
        )
    result = json.loads(file.read_text(encoding="utf-8"))
    lines = [*result["measures"], *result["promises"]]
    return {
        one["what"]: (one.get("value", one.get("measured")), one["unit"])
        for one in lines
    }


def figure(name: str, what: str, how: str, results: Path = RESULTS) -> str:
    """One number of a file of results, as it is published.

    Args:
        name: The file, without its folder and ending.
        what: The measure or promise.
        how: A format of Python, with ``*FACTOR`` before it if the value is multiplied. Besides, ``of`` shows a count
            with its unit ("2 of 30"), ``%of`` the same as a share, ``2g`` two significant digits, and ``times``
            how many times as likely something is whose logarithm has grown by the value.
        results: The folder of the files.

    Returns:
        The number, with " %" behind a share.

    Raises:
        FigureError: If there is no such file or measure.
    """
    known = _measured(results / f"{name}.json")
    if what not in known:
        near = difflib.get_close_matches(what, known, 3)
        raise FigureError(
            f"results/{name}.json has measured no {what!r}; it has {', '.join(map(repr, near or known))}"
        )
    value, unit = known[what]
    if how == "of":
        return f"{value:,g} {unit}"
    if how == "%of":
        value, how = value / int(unit.removeprefix("of ").replace(",", "")), ".0%"
    if how == "times":
        value, how = exp(value), "2g"
    if how.startswith("*"):
        factor, _, how = how[1:].partition(" ")
        value *= float(factor)
    return (
        f"{float(f'{value:.2g}'):,g}"
        if how == "2g"
        else format(value, how).replace("%", " %")
    )


def rendered(text: str, results: Path = RESULTS) -> str:
    """Returns a text of ``published.py`` with its numbers, and with the benchmarks that a line asks for."""
    lines = [line.replace("{by}", _benchmarks(line)) for line in text.split("\n")]
    return REFERENCE.sub(
        lambda found: figure(found[1], found[2], found[3], results), "\n".join(lines)
    )


def files_of(text: str) -> list[str]:
    """Returns the files of results that a text refers to, each once."""
    return list(dict.fromkeys(found[1] for found in REFERENCE.finditer(text)))


def _benchmarks(line: str) -> str:
    modules = (re.sub("_(e5|by_default)$", "", name) for name in files_of(line))
    return ", ".join(f"`{module}`" for module in dict.fromkeys(modules))


def told_stale(changed: dict[str, list[str]]) -> str:
    """Return the names of the results that are older than what they measure, as a paragraph in Markdown."""
    names = ", ".join(f"`{name}`" for name in changed)
    return f"\n{names or 'None'}.\n"


def page_with_figures(page: str, results: Path = RESULTS) -> str:
    """Returns a page with the figures of the results."""

    def with_figures(found: re.Match[str]) -> str:
        start, name, _, end = found.groups()
        if name != STALE and name not in TEXTS:
            raise FigureError(
                f"A page asks for the figures {name!r}; published.py has {', '.join(TEXTS)}"
            )
        text = told_stale(stale()) if name == STALE else rendered(TEXTS[name], results)
        # What begins with a new line is a table or a paragraph, which a blank line sets apart from the marks.
        blank = "\n" if text.startswith("\n") else ""
        return f"{start}{blank}{text}{blank}{end}"

    return MARKED.sub(with_figures, page)


def pages() -> list[Path]:
    """Returns the README and the guides."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def as_measured(path: Path) -> str:
    """Returns what a page or a picture must hold; a picture is drawn anew."""
    if path.name in PICTURES:
        return PICTURES[path.name]()
    return page_with_figures(path.read_text(encoding="utf-8"))


def main() -> int:
    """Write the pages and the pictures; with ``--check`` print what would change.

    Returns 1 if something would change, 2 if a figure is missing.
    """
    differ = False
    docs = ROOT / "docs"
    pictures = [docs / name for name in PICTURES if (docs / name).exists()]
    for path in [*pages(), *pictures]:
        before = path.read_text(encoding="utf-8")
        name = str(path.relative_to(ROOT))
        try:
            after = as_measured(path)
        except FigureError as error:
            print(error, file=sys.stderr)
            return 2
        if "--check" in sys.argv:
            lines = difflib.unified_diff(
                before.splitlines(),
                after.splitlines(),
                name,
                "as measured",
                lineterm="",
                n=0,
            )
            print("\n".join(lines), end="\n" if before != after else "")
            differ |= before != after
        else:
            path.write_text(after, encoding="utf-8")
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
