"""Each module imports only from rows below its own."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import llama_index_memory_ext

PACKAGE = Path(llama_index_memory_ext.__file__).parent
# The rooms, the highest first. A room imports from those below, and each library has one door.
ROWS = (
    {"__main__", "__init__"},
    {"cli", "agents"},
    {"memory"},
    {"record", "facts"},
    {"log_block"},
    {"store", "search", "formats"},
    {"fact"},
    {"text"},
    {"background"},
    {"errors", "events"},
)
ROW_OF = {name: len(ROWS) - row for row, names in enumerate(ROWS) for name in names}
DOORS: dict[str, set[str]] = {
    "sqlalchemy": {"store"},
    "tiktoken": {"text"},
    "sklearn": set(),
    "snowballstemmer": {"search"},
    "typer": {"cli"},
    "rich": {"cli"},
}


def imported_modules(path: Path) -> set[str]:
    """The names of all modules that a file imports at any place, but for type checking."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def own_imports(path: Path) -> set[str]:
    prefix = "llama_index_memory_ext."
    names = {name.removeprefix(prefix).split(".")[0] for name in imported_modules(path) if name.startswith(prefix)}
    return names & set(ROW_OF)


def modules() -> list[tuple[str, Path]]:
    """Each file with the name of its module; a folder is one module."""
    parts = [(path, path.relative_to(PACKAGE).parts) for path in PACKAGE.rglob("*.py")]
    return [(part[0].removesuffix(".py"), path) for path, part in parts]


def test_every_module_has_a_row() -> None:
    assert {name for name, _ in modules()} == set(ROW_OF)


def test_imports_point_down() -> None:
    upward = {
        (module, name)
        for module, path in modules()
        for name in own_imports(path) - {module}
        if ROW_OF[name] >= ROW_OF[module]
    }
    assert upward == set()


def test_each_library_has_one_door() -> None:
    passed_by = {
        (module, library)
        for module, path in modules()
        for library, doors in DOORS.items()
        if module not in doors and any(name.split(".")[0] == library for name in imported_modules(path))
    }
    assert passed_by == set()


def test_the_public_names_are_sorted_and_exist() -> None:
    names = llama_index_memory_ext.__all__
    assert names == sorted(names)
    assert all(hasattr(llama_index_memory_ext, name) for name in names)


def test_importing_the_package_alone_does_not_start_llamaindex() -> None:
    """The help of the command line must not wait for it; each public name is loaded when it is first used."""
    code = (
        "import sys, llama_index_memory_ext; "
        "assert not [name for name in sys.modules if name.startswith('llama_index.')]; "
        "from llama_index_memory_ext import CondensedMemory; assert 'CondensedMemory' in dir(llama_index_memory_ext)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_a_name_that_does_not_exist_is_told_as_python_does() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Memroy'"):
        _ = llama_index_memory_ext.Memroy  # type: ignore[attr-defined]
