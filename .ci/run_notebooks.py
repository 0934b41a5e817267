"""Runs notebooks from top to bottom; the first cell that fails ends it."""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

for name in sys.argv[1:]:
    notebook = nbformat.read(name, as_version=4)
    stored = [cell for cell in notebook.cells if cell.get("outputs")]
    assert not stored, f"{name} must be stored without outputs; {len(stored)} cells have some"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(Path(name).parent)}}).execute()
    print(name, "runs")
