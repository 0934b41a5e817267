"""Compares two wheels, which must hold the same files: one from the repository, one from the source distribution."""

import sys
from pathlib import Path
from zipfile import ZipFile


def files_of(wheel: Path) -> dict[str, bytes]:
    """What the wheel installs, by name."""
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


one, other = (files_of(Path(name)) for name in sys.argv[1:])
different = sorted(
    name for name in one.keys() | other.keys() if one.get(name) != other.get(name)
)
assert not different, f"the wheels differ in {different}"
assert {
    "llama_index_memory_ext/py.typed",
    "llama_index_memory_ext/apps/inspector/templates/base.html",
} <= one.keys()
strangers = [name for name in one if not name.startswith("llama_index_memory_ext")]
assert not strangers, f"the wheel would install {strangers}"
print(f"both wheels hold the same {len(one)} files")
