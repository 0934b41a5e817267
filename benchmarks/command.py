"""Reads the command of a benchmark: which file it names, and whether it shows how far it is.

The exit code of a benchmark is 1 if a promise is missed, ``NOT_MEASURED`` if data or packages are missing for it or for
a part of it, and 3 for both.

All are run as ``python -m benchmarks.NAME [FILE ...] [--show-progress]``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import TypeVar, cast

from llama_index.core.utils import get_tqdm_iterable

SHOW_PROGRESS = "--show-progress"
BASE_URL = "--base-url"
NOT_MEASURED = 2

T = TypeVar("T")


def named_path(default: Path, place: int = 0) -> Path:
    """The file or folder that the command names at this place, from 0, or the default."""
    named = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    return Path(named[place]) if len(named) > place else default


def option(name: str, default: str = "") -> str:
    """The value of an option of the command."""
    start = f"--{name}="
    values = [value for value in sys.argv[1:] if value.startswith(start)]
    return values[-1].removeprefix(start) if values else default


def shown(iterable: Iterable[T], what: str) -> Iterable[T]:
    """The same, behind a progress bar with ``--show-progress``."""
    return cast(
        "Iterable[T]", get_tqdm_iterable(iterable, SHOW_PROGRESS in sys.argv, what)
    )


def command_of(name: str) -> str:
    """The command as others would write it."""
    arguments = []
    for argument in sys.argv[1:]:
        setting, equals, value = argument.rpartition("=")
        if setting == BASE_URL:
            arguments.append(f"{BASE_URL}=URL")
        # A progress bar changes no result.
        elif argument != SHOW_PROGRESS:
            # Where a file lies on the machine is nobody's business.
            arguments.append(quote(f"{setting}{equals}{Path(value).name}"))
    return " ".join([f"python -m benchmarks.{name}", *arguments])
