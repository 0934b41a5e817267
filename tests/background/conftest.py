"""The fixtures of these tests."""

from __future__ import annotations

from tests.databases import (
    any_database_uri,
    database_uri,
    postgres_server,
    postgres_uri,
)
from tests.scripted_models import start_model

__all__ = [
    "any_database_uri",
    "database_uri",
    "postgres_server",
    "postgres_uri",
    "start_model",
]
