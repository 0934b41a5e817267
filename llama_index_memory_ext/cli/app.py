"""Names the commands, and what each of them does in one line."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from llama_index_memory_ext.cli import facts, words
from llama_index_memory_ext.cli.database import use_tables
from llama_index_memory_ext.cli.doctor import doctor
from llama_index_memory_ext.cli.forgetting import forget
from llama_index_memory_ext.cli.moving import export, import_
from llama_index_memory_ext.cli.options import Schema, Table
from llama_index_memory_ext.cli.plain import plain
from llama_index_memory_ext.cli.sessions import sessions
from llama_index_memory_ext.cli.talking import chat

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # What is in brackets in a help text is no style.
    rich_markup_mode=None,
    help=words.ABOUT,
)
app.add_typer(facts.app, name="facts")


@app.callback()
def at(*, table: Table = "llama_index_memory", schema: Schema = None) -> None:
    """Say where in a database the tables are, whatever the command."""
    use_tables(table, schema)


@app.command(help=words.DEMO)
def demo(
    *,
    database: Annotated[Path | None, typer.Option(metavar="PATH", help=words.DATABASE)] = None,
    session: Annotated[str, typer.Option(metavar="ID", help=words.SESSION)] = "demo",
    second_process: Annotated[bool, typer.Option("--second-process", hidden=True)] = False,
) -> None:
    """Hold the conversation."""
    # Imported here, as everything that starts LlamaIndex: help and wrong options need not wait for it.
    from llama_index_memory_ext.cli.demo import run as run_demo

    raise typer.Exit(run_demo(database, session, second_process=second_process))


app.command()(chat)
app.command()(sessions)
app.command()(export)
app.command("import")(import_)
app.command()(forget)
app.command()(doctor)


def run(arguments: list[str], name: str) -> int:
    """Run a command; ends with its exit code, by ``SystemExit`` too."""
    if not arguments:
        with redirect_stdout(sys.stderr):
            app(["--help"], prog_name=name, standalone_mode=False)
        return 2
    if "--json" not in arguments:
        app(arguments, prog_name=name)
        return 0
    try:
        return app(arguments, prog_name=name, standalone_mode=False) or 0
    except Exception as error:
        # Wrong usage; the class has a public name in older versions of Typer only.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        print(json.dumps({"error": plain(message())}), file=sys.stderr)
        return 2
