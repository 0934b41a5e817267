"""The command line: ``python -m llama_index_memory_ext``."""

from __future__ import annotations

import io
import json
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from llama_index_memory_ext import SettingError, __version__
from llama_index_memory_ext.apps.cli import (
    PACKAGE,
    UsageError,
    describe_error,
    needs_extra,
    plain,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import typer

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; None takes ``sys.argv``.

    Return 0 for success, 1 if something failed or was not found, 2 for wrong usage, and
    130 if interrupted.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A model may answer in characters that the terminal does not have, and a
            # pipe may hold any bytes.
            stream.reconfigure(errors="replace")
    if arguments == ["--version"]:
        sys.stdout.write(f"{PACKAGE} {__version__}\n")
        return 0
    try:
        return _run(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has closed it. Otherwise Python would report an error
        # when it flushes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 - the user gets one line for any failure
        return _report(error, arguments)


def _report(error: Exception, arguments: Sequence[str]) -> int:
    # Older versions of Typer have no public name for this class.
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{describe_error(error)}\n")
        return WRONG_USAGE
    # Errors of Typer have an exit code.
    code = int(getattr(error, "exit_code", FAILED))
    if isinstance(error, (UsageError, SettingError)):
        code = WRONG_USAGE
    text = describe_error(error)
    # Errors of Typer have the context of their command.
    context = getattr(error, "ctx", None)
    if context is not None:
        text = f"{text.rstrip('.')}. {context.command.epilog}"
    text = plain(text)
    line = f"Error: {text}"
    if "--json" in arguments:
        line = json.dumps({"error": text})
    sys.stderr.write(f"{line}\n")
    return code


def _run(arguments: list[str]) -> int:
    try:
        with needs_extra("cli", "typer", "rich"):
            app = load_app()
    except UsageError:
        if arguments not in (["demo"], ["demo", "--all"]):
            raise
        # Imported here: LlamaIndex takes seconds to start, and a wrong option is
        # reported without it.
        from llama_index_memory_ext.apps.demo import run

        run(with_all="--all" in arguments)
        return 0
    return app(arguments, standalone_mode=False) or 0


def load_app() -> typer.Typer:
    """Return the Typer app with all of its commands."""
    # Imported here: Typer and Rich are optional.
    from llama_index_memory_ext.apps.cli.app import app

    for module in ("facts", "data", "deletion", "serve"):
        # Importing registers the commands.
        import_module(f"llama_index_memory_ext.apps.cli.{module}")
    return app


if __name__ == "__main__":
    sys.exit(main())
