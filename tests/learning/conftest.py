"""The fixtures of these tests."""

from tests.facts.learning import learns  # noqa: F401 - a fixture
from tests.fixtures import *
