"""The fixtures of these tests."""

from tests.fixtures import *
from tests.learning.learning import learns  # noqa: F401 - a fixture
from tests.record.conftest import open_block  # noqa: F401 - a fixture
