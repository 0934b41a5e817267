"""Makes pages of files that stand elsewhere in the repository, under the same names, and of the command line's help."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
ELSEWHERE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "docs/*.md", "notebooks/*.ipynb")
HELP = ".ci/command_line.py utils docs --name llama-index-memory"


def on_files(files: Files, config: Any) -> Files:
    """Called by MkDocs when it knows its own pages."""
    for pattern in ELSEWHERE:
        for path in sorted(ROOT.glob(pattern)):
            # The same place as in the repository, so that links from one to another hold.
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    command = [sys.executable, "-m", "typer", *HELP.split(), "--title", "Command line"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603 - our own
    files.append(File.generated(config, "reference/command-line.md", content=text))
    return files
