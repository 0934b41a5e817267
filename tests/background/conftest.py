"""The fixtures of these tests."""

from __future__ import annotations

from tests.databases import database_uri
from tests.models import start_model

__all__ = ["database_uri", "start_model"]
