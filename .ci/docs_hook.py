"""Makes pages of files that stand elsewhere in the repository, under the same names, so that their links hold."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
ELSEWHERE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "notebooks/*.ipynb")


def on_files(files: Files, config: Any) -> Files:
    """Called by MkDocs when it knows its own pages."""
    for pattern in ELSEWHERE:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files
