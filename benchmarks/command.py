"""Reads the command of a benchmark: which file it names, and whether it shows how far it is.

The exit code of a benchmark is 1 if a promise is missed, ``NOT_MEASURED`` if data or packages are missing for it or for
a part of it, and 3 for both.

All are run as ``python -m benchmarks.NAME [FILE ...] [--show-progress]``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar, cast

from llama_index.core.utils import get_tqdm_iterable

SHOW_PROGRESS = "--show-progress"
NOT_MEASURED = 2

T = TypeVar("T")


def named_path(default: Path, place: int = 0) -> Path:
    """The file or folder that the command names at this place, from 0, or the default."""
    named = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    return Path(named[place]) if len(named) > place else default


def shown(iterable: Iterable[T], what: str) -> Iterable[T]:
    """The same, behind a progress bar with ``--show-progress``."""
    return cast(
        "Iterable[T]", get_tqdm_iterable(iterable, SHOW_PROGRESS in sys.argv, what)
    )


def command_of(name: str) -> str:
    """The command as others would write it."""
    # Where a file lies on the machine is nobody's business, and a progress bar changes no result.
    arguments = [
        Path(argument).name for argument in sys.argv[1:] if argument != SHOW_PROGRESS
    ]
    return " ".join([f"python -m benchmarks.{name}", *arguments])
