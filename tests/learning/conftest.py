"""The fixtures of these tests."""

from tests.learning.learning import learns  # noqa: F401 - a fixture
from tests.fixtures import *
