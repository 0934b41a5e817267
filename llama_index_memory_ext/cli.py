"""Reads the command line and starts what it names."""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_DEMO = (
    "Holds a conversation in one process, goes on with it in a second one, and prints what the model is shown in each "
    "turn. With OPENAI_API_KEY set it talks to OpenAI (OPENAI_MODEL, default gpt-4o-mini; OPENAI_API_BASE for another "
    "address), without it to a small offline model."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name (default: ``sys.argv``); returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help(sys.stderr)
        return 2
    # Imported here: a wrong option should be told at once, not after LlamaIndex has started.
    from llama_index_memory_ext.demo import run

    if isinstance(sys.stdout, io.TextIOWrapper):
        # A model may answer in characters that the terminal does not have.
        sys.stdout.reconfigure(errors="replace")
    try:
        return run(options.database, options.session, second_process=options.second_process)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever reads our output has seen enough. Without this Python complains when it flushes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m llama_index_memory_ext", description="Condensed memory for LlamaIndex agents."
    )
    demo = parser.add_subparsers(dest="command", title="commands").add_parser(
        "demo", help="show a conversation over two processes, and what the model is shown", description=_DEMO
    )
    demo.add_argument("--database", type=Path, metavar="PATH", help="the SQLite file (default: in a new folder)")
    demo.add_argument("--session", default="demo", metavar="ID", help="the conversation (default: %(default)s)")
    demo.add_argument("--second-process", action="store_true", help=argparse.SUPPRESS)
    return parser
