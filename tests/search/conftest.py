"""The fixtures of these tests."""

from __future__ import annotations

import pytest

from tests.databases import database_uri, postgres_server, postgres_uri

__all__ = ["any_database_uri", "database_uri", "postgres_server", "postgres_uri"]


@pytest.fixture(params=["database_uri", "postgres_uri"], ids=["file", "postgres"])
def any_database_uri(request: pytest.FixtureRequest) -> str:
    """The address of a file, then of a server; a database in memory is read by the statements of a file."""
    uri: str = request.getfixturevalue(request.param)
    return uri
