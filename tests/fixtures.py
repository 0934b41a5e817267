"""The fixtures of all tests that open memories: import all of them into the conftest of a folder."""

from __future__ import annotations

from tests.databases import (
    any_database_uri,
    database_uri,
    empty_postgres_uri,
    lasting_database_uri,
    lasting_store,
    open_store,
    postgres_server,
    postgres_uri,
    store,
)
from tests.memories import open_memory, open_plain_memory
from tests.scripted_models import start_client, start_model

__all__ = [
    "any_database_uri",
    "database_uri",
    "empty_postgres_uri",
    "lasting_database_uri",
    "lasting_store",
    "open_memory",
    "open_plain_memory",
    "open_store",
    "postgres_server",
    "postgres_uri",
    "start_client",
    "start_model",
    "store",
]
