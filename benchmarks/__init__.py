"""Measurements of the package, each run as ``python -m benchmarks.NAME``."""

from __future__ import annotations

import os
import sys
from types import TracebackType


def _say_what_is_missing(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """A package that is not installed is said in one line, and the exit code is that of what is not measured."""
    own = {"benchmarks", "llama_index_memory_ext"}
    if (
        not isinstance(error, ModuleNotFoundError)
        or (error.name or "").split(".")[0] in own
    ):
        sys.__excepthook__(kind, error, trace)
        return
    sys.stdout.flush()
    print(
        f'{error.name} is not installed: nothing is measured; pip install -e ".[bench,dev]" brings it',
        file=sys.stderr,
    )
    sys.stderr.flush()
    # A hook cannot change the exit code in another way. It is NOT_MEASURED of command.py, which imports too much.
    os._exit(2)


# So it is while Python imports the package of ``python -m benchmarks.NAME``.
if sys.argv[:1] == ["-m"]:
    sys.excepthook = _say_what_is_missing
