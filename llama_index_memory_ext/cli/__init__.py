"""Reads the command line and starts what it names."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from llama_index_memory_ext.cli.plain import plain
from llama_index_memory_ext.cli.reasons import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130

_LIBRARIES = ("typer", "rich", "packaging")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name (default: ``sys.argv``).

    Returns:
        0 if all went well, 1 if something failed or was not found, 2 for wrong usage, 130 if interrupted.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A model may answer in characters that the terminal does not have.
            stream.reconfigure(errors="replace")
    try:
        return _program()(arguments, _name())
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED if end.code else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever reads our output has seen enough. Without this Python complains when it flushes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 - whatever has failed, a person reads one line
        _tell(error, as_json="--json" in arguments)
        return FAILED


def _program() -> Callable[[list[str], str], int]:
    try:
        from llama_index_memory_ext.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _LIBRARIES:
            raise
        from llama_index_memory_ext.cli.bare import run
    return run


def _name() -> str:
    """What the program was started as."""
    name = Path(sys.argv[0]).stem
    return name if name == "llama-index-memory" else "python -m llama_index_memory_ext"


def _tell(error: Exception, *, as_json: bool) -> None:
    reason = plain(reason_of(error))
    print(json.dumps({"error": reason}) if as_json else f"Error: {reason}", file=sys.stderr)
