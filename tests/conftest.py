"""What holds for every test. The fixtures of a folder are named in its own conftest."""

from __future__ import annotations

import pytest
from hypothesis import settings

# The first example of a property may load a vocabulary, so its time says nothing.
settings.register_profile("here", deadline=None)
settings.load_profile("here")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """No further process when files are named on the command line; else one for each core."""
    return 0 if any(".py" in argument for argument in config.args) else None
