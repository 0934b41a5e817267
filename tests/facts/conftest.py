"""The fixtures of these tests."""

from tests.databases import lasting_store
from tests.fixtures import *
from tests.learning.learning import learns  # noqa: F401 - a fixture

store = lasting_store
