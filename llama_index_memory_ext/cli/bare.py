"""Runs the demo where Typer and Rich are not installed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llama_index_memory_ext.cli.words import ABOUT, DATABASE, DEMO, NOT_INSTALLED, SESSION


def run(arguments: list[str], name: str) -> int:
    """Run the demo; any other command is told to need the extra."""
    if arguments and not arguments[0].startswith("-") and arguments[0] != "demo":
        print(NOT_INSTALLED, file=sys.stderr)
        return 2
    parser = _parser(name)
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help(sys.stderr)
        return 2
    # Imported here: a wrong option should be told at once, not after LlamaIndex has started.
    from llama_index_memory_ext.cli.demo import run as run_demo

    return run_demo(options.database, options.session, second_process=options.second_process)


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=name, description=ABOUT, epilog=NOT_INSTALLED)
    commands = parser.add_subparsers(dest="command", title="commands")
    demo = commands.add_parser("demo", help=DEMO.partition(".")[0], description=DEMO)
    demo.add_argument("--database", type=Path, metavar="PATH", help=DATABASE)
    demo.add_argument("--session", default="demo", metavar="ID", help=f"{SESSION} (default: %(default)s)")
    demo.add_argument("--second-process", action="store_true", help=argparse.SUPPRESS)
    return parser
