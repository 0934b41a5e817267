"""The fixtures of these tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.terminal import Here
from tests.databases import (
    database_uri,
    empty_postgres_uri,
    postgres_server,
    postgres_uri,
)
from tests.memories import open_memory

__all__ = [
    "command",
    "database_uri",
    "empty_postgres_uri",
    "open_memory",
    "postgres_server",
    "postgres_uri",
]


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Here:
    """The command line, in this process and without the variables of the environment."""
    return Here(capsys, monkeypatch)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A file that does not exist yet."""
    return tmp_path / "memory.db"


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Takes a library away, and the modules of ours that would import it."""

    def take_away(library: str, *modules: str) -> None:
        for name in [
            name
            for name in sys.modules
            if name == library or name.startswith(f"{library}.")
        ]:
            monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setitem(sys.modules, library, None)
        for name in modules:
            monkeypatch.delitem(
                sys.modules, f"llama_index_memory_ext.{name}", raising=False
            )

    return take_away
