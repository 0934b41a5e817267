"""Runs notebooks from top to bottom and compares what they show with what is stored; ``--write`` stores it.

    python .ci/run_notebooks.py [--write] NOTEBOOK...

A cell that fails ends it. Without ``--write`` the exit code is 1 if a notebook shows anything else than is stored.
"""

import base64
import json
import os
import sys
from copy import deepcopy
from io import BytesIO
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell
from notebook_outputs import DRAWN, difference, refresh
from PIL import Image

# On a fixed day: a fact is also found by its day, which has a word less from the 1st to the 9th.
BEGIN = f"""
import sys
import time_machine
sys.path.insert(0, {str(Path(__file__).parent)!r})
import drawn
del sys.path[0]
drawn.begin(get_ipython().events)
time_machine.travel("2026-11-20T12:00Z").start()
"""
END = "import json; print(json.dumps(drawn.DIGESTS))"
# A picture with lines and letters needs no more, and has half the bytes.
COLOURS = 128


def run(notebook: Any, folder: Path) -> list[Any]:
    """The cells of a notebook as they are after it was run; the notebook stays as it is."""
    copy = deepcopy(notebook)
    copy.cells = [new_code_cell(BEGIN), *copy.cells, new_code_cell(END)]
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(
        copy,
        timeout=300,
        resources=resources,
        coalesce_streams=True,
        record_timing=False,
    ).execute()
    _, *cells, last = copy.cells
    digests = iter(json.loads(last.outputs[0].text)[1:])
    for cell in cells:
        if cell.cell_type == "code":
            name_pictures(cell, next(digests))
    return cells


def name_pictures(cell: Any, digests: list[str]) -> None:
    """Write the digest of what it shows to each picture of a cell, and make the picture small."""
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stderr":
            sys.exit(f"The cell {cell.id} warns: {output.text}")
    pictures = [
        output for output in cell.outputs if "image/png" in output.get("data", {})
    ]
    if len(pictures) != len(digests):
        sys.exit(
            f"The cell {cell.id} shows {len(pictures)} pictures of {len(digests)} figures; leave out plt.show()."
        )
    for output, digest in zip(pictures, digests, strict=True):
        output.metadata[DRAWN] = digest
        output.data["image/png"] = smaller(output.data["image/png"])


def smaller(picture: str) -> str:
    """The same picture with few colours; as base64, as it came."""
    written = BytesIO()
    Image.open(BytesIO(base64.b64decode(picture))).convert("RGB").quantize(
        COLOURS
    ).save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


def main(write: bool, names: list[str]) -> int:
    """The exit code."""
    # What is stored is what the offline model says.
    for variable in ("OPENAI_API_KEY", "OPENAI_API_BASE", "OPENAI_MODEL"):
        os.environ.pop(variable, None)
    failed = []
    for name in names:
        notebook = nbformat.read(name, as_version=4)
        cells = run(notebook, Path(name).parent)
        if write:
            refresh(notebook.cells, cells)
            nbformat.write(notebook, name)
        elif changed := difference(notebook.cells, cells):
            print(changed)
            failed.append(name)
        print(name, "shows something else" if name in failed else "runs")
    if failed:
        print(
            f"If that is as it should be: python .ci/run_notebooks.py --write {' '.join(failed)}"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(
        main(
            "--write" in sys.argv, [name for name in sys.argv[1:] if name != "--write"]
        )
    )
