"""The fixtures of these tests."""

from __future__ import annotations

import pytest

from tests.cli.terminal import Here
from tests.databases import database_uri, postgres_server, postgres_uri
from tests.memories import open_memory

__all__ = ["command", "database_uri", "open_memory", "postgres_server", "postgres_uri"]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    """The command line, in this process and without the variables of the environment."""
    return Here(capsys, monkeypatch)
