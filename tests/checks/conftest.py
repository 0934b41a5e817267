"""The fixtures of these tests."""

from tests.fixtures import *
from tests.learning.learning import learns  # noqa: F401 - a fixture
