"""The notebooks are stored as they run, and can be read where they lie."""

from __future__ import annotations

import importlib.util
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def loaded(name: str) -> Any:
    """A script of ``.ci``, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


outputs = loaded("notebook_outputs")


def code_cells(file: Path) -> list[dict[str, Any]]:
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def printed(text: str, *, cell_id: str = "one") -> dict[str, Any]:
    stream = {"output_type": "stream", "name": "stdout", "text": text}
    return {
        "cell_type": "code",
        "id": cell_id,
        "execution_count": 7,
        "outputs": [stream],
    }


def drawn(digest: str, png: str) -> dict[str, Any]:
    picture = {
        "output_type": "display_data",
        "data": {"image/png": png},
        "metadata": {"drawn": digest},
    }
    return {
        "cell_type": "code",
        "id": "two",
        "execution_count": 8,
        "outputs": [picture],
    }


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_stored_with_what_it_shows_and_with_nothing_of_the_machine(
    file: Path,
) -> None:
    cells = code_cells(file)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert any(outputs.shown_lines(cell) for cell in cells)
    shown = "\n".join(line for cell in cells for line in outputs.shown_lines(cell))
    assert [
        word
        for word in ("/tmp/", "/home/", "/root/", str(ROOT), "stderr: ", "error: ")  # noqa: S108 - no file is written
        if word in shown
    ] == []
    pictures = [
        one
        for cell in cells
        for one in cell["outputs"]
        if "image/png" in one.get("data", {})
    ]
    assert all(one["metadata"]["drawn"] for one in pictures)
    assert file.stat().st_size < 500_000


def test_two_runs_show_the_same_when_only_times_ids_and_bytes_of_pictures_differ() -> (
    None
):
    first = [
        printed('<fact date="2026-01-02">\n' + "0" * 32 + " 2026-01-02T03:04:05.678Z"),
        drawn("a", "AAAA"),
    ]
    again = [
        printed('<fact date="2027-11-30">\n' + "f" * 32 + " 2027-11-30T03:04:05Z"),
        drawn("a", "BBBB"),
    ]
    assert outputs.difference(first, again) == ""
    kept = deepcopy(first)
    outputs.refresh(kept, again)
    assert [cell["outputs"] for cell in kept] == [cell["outputs"] for cell in first]
    assert [cell["execution_count"] for cell in kept] == [1, 2]
    # The date of results is no time of a run.
    assert (
        outputs.difference(
            [printed("| recall | 2026-11-20 |")], [printed("| recall | 2026-11-22 |")]
        )
        != ""
    )


@pytest.mark.parametrize(
    "now", [[printed("4"), drawn("a", "AAAA")], [printed("3"), drawn("b", "AAAA")]]
)
def test_another_number_or_another_line_in_a_picture_is_a_difference_and_is_stored(
    now: list[dict[str, Any]],
) -> None:
    stored = [printed("3"), drawn("a", "AAAA")]
    told = outputs.difference(stored, now)
    assert ("-stdout: 3\n+stdout: 4" in told) != (
        "-image/png: a\n+image/png: b" in told
    )
    outputs.refresh(stored, now)
    assert outputs.difference(stored, now) == ""


def test_a_figure_has_the_digest_of_what_it_shows() -> None:
    digest = loaded("drawn").digest

    def figure(last: float, title: str) -> Any:
        from matplotlib.figure import Figure  # noqa: PLC0415 - no other test needs it

        made = Figure()
        axes = made.subplots()
        axes.plot([1, 2], [3, last])
        axes.bar([1], [last])
        axes.set_title(title)
        return made

    assert digest(figure(4, "a")) == digest(figure(4, "a"))
    assert (
        len({digest(figure(4, "a")), digest(figure(5, "a")), digest(figure(4, "b"))})
        == 3
    )
